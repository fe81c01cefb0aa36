"""Sums of products over rows of a chart, and their derivatives: what every cell is made of.

LINEAR: numbers as they are. DUAL: numbers, and in a second plane their derivatives along a tangent. BEST: scores, sums
and maxima. Each is a type of its own, so that a pass is compiled for each and asks nothing at run time.

A table (planes, N + 1, N + 1 + PAD) has a second plane in DUAL alone. A cell is passed around as a pair: its number,
and its derivative, which is 0 in LINEAR and BEST.
"""

import math
from typing import NamedTuple

from numba.extending import overload

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.dots import (
    row_best,
    row_best_three,
    row_dot,
    row_dot_three,
    row_spread,
    row_spread_three,
)
from structmax.numerics.kernel_numba.llvm import LANES


class Linear(NamedTuple):
    zero: float
    one: float


class Dual(NamedTuple):
    zero: float
    one: float


class Best(NamedTuple):
    zero: float
    one: float


# What a vector may read too much.
PAD = LANES
LINEAR, DUAL, BEST = Linear(0.0, 1.0), Dual(0.0, 1.0), Best(-math.inf, 0.0)


# --- cells ---------------------------------------------------------------------------------------------------------


def at(semiring, table, i, j):
    """The cell [i, j] of a table."""


def put(semiring, table, i, j, cell):
    """Writes a cell."""


def add(semiring, table, i, j, cell):
    """Adds to a cell; not in BEST."""


def plus(semiring, a, b):
    """a ⊕ b"""


def times(semiring, a, b):
    """a ⊗ b"""


@overload(at)
def _at(semiring, table, i, j):
    if semiring.instance_class is Dual:
        return lambda semiring, table, i, j: (table[0, i, j], table[1, i, j])
    return lambda semiring, table, i, j: (table[0, i, j], 0.0)


@overload(put)
def _put(semiring, table, i, j, cell):
    def both(semiring, table, i, j, cell):
        table[0, i, j], table[1, i, j] = cell

    def number(semiring, table, i, j, cell):
        table[0, i, j] = cell[0]

    return both if semiring.instance_class is Dual else number


@overload(add)
def _add(semiring, table, i, j, cell):
    def both(semiring, table, i, j, cell):
        table[0, i, j] += cell[0]
        table[1, i, j] += cell[1]

    def number(semiring, table, i, j, cell):
        table[0, i, j] += cell[0]

    return both if semiring.instance_class is Dual else number


@overload(plus)
def _plus(semiring, a, b):
    if semiring.instance_class is Best:
        return lambda semiring, a, b: (max(a[0], b[0]), 0.0)
    return lambda semiring, a, b: (a[0] + b[0], a[1] + b[1])


@overload(times)
def _times(semiring, a, b):
    if semiring.instance_class is Best:
        return lambda semiring, a, b: (a[0] + b[0], 0.0)
    return lambda semiring, a, b: (a[0] * b[0], a[1] * b[0] + a[0] * b[1])


# --- sums over rows ------------------------------------------------------------------------------------------------
#
# Rows are given as a table, a row and a first column. LINEAR and BEST work on whole vectors, and read up to PAD cells
# past `count`: there one of the tables should hold zeros.


def dot(semiring, a, i, x, b, j, y, count):
    """⊕ over k < count of a[i, x + k] ⊗ b[j, y + k]"""


def dot_three(semiring, a, i, b, j, c, h, x, count):
    """⊕ over k < count of a[i, x + k] ⊗ b[j, x + k] ⊗ c[h, x + k]"""


@compiled("contract", "reassoc")
def _dual_dot(a, i, x, b, j, y, count):
    total, slope = 0.0, 0.0
    for k in range(count):
        total += a[0, i, x + k] * b[0, j, y + k]
        slope += a[1, i, x + k] * b[0, j, y + k] + a[0, i, x + k] * b[1, j, y + k]
    return total, slope


@compiled("contract", "reassoc")
def _dual_dot_three(a, i, b, j, c, h, x, count):
    total, slope = 0.0, 0.0
    for k in range(x, x + count):
        product = a[0, i, k] * b[0, j, k]
        total += product * c[0, h, k]
        slope += (a[1, i, k] * b[0, j, k] + a[0, i, k] * b[1, j, k]) * c[0, h, k] + product * c[1, h, k]
    return total, slope


@overload(dot)
def _dot(semiring, a, i, x, b, j, y, count):
    if semiring.instance_class is Best:
        return lambda semiring, a, i, x, b, j, y, count: (row_best(a[0], i, x, b[0], j, y, count), 0.0)
    if semiring.instance_class is Dual:
        return lambda semiring, a, i, x, b, j, y, count: _dual_dot(a, i, x, b, j, y, count)
    return lambda semiring, a, i, x, b, j, y, count: (row_dot(a[0], i, x, b[0], j, y, count), 0.0)


@overload(dot_three)
def _dot_three(semiring, a, i, b, j, c, h, x, count):
    def best(semiring, a, i, b, j, c, h, x, count):
        return row_best_three(a[0], i, x, b[0], j, x, c[0], h, x, count), 0.0

    def linear(semiring, a, i, b, j, c, h, x, count):
        return row_dot_three(a[0], i, x, b[0], j, x, c[0], h, x, count), 0.0

    def dual(semiring, a, i, b, j, c, h, x, count):
        return _dual_dot_three(a, i, b, j, c, h, x, count)

    return {Best: best, Linear: linear, Dual: dual}[semiring.instance_class]


# --- the way back --------------------------------------------------------------------------------------------------


def spread(semiring, amount, a, to_a, i, x, b, to_b, j, y, count):
    """Adds to both factors of `dot`, in tables of their own, their derivatives times an amount; not in BEST."""


def spread_three(semiring, amount, a, to_a, i, b, to_b, j, c, h, x, count):
    """The same for the first two factors of `dot_three`."""


@compiled("contract")
def _dual_spread(amount, a, to_a, i, x, b, to_b, j, y, count):
    t, d_t = amount
    for k in range(count):
        to_a[0, i, x + k] += t * b[0, j, y + k]
        to_b[0, j, y + k] += t * a[0, i, x + k]
        to_a[1, i, x + k] += d_t * b[0, j, y + k] + t * b[1, j, y + k]
        to_b[1, j, y + k] += d_t * a[0, i, x + k] + t * a[1, i, x + k]


@compiled("contract")
def _dual_spread_three(amount, a, to_a, i, b, to_b, j, c, h, x, count):
    for k in range(x, x + count):
        t, d_t = amount[0] * c[0, h, k], amount[1] * c[0, h, k] + amount[0] * c[1, h, k]
        to_a[0, i, k] += t * b[0, j, k]
        to_b[0, j, k] += t * a[0, i, k]
        to_a[1, i, k] += d_t * b[0, j, k] + t * b[1, j, k]
        to_b[1, j, k] += d_t * a[0, i, k] + t * a[1, i, k]


@overload(spread)
def _spread(semiring, amount, a, to_a, i, x, b, to_b, j, y, count):
    def linear(semiring, amount, a, to_a, i, x, b, to_b, j, y, count):
        row_spread(amount[0], a[0], to_a[0], i, x, b[0], to_b[0], j, y, count)

    def dual(semiring, amount, a, to_a, i, x, b, to_b, j, y, count):
        _dual_spread(amount, a, to_a, i, x, b, to_b, j, y, count)

    return dual if semiring.instance_class is Dual else linear


@overload(spread_three)
def _spread_three(semiring, amount, a, to_a, i, b, to_b, j, c, h, x, count):
    def linear(semiring, amount, a, to_a, i, b, to_b, j, c, h, x, count):
        row_spread_three(amount[0], a[0], to_a[0], i, x, b[0], to_b[0], j, x, c[0], h, x, count)

    def dual(semiring, amount, a, to_a, i, b, to_b, j, c, h, x, count):
        _dual_spread_three(amount, a, to_a, i, b, to_b, j, c, h, x, count)

    return dual if semiring.instance_class is Dual else linear
