"""The recursion backward: from shares of moves to probabilities; walk.py says who does what."""

import triton
import triton.language as tl

from structmax.structures.monotone_alignment.kernel_triton.walk import from_above, read_edge, segment


@triton.jit
def _read_planes(p_x, slot, o_r, o_c, h, w, H, plane, LOCAL: tl.constexpr):
    """Three planes, or four, at places."""
    m_there = (o_r < h) & (o_c >= 0) & (o_c < w)
    p_x += slot * H + (h - 1 - o_r)
    b_1, b_2 = tl.load(p_x, mask=m_there, other=0.0), tl.load(p_x + plane, mask=m_there, other=0.0)
    b_3 = tl.load(p_x + 2 * plane, mask=m_there, other=0.0)
    b_4 = b_3
    if LOCAL:
        b_4 = tl.load(p_x + 3 * plane, mask=m_there, other=0.0)
    return b_1, b_2, b_3, b_4


@triton.jit(do_not_specialize=["B", "first", "wave"])
def backward(
    p_shares, p_slopes, p_matches, p_d_matches, p_total, p_d_total, p_rows, p_columns, p_state, p_edge,
    B, H, W, first, wave,
    CELLS: tl.constexpr, LOCAL: tl.constexpr, TANGENT: tl.constexpr, LANES: tl.constexpr,
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
    strip, top, start, stop = segment(h, w, first, wave, LANES)
    o_lane = tl.arange(0, LANES)
    o_r = top + o_lane
    o_c = start - o_lane
    p_state += (i_b * tl.cdiv(H, LANES) + strip) * 6 * LANES + o_lane
    p_edge += i_b * 2 * W
    # the rows of the anti-diagonals from here on
    last = h + w - 2 - top - start + 2 * W
    slot, slot_1, slot_2, slot_3, slot_4 = last % W, (last - 1) % W, (last - 2) % W, (last - 3) % W, (last - 4) % W
    # as the steps before have left it, or nothing: what goes down, down along the diagonal a step later, and right
    m_state = o_lane < tl.where((start > 0) & (start < stop), LANES, 0)
    b_down = tl.load(p_state, mask=m_state, other=0.0)
    b_onward = tl.load(p_state + LANES, mask=m_state, other=0.0)
    b_left = tl.load(p_state + 2 * LANES, mask=m_state, other=0.0)
    b_edge = read_edge(p_edge, top, start, stop, w, o_lane, 0.0)
    if TANGENT:
        d_down = tl.load(p_state + 3 * LANES, mask=m_state, other=0.0)
        d_onward = tl.load(p_state + 4 * LANES, mask=m_state, other=0.0)
        d_left = tl.load(p_state + 5 * LANES, mask=m_state, other=0.0)
        d_edge = read_edge(p_edge + W, top, start, stop, w, o_lane, 0.0)
    q_1, q_2, q_3, q_4 = _read_planes(p_shares, slot, o_r, o_c, h, w, H, plane, LOCAL)
    q_5, q_6, q_7, q_8 = _read_planes(p_shares, slot_1, o_r, o_c + 1, h, w, H, plane, LOCAL)
    q_9, q_10, q_11, q_12 = _read_planes(p_shares, slot_2, o_r, o_c + 2, h, w, H, plane, LOCAL)
    q_13, q_14, q_15, q_16 = _read_planes(p_shares, slot_3, o_r, o_c + 3, h, w, H, plane, LOCAL)
    if TANGENT:
        d_1, d_2, d_3, d_4 = _read_planes(p_slopes, slot, o_r, o_c, h, w, H, plane, LOCAL)
        d_5, d_6, d_7, d_8 = _read_planes(p_slopes, slot_1, o_r, o_c + 1, h, w, H, plane, LOCAL)
        d_9, d_10, d_11, d_12 = _read_planes(p_slopes, slot_2, o_r, o_c + 2, h, w, H, plane, LOCAL)
        d_13, d_14, d_15, d_16 = _read_planes(p_slopes, slot_3, o_r, o_c + 3, h, w, H, plane, LOCAL)
    for step in tl.range(0, stop - start, num_stages=1):
        q_17, q_18, q_19, q_20 = _read_planes(p_shares, slot_4, o_r, o_c + 4, h, w, H, plane, LOCAL)
        if TANGENT:
            d_17, d_18, d_19, d_20 = _read_planes(p_slopes, slot_4, o_r, o_c + 4, h, w, H, plane, LOCAL)
        m_there = (o_r < h) & (o_c >= 0) & (o_c < w)
        o_place = slot * H + (h - 1 - o_r)
        if LOCAL:
            b_match = tl.load(p_matches + o_place, mask=m_there, other=float("-inf"))
            b_ended = tl.exp((b_match - total).to(NARROW))
            if TANGENT:
                d_match = tl.load(p_d_matches + o_place, mask=m_there, other=0.0) - tl.load(p_d_total + i_b)
                d_ended = b_ended * tl.where(b_ended > 0, d_match, 0.0).to(NARROW)
        b_visit = from_above(b_down, b_edge, step, o_lane) + b_left
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
            d_visit = from_above(d_down, d_edge, step, o_lane) + d_left
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
            d_1, d_2, d_3, d_4, d_5, d_6, d_7, d_8 = d_5, d_6, d_7, d_8, d_9, d_10, d_11, d_12
            d_9, d_10, d_11, d_12, d_13, d_14, d_15, d_16 = d_13, d_14, d_15, d_16, d_17, d_18, d_19, d_20
        else:
            tl.store(p_shares + o_place, b_visit if CELLS else b_1, mask=m_there)
            if not CELLS:
                tl.store(p_shares + plane + o_place, b_2, mask=m_there)
                tl.store(p_shares + 2 * plane + o_place, b_3, mask=m_there)
        o_c += 1
        slot, slot_4 = tl.where(slot == 0, W - 1, slot - 1), tl.where(slot_4 == 0, W - 1, slot_4 - 1)
        q_1, q_2, q_3, q_4, q_5, q_6, q_7, q_8 = q_5, q_6, q_7, q_8, q_9, q_10, q_11, q_12
        q_9, q_10, q_11, q_12, q_13, q_14, q_15, q_16 = q_13, q_14, q_15, q_16, q_17, q_18, q_19, q_20
    tl.store(p_state, b_down)
    tl.store(p_state + LANES, b_onward)
    tl.store(p_state + 2 * LANES, b_left)
    if TANGENT:
        tl.store(p_state + 3 * LANES, d_down)
        tl.store(p_state + 4 * LANES, d_onward)
        tl.store(p_state + 5 * LANES, d_left)
