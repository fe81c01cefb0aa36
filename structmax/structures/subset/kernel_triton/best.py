"""The best subset, and the best with each item: one program for an instance.

The score of the last item that is in is found bit by bit, from the highest: as many items as may be in are no worse.
"""

import triton
import triton.language as tl

from structmax.structures.subset.kernel_triton.walk import length_of


@triton.jit
def _key(b_x, WHOLE: tl.constexpr):
    """Unsigned numbers in the order of the scores: the sign bit turned for what is positive, all for the rest."""
    b_bits = tl.where(b_x == 0, 0.0, b_x).to(WHOLE, bitcast=True)
    b_sign = tl.full((1,), 1, WHOLE) << (WHOLE.primitive_bitwidth - 1)
    return tl.where(b_x < 0, ~b_bits, b_bits + b_sign)


@triton.jit
def _inside(b_x, b_key, last, spare, lowest):
    """Which items are in, and how many are as good as the last one: the first `spare` of these are."""
    m_tied = b_key == last
    o_tied = m_tied.to(tl.int32)
    m_in = (b_key > last) | (m_tied & (tl.cumsum(o_tied, 0) <= spare))
    return m_in & (b_x > lowest), tl.sum(o_tied, 0)


@triton.jit(do_not_specialize=["size"])
def take_best(
    p_x, p_lengths, p_out, n, size, EXACT: tl.constexpr, THROUGH: tl.constexpr, ITEMS: tl.constexpr,
):  # fmt: skip
    """1 for each item of the best subset, the first of equals; THROUGH: the score of the best subset with the item.

    Sums are float64, whatever the scores are; what their dtype cannot hold is −inf.
    """
    WORK: tl.constexpr = p_x.dtype.element_ty
    WHOLE: tl.constexpr = tl.uint64 if WORK == tl.float64 else tl.uint32
    i_b = tl.program_id(0).to(tl.int64)
    length = length_of(p_lengths, i_b, size, EXACT)
    p_x += i_b * n
    p_out += i_b * n
    o_lane = tl.arange(0, ITEMS)
    lowest = float("-inf") if EXACT else 0.0
    finite = tl.sum(tl.zeros((1,), tl.int32), 0)
    broken = finite
    for first in range(0, length, ITEMS):
        b_x = tl.load(p_x + first + o_lane, mask=first + o_lane < length, other=float("-inf"))
        finite += tl.sum((b_x != float("-inf")).to(tl.int32), 0)
        broken += tl.sum((~(b_x < float("inf"))).to(tl.int32), 0)

    bit = tl.sum(tl.full((1,), 1, WHOLE) << (WHOLE.primitive_bitwidth - 1), 0)
    last = bit ^ bit
    above = finite * 0
    for _ in range(0, WHOLE.primitive_bitwidth):
        trial = last | bit
        count = finite * 0
        for first in range(0, length, ITEMS):
            b_x = tl.load(p_x + first + o_lane, mask=first + o_lane < length, other=float("-inf"))
            count += tl.sum((_key(b_x, WHOLE) >= trial).to(tl.int32), 0)
        last = tl.where(count >= size, trial, last)
        bit = bit >> 1
    for first in range(0, length, ITEMS):
        b_x = tl.load(p_x + first + o_lane, mask=first + o_lane < length, other=float("-inf"))
        above += tl.sum((_key(b_x, WHOLE) > last).to(tl.int32), 0)

    total = tl.sum(tl.zeros((1,), tl.float64), 0)
    worst = total + float("inf")
    taken, spare = finite * 0, size - above
    for first in range(0, length, ITEMS):
        b_x = tl.load(p_x + first + o_lane, mask=first + o_lane < length, other=float("-inf"))
        m_in, tied = _inside(b_x, _key(b_x, WHOLE), last, spare, lowest)
        b_wide = b_x.to(tl.float64)
        total += tl.sum(tl.where(m_in, b_wide, 0.0), 0)
        worst = tl.minimum(worst, tl.min(tl.where(m_in, b_wide, float("inf")), 0))
        taken += tl.sum(m_in.to(tl.int32), 0)
        spare -= tied

    feasible = finite >= (size if EXACT else 0)
    others = total
    if THROUGH:
        others = tl.where((taken == size) & (taken > 0), total - worst, total)
    else:
        feasible = feasible & (total.to(WORK) > float("-inf"))
    spare = size - above
    for first in range(0, n, ITEMS):
        o_item = first + o_lane
        m_item = o_item < length
        b_x = tl.load(p_x + o_item, mask=m_item, other=float("-inf"))
        m_in, tied = _inside(b_x, _key(b_x, WHOLE), last, spare, lowest)
        spare -= tied
        if THROUGH:
            b_out = tl.where(m_in, total, others + b_x.to(tl.float64)).to(WORK)
            b_out = tl.where(feasible, b_out, float("-inf"))
        else:
            b_out = (m_in & feasible).to(WORK)
        b_out = tl.where(m_item & (broken > 0), float("nan"), b_out)
        tl.store(p_out + o_item, b_out, mask=o_item < n)
