"""The chain in the scaled domain: probabilities instead of their logarithms, one exp for each score.

Derivation: ../README.md. Rows have `whole(C)` entries, zeros behind the first C.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.math import exp
from structmax.numerics.kernel_numba.matrix import SLACK, add_rows, share_rows, weigh_rows
from structmax.numerics.kernel_numba.row import arrive, extremes, meet, scale_row, shift_row

# What the inside pass says of an instance: all is well; no structure is feasible; a score is NaN or +inf; some
# number might be too small for this domain.
FINE, INFEASIBLE, BROKEN, NARROW = 0, 1, 2, 3
# Entries of the block of positions whose outer products are summed at once: half of the first cache.
TOGETHER = 4096
# Positions between corrections of what rounding does to a sum that should stay 1.
CORRECTION = 64


@compiled()
def rows_of(count, width, like):
    """Zeros (count, width) with the dtype of the vector `like`, aligned to blocks."""
    buffer = np.zeros(count * width + BLOCK, like.dtype)
    start = -(buffer.ctypes.data // buffer.itemsize) % BLOCK
    return buffer[start : start + count * width].reshape(count, width)


@compiled()
def flat_of(size, like):
    """Zeros for a matrix of `size` entries, with the slack that block-wise reading needs."""
    return rows_of(1, size + SLACK, like)[0]


@compiled("contract")
def exp_in_place(x):
    for i in range(x.size):
        x[i] = exp(x[i])


@compiled("contract")
def exp_shifted(x, shift, out):
    for i in range(x.size):
        out[i] = exp(x[i] - shift)


@compiled("contract", "reassoc")
def sum_of(x):
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return total


@compiled("contract")
def exp_twice(x, shift, out, again):
    for i in range(x.size):
        out[i] = exp(x[i] - shift)
        again[i] = out[i]


@compiled()
def copy(x, out):
    for i in range(x.size):
        out[i] = x[i]


@compiled()
def transpose(matrix, size, out):
    for i in range(size):
        for j in range(size):
            out[j * size + i] = matrix[i * size + j]


@compiled()
def widest(like):
    """The largest range of scores for this domain: its exp, and that times any count, is a plain number."""
    return 70.0 if like.itemsize == 4 else 300.0


@compiled()
def inside(unary, pairwise, length, alpha, factor, reach, matrix, peaks, lowest, kept):
    """Fills α, the factors scale · e^unary, and e^pairwise in `matrix`; returns what it says, log Z and the last Σ α.

    `pairwise` is (1, C²) for all positions, or (N − 1, C²); then `kept`, unless it is empty, gets all e^pairwise.
    """
    dtype = unary.dtype.type
    size = unary.shape[1]
    value, range_unary, range_pairwise, forbids = 0.0, 0.0, 0.0, False
    if length == 0:
        return FINE, 0.0, 1.0
    factor[:length] = dtype(-np.inf)
    for t in range(length):
        peak, floor, some = extremes(unary[t])
        if np.isnan(peak):
            return BROKEN, np.nan, 0.0
        forbids |= some
        if peak > -np.inf:
            value += peak
            range_unary = max(range_unary, float(peak) - float(floor))
            shift_row(unary[t], peak, factor[t])
    if range_unary > widest(unary):
        return NARROW, 0.0, 0.0
    exp_in_place(factor[:length].reshape(-1))
    lowest[:] = dtype(np.inf)
    reach[:] = dtype(1)
    total = float(arrive(reach, factor[0], dtype(1), alpha[0], lowest))
    least, scale, peak = total, total, dtype(0)
    for t in range(1, length):
        if t <= len(pairwise):
            peak, floor, some = extremes(pairwise[t - 1])
            if np.isnan(peak):
                return BROKEN, np.nan, 0.0
            forbids |= some
            peak = peak if peak > -np.inf else dtype(0)
            range_pairwise = max(range_pairwise, float(peak) - float(floor))
            if range_unary + range_pairwise > widest(unary):
                return NARROW, 0.0, 0.0
            if len(kept) > 0:
                exp_twice(pairwise[t - 1], peak, matrix, kept[t - 1])
            else:
                exp_shifted(pairwise[t - 1], peak, matrix)
        if total == 0:
            continue
        peaks[t - 1] = peak
        value += peak
        weigh_rows(alpha[t - 1], 1, size, matrix, size, reach)
        total = float(arrive(reach, factor[t], dtype(1 / total), alpha[t], lowest))
        least = min(least, total) if total > 0 else least
        scale *= total
        if not 1e-150 < scale < 1e150 and total > 0:
            value += math.log(scale)
            scale = 1.0
    # What is not zero is at least this, or it might have come out as zero or with few digits.
    tiny = 4 * size * float(np.finfo(unary.dtype).tiny) * math.exp(range_pairwise)
    smallest = np.inf
    for low in lowest:
        smallest = min(smallest, low)
    if least < tiny or (forbids and smallest < tiny * math.exp(range_unary)):
        return NARROW, 0.0, 0.0
    value += math.log(scale)
    # as a number of the scores' dtype
    if total == 0 or dtype(value) == -np.inf:
        return INFEASIBLE, -np.inf, 0.0
    return FINE, value, total


@compiled()
def add_outer_products(left, right, first, last, counts):
    """counts[i] += Σ over first < t ≤ last of left[t − 1, i] · right[t]"""
    width = left.shape[1]
    every_left, every_right = left.reshape(-1), right.reshape(-1)
    together = max(4, TOGETHER // width)
    for start in range(first, last, together):
        rows = min(together, last - start)
        for i in range(len(counts)):
            add_rows(every_left[start * width + i :], width, rows, every_right[(start + 1) * width :], width, counts[i])


@compiled()
def outside_shared(length, total, alpha, factor, matrix, d_unary, d_pairwise):
    """The marginals where one matrix serves all positions, after `inside`; the factors become gates, factor · β.

    How often a transition is expected: the sum of the outer products of α and gates, times e^pairwise.
    """
    dtype = alpha.dtype.type
    size, width = d_unary.shape[1], alpha.shape[1]
    transposed, counts = flat_of(size * size, matrix), rows_of(size, width, matrix)
    beta, mass = rows_of(2, width, matrix)
    transpose(matrix, size, transposed)
    beta[:size] = dtype(1 / total)
    last = length - 1
    for t in range(length - 1, -1, -1):
        share = dtype(1) / meet(beta, alpha[t], factor[t], mass)
        scale_row(mass, share, d_unary[t])
        if t > 0:
            weigh_rows(factor[t], 1, size, transposed, size, beta)
        if t % CORRECTION == 0:
            # While they are in the cache.
            add_outer_products(alpha, factor, t, last, counts)
            last = t
            # Σ α β is 1 at every position; what rounding has made of it is put right now and then.
            scale_row(beta, share, beta)
    for i in range(size):
        for j in range(size):
            weight = matrix[i * size + j]
            # The count of a forbidden transition may have overflowed.
            d_pairwise[i * size + j] = counts[i, j] * weight if weight > 0 else dtype(0)


@compiled()
def outside_each(length, total, alpha, factor, matrix, d_unary, d_pairwise):
    """The marginals where each position has a matrix of its own, after `inside`; the factors become gates.

    `d_pairwise` comes with e^pairwise, which gives way to the answer.
    """
    dtype = alpha.dtype.type
    size = d_unary.shape[1]
    beta, mass = rows_of(2, alpha.shape[1], matrix)
    beta[:size] = dtype(1 / total)
    for t in range(length - 1, -1, -1):
        share = dtype(1) / meet(beta, alpha[t], factor[t], mass)
        scale_row(mass, share, d_unary[t])
        if t > 0:
            copy(d_pairwise[t - 1], matrix)
            share_rows(alpha[t - 1], share, matrix, factor[t], size, beta, d_pairwise[t - 1])
