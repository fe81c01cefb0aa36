"""The k best derivations of each node, as a list, level by level; and the derivations of the goal read off them.

A derivation is an edge and, for each tail, a rank in the tail's list. The one with ranks r has at least Π (1 + r) as
good ones at its own node, itself among them: only ranks with a product of at most k are looked at, the same for all
edges. A tile of candidates is read once and stays in registers; k rounds take the best out of it, the first of equals.
What a node has found in one tile stands in the next among its candidates.
"""

import triton
import triton.language as tl

from structmax.recursion.kernel_triton.walks import count_parts, mark_broken

NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["start", "stop", "programs", "groups", "k", "combinations"])
def list_best(
    p_x, p_list, p_back, p_ranks, p_first, p_parts, p_tails, p_levels,
    start, stop, programs, groups, B, k, combinations,
    PARTS: tl.constexpr, TAILS: tl.constexpr, ROWS: tl.constexpr, HIGH: tl.constexpr, LOW: tl.constexpr,
    BATCH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The k best scores of the nodes of some levels, best first, and the candidate each belongs to: (V · k, B).

    A tile is (HIGH, ROWS, LOW, BATCH), with HIGH · LOW candidates of a node: a thread has those along HIGH for itself.
    WHOLE: no node has more. What is NaN or +inf makes the list of its node NaN, and of all that build on it.
    """
    SLOTS: tl.constexpr = HIGH * LOW
    i_program = tl.program_id(0)
    o_batch = (i_program % groups).to(tl.int64) * BATCH + tl.arange(0, BATCH)[None, None, None, :]
    m_batch = o_batch < B
    o_slot = tl.arange(0, HIGH)[:, None, None, None] * LOW + tl.arange(0, LOW)[None, None, :, None]
    for i_level in range(start, stop):
        first_row = tl.load(p_levels + 2 * i_level) + (i_program // groups) * ROWS
        last_row = tl.load(p_levels + 2 * i_level + 1)
        for i_row in range(first_row, last_row, programs * ROWS):
            o_row = i_row + tl.arange(0, ROWS)
            m_row = o_row < last_row
            o_begin = tl.load(p_first + o_row, mask=m_row, other=0)
            o_count = (tl.load(p_first + o_row + 1, mask=m_row, other=0) - o_begin) * combinations
            tiles = 1
            if not WHOLE:
                tiles += tl.cdiv(tl.maximum(tl.max(o_count, 0) - SLOTS, 0), SLOTS - k)
            o_begin = o_begin[None, :, None, None]
            o_count = o_count[None, :, None, None]
            m_out = m_row[None, :, None, None] & m_batch
            o_out = o_row.to(tl.int64)[None, :, None, None] * k * B + o_batch
            # from the second tile on, the first slots have what was found
            kept = k * 0
            for i_tile in range(0, tiles):
                o_candidate = i_tile * (SLOTS - k) + o_slot
                m_candidate = o_candidate < o_count
                if not WHOLE:
                    m_candidate = m_candidate & (o_slot >= kept)
                m_tile = m_candidate & m_batch
                o_edge = (o_begin + o_candidate // combinations).to(tl.int64)
                o_ranks = o_candidate % combinations
                b_s = tl.zeros((HIGH, ROWS, LOW, BATCH), tl.float64)
                for j in tl.static_range(PARTS):
                    o_part = tl.load(p_parts + o_edge * PARTS + j, mask=m_candidate, other=-1).to(tl.int64)
                    b_s += tl.load(p_x + o_part * B + o_batch, mask=m_tile & (o_part >= 0), other=0.0)
                for j in tl.static_range(TAILS):
                    o_tail = tl.load(p_tails + o_edge * TAILS + j, mask=m_candidate, other=-1).to(tl.int64)
                    o_rank = tl.load(p_ranks + o_ranks * TAILS + j, mask=m_candidate, other=0)
                    b_tail = tl.load(
                        p_list + (o_tail * k + o_rank) * B + o_batch, mask=m_tile & (o_tail >= 0), other=0.0
                    )
                    # nothing has one derivation
                    b_s += tl.where((o_tail < 0) & (o_rank > 0), float("-inf"), b_tail)
                b_s = tl.where(m_tile, b_s, float("-inf"))
                b_place = o_candidate + tl.zeros((HIGH, ROWS, LOW, BATCH), tl.int32)
                if not WHOLE:
                    m_found = m_out & (o_slot < kept)
                    b_s = tl.where(m_found, tl.load(p_list + o_out + o_slot * B, mask=m_found, other=0.0), b_s)
                    b_place = tl.where(m_found, tl.load(p_back + o_out + o_slot * B, mask=m_found, other=0), b_place)
                    # all have read before the same cells are written
                    tl.debug_barrier()
                b_broken = (~(b_s < float("inf"))).to(tl.int32)
                b_broken = tl.max(tl.max(b_broken, 0, keep_dims=True), 2, keep_dims=True)
                b_s = tl.where(b_s > float("-inf"), b_s, float("-inf"))
                for rank in range(0, k):
                    b_best = tl.max(tl.max(b_s, 0, keep_dims=True), 2, keep_dims=True)
                    b_at = tl.where(b_s == b_best, b_place, NOWHERE)
                    b_at = tl.min(tl.min(b_at, 0, keep_dims=True), 2, keep_dims=True)
                    b_s = tl.where(b_place == b_at, float("-inf"), b_s)
                    tl.store(p_list + o_out + rank * B, tl.where(b_broken > 0, float("nan"), b_best), mask=m_out)
                    tl.store(p_back + o_out + rank * B, b_at, mask=m_out)
                if not WHOLE:
                    # the next tile reads what other threads have written
                    tl.debug_barrier()
                    kept = k + 0
        # and so does the next level
        tl.debug_barrier()


@triton.jit(do_not_specialize=["walks", "k", "combinations", "size", "room"])
def unfold(
    p_value, p_back, p_ranks, p_goal, p_stack, p_out, p_first, p_parts, p_tails, B, walks, k, combinations, size, room,
    PARTS: tl.constexpr, TAILS: tl.constexpr, WALKS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Counts the parts of each instance's derivation of each rank: (B · k, P).

    It is a walk as in walks.py, but what is put on the stack is node · k + rank.
    """
    o_walk = tl.program_id(0).to(tl.int64) * WALKS + tl.arange(0, WALKS)
    m_walk = o_walk < walks
    o_instance = o_walk // k
    p_row = p_out + o_walk * size
    p_stack = p_stack + o_walk * room
    b_value = tl.load(p_value + o_walk, mask=m_walk, other=float("-inf"))
    mark_broken(p_row, b_value, m_walk, size, CELLS)
    tl.store(p_stack, tl.load(p_goal + o_instance, mask=m_walk, other=0) * k + o_walk % k, mask=m_walk)
    b_height = tl.where(b_value > float("-inf"), 1, 0)
    going = tl.max(b_height, 0)
    while going > 0:
        # what was pushed
        tl.debug_barrier()
        m_active = b_height > 0
        b_height = tl.where(m_active, b_height - 1, 0)
        o_place = tl.load(p_stack + b_height, mask=m_active, other=0)
        o_candidate = tl.load(p_back + o_place * B + o_instance, mask=m_active, other=0)
        o_start = tl.load(p_first + o_place // k, mask=m_active, other=0)
        o_edge = (o_start + o_candidate // combinations).to(tl.int64)
        # all have read the stacks before they are written
        tl.debug_barrier()
        count_parts(p_row, p_parts, o_edge, m_active, PARTS)
        for j in tl.static_range(TAILS):
            o_tail = tl.load(p_tails + o_edge * TAILS + (TAILS - 1 - j), mask=m_active, other=-1).to(tl.int64)
            o_rank = tl.load(p_ranks + (o_candidate % combinations) * TAILS + (TAILS - 1 - j), mask=m_active, other=0)
            tl.store(p_stack + b_height, o_tail * k + o_rank, mask=o_tail >= 0)
            b_height += (o_tail >= 0).to(tl.int32)
        going = tl.max(b_height, 0)
