"""Single strings, the best one and draws: pointers from each state to the one before it, and parts from states.

State k is blank k, and state L + 1 + k is label k.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import parts
from structmax.structures.ctc.kernel_triton.frames import ends, layout, ways


@triton.jit
def _chosen(skip, step, stay, b_noise, DRAW: tl.constexpr):
    """Which of three ways is taken, 0, 1 or 2: the first of the best, or where the sum of weights exceeds the noise."""
    if DRAW:
        level = b_noise * (skip + step + stay)
        # noise · total may round up to the total
        last = tl.where(stay > 0, 2, tl.where(step > 0, 1, 0))
        choice = tl.where((skip + step > level) & (step > 0), 1, last)
        choice = tl.where((skip > level) & (skip > 0), 0, choice)
    else:
        choice = tl.where((skip >= step) & (skip >= stay), 0, tl.where(step >= stay, 1, 2))
    return choice


@triton.jit(do_not_specialize=["T", "S", "K", "L"])
def point(
    p_labels, p_counts, p_lengths, p_noise, p_alpha, p_pointer, T, S, K, L,
    DRAW: tl.constexpr, DOUBLE: tl.constexpr, SPAN: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """The state in each frame given the next, (B, S, T, 2 (L + 1)), of the best string or by noise. Grid (B · T).

    The first number of the noise chooses the last state: there all pointers are the same.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    o_frame = tl.program_id(0).to(tl.int64)
    i_b, t = o_frame // T, o_frame % T
    length = tl.load(p_lengths + i_b)
    count = tl.load(p_counts + i_b).to(tl.int32)
    o_place = tl.arange(0, SPAN)
    m_place = o_place <= L
    if t < length:
        _, m_skip, _, _, _ = layout(p_labels + i_b * L, count, o_place)
        o_cell = o_frame * (2 * (L + 1)) + o_place
        b_blank = tl.load(p_alpha + o_cell, mask=m_place, other=float("-inf"))
        b_label = tl.load(p_alpha + o_cell + (L + 1), mask=m_place, other=float("-inf"))
        b_moved = tl.load(p_alpha + o_cell + L, mask=m_place & (o_place > 0), other=float("-inf"))
        label, last = ends(b_blank, b_label, count, o_place)
        is_last = t == length - 1
        # In the last frame as if every state were entered from the last label and the blank behind it.
        b_moved = tl.where(is_last, label, b_moved)
        b_blank = tl.where(is_last, last, b_blank)
        b_label = tl.where(is_last, float("-inf"), b_label)
        before = tl.where(is_last, count - 1, o_place - 1)
        here = tl.where(is_last, count, o_place)
        m_skip = tl.where(is_last, 0, m_skip.to(tl.int32)) > 0
        _, b_step, b_stay, _, _, l_skip, l_step, l_stay, _ = ways(b_blank, b_label, b_moved, m_skip, False, WORK)
        b_none = b_step * 0
        if not DRAW:
            b_none = tl.full((SPAN,), float("-inf"), tl.float64)
            b_step, b_stay = b_moved, b_blank
            l_skip, l_step, l_stay = tl.where(m_skip, b_moved, float("-inf")), b_blank, b_label
        for first in tl.range(0, S, DRAWS):
            o_draw = first + tl.arange(0, DRAWS)
            m_draw = o_draw < S
            i_draw = i_b * S + o_draw
            b_noise = tl.zeros((DRAWS,), WORK)[:, None]
            if DRAW:
                b_noise = tl.load(p_noise + i_draw * K + (length - 1 - t), mask=m_draw, other=0.0).to(WORK)[:, None]
            to_blank = _chosen(b_none[None, :], b_step[None, :], b_stay[None, :], b_noise, DRAW)
            to_label = _chosen(l_skip[None, :], l_step[None, :], l_stay[None, :], b_noise, DRAW)
            b_blank_from = tl.where(to_blank < 2, (L + 1 + before)[None, :], here[None, :])
            b_label_from = tl.where(to_label == 1, o_place[None, :], (L + 1 + o_place)[None, :])
            b_label_from = tl.where(to_label == 0, (L + o_place)[None, :], b_label_from)
            b_label_from = tl.where(is_last, b_blank_from, b_label_from)
            o_pointer = (i_draw * T + t)[:, None] * (2 * (L + 1)) + o_place[None, :]
            m_pointer = m_draw[:, None] & m_place[None, :]
            tl.store(p_pointer + o_pointer, b_blank_from, mask=m_pointer)
            tl.store(p_pointer + o_pointer + (L + 1), b_label_from, mask=m_pointer)


@triton.jit(do_not_specialize=["S", "T", "V", "L", "rows", "blank"])
def mark(
    p_labels, p_value, p_state, p_out, S, T, V, L, rows, blank, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Parts of states (B, S, T). Grid (blocks of ROWS frames, blocks of symbols)."""
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < rows
    i_b = o_row // (S * T)
    o_symbol = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    state = tl.load(p_state + o_row, mask=m_row, other=-1)
    value = tl.load(p_value + i_b, mask=m_row, other=0.0)[:, None]
    symbol = tl.load(p_labels + i_b * L + (state - L - 1), mask=m_row & (state > L), other=blank)[:, None]
    b_parts = parts(value, (o_symbol == symbol).to(value.dtype), (state >= 0)[:, None])
    tl.store(p_out + o_row[:, None] * V + o_symbol, b_parts, mask=m_row[:, None] & (o_symbol < V))
