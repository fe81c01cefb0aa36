"""From a chart down to trees, the best or drawn ones: many walks to a program, a step of each at a time.

What is still to be decided are half-trees and gaps side by side, and the next is the leftmost: a walk keeps, for the
first node of each, its last node and its kind. That is depth first, left before right, without a stack.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import drawn, first_best
from structmax.structures.projective_tree.kernel_triton.chart import LINK_LEFT, LINK_RIGHT, TREE_LEFT, TREE_RIGHT

# An entry is KINDS · last node + kind, and 0 where nothing begins. The last node is never 0.
KINDS = tl.constexpr(3)
RIGHT = tl.constexpr(0)
LEFT = tl.constexpr(1)
GAP = tl.constexpr(2)


@triton.jit
def _spoil(p_out, o_walk, n, P, C, COLUMNS: tl.constexpr):
    """NaN for every arc among n words, and from the root to them; nothing where n is −1."""
    for h in range(0, tl.max(n, 0) + 1):
        for start in range(C, (tl.max(n, 0) + 1) * C, COLUMNS):
            o_arc = start + tl.arange(0, COLUMNS)[None, :]
            m_arc = (o_arc < (n[:, None] + 1) * C) & (n[:, None] >= h) & (o_arc // C != h)
            tl.store(p_out + ((o_walk * P + h) * P * C)[:, None] + o_arc, float("nan"), mask=m_arc)


@triton.jit(do_not_specialize=["walks", "S", "P", "size", "C", "K"])
def walk(
    p_x, p_tables, p_value, p_noise, p_lengths, p_out, walks, S, P, size: tl.int64, C, K,
    SINGLE_ROOT: tl.constexpr, DRAW: tl.constexpr, WALKS: tl.constexpr, NODES: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Writes 1 at each arc of a tree, into zeros, or NaN where the value is. Without a feasible tree there is none."""
    o_walk = tl.program_id(0).to(tl.int64) * WALKS + tl.arange(0, WALKS)
    m_walk = o_walk < walks
    o_b = o_walk // S
    o_node = tl.arange(0, NODES)[None, :]
    o_label = tl.arange(0, LABELS)[None, :]
    value = tl.load(p_value + o_b, mask=m_walk, other=float("-inf"))
    n = tl.load(p_lengths + o_b, mask=m_walk & (value > float("-inf")), other=0).to(tl.int32)
    if tl.max((value != value).to(tl.int32), 0) > 0:
        _spoil(p_out, o_walk, tl.load(p_lengths + o_b, mask=value != value, other=-1).to(tl.int32), P, C, NODES)
    p_tables += (o_b * P * P)[:, None]
    spent = tl.zeros((WALKS,), tl.int32)
    b_open = tl.where(o_node == 0, n[:, None] * KINDS + RIGHT, 0)
    going = tl.max(n, 0)
    while going > 0:
        i = tl.min(tl.where(b_open > 0, o_node, NODES), 1)
        m_here = i < NODES
        entry = tl.sum(tl.where(o_node == i[:, None], b_open, 0), 1)
        j = entry // KINDS
        kind = entry % KINDS
        m_right, m_left, m_gap = kind == RIGHT, kind == LEFT, kind == GAP
        w = j - i
        # The terms of the sum: what is on the left, t nodes wide, and on the right.
        m_term = o_node < w[:, None]
        a = tl.where(m_right, LINK_RIGHT, tl.where(m_gap, TREE_RIGHT, TREE_LEFT)) * size + i
        b = tl.where(m_left, LINK_LEFT, tl.where(m_gap, TREE_LEFT, TREE_RIGHT)) * size + i
        o_a = a[:, None] + (o_node + m_right.to(tl.int32)[:, None]) * P
        # the node at which the right part begins
        o_t = o_node + 1 - m_left.to(tl.int32)[:, None]
        o_b_part = b[:, None] + (w[:, None] - o_t) * P + o_t
        b_score = tl.load(p_tables + o_a, mask=m_term, other=float("-inf"))
        b_score += tl.load(p_tables + o_b_part, mask=m_term, other=float("-inf"))
        if DRAW:
            m_choice = w > 1
            if SINGLE_ROOT:
                # Before its single word the root has nothing but its empty tree.
                m_choice = m_choice & ((i > 0) | (kind != GAP))
            uniform = tl.load(p_noise + o_walk * K + spent, mask=m_choice, other=0.0)
            t = drawn(b_score, uniform, NODES)
            spent += m_choice.to(tl.int32)
        else:
            t = first_best(b_score, NODES)
        # the dependent of an arc, or the first node of the right half-tree of a gap
        middle = i + t + 1 - m_left.to(tl.int32)
        head = tl.where(m_right, i, j)
        m_arc = m_here & (kind != GAP)
        label = tl.zeros((WALKS,), tl.int32)
        if LABELS > 1:
            o_x = ((o_b * P + head) * P + middle) * C
            b_x = tl.load(p_x + o_x[:, None] + o_label, mask=m_arc[:, None] & (o_label < C), other=float("-inf"))
            if DRAW:
                uniform = tl.load(p_noise + o_walk * K + spent, mask=m_arc, other=0.0)
                label = drawn(b_x, uniform, LABELS)
                spent += m_arc.to(tl.int32)
            else:
                label = first_best(b_x, LABELS)
        tl.store(p_out + ((o_walk * P + head) * P + middle) * C + label, 1.0, mask=m_arc)
        # what opens at i and ends before or at the middle, if it has any width
        last = tl.where(m_gap, middle - 1, middle)
        first_entry = last * KINDS + tl.where(m_right, GAP, tl.where(m_gap, RIGHT, LEFT))
        b_open = tl.where(o_node == i[:, None], tl.where(last > i, first_entry, 0)[:, None], b_open)
        # what opens at the middle and ends at j
        second_entry = j * KINDS + tl.where(m_right, RIGHT, tl.where(m_gap, LEFT, GAP))
        m_second = m_here & (j > middle)
        b_open = tl.where((o_node == middle[:, None]) & m_second[:, None], second_entry[:, None], b_open)
        going = tl.max(tl.max(b_open, 1), 0)
