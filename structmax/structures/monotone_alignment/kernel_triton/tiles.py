"""What every place does by itself, in tiles: scores to rotated anti-diagonals, and from logarithms to expectations.

A grid of H × W places is kept as W rows of H: place (i, j) is at row (i + j) mod W, column i. An anti-diagonal is then
one piece of memory, or two that belong to different columns, and no place is wasted. A tile is a block of
anti-diagonals by a block of rows; Triton turns it around between the two kinds of memory.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import plus_one
from structmax.structures.monotone_alignment.kernel_triton.exists import exists


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


@triton.jit(do_not_specialize=["B"])
def expect(
    p_scores, p_d_scores, p_places, p_d_places, p_rows, p_columns, p_value, p_total, p_d_total, p_out,
    B, N, M, H, W, band,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, DOWN: tl.constexpr, RIGHT: tl.constexpr, TANGENT: tl.constexpr,
    DIAGONALS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Probabilities of parts (B, N, M), or their derivatives, from the weights of all paths to and from each place."""
    NARROW: tl.constexpr = p_scores.dtype.element_ty
    i_b, o_t, o_i = _tile(H, W, DIAGONALS, ROWS)
    o_j = o_t - o_i
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    m_there = exists(o_i, o_j, n, m, band, DOWN, RIGHT, LOCAL)
    o_here = i_b * H * W + _rotated(o_t, o_i, H, W)
    # behind the weights to all places stand those from them
    o_behind = B.to(tl.int64) * H * W + o_here
    if not CELLS:
        o_behind = (B.to(tl.int64) + i_b) * H * W + _rotated(o_t + (DOWN + RIGHT), o_i + DOWN, H, W)
    total = tl.load(p_total + i_b)
    b_x = tl.load(p_scores + o_here, mask=m_there, other=float("-inf")).to(tl.float64)
    b_to = tl.load(p_places + o_here, mask=m_there, other=float("-inf"))
    b_from = tl.load(p_places + o_behind, mask=m_there, other=float("-inf"))
    d_to, d_from = tl.zeros_like(b_to), tl.zeros_like(b_from)
    if TANGENT:
        d_to = tl.load(p_d_places + o_here, mask=m_there, other=0.0)
        d_from = tl.load(p_d_places + o_behind, mask=m_there, other=0.0)
    if LOCAL and DOWN + RIGHT == 2:
        b_to, d_to = plus_one(b_to, d_to, False, NARROW)
        b_from, d_from = plus_one(b_from, d_from, False, NARROW)
    # no path has a forbidden part, and there is none where a sum of finite scores is −inf in their dtype
    highest = tl.where(tl.load(p_value + i_b) == float("-inf"), float("inf"), float("-inf"))
    m_never = b_x <= tl.where(total == total, highest, total)
    # both weights have that of the cell
    b_log = tl.where(m_never, 0.0, -b_x if CELLS else b_x) + b_to + b_from - total
    b_out = tl.where(m_never, 0.0, tl.exp(b_log.to(NARROW)))
    if TANGENT:
        d_x = tl.load(p_d_scores + o_here, mask=m_there, other=0.0).to(tl.float64)
        d_log = (d_to - d_x if CELLS else d_to + d_x) + d_from - tl.load(p_d_total + i_b)
        b_out = tl.where(b_out == 0, 0.0, b_out * d_log)
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
