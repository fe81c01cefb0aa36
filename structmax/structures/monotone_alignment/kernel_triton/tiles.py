"""What every place does by itself, in tiles: scores to rotated anti-diagonals, and probabilities back.

A grid of H × W places is kept as W rows of H: place (i, j) is at row (i + j) mod W, column i. An anti-diagonal is then
one piece of memory, or two that belong to different columns, and no place is wasted. A tile is a block of
anti-diagonals by a block of rows; Triton turns it around between the two kinds of memory.
"""

import triton
import triton.language as tl

from structmax.structures.monotone_alignment.kernel_triton.geometry import exists


@triton.jit
def _tile(H, W, DIAGONALS: tl.constexpr, ROWS: tl.constexpr):
    """The instance of this program, and its anti-diagonals and rows."""
    tiles = tl.cdiv(H + W - 1, DIAGONALS)
    i_tile = tl.program_id(0)
    o_t = (i_tile % tiles) * DIAGONALS + tl.arange(0, DIAGONALS)[:, None]
    i_tile = i_tile // tiles
    blocks = tl.cdiv(H, ROWS)
    o_i = (i_tile % blocks) * ROWS + tl.arange(0, ROWS)[None, :]
    return (i_tile // blocks).to(tl.int64), o_t, o_i


@triton.jit
def _rotated(o_t, o_i, H, W):
    return (o_t % W).to(tl.int64) * H + o_i


@triton.jit
def rotate(
    p_x, p_out, p_rows, p_columns, N, M, H, W, band,
    DOWN: tl.constexpr, RIGHT: tl.constexpr, LOCAL: tl.constexpr, TANGENT: tl.constexpr,
    DIAGONALS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Scores (B, N, M) to (B, W, H): −inf where no part is, NaN for +inf; tangents are 0 there."""
    i_b, o_t, o_i = _tile(H, W, DIAGONALS, ROWS)
    o_j = o_t - o_i
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    m_there = exists(o_i, o_j, n, m, band, DOWN, RIGHT, LOCAL)
    nothing = 0.0 if TANGENT else float("-inf")
    b_x = tl.load(p_x + i_b * N * M + o_i.to(tl.int64) * M + o_j, mask=m_there, other=nothing)
    if not TANGENT:
        b_x = tl.where(b_x < float("inf"), b_x, float("nan"))
    tl.store(p_out + i_b * H * W + _rotated(o_t, o_i, H, W), b_x, mask=(o_i < H) & (o_j >= 0) & (o_j < W))


@triton.jit
def unrotate(
    p_planes, p_rows, p_columns, p_value, p_out, N, M, H, W, band,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr,
    DIAGONALS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One plane (B, W, H) to parts (B, N, M): moves are found where they lead, cells where they are.

    NaN where the value is NaN; 0 where it is −inf.
    """
    i_b, o_t, o_i = _tile(H, W, DIAGONALS, ROWS)
    o_j = o_t - o_i
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    m_there = exists(o_i, o_j, n, m, band, DOWN, RIGHT, LOCAL)
    if CELLS:
        o_place = _rotated(o_t, o_i, H, W)
    else:
        o_place = _rotated(o_t + (DOWN + RIGHT), o_i + DOWN, H, W)
    value = tl.load(p_value + i_b)
    b_out = tl.load(p_planes + i_b * H * W + o_place, mask=m_there, other=0.0)
    b_out = tl.where(value == value, tl.where(value == float("-inf"), 0.0, b_out), value)
    m_out = (o_i < N) & (o_j >= 0) & (o_j < M)
    tl.store(p_out + i_b * N * M + o_i.to(tl.int64) * M + o_j, tl.where(m_there, b_out, 0.0), mask=m_out)


@triton.jit
def clear(
    p_value, p_rows, p_columns, p_out, draws, N, M, band,
    DOWN: tl.constexpr, RIGHT: tl.constexpr, LOCAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(B · draws, N, M): 0, or NaN for the parts of an instance whose value is NaN."""
    blocks = tl.cdiv(N * M, BLOCK)
    i_draw = (tl.program_id(0) // blocks).to(tl.int64)
    i_b = i_draw // draws
    o_part = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    m_there = exists(o_part // M, o_part % M, n, m, band, DOWN, RIGHT, LOCAL)
    value = tl.load(p_value + i_b)
    b_out = tl.where(m_there, tl.where(value == value, 0.0, value), 0.0)
    tl.store(p_out + i_draw * N * M + o_part, b_out, mask=o_part < N * M)
