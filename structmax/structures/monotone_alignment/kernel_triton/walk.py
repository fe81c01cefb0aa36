"""The recursion over anti-diagonals: one program for an instance and a direction, one lane for a row of places.

From the end to the start it is the same walk over the reversed grid: row r is then row H − 1 − r. A lane takes its
upper neighbour from the lane before it, by memory that stays in the cache of the multiprocessor; the diagonal one is
what it took a step ago, the left one its own. Scores are read two steps ahead. Rows beyond the lanes are walked strip
by strip; `p_edge` hands the last row of a strip to the next.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE, plus, plus_one, plus_three


@triton.jit
def _read(p_x, t, o_r, o_i, h, w, is_back, H, W, nothing, DOWN: tl.constexpr, RIGHT: tl.constexpr):
    """Scores of the moves by DOWN and RIGHT to the places of step t, or of these cells."""
    o_c = t - o_r
    m_there = (o_r >= DOWN) & (o_r < h) & (o_c >= RIGHT) & (o_c < w)
    # forward they lie where the moves start
    o_t = tl.where(is_back > 0, h + w - 2 - t, t - (DOWN + RIGHT))
    o_row = o_i + (is_back - 1) * DOWN
    return tl.load(p_x + ((o_t + 2 * W) % W).to(tl.int64) * H + o_row, mask=m_there, other=nothing)


@triton.jit
def _read_all(
    p_first, p_second, p_third, t, o_r, o_i, h, w, is_back, H, W, nothing, CELLS: tl.constexpr
):  # fmt: skip
    if CELLS:
        b_first = _read(p_first, t, o_r, o_i, h, w, is_back, H, W, nothing, 0, 0)
        return b_first, b_first, b_first
    else:
        b_first = _read(p_first, t, o_r, o_i, h, w, is_back, H, W, nothing, 1, 1)
        b_second = _read(p_second, t, o_r, o_i, h, w, is_back, H, W, nothing, 1, 0)
        b_third = _read(p_third, t, o_r, o_i, h, w, is_back, H, W, nothing, 0, 1)
        return b_first, b_second, b_third


@triton.jit(do_not_specialize=["B"])
def walk(
    p_first, p_second, p_third, p_d_first, p_d_second, p_d_third, p_rows, p_columns, p_value, p_total, p_d_total,
    p_places, p_d_places, p_ends, p_lanes, p_edge, B, H, W,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr, KEEP: tl.constexpr,
    STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """log w of all places, which KEEP stores, and of the end: `p_value`, and as float64 `p_total`.

    `p_ends` gets, for local paths, the sum over those that end in a row.
    """
    NARROW: tl.constexpr = p_first.dtype.element_ty
    i_program = tl.program_id(0)
    is_back = i_program // B
    i_b = (i_program % B).to(tl.int64)
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    h, w = n, m
    if not CELLS:
        h, w = n + 1, m + 1
    p_first += i_b * H * W
    if not CELLS:
        p_second += i_b * H * W
        p_third += i_b * H * W
    if KEEP:
        p_places += i_program.to(tl.int64) * H * W
    p_lanes += i_program.to(tl.int64) * 4 * LANES
    if STRIPS:
        p_edge += i_program.to(tl.int64) * 2 * W
    if TANGENT:
        p_d_first += i_b * H * W
        if not CELLS:
            p_d_second += i_b * H * W
            p_d_third += i_b * H * W
        p_d_places += i_program.to(tl.int64) * H * W

    o_lane = tl.arange(0, LANES)
    b_never, b_zero = tl.full((LANES,), float("-inf"), WIDE), tl.zeros((LANES,), WIDE)
    # of the end: its value in its lane, or for local paths what each lane has found; and its tangent
    b_goal, d_goal = b_never, b_zero
    for top in tl.range(0, tl.where(w > 0, h, 0), LANES, num_stages=1):
        o_r = top + o_lane
        o_i = tl.where(is_back > 0, h - 1 - o_r, o_r)
        b_left, b_diagonal, b_ends = b_never, b_never, b_never
        d_left, d_diagonal, d_ends = b_zero, b_zero, b_zero
        b_1, b_2, b_3 = _read_all(p_first, p_second, p_third, top, o_r, o_i, h, w, is_back, H, W, float("-inf"), CELLS)
        b_next_1, b_next_2, b_next_3 = _read_all(p_first, p_second, p_third, top + 1, o_r, o_i, h, w, is_back, H, W, float("-inf"), CELLS)
        d_1, d_2, d_3 = b_zero, b_zero, b_zero
        if TANGENT:
            d_1, d_2, d_3 = _read_all(p_d_first, p_d_second, p_d_third, top, o_r, o_i, h, w, is_back, H, W, 0.0, CELLS)
            d_next_1, d_next_2, d_next_3 = _read_all(p_d_first, p_d_second, p_d_third, top + 1, o_r, o_i, h, w, is_back, H, W, 0.0, CELLS)
        for t in tl.range(top, tl.minimum(top + LANES, h) + w - 1, num_stages=1):
            # what comes after the next step
            b_far_1, b_far_2, b_far_3 = _read_all(p_first, p_second, p_third, t + 2, o_r, o_i, h, w, is_back, H, W, float("-inf"), CELLS)
            if TANGENT:
                d_far_1, d_far_2, d_far_3 = _read_all(p_d_first, p_d_second, p_d_third, t + 2, o_r, o_i, h, w, is_back, H, W, 0.0, CELLS)
            p_read, p_write = p_lanes + ((t + 1) % 2) * LANES + o_lane, p_lanes + (t % 2) * LANES + o_lane
            m_above = o_lane >= tl.where(t > top, 1, LANES)
            b_above = tl.load(p_read - 1, mask=m_above, other=float("-inf"))
            d_above = b_zero
            if TANGENT:
                d_above = tl.load(p_read - 1 + 2 * LANES, mask=m_above, other=0.0)
            if STRIPS:
                m_edge = o_lane < tl.where((top > 0) & (t - top < w), 1, 0)
                b_edge = tl.load(p_edge + (t - top) + o_lane, mask=m_edge, other=float("-inf"))
                b_above = tl.where(o_lane == 0, b_edge, b_above)
                if TANGENT:
                    d_edge = tl.load(p_edge + W + (t - top) + o_lane, mask=m_edge, other=0.0)
                    d_above = tl.where(o_lane == 0, d_edge, d_above)

            m_first = o_r + t == 0
            if CELLS:
                b_new, d_new = plus_three(b_diagonal, b_above, b_left, d_diagonal, d_above, d_left, BEST, NARROW)
                b_new = tl.where(m_first, 0.0, b_new) + b_1
                d_new = tl.where(m_first, 0.0, d_new) + d_1
            else:
                b_match, d_match = b_diagonal, d_diagonal
                if LOCAL:
                    b_match, d_match = plus_one(b_match, d_match, BEST, NARROW)
                b_match, d_match = b_match + b_1, d_match + d_1
                b_new, d_new = plus_three(
                    b_match, b_above + b_2, b_left + b_3, d_match, d_above + d_2, d_left + d_3, BEST, NARROW
                )
                if LOCAL:
                    b_ends, d_ends = plus(b_ends, b_match, d_ends, d_match, BEST, NARROW)
                else:
                    b_new, d_new = tl.where(m_first, 0.0, b_new), tl.where(m_first, 0.0, d_new)
            m_there = (o_r < h) & (t >= o_r) & (t - o_r < w)
            b_new, d_new = tl.where(m_there, b_new, float("-inf")), tl.where(m_there, d_new, 0.0)

            tl.store(p_write, b_new)
            o_t = tl.where(is_back > 0, h + w - 2 - t, t)
            o_place = (o_t % W).to(tl.int64) * H + o_i
            if KEEP:
                tl.store(p_places + o_place, b_new, mask=m_there)
            if STRIPS:
                m_last = m_there & (o_lane == LANES - 1)
                tl.store(p_edge + t - o_r, b_new, mask=m_last)
            if TANGENT:
                tl.store(p_write + 2 * LANES, d_new)
                tl.store(p_d_places + o_place, d_new, mask=m_there)
                if STRIPS:
                    tl.store(p_edge + W + t - o_r, d_new, mask=m_there & (o_lane == LANES - 1))
            tl.debug_barrier()
            b_left, b_diagonal = b_new, b_above
            b_1, b_2, b_3, b_next_1, b_next_2, b_next_3 = b_next_1, b_next_2, b_next_3, b_far_1, b_far_2, b_far_3
            if TANGENT:
                d_left, d_diagonal = d_new, d_above
                d_1, d_2, d_3, d_next_1, d_next_2, d_next_3 = d_next_1, d_next_2, d_next_3, d_far_1, d_far_2, d_far_3
        if LOCAL:
            tl.store(p_ends + i_b * H + o_i, b_ends, mask=o_r < tl.where(is_back == 0, h, 0))
            b_goal, d_goal = plus(b_goal, b_ends, d_goal, d_ends, BEST, NARROW)
        else:
            b_goal = tl.where(o_r == h - 1, b_left, b_goal)
            d_goal = tl.where(o_r == h - 1, d_left, d_goal)

    if LOCAL:
        # the empty path, too
        top = tl.maximum(tl.max(b_goal, 0), 0.0)
        b_weight = tl.exp(b_goal - top)
        if BEST:
            total = tl.where(tl.sum(tl.where(b_goal == b_goal, 0, 1), 0) > 0, float("nan"), top)
            d_total = tl.zeros_like(total)
        else:
            weight = tl.sum(b_weight, 0) + tl.exp(-top)
            total = top + tl.log(weight)
            d_total = tl.sum(tl.where(b_weight > 0, b_weight * d_goal, 0.0), 0) / weight
    else:
        m_goal = o_lane == tl.where((h > 0) & (w > 0), (h - 1) % LANES, -1)
        total = tl.sum(tl.where(m_goal, b_goal, 0.0), 0)
        d_total = tl.sum(tl.where(m_goal, d_goal, 0.0), 0)
        if CELLS:
            # nothing is aligned with nothing, but not with something
            total = tl.where((n == 0) != (m == 0), float("-inf"), total)
    if is_back == 0:
        tl.store(p_total + i_b, total)
        tl.store(p_value + i_b, total.to(NARROW))
        if TANGENT:
            tl.store(p_d_total + i_b, d_total)
