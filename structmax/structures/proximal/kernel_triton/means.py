"""Means over the groups of a row in Triton: a program for each row, several groups at once, in float64."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n"])
def average(p_v, p_groups, p_signs, p_out, n, SIGNED: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """s · mean of s v over the group of each entry, with s the signs; 0 outside every group."""
    o_lane = tl.arange(0, BLOCK)[None, :]
    m_lane = o_lane < n
    place = tl.program_id(0).to(tl.int64) * n + o_lane
    v = tl.load(p_v + place, mask=m_lane, other=0.0).to(tl.float64)
    group = tl.load(p_groups + place, mask=m_lane, other=-1)
    sign = tl.full((1, BLOCK), 1.0, tl.float64)
    if SIGNED:
        y = tl.load(p_signs + place, mask=m_lane, other=0.0).to(tl.float64)
        # a NaN stays
        sign = tl.where(y < 0, -1.0, tl.where(y >= 0, 1.0, y))
    v *= sign
    out = tl.zeros((1, BLOCK), tl.float64)
    for start in range(0, tl.max(group) + 1, GROUPS):
        m_member = group == start + tl.arange(0, GROUPS)[:, None]
        size = tl.sum(tl.where(m_member, 1.0, 0.0), 1, keep_dims=True)
        mean = tl.sum(tl.where(m_member, v, 0.0), 1, keep_dims=True) / tl.maximum(size, 1.0)
        out += tl.sum(tl.where(m_member, mean, 0.0), 0, keep_dims=True)
    out = tl.where(group >= 0, sign * out, 0.0)
    tl.store(p_out + place, out.to(p_out.dtype.element_ty), mask=m_lane)
