"""The recursion over the items: one program for an instance and a direction, one lane for each count."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE, plus


@triton.jit
def usable(p_lengths, o_b, m_wanted, size, EXACT: tl.constexpr):
    """How many of the first items may be in a subset: none if none is wanted, or more than there are."""
    o_length = tl.load(p_lengths + o_b, mask=m_wanted, other=0).to(tl.int32)
    fewest = size if EXACT else 1
    return tl.where((size > 0) & (o_length >= fewest), o_length, 0)


@triton.jit(do_not_specialize=["B", "size"])
def walk(
    p_x, p_d_x, p_lengths, p_value, p_total, p_d_total, p_rows, p_d_rows, p_lanes, p_edge, B, n, size,
    EXACT: tl.constexpr, TANGENT: tl.constexpr, KEEP: tl.constexpr, STRIPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """log of the weight of all subsets with c of the items behind i; and, by further programs, of those before it.

    KEEP stores the rows: (2, B, n + 1, size + 1). Unless EXACT the items behind are at most c.
    A lane takes its neighbour's count from memory that stays in the cache of the multiprocessor. Counts beyond the
    lanes are walked strip by strip; `p_edge` hands the last count of a strip to the next.
    """
    NARROW: tl.constexpr = p_x.dtype.element_ty
    i_program = tl.program_id(0)
    is_prefix = i_program // B
    i_b = (i_program % B).to(tl.int64)
    # as a block of one: the load is masked
    length = tl.max(usable(p_lengths, i_b + tl.arange(0, 1), tl.arange(0, 1) == 0, size, EXACT), 0)
    p_x += i_b * n
    p_lanes += i_program.to(tl.int64) * 4 * LANES
    if TANGENT:
        p_d_x += i_b * n
    if STRIPS:
        p_edge += i_program.to(tl.int64) * 4 * (n + 1)
    if KEEP:
        p_rows += i_program.to(tl.int64) * (n + 1) * (size + 1)
    if TANGENT:
        p_d_rows += i_program.to(tl.int64) * (n + 1) * (size + 1)
    o_lane = tl.arange(0, LANES)
    # item `step` from the end, or from the start
    first = tl.where(is_prefix > 0, 0, length - 1)
    way = tl.where(is_prefix > 0, 1, -1)
    b_goal, d_goal = tl.zeros((LANES,), WIDE), tl.zeros((LANES,), WIDE)
    for bottom in tl.range(0, size + 1, LANES, num_stages=1):
        o_count = bottom + o_lane
        m_count = o_count <= size
        # No items: none are in. At most c of them are, too.
        highest = 0 if EXACT else size
        b_row = tl.where(o_count <= tl.where(is_prefix > 0, 0, highest), 0.0, float("-inf")).to(WIDE)
        d_row = tl.zeros((LANES,), WIDE)
        strip = (bottom // LANES) % 2
        x = tl.load(p_x + first, mask=length > 0, other=0.0)
        x_next = tl.load(p_x + first + way, mask=length > 1, other=0.0)
        d_x = tl.zeros_like(x)
        d_x_next = tl.zeros_like(x)
        if TANGENT:
            d_x = tl.load(p_d_x + first, mask=length > 0, other=0.0)
            d_x_next = tl.load(p_d_x + first + way, mask=length > 1, other=0.0)
        for step in tl.range(0, length, num_stages=1):
            x_far = tl.load(p_x + first + way * (step + 2), mask=step + 2 < length, other=0.0)
            # before this item, or behind it
            o_place = (first + way * step + (1 - is_prefix)).to(tl.int64) * (size + 1) + o_count
            p_turn = p_lanes + (step % 2) * LANES + o_lane
            tl.store(p_turn, b_row)
            if KEEP:
                tl.store(p_rows + o_place, b_row, mask=m_count)
            if TANGENT:
                tl.store(p_turn + 2 * LANES, d_row)
                tl.store(p_d_rows + o_place, d_row, mask=m_count)
            if STRIPS:
                m_last = o_lane == LANES - 1
                tl.store(p_edge + strip * (n + 1) + step + o_lane * 0, b_row, mask=m_last)
                if TANGENT:
                    tl.store(p_edge + (2 + strip) * (n + 1) + step + o_lane * 0, d_row, mask=m_last)
            tl.debug_barrier()
            b_fewer = tl.load(p_turn - 1, mask=o_lane > 0, other=float("-inf"))
            d_fewer = tl.zeros((LANES,), WIDE)
            if TANGENT:
                d_fewer = tl.load(p_turn - 1 + 2 * LANES, mask=o_lane > 0, other=0.0)
            if STRIPS:
                m_edge = o_lane < tl.where(bottom > 0, 1, 0)
                p_before = p_edge + (1 - strip) * (n + 1) + step + o_lane * 0
                b_fewer = tl.where(m_edge, tl.load(p_before, mask=m_edge, other=float("-inf")), b_fewer)
                if TANGENT:
                    d_edge = tl.load(p_before + 2 * (n + 1), mask=m_edge, other=0.0)
                    d_fewer = tl.where(m_edge, d_edge, d_fewer)
            weight = tl.where(x < float("inf"), x, float("nan")).to(WIDE)
            # none of no items is nothing to add to, not even what is not a number
            b_taken = tl.where(o_count > 0, b_fewer + weight, float("-inf"))
            b_row, d_row = plus(b_row, b_taken, d_row, d_fewer + d_x.to(WIDE), False, NARROW)
            x, x_next = x_next, x_far
            if TANGENT:
                d_x = d_x_next
                d_x_next = tl.load(p_d_x + first + way * (step + 2), mask=step + 2 < length, other=0.0)
        if KEEP:
            o_place = (tl.where(is_prefix > 0, length, 0)).to(tl.int64) * (size + 1) + o_count
            tl.store(p_rows + o_place, b_row, mask=m_count)
        b_goal, d_goal = tl.where(o_count == size, b_row, b_goal), tl.where(o_count == size, d_row, d_goal)
        # the next strip uses the same memory
        tl.debug_barrier()
    if is_prefix == 0:
        m_goal = o_lane == size % LANES
        total = tl.sum(tl.where(m_goal, b_goal, 0.0), 0)
        tl.store(p_total + i_b, total)
        tl.store(p_value + i_b, total.to(NARROW))
        if TANGENT:
            tl.store(p_d_total + i_b, tl.sum(tl.where(m_goal, d_goal, 0.0), 0))
