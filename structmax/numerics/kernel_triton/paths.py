"""Single paths through positions with states, the best one or draws: by pointers to the state before.

Which state comes before a state, in the best path or in a draw, can be told for all states of all positions at once,
after a walk forwards: `first_best` and `first_above`. Then `trace` only follows pointers.
"""

import triton
import triton.language as tl


@triton.jit
def first_best(b_x, o_from, SPAN: tl.constexpr):
    """The first of the largest scores along axis 0; 0 if all are NaN."""
    b_peak = tl.max(b_x, 0)
    b_first = tl.min(tl.where(b_x == b_peak[None, :], o_from[:, None], SPAN), 0)
    return tl.where(b_first < SPAN, b_first, 0)


@triton.jit
def sums(b_x, b_base):
    """Along axis 0, sums of the exp of scores next to a base, up to each score."""
    b_weight = tl.exp(b_x - b_base[None, :])
    # What weighs nothing is not to be chosen: its sum is never above the others.
    return tl.where(b_weight > 0, tl.cumsum(b_weight, 0), 0.0)


@triton.jit
def first_above(b_sum, b_total, b_noise, o_from, SPAN: tl.constexpr):
    """For draws (D,), the first entry whose sum exceeds noise · total: (D, columns). By rounding there may be none."""
    b_level = b_noise[:, None] * b_total[None, :]
    b_first = tl.min(tl.where(b_sum[None, :, :] > b_level[:, None, :], o_from[None, :, None], SPAN), 1)
    if tl.max(b_first) == SPAN:
        b_last = tl.max(tl.where(b_sum > 0, o_from[:, None], 0), 0)
        b_first = tl.where(b_first < SPAN, b_first, b_last[None, :])
    return b_first


@triton.jit(do_not_specialize=["N", "S", "states", "blocks"])
def trace(
    p_pointer, p_lengths, p_state, N, S, states, blocks,
    SPAN: tl.constexpr, DRAWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """States (B, S, N) from pointers (B, S, N, states), int32: those of each position, given the state of the next.

    At the last position every pointer says the same. Behind the length the state is −1. Grid (B · blocks of draws).
    """
    i_b = tl.program_id(0).to(tl.int64) // blocks
    o_draw = (tl.program_id(0) % blocks) * DRAWS + tl.arange(0, DRAWS)
    m_draw = o_draw < S
    o_state = tl.arange(0, SPAN)[None, :]
    length = tl.load(p_lengths + i_b)
    o_path = (i_b * S + o_draw) * N
    for t in tl.range(length, N):
        tl.store(p_state + o_path + t, tl.full((DRAWS,), -1, tl.int32), mask=m_draw)
    b_state = tl.zeros((DRAWS,), tl.int32)
    for back in tl.range(1, length + 1, num_stages=STAGES):
        o_row = (o_path + length - back)[:, None] * states + o_state
        b_row = tl.load(p_pointer + o_row, mask=m_draw[:, None] & (o_state < states), other=0)
        b_state = tl.sum(tl.where(o_state == b_state[:, None], b_row, 0), 1)
        tl.store(p_state + o_path + (length - back), b_state, mask=m_draw)
