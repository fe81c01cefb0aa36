"""The recursions over the items: one program for an instance, one lane for each count.

A lane takes what its neighbour hands on from memory that stays in the cache of the multiprocessor. What does not depend
on the step before is read two steps ahead. Counts beyond the lanes are walked strip by strip; `p_edge` hands what
leaves the last lane of a strip to the next, with one line to read and one to write.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE, plus


@triton.jit
def usable(p_lengths, o_b, m_wanted, size, EXACT: tl.constexpr):
    """How many of the first items may be in a subset: none if none is wanted, or more than there are."""
    o_length = tl.load(p_lengths + o_b, mask=m_wanted, other=0).to(tl.int32)
    fewest = size if EXACT else 1
    return tl.where((size > 0) & (o_length >= fewest), o_length, 0)


@triton.jit
def length_of(p_lengths, i_b, size, EXACT: tl.constexpr):
    """The same of one instance."""
    o_one = tl.arange(0, 1)
    return tl.max(usable(p_lengths, i_b + o_one, o_one == 0, size, EXACT), 0)


@triton.jit(do_not_specialize=["size"])
def forward(
    p_x, p_d_x, p_lengths, p_value, p_total, p_d_total, p_rows, p_odds, p_slopes, p_last, p_d_last, p_lanes, p_edge,
    n, size,
    EXACT: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr, SHARES: tl.constexpr, STRIPS: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """log of the weight of all subsets: `p_value`, and as float64 `p_total`.

    ROWS stores the logarithms of those with c of the first i items, (B, n + 1, size + 1). SHARES stores the last row,
    and the logarithm of the odds that a subset with c of the first i + 1 items has the last of them, (B, n, size + 1);
    TANGENT their derivatives.
    """
    NARROW: tl.constexpr = p_x.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    length = length_of(p_lengths, i_b, size, EXACT)
    width = (size + 1).to(tl.int64)
    p_x += i_b * n
    p_lanes += i_b * 4 * LANES
    if TANGENT:
        p_d_x += i_b * n
    if STRIPS:
        p_edge += i_b * 4 * n
    o_lane = tl.arange(0, LANES)
    b_never, b_zero = tl.full((LANES,), float("-inf"), WIDE), tl.zeros((LANES,), WIDE)
    b_goal, d_goal = b_never, b_zero
    for bottom in tl.range(0, size + 1, LANES, num_stages=1):
        o_count = bottom + o_lane
        m_count = o_count <= size
        b_row, d_row = tl.where(o_count > 0, b_never, b_zero), b_zero
        line = (bottom // LANES) % 2
        x = tl.load(p_x, mask=length > 0, other=0.0)
        x_next = tl.load(p_x + 1, mask=length > 1, other=0.0)
        d_x = tl.zeros_like(x)
        if TANGENT:
            d_x = tl.load(p_d_x, mask=length > 0, other=0.0)
            d_x_next = tl.load(p_d_x + 1, mask=length > 1, other=0.0)
        for item in tl.range(0, length, num_stages=1):
            x_far = tl.load(p_x + item + 2, mask=item + 2 < length, other=0.0)
            if TANGENT:
                d_x_far = tl.load(p_d_x + item + 2, mask=item + 2 < length, other=0.0)
            p_turn = p_lanes + (item % 2) * LANES + o_lane
            tl.store(p_turn, b_row)
            if ROWS:
                tl.store(p_rows + (i_b * (n + 1) + item) * width + o_count, b_row, mask=m_count)
            if TANGENT:
                tl.store(p_turn + 2 * LANES, d_row)
            if STRIPS:
                p_out = p_edge + line * n + item + o_lane * 0
                tl.store(p_out, b_row, mask=o_lane == LANES - 1)
                if TANGENT:
                    tl.store(p_out + 2 * n, d_row, mask=o_lane == LANES - 1)
            tl.debug_barrier()
            b_fewer = tl.load(p_turn - 1, mask=o_lane > 0, other=float("-inf"))
            d_fewer = b_zero
            if TANGENT:
                d_fewer = tl.load(p_turn - 1 + 2 * LANES, mask=o_lane > 0, other=0.0)
            if STRIPS:
                m_edge = o_lane < tl.where(bottom > 0, 1, 0)
                p_in = p_edge + (1 - line) * n + item + o_lane * 0
                b_fewer = tl.where(m_edge, tl.load(p_in, mask=m_edge, other=float("-inf")), b_fewer)
                if TANGENT:
                    d_fewer = tl.where(m_edge, tl.load(p_in + 2 * n, mask=m_edge, other=0.0), d_fewer)
            weight = tl.where(x < float("inf"), x, float("nan")).to(WIDE)
            # the empty set takes nothing, not even what is not a number
            b_taken = tl.where(o_count > 0, b_fewer + weight, float("-inf"))
            d_taken = d_fewer + d_x.to(WIDE)
            if SHARES:
                o_cell = (i_b * n + item) * width + o_count
                b_odds = tl.where(b_taken == float("-inf"), b_taken, b_taken - b_row)
                tl.store(p_odds + o_cell, b_odds.to(NARROW), mask=m_count)
                if TANGENT:
                    tl.store(p_slopes + o_cell, (d_taken - d_row).to(NARROW), mask=m_count)
            b_row, d_row, _ = plus(b_row, b_taken, d_row, d_taken, NARROW)
            x, x_next = x_next, x_far
            if TANGENT:
                d_x, d_x_next = d_x_next, d_x_far
        if ROWS:
            tl.store(p_rows + (i_b * (n + 1) + length) * width + o_count, b_row, mask=m_count)
        if SHARES:
            tl.store(p_last + i_b * width + o_count, b_row, mask=m_count)
            if TANGENT:
                tl.store(p_d_last + i_b * width + o_count, d_row, mask=m_count)
        if EXACT:
            b_goal, d_goal = tl.where(o_count == size, b_row, b_goal), tl.where(o_count == size, d_row, d_goal)
        else:
            b_goal, d_goal, _ = plus(b_goal, tl.where(m_count, b_row, b_never), d_goal, d_row, NARROW)
        # the next strip uses the same memory
        tl.debug_barrier()
    if EXACT:
        m_goal = o_lane == size % LANES
        total = tl.sum(tl.where(m_goal, b_goal, 0.0), 0)
        d_total = tl.sum(tl.where(m_goal, d_goal, 0.0), 0)
    else:
        # the empty set has 0
        highest = tl.max(b_goal, 0)
        b_weight = tl.exp(b_goal - highest)
        total = highest + tl.log(tl.sum(b_weight, 0))
        d_total = tl.sum(tl.where(b_weight > 0, b_weight * d_goal, 0.0), 0) / tl.sum(b_weight, 0)
    tl.store(p_total + i_b, total)
    tl.store(p_value + i_b, total.to(NARROW))
    if TANGENT:
        tl.store(p_d_total + i_b, d_total)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit(do_not_specialize=["size"])
def backward(
    p_lengths, p_total, p_odds, p_slopes, p_last, p_d_last, p_lanes, p_edge, n, size,
    EXACT: tl.constexpr, TANGENT: tl.constexpr, STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """In place of the odds, how probable it is that c of the first i + 1 items are in and the last of them is.

    With TANGENT its derivative, in place of the slopes. Lanes have the counts from `size` down.
    """
    NARROW: tl.constexpr = p_odds.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    length = length_of(p_lengths, i_b, size, EXACT)
    width = (size + 1).to(tl.int64)
    p_odds += i_b * n * width
    p_last += i_b * width
    if TANGENT:
        p_slopes += i_b * n * width
        p_d_last += i_b * width
    p_lanes += i_b * 4 * LANES
    if STRIPS:
        p_edge += i_b * 4 * n
    o_lane = tl.arange(0, LANES)
    # how probable each count is: scaled by a sum of its own, so that it is a distribution whatever was rounded
    total = tl.load(p_total + i_b)
    mass, d_mass = tl.zeros_like(total), tl.zeros_like(total)
    if not EXACT:
        for bottom in tl.range(0, size + 1, LANES, num_stages=1):
            o_count = bottom + o_lane
            m_count = o_count <= size
            b_weight = tl.exp(tl.load(p_last + o_count, mask=m_count, other=float("-inf")) - total)
            mass += tl.sum(b_weight, 0)
            if TANGENT:
                d_last = tl.load(p_d_last + o_count, mask=m_count, other=0.0)
                d_mass += tl.sum(tl.where(b_weight > 0, b_weight * d_last, 0.0), 0)
    b_zero = tl.zeros((LANES,), NARROW)
    for below in tl.range(0, size + 1, LANES, num_stages=1):
        o_count = size - below - o_lane
        m_count = o_count >= 0
        line = (below // LANES) % 2
        d_here = b_zero
        if EXACT:
            b_here = tl.where(o_count == size, 1.0, 0.0).to(NARROW)
        else:
            b_weight = tl.exp(tl.load(p_last + o_count, mask=m_count, other=float("-inf")) - total) / mass
            b_here = b_weight.to(NARROW)
            if TANGENT:
                d_last = tl.load(p_d_last + o_count, mask=m_count, other=0.0) - d_mass / mass
                d_here = tl.where(b_weight > 0, b_weight * d_last, 0.0).to(NARROW)
        p_cell = p_odds + (length - 1) * width + o_count
        b_odds = tl.load(p_cell, mask=o_count >= tl.where(length > 0, 0, size + 1), other=0.0)
        b_odds_next = tl.load(p_cell - width, mask=o_count >= tl.where(length > 1, 0, size + 1), other=0.0)
        if TANGENT:
            p_slope = p_slopes + (length - 1) * width + o_count
            b_slope = tl.load(p_slope, mask=o_count >= tl.where(length > 0, 0, size + 1), other=0.0)
            b_slope_next = tl.load(p_slope - width, mask=o_count >= tl.where(length > 1, 0, size + 1), other=0.0)
        for step in tl.range(0, length, num_stages=1):
            o_cell = (length - 1 - step) * width + o_count
            m_far = o_count >= tl.where(step + 2 < length, 0, size + 1)
            b_odds_far = tl.load(p_odds + o_cell - 2 * width, mask=m_far, other=0.0)
            b_in, b_out = _sigmoid(b_odds), _sigmoid(-b_odds)
            b_taken, b_left = b_here * b_in, b_here * b_out
            p_turn = p_lanes + (step % 2) * LANES + o_lane
            p_to, p_from = p_edge, p_edge
            tl.store(p_turn, b_taken)
            if STRIPS:
                p_to, p_from = p_edge + line * n + step + o_lane * 0, p_edge + (1 - line) * n + step + o_lane * 0
                tl.store(p_to, b_taken, mask=o_lane == LANES - 1)
            d_taken, d_left = b_zero, b_zero
            if TANGENT:
                b_slope_far = tl.load(p_slopes + o_cell - 2 * width, mask=m_far, other=0.0)
                b_change = b_taken * b_out * b_slope
                d_taken, d_left = d_here * b_in + b_change, d_here * b_out - b_change
                tl.store(p_slopes + o_cell, d_taken, mask=m_count)
                tl.store(p_turn + 2 * LANES, d_taken)
                if STRIPS:
                    tl.store(p_to + 2 * n, d_taken, mask=o_lane == LANES - 1)
            else:
                tl.store(p_odds + o_cell, b_taken, mask=m_count)
            tl.debug_barrier()
            b_more = tl.load(p_turn - 1, mask=o_lane > 0, other=0.0)
            if STRIPS:
                m_edge = o_lane < tl.where(below > 0, 1, 0)
                b_more = tl.where(m_edge, tl.load(p_from, mask=m_edge, other=0.0), b_more)
            b_here = b_left + b_more
            b_odds, b_odds_next = b_odds_next, b_odds_far
            if TANGENT:
                d_more = tl.load(p_turn - 1 + 2 * LANES, mask=o_lane > 0, other=0.0)
                if STRIPS:
                    d_more = tl.where(m_edge, tl.load(p_from + 2 * n, mask=m_edge, other=0.0), d_more)
                d_here = d_left + d_more
                b_slope, b_slope_next = b_slope_next, b_slope_far
        # the next strip uses the same memory
        tl.debug_barrier()
