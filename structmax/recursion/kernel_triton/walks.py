"""Draws: walks from the goal, many to a program, each with a stack of the nodes it has yet to derive.

A walk goes depth-first, tails in listed order. At a node with two edges or more it takes the next number u of its noise
and the first edge at which the cumulative probability exceeds u times the total; a single edge asks nothing. The lanes
of a program have its walks and the edges of their nodes. Threads wait for each other where one reads what another has
written: the stacks, and the rows of counted parts.
"""

import triton
import triton.language as tl

from structmax.recursion.kernel_triton.node import edge_scores, probabilities


@triton.jit
def mark_broken(p_row, b_answer, m_walk, size, CELLS: tl.constexpr):
    """NaN in the rows of walks whose answer is NaN; others are zeros already."""
    m_broken = m_walk & (b_answer != b_answer)
    if tl.max(m_broken.to(tl.int32), 0) > 0:
        b_row = b_answer[:, None] + tl.zeros((1, CELLS), b_answer.dtype)
        for begin in range(0, size, CELLS):
            o_cell = begin + tl.arange(0, CELLS)[None, :]
            tl.store(p_row[:, None] + o_cell, b_row, mask=m_broken[:, None] & (o_cell < size))


@triton.jit
def count_parts(p_row, p_parts, o_edge, m_walk, PARTS: tl.constexpr):
    """Adds the parts of each walk's edge to its row."""
    for j in tl.static_range(PARTS):
        o_part = tl.load(p_parts + o_edge * PARTS + j, mask=m_walk, other=-1)
        b_count = tl.load(p_row + o_part, mask=o_part >= 0, other=0.0)
        tl.store(p_row + o_part, b_count + 1, mask=o_part >= 0)
        # an edge may use a part twice
        tl.debug_barrier()


@triton.jit
def _node_probabilities(
    p_x, p_value, p_parts, p_tails, o_start, o_count, o_instance, begin, B, b_peak, b_level, b_scale, b_e,
    KIND: tl.constexpr, PARTS: tl.constexpr, TAILS: tl.constexpr, EDGES: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """q of the edges of each walk's node from the one at `begin` on: (WALKS, EDGES, 1)."""
    o_place = begin + tl.arange(0, EDGES)[None, :, None]
    m_edge = o_place < o_count
    o_edge = tl.where(m_edge, o_start + o_place, -1)
    b_s = edge_scores(p_x, p_value, p_parts, p_tails, o_edge, m_edge, o_instance, B, PARTS, TAILS, tl.float64)
    b_s = tl.where(m_edge, b_s, float("-inf"))
    return probabilities(b_s, b_peak, b_level, o_edge, b_scale, b_e, KIND, WORK)


@triton.jit(do_not_specialize=["walks", "draws", "numbers", "size", "room"])
def draw(
    p_x, p_value, p_peak, p_level, p_goal, p_answer, p_noise, p_stack, p_out, p_first, p_parts, p_tails,
    B, walks, draws, numbers, size, room, gamma: tl.float64, e: tl.float64,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, PARTS: tl.constexpr, TAILS: tl.constexpr,
    WALKS: tl.constexpr, EDGES: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """The parts of each walk, counted: (B · draws, P)."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    b_scale = 1 / tl.full((1, 1, 1), gamma, tl.float64).to(WORK)
    b_e = tl.full((1, 1, 1), e, tl.float64).to(WORK)
    o_walk = tl.program_id(0).to(tl.int64) * WALKS + tl.arange(0, WALKS)
    m_walk = o_walk < walks
    o_instance = o_walk // draws
    p_row = p_out + o_walk * size
    p_stack = p_stack + o_walk * room
    p_noise = p_noise + o_walk * numbers
    b_answer = tl.load(p_answer + o_instance, mask=m_walk, other=float("-inf"))
    mark_broken(p_row, b_answer, m_walk, size, CELLS)
    tl.store(p_stack, tl.load(p_goal + o_instance, mask=m_walk, other=0).to(tl.int32), mask=m_walk)
    b_height = tl.where(b_answer > float("-inf"), 1, 0)
    b_used = tl.zeros((WALKS,), tl.int32)
    going = tl.max(b_height, 0)
    while going > 0:
        # what was pushed
        tl.debug_barrier()
        m_active = b_height > 0
        b_height = tl.where(m_active, b_height - 1, 0)
        o_node = tl.load(p_stack + b_height, mask=m_active, other=0).to(tl.int64)
        o_start = tl.load(p_first + o_node, mask=m_active, other=0)
        b_count = tl.load(p_first + o_node + 1, mask=m_active, other=0) - o_start
        m_asks = b_count > 1
        b_uniform = tl.load(p_noise + b_used, mask=m_asks & (b_used < numbers), other=0.0).to(WORK)
        b_used += m_asks.to(tl.int32)
        b_peak = tl.load(p_peak + o_node * B + o_instance, mask=m_active, other=0.0)[:, None, None]
        b_level = tl.load(p_level + o_node * B + o_instance, mask=m_active, other=0.0)[:, None, None]
        most = tl.max(b_count, 0)
        b_total = tl.zeros((WALKS, 1, 1), WORK)
        for begin in range(0, most, EDGES):
            b_q = _node_probabilities(
                p_x, p_value, p_parts, p_tails, o_start.to(tl.int64)[:, None, None], b_count[:, None, None],
                o_instance[:, None, None], begin, B, b_peak, b_level, b_scale, b_e, KIND, PARTS, TAILS, EDGES, WORK,
            )  # fmt: skip
            b_total += tl.sum(b_q, 1, keep_dims=True)
        b_target = b_uniform[:, None, None] * b_total
        # the last edge that has probability, if rounding leaves none above the target
        b_chosen = b_count
        b_last = tl.zeros((WALKS,), tl.int32)
        b_reached = tl.zeros((WALKS, 1, 1), WORK)
        for begin in range(0, most, EDGES):
            b_q = _node_probabilities(
                p_x, p_value, p_parts, p_tails, o_start.to(tl.int64)[:, None, None], b_count[:, None, None],
                o_instance[:, None, None], begin, B, b_peak, b_level, b_scale, b_e, KIND, PARTS, TAILS, EDGES, WORK,
            )  # fmt: skip
            o_place = begin + tl.arange(0, EDGES)[None, :, None]
            m_over = (b_reached + tl.cumsum(b_q, 1) > b_target) & (b_q > 0)
            o_over = tl.where(m_over, o_place, b_count[:, None, None])
            b_chosen = tl.minimum(b_chosen, tl.min(tl.min(o_over, 2), 1))
            b_last = tl.maximum(b_last, tl.max(tl.max(tl.where(b_q > 0, o_place, 0), 2), 1))
            b_reached += tl.sum(b_q, 1, keep_dims=True)
        o_edge = (o_start + tl.where(b_chosen < b_count, b_chosen, b_last)).to(tl.int64)
        # all have read the stacks before they are written
        tl.debug_barrier()
        count_parts(p_row, p_parts, o_edge, m_active, PARTS)
        for j in tl.static_range(TAILS):
            o_tail = tl.load(p_tails + o_edge * TAILS + (TAILS - 1 - j), mask=m_active, other=-1)
            tl.store(p_stack + b_height, o_tail, mask=o_tail >= 0)
            b_height += (o_tail >= 0).to(tl.int32)
        going = tl.max(b_height, 0)
