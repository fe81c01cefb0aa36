"""From a chart down to trees, the best or drawn ones: many walks to a program, a step of each at a time.

What is still to be split are spans side by side, and the next is the leftmost: a walk keeps, for the first leaf of
each, where it ends. That is depth first, left before right, without a stack.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import drawn, first_best
from structmax.structures.binary_tree.kernel_triton.chart import CHART


@triton.jit
def _spoil(p_out, o_walk, n, N, C, COLUMNS: tl.constexpr):
    """NaN for every span of n leaves."""
    for i in range(0, tl.max(n, 0)):
        for start in range(i * C, tl.max(n, 0) * C, COLUMNS):
            o_span = start + tl.arange(0, COLUMNS)[None, :]
            p_span = p_out + ((o_walk * N + i) * N * C)[:, None] + o_span
            tl.store(p_span, float("nan"), mask=(o_span < n[:, None] * C) & (n[:, None] > i))


@triton.jit(do_not_specialize=["walks", "S", "N", "size", "C", "K"])
def walk(
    p_x, p_tables, p_value, p_noise, p_lengths, p_out, walks, S, N, size: tl.int64, C, K,
    DRAW: tl.constexpr, WALKS: tl.constexpr, LEAVES: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Writes 1 at each span of a tree, into zeros, or NaN where the value is. Without a feasible tree there is none."""
    o_walk = tl.program_id(0).to(tl.int64) * WALKS + tl.arange(0, WALKS)
    m_walk = o_walk < walks
    o_b = o_walk // S
    o_leaf = tl.arange(0, LEAVES)[None, :]
    o_label = tl.arange(0, LABELS)[None, :]
    value = tl.load(p_value + o_b, mask=m_walk, other=float("-inf"))
    n = tl.load(p_lengths + o_b, mask=m_walk & (value > float("-inf")), other=0).to(tl.int32)
    if tl.max((value != value).to(tl.int32), 0) > 0:
        _spoil(p_out, o_walk, tl.load(p_lengths + o_b, mask=value != value, other=0).to(tl.int32), N, C, LEAVES)
    p_chart = p_tables + CHART * size + (o_b * N * N)[:, None]
    spent = tl.zeros((WALKS,), tl.int32)
    # One past the last leaf of the span that begins here; 0 where none does.
    b_end = tl.where(o_leaf == 0, n[:, None], 0)
    for _ in range(0, 2 * tl.max(n, 0) - 1):
        i = tl.min(tl.where(b_end > 0, o_leaf, LEAVES), 1)
        m_here = i < LEAVES
        end = tl.sum(tl.where(o_leaf == i[:, None], b_end, 0), 1)
        w = end - 1 - i
        m_split = o_leaf < w[:, None]
        b_left = tl.load(p_chart + o_leaf * N + i[:, None], mask=m_split, other=float("-inf"))
        o_right = (w[:, None] - o_leaf - 1) * N + i[:, None] + o_leaf + 1
        b_score = b_left + tl.load(p_chart + o_right, mask=m_split, other=float("-inf"))
        if DRAW:
            uniform = tl.load(p_noise + o_walk * K + spent, mask=w > 1, other=0.0)
            t = drawn(b_score, uniform, LEAVES)
            spent += (w > 1).to(tl.int32)
        else:
            t = first_best(b_score, LEAVES)
        label = tl.zeros((WALKS,), tl.int32)
        if LABELS > 1:
            o_x = ((o_b * N + i) * N + end - 1) * C
            m_x = m_here[:, None] & (o_label < C)
            b_x = tl.load(p_x + o_x[:, None] + o_label, mask=m_x, other=float("-inf"))
            if DRAW:
                uniform = tl.load(p_noise + o_walk * K + spent, mask=m_here, other=0.0)
                label = drawn(b_x, uniform, LABELS)
                spent += m_here.to(tl.int32)
            else:
                label = first_best(b_x, LABELS)
        tl.store(p_out + ((o_walk * N + i) * N + end - 1) * C + label, 1.0, mask=m_here)
        # [i, i + t] and [i + t + 1, j], or nothing after a leaf
        m_inner = (w > 0)[:, None]
        o_second = (i + t + 1)[:, None]
        b_end = tl.where(o_leaf == i[:, None], tl.where(m_inner, o_second, 0), b_end)
        b_end = tl.where((o_leaf == o_second) & m_inner, end[:, None], b_end)
