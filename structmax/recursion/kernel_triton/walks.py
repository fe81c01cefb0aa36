"""Single derivations, each by a program of its own: drawn, or read off a list of the best.

A walk goes depth-first from the goal, tails in listed order, with a stack of the nodes it has yet to derive. It is one
step after the other; the lanes of its program have the edges of one node. Threads wait for each other where one reads
what another has put on the stack.
"""

import triton
import triton.language as tl

from structmax.recursion.kernel_triton.node import edge_scores, probabilities


@triton.jit
def blank_row(p_row, answer, size, CELLS: tl.constexpr):
    """Zeros, or NaN where the answer is."""
    blank = tl.where(answer == answer, 0.0, answer)
    for begin in range(0, size, CELLS):
        o_cell = begin + tl.arange(0, CELLS)
        tl.store(p_row + o_cell, tl.zeros((CELLS,), p_row.dtype.element_ty) + blank, mask=o_cell < size)


@triton.jit
def count_parts(p_row, p_parts, edge, PARTS: tl.constexpr):
    """Adds the parts of an edge to a row. One thread alone reads and writes what it has written before."""
    for j in tl.static_range(PARTS):
        part = tl.load(p_parts + edge * PARTS + j)
        p_cell = p_row + tl.maximum(part, 0)
        tl.store(p_cell, tl.load(p_cell) + 1, mask=part >= 0)


@triton.jit(do_not_specialize=["draws", "numbers", "size", "room"])
def draw(
    p_x, p_value, p_peak, p_level, p_goal, p_answer, p_noise, p_stack, p_out, p_first, p_parts, p_tails,
    B, draws, numbers, size, room, gamma: tl.float64, e: tl.float64,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, PARTS: tl.constexpr, TAILS: tl.constexpr,
    EDGES: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """At a node with two edges or more, takes the next number u of the noise and the first edge at which the cumulative
    probability exceeds u times the total; a single edge asks nothing."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    b_scale = 1 / tl.full((1, 1, 1), gamma, tl.float64).to(WORK)
    b_e = tl.full((1, 1, 1), e, tl.float64).to(WORK)
    i_walk = tl.program_id(0).to(tl.int64)
    i_instance = i_walk // draws
    p_row = p_out + i_walk * size
    p_stack += i_walk * room
    p_noise += i_walk * numbers
    answer = tl.load(p_answer + i_instance)
    blank_row(p_row, answer, size, CELLS)
    tl.store(p_stack, tl.load(p_goal + i_instance).to(tl.int32))
    height = tl.where(answer > float("-inf"), 1, 0)
    used = 0
    while height > 0:
        # what was pushed, and the blank row, are seen by all threads
        tl.debug_barrier()
        height -= 1
        node = tl.load(p_stack + height).to(tl.int64)
        start = tl.load(p_first + node).to(tl.int64)
        count = (tl.load(p_first + node + 1) - start).to(tl.int32)
        uniform = tl.load(p_noise + used, mask=(count > 1) & (used < numbers), other=0.0).to(WORK)
        used += tl.where(count > 1, 1, 0)
        peak = tl.load(p_peak + node * B + i_instance)
        level = tl.load(p_level + node * B + i_instance)
        b_total = tl.zeros((1, EDGES, 1), WORK)
        for begin in range(0, count, EDGES):
            b_total += _node_probabilities(
                p_x, p_value, p_parts, p_tails, start, begin, count, i_instance, B, peak, level, b_scale, b_e,
                KIND, PARTS, TAILS, EDGES, WORK,
            )  # fmt: skip
        target = uniform * tl.sum(b_total)
        # the last edge that has probability, if rounding leaves none above the target
        chosen = count
        last = 0
        b_reached = tl.zeros((1, 1, 1), WORK)
        for begin in range(0, count, EDGES):
            b_q = _node_probabilities(
                p_x, p_value, p_parts, p_tails, start, begin, count, i_instance, B, peak, level, b_scale, b_e,
                KIND, PARTS, TAILS, EDGES, WORK,
            )  # fmt: skip
            o_place = begin + tl.arange(0, EDGES)[None, :, None]
            m_over = (b_reached + tl.cumsum(b_q, 1) > target) & (b_q > 0)
            chosen = tl.minimum(chosen, tl.min(tl.where(m_over, o_place, count)))
            last = tl.maximum(last, tl.max(tl.where(b_q > 0, o_place, 0)))
            b_reached += tl.sum(b_q, 1, keep_dims=True)
        edge = start + tl.where(chosen < count, chosen, last)
        count_parts(p_row, p_parts, edge, PARTS)
        # all have read the stack before it is written
        tl.debug_barrier()
        for j in tl.static_range(TAILS):
            tail = tl.load(p_tails + edge * TAILS + (TAILS - 1 - j))
            tl.store(p_stack + height, tail, mask=tail >= 0)
            height += tl.where(tail >= 0, 1, 0)


@triton.jit
def _node_probabilities(
    p_x, p_value, p_parts, p_tails, start, begin, count, i_instance, B, peak, level, b_scale, b_e,
    KIND: tl.constexpr, PARTS: tl.constexpr, TAILS: tl.constexpr, EDGES: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """q of the edges of one node from `begin` on, for one instance: (1, EDGES, 1)."""
    o_place = begin + tl.arange(0, EDGES)[None, :, None]
    m_edge = o_place < count
    o_edge = tl.where(m_edge, start + o_place, -1)
    b_s = edge_scores(p_x, p_value, p_parts, p_tails, o_edge, m_edge, i_instance, B, PARTS, TAILS, WORK)
    b_s = tl.where(m_edge, b_s, float("-inf"))
    return probabilities(b_s, peak, level, o_edge, b_scale, b_e, KIND)
