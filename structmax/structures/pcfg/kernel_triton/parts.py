"""The ends of the chart: whether scores are sound, the value, what the roots receive, and the parts of the answer."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import above, log_of, mean, reciprocal


@triton.jit
def _usable(o_pair, n, K, S):
    """Whether a sentence of n words is long enough for a rule with this pair of children."""
    return 2 + (o_pair // S < K).to(tl.int32) + (o_pair % S < K).to(tl.int32) <= n


@triton.jit
def _broken(b_x):
    """1 if a score is NaN or +inf, else 0."""
    return tl.max((b_x < float("inf")).to(tl.int32) ^ 1, 0)


@triton.jit(do_not_specialize=["N", "K", "T"])
def check_scores(p_terms, p_rules, p_roots, p_spans, p_lengths, p_sound, N, K, T, COLUMNS: tl.constexpr):
    """For each nonterminal 0, or NaN if a score of it is NaN or +inf; those of words count for the first."""
    i_b = tl.program_id(0).to(tl.int64)
    a = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    n = tl.where(n > 1, n, 0)
    S = K + T
    o_column = tl.arange(0, COLUMNS)
    b_root = tl.load(p_roots + i_b * K + a + o_column, mask=o_column < tl.where(n > 0, 1, 0), other=0.0)
    broken = _broken(b_root)
    for start in range(0, tl.where(n > 0, S * S, 0), COLUMNS):
        o_pair = start + o_column
        m_pair = (o_pair < S * S) & _usable(o_pair, n, K, S)
        b_rule = tl.load(p_rules + (i_b * K + a) * S * S + o_pair, mask=m_pair, other=0.0)
        broken = tl.maximum(broken, _broken(b_rule))
    for start in range(0, n * N, COLUMNS):
        o_span = start + o_column
        m_span = (o_span // N < o_span % N) & (o_span % N < n)
        b_span = tl.load(p_spans + (i_b * N * N + o_span) * K + a, mask=m_span, other=0.0)
        broken = tl.maximum(broken, _broken(b_span))
    for start in range(0, tl.where(a == 0, n * T, 0), COLUMNS):
        o_term = start + o_column
        b_term = tl.load(p_terms + i_b * N * T + o_term, mask=o_term < n * T, other=0.0)
        broken = tl.maximum(broken, _broken(b_term))
    tl.store(p_sound + i_b * K + a, tl.where(broken > 0, float("nan"), 0.0))


@triton.jit(do_not_specialize=["N", "K", "S", "along"])
def finish(
    p_chart, p_roots, p_d_roots, p_sound, p_lengths, p_value, p_mu, N, K, S, along: tl.int64,
    BEST: tl.constexpr, OUTSIDE: tl.constexpr, TANGENT: tl.constexpr, SYMBOLS: tl.constexpr,
):  # fmt: skip
    """The value, log Σ exp or the best over roots; and what reaches the nonterminals over the whole."""
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    o_a = tl.arange(0, SYMBOLS)[None, :]
    m_a = o_a < tl.where(n > 1, K, 0)
    o_cell = ((i_b * N + n - 1) * N) * S + o_a
    b_cell = tl.load(p_chart + o_cell, mask=m_a, other=float("-inf"))
    b_root = tl.load(p_roots + i_b * K + o_a, mask=m_a, other=0.0)
    b_x = tl.where(b_cell == float("-inf"), float("-inf"), b_cell + b_root)
    peak = tl.max(b_x, 1, keep_dims=True)
    b_term = tl.exp(b_x - above(peak))
    total = tl.sum(b_term, 1, keep_dims=True)
    value = peak if BEST else peak + log_of(total)
    sound = tl.sum(tl.load(p_sound + i_b * K + o_a, mask=m_a, other=0.0), 1, keep_dims=True)
    value = tl.where(n == 0, 0.0, value + sound)
    tl.store(p_value + i_b + tl.zeros_like(o_a), value, mask=o_a == 0)
    if OUTSIDE:
        b_share = b_term * reciprocal(total)
        tl.store(p_mu + o_cell, b_share, mask=m_a)
        if TANGENT:
            b_d_x = tl.load(p_d_roots + i_b * K + o_a, mask=m_a, other=0.0)
            b_d_x += tl.load(p_chart + along + o_cell, mask=m_a, other=0.0)
            b_d_mu = tl.where(b_share == 0, 0.0, b_share * (b_d_x - mean(b_share, b_d_x)))
            tl.store(p_mu + along + o_cell, b_d_mu, mask=m_a)


@triton.jit(do_not_specialize=["N", "K", "T", "D"])
def write_parts(
    p_mu, p_counts, p_value, p_lengths, p_terms, p_rules, p_roots, p_spans, N, K, T, D,
    BLANK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The parts of an instance, or of one of its D draws: marginals, or zeros for a walk to be written on.

    They are NaN where the value is, and 0 where there is no part. A program has a word, with the spans that begin
    there, or a nonterminal, with its rules.
    """
    i_row = tl.program_id(0).to(tl.int64)
    i_b = i_row // D
    i = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    n = tl.where(n > 1, n, 0)
    value = tl.load(p_value + i_b)
    nothing = tl.where(value == value, 0.0, value)
    # where there are marginals
    known = tl.where(value > float("-inf"), n, 0)
    S = K + T
    o_column = tl.arange(0, COLUMNS)
    if i < N:
        p_mu += i_b * N * N * S + i * S
        for start in range(0, T, COLUMNS):
            o_t = start + o_column
            b_out = tl.where(o_t < tl.where(i < n, T, 0), nothing, 0.0)
            if not BLANK:
                b_out += tl.load(p_mu + K + o_t, mask=o_t < tl.where(i < known, T, 0), other=0.0)
            tl.store(p_terms + (i_row * N + i) * T + o_t, b_out, mask=o_t < T)
        for start in range(0, N * K, COLUMNS):
            o_span = start + o_column
            o_j = o_span // K
            m_span = (o_j > i) & (o_j < n)
            b_out = tl.where(m_span, nothing, 0.0)
            if not BLANK:
                b_out += tl.load(p_mu + (o_j - i) * N * S + o_span % K, mask=m_span & (o_j < known), other=0.0)
            tl.store(p_spans + (i_row * N + i) * N * K + o_span, b_out, mask=o_span < N * K)
    else:
        a = i - N
        b_root = tl.where(o_column < tl.where(n > 0, 1, 0), nothing, 0.0)
        if not BLANK:
            o_root = i_b * N * N * S + (n - 1) * N * S + a + o_column
            b_root += tl.load(p_mu + o_root, mask=o_column < tl.where(known > 0, 1, 0), other=0.0)
        tl.store(p_roots + i_row * K + a + o_column, b_root, mask=o_column == 0)
        for start in range(0, S * S, COLUMNS):
            o_pair = start + o_column
            m_pair = o_pair < S * S
            b_out = tl.where(m_pair & _usable(o_pair, n, K, S), nothing, 0.0)
            if not BLANK:
                m_count = m_pair & _usable(o_pair, known, K, S)
                b_out += tl.load(p_counts + (i_b * K + a) * S * S + o_pair, mask=m_count, other=0.0)
            tl.store(p_rules + (i_row * K + a) * S * S + o_pair, b_out, mask=m_pair)
