"""Paths back from the end, one lane for each: the best one, or draws by the shares of the moves."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE
from structmax.structures.monotone_alignment.kernel_triton.forwards import MOVES


@triton.jit
def _drawn(uniform, a, b, c):
    """Which of three weights first brings the sum above its share; never one that is 0."""
    x = uniform * (a + b + c)
    return tl.where(a > x, 0, tl.where(a + b > x, 1, tl.where(c > 0, 2, tl.where(b > 0, 1, 0))))


@triton.jit
def _start(
    p_rows, p_columns, p_value, p_starts, paths, draws, H, W, CELLS: tl.constexpr, LOCAL: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """The paths, their first places in their instances, where they end, numbers used so far, and which there are."""
    o_path = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_path = o_path < paths
    o_b = o_path // draws
    # not where there is no path, nor NaN
    m_going = m_path & (tl.load(p_value + o_b, mask=m_path, other=float("nan")) > float("-inf"))
    o_used = tl.zeros((LANES,), tl.int64)
    if LOCAL:
        o_i = tl.load(p_starts + 3 * o_path, mask=m_path, other=-1).to(tl.int32)
        o_j = tl.load(p_starts + 3 * o_path + 1, mask=m_path, other=-1).to(tl.int32)
        o_used = tl.load(p_starts + 3 * o_path + 2, mask=m_path, other=0)
        m_going = m_going & (o_i > 0)
    else:
        o_i = tl.load(p_rows + o_b, mask=m_path, other=0).to(tl.int32)
        o_j = tl.load(p_columns + o_b, mask=m_path, other=0).to(tl.int32)
        if CELLS:
            o_i, o_j = o_i - 1, o_j - 1
            m_going = m_going & (o_i >= 0) & (o_j >= 0)
    # the most steps that are left
    o_steps = tl.where(m_going, o_i + o_j, 0)
    return o_path, o_b * H * W, o_i, o_j, o_used, m_going, tl.max(o_steps, 0)


@triton.jit
def _mark(p_out_1, p_out_2, p_out_3, o_path, o_i, o_j, o_move, m_going, N, M, CELLS: tl.constexpr):
    """1 for the move to (i, j), or for the cell."""
    if CELLS:
        tl.store(p_out_1 + o_path * N * M + (o_i * M + o_j), 1.0, mask=m_going)
    else:
        m_1, m_2, m_3 = m_going & (o_move == 0), m_going & (o_move == 1), m_going & (o_move == 2)
        tl.store(p_out_1 + o_path * N * M + ((o_i - 1) * M + o_j - 1), 1.0, mask=m_1)
        tl.store(p_out_2 + o_path * N * (M + 1) + ((o_i - 1) * (M + 1) + o_j), 1.0, mask=m_2)
        tl.store(p_out_3 + o_path * (N + 1) * M + (o_i * M + o_j - 1), 1.0, mask=m_3)


@triton.jit
def _back(o_i, o_j, o_move):
    return tl.where(o_move == 2, o_i, o_i - 1), tl.where(o_move == 1, o_j, o_j - 1)


@triton.jit(do_not_specialize=["paths"])
def follow(
    p_moves, p_rows, p_columns, p_value, p_starts, p_out_1, p_out_2, p_out_3, paths, N, M, H, W,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Writes 1 for the parts of every best path: a few moves are read at once, from where the last of them is."""
    o_path, o_origin, o_i, o_j, _used, m_going, steps = _start(
        p_rows, p_columns, p_value, p_starts, paths, 1, H, W, CELLS, LOCAL, LANES
    )
    p_moves += o_origin
    if LOCAL:
        # the last move is a match
        o_moves = tl.load(p_moves + ((o_i + o_j) % W * H + o_i), mask=m_going, other=0)
        _mark(p_out_1, p_out_2, p_out_3, o_path, o_i, o_j, tl.zeros_like(o_i), m_going, N, M, CELLS)
        m_going = m_going & ((o_moves >> (2 * MOVES)) == 1)
        o_i, o_j = o_i - 1, o_j - 1
    # a local path may start anywhere, which is known from the move after the last that is followed
    FOLLOWED: tl.constexpr = MOVES - 1 if LOCAL else MOVES
    # one more than moves, for the cell that none leads to
    for _step in tl.range(0, steps + 1, FOLLOWED, num_stages=1):
        o_moves = tl.load(p_moves + ((o_i + o_j) % W * H + o_i), mask=m_going, other=0)
        for _k in tl.static_range(FOLLOWED):
            o_move = o_moves & 3
            _mark(p_out_1, p_out_2, p_out_3, o_path, o_i, o_j, o_move, m_going, N, M, CELLS)
            m_going = m_going & (o_move < 3)
            o_i, o_j = _back(o_i, o_j, o_move)
            o_moves = o_moves >> 2
        if LOCAL:
            m_going = m_going & ((o_moves & 3) < 3)


@triton.jit(do_not_specialize=["paths"])
def draw(
    p_shares, p_rows, p_columns, p_value, p_starts, p_noise, p_out_1, p_out_2, p_out_3,
    paths, draws, numbers, plane, N, M, H, W, band,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Writes 1 for the parts of every path; `draws` paths for an instance, with `numbers` random numbers each."""
    o_path, o_origin, o_i, o_j, o_used, m_going, steps = _start(
        p_rows, p_columns, p_value, p_starts, paths, draws, H, W, CELLS, LOCAL, LANES
    )
    p_shares += o_origin
    p_noise += o_path * numbers
    # the row of this anti-diagonal
    slot = tl.where(m_going, (o_i + o_j) % W, 0)
    # local paths come to no place of the first row or column
    edge = 1 if LOCAL else 0
    for step in tl.range(0, steps + 1, num_stages=1):
        p_share = p_shares + (slot * H + o_i)
        b_1 = tl.load(p_share, mask=m_going, other=0.0)
        b_2 = tl.load(p_share + plane, mask=m_going, other=0.0)
        b_3 = tl.load(p_share + 2 * plane, mask=m_going, other=0.0)
        uniform = tl.load(p_noise + o_used, mask=m_going & (o_used < numbers), other=0.0).to(b_1.dtype)
        if LOCAL:
            b_4 = tl.load(p_share + 3 * plane, mask=m_going, other=0.0)
        # a number is drawn where the shape alone leaves a choice; the first move of a local path is a match
        m_1 = (o_i > 0) & (o_j > 0)
        m_2 = (o_i > edge) & (tl.abs(o_i - 1 - o_j) <= band)
        m_3 = (o_j > edge) & (tl.abs(o_i - o_j + 1) <= band)
        m_choice = m_1.to(tl.int32) + m_2.to(tl.int32) + m_3.to(tl.int32) > tl.where(step < edge, 3, 1)
        m_choice = m_choice & m_going
        o_only = tl.where(m_1, 0, tl.where(m_2, 1, 2))
        o_move = tl.where(m_choice, _drawn(uniform, b_1, b_2, b_3), o_only)
        o_used += m_choice.to(tl.int64)
        if CELLS:
            _mark(p_out_1, p_out_2, p_out_3, o_path, o_i, o_j, o_move, m_going, N, M, CELLS)
            m_going = m_going & (o_i + o_j > 0)
        else:
            if not LOCAL:
                m_going = m_going & (o_i + o_j > 0)
            _mark(p_out_1, p_out_2, p_out_3, o_path, o_i, o_j, o_move, m_going, N, M, CELLS)
        if LOCAL:
            m_match = m_going & (o_move == 0)
            m_inner = m_match & (o_i > 1) & (o_j > 1)
            uniform = tl.load(p_noise + o_used, mask=m_inner, other=0.0).to(b_1.dtype)
            m_onward = m_inner & (_drawn(uniform, 1 - b_4, b_4, tl.zeros_like(b_4)) == 1)
            o_used += m_inner.to(tl.int64)
            m_going = m_going & ((o_move != 0) | m_onward)
        slot -= tl.where(o_move == 0, 2, 1)
        slot = tl.where(slot < 0, slot + W, slot)
        o_i, o_j = _back(o_i, o_j, o_move)


@triton.jit
def best_end(
    p_matches, p_ends, p_rows, p_columns, p_total, p_starts, H, W, BLOCK: tl.constexpr
):  # fmt: skip
    """Where the best local path ends, in the first row and column of equals; row −1 if it is empty."""
    i_b = tl.program_id(0).to(tl.int64)
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    total = tl.load(p_total + i_b)
    i = n + 1
    for start in range(0, n + 1, BLOCK):
        o_i = start + tl.arange(0, BLOCK)
        b_ends = tl.load(p_ends + i_b * H + o_i, mask=o_i <= n, other=float("-inf"))
        i = tl.minimum(i, tl.min(tl.where(b_ends == total, o_i, n + 1), 0))
    i = tl.where((total > 0) & (i <= n), i, -1)
    j = m + 1
    for start in range(1, tl.where(i > 0, m + 1, 0), BLOCK):
        o_j = start + tl.arange(0, BLOCK)
        p_match = p_matches + i_b * H * W + ((i + o_j) % W * H + i)
        b_match = tl.load(p_match, mask=o_j <= m, other=float("-inf"))
        j = tl.minimum(j, tl.min(tl.where(b_match == total, o_j, m + 1), 0))
    tl.store(p_starts + 3 * i_b, i.to(tl.int64))
    tl.store(p_starts + 3 * i_b + 1, j.to(tl.int64))
    tl.store(p_starts + 3 * i_b + 2, tl.zeros_like(i_b))


@triton.jit
def draw_end(
    p_matches, p_ends, p_rows, p_columns, p_total, p_noise, p_starts, draws, numbers, H, W, band,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Where a drawn local path ends: sought up the rows, then along the columns, with a number for each.

    Every trial is independent of those before it, and the first that succeeds counts: all are made at once.
    """
    i_path = tl.program_id(0).to(tl.int64)
    i_b = i_path // draws
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    total = tl.load(p_total + i_b)
    p_noise += i_path * numbers
    # the last row with a place in the band, where the search starts
    last = tl.where(m > 0, tl.minimum(n, m + band), 0)
    i = -1
    reached = tl.exp(-total)
    for start in range(1, last + 1, BLOCK):
        o_i = start + tl.arange(0, BLOCK)
        m_row = o_i <= last
        b_share = tl.exp(tl.load(p_ends + i_b * H + o_i, mask=m_row, other=float("-inf")) - total)
        b_above = reached + tl.cumsum(b_share, 0) - b_share
        uniform = tl.load(p_noise + (last - o_i), mask=m_row, other=0.0).to(WIDE)
        m_found = m_row & (b_share > 0) & (b_above <= uniform * (b_above + b_share))
        i = tl.maximum(i, tl.max(tl.where(m_found, o_i, -1), 0))
        reached += tl.sum(b_share, 0)
    used = last - i + 1
    first, stop = tl.maximum(1, i - band), tl.minimum(m, i + band)
    j = first
    in_row = tl.load(p_ends + i_b * H + i, mask=i > 0, other=0.0)
    reached = tl.zeros_like(in_row)
    for start in range(first, tl.where(i > 0, stop + 1, 0), BLOCK):
        o_j = start + tl.arange(0, BLOCK)
        m_column = o_j <= stop
        p_match = p_matches + i_b * H * W + ((i + o_j) % W * H + i)
        b_share = tl.exp(tl.load(p_match, mask=m_column, other=float("-inf")) - in_row)
        b_before = reached + tl.cumsum(b_share, 0) - b_share
        uniform = tl.load(p_noise + used + (stop - o_j), mask=m_column & (o_j > first), other=0.0).to(WIDE)
        m_found = m_column & (b_share > 0) & (b_before <= uniform * (b_before + b_share))
        j = tl.maximum(j, tl.max(tl.where(m_found, o_j, first), 0))
        reached += tl.sum(b_share, 0)
    used += tl.where(stop > first, stop - tl.maximum(j, first + 1) + 1, 0)
    tl.store(p_starts + 3 * i_path, tl.zeros_like(i_path) + i)
    tl.store(p_starts + 3 * i_path + 1, tl.zeros_like(i_path) + j)
    tl.store(p_starts + 3 * i_path + 2, tl.zeros_like(i_path) + used)
