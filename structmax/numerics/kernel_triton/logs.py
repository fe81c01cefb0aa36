"""Logarithms of sums in tiles, where −inf is a number like others and NaN stays NaN."""

import triton
import triton.language as tl


@triton.jit
def floored(peak):
    """The largest of some logarithms as a shift for them: 0 in place of −inf, which it should leave as it is."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def positive(total):
    """A sum of exponentials whose logarithm or inverse can be taken: 1 in place of 0."""
    return tl.where(total == 0, 1.0, total)


@triton.jit
def broken(b_x, AXIS: tl.constexpr):
    """1 where a score along the axis is NaN or +inf, else 0. A maximum may pass over a NaN; a sum does not."""
    return tl.max(((b_x != b_x) | (b_x == float("inf"))).to(tl.int32), AXIS)


@triton.jit
def log_sum(b_x):
    """log Σ exp of a vector."""
    base = floored(tl.max(b_x, 0))
    return base + tl.log(tl.sum(tl.exp(b_x - base), 0))


@triton.jit
def softmax(b_x):
    """The probabilities of a vector of logarithms, zeros where all are −inf."""
    b_weight = tl.exp(b_x - floored(tl.max(b_x, 0)))
    return b_weight / positive(tl.sum(b_weight, 0))


@triton.jit
def parts(value, b_parts, m_exists):
    """Parts as they are returned: zeros where nothing is feasible and in padding, NaN beside a broken score."""
    b_parts = tl.where(value > float("-inf"), b_parts, tl.where(value == value, 0.0, value))
    return tl.where(m_exists, b_parts, 0.0)
