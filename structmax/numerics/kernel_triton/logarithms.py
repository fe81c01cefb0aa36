"""Sums of weights of any magnitude, by their logarithms, with tangents.

Logarithms are float64 whatever the scores are, so that long sums keep the digits of a single score. What is added to
the largest of a sum is computed in the dtype of the scores, NARROW. Numbers change places and are never dropped: a NaN
among them stays. With BEST the sum is the maximum.
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
