"""Sums of weights of any magnitude, by their logarithms, with the share of each and with tangents.

Logarithms are float64 whatever the scores are, so that long sums keep the digits of a single score. Their differences,
and with them the shares, are computed in the dtype of the scores, NARROW. A NaN stays in the sum. Tangents enter by
their differences from that of a largest weight: rounded shares do not add up to 1.
"""

import triton
import triton.language as tl

WIDE = tl.constexpr(tl.float64)
LOWEST = tl.constexpr(-1.7976931348623157e308)


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
    # where a NaN is passed over here, it is in the sum; b may come last
    top = tl.where(a > c, a, c)
    base = tl.where(top > LOWEST, top, LOWEST)
    top, base = tl.where(b > top, b, top), tl.where(b > base, b, base)
    d_top = tl.where(a == top, d_a, tl.where(b == top, d_b, d_c))
    b_a, b_b, b_c = tl.exp((a - base).to(NARROW)), tl.exp((b - base).to(NARROW)), tl.exp((c - base).to(NARROW))
    # a sum that is not 0 has a 1
    total = tl.maximum(b_a + b_c + b_b, 1.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = 1 / total
    b_a, b_b, b_c = b_a * inverse, b_b * inverse, b_c * inverse
    tangent = b_a.to(WIDE) * (d_a - d_top) + b_b.to(WIDE) * (d_b - d_top) + b_c.to(WIDE) * (d_c - d_top)
    return top + tl.log(total).to(WIDE), d_top + tangent, b_a, b_b, b_c
