"""Sums of weights of any magnitude, by their logarithms, with the share of each and with tangents.

Logarithms are float64 whatever the scores are, so that long sums keep the digits of a single score. Their differences,
and with them the shares, are computed in the dtype of the scores, NARROW. A NaN stays in the sum. Tangents enter by
their differences from that of a largest weight: rounded shares do not add up to 1.
"""

import triton
import triton.language as tl

WIDE = tl.constexpr(tl.float64)


@triton.jit
def greater(a, b):
    """The greater one, or NaN."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def excess(x, top, NARROW: tl.constexpr):
    """exp(x − top), also for top = −inf."""
    return tl.exp((x - tl.where(top == float("-inf"), 0.0, top)).to(NARROW))


@triton.jit
def plus(a, b, d_a, d_b, NARROW: tl.constexpr):
    """log(exp a + exp b), its tangent, and the share of b."""
    m_first = a > b
    top, low = tl.where(m_first, a, b), tl.where(m_first, b, a)
    d_top, d_low = tl.where(m_first, d_a, d_b), tl.where(m_first, d_b, d_a)
    b_low = excess(low, top, NARROW)
    total = 1 + b_low
    tangent = d_top + (b_low / total).to(WIDE) * (d_low - d_top)
    return top + tl.log(total).to(WIDE), tangent, tl.where(m_first, b_low, 1.0) / total


@triton.jit
def plus_three(a, b, c, d_a, d_b, d_c, NARROW: tl.constexpr):
    """log(exp a + exp b + exp c), its tangent, and the share of each: 0 where there is nothing."""
    # where a NaN is passed over here, it is in the sum
    top = tl.where(a > b, a, b)
    top = tl.where(top > c, top, c)
    d_top = tl.where(a == top, d_a, tl.where(b == top, d_b, d_c))
    b_a, b_b, b_c = excess(a, top, NARROW), excess(b, top, NARROW), excess(c, top, NARROW)
    total = b_a + b_b + b_c
    # a sum that is not 0 has a 1
    some = tl.maximum(total, 1.0)
    inverse = 1 / some
    b_a, b_b, b_c = b_a * inverse, b_b * inverse, b_c * inverse
    tangent = b_a.to(WIDE) * (d_a - d_top) + b_b.to(WIDE) * (d_b - d_top) + b_c.to(WIDE) * (d_c - d_top)
    log = tl.log(tl.where(total == total, some, total))
    return top + log.to(WIDE), d_top + tangent, b_a, b_b, b_c
