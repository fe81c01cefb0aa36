"""Marginals of a semi-Markov chain: mass 1 at the goal flows down to the leaves, each edge takes its share of its head.

The inside pass leaves the edges' weights in the outputs, where the outside pass turns them into marginals.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.semi_markov.kernel_numba.inside import finish, inside, new_chart, new_matrix, open_exactly


@compiled()
def clear_padding(segment, pairwise, length):
    """Zeros at segments that would pass the length, and at transitions into positions past it."""
    n, w, labels = segment.shape
    for i in range(max(0, length - w + 1), n):
        for j in range(max(0, length - i), w):
            for c in range(labels):
                segment[i, j, c] = 0
    for k in range(max(0, length - 1), len(pairwise)):
        for i in range(labels):
            for c in range(labels):
                pairwise[k, i, c] = 0


@compiled("contract")
def split_segments(kept, chart, p, end, start):
    """Hands the mass of end(p, ·) on to its segments, in place of their weights, and to their starts (N, C)."""
    widths, labels = min(kept.shape[1], p), kept.shape[2]
    share = chart.end_share
    for c in range(labels):
        end[c] *= share[p, c]
    for w in range(widths):
        n = p - 1 - w
        for c in range(labels):
            kept[n, w, c] *= end[c]
        for c in range(labels):
            start[n, c] += kept[n, w, c]


@compiled("contract", "reassoc")
def _leave_scaled(chart, p, start, end):
    """end(p, i) = mass_i Σ over c of factor_ic start_c share_c; start is left as start · share."""
    factor, mass, share = chart.factor, chart.mass, chart.start_share
    zero = end.dtype.type(0)
    for c in range(end.size):
        start[c] *= share[p, c]
    for i in range(end.size):
        total = zero
        for c in range(end.size):
            total += factor[i, c] * start[c]
        end[i] = mass[p, i] * total


@compiled("contract")
def _gather_scaled(chart, length, start, pairwise):
    """pairwise_ic = factor_ic Σ over positions of mass_i · (start share)_c."""
    factor, mass = chart.factor, chart.mass
    labels = len(factor)
    for p in range(1, length):
        for i in range(labels):
            m = mass[p, i]
            for c in range(labels):
                pairwise[i, c] += m * start[p, c]
    for i in range(labels):
        for c in range(labels):
            pairwise[i, c] *= factor[i, c]


@compiled("contract", "reassoc")
def _leave_exactly(enter, start, end):
    """Turns the probabilities of transitions into marginals: enter_ic start_c; end_i is their sum."""
    zero = end.dtype.type(0)
    for i in range(end.size):
        for c in range(end.size):
            enter[i, c] *= start[c]
        total = zero
        for c in range(end.size):
            total += enter[i, c]
        end[i] = total


@compiled()
def _outside(pairwise, length, chart, scaled, start, end, mu_segment, mu_pairwise, enter):
    shared, labels = len(pairwise) == 1, end.size
    for n in range(length):
        for c in range(labels):
            start[n, c] = 0
    for c in range(labels):
        end[c] = chart.total[c]
    for i in range(labels if shared else 0):
        for c in range(labels):
            mu_pairwise[0, i, c] = 0
    for p in range(length, 0, -1):
        split_segments(mu_segment, chart, p, end, start)
        if p == 1:
            break
        if scaled:
            _leave_scaled(chart, p - 1, start[p - 1], end)
        elif shared:
            open_exactly(pairwise, chart, p - 1, enter)
            _leave_exactly(enter[0], start[p - 1], end)
            for i in range(labels):
                for c in range(labels):
                    mu_pairwise[0, i, c] += enter[0, i, c]
        else:
            _leave_exactly(mu_pairwise[p - 2], start[p - 1], end)
    if scaled:
        _gather_scaled(chart, length, start, mu_pairwise[0])


@kernel()
def marginal_rows(first, last, segment, pairwise, lengths, value, mu_segment, mu_pairwise):
    chart = new_chart(segment)
    start, end = np.empty(chart.start.shape, segment.dtype), np.empty(chart.total.size, segment.dtype)
    scratch = new_matrix(pairwise)
    for b in range(first, last):
        length = lengths[b]
        clear_padding(mu_segment[b], mu_pairwise[b], length)
        value[b] = 0
        if length > 0:
            enter = scratch if pairwise.shape[1] == 1 else mu_pairwise[b]
            scaled = inside(segment[b], pairwise[b], length, chart, mu_segment[b], enter)
            value[b] = finish(chart, length)
            _outside(pairwise[b], length, chart, scaled, start, end, mu_segment[b], mu_pairwise[b], enter)
