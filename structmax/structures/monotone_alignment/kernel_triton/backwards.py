"""The recursion backward: from shares of moves to probabilities; walk.py says who does what."""

import triton
import triton.language as tl

from structmax.structures.monotone_alignment.kernel_triton.walk import (
    announce_columns,
    await_columns,
    from_above,
    read_edge,
    take_turn,
)


@triton.jit
def _read_planes(p_x, slot, o_r, o_c, h, w, H, W, plane, LOCAL: tl.constexpr, AHEAD: tl.constexpr):
    """Three planes, or four, at the places of each of the next steps; `slot` is the row of the first anti-diagonal."""
    planes = ()
    for k in tl.static_range(AHEAD):
        m_there = (o_r < h) & (o_c + k >= 0) & (o_c + k < w)
        p_place = p_x + (slot * H + (h - 1 - o_r))
        b_1 = tl.load(p_place, mask=m_there, other=0.0)
        b_2 = tl.load(p_place + plane, mask=m_there, other=0.0)
        b_3 = tl.load(p_place + 2 * plane, mask=m_there, other=0.0)
        b_4 = b_3
        if LOCAL:
            b_4 = tl.load(p_place + 3 * plane, mask=m_there, other=0.0)
        planes += ((b_1, b_2, b_3, b_4),)
        slot = tl.where(slot == 0, W - 1, slot - 1)
    return planes


@triton.jit(do_not_specialize=["B"])
def backward(
    p_shares, p_slopes, p_matches, p_d_matches, p_total, p_d_total, p_rows, p_columns, p_edge, p_turns,
    B, H, W,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, TANGENT: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Probabilities of moves in place of their shares, or derivatives in place of the slopes; cells in the first plane.

    How probable a place is: the sum of the moves that leave it.
    """
    i_b, strip, p_written = take_turn(p_turns, B, tl.cdiv(H, LANES))
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
    top = strip * LANES
    steps = tl.where((top < h) & (w > 0), tl.minimum(LANES, h - top) + w - 1, 0)
    o_lane = tl.arange(0, LANES)
    o_r, o_c = top + o_lane, -o_lane
    p_edge += i_b * 2 * W
    # the row of the first anti-diagonal
    slot = (h + w - 2 - top + 2 * W) % W
    # what goes down, down along the diagonal a step later, and right
    b_down = tl.zeros((LANES,), NARROW)
    b_onward, b_left, d_down, d_onward, d_left = b_down, b_down, b_down, b_down, b_down
    q_ahead = _read_planes(p_shares, slot, o_r, o_c, h, w, H, W, plane, LOCAL, AHEAD)
    if TANGENT:
        d_ahead = _read_planes(p_slopes, slot, o_r, o_c, h, w, H, W, plane, LOCAL, AHEAD)
    for start in tl.range(0, steps, LANES, num_stages=1):
        if top > 0:
            await_columns(p_written, tl.minimum(start + LANES, w))
        b_edge = read_edge(p_edge, start, top, w, o_lane, 0.0)
        if TANGENT:
            d_edge = read_edge(p_edge + W, start, top, w, o_lane, 0.0)
        for group in tl.range(0, tl.minimum(LANES, steps - start), AHEAD, num_stages=1):
            q_planes = q_ahead
            slot_ahead = (slot + W - AHEAD % W) % W
            q_ahead = _read_planes(p_shares, slot_ahead, o_r, o_c + AHEAD, h, w, H, W, plane, LOCAL, AHEAD)
            if TANGENT:
                d_planes = d_ahead
                d_ahead = _read_planes(p_slopes, slot_ahead, o_r, o_c + AHEAD, h, w, H, W, plane, LOCAL, AHEAD)
            for k in tl.static_range(AHEAD):
                q_1, q_2, q_3, q_4 = q_planes[k]
                m_there = (o_r < h) & (o_c >= 0) & (o_c < w)
                o_place = slot * H + (h - 1 - o_r)
                if LOCAL:
                    b_match = tl.load(p_matches + o_place, mask=m_there, other=float("-inf"))
                    b_ended = tl.exp((b_match - total).to(NARROW))
                    if TANGENT:
                        d_match = tl.load(p_d_matches + o_place, mask=m_there, other=0.0) - tl.load(p_d_total + i_b)
                        d_ended = b_ended * tl.where(b_ended > 0, d_match, 0.0).to(NARROW)
                b_visit = from_above(b_down, b_edge, group + k, o_lane) + b_left
                if not LOCAL:
                    b_visit = tl.where(o_r + tl.abs(o_c) == 0, 1.0, b_visit).to(NARROW)
                b_1, b_2, b_3 = b_visit * q_1, b_visit * q_2, b_visit * q_3
                b_down, b_onward, b_left = b_2 + b_onward, b_1, b_3
                if LOCAL:
                    b_1 += b_ended
                    b_onward = b_1 * q_4
                m_edge = m_there & (o_lane == LANES - 1)
                tl.store(p_edge + o_c, b_down, mask=m_edge)
                if TANGENT:
                    d_1, d_2, d_3, d_4 = d_planes[k]
                    d_visit = from_above(d_down, d_edge, group + k, o_lane) + d_left
                    d_new_1 = d_visit * q_1 + b_visit * q_1 * d_1
                    d_new_2 = d_visit * q_2 + b_2 * d_2
                    d_new_3 = d_visit * q_3 + b_3 * d_3
                    d_down, d_onward, d_left = d_new_2 + d_onward, d_new_1, d_new_3
                    if LOCAL:
                        d_new_1 += d_ended
                        d_onward = d_new_1 * q_4 + b_onward * d_4
                    tl.store(p_edge + W + o_c, d_down, mask=m_edge)
                    tl.store(p_slopes + o_place, d_visit if CELLS else d_new_1, mask=m_there)
                    if not CELLS:
                        tl.store(p_slopes + plane + o_place, d_new_2, mask=m_there)
                        tl.store(p_slopes + 2 * plane + o_place, d_new_3, mask=m_there)
                else:
                    tl.store(p_shares + o_place, b_visit if CELLS else b_1, mask=m_there)
                    if not CELLS:
                        tl.store(p_shares + plane + o_place, b_2, mask=m_there)
                        tl.store(p_shares + 2 * plane + o_place, b_3, mask=m_there)
                o_c += 1
                slot = tl.where(slot == 0, W - 1, slot - 1)
        if top + LANES < h:
            announce_columns(p_written, start + 1)
