"""Single structures of a chain, the best one and draws: after an inside pass, a walk from the last position back."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.math import exp
from structmax.numerics.kernel_numba.matrix import best_row
from structmax.numerics.kernel_numba.row import climb, extremes
from structmax.structures.linear_chain.kernel_numba.log import transitions
from structmax.structures.linear_chain.kernel_numba.scaled import BROKEN, FINE, INFEASIBLE, copy, sum_of


@compiled()
def _mark(t, label, after, unary, pairwise):
    """Label `label` at position t, and the transition to label `after`, unless that is −1."""
    size = unary.shape[1]
    unary[t, label] = 1
    if after >= 0:
        transitions(pairwise, t + 1)[label * size + after] += 1


@compiled()
def best_inside(unary, pairwise, length, best, reach, matrix):
    """Fills `best`, the score of the best way to each label, up to one constant for all; returns what it says."""
    dtype = unary.dtype.type
    size = unary.shape[1]
    peak, total = dtype(0), 0.0
    reach[:] = dtype(0)
    for t in range(length):
        if np.isnan(extremes(unary[t])[0]):
            return BROKEN
        if t > 0:
            if t <= len(pairwise) and np.isnan(extremes(pairwise[t - 1])[0]):
                return BROKEN
            if t == len(pairwise):
                # Memory may end behind the last matrix, and reading goes on for a block.
                copy(pairwise[t - 1], matrix)
            best_row(best[t - 1], 1, size, pairwise[t - 1] if t < len(pairwise) else matrix, size, reach)
        peak = climb(reach, unary[t], peak, best[t])
        total += peak
        if peak == -np.inf:
            peak = dtype(0)
    # as a number of the scores' dtype
    return INFEASIBLE if dtype(total) == -np.inf else FINE


@compiled()
def mark_best(pairwise, length, best, d_unary, d_pairwise):
    """Ties go to the first label, from the last position to the first."""
    size = d_unary.shape[1]
    label = -1
    for t in range(length - 1, -1, -1):
        after, label = label, 0
        peak = best.dtype.type(-np.inf)
        for c in range(size):
            value = best[t, c] if after < 0 else best[t, c] + transitions(pairwise, t + 1)[c * size + after]
            if value > peak:
                peak, label = value, c
        _mark(t, label, after, d_unary, d_pairwise)


@compiled()
def _choose(weights, u):
    """The first index at which the sum of the weights so far exceeds u times the sum of all."""
    target = float(u) * float(sum_of(weights))
    chosen, share = 0, 0.0
    for i in range(weights.size):
        if weights[i] > 0:
            share += weights[i]
            chosen = i
            if share > target:
                break
    return chosen


@compiled()
def mark_draw(pairwise, length, noise, alpha, matrix, peaks, weights, d_unary, d_pairwise):
    """A draw in the scaled domain, after `inside`."""
    size = d_unary.shape[1]
    label = -1
    for t in range(length - 1, -1, -1):
        after = label
        for c in range(size):
            weights[c] = alpha[t, c]
            if after >= 0 and len(pairwise) == 1:
                weights[c] *= matrix[c * size + after]
            elif after >= 0:
                weights[c] *= exp(pairwise[t, c * size + after] - peaks[t])
        label = _choose(weights, noise[length - 1 - t])
        _mark(t, label, after, d_unary, d_pairwise)


@compiled()
def mark_log_draw(pairwise, length, noise, a, reach, weights, d_unary, d_pairwise):
    """A draw in the log domain, after `log_inside`."""
    size = d_unary.shape[1]
    label = -1
    for t in range(length - 1, -1, -1):
        after = label
        peak = -np.inf
        for c in range(size):
            x = a[t, c]
            if after >= 0:
                x += transitions(pairwise, t + 1)[c * size + after] - reach[t + 1, after]
            weights[c] = x
            peak = max(peak, x)
        # Beside masks of different size the largest may be far from 0: rounding has taken the rest.
        for c in range(size):
            impossible = weights[c] == -np.inf
            weights[c] = 0.0 if impossible else exp(weights.dtype.type(weights[c] - peak))
        label = _choose(weights, noise[length - 1 - t])
        _mark(t, label, after, d_unary, d_pairwise)
