"""The chain in the log domain: for scores of any range. Derivation: ../README.md.

The logarithms are float64 whatever the dtype of the scores; exp is taken in the dtype, of differences that are ≤ 0.
What reaches a label is kept as the best way to it, `reach`, and one over the sum of all next to it, `share`: so the
shares of those before it sum to 1, however large the logarithms. At −1e15 these have no digits left for their number.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.math import exp
from structmax.numerics.kernel_numba.row import extremes
from structmax.structures.linear_chain.kernel_numba.scaled import BROKEN, FINE, INFEASIBLE


@compiled()
def transitions(pairwise, t):
    """The scores, flat, of the transitions into position t."""
    return pairwise[t - 1 if len(pairwise) > 1 else 0]


@compiled()
def is_broken(unary, pairwise, length):
    """Whether a score that counts is NaN or +inf."""
    for t in range(length):
        if np.isnan(extremes(unary[t])[0]) or (0 < t <= len(pairwise) and np.isnan(extremes(pairwise[t - 1])[0])):
            return True
    return False


@compiled("contract")
def _log_sums(before, block, peak, total):
    """The largest of before[i] + block[i, j], 0 if none is finite, and the sum of the exp of all next to it, by j."""
    size = before.size
    peak[:] = -np.inf
    for i in range(size):
        a, row = before[i], block[i * size : (i + 1) * size]
        if a > -np.inf:
            for j in range(size):
                x = a + row[j]
                peak[j] = x if x > peak[j] else peak[j]
    for j in range(size):
        peak[j] = peak[j] if peak[j] > -np.inf else 0.0
    total[:] = 0
    for i in range(size):
        a, row = before[i], block[i * size : (i + 1) * size]
        if a > -np.inf:
            for j in range(size):
                total[j] += exp(row.dtype.type(a + row[j] - peak[j]))


@compiled()
def log_inside(unary, pairwise, length):
    """What it says, log Z, a = log α with its maximum shifted to 0, and of each label `reach` and `share`."""
    size = unary.shape[1]
    a, reach, share = np.empty((length, size)), np.zeros((length, size)), np.zeros((length, size))
    if is_broken(unary, pairwise, length):
        return BROKEN, np.nan, a, reach, share
    total = np.ones(size, unary.dtype)
    value = 0.0
    for t in range(length):
        if t > 0:
            _log_sums(a[t - 1], transitions(pairwise, t), reach[t], total)
        peak = -np.inf
        for c in range(size):
            share[t, c] = 1 / total[c] if total[c] > 0 else 0.0
            a[t, c] = reach[t, c] + math.log(total[c]) + unary[t, c] if total[c] > 0 else -np.inf
            peak = max(peak, a[t, c])
        if peak == -np.inf:
            return INFEASIBLE, -np.inf, a, reach, share
        value += peak
        for c in range(size):
            a[t, c] -= peak
    last = 0.0
    for c in range(size):
        last += math.exp(a[length - 1, c])
    value += math.log(last)
    # as a number of the scores' dtype
    return INFEASIBLE if unary.dtype.type(value) == -np.inf else FINE, value, a, reach, share


@compiled()
def last_marginals(a, p):
    """p = the softmax of a."""
    total = 0.0
    for c in range(a.size):
        total += math.exp(a[c])
    for c in range(a.size):
        p[c] = math.exp(a[c]) / total


@compiled()
def ceilings(reach, x, floor, out):
    """`reach` where x is above `floor`; elsewhere +inf, so that the exp of a difference is 0."""
    for j in range(x.size):
        out[j] = reach[j] if x[j] > floor else np.inf


@compiled("contract", "reassoc")
def _share_row(a, row, ceiling, scale, out):
    """Adds p(j) · P(i before j) to `out`, where `scale` is p(j) times one over the sum over i; returns its sum."""
    total = row.dtype.type(0)
    for j in range(row.size):
        weight = row.dtype.type(exp(row.dtype.type(a + row[j] - ceiling[j])) * scale[j])
        out[j] += weight
        total += weight
    return total


@compiled()
def log_outside(pairwise, length, a, reach, share, d_unary, d_pairwise):
    """The marginals, after `log_inside`: the mass of a label is shared out among those before it."""
    size = a.shape[1]
    ceiling, scale = np.empty(size), np.empty(size)
    last_marginals(a[length - 1], d_unary[length - 1])
    for t in range(length - 1, 0, -1):
        block, out = transitions(pairwise, t), transitions(d_pairwise, t)
        ceilings(reach[t], d_unary[t], 0.0, ceiling)
        for j in range(size):
            scale[j] = d_unary[t, j] * share[t, j]
        mass = 0.0
        for i in range(size):
            amount = d_unary.dtype.type(0)
            if a[t - 1, i] > -np.inf:
                places = slice(i * size, (i + 1) * size)
                amount = _share_row(a[t - 1, i], block[places], ceiling, scale, out[places])
            d_unary[t - 1, i] = amount
            mass += amount
        for i in range(size):
            d_unary[t - 1, i] /= mass
