"""Inside and outside in log space, for scores of any range: plain, and slower than products of matrices.

`chart` (N, N, S) has preterminals over single words and nonterminals over wider spans; all else is −inf. Choices are
shared out by weights that are summed on the spot, not by differences of logarithms: at −1e15 these have no digits left
for the number of choices.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp


@compiled()
def _weigh_splits(i, j, b, c, chart, weight):
    """weight[k − i] = exp(chart(i, k, b) + chart(k + 1, j, c) − peak) for all splits; the peak, and their sum."""
    peak, total = -np.inf, 0.0
    for k in range(i, j):
        peak = max(peak, chart[i, k, b] + chart[k + 1, j, c])
    if peak > -np.inf:
        for k in range(i, j):
            weight[k - i] = exp((chart[i, k, b] + chart[k + 1, j, c]) - peak)
            total += weight[k - i]
    return peak, total


@compiled()
def _fill_pairs(i, j, chart, pairs, weight):
    """pairs[b, c] = log Σ over splits of exp(chart(i, k, b) + chart(k + 1, j, c))."""
    for b in range(len(pairs)):
        for c in range(len(pairs)):
            peak, total = _weigh_splits(i, j, b, c, chart, weight)
            pairs[b, c] = peak + np.log(total) if peak > -np.inf else peak


@compiled()
def _weigh_pairs(rule, pairs, weight):
    """weight[b, c] = exp(rule + pair − peak) for all pairs of children; the peak, and their sum."""
    peak, total = -np.inf, 0.0
    for b in range(len(pairs)):
        for c in range(len(pairs)):
            # What no split allows may hold anything.
            if pairs[b, c] > -np.inf:
                peak = max(peak, rule[b, c] + pairs[b, c])
    if peak > -np.inf:
        for b in range(len(pairs)):
            for c in range(len(pairs)):
                weight[b, c] = exp(rule[b, c] + pairs[b, c] - peak) if pairs[b, c] > -np.inf else 0.0
                total += weight[b, c]
    return peak, total


@compiled()
def _weigh_roots(roots, chart, n, weight):
    """weight[a] = exp(root + chart(0, n − 1, a) − peak) for all nonterminals; the peak, and their sum."""
    peak, total = -np.inf, 0.0
    for a in range(len(roots)):
        peak = max(peak, roots[a] + chart[0, n - 1, a])
    if peak > -np.inf:
        for a in range(len(roots)):
            weight[a] = exp(roots[a] + chart[0, n - 1, a] - peak)
            total += weight[a]
    return peak, total


@compiled()
def new_weights(N, S):
    """Room for the weights of all choices of a kind: splits, pairs of children and roots."""
    return np.empty(N), np.empty((S, S)), np.empty(S)


@compiled()
def inside(terms, rules, roots, spans, n, chart, pairs, weights):
    """Fills the chart, and returns log Z."""
    K, S = rules.shape[0], rules.shape[1]
    of_splits, of_pairs, of_roots = weights
    chart[:n, :n] = -np.inf
    for i in range(n):
        for t in range(S - K):
            chart[i, i, K + t] = terms[i, t]
    for w in range(1, n):
        for i in range(n - w):
            _fill_pairs(i, i + w, chart, pairs, of_splits)
            for a in range(K):
                peak, total = _weigh_pairs(rules[a], pairs, of_pairs)
                chart[i, i + w, a] = spans[i, i + w, a] + peak + np.log(total) if peak > -np.inf else peak
    peak, total = _weigh_roots(roots, chart, n, of_roots)
    return peak + np.log(total) if peak > -np.inf else peak


@compiled()
def outside(rules, roots, n, chart, pairs, weights, d_pairs, mu, counts, d_terms, d_rules, d_roots, d_spans):
    """Marginals of all parts, for a finite value: what reaches a node is shared out among its edges."""
    K, S = rules.shape[0], rules.shape[1]
    of_splits, of_pairs, of_roots = weights
    mu[:n, :n] = 0.0
    # In float64, whatever the dtype of the result.
    counts[:] = 0.0
    _, total = _weigh_roots(roots, chart, n, of_roots)
    for a in range(K):
        mu[0, n - 1, a] = of_roots[a] / total
        d_roots[a] = mu[0, n - 1, a]
    for w in range(n - 1, 0, -1):
        for i in range(n - w):
            j = i + w
            _fill_pairs(i, j, chart, pairs, of_splits)
            d_pairs[:] = 0.0
            for a in range(K):
                d_spans[i, j, a] = mu[i, j, a]
                if mu[i, j, a] == 0:
                    continue
                _, total = _weigh_pairs(rules[a], pairs, of_pairs)
                scale = mu[i, j, a] / total
                for b in range(S):
                    for c in range(S):
                        counts[a, b, c] += scale * of_pairs[b, c]
                        d_pairs[b, c] += scale * of_pairs[b, c]
            for b in range(S):
                for c in range(S):
                    if d_pairs[b, c] == 0:
                        continue
                    _, total = _weigh_splits(i, j, b, c, chart, of_splits)
                    scale = d_pairs[b, c] / total
                    for k in range(i, j):
                        mu[i, k, b] += scale * of_splits[k - i]
                        mu[k + 1, j, c] += scale * of_splits[k - i]
    for i in range(n):
        for t in range(S - K):
            d_terms[i, t] = mu[i, i, K + t]
    d_rules[:] = counts
