"""Passes over the levels: up for values, down for expected counts, both with tangents; down for max-marginals.

Programs are numbered instances first: program p has the group p % groups of instances and every `programs`-th tile of
rows from p // groups on. Where a launch has several levels a group has one program, whose threads wait for each other
between levels.
"""

import triton
import triton.language as tl

from structmax.recursion.kernel_triton.node import edge_scores, probabilities, raised, weights

# Newton's method for a sparse node never comes near this; it bounds a launch whatever the rounding does.
MAX_STEPS = tl.constexpr(1000)


@triton.jit(do_not_specialize=["start", "stop", "programs", "groups"])
def ascend(
    p_x, p_value, p_peak, p_level, p_required, p_met, p_tangent, p_d_value, p_centre,
    p_first, p_parts, p_tails, p_levels, start, stop, programs, groups, B, gamma: tl.float64, e: tl.float64,
    KIND: tl.constexpr, GIVEN: tl.constexpr, TANGENT: tl.constexpr, DOUBLE: tl.constexpr,
    PARTS: tl.constexpr, TAILS: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    """value(v) for the nodes of some levels, and what gives the probabilities of their edges back: a peak, a level.

    The level is 1 / Σ exp, the threshold of a sparse node, or the edge of a best derivation. GIVEN: a node counts only
    its edges with the most required parts below, `met`. TANGENT: also its change along the tangent, and what the
    changes of its edges are measured from, `centre`.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    b_gamma = tl.full((1, 1, 1), gamma, tl.float64).to(WORK)
    b_scale = 1 / b_gamma
    b_e = tl.full((1, 1, 1), e, tl.float64).to(WORK)
    i_program = tl.program_id(0)
    o_batch = (i_program % groups).to(tl.int64) * BATCH + tl.arange(0, BATCH)[None, None, :]
    m_batch = o_batch < B
    for i_level in range(start, stop):
        first_row = tl.load(p_levels + 2 * i_level) + (i_program // groups) * ROWS
        last_row = tl.load(p_levels + 2 * i_level + 1)
        for i_row in range(first_row, last_row, programs * ROWS):
            o_row = i_row + tl.arange(0, ROWS)
            m_row = o_row < last_row
            o_begin = tl.load(p_first + o_row, mask=m_row, other=0)
            o_count = tl.load(p_first + o_row + 1, mask=m_row, other=0) - o_begin
            most = tl.max(o_count, 0)
            o_begin = o_begin.to(tl.int64)[:, None, None]
            o_count = o_count[:, None, None]
            m_out = m_row[:, None, None] & m_batch

            b_peak = tl.full((ROWS, 1, BATCH), float("-inf"), tl.float64)
            b_total = tl.zeros((ROWS, 1, BATCH), WORK)
            b_most = tl.full((ROWS, 1, BATCH), -1.0, WORK)
            b_top = tl.full((ROWS, 1, BATCH), -1, tl.int64)
            b_broken = tl.zeros((ROWS, 1, BATCH), tl.int32)
            for begin in range(0, most, EDGES):
                o_place = begin + tl.arange(0, EDGES)[None, :, None]
                m_edge = o_place < o_count
                o_edge = tl.where(m_edge, o_begin + o_place, -1)
                m_tile = m_edge & m_batch
                b_s = edge_scores(p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64)
                b_s = tl.where(m_tile, b_s, float("-inf"))
                # NaN and +inf
                b_broken = tl.maximum(b_broken, tl.max((~(b_s < float("inf"))).to(tl.int32), 1, keep_dims=True))
                if GIVEN:
                    b_uses = edge_scores(
                        p_required, p_met, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, WORK
                    )
                    b_uses = tl.where(b_s > float("-inf"), b_uses, -1.0)
                    b_fullest = tl.maximum(b_most, tl.max(b_uses, 1, keep_dims=True))
                    b_s = tl.where(b_uses == b_fullest, b_s, float("-inf"))
                    m_kept = b_most == b_fullest
                    b_peak = tl.where(m_kept, b_peak, float("-inf"))
                    b_total = tl.where(m_kept, b_total, 0.0)
                    b_most = b_fullest
                b_highest = tl.max(b_s, 1, keep_dims=True)
                if KIND == "max":
                    # the first of equals
                    b_first = tl.min(tl.where(b_s == b_highest, o_edge, 2**62), 1, keep_dims=True)
                    b_top = tl.where(b_highest > b_peak, b_first, b_top)
                b_highest = tl.maximum(b_highest, b_peak)
                if KIND == "softmax":
                    b_base = tl.where(b_highest == float("-inf"), 0.0, b_highest)
                    b_mass = tl.sum(tl.exp(((b_s - b_base) * b_scale).to(WORK)), 1, keep_dims=True)
                    b_total = b_total * tl.exp(((b_peak - b_base) * b_scale).to(WORK)) + b_mass
                b_peak = b_highest

            b_base = tl.where(b_peak == float("-inf"), 0.0, b_peak)
            m_none = b_peak == float("-inf")
            o_out = o_row.to(tl.int64)[:, None, None] * B + o_batch
            b_level = b_total
            if KIND == "max":
                b_value = b_peak
                tl.store(p_level + o_out, b_top.to(tl.int32), mask=m_out)
            elif KIND == "softmax":
                b_total = tl.where(m_none, 1.0, b_total)
                b_value = b_base + b_gamma * tl.log(b_total)
                b_level = tl.where(m_none, 0.0, 1 / b_total)
                tl.store(p_level + o_out, b_level, mask=m_out)
            else:
                # Newton's method for τ from below, where the best alone has 1. In a pass that moves nothing, ⟨q, z⟩ is
                # that of the τ kept.
                b_level = tl.zeros((ROWS, 1, BATCH), WORK) - 1 / b_e
                b_dot = tl.zeros((ROWS, 1, BATCH), WORK)
                going = 1
                steps = 0
                while going > 0:
                    b_slope = tl.zeros((ROWS, 1, BATCH), WORK)
                    b_mass = tl.zeros((ROWS, 1, BATCH), WORK)
                    b_dot = tl.zeros((ROWS, 1, BATCH), WORK)
                    for begin in range(0, most, EDGES):
                        o_place = begin + tl.arange(0, EDGES)[None, :, None]
                        m_edge = o_place < o_count
                        o_edge = tl.where(m_edge, o_begin + o_place, -1)
                        m_tile = m_edge & m_batch
                        b_s = edge_scores(
                            p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64
                        )
                        b_z = ((tl.where(m_tile, b_s, float("-inf")) - b_base) * b_scale).to(WORK)
                        b_q = raised(b_z - b_level, b_e, KIND)
                        b_mass += tl.sum(b_q, 1, keep_dims=True)
                        b_slope += tl.sum(weights(b_q, b_e, KIND), 1, keep_dims=True)
                        b_dot += tl.sum(tl.where(b_q > 0, b_q * b_z, 0.0), 1, keep_dims=True)
                    b_step = (b_mass - 1) / tl.where(b_slope > 0, b_slope, 1.0)
                    b_next = tl.where(b_slope > 0, b_level + b_step, b_level)
                    steps += 1
                    going = tl.where(steps < MAX_STEPS, tl.max((b_next > b_level).to(tl.int32)), 0)
                    b_level = tl.maximum(b_level, b_next)
                b_value = b_base + b_gamma * (b_level + 1 / b_e + b_e * b_dot) / (1 + b_e)
                tl.store(p_level + o_out, b_level, mask=m_out)
            b_value = tl.where(m_none, float("-inf"), b_value)
            b_value = tl.where(b_broken > 0, float("nan"), b_value)
            tl.store(p_value + o_out, b_value, mask=m_out)
            if KIND != "max":
                tl.store(p_peak + o_out, b_base, mask=m_out)
            if GIVEN:
                tl.store(p_met + o_out, tl.maximum(b_most, 0.0), mask=m_out)

            if TANGENT:
                b_mean = tl.zeros((ROWS, 1, BATCH), WORK)
                b_sum = tl.zeros((ROWS, 1, BATCH), WORK)
                b_slope = tl.zeros((ROWS, 1, BATCH), WORK)
                for begin in range(0, most, EDGES):
                    o_place = begin + tl.arange(0, EDGES)[None, :, None]
                    m_edge = o_place < o_count
                    o_edge = tl.where(m_edge, o_begin + o_place, -1)
                    m_tile = m_edge & m_batch
                    b_s = edge_scores(
                        p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64
                    )
                    b_s = tl.where(m_tile, b_s, float("-inf"))
                    b_q = probabilities(b_s, b_base, b_level, o_edge, b_scale, b_e, KIND, WORK)
                    if GIVEN:
                        b_uses = edge_scores(
                            p_required, p_met, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, WORK
                        )
                        b_q = tl.where(b_uses == b_most, b_q, 0.0)
                    # the tangent counts nothing where q is 0, whatever it holds
                    m_tile = m_tile & (b_q > 0)
                    b_ds = edge_scores(
                        p_tangent, p_d_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, WORK
                    )
                    b_mean += tl.sum(tl.where(m_tile, b_q * b_ds, 0.0), 1, keep_dims=True)
                    if KIND != "softmax":
                        b_weight = weights(b_q, b_e, KIND)
                        b_sum += tl.sum(tl.where(m_tile, b_weight * b_ds, 0.0), 1, keep_dims=True)
                        b_slope += tl.sum(tl.where(m_tile, b_weight, 0.0), 1, keep_dims=True)
                tl.store(p_d_value + o_out, b_mean, mask=m_out)
                if KIND != "softmax":
                    b_mean = b_sum / tl.where(b_slope > 0, b_slope, 1.0)
                tl.store(p_centre + o_out, b_mean, mask=m_out)
        # the next level reads what other threads have written
        tl.debug_barrier()


@triton.jit(do_not_specialize=["start", "stop", "programs", "groups", "size"])
def descend(
    p_x, p_value, p_peak, p_level, p_required, p_met, p_tangent, p_d_value, p_centre, p_expected, p_d_expected,
    p_goal, p_answer, p_out, p_first, p_edge, p_head, p_parts, p_tails, p_levels,
    start, stop, programs, groups, B, size, gamma: tl.float64, e: tl.float64,
    KIND: tl.constexpr, GIVEN: tl.constexpr, TANGENT: tl.constexpr, DOUBLE: tl.constexpr,
    PARTS: tl.constexpr, TAILS: tl.constexpr, ROWS: tl.constexpr, EDGES: tl.constexpr, BATCH: tl.constexpr,
    FINAL: tl.constexpr,
):  # fmt: skip
    """The expected uses of the nodes of some levels, and their change along the tangent; FINAL: of the parts.

    A node collects E(head) q(e) from the edges that build on it. KIND "best": it collects the best way from it up to
    the goal instead, and a part the score of the best derivation that has it. KIND "alive": whether some derivation has
    the node, and how many edges with the part are on one.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    b_scale = 1 / tl.full((1, 1, 1), gamma, tl.float64).to(WORK)
    b_e = tl.full((1, 1, 1), e, tl.float64).to(WORK)
    i_program = tl.program_id(0)
    o_batch = (i_program % groups).to(tl.int64) * BATCH + tl.arange(0, BATCH)[None, None, :]
    m_batch = o_batch < B
    b_goal = tl.load(p_goal + o_batch, mask=m_batch, other=-1)
    for i_level in range(start, stop):
        first_row = tl.load(p_levels + 2 * i_level) + (i_program // groups) * ROWS
        last_row = tl.load(p_levels + 2 * i_level + 1)
        for i_row in range(first_row, last_row, programs * ROWS):
            o_row = i_row + tl.arange(0, ROWS)
            m_row = o_row < last_row
            o_begin = tl.load(p_first + o_row, mask=m_row, other=0)
            o_count = tl.load(p_first + o_row + 1, mask=m_row, other=0) - o_begin
            most = tl.max(o_count, 0)
            o_begin = o_begin.to(tl.int64)[:, None, None]
            o_count = o_count[:, None, None]
            o_row = o_row.to(tl.int64)[:, None, None]
            m_out = m_row[:, None, None] & m_batch
            o_own = o_row * B + o_batch

            b_sum = tl.zeros((ROWS, 1, BATCH), WORK)
            b_d_sum = tl.zeros((ROWS, 1, BATCH), WORK)
            if KIND == "best":
                b_sum = tl.full((ROWS, 1, BATCH), float("-inf"), tl.float64)
                b_own = tl.zeros((ROWS, 1, BATCH), tl.float64)
                if not FINAL:
                    b_own = tl.load(p_value + o_own, mask=m_out, other=0.0)
            for begin in range(0, most, EDGES):
                o_place = begin + tl.arange(0, EDGES)[None, :, None]
                m_edge = o_place < o_count
                o_edge = tl.load(p_edge + o_begin + o_place, mask=m_edge, other=-1).to(tl.int64)
                o_head = tl.load(p_head + o_begin + o_place, mask=m_edge, other=0).to(tl.int64) * B + o_batch
                m_tile = m_edge & m_batch
                b_expected = tl.load(p_expected + o_head, mask=m_tile, other=float("-inf"))
                # what no derivation of the goal visits may hold anything
                m_tile = m_tile & (b_expected > (float("-inf") if KIND == "best" else 0.0))
                b_s = edge_scores(p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64)
                if KIND == "best":
                    b_through = b_expected + b_s
                    m_tile = m_tile & (b_through > float("-inf"))
                    b_through = tl.where(m_tile, b_through - b_own, float("-inf"))
                    b_sum = tl.maximum(b_sum, tl.max(b_through, 1, keep_dims=True))
                elif KIND == "alive":
                    b_alive = (m_tile & (b_s > float("-inf"))).to(WORK)
                    if FINAL:
                        b_sum += tl.sum(b_alive, 1, keep_dims=True)
                    else:
                        b_sum = tl.maximum(b_sum, tl.max(b_alive, 1, keep_dims=True))
                else:
                    b_level = tl.load(p_level + o_head, mask=m_tile, other=0)
                    b_peak = b_s
                    if KIND != "max":
                        b_peak = tl.load(p_peak + o_head, mask=m_tile, other=0.0)
                    b_q = probabilities(b_s, b_peak, b_level, o_edge, b_scale, b_e, KIND, WORK)
                    if GIVEN:
                        b_uses = edge_scores(
                            p_required, p_met, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, WORK
                        )
                        b_met = tl.load(p_met + o_head, mask=m_tile, other=0.0)
                        b_q = tl.where(b_uses == b_met, b_q, 0.0)
                    b_sum += tl.sum(tl.where(m_tile, b_expected * b_q, 0.0), 1, keep_dims=True)
                    if TANGENT:
                        b_d_expected = tl.load(p_d_expected + o_head, mask=m_tile, other=0.0)
                        b_centre = tl.load(p_centre + o_head, mask=m_tile, other=0.0)
                        m_on = m_tile & (b_q > 0)
                        b_ds = edge_scores(
                            p_tangent, p_d_value, p_parts, p_tails, o_edge, m_on, o_batch, B, PARTS, TAILS, WORK
                        )
                        b_d_q = weights(b_q, b_e, KIND) * (b_ds - b_centre) * b_scale
                        b_change = b_d_expected * b_q + b_expected * b_d_q
                        b_d_sum += tl.sum(tl.where(m_on, b_change, 0.0), 1, keep_dims=True)

            if FINAL:
                b_answer = tl.load(p_answer + o_batch, mask=m_batch, other=0.0)
                b_none = b_answer
                if TANGENT:
                    b_sum = b_d_sum
                if KIND != "best":
                    b_none = tl.where(b_answer == float("-inf"), 0.0, b_answer)
                b_sum = tl.where(b_answer > float("-inf"), b_sum, b_none)
                tl.store(p_out + o_batch * size + o_row, b_sum, mask=m_out)
            else:
                b_of_goal = b_sum + 1
                if KIND == "best":
                    b_of_goal = tl.zeros((ROWS, 1, BATCH), tl.float64)
                b_sum = tl.where(b_goal == o_row, b_of_goal, b_sum)
                tl.store(p_expected + o_own, b_sum, mask=m_out)
                if TANGENT:
                    tl.store(p_d_expected + o_own, b_d_sum, mask=m_out)
        tl.debug_barrier()
