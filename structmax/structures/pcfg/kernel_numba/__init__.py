"""Parses on the CPU, compiled by Numba; derivations: ../README.md.

Sentences are independent and run on several threads. Charts are float64 whatever the dtype of the scores: products of
matrices where they are safe (`linear`), log space where they are not (`log`). Scores are
terms (B, N, T), rules (B, K, S, S), roots (B, K) and spans (B, N, N, K).
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.llvm import LANES
from structmax.structures.pcfg.kernel_numba import linear
from structmax.structures.pcfg.kernel_numba import log as log_space
from structmax.structures.pcfg.kernel_numba.chart import Sizes, lay_out, sound, transpose, usable
from structmax.structures.pcfg.kernel_numba.walks import fill_best, follow_best

read_grammar, inside_linear, value_of, outside_linear = (
    linear.read_grammar,
    linear.inside,
    linear.value_of,
    linear.outside,
)
new_grammar, new_chart, new_work, new_slopes = linear.new_grammar, linear.new_chart, linear.new_work, linear.new_slopes
inside_log, outside_log, new_weights = log_space.inside, log_space.outside, log_space.new_weights


@compiled()
def _inside(terms, rules, roots, spans, n, sizes, grammar, chart, work):
    """log Z, and whether it is safe: if not, the value is none."""
    best_rule, safe = read_grammar(rules, n, sizes, grammar)
    if safe and inside_linear(terms, spans, n, sizes, best_rule, grammar, chart, work):
        return value_of(roots, n, sizes, chart), True
    return 0.0, False


@compiled()
def _plain_value(terms, rules, roots, spans, n):
    """The value where nothing has to be computed, and whether that is so."""
    if n < 2:
        return (0.0 if n == 0 else -np.inf), True
    return np.nan, not sound(terms, rules, roots, spans, n)


@kernel()
def _value_rows(begin, stop, terms, rules, roots, spans, lengths, sizes, value, safe):
    grammar, chart, work = new_grammar(sizes), new_chart(sizes), new_work(sizes)
    for b in range(begin, stop):
        scores = terms[b], rules[b], roots[b], spans[b]
        value[b], safe[b] = _plain_value(*scores, lengths[b])
        if not safe[b]:
            value[b], safe[b] = _inside(*scores, lengths[b], sizes, grammar, chart, work)


@kernel()
def _log_value_rows(begin, stop, terms, rules, roots, spans, lengths, value, safe):
    N, S = terms.shape[1], rules.shape[2]
    chart, pairs, weights = np.empty((N, N, S)), np.empty((S, S)), new_weights(N, S)
    for b in range(begin, stop):
        if not safe[b]:
            value[b] = inside_log(terms[b], rules[b], roots[b], spans[b], lengths[b], chart, pairs, weights)


@compiled()
def _spoil(n, d_terms, d_rules, d_roots, d_spans):
    """NaN for every part of a sentence whose scores hold NaN or +inf."""
    d_terms[:n] = np.nan
    d_roots[:] = np.nan
    K, S = d_rules.shape[0], d_rules.shape[1]
    for b in range(S):
        for c in range(S):
            if usable(b, c, n, K):
                d_rules[:, b, c] = np.nan
    for i in range(n):
        d_spans[i, i + 1 : n] = np.nan


@kernel()
def _marginal_rows(
    begin, stop, terms, rules, roots, spans, lengths, sizes, value, safe, d_terms, d_rules, d_roots, d_spans
):
    grammar, chart, work, slopes = new_grammar(sizes), new_chart(sizes), new_work(sizes), new_slopes(sizes)
    for b in range(begin, stop):
        n = lengths[b]
        scores, out = (terms[b], rules[b], roots[b], spans[b]), (d_terms[b], d_rules[b], d_roots[b], d_spans[b])
        value[b], safe[b] = _plain_value(*scores, n)
        if np.isnan(value[b]) and safe[b]:
            _spoil(n, *out)
        elif not safe[b]:
            value[b], safe[b] = _inside(*scores, n, sizes, grammar, chart, work)
            # as a number of the scores' dtype
            if safe[b] and value[b] > -np.inf:
                outside_linear(roots[b], n, sizes, grammar, chart, work, slopes, *out)


@kernel()
def _log_marginal_rows(
    begin, stop, terms, rules, roots, spans, lengths, value, safe, d_terms, d_rules, d_roots, d_spans
):
    N, S = terms.shape[1], rules.shape[2]
    chart, mu, weights = np.empty((N, N, S)), np.empty((N, N, S)), new_weights(N, S)
    pairs, d_pairs, counts = np.empty((S, S)), np.empty((S, S)), np.empty(rules[0].shape)
    for b in range(begin, stop):
        if not safe[b]:
            value[b] = inside_log(terms[b], rules[b], roots[b], spans[b], lengths[b], chart, pairs, weights)
            if value[b] > -np.inf:
                arrays = chart, pairs, weights, d_pairs, mu, counts, d_terms[b], d_rules[b], d_roots[b], d_spans[b]
                outside_log(rules[b], roots[b], lengths[b], *arrays)


@kernel()
def _argmax_rows(begin, stop, terms, rules, roots, spans, lengths, sizes, d_terms, d_rules, d_roots, d_spans):
    N, K, P = sizes.N, sizes.K, sizes.P
    wide, short = np.empty(K * sizes.pairs), np.empty(K * sizes.short)
    wide_columns, short_columns = np.full(sizes.pairs * P, -np.inf), np.full(sizes.short * P, -np.inf)
    words, left, right = np.empty(N * sizes.U), np.empty(N * N * P), np.empty(N * N * P)
    pairs, sums = np.empty(N * max(sizes.pairs, sizes.short)), np.empty(N * P)
    pending = np.empty((N + 1, 3), np.int64)
    for b in range(begin, stop):
        n = lengths[b]
        if n < 2:
            continue
        if not sound(terms[b], rules[b], roots[b], spans[b], n):
            _spoil(n, d_terms[b], d_rules[b], d_roots[b], d_spans[b])
            continue
        lay_out(rules[b], n, sizes, -np.inf, wide, short)
        transpose(wide, K, sizes.pairs, P, wide_columns)
        transpose(short, K, sizes.short, P, short_columns)
        chart = words, left, right, pairs
        fill_best(terms[b], spans[b], n, sizes, wide_columns, short_columns, *chart, sums)
        out = d_terms[b], d_rules[b], d_roots[b], d_spans[b]
        follow_best(roots[b], n, sizes, wide, short, *chart, pending, *out)


# --- the questions -------------------------------------------------------------------------------------------------


def _sizes(terms: Tensor, roots: Tensor) -> Sizes:
    return Sizes.of(terms.shape[1], terms.shape[2], roots.shape[1])


def _work(terms: Tensor, rules: Tensor) -> int:
    """Element visits: each rule at each span, LANES at a time."""
    return rules.numel() * (1 + terms.shape[1] * terms.shape[1] // (2 * LANES))


def log_partition(terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over parses of exp(score): (B,)."""
    scores = tuple(t.numpy() for t in (terms, rules, roots, spans, lengths))
    value, safe = terms.new_empty(len(terms)), np.ones(len(terms), np.bool_)
    over_rows(_value_rows, len(terms), _work(terms, rules), *scores, _sizes(terms, roots), value.numpy(), safe)
    # A kernel of its own: most often it need not even be compiled.
    if not safe.all():
        over_rows(_log_value_rows, len(terms), LANES * _work(terms, rules), *scores, value.numpy(), safe)
    return value


def log_partition_and_marginals(
    terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor
) -> tuple[Tensor, ...]:
    """The value (B,), and the expected number of uses of each part."""
    scores = tuple(t.numpy() for t in (terms, rules, roots, spans, lengths))
    value, safe = terms.new_empty(len(terms)), np.ones(len(terms), np.bool_)
    parts = tuple(torch.zeros_like(t) for t in (terms, rules, roots, spans))
    out = value.numpy(), safe, *(t.numpy() for t in parts)
    over_rows(_marginal_rows, len(terms), 3 * _work(terms, rules), *scores, _sizes(terms, roots), *out)
    if not safe.all():
        over_rows(_log_marginal_rows, len(terms), 3 * LANES * _work(terms, rules), *scores, *out)
    return value, *parts


def argmax(terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """The parts of a best parse."""
    scores = terms, rules, roots, spans
    parts = tuple(torch.zeros_like(t) for t in scores)
    arrays = *(t.numpy() for t in (*scores, lengths)), _sizes(terms, roots), *(t.numpy() for t in parts)
    over_rows(_argmax_rows, len(terms), _work(terms, rules), *arrays)
    return parts
