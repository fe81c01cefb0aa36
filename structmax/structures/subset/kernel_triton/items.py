"""What becomes of each item: the sum over the counts it comes with, and draws."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logarithms import WIDE
from structmax.structures.subset.kernel_triton.walk import usable


@triton.jit(do_not_specialize=["size"])
def collect(
    p_cells, p_lengths, p_value, p_out, n, size, EXACT: tl.constexpr, ITEMS: tl.constexpr, COUNTS: tl.constexpr
):  # fmt: skip
    """(B, n, size + 1) summed over the counts: NaN where the value is NaN, 0 where it is −inf, and behind the items."""
    blocks = tl.cdiv(n, ITEMS)
    i_b = (tl.program_id(0) // blocks).to(tl.int64)
    o_item = (tl.program_id(0) % blocks) * ITEMS + tl.arange(0, ITEMS)[:, None]
    m_item = o_item < usable(p_lengths, i_b + o_item * 0, o_item >= 0, size, EXACT)
    p_row = p_cells + (i_b * n + o_item) * (size + 1)
    b_sum = tl.zeros((ITEMS, COUNTS), p_cells.dtype.element_ty)
    for start in tl.range(0, size + 1, COUNTS, num_stages=1):
        o_count = start + tl.arange(0, COUNTS)[None, :]
        b_sum += tl.load(p_row + o_count, mask=m_item & (o_count <= size), other=0.0)
    value = tl.load(p_value + i_b)
    b_out = tl.where(value == float("-inf"), 0.0, tl.sum(b_sum, 1, keep_dims=True))
    b_out = tl.where(value == value, b_out, value)
    tl.store(p_out + i_b * n + o_item, tl.where(m_item, b_out, 0.0), mask=o_item < n)


@triton.jit(do_not_specialize=["size", "paths"])
def draw(
    p_x, p_lengths, p_value, p_rows, p_noise, p_out, n, size, paths, draws, numbers,
    EXACT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Subsets, one lane for each: from the last item to the first, in by the share of the subsets that have it."""
    o_path = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_path = o_path < paths
    o_b = o_path // draws
    p_rows += o_b * (n + 1) * (size + 1)
    o_length = usable(p_lengths, o_b, m_path, size, EXACT)
    b_value = tl.load(p_value + o_b, mask=m_path, other=float("-inf"))
    m_going = m_path & (b_value > float("-inf"))
    p_noise += o_path * numbers
    o_wanted = tl.where(m_going, size, 0)
    o_used = tl.zeros((LANES,), tl.int32)
    if not EXACT:
        # how many: the first count that brings the sum above its share
        uniform = tl.load(p_noise, mask=m_going, other=0.0).to(WIDE)
        p_last = p_rows + o_length.to(tl.int64) * (size + 1)
        b_top = tl.full((LANES,), float("-inf"), WIDE)
        for count in range(0, size + 1):
            b_top = tl.maximum(b_top, tl.load(p_last + count, mask=m_going, other=0.0))
        b_mass = tl.zeros((LANES,), WIDE)
        for count in range(0, size + 1):
            b_mass += tl.exp(tl.load(p_last + count, mask=m_going, other=0.0) - b_top)
        b_goal = uniform * b_mass
        b_mass = tl.zeros((LANES,), WIDE)
        o_wanted = tl.zeros((LANES,), tl.int32)
        for count in range(0, size + 1):
            b_weight = tl.exp(tl.load(p_last + count, mask=m_going, other=0.0) - b_top)
            o_wanted = tl.where((b_weight > 0) & (b_mass <= b_goal), count, o_wanted)
            b_mass += b_weight
        o_wanted = tl.where(m_going, o_wanted, 0)
        o_used += 1
    for step in tl.range(0, n, num_stages=1):
        item = n - 1 - step
        m_item = item < o_length
        m_open = m_item & (o_wanted > 0)
        # a number is drawn where the counts alone leave a choice
        m_choice = m_open & (o_wanted <= item)
        p_row = p_rows + tl.full((LANES,), 0, tl.int64) + item * (size + 1).to(tl.int64) + o_wanted
        b_x = tl.load(p_x + o_b * n + item, mask=m_choice, other=0.0).to(WIDE)
        b_with = tl.load(p_row - 1, mask=m_choice, other=0.0)
        b_all = tl.load(p_row + (size + 1), mask=m_choice, other=0.0)
        uniform = tl.load(p_noise + o_used, mask=m_choice, other=0.0).to(WIDE)
        b_out = m_open & ((o_wanted > item) | (uniform < tl.exp(b_x + b_with - b_all)))
        o_used += m_choice.to(tl.int32)
        o_wanted -= b_out.to(tl.int32)
        b_one = tl.where(b_out, 1.0, 0.0).to(b_value.dtype)
        tl.store(p_out + o_path * n + item, tl.where(m_item & (b_value != b_value), b_value, b_one), mask=m_path)
