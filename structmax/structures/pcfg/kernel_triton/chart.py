"""The chart of a grammar in Triton, in log space: two sums for each width on the way up, three kernels on the way down.

Cell (w, i, s) of the chart belongs to the symbol s over the words i … i + w: −inf for a nonterminal over one word and a
preterminal over more, so that a sum over all splits and symbols is over those that can be. Spans of one width do not
wait for each other; a width is a launch, whose programs share out spans, symbols and pairs of symbols.

A sum of terms exp(x) is kept by its peak, the largest x, and its share, one over the sum relative to the peak: what
reaches it is shared out by shares that sum to 1, however large the logarithms. Pairs are kept for one width at a time,
(spans, S · S), and computed anew on the way down. The tangent of the chart lies `along` cells behind it. Charts are
float64; exponentials, the bulk of the work, are WORK, the dtype of the scores.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import above, log_of, reciprocal

# Tables of pairs: log Σ over splits, and how it is shared out. With tangents, those of the first two follow.
PAIR = tl.constexpr(0)
SHARE = tl.constexpr(1)
PEAK = tl.constexpr(2)
D_PAIR = tl.constexpr(3)
D_SHARE = tl.constexpr(4)
PAIR_TABLES, PAIR_TABLES_ALONG = 3, 5
# Tables of spans (N, N, K): how the sum over pairs is shared out, and the mean of its terms' tangents.
RULE_SHARE = tl.constexpr(0)
RULE_PEAK = tl.constexpr(1)
RULE_MEAN = tl.constexpr(2)
RULE_TABLES, RULE_TABLES_ALONG = 2, 3


@triton.jit(do_not_specialize=["w", "N", "S", "along", "size"])
def sum_pairs(
    p_chart, p_pairs, p_lengths, w, N, S, along: tl.int64, size: tl.int64,
    WORK: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """PAIR of each span of a width and each pair of symbols: log Σ exp, or the best, over its splits."""
    i_b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    if i < n - w:
        o_left = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
        m_left = o_left < S
        p_left = p_chart + (i_b * N * N + i) * S + o_left
        for start in range(0, S, COLUMNS):
            o_right = start + tl.arange(0, COLUMNS)
            m_right = o_right < S
            p_right = p_chart + (i_b * N * N + (w - 1) * N + i + 1) * S + o_right
            b_peak = tl.full((ROWS, COLUMNS), float("-inf"), tl.float64)
            for t in range(0, w):
                b_left = tl.load(p_left + t * N * S, mask=m_left, other=float("-inf"))
                b_right = tl.load(p_right + t * (1 - N) * S, mask=m_right, other=float("-inf"))
                b_peak = tl.maximum(b_peak, b_left[:, None] + b_right[None, :])
            p_out = p_pairs + (i_b * N + i) * S * S + o_left[:, None] * S + o_right[None, :]
            m_out = m_left[:, None] & m_right[None, :]
            if BEST:
                tl.store(p_out + PAIR * size, b_peak, mask=m_out)
            else:
                b_peak = above(b_peak)
                b_total = tl.zeros((ROWS, COLUMNS), WORK)
                b_moment = tl.zeros((ROWS, COLUMNS), WORK)
                for t in range(0, w):
                    b_left = tl.load(p_left + t * N * S, mask=m_left, other=float("-inf"))
                    b_right = tl.load(p_right + t * (1 - N) * S, mask=m_right, other=float("-inf"))
                    b_term = tl.exp(((b_left[:, None] + b_right[None, :]) - b_peak).to(WORK))
                    b_total += b_term
                    if TANGENT:
                        b_left = tl.load(p_left + t * N * S + along, mask=m_left, other=0.0)
                        b_right = tl.load(p_right + t * (1 - N) * S + along, mask=m_right, other=0.0)
                        b_moment += b_term * (b_left[:, None] + b_right[None, :]).to(WORK)
                b_share = reciprocal(b_total)
                tl.store(p_out + PAIR * size, b_peak + log_of(b_total), mask=m_out)
                tl.store(p_out + SHARE * size, b_share, mask=m_out)
                tl.store(p_out + PEAK * size, b_peak, mask=m_out)
                if TANGENT:
                    tl.store(p_out + D_PAIR * size, b_moment * b_share, mask=m_out)


@triton.jit
def _rules_and_pairs(p_rules, p_pairs, o_a, o_i, o_pair, m_a, m_i, m_pair, S):
    """rule + pair: (rules, spans, pairs). Where no split allows a pair, its rule may hold anything."""
    b_rule = tl.load(p_rules + o_a * S * S + o_pair, mask=m_a & m_pair, other=float("-inf"))
    b_pair = tl.load(p_pairs + o_i * S * S + o_pair, mask=m_i & m_pair, other=float("-inf"))
    return tl.where(b_pair == float("-inf"), float("-inf"), b_rule + b_pair)


@triton.jit
def _tangents(p_d_rules, p_d_pairs, o_a, o_i, o_pair, m_a, m_i, m_pair, S):
    b_rule = tl.load(p_d_rules + o_a * S * S + o_pair, mask=m_a & m_pair, other=0.0)
    return b_rule + tl.load(p_d_pairs + o_i * S * S + o_pair, mask=m_i & m_pair, other=0.0)


@triton.jit(do_not_specialize=["w", "N", "K", "S", "along", "size", "spans"])
def apply_rules(
    p_chart, p_pairs, p_sums, p_rules, p_spans, p_d_rules, p_d_spans, p_lengths,
    w, N, K, S, along: tl.int64, size: tl.int64, spans: tl.int64,
    WORK: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr,
    RULES: tl.constexpr, SPANS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The chart of nonterminals over the spans of a width: log Σ exp, or the best, over rules and their pairs."""
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    o_i = (tl.program_id(1) * SPANS + tl.arange(0, SPANS))[None, :, None]
    o_a = (tl.program_id(2) * RULES + tl.arange(0, RULES))[:, None, None]
    m_i, m_a = o_i < n - w, o_a < K
    p_pairs += i_b * N * S * S
    p_rules += i_b * K * S * S
    b_peak = tl.full((RULES, SPANS, 1), float("-inf"), tl.float64)
    b_total = tl.zeros((RULES, SPANS, 1), WORK)
    b_moment = tl.zeros((RULES, SPANS, 1), WORK)
    for start in range(0, S * S, PAIRS):
        o_pair = (start + tl.arange(0, PAIRS))[None, None, :]
        m_pair = o_pair < S * S
        b_x = _rules_and_pairs(p_rules, p_pairs + PAIR * size, o_a, o_i, o_pair, m_a, m_i, m_pair, S)
        b_new = tl.maximum(b_peak, tl.max(b_x, 2, keep_dims=True))
        if not BEST:
            # What has been summed is measured by the new peak.
            b_scale = tl.exp((b_peak - above(b_new)).to(WORK))
            b_term = tl.exp((b_x - above(b_new)).to(WORK))
            b_total = b_total * b_scale + tl.sum(b_term, 2, keep_dims=True)
            if TANGENT:
                b_d_x = _tangents(
                    p_d_rules + i_b * K * S * S, p_pairs + D_PAIR * size, o_a, o_i, o_pair, m_a, m_i, m_pair, S
                )
                # A rule that is −inf may have any tangent.
                b_part = tl.where(b_term == 0, 0.0, b_term * b_d_x.to(WORK))
                b_moment = b_moment * b_scale + tl.sum(b_part, 2, keep_dims=True)
        b_peak = b_new
    m_out = m_a & m_i
    o_span = ((i_b * N + o_i) * N + o_i + w) * K + o_a
    o_sum = ((i_b * N + w) * N + o_i) * K + o_a
    o_cell = ((i_b * N + w) * N + o_i) * S + o_a
    b_span = tl.load(p_spans + o_span, mask=m_out, other=float("-inf"))
    if BEST:
        tl.store(p_chart + o_cell, b_peak + b_span, mask=m_out)
    else:
        b_share = reciprocal(b_total)
        tl.store(p_chart + o_cell, (above(b_peak) + log_of(b_total)) + b_span, mask=m_out)
        tl.store(p_sums + RULE_SHARE * spans + o_sum, b_share, mask=m_out)
        tl.store(p_sums + RULE_PEAK * spans + o_sum, above(b_peak), mask=m_out)
        if TANGENT:
            b_d_span = tl.load(p_d_spans + o_span, mask=m_out, other=0.0)
            b_d_span = tl.where(b_span == float("-inf"), 0.0, b_d_span)
            tl.store(p_sums + RULE_MEAN * spans + o_sum, b_moment * b_share, mask=m_out)
            tl.store(p_chart + along + o_cell, b_moment * b_share + b_d_span, mask=m_out)


@triton.jit(do_not_specialize=["w", "N", "K", "S", "along", "size", "spans", "rules"])
def share_rules(
    p_mu, p_pairs, p_sums, p_rules, p_d_rules, p_counts, p_lengths,
    w, N, K, S, along: tl.int64, size: tl.int64, spans: tl.int64, rules: tl.int64,
    WORK: tl.constexpr, TANGENT: tl.constexpr, RULES: tl.constexpr, SPANS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """What reaches the nonterminals over the spans of a width goes to rules, which count it, and to pairs.

    SHARE of a pair becomes what reached it times its share. A program has a few pairs, with all spans and nonterminals.
    """
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    o_pair = (tl.program_id(1) * PAIRS + tl.arange(0, PAIRS))[None, None, :]
    m_pair = o_pair < S * S
    p_pairs += i_b * N * S * S
    p_rules += i_b * K * S * S
    p_counts += i_b * K * S * S
    for first in range(0, n - w, SPANS):
        o_i = (first + tl.arange(0, SPANS))[None, :, None]
        m_i = o_i < n - w
        b_amount = tl.zeros((1, SPANS, PAIRS), WORK)
        b_d_amount = tl.zeros((1, SPANS, PAIRS), WORK)
        for start in range(0, K, RULES):
            o_a = (start + tl.arange(0, RULES))[:, None, None]
            m_a = o_a < K
            p_cell = p_mu + ((i_b * N + w) * N + o_i) * S + o_a
            p_sum = p_sums + ((i_b * N + w) * N + o_i) * K + o_a
            b_mu = tl.load(p_cell, mask=m_a & m_i, other=0.0)
            b_share = tl.load(p_sum + RULE_SHARE * spans, mask=m_a & m_i, other=0.0)
            b_peak = tl.load(p_sum + RULE_PEAK * spans, mask=m_a & m_i, other=0.0)
            b_x = _rules_and_pairs(p_rules, p_pairs + PAIR * size, o_a, o_i, o_pair, m_a, m_i, m_pair, S)
            b_term = tl.exp((b_x - b_peak).to(WORK))
            b_part = b_term * (b_mu * b_share).to(WORK)
            b_amount += tl.sum(b_part, 0, keep_dims=True)
            p_count = p_counts + o_a * S * S + o_pair
            b_count = tl.load(p_count, mask=m_a & m_pair, other=0.0) + tl.sum(b_part, 1, keep_dims=True)
            tl.store(p_count, b_count, mask=m_a & m_pair)
            if TANGENT:
                b_d_mu = tl.load(p_cell + along, mask=m_a & m_i, other=0.0)
                b_mean = tl.load(p_sum + RULE_MEAN * spans, mask=m_a & m_i, other=0.0)
                b_d_x = _tangents(
                    p_d_rules + i_b * K * S * S, p_pairs + D_PAIR * size, o_a, o_i, o_pair, m_a, m_i, m_pair, S
                )
                b_d_part = b_term * ((b_d_mu + b_mu * (b_d_x - b_mean)) * b_share).to(WORK)
                b_d_part = tl.where(b_term == 0, 0.0, b_d_part)
                b_d_amount += tl.sum(b_d_part, 0, keep_dims=True)
                b_count = tl.load(p_count + rules, mask=m_a & m_pair, other=0.0)
                tl.store(p_count + rules, b_count + tl.sum(b_d_part, 1, keep_dims=True), mask=m_a & m_pair)
        p_out = p_pairs + o_i * S * S + o_pair
        b_share = tl.load(p_out + SHARE * size, mask=m_i & m_pair, other=0.0)
        tl.store(p_out + SHARE * size, b_amount * b_share, mask=m_i & m_pair)
        if TANGENT:
            b_mean = tl.load(p_out + D_PAIR * size, mask=m_i & m_pair, other=0.0)
            tl.store(p_out + D_SHARE * size, (b_d_amount - b_amount * b_mean) * b_share, mask=m_i & m_pair)
        # Counts are read again by whichever thread has them.
        tl.debug_barrier()


@triton.jit
def _received(
    p_chart, p_pair, p_sibling, step_sibling, b_own, b_d_own, m_own, S, along, size,
    WORK: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What symbols (ROWS,) of a child receive from one parent, whatever symbol its sibling has."""
    b_sum = tl.zeros((ROWS, COLUMNS), WORK)
    b_d_sum = tl.zeros((ROWS, COLUMNS), WORK)
    for start in range(0, S, COLUMNS):
        o_sibling = start + tl.arange(0, COLUMNS)
        m_sibling = o_sibling < S
        b_sibling = tl.load(p_sibling + o_sibling, mask=m_sibling, other=float("-inf"))
        p_cell = p_pair[:, None] + o_sibling[None, :] * step_sibling
        m_cell = m_own[:, None] & m_sibling[None, :]
        b_amount = tl.load(p_cell + SHARE * size, mask=m_cell, other=0.0).to(WORK)
        b_peak = tl.load(p_cell + PEAK * size, mask=m_cell, other=0.0)
        b_term = tl.exp(((b_own[:, None] + b_sibling[None, :]) - b_peak).to(WORK))
        b_sum += b_term * b_amount
        if TANGENT:
            b_d_amount = tl.load(p_cell + D_SHARE * size, mask=m_cell, other=0.0).to(WORK)
            b_d_sibling = tl.load(p_sibling + along + o_sibling, mask=m_sibling, other=0.0)
            b_d_sum += b_term * (b_d_amount + b_amount * (b_d_own[:, None] + b_d_sibling[None, :]).to(WORK))
    return tl.sum(b_sum, 1), tl.sum(b_d_sum, 1)


@triton.jit(do_not_specialize=["w", "N", "S", "along", "size"])
def to_children(
    p_chart, p_mu, p_pairs, p_lengths, w, N, S, along: tl.int64, size: tl.int64,
    WORK: tl.constexpr, TANGENT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Each span narrower than w collects from its two parents of that width: where it is left child, and right."""
    i_b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    blocks = tl.cdiv(S, ROWS)
    t = tl.program_id(2) // blocks
    n = tl.load(p_lengths + i_b).to(tl.int32)
    if (i < n - t) & (w < n):
        o_own = (tl.program_id(2) % blocks) * ROWS + tl.arange(0, ROWS)
        m_own = o_own < S
        p_chart += i_b * N * N * S
        p_pairs += i_b * N * S * S
        o_here = (t * N + i) * S + o_own
        p_here = p_mu + i_b * N * N * S + o_here
        b_own = tl.load(p_chart + o_here, mask=m_own, other=float("-inf"))
        b_mu = tl.load(p_here, mask=m_own, other=0.0)
        b_d_own = tl.zeros((ROWS,), tl.float64)
        b_d_mu = tl.zeros((ROWS,), tl.float64)
        if TANGENT:
            b_d_own = tl.load(p_chart + along + o_here, mask=m_own, other=0.0)
            b_d_mu = tl.load(p_here + along, mask=m_own, other=0.0)
        # the sibling has the other w − t words
        p_siblings = p_chart + (w - t - 1) * N * S
        if i < n - w:
            p_pair = p_pairs + i * S * S + o_own * S
            part, d_part = _received(
                p_chart, p_pair, p_siblings + (i + t + 1) * S, 1, b_own, b_d_own, m_own, S, along, size,
                WORK, TANGENT, ROWS, COLUMNS,
            )  # fmt: skip
            b_mu += part
            b_d_mu += d_part
        start = i + t - w
        if start >= 0:
            p_pair = p_pairs + start * S * S + o_own
            part, d_part = _received(
                p_chart, p_pair, p_siblings + start * S, S, b_own, b_d_own, m_own, S, along, size,
                WORK, TANGENT, ROWS, COLUMNS,
            )  # fmt: skip
            b_mu += part
            b_d_mu += d_part
        tl.store(p_here, b_mu, mask=m_own)
        if TANGENT:
            tl.store(p_here + along, b_d_mu, mask=m_own)
