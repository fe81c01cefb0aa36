"""Numbers of any size in tiles: a mantissa in float64 and an exponent of 2 in int32.

Products and sums keep the relative precision of float64, and neither overflow nor underflow as long as exponents stay
below 2³⁰. A mantissa is 0, or has an absolute value from 1 to 2 where it was normalised; products and quotients of two
need not be normalised before they are summed.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# log 2 in two parts, the first of which has few digits, so that its products with exponents are exact.
LN2_HIGH = tl.constexpr(0.693145751953125)
LN2_LOW = tl.constexpr(1.4286068203094172e-06)
# Below the exponent of any number, and more than half of int32's range above its end.
LOWEST = tl.constexpr(-(2**30))


@triton.jit
def power_of_two(exponent):
    """2^exponent for exponents up to 1023; 0 for those below −1022."""
    bits = (tl.maximum(exponent, -1023) + 1023).to(tl.int64) << 52
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def normalised(mantissa, exponent):
    """The same number with a mantissa between 1 and 2, or with both 0."""
    bits = mantissa.to(tl.int64, bitcast=True)
    shift = ((bits >> 52) & 0x7FF).to(tl.int32) - 1023
    m_zero = mantissa == 0
    shift = tl.where(m_zero, 0, shift)
    return mantissa * power_of_two(-shift), tl.where(m_zero, 0, exponent + shift)


@triton.jit
def total(mantissa, exponent, AXIS: tl.constexpr):
    """The sum along an axis, which stays with length 1."""
    exponent = tl.where(mantissa == 0, LOWEST, exponent)
    peak = tl.max(exponent, AXIS, keep_dims=True)
    return normalised(tl.sum(mantissa * power_of_two(exponent - peak), AXIS, keep_dims=True), peak)


@triton.jit
def add(mantissa_a, exponent_a, mantissa_b, exponent_b):
    exponent_a = tl.where(mantissa_a == 0, LOWEST, exponent_a)
    exponent_b = tl.where(mantissa_b == 0, LOWEST, exponent_b)
    peak = tl.maximum(exponent_a, exponent_b)
    both = mantissa_a * power_of_two(exponent_a - peak) + mantissa_b * power_of_two(exponent_b - peak)
    return normalised(both, peak)


@triton.jit
def over(mantissa, exponent, divisor, divisor_exponent):
    """The quotient, with 1 in place of a divisor 0."""
    m_zero = divisor == 0
    divisor_exponent = tl.where(m_zero, 0, divisor_exponent)
    return normalised(mantissa / tl.where(m_zero, 1.0, divisor), exponent - divisor_exponent)


@triton.jit
def from_log(log):
    """exp(log) for logarithms in float64; 0 for −inf."""
    m_zero = log == float("-inf")
    log = tl.where(m_zero, 0.0, log)
    exponent = tl.floor(log * LOG2_E + 0.5)
    rest = (log - exponent * LN2_HIGH) - exponent * LN2_LOW
    return normalised(tl.where(m_zero, 0.0, tl.exp(rest)), exponent.to(tl.int32))


@triton.jit
def logarithm(mantissa, exponent):
    """The logarithm of a number ≥ 0 in float64; −inf for 0."""
    m_zero = mantissa == 0
    number = exponent.to(tl.float64)
    log = tl.log(tl.where(m_zero, 1.0, mantissa)) + number * LN2_LOW + number * LN2_HIGH
    return tl.where(m_zero, float("-inf"), log)


@triton.jit
def number(mantissa, exponent):
    """As a float64; below 2⁻¹⁰²² it is 0."""
    return mantissa * power_of_two(exponent)
