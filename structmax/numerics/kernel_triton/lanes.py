"""Lines of numbers in registers, one lane for each: one of them, and the first of some."""

import triton
import triton.language as tl


@triton.jit
def pick(values, o_lane, index):
    """The value in the lane of that index."""
    return tl.sum(tl.where(o_lane == index, values, 0))


@triton.jit
def first_lane(m_lane, o_lane, BLOCK: tl.constexpr):
    """The first lane of those in the mask, BLOCK if there is none."""
    return tl.min(tl.where(m_lane, o_lane, BLOCK))
