"""The probability that a walk takes a given derivation, known by its parts y alone, and its gradient.

Edges that are alive, those on some derivation with no part outside y, come from two passes of passes.py over scores
that are 1 or −inf. A part that only one of them has says how often its edge is taken; visits to a node that are left
take its edge that leads to the most parts. So visits flow down, and with them the logarithms of probabilities.
"""

import triton
import triton.language as tl

from structmax.recursion.kernel_triton.node import edge_scores, probabilities, weights


@triton.jit
def _times(
    p_worth, p_covered, p_users, p_y, p_parts, p_tails, o_edge, m_tile, o_batch, B, b_best, b_rest,
    PARTS: tl.constexpr, TAILS: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """How many parts the derivations by an edge have at most, −inf if it is not alive; whether one of its parts says
    how often it is taken; and how often it is, if `best` takes the `rest` of the visits to its head."""
    b_uses = edge_scores(p_worth, p_covered, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64)
    b_uses = tl.where(m_tile, b_uses, float("-inf"))
    m_alive = b_uses > float("-inf")
    b_own = tl.zeros(m_tile.shape, tl.int32)
    b_times = tl.zeros(m_tile.shape, WORK)
    for j in tl.static_range(PARTS):
        o_part = tl.load(p_parts + o_edge * PARTS + j, mask=o_edge >= 0, other=-1).to(tl.int64)
        m_part = m_alive & (o_part >= 0)
        b_users = tl.load(p_users + o_part * B + o_batch, mask=m_part, other=0.0)
        b_y = tl.load(p_y + o_part * B + o_batch, mask=m_part & (b_users == 1), other=0.0)
        b_times = tl.maximum(b_times, b_y)
        b_own = tl.where(m_part & (b_users == 1), 1, b_own)
    b_times = tl.where((b_own == 0) & m_alive & (o_edge == b_best), b_rest, b_times)
    return b_uses, b_own, b_times


@triton.jit
def _per_use(b_q, b_e, KIND: tl.constexpr):
    """q^(1−α) on the support: the slope of log q in units of `weights`."""
    if KIND == "softmax":
        return tl.full(b_q.shape, 1.0, b_q.dtype)
    else:
        return tl.where(b_q > 0, tl.exp(-b_e * tl.log(tl.where(b_q > 0, b_q, 1.0))), 0.0)


@triton.jit(do_not_specialize=["start", "stop", "programs", "groups"])
def visit(
    p_x, p_value, p_peak, p_level, p_worth, p_covered, p_users, p_y, p_visits, p_best, p_rest, p_log, p_mass, p_total,
    p_goal, p_own_first, p_first, p_edge, p_head, p_parts, p_tails, p_levels,
    start, stop, programs, groups, B, gamma: tl.float64, e: tl.float64,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, PARTS: tl.constexpr, TAILS: tl.constexpr,
    ROWS: tl.constexpr, EDGES: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    """How often the derivation visits the nodes of some levels, and how these visits divide among their edges.

    Also Σ times · log q over their edges, −inf where no division is possible, and the sums that the gradient needs.
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
            m_out = m_row[:, None, None] & m_batch
            o_out = o_row.to(tl.int64)[:, None, None] * B + o_batch

            b_visits = tl.where(b_goal == o_row[:, None, None], tl.full((ROWS, 1, BATCH), 1.0, WORK), 0.0)
            for begin in range(0, most, EDGES):
                o_place = begin + tl.arange(0, EDGES)[None, :, None]
                m_edge = o_place < o_count
                o_edge = tl.load(p_edge + o_begin + o_place, mask=m_edge, other=-1).to(tl.int64)
                o_head = tl.load(p_head + o_begin + o_place, mask=m_edge, other=0).to(tl.int64) * B + o_batch
                m_tile = m_edge & m_batch
                m_tile = m_tile & (tl.load(p_visits + o_head, mask=m_tile, other=0.0) > 0)
                b_best = tl.load(p_best + o_head, mask=m_tile, other=-1)
                b_rest = tl.load(p_rest + o_head, mask=m_tile, other=0.0)
                _, _, b_times = _times(
                    p_worth, p_covered, p_users, p_y, p_parts, p_tails, o_edge, m_tile, o_batch, B, b_best, b_rest,
                    PARTS, TAILS, WORK,
                )  # fmt: skip
                b_visits += tl.sum(b_times, 1, keep_dims=True)
            m_visited = b_visits > 0

            o_begin = tl.load(p_own_first + o_row, mask=m_row, other=0)
            o_count = tl.load(p_own_first + o_row + 1, mask=m_row, other=0) - o_begin
            most = tl.max(o_count, 0)
            o_begin = o_begin.to(tl.int64)[:, None, None]
            o_count = o_count[:, None, None]
            b_nobody = tl.full((ROWS, 1, BATCH), -1, tl.int64)
            b_best = tl.full((ROWS, 1, BATCH), -1, tl.int64)
            b_most = tl.full((ROWS, 1, BATCH), float("-inf"), tl.float64)
            b_rest = b_visits
            for begin in range(0, most, EDGES):
                o_place = begin + tl.arange(0, EDGES)[None, :, None]
                o_edge = tl.where(o_place < o_count, o_begin + o_place, -1)
                m_tile = (o_edge >= 0) & m_visited
                b_uses, b_own, b_times = _times(
                    p_worth, p_covered, p_users, p_y, p_parts, p_tails, o_edge, m_tile, o_batch, B, b_nobody, b_visits,
                    PARTS, TAILS, WORK,
                )  # fmt: skip
                b_rest -= tl.sum(b_times, 1, keep_dims=True)
                b_uses = tl.where(b_own == 0, b_uses, float("-inf"))
                b_highest = tl.max(b_uses, 1, keep_dims=True)
                b_first = tl.min(tl.where(b_uses == b_highest, o_edge, 2**62), 1, keep_dims=True)
                b_best = tl.where(b_highest > b_most, b_first, b_best)
                b_most = tl.maximum(b_most, b_highest)
            m_divided = (b_rest == 0) | ((b_rest > 0) & (b_best >= 0))
            b_rest = tl.where(m_divided, b_rest, 0.0)

            b_log = tl.zeros((ROWS, 1, BATCH), WORK)
            b_mass = tl.zeros((ROWS, 1, BATCH), WORK)
            b_total = tl.zeros((ROWS, 1, BATCH), WORK)
            b_peak = tl.load(p_peak + o_out, mask=m_out, other=0.0)
            b_level = tl.load(p_level + o_out, mask=m_out, other=0.0)
            for begin in range(0, most, EDGES):
                o_place = begin + tl.arange(0, EDGES)[None, :, None]
                o_edge = tl.where(o_place < o_count, o_begin + o_place, -1)
                m_tile = (o_edge >= 0) & m_visited
                _, _, b_times = _times(
                    p_worth, p_covered, p_users, p_y, p_parts, p_tails, o_edge, m_tile, o_batch, B, b_best, b_rest,
                    PARTS, TAILS, WORK,
                )  # fmt: skip
                b_s = edge_scores(p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64)
                b_s = tl.where(m_tile, b_s, float("-inf"))
                b_q = probabilities(b_s, b_peak, b_level, o_edge, b_scale, b_e, KIND, WORK)
                if KIND == "softmax":
                    # finite where q itself is none
                    b_log_q = ((b_s - b_peak) * b_scale).to(WORK) + tl.log(b_level)
                else:
                    b_log_q = tl.log(b_q)
                b_log += tl.sum(tl.where(b_times > 0, b_times * b_log_q, 0.0), 1, keep_dims=True)
                b_mass += tl.sum(b_times * _per_use(b_q, b_e, KIND), 1, keep_dims=True)
                b_total += tl.sum(weights(b_q, b_e, KIND), 1, keep_dims=True)
            tl.store(p_visits + o_out, b_visits, mask=m_out)
            tl.store(p_best + o_out, b_best.to(tl.int32), mask=m_out)
            tl.store(p_rest + o_out, b_rest, mask=m_out)
            tl.store(p_log + o_out, tl.where(m_divided, b_log, float("-inf")), mask=m_out)
            tl.store(p_mass + o_out, b_mass, mask=m_out)
            tl.store(p_total + o_out, b_total, mask=m_out)
        # the next level reads what other threads have written
        tl.debug_barrier()


@triton.jit(do_not_specialize=["start", "stop", "programs", "groups", "size"])
def attribute(
    p_x, p_value, p_peak, p_level, p_worth, p_covered, p_users, p_y, p_visits, p_best, p_rest, p_mass, p_total,
    p_d_value, p_out, p_first, p_edge, p_head, p_parts, p_tails, p_levels,
    start, stop, programs, groups, B, size, gamma: tl.float64, e: tl.float64,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, PARTS: tl.constexpr, TAILS: tl.constexpr,
    ROWS: tl.constexpr, EDGES: tl.constexpr, BATCH: tl.constexpr, GRADIENT: tl.constexpr, FINAL: tl.constexpr,
):  # fmt: skip
    """What the nodes of some levels, or FINAL the parts, collect: how often the derivation takes their edges, or
    GRADIENT: the derivative of its log-probability.

    That of Σ c log q at a node is (c q^(1−α) Σ w − w Σ c q^(1−α)) / (γ Σ w) for the score of an edge, with w = q^(2−α);
    what its own value has is passed on with q.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    b_scale = 1 / tl.full((1, 1, 1), gamma, tl.float64).to(WORK)
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
            o_row = o_row.to(tl.int64)[:, None, None]
            m_out = m_row[:, None, None] & m_batch
            b_sum = tl.zeros((ROWS, 1, BATCH), WORK)
            for begin in range(0, most, EDGES):
                o_place = begin + tl.arange(0, EDGES)[None, :, None]
                m_edge = o_place < o_count
                o_edge = tl.load(p_edge + o_begin + o_place, mask=m_edge, other=-1).to(tl.int64)
                o_head = tl.load(p_head + o_begin + o_place, mask=m_edge, other=0).to(tl.int64) * B + o_batch
                m_tile = m_edge & m_batch
                m_visited = m_tile & (tl.load(p_visits + o_head, mask=m_tile, other=0.0) > 0)
                b_best = tl.load(p_best + o_head, mask=m_visited, other=-1)
                b_rest = tl.load(p_rest + o_head, mask=m_visited, other=0.0)
                _, _, b_times = _times(
                    p_worth, p_covered, p_users, p_y, p_parts, p_tails, o_edge, m_visited, o_batch, B, b_best, b_rest,
                    PARTS, TAILS, WORK,
                )  # fmt: skip
                if GRADIENT:
                    b_d_value = tl.load(p_d_value + o_head, mask=m_tile, other=0.0)
                    m_tile = m_tile & (m_visited | (b_d_value != 0))
                    b_s = edge_scores(
                        p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B, PARTS, TAILS, tl.float64
                    )
                    b_peak = tl.load(p_peak + o_head, mask=m_tile, other=0.0)
                    b_level = tl.load(p_level + o_head, mask=m_tile, other=0.0)
                    b_q = probabilities(b_s, b_peak, b_level, o_edge, b_scale, b_e, KIND, WORK)
                    b_q = tl.where(m_tile, b_q, 0.0)
                    b_mass = tl.load(p_mass + o_head, mask=m_visited, other=0.0)
                    b_total = tl.load(p_total + o_head, mask=m_visited, other=1.0)
                    b_weight = weights(b_q, b_e, KIND)
                    b_taken = b_times * _per_use(b_q, b_e, KIND)
                    # an edge gains what all others have
                    b_gain = (b_taken * (b_total - b_weight) - b_weight * (b_mass - b_taken)) * b_scale / b_total
                    b_times = b_d_value * b_q + tl.where(m_visited, b_gain, 0.0)
                b_sum += tl.sum(tl.where(m_tile, b_times, 0.0), 1, keep_dims=True)
            if FINAL:
                tl.store(p_out + o_batch * size + o_row, b_sum, mask=m_out)
            else:
                tl.store(p_d_value + o_row * B + o_batch, b_sum, mask=m_out)
        tl.debug_barrier()
