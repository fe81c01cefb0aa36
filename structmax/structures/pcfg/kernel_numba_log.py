"""Inside and outside in log space, for scores of any range: plain, and slower than products of matrices.

`chart` (N, N, S) has preterminals over single words and nonterminals over wider spans; all else is −inf.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba_exp import exp


@compiled()
def _fill_pairs(i, j, chart, pairs):
    """pairs[b, c] = log Σ over splits of exp(chart(i, k, b) + chart(k + 1, j, c))."""
    S = chart.shape[2]
    for b in range(S):
        for c in range(S):
            peak = -np.inf
            for k in range(i, j):
                peak = max(peak, chart[i, k, b] + chart[k + 1, j, c])
            pairs[b, c] = peak
            if peak > -np.inf:
                total = 0.0
                for k in range(i, j):
                    total += exp((chart[i, k, b] + chart[k + 1, j, c]) - peak)
                pairs[b, c] += np.log(total)


@compiled()
def _sum_over_rules(rule, pairs):
    """log Σ over pairs of exp(rule + pair)."""
    peak = -np.inf
    for b in range(len(pairs)):
        for c in range(len(pairs)):
            # What no split allows may hold anything.
            if pairs[b, c] > -np.inf:
                peak = max(peak, rule[b, c] + pairs[b, c])
    if peak == -np.inf:
        return peak
    total = 0.0
    for b in range(len(pairs)):
        for c in range(len(pairs)):
            if pairs[b, c] > -np.inf:
                total += exp(rule[b, c] + pairs[b, c] - peak)
    return peak + np.log(total)


@compiled()
def inside(terms, rules, roots, spans, n, chart, pairs):
    """Fills the chart, and returns log Z."""
    K, S = rules.shape[0], rules.shape[1]
    chart[:n, :n] = -np.inf
    for i in range(n):
        for t in range(S - K):
            chart[i, i, K + t] = terms[i, t]
    for w in range(1, n):
        for i in range(n - w):
            _fill_pairs(i, i + w, chart, pairs)
            for a in range(K):
                chart[i, i + w, a] = spans[i, i + w, a] + _sum_over_rules(rules[a], pairs)
    peak, total = -np.inf, 0.0
    for a in range(K):
        peak = max(peak, roots[a] + chart[0, n - 1, a])
    if peak == -np.inf:
        return peak
    for a in range(K):
        total += exp(roots[a] + chart[0, n - 1, a] - peak)
    return peak + np.log(total)


@compiled()
def outside(value, rules, roots, spans, n, chart, pairs, d_pairs, mu, counts, d_terms, d_rules, d_roots, d_spans):
    """Marginals of all parts, for a finite value: what reaches a node is shared out among its edges."""
    K, S = rules.shape[0], rules.shape[1]
    mu[:n, :n] = 0.0
    # In float64, whatever the dtype of the result.
    counts[:] = 0.0
    for a in range(K):
        d_roots[a] = exp(roots[a] + chart[0, n - 1, a] - value)
        mu[0, n - 1, a] = d_roots[a]
    for w in range(n - 1, 0, -1):
        for i in range(n - w):
            j = i + w
            _fill_pairs(i, j, chart, pairs)
            d_pairs[:] = 0.0
            for a in range(K):
                d_spans[i, j, a] = mu[i, j, a]
                if mu[i, j, a] == 0:
                    continue
                total = chart[i, j, a] - spans[i, j, a]
                for b in range(S):
                    for c in range(S):
                        if pairs[b, c] > -np.inf:
                            share = mu[i, j, a] * exp(rules[a, b, c] + pairs[b, c] - total)
                            counts[a, b, c] += share
                            d_pairs[b, c] += share
            for b in range(S):
                for c in range(S):
                    if d_pairs[b, c] == 0:
                        continue
                    for k in range(i, j):
                        share = d_pairs[b, c] * exp((chart[i, k, b] + chart[k + 1, j, c]) - pairs[b, c])
                        mu[i, k, b] += share
                        mu[k + 1, j, c] += share
    for i in range(n):
        for t in range(S - K):
            d_terms[i, t] = mu[i, i, K + t]
    d_rules[:] = counts
