"""Inside and outside in log space, for scores of any range: plain, and slower than products of matrices.

Every node is a choice among pairs of numbers, whose sums are its edges: a symbol and a factor, the two sides of a
split, a root and its node. Choices are shared out by weights that are summed on the spot, not by differences of
logarithms: at −1e15 these have no digits left for the number of choices.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp


class Chart(NamedTuple):
    """Logarithms, or what of a draw is expected to pass through a node."""

    # (N, N, S): preterminals over single words, nonterminals over wider spans; all else is −inf
    symbols: np.ndarray
    # (N, N, R) each: of the rule of a span, and of a span as the left or right child of one
    ranks: np.ndarray
    left: np.ndarray
    right: np.ndarray


@compiled()
def new_chart(N, S, R):
    return Chart(np.empty((N, N, S)), np.empty((N, N, R)), np.empty((N, N, R)), np.empty((N, N, R)))


@compiled()
def _weigh(x, y, weight):
    """weight[k] = exp(x[k] + y[k] − peak); the peak, and their sum."""
    peak, total = -np.inf, 0.0
    for k in range(len(x)):
        peak = max(peak, x[k] + y[k])
    for k in range(len(x)):
        weight[k] = exp((x[k] + y[k]) - peak) if peak > -np.inf else 0.0
        total += weight[k]
    return peak, total


@compiled()
def _sum(x, y, weight):
    """log Σ over k of exp(x[k] + y[k])."""
    peak, total = _weigh(x, y, weight)
    return peak + np.log(total) if peak > -np.inf else peak


@compiled()
def _share(mu, x, y, weight, d_x, d_y):
    """Shares out what reaches a node among its edges, and adds it to both numbers of each."""
    if mu > 0:
        _, total = _weigh(x, y, weight)
        for k in range(len(x)):
            part = mu / total * weight[k]
            d_x[k] += part
            d_y[k] += part


@compiled()
def _symbols(i, j, K, S):
    """Which symbols can stand over a span: from where, to where."""
    return (K, S) if i == j else (0, K)


@compiled()
def inside(terms, roots, heads, left, right, spans, ranks, n, chart, weight):
    """Fills the chart, and returns log Z."""
    K, R = heads.shape
    S = left.shape[1]
    for w in range(n):
        for i in range(n - w):
            j = i + w
            chart.symbols[i, j] = -np.inf
            if w == 0:
                for t in range(S - K):
                    chart.symbols[i, i, K + t] = terms[i, t]
            else:
                for r in range(R):
                    sides = chart.left[i, i:j, r], chart.right[i + 1 : j + 1, j, r]
                    chart.ranks[i, j, r] = ranks[i, j, r] + _sum(*sides, weight)
                for a in range(K):
                    chart.symbols[i, j, a] = spans[i, j, a] + _sum(heads[a], chart.ranks[i, j], weight)
            if w < n - 1:
                low, high = _symbols(i, j, K, S)
                for r in range(R):
                    chart.left[i, j, r] = _sum(left[r, low:high], chart.symbols[i, j, low:high], weight)
                    chart.right[i, j, r] = _sum(right[r, low:high], chart.symbols[i, j, low:high], weight)
    return _sum(roots, chart.symbols[0, n - 1, :K], weight)


@compiled()
def outside(
    roots,
    heads,
    left,
    right,
    n,
    chart,
    mu,
    weight,
    counts,
    d_terms,
    d_roots,
    d_heads,
    d_left,
    d_right,
    d_spans,
    d_ranks,
):
    """Marginals of all parts, for a finite value: what reaches a node is shared out among its edges."""
    K, R = heads.shape
    S = left.shape[1]
    for array in mu:
        array[:n, :n] = 0.0
    # In float64, whatever the dtype of the result.
    of_roots, of_heads, of_left, of_right = counts
    of_roots[:] = 0.0
    of_heads[:] = 0.0
    of_left[:] = 0.0
    of_right[:] = 0.0
    _share(1.0, roots, chart.symbols[0, n - 1, :K], weight, of_roots, mu.symbols[0, n - 1, :K])
    for w in range(n - 1, -1, -1):
        for i in range(n - w):
            j = i + w
            low, high = _symbols(i, j, K, S)
            own, d_own = chart.symbols[i, j, low:high], mu.symbols[i, j, low:high]
            for r in range(R):
                _share(mu.left[i, j, r], left[r, low:high], own, weight, of_left[r, low:high], d_own)
                _share(mu.right[i, j, r], right[r, low:high], own, weight, of_right[r, low:high], d_own)
            if w == 0:
                d_terms[i] = mu.symbols[i, i, K:]
                continue
            d_spans[i, j] = mu.symbols[i, j, :K]
            for a in range(K):
                _share(mu.symbols[i, j, a], heads[a], chart.ranks[i, j], weight, of_heads[a], mu.ranks[i, j])
            d_ranks[i, j] = mu.ranks[i, j]
            for r in range(R):
                sides = chart.left[i, i:j, r], chart.right[i + 1 : j + 1, j, r]
                _share(mu.ranks[i, j, r], *sides, weight, mu.left[i, i:j, r], mu.right[i + 1 : j + 1, j, r])
    d_roots[:] = of_roots
    d_heads[:] = of_heads
    d_left[:] = of_left
    d_right[:] = of_right


@compiled()
def new_counts(K, R, S):
    return np.empty(K), np.empty((K, R)), np.empty((R, S)), np.empty((R, S))
