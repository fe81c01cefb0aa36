"""Sums: of the losses of all rows, and over a part of a row at a threshold that the whole row has, or may have."""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.tile import levels, load_e, masses, products


@triton.jit(do_not_specialize=["B", "ignored"])
def add_up(p_value, p_target, p_total, p_count, ignored, B, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of all values, divided by the number of rows whose target is not ignored, or by 1; one program."""
    o_lane = tl.arange(0, BLOCK)
    b_sum = tl.zeros((BLOCK,), tl.float64)
    b_used = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, B, BLOCK):
        m_row = start + o_lane < B
        b_sum += tl.load(p_value + start + o_lane, mask=m_row, other=0.0).to(tl.float64)
        if MEAN:
            target = tl.load(p_target + start + o_lane, mask=m_row, other=0)
            b_used += (m_row & (target != ignored)).to(tl.int32)
    total = tl.sum(b_sum)
    count = tl.sum(b_used).to(tl.float64) if MEAN else tl.full((), 1.0, tl.float64)
    tl.store(p_total, total / count)
    tl.store(p_count, count)


@triton.jit
def sum_streamed(
    p_x, p_state, p_out, n, e: tl.float64, KIND: tl.constexpr, DOUBLE: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    o_lane = tl.arange(0, LANES)[None, :]
    e = load_e(p_x, e, o_row, o_row >= 0, False)
    origin = tl.load(p_state + 2 * o_row).to(WORK)
    tau = tl.load(p_state + 2 * o_row + 1)
    # p̂^(α−1), of the probability p̂ that a score at the origin has
    top = 1 - e * tau
    if KIND == "softmax":
        unknown = tl.exp(-tau)
    elif KIND == "general":
        unknown = tl.log(top) / e
    else:
        unknown = top
    level, error, factor = levels(unknown, e, KIND, WORK)
    b_mass = tl.zeros((1, LANES), tl.float64)
    b_slope = tl.zeros((1, LANES), tl.float64)
    b_score = tl.zeros((1, LANES), tl.float64)
    for start in range(0, n, LANES):
        o_column = start + o_lane
        b_x = tl.load(p_x + i_row * n + o_column, mask=o_column < n, other=float("-inf")).to(WORK)
        b_z = b_x - origin
        b_p, b_s = masses(b_z, level, error, factor, e, KIND, DOUBLE)
        b_mass += b_p
        b_slope += b_s
        b_score += products(b_p, b_z)
    slope = tl.sum(b_slope, 1, keep_dims=True)
    if KIND == "general":
        slope /= top
    tl.store(p_out + 3 * o_row, tl.sum(b_mass, 1, keep_dims=True))
    tl.store(p_out + 3 * o_row + 1, slope)
    tl.store(p_out + 3 * o_row + 2, tl.sum(b_score, 1, keep_dims=True))
