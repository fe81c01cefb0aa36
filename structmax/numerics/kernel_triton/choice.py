"""Choices among the columns of a tile in Triton: the first best, or one by chance; and what the labels of a part share.

Tiles are (rows, columns), and a column that is no choice holds −inf, or no mass.
"""

import triton
import triton.language as tl


@triton.jit
def above(peak):
    """What is subtracted before exponentials are taken: the peak, and 0 where nothing is feasible."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def reciprocal(total):
    """1 / total, and 0 where there is nothing."""
    return tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)


@triton.jit
def log_of(total):
    """log(total), −inf where there is nothing."""
    return tl.where(total > 0, tl.log(tl.where(total > 0, total, 1.0)), float("-inf"))


@triton.jit
def first_best(b_score, COLUMNS: tl.constexpr):
    """The first column that has the largest score of its row: (rows,)."""
    o_column = tl.arange(0, COLUMNS)[None, :]
    return tl.min(tl.where(b_score == tl.max(b_score, 1, keep_dims=True), o_column, COLUMNS - 1), 1)


@triton.jit
def drawn(b_score, uniform, COLUMNS: tl.constexpr):
    """A column by exp(score): the first whose cumulative mass exceeds `uniform` (rows,) of the total, if it has any."""
    o_column = tl.arange(0, COLUMNS)[None, :]
    b_mass = tl.exp(b_score - above(tl.max(b_score, 1, keep_dims=True)))
    b_level = uniform[:, None] * tl.sum(b_mass, 1, keep_dims=True)
    first = tl.min(tl.where((b_mass > 0) & (tl.cumsum(b_mass, 1) > b_level), o_column, COLUMNS), 1)
    # rounding may leave the last sum below the total
    return tl.minimum(first, tl.max(tl.where(b_mass > 0, o_column, 0), 1))


@triton.jit
def shares(b_x):
    """The softmax of each row (0 where nothing is feasible), and log Σ exp of it: (rows, 1)."""
    peak = tl.max(b_x, 1, keep_dims=True)
    b_term = tl.exp(b_x - above(peak))
    total = tl.sum(b_term, 1, keep_dims=True)
    return b_term * reciprocal(total), peak + log_of(total)


@triton.jit
def mean(b_share, b_value):
    """Σ of shares times values: (rows, 1). What has no share may have any value."""
    return tl.sum(tl.where(b_share == 0, 0.0, b_share * b_value), 1, keep_dims=True)
