"""Single segmentations, the best one and draws: from the last position back over a filled chart."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import floored


@triton.jit
def _decide(b_x, o_choice, noise, drawn, m_draw, choices, DRAW: tl.constexpr, WORK: tl.constexpr, SPAN: tl.constexpr):
    """For each row of scores, −inf where there is no choice, the one taken; and how many numbers have been drawn.

    The best, first of equals; or the first whose sum of weights exceeds noise · total. Of one choice nothing is drawn.
    """
    b_peak = tl.max(b_x, 1)
    if DRAW:
        b_weight = tl.exp((b_x - floored(b_peak)[:, None]).to(WORK))
        u = tl.load(noise + drawn, mask=m_draw & (choices > 1), other=0.0).to(WORK)
        b_level = u * tl.sum(b_weight, 1)
        m_above = (tl.cumsum(b_weight, 1) > b_level[:, None]) & (b_weight > 0)
        b_first = tl.min(tl.where(m_above, o_choice[None, :], SPAN), 1)
        b_last = tl.max(tl.where(b_weight > 0, o_choice[None, :], 0), 1)
        b_choice = tl.where(b_first < SPAN, b_first, b_last)
        drawn += (choices > 1).to(tl.int32)
    else:
        b_first = tl.min(tl.where(b_x == b_peak[:, None], o_choice[None, :], SPAN), 1)
        b_choice = tl.where(b_first < SPAN, b_first, 0)
    return b_choice, drawn


@triton.jit(do_not_specialize=["N", "S", "K", "blocks"])
def go_back(
    p_segment, p_pairwise, p_lengths, p_value, p_noise, p_start, p_end, p_y_segment, p_y_pairwise, N, S, K, blocks,
    SHARED: tl.constexpr, DRAW: tl.constexpr, DOUBLE: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, WIDTHS: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """Marks segments and transitions in zeros (B, S, …). Grid (B · blocks of draws).

    A draw takes a number for the last label, then for each segment one for its width and one for the label before.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64) // blocks
    o_draw = (tl.program_id(0) % blocks) * DRAWS + tl.arange(0, DRAWS)
    length = tl.load(p_lengths + i_b)
    value = tl.load(p_value + i_b)
    p_segment += i_b * N * W * C
    p_start += i_b * N * C
    p_end += i_b * N * C
    p_pairwise += i_b * C * C if SHARED else i_b * (N - 1) * C * C
    i_draw = i_b * S + o_draw
    o_y_segment = i_draw * N * W * C
    o_y_pairwise = i_draw * C * C if SHARED else i_draw * (N - 1) * C * C
    noise = p_noise + i_draw * K if DRAW else p_lengths + i_draw
    o_label = tl.arange(0, SPAN)
    o_width = tl.arange(0, WIDTHS)
    # Positions left; none where nothing is to be marked.
    left = tl.where(o_draw < S, tl.where(value > float("-inf"), length, 0), 0).to(tl.int32)
    drawn = tl.zeros((DRAWS,), tl.int32)
    labels = tl.full((DRAWS,), C, tl.int32)
    m_going = left > 0
    m_label = m_going[:, None] & (o_label < C)[None, :]
    b_x = tl.load(p_end + (left[:, None] - 1) * C + o_label[None, :], mask=m_label, other=float("-inf"))
    label, drawn = _decide(b_x, o_label, noise, drawn, m_going, labels, DRAW, WORK, SPAN)
    while tl.max(left, 0) > 0:
        m_going = left > 0
        widths = tl.minimum(left, W)
        n = left[:, None] - 1 - o_width[None, :]
        m_width = m_going[:, None] & (o_width[None, :] < widths[:, None])
        b_x = tl.load(p_start + n * C + label[:, None], mask=m_width, other=float("-inf"))
        o_segment = (n.to(tl.int64) * W + o_width[None, :]) * C + label[:, None]
        b_x += tl.load(p_segment + o_segment, mask=m_width, other=float("-inf")).to(tl.float64)
        width, drawn = _decide(b_x, o_width, noise, drawn, m_going, widths, DRAW, WORK, WIDTHS)
        left = tl.where(m_going, left - 1 - width, 0)
        o_mark = o_y_segment + (left.to(tl.int64) * W + width) * C + label
        tl.store(p_y_segment + o_mark, tl.full((DRAWS,), 1.0, tl.float32), mask=m_going)
        m_going = left > 0
        m_label = m_going[:, None] & (o_label < C)[None, :]
        b_x = tl.load(p_end + (left[:, None] - 1) * C + o_label[None, :], mask=m_label, other=float("-inf"))
        matrix = left.to(tl.int64) * 0 if SHARED else (left.to(tl.int64) - 1) * C * C
        o_before = matrix[:, None] + o_label[None, :] * C + label[:, None]
        b_x += tl.load(p_pairwise + o_before, mask=m_label, other=float("-inf")).to(tl.float64)
        before, drawn = _decide(b_x, o_label, noise, drawn, m_going, labels, DRAW, WORK, SPAN)
        o_mark = o_y_pairwise + matrix + before * C + label
        # Threads read what others wrote: a transition may be used several times.
        tl.debug_barrier()
        b_count = tl.load(p_y_pairwise + o_mark, mask=m_going, other=0.0).to(tl.float32)
        tl.debug_barrier()
        tl.store(p_y_pairwise + o_mark, b_count + 1.0, mask=m_going)
        label = before
