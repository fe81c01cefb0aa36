"""The long side of a transport problem, solved exactly for given duals of the short side. Derivation: ../README.md.

A line holds the n scores of one item of the long side. Its dual v and its parts p are those of a softmax or of a
sparsemax of the line less the duals u; where the sum of the line may stay below 1, v is cut at 0.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp


@compiled("nnan", "nsz")
def _reduce(line, u, p):
    """p = line − u, and the largest of them."""
    peak = -np.inf
    for i in range(len(line)):
        z = line[i] - u[i]
        p[i] = z
        peak = max(peak, z)
    return peak


@compiled()
def _fill(p, value):
    for i in range(len(p)):
        p[i] = value


@compiled("contract", "reassoc")
def _exponentials(p, peak):
    total = 0.0
    for i in range(len(p)):
        e = exp(p[i] - peak)
        p[i] = e
        total += e
    return total


@compiled()
def softmax_line(line, u, tight, p):
    """p = exp(line − u − v), with sum 1, or at most 1 where the line is not tight. Returns v."""
    peak = _reduce(line, u, p)
    if peak == -np.inf:
        _fill(p, 0.0)
        return 0.0
    total = _exponentials(p, peak)
    v = peak + math.log(total)
    if v < 0 and not tight:
        v = 0.0
        factor = math.exp(peak)
    else:
        factor = 1 / total
    for i in range(len(p)):
        p[i] *= factor
    return v


@compiled("reassoc", "nnan", "nsz")
def _above(p, v):
    """Sum and number of the entries above v, measured from v."""
    total, size = 0.0, 0
    for i in range(len(p)):
        total += max(p[i] - v, 0.0)
        size += p[i] > v
    return total, size


@compiled("nnan", "nsz")
def _cut(p, v):
    for i in range(len(p)):
        p[i] = max(p[i] - v, 0.0)


@compiled()
def sparsemax_line(line, u, guess, tight, p):
    """p = max(0, line − u − v), with sum 1, or at most 1 where the line is not tight. Returns v.

    Newton's method on a convex, decreasing, piecewise linear function of v: after one step it only rises, and the
    entries above v get fewer until they stay the same.
    """
    peak = _reduce(line, u, p)
    if peak == -np.inf or (peak <= 0 and not tight):
        _fill(p, 0.0)
        return 0.0
    v = guess if peak - 1 < guess < peak else peak - 1
    total, size = _above(p, v)
    # one step from the guess, which may be on either side
    v += (total - 1) / size
    before = len(p) + 1
    total, size = _above(p, v)
    while size < before:
        before = size
        v += (total - 1) / size
        total, size = _above(p, v)
    if v < 0 and not tight:
        v = 0.0
    _cut(p, v)
    return v
