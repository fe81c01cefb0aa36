"""The walks over positions: values of what ends and of what starts at each, and their derivatives. See ../README.md.

A program has one instance. Values are float64, so that long inputs lose nothing; what is left of them after a peak is
taken off, and all weights, have the working precision. Row p − 1 of a chart belongs to what ends at p, and row p to
what starts there: a segment from row n that is w + 1 wide ends in row n + w. What starts goes through memory, since
segments of all widths come back to it.

SPAN is the power of two that holds C labels, WIDTHS how many widths a tile has.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import broken, floored, log_sum, positive, softmax
from structmax.numerics.kernel_triton.transitions import load_matrix, load_row, store_row


@triton.jit
def _cells(p, first, widths, WIDTHS: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr):
    """Of segments that end at p: the cells of their starts and their own, and which there are: (WIDTHS, SPAN)."""
    o_width = (first + tl.arange(0, WIDTHS))[:, None]
    o_label = tl.arange(0, SPAN)[None, :]
    o_start = p - 1 - o_width
    return o_start * C + o_label, (o_start * W + o_width) * C + o_label, (o_width < widths) & (o_label < C)


@triton.jit(do_not_specialize=["N"])
def walk(
    p_segment, p_pairwise, p_lengths, p_value, p_start, p_end, p_peak, p_end_share, p_alpha, p_reach, p_share, N,
    SHARED: tl.constexpr, BEST: tl.constexpr, DOUBLE: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """Fills the chart with log Σ exp, or with the best. Grid (B,).

    `start` and `end` are the values, `peak` the best segment to what ends and `end_share` one over the sum of all next
    to it; `alpha`, `reach` and `share` are those of the transitions. The best needs only the values.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    STEP: tl.constexpr = 0 if SHARED else C * C
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    o_row = i_b * N * C
    p_segment += o_row * W
    p_pairwise += i_b * C * C if SHARED else i_b * (N - 1) * C * C
    p_start += o_row
    p_end += o_row
    if not BEST:
        p_peak += o_row
        p_end_share += o_row
        p_alpha += o_row
        p_reach += o_row
        p_share += o_row
    o_label = tl.arange(0, SPAN)
    tl.store(p_start + o_label, tl.zeros((SPAN,), tl.float64), mask=o_label < C)
    b_end = tl.zeros((SPAN,), tl.float64)
    bad = tl.full((), 0, tl.int32)
    for p in tl.range(1, length + 1):
        # Threads read what others wrote.
        tl.debug_barrier()
        widths = tl.minimum(p, W)
        b_peak = tl.full((SPAN,), float("-inf"), tl.float64)
        b_total = tl.zeros((SPAN,), WORK)
        for first in tl.range(0, widths, WIDTHS):
            o_start, o_segment, m_cell = _cells(p, first, widths, WIDTHS, W, C, SPAN)
            b_x = tl.load(p_start + o_start, mask=m_cell, other=float("-inf"))
            b_x += tl.load(p_segment + o_segment, mask=m_cell, other=float("-inf")).to(tl.float64)
            b_new = tl.maximum(b_peak, tl.max(b_x, 0))
            if BEST:
                bad = tl.maximum(bad, tl.max(broken(b_x, 0), 0))
            else:
                b_base = floored(b_new)
                b_weight = tl.exp((b_x - b_base[None, :]).to(WORK))
                b_total = b_total * tl.exp((b_peak - b_base).to(WORK)) + tl.sum(b_weight, 0)
            b_peak = b_new
        if BEST:
            b_end = b_peak
        else:
            b_total = positive(b_total)
            b_end = b_peak + tl.log(b_total).to(tl.float64)
            store_row(p_peak + (p - 1) * C, o_label, floored(b_peak), C)
            store_row(p_end_share + (p - 1) * C, o_label, 1 / b_total, C)
        store_row(p_end + (p - 1) * C, o_label, b_end, C)
        if p < length:
            top = floored(tl.max(b_end, 0))
            b_w = load_matrix(p_pairwise + (p - 1) * STEP, o_label, o_label, C, WORK)
            if BEST:
                b_x = b_end[:, None] + b_w.to(tl.float64)
                bad = tl.maximum(bad, tl.max(broken(b_x, 0), 0))
                b_start = tl.max(b_x, 0)
            else:
                b_a = (b_end - top).to(WORK)
                b_x = b_a[:, None] + b_w
                b_reach = tl.max(b_x, 0)
                b_base = floored(b_reach)
                b_sum = positive(tl.sum(tl.exp(b_x - b_base[None, :]), 0))
                b_start = top + (b_reach.to(tl.float64) + tl.log(b_sum).to(tl.float64))
                store_row(p_alpha + (p - 1) * C, o_label, b_a, C)
                store_row(p_reach + p * C, o_label, b_base, C)
                store_row(p_share + p * C, o_label, 1 / b_sum, C)
            store_row(p_start + p * C, o_label, b_start, C)
    b_end = tl.where(o_label < C, b_end, float("-inf"))
    if BEST:
        value = tl.where(bad > 0, float("nan"), tl.max(b_end, 0))
    else:
        value = log_sum(b_end)
    # as a number of the scores' dtype; the empty segmentation scores 0
    tl.store(p_value + i_b, tl.where(length > 0, value, 0.0).to(WORK))


@triton.jit(do_not_specialize=["N"])
def push(
    p_segment, p_segment_t, p_pairwise, p_pairwise_t, p_lengths, p_start, p_end, p_peak, p_end_share, p_alpha, p_reach,
    p_share, p_start_t, p_end_t, p_alpha_t, p_reach_t, N,
    SHARED: tl.constexpr, DOUBLE: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """Fills the derivatives of the values along a tangent, `start_t` and `end_t`, in float64. Grid (B,).

    Those of transitions, `alpha_t` and `reach_t`, are centred at each position, since only differences count.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    STEP: tl.constexpr = 0 if SHARED else C * C
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    o_row = i_b * N * C
    o_matrix = i_b * C * C if SHARED else i_b * (N - 1) * C * C
    p_segment += o_row * W
    p_segment_t += o_row * W
    p_pairwise += o_matrix
    p_pairwise_t += o_matrix
    p_start += o_row
    p_end += o_row
    p_peak += o_row
    p_end_share += o_row
    p_alpha += o_row
    p_reach += o_row
    p_share += o_row
    p_start_t += o_row
    p_end_t += o_row
    p_alpha_t += o_row
    p_reach_t += o_row
    o_label = tl.arange(0, SPAN)
    tl.store(p_start_t + o_label, tl.zeros((SPAN,), tl.float64), mask=o_label < C)
    for p in tl.range(1, length + 1):
        # Threads read what others wrote.
        tl.debug_barrier()
        widths = tl.minimum(p, W)
        b_peak = load_row(p_peak + (p - 1) * C, o_label, C, tl.float64, 0.0)
        b_sum = tl.zeros((SPAN,), tl.float64)
        for first in tl.range(0, widths, WIDTHS):
            o_start, o_segment, m_cell = _cells(p, first, widths, WIDTHS, W, C, SPAN)
            b_x = tl.load(p_start + o_start, mask=m_cell, other=float("-inf"))
            b_x += tl.load(p_segment + o_segment, mask=m_cell, other=float("-inf")).to(tl.float64)
            b_weight = tl.exp((b_x - b_peak[None, :]).to(WORK)).to(tl.float64)
            b_t = tl.load(p_start_t + o_start, mask=m_cell, other=0.0)
            b_t += tl.load(p_segment_t + o_segment, mask=m_cell, other=0.0).to(tl.float64)
            b_sum += tl.sum(tl.where(b_weight > 0, b_weight * b_t, 0.0), 0)
        b_end_t = b_sum * load_row(p_end_share + (p - 1) * C, o_label, C, tl.float64, 0.0)
        store_row(p_end_t + (p - 1) * C, o_label, b_end_t, C)
        if p < length:
            b_p = softmax(load_row(p_end + (p - 1) * C, o_label, C, tl.float64))
            centre = tl.sum(tl.where(b_p > 0, b_p * b_end_t, 0.0), 0)
            b_a_t = (b_end_t - centre).to(WORK)
            b_a = load_row(p_alpha + (p - 1) * C, o_label, C, WORK)
            b_w = load_matrix(p_pairwise + (p - 1) * STEP, o_label, o_label, C, WORK)
            b_w_t = load_matrix(p_pairwise_t + (p - 1) * STEP, o_label, o_label, C, WORK, 0.0)
            b_reach = load_row(p_reach + p * C, o_label, C, WORK, 0.0)
            b_q = (
                tl.exp(b_a[:, None] + b_w - b_reach[None, :])
                * load_row(p_share + p * C, o_label, C, WORK, 0.0)[None, :]
            )
            b_r_t = tl.sum(tl.where(b_q > 0, b_q * (b_a_t[:, None] + b_w_t), 0.0), 0)
            store_row(p_alpha_t + (p - 1) * C, o_label, b_a_t, C)
            store_row(p_reach_t + p * C, o_label, b_r_t, C)
            store_row(p_start_t + p * C, o_label, centre + b_r_t.to(tl.float64), C)
