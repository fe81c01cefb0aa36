"""Single structures, the best one and draws: pointers from each label to the one before it, and parts from labels."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import floored, parts
from structmax.numerics.kernel_triton.paths import first_above, first_best, sums
from structmax.numerics.kernel_triton.transitions import load_row


@triton.jit(do_not_specialize=["N", "S", "K"])
def point(
    p_pairwise, p_lengths, p_noise, p_alpha, p_reach, p_share, p_pointer, N, S, K,
    SHARED: tl.constexpr, DRAW: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """The label at each position given the next, (B, S, N, C), of the best way or by noise (B, S, K).

    The first number of the noise chooses the last label, which has no next: all its pointers are the same. What all
    ways to a label weigh is known from the walk. Grid (B · N, strips).
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    i_b, t = i_row // N, i_row % N
    length = tl.load(p_lengths + i_b)
    o_from = tl.arange(0, SPAN)
    o_to = tl.program_id(1) * TILE + tl.arange(0, TILE)
    if t < length:
        b_a = load_row(p_alpha + i_row * C, o_from, C, WORK)
        o_matrix = i_b * C * C if SHARED else (i_b * (N - 1) + t) * C * C
        m_matrix = (o_from < tl.where(t + 1 < length, C, 0))[:, None] & (o_to < C)[None, :]
        b_w = tl.load(p_pairwise + o_matrix + o_from[:, None] * C + o_to[None, :], mask=m_matrix, other=0.0).to(WORK)
        b_x = b_a[:, None] + b_w
        if DRAW:
            if t + 1 < length:
                b_base = load_row(p_reach + (i_row + 1) * C, o_to, C, WORK, 0.0)
                b_total = 1 / load_row(p_share + (i_row + 1) * C, o_to, C, WORK, 1.0)
            else:
                b_base = floored(tl.max(b_x, 0))
                b_total = tl.sum(tl.exp(b_x - b_base[None, :]), 0)
            b_sum = sums(b_x, b_base)
            for first in tl.range(0, S, DRAWS):
                o_draw = i_b * S + first + tl.arange(0, DRAWS)
                m_draw = first + tl.arange(0, DRAWS) < S
                b_noise = tl.load(p_noise + o_draw * K + (length - 1 - t), mask=m_draw, other=0.0).to(WORK)
                b_pointer = first_above(b_sum, b_total, b_noise, o_from, SPAN)
                o_pointer = (o_draw * N + t)[:, None] * C + o_to[None, :]
                tl.store(p_pointer + o_pointer, b_pointer, mask=m_draw[:, None] & (o_to < C)[None, :])
        else:
            tl.store(p_pointer + i_row * C + o_to, first_best(b_x, o_from, SPAN), mask=o_to < C)


@triton.jit(do_not_specialize=["S", "N", "rows"])
def mark_labels(
    p_label, p_value, p_unary, S, N, rows, C: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Parts of labels (B, S, N). A program has ROWS positions."""
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < rows
    o_label = tl.arange(0, SPAN)[None, :]
    value = tl.load(p_value + o_row // (S * N), mask=m_row, other=0.0)[:, None]
    label = tl.load(p_label + o_row, mask=m_row, other=-1)[:, None]
    b_parts = parts(value, (o_label == label).to(value.dtype), label >= 0)
    tl.store(p_unary + o_row[:, None] * C + o_label, b_parts, mask=m_row[:, None] & (o_label < C))


@triton.jit(do_not_specialize=["S", "N", "rows"])
def mark_pairs(
    p_label, p_value, p_pairwise, S, N, rows, C: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Parts of the transitions between labels (B, S, N), where each position has a matrix.

    Grid (blocks of ROWS matrices, tiles of a matrix).
    """
    ACROSS: tl.constexpr = (C + TILE - 1) // TILE
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < rows
    o_path, t = o_row // (N - 1), o_row % (N - 1)
    o_from = ((tl.program_id(1) // ACROSS) * TILE + tl.arange(0, TILE))[None, :, None]
    o_to = ((tl.program_id(1) % ACROSS) * TILE + tl.arange(0, TILE))[None, None, :]
    value = tl.load(p_value + o_path // S, mask=m_row, other=0.0)[:, None, None]
    label = tl.load(p_label + o_path * N + t, mask=m_row, other=-1)[:, None, None]
    after = tl.load(p_label + o_path * N + t + 1, mask=m_row, other=-1)[:, None, None]
    b_parts = parts(value, ((o_from == label) & (o_to == after)).to(value.dtype), after >= 0)
    o_cell = o_row[:, None, None] * (C * C) + o_from * C + o_to
    tl.store(p_pairwise + o_cell, b_parts, mask=m_row[:, None, None] & (o_from < C) & (o_to < C))


@triton.jit(do_not_specialize=["N", "rows"])
def count_pairs(p_label, p_count, N, rows, C: tl.constexpr, BLOCK: tl.constexpr):
    """How often each transition stands in labels (B, S, N), added to zeros (B, S, C, C), int32."""
    o_row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    o_path, t = o_row // (N - 1), o_row % (N - 1)
    label = tl.load(p_label + o_path * N + t, mask=o_row < rows, other=-1)
    after = tl.load(p_label + o_path * N + t + 1, mask=o_row < rows, other=-1)
    tl.atomic_add(p_count + o_path * (C * C) + label * C + after, 1, mask=after >= 0)
