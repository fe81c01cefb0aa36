"""Parses of a factorised grammar on the CPU, compiled by Numba; derivations: ../README.md.

Sentences are independent and run on several threads. Charts are float64 whatever the dtype of the scores: products of
matrices where they are safe (`linear`), log space where they are not (`log`). Scores are terms (B, N, T), roots (B, K),
heads (B, K, R), left and right (B, R, S), spans (B, N, N, K) and ranks (B, N, N, R).
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.llvm import LANES
from structmax.structures.low_rank_pcfg.kernel_numba import linear
from structmax.structures.low_rank_pcfg.kernel_numba import log as log_space
from structmax.structures.low_rank_pcfg.kernel_numba.chart import Sizes, sound
from structmax.structures.low_rank_pcfg.kernel_numba.walks import fill_best, follow_best, new_best

read_grammar, inside_linear, value_of, outside_linear = (
    linear.read_grammar,
    linear.inside,
    linear.value_of,
    linear.outside,
)
new_factors, new_chart, new_slopes = linear.new_factors, linear.new_chart, linear.new_slopes
inside_log, outside_log, new_log_chart, new_counts = (
    log_space.inside,
    log_space.outside,
    log_space.new_chart,
    log_space.new_counts,
)


@compiled()
def _inside(terms, roots, heads, left, right, spans, ranks, n, sizes, factors, chart, weight):
    """log Z, and whether it is safe: if not, the value is none."""
    best_rule, safe = read_grammar(heads, left, right, n, sizes, factors)
    if safe and inside_linear(terms, spans, ranks, n, sizes, best_rule, factors, chart, weight):
        return value_of(roots, n, sizes, chart), True
    return 0.0, False


@compiled()
def _plain_value(scores, n):
    """The value where nothing has to be computed, and whether that is so."""
    if n < 2:
        return (0.0 if n == 0 else -np.inf), True
    return np.nan, not sound(*scores, n)


@compiled()
def _of_row(b, scores):
    terms, roots, heads, left, right, spans, ranks = scores
    return terms[b], roots[b], heads[b], left[b], right[b], spans[b], ranks[b]


@kernel()
def _value_rows(begin, stop, scores, lengths, sizes, value, safe):
    factors, chart, weight = new_factors(sizes), new_chart(sizes), np.empty(sizes.N)
    for b in range(begin, stop):
        own = _of_row(b, scores)
        value[b], safe[b] = _plain_value(own, lengths[b])
        if not safe[b]:
            value[b], safe[b] = _inside(*own, lengths[b], sizes, factors, chart, weight)


@kernel()
def _log_value_rows(begin, stop, scores, lengths, sizes, value, safe):
    S = sizes.K + sizes.T
    chart, weight = new_log_chart(sizes.N, S, sizes.R), np.empty(max(sizes.N, S, sizes.R))
    for b in range(begin, stop):
        if not safe[b]:
            value[b] = inside_log(*_of_row(b, scores), lengths[b], chart, weight)


@compiled()
def _spoil(n, d_terms, d_roots, d_heads, d_left, d_right, d_spans, d_ranks):
    """NaN for every part of a sentence whose scores hold NaN or +inf."""
    d_terms[:n] = np.nan
    d_roots[:] = np.nan
    d_heads[:] = np.nan
    children = len(d_roots) if n < 3 else 0
    d_left[:, children:] = np.nan
    d_right[:, children:] = np.nan
    for i in range(n):
        d_spans[i, i + 1 : n] = np.nan
        d_ranks[i, i + 1 : n] = np.nan


@kernel()
def _marginal_rows(begin, stop, scores, lengths, sizes, value, safe, parts):
    factors, chart, slopes, weight = new_factors(sizes), new_chart(sizes), new_slopes(sizes), np.empty(sizes.N)
    for b in range(begin, stop):
        n = lengths[b]
        own, out = _of_row(b, scores), _of_row(b, parts)
        value[b], safe[b] = _plain_value(own, n)
        if np.isnan(value[b]) and safe[b]:
            _spoil(n, *out)
        elif not safe[b]:
            value[b], safe[b] = _inside(*own, n, sizes, factors, chart, weight)
            # as a number of the scores' dtype
            if safe[b] and value[b] > -np.inf:
                outside_linear(own[1], n, sizes, factors, chart, slopes, weight, *out)


@kernel()
def _log_marginal_rows(begin, stop, scores, lengths, sizes, value, safe, parts):
    N, K, R, S = sizes.N, sizes.K, sizes.R, sizes.K + sizes.T
    chart, mu = new_log_chart(N, S, R), new_log_chart(N, S, R)
    counts, weight = new_counts(K, R, S), np.empty(max(N, S, R))
    for b in range(begin, stop):
        if not safe[b]:
            own = _of_row(b, scores)
            value[b] = inside_log(*own, lengths[b], chart, weight)
            if value[b] > -np.inf:
                outside_log(*own[1:5], lengths[b], chart, mu, weight, counts, *_of_row(b, parts))


@kernel()
def _argmax_rows(begin, stop, scores, lengths, sizes, parts):
    best, pending = new_best(sizes), np.empty((sizes.N + 1, 3), np.int64)
    for b in range(begin, stop):
        n = lengths[b]
        own, out = _of_row(b, scores), _of_row(b, parts)
        if n < 2:
            continue
        if not sound(*own, n):
            _spoil(n, *out)
            continue
        terms, roots, heads, left, right, spans, ranks = own
        fill_best(terms, heads, left, right, spans, ranks, n, sizes, best)
        follow_best(roots, heads, left, right, n, sizes, best, pending, *out)


# --- the questions -------------------------------------------------------------------------------------------------


def _arrays(tensors: tuple[Tensor, ...]) -> tuple[np.ndarray, ...]:
    return tuple(t.numpy() for t in tensors)


def _sizes(scores: tuple[Tensor, ...]) -> Sizes:
    return Sizes.of(scores[0].shape[1], scores[0].shape[2], *scores[2].shape[1:])


def _work(scores: tuple[Tensor, ...]) -> int:
    """Element visits: each factor of the rules at each span, LANES at a time."""
    words = scores[0].shape[1]
    return sum(t.numel() for t in scores[2:5]) * (1 + words * words // (2 * LANES))


def log_partition(*scores: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over parses of exp(score): (B,)."""
    value, safe = scores[0].new_empty(len(lengths)), np.ones(len(lengths), np.bool_)
    arguments = _arrays(scores), lengths.numpy(), _sizes(scores), value.numpy(), safe
    over_rows(_value_rows, len(lengths), _work(scores), *arguments)
    # A kernel of its own: most often it need not even be compiled.
    if not safe.all():
        over_rows(_log_value_rows, len(lengths), LANES * _work(scores), *arguments)
    return value


def log_partition_and_marginals(*scores: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """The value (B,), and the expected number of uses of each part."""
    value, safe = scores[0].new_empty(len(lengths)), np.ones(len(lengths), np.bool_)
    parts = tuple(torch.zeros_like(t) for t in scores)
    arguments = _arrays(scores), lengths.numpy(), _sizes(scores), value.numpy(), safe, _arrays(parts)
    over_rows(_marginal_rows, len(lengths), 3 * _work(scores), *arguments)
    if not safe.all():
        over_rows(_log_marginal_rows, len(lengths), 3 * LANES * _work(scores), *arguments)
    return value, *parts


def argmax(*scores: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """The parts of a best parse."""
    parts = tuple(torch.zeros_like(t) for t in scores)
    over_rows(
        _argmax_rows, len(lengths), _work(scores), _arrays(scores), lengths.numpy(), _sizes(scores), _arrays(parts)
    )
    return parts
