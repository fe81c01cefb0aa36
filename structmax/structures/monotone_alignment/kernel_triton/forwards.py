"""The recursion forward: logarithms of the weights of paths, or the best ones; walk.py says who does what."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE, greater, plus, plus_three
from structmax.structures.monotone_alignment.kernel_triton.walk import (
    FINISHED,
    announce_columns,
    await_columns,
    from_above,
    read_edge,
    take_turn,
)

# Moves in an integer, by two bits each: diagonal, down, right, or none before.
MOVES = tl.constexpr(15)
NONE_BEFORE = tl.constexpr(4**15 - 1)


@triton.jit
def _read(p_x, slot, o_r, o_c, h, w, H, nothing, DOWN: tl.constexpr, RIGHT: tl.constexpr):
    """Scores of the moves by DOWN and RIGHT to places, or of these cells: they lie where moves start."""
    m_there = (o_r >= DOWN) & (o_r < h) & (o_c >= RIGHT) & (o_c < w)
    return tl.load(p_x + (slot * H - DOWN) + o_r, mask=m_there, other=nothing)


@triton.jit
def _read_moves(
    p_first, p_second, p_third, slot, o_r, o_c, h, w, H, W, nothing, CELLS: tl.constexpr, AHEAD: tl.constexpr
):
    """The same of all moves, for each of the next steps; `slot` is the row of the first anti-diagonal."""
    scores = ()
    slot_1 = tl.where(slot == 0, W - 1, slot - 1)
    slot_2 = tl.where(slot_1 == 0, W - 1, slot_1 - 1)
    for k in tl.static_range(AHEAD):
        if CELLS:
            b_first = _read(p_first, slot, o_r, o_c + k, h, w, H, nothing, 0, 0)
            scores += ((b_first, b_first, b_first),)
        else:
            b_first = _read(p_first, slot_2, o_r, o_c + k, h, w, H, nothing, 1, 1)
            b_second = _read(p_second, slot_1, o_r, o_c + k, h, w, H, nothing, 1, 0)
            b_third = _read(p_third, slot_1, o_r, o_c + k, h, w, H, nothing, 0, 1)
            scores += ((b_first, b_second, b_third),)
        slot_2, slot_1, slot = slot_1, slot, tl.where(slot == W - 1, 0, slot + 1)
    return scores


@triton.jit
def _moves(b_1, b_2, b_3, d_1, d_2, d_3, b_diagonal, m_first, LOCAL: tl.constexpr):
    """The last MOVES moves of the best path to a place, the very last in the lowest bits; `d_` are those of its tails.

    The next bit tells of a local path by a match to this place whether it has moves before that.
    """
    o_move = tl.where((b_1 >= b_2) & (b_1 >= b_3), 0, tl.where(b_2 >= b_3, 1, 2))
    o_before = tl.where(o_move == 0, d_1, tl.where(o_move == 1, d_2, d_3)).to(tl.int64, bitcast=True).to(tl.int32)
    if LOCAL:
        o_before = tl.where((o_move == 0) & (b_diagonal <= 0), -1, o_before)
    o_moves = o_move | (o_before << 2) & NONE_BEFORE
    if LOCAL:
        return o_moves | (b_diagonal > 0).to(tl.int32) << (2 * MOVES)
    else:
        return tl.where(m_first, NONE_BEFORE, o_moves)


@triton.jit(do_not_specialize=["B"])
def forward(
    p_first, p_second, p_third, p_d_first, p_d_second, p_d_third, p_rows, p_columns, p_value, p_total, p_d_total,
    p_kept, p_slopes, p_matches, p_d_matches, p_ends, p_edge, p_turns,
    B, H, W,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr,
    KEEP: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """log w of the end: `p_value`, and as float64 `p_total`.

    KEEP stores the shares of the moves to all places: diagonal, down, right, and of local paths those that go on before
    a match; TANGENT their slopes. Of best paths it stores the last moves instead, in one integer. For local paths there
    are `p_matches`, log of those that end by a match, and `p_ends`, their sums over rows.
    """
    NARROW: tl.constexpr = p_first.dtype.element_ty
    # a second number goes from place to place: the tangent, or the last moves
    SECOND: tl.constexpr = TANGENT or (BEST and KEEP)
    strips = tl.cdiv(H, LANES)
    i_b, strip, p_written = take_turn(p_turns, B, strips)
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
    if KEEP:
        p_kept += origin
        if LOCAL:
            p_matches += origin
        if TANGENT:
            p_slopes += origin
            if LOCAL:
                p_d_matches += origin
    top = strip * LANES
    steps = tl.where((top < h) & (w > 0), tl.minimum(LANES, h - top) + w - 1, 0)
    o_lane = tl.arange(0, LANES)
    b_zero = tl.zeros((LANES,), WIDE)
    o_r, o_c = top + o_lane, -o_lane
    p_edge += i_b * 2 * W
    # the row of the first anti-diagonal
    slot = top % W
    b_left, b_diagonal, b_ends = b_zero + float("-inf"), b_zero + float("-inf"), b_zero + float("-inf")
    d_left, d_diagonal, d_ends = b_zero, b_zero, b_zero
    b_ahead = _read_moves(p_first, p_second, p_third, slot, o_r, o_c, h, w, H, W, float("-inf"), CELLS, AHEAD)
    if TANGENT:
        d_ahead = _read_moves(p_d_first, p_d_second, p_d_third, slot, o_r, o_c, h, w, H, W, 0.0, CELLS, AHEAD)
    for start in tl.range(0, steps, LANES, num_stages=1):
        if top > 0:
            await_columns(p_written, tl.minimum(start + LANES, w))
        b_edge = read_edge(p_edge, start, top, w, o_lane, float("-inf"))
        if SECOND:
            d_edge = read_edge(p_edge + W, start, top, w, o_lane, 0.0)
        for group in tl.range(0, tl.minimum(LANES, steps - start), AHEAD, num_stages=1):
            b_scores = b_ahead
            slot_ahead = (slot + AHEAD) % W
            b_ahead = _read_moves(
                p_first, p_second, p_third, slot_ahead, o_r, o_c + AHEAD, h, w, H, W, float("-inf"), CELLS, AHEAD
            )
            if TANGENT:
                d_scores = d_ahead
                d_ahead = _read_moves(
                    p_d_first, p_d_second, p_d_third, slot_ahead, o_r, o_c + AHEAD, h, w, H, W, 0.0, CELLS, AHEAD
                )
            for k in tl.static_range(AHEAD):
                b_1, b_2, b_3 = b_scores[k]
                d_1, d_2, d_3 = b_zero, b_zero, b_zero
                if TANGENT:
                    d_1, d_2, d_3 = d_scores[k]
                b_above = from_above(b_left, b_edge, group + k, o_lane)
                d_above = b_zero
                if SECOND:
                    d_above = from_above(d_left, d_edge, group + k, o_lane)
                m_there = (o_r < h) & (o_c >= 0) & (o_c < w)
                m_first = o_r + tl.abs(o_c) == 0
                o_place = slot * H + o_r
                b_1_tail, b_2_tail, b_3_tail, d_1_tail, d_2_tail, d_3_tail = (
                    b_diagonal, b_above, b_left, d_diagonal, d_above, d_left
                )  # fmt: skip
                if LOCAL:
                    if BEST:
                        b_1_tail = greater(b_diagonal, b_zero)
                    else:
                        b_1_tail, d_1_tail, b_onward = plus(b_zero, b_diagonal, b_zero, d_diagonal, NARROW)
                        if KEEP:
                            tl.store(p_kept + 3 * plane + o_place, b_onward, mask=m_there)
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
                    if KEEP:
                        tl.store(p_matches + o_place, b_1_tail, mask=m_there)
                        if TANGENT:
                            tl.store(p_d_matches + o_place, d_1_tail, mask=m_there)
                if BEST:
                    b_new, d_new = greater(greater(b_1_tail, b_2_tail), b_3_tail), b_zero
                    if KEEP:
                        o_moves = _moves(
                            b_1_tail, b_2_tail, b_3_tail, d_diagonal, d_above, d_left, b_diagonal, m_first, LOCAL
                        )
                        tl.store(p_kept + o_place, o_moves, mask=m_there)
                        d_new = o_moves.to(tl.int64).to(WIDE, bitcast=True)
                else:
                    b_new, d_new, b_share_1, b_share_2, b_share_3 = plus_three(
                        b_1_tail, b_2_tail, b_3_tail, d_1_tail, d_2_tail, d_3_tail, NARROW
                    )
                    if KEEP:
                        tl.store(p_kept + o_place, b_share_1, mask=m_there)
                        tl.store(p_kept + plane + o_place, b_share_2, mask=m_there)
                        tl.store(p_kept + 2 * plane + o_place, b_share_3, mask=m_there)
                        if TANGENT:
                            tl.store(p_slopes + o_place, (d_1_tail - d_new).to(NARROW), mask=m_there)
                            tl.store(p_slopes + plane + o_place, (d_2_tail - d_new).to(NARROW), mask=m_there)
                            tl.store(p_slopes + 2 * plane + o_place, (d_3_tail - d_new).to(NARROW), mask=m_there)
                if not LOCAL:
                    b_new = tl.where(m_first, 0.0, b_new)
                    if TANGENT:
                        d_new = tl.where(m_first, 0.0, d_new)
                if CELLS:
                    b_new += b_1
                    if TANGENT:
                        d_new += d_1
                # behind the last column a row keeps its last number
                b_new = tl.where(o_c < w, b_new, b_left)
                if TANGENT:
                    d_new = tl.where(o_c < w, d_new, d_left)
                m_edge = m_there & (o_lane == LANES - 1)
                tl.store(p_edge + o_c, b_new, mask=m_edge)
                if SECOND:
                    tl.store(p_edge + W + o_c, d_new, mask=m_edge)
                o_c += 1
                slot = tl.where(slot == W - 1, 0, slot + 1)
                b_left, b_diagonal = b_new, b_above
                if SECOND:
                    d_left, d_diagonal = d_new, d_above
        if top + LANES < h:
            announce_columns(p_written, start + 1)
    # of the end: its logarithm and the tangent
    if LOCAL:
        p_ends += i_b * H
        tl.store(p_ends + o_r, b_ends, mask=o_r < h)
        if TANGENT:
            p_d_ends = p_ends + B.to(tl.int64) * H
            tl.store(p_d_ends + o_r, d_ends, mask=o_r < h)
        if strip > 0:
            await_columns(p_written, FINISHED)
        announce_columns(p_written, FINISHED)
        if strip == strips - 1:
            # the last program: all rows, and the empty path
            b_goal, d_goal = tl.where(o_lane == 0, 0.0, float("-inf")).to(WIDE), b_zero
            for row in tl.range(0, h, LANES, num_stages=1):
                o_r = row + o_lane
                b_ends = tl.load(p_ends + o_r, mask=o_r < h, other=float("-inf"), cache_modifier=".cg")
                if BEST:
                    b_goal = greater(b_goal, b_ends)
                else:
                    d_ends = b_zero
                    if TANGENT:
                        d_ends = tl.load(p_d_ends + o_r, mask=o_r < h, other=0.0, cache_modifier=".cg")
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
        m_goal = o_r == tl.where(steps > 0, h - 1, -1)
        b_goal, d_goal = b_left, d_left
        if CELLS:
            # nothing is aligned with nothing, but not with something
            empty = (h == 0) | (w == 0)
            b_goal = tl.where(empty, tl.where(h == w, 0.0, float("-inf")), b_goal)
            m_goal = m_goal | (o_r == tl.where(empty, 0, -1))
        o_goal = i_b + 0 * o_lane
        tl.store(p_total + o_goal, b_goal, mask=m_goal)
        tl.store(p_value + o_goal, b_goal.to(NARROW), mask=m_goal)
        if TANGENT:
            tl.store(p_d_total + o_goal, d_goal, mask=m_goal)
