"""Marginals after the walk, and their derivatives along a tangent: mass 1 at the end flows back. See ../README.md."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import parts, softmax
from structmax.numerics.kernel_triton.transitions import changes, load_matrix, load_row, store_row


@triton.jit(do_not_specialize=["N"])
def flow(
    p_segment, p_segment_t, p_pairwise, p_pairwise_t, p_lengths, p_start, p_end, p_peak, p_end_share,
    p_alpha, p_reach, p_share, p_start_t, p_end_t, p_alpha_t, p_reach_t,
    p_end_scale, p_end_slope, p_scale, p_slope, N,
    SHARED: tl.constexpr, TANGENT: tl.constexpr, DOUBLE: tl.constexpr,
    W: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """The factors of the segments into what ends, `end_scale`, and of the transitions into what starts, `scale`.

    With a tangent also the derivatives of their masses, times the shares: `end_slope` and `slope`. Grid (B,).
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    STEP: tl.constexpr = 0 if SHARED else C * C
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    o_row = i_b * N * C
    o_matrix = i_b * C * C if SHARED else i_b * (N - 1) * C * C
    p_segment += o_row * W
    p_pairwise += o_matrix
    p_start += o_row
    p_end += o_row
    p_peak += o_row
    p_end_share += o_row
    p_alpha += o_row
    p_reach += o_row
    p_share += o_row
    p_end_scale += o_row
    p_scale += o_row
    if TANGENT:
        p_segment_t += o_row * W
        p_pairwise_t += o_matrix
        p_start_t += o_row
        p_end_t += o_row
        p_alpha_t += o_row
        p_reach_t += o_row
        p_end_slope += o_row
        p_slope += o_row
    o_label = tl.arange(0, SPAN)
    if length > 0:
        o_last = (length - 1) * C
        b_p = softmax(load_row(p_end + o_last, o_label, C, tl.float64))
        b_share = load_row(p_end_share + o_last, o_label, C, WORK, 0.0)
        store_row(p_end_scale + o_last, o_label, b_p.to(WORK) * b_share, C)
        if TANGENT:
            b_last_t = load_row(p_end_t + o_last, o_label, C, tl.float64, 0.0)
            b_last_t -= tl.sum(tl.where(b_p > 0, b_p * b_last_t, 0.0), 0)
            b_p_t = tl.where(b_p > 0, b_p * b_last_t, 0.0).to(WORK)
            store_row(p_end_slope + o_last, o_label, b_p_t * b_share, C)
        for back in tl.range(1, length):
            # Threads read what others wrote.
            tl.debug_barrier()
            n = length - back
            b_start = load_row(p_start + n * C, o_label, C, tl.float64)
            b_mass = tl.zeros((SPAN,), WORK)
            b_change = tl.zeros((SPAN,), WORK)
            widths = tl.minimum(W, length - n)
            for first in tl.range(0, widths, WIDTHS):
                o_width = (first + tl.arange(0, WIDTHS))[:, None]
                m_cell = (o_width < widths) & (o_label < C)[None, :]
                o_end = (n + o_width) * C + o_label[None, :]
                o_segment = (n * W + o_width) * C + o_label[None, :]
                b_x = tl.load(p_segment + o_segment, mask=m_cell, other=float("-inf")).to(tl.float64)
                b_x += b_start[None, :]
                b_weight = tl.exp((b_x - tl.load(p_peak + o_end, mask=m_cell, other=0.0)).to(WORK))
                b_scale = tl.load(p_end_scale + o_end, mask=m_cell, other=0.0)
                b_mass += tl.sum(b_weight * b_scale, 0)
                if TANGENT:
                    b_slope = tl.load(p_end_slope + o_end, mask=m_cell, other=0.0)
                    b_t = load_row(p_start_t + n * C, o_label, C, tl.float64, 0.0)[None, :]
                    b_t = (b_t - tl.load(p_end_t + o_end, mask=m_cell, other=0.0)).to(WORK)
                    b_t += tl.load(p_segment_t + o_segment, mask=m_cell, other=0.0).to(WORK)
                    b_change += tl.sum(changes(b_weight, b_scale, b_slope, b_t), 0)
            b_share = load_row(p_share + n * C, o_label, C, WORK, 0.0)
            b_scale = b_share * b_mass
            store_row(p_scale + n * C, o_label, b_scale, C)
            b_a = load_row(p_alpha + (n - 1) * C, o_label, C, WORK)
            b_w = load_matrix(p_pairwise + (n - 1) * STEP, o_label, o_label, C, WORK)
            b_reach = load_row(p_reach + n * C, o_label, C, WORK, 0.0)
            b_weight = tl.exp(b_a[:, None] + b_w - b_reach[None, :])
            b_share_end = load_row(p_end_share + (n - 1) * C, o_label, C, WORK, 0.0)
            b_left = tl.sum(b_weight * b_scale[None, :], 1)
            store_row(p_end_scale + (n - 1) * C, o_label, b_left * b_share_end, C)
            if TANGENT:
                b_r_t = load_row(p_reach_t + n * C, o_label, C, WORK, 0.0)
                b_slope = b_share * (b_change - b_mass * b_r_t)
                store_row(p_slope + n * C, o_label, b_slope, C)
                b_a_t = load_row(p_alpha_t + (n - 1) * C, o_label, C, WORK, 0.0)
                b_w_t = load_matrix(p_pairwise_t + (n - 1) * STEP, o_label, o_label, C, WORK, 0.0)
                b_moved = changes(b_weight, b_scale[None, :], b_slope[None, :], b_a_t[:, None] + b_w_t)
                store_row(p_end_slope + (n - 1) * C, o_label, tl.sum(b_moved, 1) * b_share_end, C)


@triton.jit(do_not_specialize=["N", "blocks"])
def segments(
    p_segment, p_segment_t, p_lengths, p_value, p_start, p_peak, p_start_t, p_end_t, p_end_scale, p_end_slope, p_out,
    N, blocks,
    TANGENT: tl.constexpr, DOUBLE: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The marginals of segments, or their derivatives. Grid (B · blocks), BLOCK cells of an instance to a program."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64) // blocks
    o_cell = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    n, o_width, o_label = o_cell // (C * W), o_cell // C % W, o_cell % C
    length = tl.load(p_lengths + i_b)
    value = tl.load(p_value + i_b)
    m_cell = n < N
    m_exists = n + o_width < length
    o_start = (i_b * N + n) * C + o_label
    o_end = (i_b * N + n + o_width) * C + o_label
    o_cell = i_b * N * W * C + o_cell
    b_x = tl.load(p_segment + o_cell, mask=m_exists, other=float("-inf")).to(tl.float64)
    b_x += tl.load(p_start + o_start, mask=m_exists, other=float("-inf"))
    b_weight = tl.exp((b_x - tl.load(p_peak + o_end, mask=m_exists, other=0.0)).to(WORK))
    b_scale = tl.load(p_end_scale + o_end, mask=m_exists, other=0.0)
    if TANGENT:
        b_t = tl.load(p_start_t + o_start, mask=m_exists, other=0.0) - tl.load(
            p_end_t + o_end, mask=m_exists, other=0.0
        )
        b_t = b_t.to(WORK) + tl.load(p_segment_t + o_cell, mask=m_exists, other=0.0).to(WORK)
        b_slope = tl.load(p_end_slope + o_end, mask=m_exists, other=0.0)
        b_parts = changes(b_weight, b_scale, b_slope, b_t)
    else:
        b_parts = b_weight * b_scale
    tl.store(p_out + o_cell, parts(value, b_parts, m_exists), mask=m_cell)
