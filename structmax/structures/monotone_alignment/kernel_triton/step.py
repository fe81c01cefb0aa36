"""The mathematics of a place: sums of weights by their logarithms, and which parts there are.

Logarithms are float64 whatever the scores are, so that long sums keep the digits of a single score. What is added to
the largest of a sum is computed in the dtype of the scores, NARROW. Numbers change places and are never dropped: a NaN
among them stays.
"""

import triton
import triton.language as tl

WIDE = tl.constexpr(tl.float64)


@triton.jit
def _sorted(a, b, d_a, d_b):
    """The greater one first, each with its tangent."""
    m_first = a > b
    return tl.where(m_first, a, b), tl.where(m_first, b, a), tl.where(m_first, d_a, d_b), tl.where(m_first, d_b, d_a)


@triton.jit
def _excess(x, top, NARROW: tl.constexpr):
    """exp(x − top), for top = −inf too."""
    return tl.exp((x - tl.where(top == float("-inf"), 0.0, top)).to(NARROW))


@triton.jit
def plus(a, b, d_a, d_b, BEST: tl.constexpr, NARROW: tl.constexpr):
    """log(exp a + exp b), or the greater one, and its tangent."""
    top, low, d_top, d_low = _sorted(a, b, d_a, d_b)
    if BEST:
        return tl.where(low == low, top, low), d_top
    else:
        b_low = _excess(low, top, NARROW)
        total = 1 + b_low
        return top + tl.log(total).to(WIDE), d_top + (b_low / total).to(WIDE) * (d_low - d_top)


@triton.jit
def plus_three(a, b, c, d_a, d_b, d_c, BEST: tl.constexpr, NARROW: tl.constexpr):
    """The same of three numbers. Tangents enter by their differences: the shares of a sum need not add up to 1."""
    if BEST:
        top, d_top = plus(a, b, d_a, d_b, BEST, NARROW)
        return plus(top, c, d_top, d_c, BEST, NARROW)
    else:
        top, low, d_top, d_low = _sorted(a, b, d_a, d_b)
        top, middle, d_top, d_middle = _sorted(top, c, d_top, d_c)
        b_low, b_middle = _excess(low, top, NARROW), _excess(middle, top, NARROW)
        total = 1 + b_middle + b_low
        share = 1 / total
        tangent = (b_middle * share).to(WIDE) * (d_middle - d_top) + (b_low * share).to(WIDE) * (d_low - d_top)
        return top + tl.log(total).to(WIDE), d_top + tangent


@triton.jit
def plus_one(a, d_a, BEST: tl.constexpr, NARROW: tl.constexpr):
    """log(1 + exp a), what a local path has before a match."""
    return plus(tl.zeros_like(a), a, tl.zeros_like(d_a), d_a, BEST, NARROW)


@triton.jit
def exists(o_i, o_j, n, m, band, DOWN: tl.constexpr, RIGHT: tl.constexpr, LOCAL: tl.constexpr):
    """Whether some path has the move from (i, j) by DOWN and RIGHT, or the cell, which counts as a diagonal move."""
    # A gap of a local alignment has matches on both sides.
    margin = 1 if LOCAL and DOWN + RIGHT == 1 else 0
    if not LOCAL:
        # a whole path ends at a place in the band
        n = tl.where(tl.abs(n - m) <= band, n, -1)
    m_inside = (o_i >= margin) & (o_j >= margin) & (o_i + (DOWN + margin) <= n) & (o_j + (RIGHT + margin) <= m)
    m_near = (tl.abs(o_i - o_j) <= band) & (tl.abs(o_i - o_j + (DOWN - RIGHT)) <= band)
    return m_inside & m_near
