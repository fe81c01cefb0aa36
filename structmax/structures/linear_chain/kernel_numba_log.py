"""The chain in the log domain: for scores of any range. Derivation: README.md in this folder.

The logarithms are float64 whatever the dtype of the scores; exp is taken in the dtype, of differences that are ≤ 0.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba_math import exp
from structmax.structures.linear_chain.kernel_numba_row import extremes
from structmax.structures.linear_chain.kernel_numba_scaled import BROKEN, FINE, INFEASIBLE


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
def _log_sums(before, block, peak, total, out):
    """out[j] = log Σ over i of exp(before[i] + block[i, j])"""
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
    for j in range(size):
        out[j] = peak[j] + math.log(total[j]) if total[j] > 0 else -np.inf


@compiled()
def log_inside(unary, pairwise, length):
    """What it says, log Z, a = log α with its maximum shifted to 0, and the log of what reaches each label before."""
    size = unary.shape[1]
    a, reach = np.empty((length, size)), np.zeros((length, size))
    if is_broken(unary, pairwise, length):
        return BROKEN, np.nan, a, reach
    peaks, total = np.empty(size), np.empty(size, unary.dtype)
    value = 0.0
    for t in range(length):
        if t > 0:
            _log_sums(a[t - 1], transitions(pairwise, t), peaks, total, reach[t])
        peak = -np.inf
        for c in range(size):
            a[t, c] = reach[t, c] + unary[t, c]
            peak = max(peak, a[t, c])
        if peak == -np.inf:
            return INFEASIBLE, -np.inf, a, reach
        value += peak
        for c in range(size):
            a[t, c] -= peak
    last = 0.0
    for c in range(size):
        last += math.exp(a[length - 1, c])
    return FINE, value + math.log(last), a, reach


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
def _share_row(a, row, ceiling, p, out):
    """Adds p(j) · P(i before j) to `out`; returns its sum."""
    total = row.dtype.type(0)
    for j in range(row.size):
        weight = exp(row.dtype.type(a + row[j] - ceiling[j])) * p[j]
        out[j] += weight
        total += weight
    return total


@compiled()
def log_outside(pairwise, length, a, reach, d_unary, d_pairwise):
    """The marginals, after `log_inside`: the mass of a label is shared out among those before it."""
    size = a.shape[1]
    ceiling = np.empty(size)
    last_marginals(a[length - 1], d_unary[length - 1])
    for t in range(length - 1, 0, -1):
        block, out = transitions(pairwise, t), transitions(d_pairwise, t)
        ceilings(reach[t], d_unary[t], 0.0, ceiling)
        mass = 0.0
        for i in range(size):
            share = d_unary.dtype.type(0)
            if a[t - 1, i] > -np.inf:
                places = slice(i * size, (i + 1) * size)
                share = _share_row(a[t - 1, i], block[places], ceiling, d_unary[t], out[places])
            d_unary[t - 1, i] = share
            mass += share
        for i in range(size):
            d_unary[t - 1, i] /= mass
