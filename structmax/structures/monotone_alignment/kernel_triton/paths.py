"""Paths back from the end, one lane for each: the best one, or draws by the shares of the moves."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE, greater, plus


@triton.jit
def _at(p_x, o_b, o_i, o_j, m_wanted, H, W):
    """What rotated anti-diagonals have at (i, j), as float64."""
    o_place = (o_b * W + (o_i + o_j) % W) * H + o_i
    return tl.load(p_x + o_place, mask=m_wanted, other=float("-inf")).to(WIDE)


@triton.jit
def _or_start(b_before, BEST: tl.constexpr, NARROW: tl.constexpr):
    """log(1 + w), what a local path has before a match; or the best."""
    b_zero = tl.zeros_like(b_before)
    if BEST:
        return greater(b_before, b_zero)
    else:
        b_sum, _, _ = plus(b_zero, b_before, b_zero, b_zero, NARROW)
        return b_sum


@triton.jit
def _first_best(a, b, c):
    return tl.where((a >= b) & (a >= c), 0, tl.where(b >= c, 1, 2))


@triton.jit
def _drawn(uniform, a, b, c):
    """Which of three weights, given by their logarithms, first brings the sum above its share; never one that is 0."""
    top = tl.maximum(tl.maximum(a, b), c)
    top = tl.where(top == float("-inf"), 0.0, top)
    a, b, c = tl.exp(a - top), tl.exp(b - top), tl.exp(c - top)
    x = uniform * (a + b + c)
    return tl.where(a > x, 0, tl.where(a + b > x, 1, tl.where(c > 0, 2, tl.where(b > 0, 1, 0))))


@triton.jit(do_not_specialize=["paths"])
def trace(
    p_first, p_second, p_third, p_places, p_rows, p_columns, p_value, p_starts, p_noise, p_out_1, p_out_2, p_out_3,
    paths, draws, numbers, N, M, H, W, band,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, BEST: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Writes 1 for the parts of every path; `draws` paths for an instance, with `numbers` random numbers each."""
    o_path = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_path = o_path < paths
    o_b = o_path // draws
    n, m = tl.load(p_rows + o_b, mask=m_path, other=0), tl.load(p_columns + o_b, mask=m_path, other=0)
    # not where there is no path, nor NaN
    m_going = m_path & (tl.load(p_value + o_b, mask=m_path, other=float("nan")) > float("-inf"))
    o_used = tl.zeros((LANES,), tl.int64)
    if CELLS:
        o_i, o_j = n - 1, m - 1
        m_going = m_going & (o_i >= 0) & (o_j >= 0)
        p_out_1 += o_path * N * M
    else:
        o_i, o_j = n, m
        p_out_1 += o_path * N * M
        p_out_2 += o_path * N * (M + 1)
        p_out_3 += o_path * (N + 1) * M
    if LOCAL:
        o_i = tl.load(p_starts + 3 * o_path, mask=m_path, other=-1)
        o_j = tl.load(p_starts + 3 * o_path + 1, mask=m_path, other=-1)
        o_used = tl.load(p_starts + 3 * o_path + 2, mask=m_path, other=0)
        m_going = m_going & (o_i > 0)
    # local paths come to no place of the first row or column
    edge = 1 if LOCAL else 0
    for step in tl.range(0, tl.max(n + m, 0).to(tl.int32), num_stages=1):
        if CELLS:
            tl.store(p_out_1 + o_i * M + o_j, tl.full((LANES,), 1.0, p_out_1.dtype.element_ty), mask=m_going)
        if not LOCAL:
            m_going = m_going & ((o_i > 0) | (o_j > 0))
        m_diagonal, m_above, m_left = m_going & (o_i > 0) & (o_j > 0), m_going & (o_i > edge), m_going & (o_j > edge)
        b_diagonal = _at(p_places, o_b, o_i - 1, o_j - 1, m_diagonal, H, W)
        b_above = _at(p_places, o_b, o_i - 1, o_j, m_above, H, W)
        b_left = _at(p_places, o_b, o_i, o_j - 1, m_left, H, W)
        b_before = b_diagonal
        if not CELLS:
            if LOCAL:
                b_diagonal = _or_start(b_diagonal, BEST, WIDE)
            b_diagonal += _at(p_first, o_b, o_i - 1, o_j - 1, m_diagonal, H, W)
            b_above += _at(p_second, o_b, o_i - 1, o_j, m_above, H, W)
            b_left += _at(p_third, o_b, o_i, o_j - 1, m_left, H, W)
        if BEST:
            o_move = _first_best(b_diagonal, b_above, b_left)
            if LOCAL:
                o_move = tl.where(step == 0, 0, o_move)
        else:
            # a number is drawn where the shape alone leaves a choice; the first move of a local path is a match
            fewest = tl.where(step < edge, 3, 1)
            m_above = m_above & (tl.abs(o_i - 1 - o_j) <= band)
            m_left = m_left & (tl.abs(o_i - o_j + 1) <= band)
            m_choice = m_diagonal.to(tl.int32) + m_above.to(tl.int32) + m_left.to(tl.int32) > fewest
            uniform = tl.load(p_noise + o_path * numbers + o_used, mask=m_choice, other=0.0).to(WIDE)
            o_only = tl.where(m_diagonal, 0, tl.where(m_above, 1, 2))
            o_move = tl.where(m_choice, _drawn(uniform, b_diagonal, b_above, b_left), o_only)
            o_used += m_choice.to(tl.int64)
        if not CELLS:
            b_one = tl.full((LANES,), 1.0, p_out_1.dtype.element_ty)
            tl.store(p_out_1 + (o_i - 1) * M + o_j - 1, b_one, mask=m_going & (o_move == 0))
            tl.store(p_out_2 + (o_i - 1) * (M + 1) + o_j, b_one, mask=m_going & (o_move == 1))
            tl.store(p_out_3 + o_i * M + o_j - 1, b_one, mask=m_going & (o_move == 2))
        if LOCAL:
            m_match = m_going & (o_move == 0)
            m_inner = m_match & (o_i > 1) & (o_j > 1)
            if BEST:
                m_onward = m_inner & (b_before > 0)
            else:
                uniform = tl.load(p_noise + o_path * numbers + o_used, mask=m_inner, other=0.0).to(WIDE)
                b_none = tl.full((LANES,), float("-inf"), WIDE)
                m_onward = m_inner & (_drawn(uniform, tl.zeros((LANES,), WIDE), b_before, b_none) == 1)
                o_used += m_inner.to(tl.int64)
            m_going = m_going & ((o_move != 0) | m_onward)
        o_i, o_j = tl.where(o_move == 2, o_i, o_i - 1), tl.where(o_move == 1, o_j, o_j - 1)


@triton.jit
def _match(p_first, p_places, i_b, i, o_j, m_wanted, H, W, BEST: tl.constexpr, NARROW: tl.constexpr):
    """log w of the local paths that end at (i, j) by a match."""
    o_place = (i_b * W + (i - 1 + o_j - 1) % W) * H + i - 1
    b_before = tl.load(p_places + o_place, mask=m_wanted, other=float("-inf"))
    return _or_start(b_before, BEST, NARROW) + tl.load(p_first + o_place, mask=m_wanted, other=float("-inf")).to(WIDE)


@triton.jit
def best_end(
    p_first, p_places, p_ends, p_rows, p_columns, p_total, p_starts, H, W, BLOCK: tl.constexpr
):  # fmt: skip
    """Where the best local path ends, in the first row and column of equals; row −1 if it is empty."""
    NARROW: tl.constexpr = p_first.dtype.element_ty
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
        b_match = _match(p_first, p_places, i_b, i, o_j, o_j <= m, H, W, True, NARROW)
        j = tl.minimum(j, tl.min(tl.where(b_match == total, o_j, m + 1), 0))
    tl.store(p_starts + 3 * i_b, i.to(tl.int64))
    tl.store(p_starts + 3 * i_b + 1, j.to(tl.int64))
    tl.store(p_starts + 3 * i_b + 2, tl.zeros_like(i_b))


@triton.jit
def draw_end(
    p_first, p_places, p_ends, p_rows, p_columns, p_total, p_noise, p_starts, draws, numbers, H, W, band,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Where a drawn local path ends: sought up the rows, then along the columns, with a number for each.

    Every trial is independent of those before it, and the first that succeeds counts: all are made at once.
    """
    NARROW: tl.constexpr = p_first.dtype.element_ty
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
        b_share = tl.exp(_match(p_first, p_places, i_b, i, o_j, m_column, H, W, False, NARROW) - in_row)
        b_before = reached + tl.cumsum(b_share, 0) - b_share
        uniform = tl.load(p_noise + used + (stop - o_j), mask=m_column & (o_j > first), other=0.0).to(WIDE)
        m_found = m_column & (b_share > 0) & (b_before <= uniform * (b_before + b_share))
        j = tl.maximum(j, tl.max(tl.where(m_found, o_j, first), 0))
        reached += tl.sum(b_share, 0)
    used += tl.where(stop > first, stop - tl.maximum(j, first + 1) + 1, 0)
    tl.store(p_starts + 3 * i_path, tl.zeros_like(i_path) + i)
    tl.store(p_starts + 3 * i_path + 1, tl.zeros_like(i_path) + j)
    tl.store(p_starts + 3 * i_path + 2, tl.zeros_like(i_path) + used)
