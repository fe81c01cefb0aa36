"""Inside and outside in products of matrices: no exponential but one for each score and one for each split.

The vector of a span is scaled to a maximum of 1, and the logarithm of its scale kept. A feasible entry has to be at
least SMALL in it, as have rules, terms and spans next to the best of theirs; splits weigh at least TINY next to the
best, and a span's best sum over rules is at least TINY. Then no product underflows, a 0 is what cannot be built, and
all is exact to rounding. Otherwise log space takes over (../README.md).
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.tiles import add_product
from structmax.structures.pcfg.kernel_numba.chart import lay_out, place_of_pair, transpose

SMALL, TINY = 1e-50, 1e-100
LOG_SMALL, LOG_TINY = np.log(SMALL), np.log(TINY)


class Grammar(NamedTuple):
    """The weights of the rules next to the best, by rows of pairs, and transposed, by rows of nonterminals."""

    wide: np.ndarray
    short: np.ndarray
    wide_columns: np.ndarray
    short_columns: np.ndarray


class Chart(NamedTuple):
    """What the inside pass leaves."""

    # (N, U) and (N,): preterminals, scaled, and the logarithm of their scale
    words: np.ndarray
    word_scale: np.ndarray
    # (N, N, P) each: the vectors of spans, and what turned a sum over rules into an entry
    left: np.ndarray
    right: np.ndarray
    factor: np.ndarray
    # (N, N) by first and last word, and by last and first
    left_scale: np.ndarray
    right_scale: np.ndarray


class Work(NamedTuple):
    """Room for the spans of one width: N rows of pairs, N rows of sums over rules, and the splits of one span."""

    pairs: np.ndarray
    sums: np.ndarray
    split: np.ndarray
    weight: np.ndarray


@compiled()
def _weigh(scores, peak, out):
    """exp(scores − peak), 0 if that is −inf; whether all that are feasible are at least SMALL."""
    low = 0.0
    for k in range(len(scores)):
        below = scores[k] - peak if peak > -np.inf else -np.inf
        low = min(low, below if below > -np.inf else 0.0)
        out[k] = exp(np.float64(below))
    return low >= LOG_SMALL


@compiled()
def read_grammar(rules, n, sizes, grammar):
    """Fills the grammar; returns the score of the best rule, and whether all are safe."""
    lay_out(rules, n, sizes, -np.inf, grammar.wide, grammar.short)
    peak = max(np.max(grammar.wide), np.max(grammar.short))
    safe = _weigh(grammar.wide, peak, grammar.wide) and _weigh(grammar.short, peak, grammar.short)
    grammar.wide_columns[:] = 0.0
    grammar.short_columns[:] = 0.0
    transpose(grammar.wide, sizes.K, sizes.pairs, sizes.P, grammar.wide_columns)
    transpose(grammar.short, sizes.K, sizes.short, sizes.P, grammar.short_columns)
    return peak, safe


@compiled()
def _weigh_splits(i, j, n, sizes, chart, weight):
    """weight[k] of the split after word i + k, next to the best, for j > i + 1. The best, and whether all are safe."""
    N = sizes.N
    count, peak = j - i, -np.inf
    for k in range(count):
        left = chart.word_scale[i] if k == 0 else chart.left_scale[i * N + i + k]
        right = chart.word_scale[j] if k == count - 1 else chart.right_scale[j * N + i + k + 1]
        weight[k] = left + right
        peak = max(peak, weight[k])
    safe = True
    for k in range(count):
        safe &= weight[k] == -np.inf or weight[k] - peak >= LOG_TINY
        weight[k] = exp(weight[k] - peak) if peak > -np.inf else 0.0
    return peak, safe


@compiled()
def _scale_rows(source, begin, rows, weight, pitch, out):
    """out[r] = weight[r] · source[r], for rows of `pitch` entries from `begin` on."""
    for r in range(rows):
        for p in range(pitch):
            out[r * pitch + p] = weight[r] * source[begin + r * pitch + p]


@compiled()
def _outer(a, begin_a, rows, b, begin_b, columns, weight, out, begin):
    """out[r, c] = weight · a[r] · b[c]."""
    for r in range(rows):
        for c in range(columns):
            out[begin + r * columns + c] = weight * a[begin_a + r] * b[begin_b + c]


@compiled()
def _fill_pairs(w, n, sizes, chart, work, peaks):
    """The sums over splits of all spans of width w, in rows of pairs, and what they are scaled by. Whether safe."""
    N, K, T, P, U = sizes.N, sizes.K, sizes.T, sizes.P, sizes.U
    all_safe = True
    if w == 1:
        for i in range(n - 1):
            peaks[i] = chart.word_scale[i] + chart.word_scale[i + 1]
            _outer(chart.words, i * U, T, chart.words, (i + 1) * U, U, 1.0, work.pairs, i * sizes.short)
        return all_safe
    for i in range(n - w):
        j, row = i + w, i * sizes.pairs
        peaks[i], safe = _weigh_splits(i, j, n, sizes, chart, work.weight)
        all_safe &= safe
        work.pairs[row : row + sizes.second] = 0.0
        # Both children nonterminals: splits after the words i + 1 … j − 2.
        first, count = (i * N + i + 1) * P, w - 2
        _scale_rows(chart.left, first, count, work.weight[1:], P, work.split)
        right = (j * N + i + 2) * P
        add_product(work.pairs, row, P, work.split, 0, 1, P, chart.right, right, P, K, P, count)
        first, last = (j * N + i + 1) * P, (i * N + j - 1) * P
        _outer(chart.words, i * U, T, chart.right, first, P, work.weight[0], work.pairs, row + sizes.second)
        _outer(chart.left, last, K, chart.words, j * U, U, work.weight[w - 1], work.pairs, row + sizes.third)
    return all_safe


@compiled()
def _finish(i, j, peak, spans, sizes, sums, chart):
    """The vector of a span from its sums over rules; whether all that is feasible in it is safe."""
    N, K, P = sizes.N, sizes.K, sizes.P
    at_left, at_right = (i * N + j) * P, (j * N + i) * P
    factor = chart.factor[at_left : at_left + K]
    high = np.max(spans[i, j])
    safe = _weigh(spans[i, j], high, factor)
    top = 0.0
    for a in range(K):
        top = max(top, factor[a] * sums[a])
    scale = peak + high + np.log(top) if top > 0 else -np.inf
    chart.left_scale[i * N + j] = scale
    chart.right_scale[j * N + i] = scale
    safe &= top >= TINY or top == 0
    for a in range(P):
        value = 0.0
        if a < K and top > 0:
            factor[a] /= top
            value = factor[a] * sums[a]
            safe &= value >= SMALL or factor[a] == 0 or sums[a] == 0
        chart.left[at_left + a] = value
        chart.right[at_right + a] = value
    return safe


@compiled()
def inside(terms, spans, n, sizes, best_rule, grammar, chart, work):
    """Fills the chart for n ≥ 2 words; False where log space has to do."""
    K, P, U = sizes.K, sizes.P, sizes.U
    peaks = np.empty(n)
    for i in range(n):
        chart.words[i * U : (i + 1) * U] = 0.0
        chart.word_scale[i] = np.max(terms[i])
        if not _weigh(terms[i], chart.word_scale[i], chart.words[i * U : i * U + sizes.T]):
            return False
    for w in range(1, n):
        if not _fill_pairs(w, n, sizes, chart, work, peaks):
            return False
        work.sums[: (n - w) * P] = 0.0
        row, columns = (sizes.short, grammar.short_columns) if w == 1 else (sizes.pairs, grammar.wide_columns)
        add_product(work.sums, 0, P, work.pairs, 0, row, 1, columns, 0, P, n - w, P, row)
        for i in range(n - w):
            sums = work.sums[i * P : i * P + K]
            if not _finish(i, i + w, peaks[i] + best_rule, spans, sizes, sums, chart):
                return False
    return True


@compiled()
def _weigh_roots(roots, n, sizes, chart):
    """The best root score of a nonterminal that can be built, and the sum of all weights next to it."""
    root, peak, total = (n - 1) * sizes.P, -np.inf, 0.0
    for a in range(sizes.K):
        if chart.left[root + a] > 0:
            peak = max(peak, roots[a])
    for a in range(sizes.K):
        if chart.left[root + a] > 0 and peak > -np.inf:
            total += exp(roots[a] - peak) * chart.left[root + a]
    return peak, total


@compiled()
def value_of(roots, n, sizes, chart):
    """log Z."""
    peak, total = _weigh_roots(roots, n, sizes, chart)
    return chart.left_scale[n - 1] + peak + np.log(total) if peak > -np.inf else peak


class Slopes(NamedTuple):
    """Derivatives of log Z, shaped as what they are derivatives in: of the vectors of spans in two halves."""

    words: np.ndarray
    left: np.ndarray
    right: np.ndarray
    # Sums over rules, and sums over splits, of the spans of one width; the latter of one span transposed.
    sums: np.ndarray
    pairs: np.ndarray
    turned: np.ndarray
    wide: np.ndarray
    short: np.ndarray


@compiled()
def _matrix_times(a, begin, rows, columns, b, begin_b, weight, out, begin_out):
    """out[r] += weight · Σ over c of a[r, c] · b[c]."""
    for r in range(rows):
        total = 0.0
        for c in range(columns):
            total += a[begin + r * columns + c] * b[begin_b + c]
        out[begin_out + r] += weight * total


@compiled()
def _push_down(i, j, n, sizes, chart, work, slopes):
    """Adds the slopes of a span's pairs to those of its children."""
    N, K, T, P, U = sizes.N, sizes.K, sizes.T, sizes.P, sizes.U
    if j == i + 1:
        row = i * sizes.short
        _matrix_times(slopes.pairs, row, T, U, chart.words, j * U, 1.0, slopes.words, i * U)
        add_product(slopes.words, j * U, U, chart.words, i * U, U, 1, slopes.pairs, row, U, 1, U, T)
        return
    row = i * sizes.pairs
    _weigh_splits(i, j, n, sizes, chart, work.weight)
    count, left, right = j - i - 2, (i * N + i + 1) * P, (j * N + i + 2) * P
    transpose(slopes.pairs[row : row + K * P], K, P, P, slopes.turned)
    _scale_rows(chart.right, right, count, work.weight[1:], P, work.split)
    add_product(slopes.left, left, P, work.split, 0, P, 1, slopes.turned, 0, P, count, P, K)
    _scale_rows(chart.left, left, count, work.weight[1:], P, work.split)
    add_product(slopes.right, right, P, work.split, 0, P, 1, slopes.pairs, row, P, count, P, K)
    # A preterminal on the left, then one on the right.
    block, child = row + sizes.second, (j * N + i + 1) * P
    weight = work.weight[0]
    _matrix_times(slopes.pairs, block, T, P, chart.right, child, weight, slopes.words, i * U)
    _scale_rows(chart.words, i * U, 1, work.weight, U, work.split)
    add_product(slopes.right, child, P, work.split, 0, U, 1, slopes.pairs, block, P, 1, P, T)
    block, child = row + sizes.third, (i * N + j - 1) * P
    weight = work.weight[j - i - 1]
    _matrix_times(slopes.pairs, block, K, U, chart.words, j * U, weight, slopes.left, child)
    _scale_rows(chart.left, child, 1, work.weight[j - i - 1 :], P, work.split)
    add_product(slopes.words, j * U, U, work.split, 0, P, 1, slopes.pairs, block, U, 1, U, K)


@compiled()
def outside(roots, n, sizes, grammar, chart, work, slopes, d_terms, d_rules, d_roots, d_spans):
    """Marginals of all parts, for a chart of finite value."""
    N, K, T, P, U = sizes.N, sizes.K, sizes.T, sizes.P, sizes.U
    for array in (slopes.words, slopes.left, slopes.right, slopes.wide, slopes.short, slopes.turned):
        array[:] = 0.0
    peaks = np.empty(n)
    # A large scale leaves no digits to its sum with other logarithms: what is shared out does not pass through it.
    peak, total = _weigh_roots(roots, n, sizes, chart)
    for a in range(K):
        if chart.left[(n - 1) * P + a] > 0:
            slope = exp(roots[a] - peak) / total
            slopes.left[(n - 1) * P + a] = slope
            d_roots[a] = slope * chart.left[(n - 1) * P + a]
    for w in range(n - 1, 0, -1):
        count = n - w
        for i in range(count):
            j = i + w
            at_left, at_right = (i * N + j) * P, (j * N + i) * P
            slopes.sums[i * P : (i + 1) * P] = 0.0
            for a in range(K):
                # Anything where the span cannot be built.
                if chart.left[at_left + a] > 0:
                    slope = slopes.left[at_left + a] + slopes.right[at_right + a]
                    slopes.sums[i * P + a] = slope * chart.factor[at_left + a]
                    d_spans[i, j, a] = slope * chart.left[at_left + a]
        _fill_pairs(w, n, sizes, chart, work, peaks)
        row, rules, d_weights = sizes.pairs, grammar.wide, slopes.wide
        if w == 1:
            row, rules, d_weights = sizes.short, grammar.short, slopes.short
        add_product(d_weights, 0, row, slopes.sums, 0, 1, P, work.pairs, 0, row, K, row, count)
        slopes.pairs[: count * row] = 0.0
        add_product(slopes.pairs, 0, row, slopes.sums, 0, P, 1, rules, 0, row, count, row, K)
        for i in range(count):
            _push_down(i, i + w, n, sizes, chart, work, slopes)
    for i in range(n):
        for t in range(T):
            d_terms[i, t] = slopes.words[i * U + t] * chart.words[i * U + t]
    for a in range(K):
        for b in range(K + T):
            for c in range(K + T):
                place = place_of_pair(b, c, sizes)
                if b < K or c < K:
                    place += a * sizes.pairs
                    d_rules[a, b, c] = slopes.wide[place] * grammar.wide[place]
                else:
                    place += a * sizes.short
                    d_rules[a, b, c] = slopes.short[place] * grammar.short[place]


@compiled()
def new_grammar(sizes):
    K, P = sizes.K, sizes.P
    columns = np.empty(sizes.pairs * P), np.empty(sizes.short * P)
    return Grammar(np.empty(K * sizes.pairs), np.empty(K * sizes.short), columns[0], columns[1])


@compiled()
def new_chart(sizes):
    N, P = sizes.N, sizes.P
    vectors = np.empty(N * N * P), np.empty(N * N * P), np.empty(N * N * P)
    return Chart(
        np.empty(N * sizes.U), np.empty(N), vectors[0], vectors[1], vectors[2], np.empty(N * N), np.empty(N * N)
    )


@compiled()
def new_work(sizes):
    N, P = sizes.N, sizes.P
    return Work(np.empty(N * max(sizes.pairs, sizes.short)), np.empty(N * P), np.empty(N * P + sizes.U), np.empty(N))


@compiled()
def new_slopes(sizes):
    N, P, K = sizes.N, sizes.P, sizes.K
    pairs = np.empty(N * max(sizes.pairs, sizes.short))
    weights = np.empty(K * sizes.pairs), np.empty(K * sizes.short)
    vectors = np.empty(N * N * P), np.empty(N * N * P)
    return Slopes(
        np.empty(N * sizes.U), vectors[0], vectors[1], np.empty(N * P), pairs, np.empty(P * P), weights[0], weights[1]
    )
