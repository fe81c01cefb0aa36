"""Sums of products over two contiguous rows, in three semirings: what every cell of the chart is made of.

LINEAR: numbers as they are, sums of products. LOG: logarithms, sums and logsumexp. BEST: scores, sums and maxima. Each
is a type of its own, so that a pass is compiled for each and asks nothing at run time.

Rows have PAD cells that hold the semiring's zero before their first and after their last cell. All work on whole
vectors and read past one end of the range they are given, where one of the two rows holds zeros: past the high end in
`dot`, past the low end in `dot_below`.
"""

import math
from typing import NamedTuple

import numpy as np
from numba.extending import overload

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.dots import row_best, row_dot, row_exp_moments, row_moments
from structmax.numerics.kernel_numba.llvm import LANES

# What a vector may read too much.
PAD = LANES


class Linear(NamedTuple):
    zero: float
    one: float


class Log(NamedTuple):
    zero: float
    one: float


class Best(NamedTuple):
    zero: float
    one: float


LINEAR, LOG, BEST = Linear(0.0, 1.0), Log(-math.inf, 0.0), Best(-math.inf, 0.0)


@compiled()
def _log_dot(a, i, x, b, j, y, count):
    peak = row_best(a, i, x, b, j, y, count)
    if peak == -np.inf:
        return peak
    # The cells serve as slopes that nobody asks for: LLVM leaves them out.
    total, _ = row_exp_moments(a, a, i, x, b, b, j, y, count, peak)
    return peak + math.log(total)


@compiled()
def _log_dual_dot(a, d_a, i, x, b, d_b, j, y, count):
    peak = row_best(a, i, x, b, j, y, count)
    if peak == -np.inf:
        return peak, 0.0
    total, moment = row_exp_moments(a, d_a, i, x, b, d_b, j, y, count, peak)
    return peak + math.log(total), moment / total


@compiled()
def _linear_dual_dot(a, d_a, i, x, b, d_b, j, y, count):
    total, moment = row_moments(a, d_a, i, x, b, d_b, j, y, count)
    return total, moment / total if total > 0 else 0.0


def dot(semiring, a, i, x, b, j, y, count):
    """⊕ over k < count of a[i, x + k] ⊗ b[j, y + k], where cells past the high end may be read."""


def dual_dot(semiring, a, d_a, i, x, b, d_b, j, y, count):
    """`dot`, and the derivative of its logarithm from those of the cells."""


def times(semiring, a, b):
    """a ⊗ b"""


@overload(dot)
def _dot(semiring, a, i, x, b, j, y, count):
    if semiring.instance_class is Linear:
        return lambda semiring, a, i, x, b, j, y, count: row_dot(a, i, x, b, j, y, count)
    if semiring.instance_class is Best:
        return lambda semiring, a, i, x, b, j, y, count: row_best(a, i, x, b, j, y, count)
    return lambda semiring, a, i, x, b, j, y, count: _log_dot(a, i, x, b, j, y, count)


@overload(dual_dot)
def _dual_dot(semiring, a, d_a, i, x, b, d_b, j, y, count):
    if semiring.instance_class is Linear:
        return lambda semiring, a, d_a, i, x, b, d_b, j, y, count: _linear_dual_dot(a, d_a, i, x, b, d_b, j, y, count)
    return lambda semiring, a, d_a, i, x, b, d_b, j, y, count: _log_dual_dot(a, d_a, i, x, b, d_b, j, y, count)


@overload(times)
def _times(semiring, a, b):
    return (lambda semiring, a, b: a * b) if semiring.instance_class is Linear else (lambda semiring, a, b: a + b)


@compiled()
def dot_below(semiring, a, i, b, j, x, count):
    """⊕ over k < count of a[i, x + k] ⊗ b[j, x + k], where cells past the low end may be read."""
    spare = -count & (PAD - 1)
    return dot(semiring, a, i, x - spare, b, j, x - spare, count + spare)


@compiled()
def dual_dot_below(semiring, a, d_a, i, b, d_b, j, x, count):
    """`dot_below`, and the derivative of its logarithm from those of the cells."""
    spare = -count & (PAD - 1)
    return dual_dot(semiring, a, d_a, i, x - spare, b, d_b, j, x - spare, count + spare)
