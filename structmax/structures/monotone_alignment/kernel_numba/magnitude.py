"""Numbers of any magnitude, in vectors: mantissa · 2^exponent.

Both are floats: the exponent is whole, the mantissa is 0 or in [1, 2). Sums and products of such numbers neither
overflow nor underflow, and ask for no logarithm.
"""

import math
from typing import NamedTuple

# The exponent of 0 in float32 and in float64: below any other, also after some steps.
NOTHING = {32: -1e30, 64: -1e300}
# Scores in float64 are cut here, so that their sums stay above the exponent of 0.
LARGEST = 1e290


class Limits(NamedTuple):
    """What depends on the width of a float."""

    # log 2 in two parts: the first has few bits, so that its product with a small whole number is exact
    log_2_high: float
    log_2_low: float
    # exp f as a power series for |f| ≤ log(2)/2
    series: list[float]
    # Shares below 2^lowest count as 0, so that no product of two of them is a denormal number.
    lowest: float
    nothing: float


LIMITS = {
    width: Limits(high, low, [1 / math.factorial(n) for n in range(terms)], lowest, NOTHING[width])
    for width, high, low, terms, lowest in (
        (32, 0.693359375, -2.12194440054690583e-4, 8, -60.0),
        (64, 0.693147180369123816490, 1.90821492927058770002e-10, 14, -500.0),
    )
}


def power(d):
    """2^d for whole numbers d ≤ 1; 0 below the lowest."""
    form, limits = d.form, LIMITS[d.form.width]
    biased = d.rounded_sum(form.round + form.bias)
    bits = d.builder.shl(biased.pattern(), d.integer(form.fraction))
    return d.from_pattern(bits).where(d.above(limits.lowest), 0.0)


def exp(x):
    """e^x as (mantissa, exponent), the mantissa near 1; that of 0 for −inf."""
    form, limits = x.form, LIMITS[x.form.width]
    some = x.above(-math.inf)
    x = x.where(some, 0.0)
    if form.width == 64:
        x = x.at_least(-LARGEST).at_most(LARGEST)
    k = (x * math.log2(math.e)).rounded_sum(form.round).rounded_sum(-form.round)
    f = (x - k * limits.log_2_high) - k * limits.log_2_low
    if form.width == 64:
        # Where x is so large that it has no fraction, f has no meaning.
        f = f.at_least(-0.4).at_most(0.4)
    series = f * limits.series[-1]
    for coefficient in limits.series[-2:0:-1]:
        series = (series + coefficient) * f
    return (series + limits.series[0]).where(some, 0.0), k.where(some, limits.nothing)


def normal(m, e):
    """(m, e) with the mantissa brought to [1, 2), or (0, the exponent of 0)."""
    form, limits, builder = m.form, LIMITS[m.form.width], m.builder
    bits = m.pattern()
    # The biased exponent as a float: in the low bits of 2^fraction.
    unit = 2.0**form.fraction
    one, large = m.like(1.0).pattern(), m.like(unit).pattern()
    exponent = m.from_pattern(builder.or_(builder.lshr(bits, m.integer(form.fraction)), large))
    fraction = builder.and_(bits, m.integer((1 << form.fraction) - 1))
    some = m.above(0.0)
    mantissa = m.from_pattern(builder.or_(fraction, one))
    return mantissa.where(some, 0.0), (e + exponent.rounded_sum(-(unit + form.bias))).where(some, limits.nothing)


def largest(a, *rest):
    for b in rest:
        a = a.at_least(b)
    return a
