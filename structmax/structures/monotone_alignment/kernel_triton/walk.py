"""The recursions over anti-diagonals: one program for a strip of rows of an instance, one lane for a row of places.

A lane takes what comes from its upper neighbour from the lane before it, by memory that stays in the cache of the
multiprocessor; what comes along the diagonal it took a step ago, what comes from the left is its own. Backward the rows
are reversed, and the rest is the same. What does not depend on the step before is read two steps ahead.

Several strips go side by side, each on its own multiprocessor: a launch, or wave, takes every strip on by STEPS
anti-diagonals, and a strip is one wave behind the one above. `p_edge` hands the last row of a strip to the next, in
place: a strip writes behind where it reads, and what another strip writes meanwhile is read in the next wave. `p_lanes`
keeps what the last two steps of a strip have left.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE, greater, plus, plus_three


@triton.jit
def _read(p_x, slot, t, o_r, h, w, H, nothing, DOWN: tl.constexpr, RIGHT: tl.constexpr):
    """Scores of the moves by DOWN and RIGHT to the places of step t, or of these cells: they lie where moves start."""
    o_c = t - o_r
    m_there = (o_r >= DOWN) & (o_r < h) & (o_c >= RIGHT) & (o_c < w)
    return tl.load(p_x + (slot * H - DOWN) + o_r, mask=m_there, other=nothing)


@triton.jit
def _read_moves(
    p_first, p_second, p_third, slot_2, slot_1, slot, t, o_r, h, w, H, nothing, CELLS: tl.constexpr
):  # fmt: skip
    """The same of all moves; `slot` is the row of this anti-diagonal, and before it that of the last two."""
    if CELLS:
        b_first = _read(p_first, slot, t, o_r, h, w, H, nothing, 0, 0)
        return b_first, b_first, b_first
    else:
        b_first = _read(p_first, slot_2, t, o_r, h, w, H, nothing, 1, 1)
        b_second = _read(p_second, slot_1, t, o_r, h, w, H, nothing, 1, 0)
        return b_first, b_second, _read(p_third, slot_1, t, o_r, h, w, H, nothing, 0, 1)


@triton.jit
def _segment(h, w, first, wave, STEPS, LANES: tl.constexpr):
    """The strip of this program, its first row, and the steps from `start` to before `stop` that it takes now."""
    strip = first + tl.program_id(1)
    top = strip * LANES
    begin = (wave - strip) * STEPS
    stop = tl.minimum(tl.minimum(top + LANES, h) + w - 1, begin + STEPS)
    return strip, top, tl.maximum(top, begin), tl.where((top < h) & (w > 0), stop, 0)


@triton.jit
def _from_above(p_lanes, p_edge, t, top, w, o_lane, nothing, STRIPS: tl.constexpr, LANES: tl.constexpr):
    """What the lanes before wrote in the last step; for the first lane, what the strip before wrote for this column."""
    p_read = p_lanes + ((t + 1) % 2) * LANES + o_lane - 1
    m_read = o_lane >= tl.where(t > top, 1, LANES)
    if STRIPS:
        m_edge = o_lane < tl.where((top > 0) & (t >= top) & (t - top < w), 1, 0)
        p_read = tl.where(o_lane == 0, p_edge + (t - top) + o_lane, p_read)
        m_read = m_read | m_edge
    return tl.load(p_read, mask=m_read, other=nothing)


@triton.jit(do_not_specialize=["B", "first", "wave"])
def forward(
    p_first, p_second, p_third, p_d_first, p_d_second, p_d_third, p_rows, p_columns, p_value, p_total, p_d_total,
    p_places, p_shares, p_slopes, p_matches, p_d_matches, p_ends, p_lanes, p_edge,
    B, H, W, first, wave, STEPS,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr,
    PLACES: tl.constexpr, SHARES: tl.constexpr, STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """log w of the end: `p_value`, and as float64 `p_total`.

    PLACES stores log w of all places, SHARES the shares of the moves to them: diagonal, down, right, and of local paths
    those that go on before a match; TANGENT their slopes. For local paths there are `p_matches`, log of those that end
    by a match, and `p_ends`, their sums over rows.
    """
    NARROW: tl.constexpr = p_first.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    n, m = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    h, w = n, m
    if not CELLS:
        h, w = n + 1, m + 1
    origin = i_b * H * W
    # from one plane of shares to the next
    plane = B.to(tl.int64) * H * W
    p_first += origin
    if not CELLS:
        p_second += origin
        p_third += origin
    if TANGENT:
        p_d_first += origin
        if not CELLS:
            p_d_second += origin
            p_d_third += origin
    if PLACES:
        p_places += origin
    if SHARES:
        p_shares += origin
        if LOCAL:
            p_matches += origin
        if TANGENT:
            p_slopes += origin
            if LOCAL:
                p_d_matches += origin
    strips = tl.cdiv(H, LANES)
    strip, top, start, stop = _segment(h, w, first, wave, STEPS, LANES)
    p_lanes += (i_b * strips + strip) * 4 * LANES
    p_edge += i_b * 4 * W
    o_lane = tl.arange(0, LANES)
    b_zero = tl.zeros((LANES,), WIDE)
    o_r = top + o_lane
    # the rows of the anti-diagonals from here on, and of the two before
    before_2, before_1 = (start + 2 * W - 2) % W, (start + 2 * W - 1) % W
    slot, slot_1, slot_2 = start % W, (start + 1) % W, (start + 2) % W
    # as the steps before have left it, or nothing
    m_last = o_lane < tl.where(start > top, LANES, 0)
    p_left = p_lanes + ((start + 1) % 2) * LANES + o_lane
    b_left = tl.load(p_left, mask=m_last, other=float("-inf"))
    b_diagonal = _from_above(p_lanes, p_edge, start - 1, top, w, o_lane, float("-inf"), STRIPS, LANES)
    d_left, d_diagonal, d_ends = b_zero, b_zero, b_zero
    if TANGENT:
        d_left = tl.load(p_left + 2 * LANES, mask=m_last, other=0.0)
        d_diagonal = _from_above(p_lanes + 2 * LANES, p_edge + W, start - 1, top, w, o_lane, 0.0, STRIPS, LANES)
    if LOCAL:
        p_ends += i_b * H
        b_ends = tl.load(p_ends + o_r, mask=m_last & (o_r < h), other=float("-inf"))
        if TANGENT:
            p_d_ends = p_ends + B.to(tl.int64) * H
            d_ends = tl.load(p_d_ends + o_r, mask=m_last & (o_r < h), other=0.0)
    b_1, b_2, b_3 = _read_moves(
        p_first, p_second, p_third, before_2, before_1, slot, start, o_r, h, w, H, float("-inf"), CELLS
    )
    b_4, b_5, b_6 = _read_moves(
        p_first, p_second, p_third, before_1, slot, slot_1, start + 1, o_r, h, w, H, float("-inf"), CELLS
    )
    d_1, d_2, d_3 = b_zero, b_zero, b_zero
    if TANGENT:
        d_1, d_2, d_3 = _read_moves(
            p_d_first, p_d_second, p_d_third, before_2, before_1, slot, start, o_r, h, w, H, 0.0, CELLS
        )
        d_4, d_5, d_6 = _read_moves(
            p_d_first, p_d_second, p_d_third, before_1, slot, slot_1, start + 1, o_r, h, w, H, 0.0, CELLS
        )
    for t in tl.range(start, stop, num_stages=1):
        b_7, b_8, b_9 = _read_moves(
            p_first, p_second, p_third, slot, slot_1, slot_2, t + 2, o_r, h, w, H, float("-inf"), CELLS
        )
        if TANGENT:
            d_7, d_8, d_9 = _read_moves(
                p_d_first, p_d_second, p_d_third, slot, slot_1, slot_2, t + 2, o_r, h, w, H, 0.0, CELLS
            )
        b_above = _from_above(p_lanes, p_edge, t, top, w, o_lane, float("-inf"), STRIPS, LANES)
        d_above = b_zero
        if TANGENT:
            d_above = _from_above(p_lanes + 2 * LANES, p_edge + W, t, top, w, o_lane, 0.0, STRIPS, LANES)
        m_there = (o_r < h) & (t >= o_r) & (t - o_r < w)
        o_place = slot * H + o_r
        b_1_tail, b_2_tail, b_3_tail, d_1_tail, d_2_tail, d_3_tail = (
            b_diagonal, b_above, b_left, d_diagonal, d_above, d_left
        )  # fmt: skip
        if LOCAL:
            if BEST:
                b_1_tail = greater(b_diagonal, b_zero)
            else:
                b_1_tail, d_1_tail, b_onward = plus(b_zero, b_diagonal, b_zero, d_diagonal, NARROW)
                if SHARES:
                    tl.store(p_shares + 3 * plane + o_place, b_onward, mask=m_there)
                    if TANGENT:
                        d_onward = (d_diagonal - d_1_tail).to(NARROW)
                        tl.store(p_slopes + 3 * plane + o_place, d_onward, mask=m_there)
        if not CELLS:
            b_1_tail, b_2_tail, b_3_tail = b_1_tail + b_1, b_2_tail + b_2, b_3_tail + b_3
            d_1_tail, d_2_tail, d_3_tail = d_1_tail + d_1, d_2_tail + d_2, d_3_tail + d_3
        if LOCAL:
            if BEST:
                b_ends = greater(b_ends, b_1_tail)
            else:
                b_ends, d_ends, _ = plus(b_ends, b_1_tail, d_ends, d_1_tail, NARROW)
            if SHARES:
                tl.store(p_matches + o_place, b_1_tail, mask=m_there)
                if TANGENT:
                    tl.store(p_d_matches + o_place, d_1_tail, mask=m_there)
        if BEST:
            b_new, d_new = greater(greater(b_1_tail, b_2_tail), b_3_tail), b_zero
        else:
            b_new, d_new, b_share_1, b_share_2, b_share_3 = plus_three(
                b_1_tail, b_2_tail, b_3_tail, d_1_tail, d_2_tail, d_3_tail, NARROW
            )
            if SHARES:
                tl.store(p_shares + o_place, b_share_1, mask=m_there)
                tl.store(p_shares + plane + o_place, b_share_2, mask=m_there)
                tl.store(p_shares + 2 * plane + o_place, b_share_3, mask=m_there)
                if TANGENT:
                    tl.store(p_slopes + o_place, (d_1_tail - d_new).to(NARROW), mask=m_there)
                    tl.store(p_slopes + plane + o_place, (d_2_tail - d_new).to(NARROW), mask=m_there)
                    tl.store(p_slopes + 2 * plane + o_place, (d_3_tail - d_new).to(NARROW), mask=m_there)
        if not LOCAL:
            m_first = o_r + t == 0
            b_new, d_new = tl.where(m_first, 0.0, b_new), tl.where(m_first, 0.0, d_new)
        if CELLS:
            b_new, d_new = b_new + b_1, d_new + d_1
        b_new, d_new = tl.where(m_there, b_new, float("-inf")), tl.where(m_there, d_new, 0.0)

        p_write = p_lanes + (t % 2) * LANES + o_lane
        tl.store(p_write, b_new)
        if PLACES:
            tl.store(p_places + o_place, b_new, mask=m_there)
        if TANGENT:
            tl.store(p_write + 2 * LANES, d_new)
        if STRIPS:
            m_edge = m_there & (o_lane == LANES - 1)
            tl.store(p_edge + t - o_r, b_new, mask=m_edge)
            if TANGENT:
                tl.store(p_edge + W + t - o_r, d_new, mask=m_edge)
        tl.debug_barrier()
        slot, slot_1, slot_2 = slot_1, slot_2, tl.where(slot_2 == W - 1, 0, slot_2 + 1)
        b_left, b_diagonal = b_new, b_above
        b_1, b_2, b_3, b_4, b_5, b_6 = b_4, b_5, b_6, b_7, b_8, b_9
        if TANGENT:
            d_left, d_diagonal = d_new, d_above
            d_1, d_2, d_3, d_4, d_5, d_6 = d_4, d_5, d_6, d_7, d_8, d_9
    # of the end: its logarithm and the tangent
    if LOCAL:
        tl.store(p_ends + o_r, b_ends, mask=o_r < h)
        if TANGENT:
            tl.store(p_d_ends + o_r, d_ends, mask=o_r < h)
        if (strip == strips - 1) & ((wave - strip + 1) * STEPS >= H + W - 1):
            # the last program: all rows, and the empty path
            tl.debug_barrier()
            b_goal, d_goal = tl.where(o_lane == 0, 0.0, float("-inf")).to(WIDE), b_zero
            for row in tl.range(0, h, LANES, num_stages=1):
                o_r = row + o_lane
                b_ends = tl.load(p_ends + o_r, mask=o_r < h, other=float("-inf"))
                if BEST:
                    b_goal = greater(b_goal, b_ends)
                else:
                    d_ends = b_zero
                    if TANGENT:
                        d_ends = tl.load(p_d_ends + o_r, mask=o_r < h, other=0.0)
                    b_goal, d_goal, _ = plus(b_goal, b_ends, d_goal, d_ends, NARROW)
            highest = tl.max(b_goal, 0)
            b_weight = tl.exp(b_goal - highest)
            weight = tl.sum(b_weight, 0)
            total = highest + (0.0 * weight if BEST else tl.log(weight))
            tl.store(p_total + i_b, total)
            tl.store(p_value + i_b, total.to(NARROW))
            if TANGENT:
                d_total = tl.sum(tl.where(b_weight > 0, b_weight * d_goal, 0.0), 0) / weight
                tl.store(p_d_total + i_b, d_total)
    else:
        m_goal = o_r == tl.where((start < stop) & (stop == h + w - 1), h - 1, -1)
        b_goal, d_goal = b_left, d_left
        if CELLS:
            # nothing is aligned with nothing, but not with something
            empty = (h == 0) | (w == 0)
            b_goal = tl.where(empty, tl.where(h == w, 0.0, float("-inf")), b_goal)
            m_goal = m_goal | (o_lane + wave == tl.where(empty, 0, -1))
        o_goal = i_b + 0 * o_lane
        tl.store(p_total + o_goal, b_goal, mask=m_goal)
        tl.store(p_value + o_goal, b_goal.to(NARROW), mask=m_goal)
        if TANGENT:
            tl.store(p_d_total + o_goal, d_goal, mask=m_goal)


@triton.jit
def _read_planes(p_x, slot, t, o_r, o_i, h, w, H, plane, LOCAL: tl.constexpr):
    """Three planes, or four, at the places of step t."""
    m_there = (o_r < h) & (t >= o_r) & (t - o_r < w)
    p_x += slot * H + o_i
    b_1, b_2 = tl.load(p_x, mask=m_there, other=0.0), tl.load(p_x + plane, mask=m_there, other=0.0)
    b_3 = tl.load(p_x + 2 * plane, mask=m_there, other=0.0)
    b_4 = b_3
    if LOCAL:
        b_4 = tl.load(p_x + 3 * plane, mask=m_there, other=0.0)
    return b_1, b_2, b_3, b_4


@triton.jit(do_not_specialize=["B", "first", "wave"])
def backward(
    p_shares, p_slopes, p_matches, p_d_matches, p_total, p_d_total, p_rows, p_columns, p_lanes, p_edge,
    B, H, W, first, wave, STEPS,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, TANGENT: tl.constexpr, STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Probabilities of moves in place of their shares, or derivatives in place of the slopes; cells in the first plane.

    How probable a place is: the sum of the moves that leave it.
    """
    i_b = tl.program_id(0).to(tl.int64)
    h, w = tl.load(p_rows + i_b).to(tl.int32), tl.load(p_columns + i_b).to(tl.int32)
    if not CELLS:
        h, w = h + 1, w + 1
    plane = B.to(tl.int64) * H * W
    p_shares += i_b * H * W
    total = tl.load(p_total + i_b)
    if LOCAL:
        p_matches += i_b * H * W
    if TANGENT:
        p_slopes += i_b * H * W
        if LOCAL:
            p_d_matches += i_b * H * W
    NARROW: tl.constexpr = p_shares.dtype.element_ty
    strip, top, start, stop = _segment(h, w, first, wave, STEPS, LANES)
    p_lanes += (i_b * tl.cdiv(H, LANES) + strip) * 10 * LANES
    p_edge += i_b * 4 * W
    o_lane = tl.arange(0, LANES)
    o_r = top + o_lane
    o_i = h - 1 - o_r
    # the rows of the anti-diagonals from here on
    last = h + w - 2 - start + 2 * W
    slot, slot_1, slot_2 = last % W, (last - 1) % W, (last - 2) % W
    # what comes down, now and along the diagonal a step later; the same of tangents
    p_lanes_2, p_lanes_3, p_lanes_4 = p_lanes + 2 * LANES, p_lanes + 4 * LANES, p_lanes + 6 * LANES
    p_edge_2, p_edge_3, p_edge_4 = p_edge + W, p_edge + 2 * W, p_edge + 3 * W
    # as the steps before have left it, or nothing
    p_left = p_lanes + 8 * LANES + o_lane
    m_left = o_lane < tl.where(start > top, LANES, 0)
    b_left = tl.load(p_left, mask=m_left, other=0.0)
    b_diagonal = _from_above(p_lanes_2, p_edge_2, start - 1, top, w, o_lane, 0.0, STRIPS, LANES)
    if TANGENT:
        d_left = tl.load(p_left + LANES, mask=m_left, other=0.0)
        d_diagonal = _from_above(p_lanes_4, p_edge_4, start - 1, top, w, o_lane, 0.0, STRIPS, LANES)
    q_1, q_2, q_3, q_4 = _read_planes(p_shares, slot, start, o_r, o_i, h, w, H, plane, LOCAL)
    q_5, q_6, q_7, q_8 = _read_planes(p_shares, slot_1, start + 1, o_r, o_i, h, w, H, plane, LOCAL)
    if TANGENT:
        d_1, d_2, d_3, d_4 = _read_planes(p_slopes, slot, start, o_r, o_i, h, w, H, plane, LOCAL)
        d_5, d_6, d_7, d_8 = _read_planes(p_slopes, slot_1, start + 1, o_r, o_i, h, w, H, plane, LOCAL)
    for t in tl.range(start, stop, num_stages=1):
        q_9, q_10, q_11, q_12 = _read_planes(p_shares, slot_2, t + 2, o_r, o_i, h, w, H, plane, LOCAL)
        if TANGENT:
            d_9, d_10, d_11, d_12 = _read_planes(p_slopes, slot_2, t + 2, o_r, o_i, h, w, H, plane, LOCAL)
        m_there = (o_r < h) & (t >= o_r) & (t - o_r < w)
        o_place = slot * H + o_i
        if LOCAL:
            b_match = tl.load(p_matches + o_place, mask=m_there, other=float("-inf"))
            b_ended = tl.exp((b_match - total).to(NARROW))
            if TANGENT:
                d_match = tl.load(p_d_matches + o_place, mask=m_there, other=0.0) - tl.load(p_d_total + i_b)
                d_ended = b_ended * tl.where(b_ended > 0, d_match, 0.0).to(NARROW)
        b_above = _from_above(p_lanes, p_edge, t, top, w, o_lane, 0.0, STRIPS, LANES)
        b_later = _from_above(p_lanes_2, p_edge_2, t, top, w, o_lane, 0.0, STRIPS, LANES)
        b_visit = b_above + b_diagonal + b_left
        if not LOCAL:
            b_visit = tl.where(o_r + t == 0, 1.0, b_visit).to(NARROW)
        b_1, b_2, b_3 = b_visit * q_1, b_visit * q_2, b_visit * q_3
        b_onward = b_1
        if LOCAL:
            b_1 += b_ended
            b_onward = b_1 * q_4
        o_write = (t % 2) * LANES + o_lane
        tl.store(p_lanes + o_write, b_2)
        tl.store(p_lanes_2 + o_write, b_onward)
        m_edge = m_there & (o_lane == LANES - 1)
        if STRIPS:
            tl.store(p_edge + t - o_r, b_2, mask=m_edge)
            tl.store(p_edge_2 + t - o_r, b_onward, mask=m_edge)
        b_diagonal, b_left = b_later, b_3
        if TANGENT:
            d_above = _from_above(p_lanes_3, p_edge_3, t, top, w, o_lane, 0.0, STRIPS, LANES)
            d_later = _from_above(p_lanes_4, p_edge_4, t, top, w, o_lane, 0.0, STRIPS, LANES)
            d_visit = d_above + d_diagonal + d_left
            d_new_1 = d_visit * q_1 + b_visit * q_1 * d_1
            d_new_2 = d_visit * q_2 + b_2 * d_2
            d_new_3 = d_visit * q_3 + b_3 * d_3
            d_onward = d_new_1
            if LOCAL:
                d_new_1 += d_ended
                d_onward = d_new_1 * q_4 + b_onward * d_4
            tl.store(p_lanes_3 + o_write, d_new_2)
            tl.store(p_lanes_4 + o_write, d_onward)
            if STRIPS:
                tl.store(p_edge_3 + t - o_r, d_new_2, mask=m_edge)
                tl.store(p_edge_4 + t - o_r, d_onward, mask=m_edge)
            tl.store(p_slopes + o_place, d_visit if CELLS else d_new_1, mask=m_there)
            if not CELLS:
                tl.store(p_slopes + plane + o_place, d_new_2, mask=m_there)
                tl.store(p_slopes + 2 * plane + o_place, d_new_3, mask=m_there)
            d_diagonal, d_left = d_later, d_new_3
            d_1, d_2, d_3, d_4, d_5, d_6, d_7, d_8 = d_5, d_6, d_7, d_8, d_9, d_10, d_11, d_12
        else:
            tl.store(p_shares + o_place, b_visit if CELLS else b_1, mask=m_there)
            if not CELLS:
                tl.store(p_shares + plane + o_place, b_2, mask=m_there)
                tl.store(p_shares + 2 * plane + o_place, b_3, mask=m_there)
        tl.debug_barrier()
        slot, slot_1, slot_2 = slot_1, slot_2, tl.where(slot_2 == 0, W - 1, slot_2 - 1)
        q_1, q_2, q_3, q_4, q_5, q_6, q_7, q_8 = q_5, q_6, q_7, q_8, q_9, q_10, q_11, q_12
    if STRIPS:
        tl.store(p_left, b_left)
        if TANGENT:
            tl.store(p_left + LANES, d_left)
