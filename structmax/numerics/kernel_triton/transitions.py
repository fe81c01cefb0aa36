"""Matrices of transitions between the labels of positions: how they are loaded, and their marginals.

A label j at position t is reached from label i before it with the probability

    q(i | j) = exp(a(i) + W(i, j) − reach(j)) · share(j)

where a are logarithms of a position, `reach` is the largest sum in this exponent, and `share` one over the sum of all
next to it. With scale(j) = share(j) · P(j), the marginal of a transition is exp(a(i) + W(i, j) − reach(j)) · scale(j).
Rows of charts have C labels; a, and its derivative, stand in the row before that of the position.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import parts


@triton.jit
def load_row(p_row, o_label, C: tl.constexpr, WORK: tl.constexpr, PAST: tl.constexpr = float("-inf")):
    """A row of scores; past the last label −inf, or what is given."""
    return tl.load(p_row + o_label, mask=o_label < C, other=PAST).to(WORK)


@triton.jit
def load_matrix(
    p_matrix, o_from, o_to, C: tl.constexpr, WORK: tl.constexpr, PAST: tl.constexpr = float("-inf")
):  # fmt: skip
    """A tile of a matrix of scores; past the last label −inf, or what is given."""
    mask = (o_from < C)[:, None] & (o_to < C)[None, :]
    return tl.load(p_matrix + o_from[:, None] * C + o_to[None, :], mask=mask, other=PAST).to(WORK)


@triton.jit
def store_row(p_row, o_label, b_row, count):
    """Stores the first entries of a row."""
    tl.store(p_row + o_label, b_row, mask=o_label < count)


@triton.jit
def changes(b_weight, b_scale, b_slope, b_tangent):
    """The derivatives of weight · scale, with `slope` that of the scale; no tangent is read where the weight is 0."""
    return tl.where(b_weight > 0, b_weight * (b_slope + b_scale * b_tangent), 0.0)


@triton.jit(do_not_specialize=["N", "rows"])
def pairs(
    p_pairwise, p_pairwise_t, p_lengths, p_value, p_alpha, p_alpha_t, p_reach, p_scale, p_slope, p_d_pairwise, N, rows,
    TANGENT: tl.constexpr, DOUBLE: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The marginals of transitions, or their derivatives, where each position has a matrix.

    Grid (blocks of ROWS matrices, tiles of a matrix).
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    ACROSS: tl.constexpr = (C + TILE - 1) // TILE
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < rows
    # The matrix into position t.
    i_b, t = o_row // (N - 1), 1 + o_row % (N - 1)
    o_from = (tl.program_id(1) // ACROSS) * TILE + tl.arange(0, TILE)
    o_to = (tl.program_id(1) % ACROSS) * TILE + tl.arange(0, TILE)
    length = tl.load(p_lengths + i_b, mask=m_row, other=0)
    value = tl.load(p_value + i_b, mask=m_row, other=0.0)[:, None, None]
    m_matrix = ((o_from < C)[:, None] & (o_to < C)[None, :])[None, :, :]
    m_exists = (t < length)[:, None, None] & m_matrix
    m_from = (t < length)[:, None] & (o_from < C)[None, :]
    m_to = (t < length)[:, None] & (o_to < C)[None, :]
    o_before = (i_b * N + t - 1)[:, None] * C + o_from[None, :]
    o_here = (i_b * N + t)[:, None] * C + o_to[None, :]
    o_cell = o_row[:, None, None] * (C * C) + (o_from[:, None] * C + o_to[None, :])[None, :, :]
    b_a = tl.load(p_alpha + o_before, mask=m_from, other=float("-inf"))[:, :, None]
    b_w = tl.load(p_pairwise + o_cell, mask=m_exists, other=float("-inf")).to(WORK)
    b_reach = tl.load(p_reach + o_here, mask=m_to, other=0.0)[:, None, :]
    b_scale = tl.load(p_scale + o_here, mask=m_to, other=0.0)[:, None, :]
    b_parts = tl.exp(b_a + b_w - b_reach)
    if TANGENT:
        b_slope = tl.load(p_slope + o_here, mask=m_to, other=0.0)[:, None, :]
        b_a_t = tl.load(p_alpha_t + o_before, mask=m_from, other=0.0)[:, :, None]
        b_w_t = tl.load(p_pairwise_t + o_cell, mask=m_exists, other=0.0).to(WORK)
        b_parts = changes(b_parts, b_scale, b_slope, b_a_t + b_w_t)
    else:
        b_parts = b_parts * b_scale
    tl.store(p_d_pairwise + o_cell, parts(value, b_parts, m_exists), mask=m_row[:, None, None] & m_matrix)


@triton.jit(do_not_specialize=["N", "chunks"])
def sum_pairs(
    p_pairwise, p_pairwise_t, p_lengths, p_value, p_alpha, p_alpha_t, p_reach, p_scale, p_slope, p_d_pairwise,
    N, chunks,
    TANGENT: tl.constexpr, DOUBLE: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same where one matrix serves all positions: sums over each of `chunks` parts of the positions.

    Grid (B · chunks, tiles of a matrix).
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    ACROSS: tl.constexpr = (C + TILE - 1) // TILE
    i_sum = tl.program_id(0).to(tl.int64)
    i_b, chunk = i_sum // chunks, i_sum % chunks
    o_from = (tl.program_id(1) // ACROSS) * TILE + tl.arange(0, TILE)
    o_to = (tl.program_id(1) % ACROSS) * TILE + tl.arange(0, TILE)
    length = tl.load(p_lengths + i_b)
    value = tl.load(p_value + i_b)
    o_row = i_b * N * C
    b_w = load_matrix(p_pairwise + i_b * C * C, o_from, o_to, C, WORK)
    if TANGENT:
        b_w_t = load_matrix(p_pairwise_t + i_b * C * C, o_from, o_to, C, WORK, 0.0)
    b_sum = tl.zeros((TILE, TILE), WORK)
    each = (N - 1 + chunks - 1) // chunks
    stop = tl.minimum(1 + (chunk + 1) * each, length)
    for t in tl.range(1 + chunk * each, stop, num_stages=STAGES):
        o_here = o_row + t * C
        b_a = load_row(p_alpha + o_here - C, o_from, C, WORK)
        b_reach = load_row(p_reach + o_here, o_to, C, WORK, 0.0)
        b_scale = load_row(p_scale + o_here, o_to, C, WORK, 0.0)
        b_weight = tl.exp(b_a[:, None] + b_w - b_reach[None, :])
        if TANGENT:
            b_slope = load_row(p_slope + o_here, o_to, C, WORK, 0.0)
            b_a_t = load_row(p_alpha_t + o_here - C, o_from, C, WORK, 0.0)
            b_sum += changes(b_weight, b_scale[None, :], b_slope[None, :], b_a_t[:, None] + b_w_t)
        else:
            b_sum += b_weight * b_scale[None, :]
    m_exists = (o_from < tl.where(length > 1, C, 0))[:, None]
    o_cell = i_sum * (C * C) + o_from[:, None] * C + o_to[None, :]
    m_matrix = (o_from < C)[:, None] & (o_to < C)[None, :]
    tl.store(p_d_pairwise + o_cell, parts(value, b_sum, m_exists), mask=m_matrix)
