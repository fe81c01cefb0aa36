"""Inside and outside in products of matrices: no exponential but one for each score and one for each split.

The vector of a span is scaled to a maximum of 1, and the logarithm of its scale kept. A feasible entry has to be at
least SMALL in it, as have the factors of rules, terms, spans and ranks next to the best of theirs; splits weigh at
least TINY next to the best, and a span's best sum over ranks is at least LEAST. Then no product underflows, a 0 is what
cannot be built, and all is exact to rounding. Otherwise log space takes over (../README.md).
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.tiles import add_product
from structmax.structures.low_rank_pcfg.kernel_numba.chart import first

SMALL, TINY, LEAST = 1e-30, 1e-60, 1e-150
LOG_SMALL, LOG_TINY = np.log(SMALL), np.log(TINY)


class Factors(NamedTuple):
    """A matrix for each product there is: rows are what is summed over."""

    # (R, P) and (K, Q): from ranks to nonterminals, and back
    heads: np.ndarray
    heads_back: np.ndarray
    # (K, Q) and (T, Q): from symbols to ranks, as left children and as right ones
    left: np.ndarray
    left_words: np.ndarray
    right: np.ndarray
    right_words: np.ndarray
    # (R, P) and (R, U): back
    left_back: np.ndarray
    left_words_back: np.ndarray
    right_back: np.ndarray
    right_words_back: np.ndarray


class Chart(NamedTuple):
    """What the inside pass leaves."""

    # (N, U): preterminals, scaled
    words: np.ndarray
    # (spans, P) each: nonterminals, scaled, and what turned a sum over ranks into an entry
    nodes: np.ndarray
    node_factor: np.ndarray
    # (spans, Q) each: ranks, and what a sum over splits was multiplied by
    ranks: np.ndarray
    rank_factor: np.ndarray
    # (N, N, Q): children of ranks
    left: np.ndarray
    right: np.ndarray
    # (N, N): logarithms of scales, under (first word, last word), and under (last word, first word)
    left_scale: np.ndarray
    right_scale: np.ndarray


class Slopes(NamedTuple):
    """Derivatives of log Z, shaped as what they are derivatives in."""

    words: np.ndarray
    # of the spans of one width
    nodes: np.ndarray
    ranks: np.ndarray
    left: np.ndarray
    right: np.ndarray
    # of the factors: (K, Q), and for left and right also (T, Q)
    heads: np.ndarray
    d_left: np.ndarray
    d_left_words: np.ndarray
    d_right: np.ndarray
    d_right_words: np.ndarray


@compiled("nnan", "nsz")
def _range(scores):
    """The largest score, the smallest that is not −inf, and the smallest."""
    peak, low, lowest = -np.inf, np.inf, np.inf
    for k in range(len(scores)):
        score = np.float64(scores[k])
        peak = max(peak, score)
        lowest = min(lowest, score)
        low = min(low, score if score > -np.inf else np.inf)
    return peak, low, lowest


@compiled()
def _weigh(scores, peak, out):
    """exp(scores − peak), 0 if that is −inf; whether all that are feasible are at least SMALL."""
    _, low, lowest = _range(scores)
    own = out[: len(scores)]
    if peak == -np.inf:
        own[:] = 0.0
    elif lowest == peak:
        # scores that were left out
        own[:] = 1.0
    else:
        for k in range(len(scores)):
            own[k] = exp(np.float64(scores[k]) - peak)
    return peak == -np.inf or low - peak >= LOG_SMALL


@compiled()
def _peak(matrix, begin):
    """The largest entry of the columns from `begin` on."""
    peak = -np.inf
    for row in range(matrix.shape[0]):
        peak = max(peak, _range(matrix[row, begin:])[0])
    return peak


@compiled()
def _lay_out(matrix, begin, stop, peak, rows, pitch, columns, column_pitch):
    """The weights of some columns of a matrix by rows and by columns, the rest 0; whether they are safe."""
    rows[:] = 0.0
    columns[:] = 0.0
    safe = True
    for r in range(matrix.shape[0]):
        safe &= _weigh(matrix[r, begin:stop], peak, rows[r * pitch :])
        for c in range(stop - begin):
            columns[c * column_pitch + r] = rows[r * pitch + c]
    return safe


@compiled()
def read_grammar(heads, left, right, n, sizes, factors):
    """Fills the factors; returns the sum of the best score of each, and whether all are safe."""
    K, S, P, U, Q = sizes.K, sizes.K + sizes.T, sizes.P, sizes.U, sizes.Q
    f = factors
    # Two words have no child that is a nonterminal.
    used = K if n < 3 else 0
    peaks = _peak(heads, 0), _peak(left, used), _peak(right, used)
    safe = _lay_out(heads, 0, sizes.R, peaks[0], f.heads_back, Q, f.heads, P)
    safe &= _lay_out(left, used, K, peaks[1], f.left_back, P, f.left, Q)
    safe &= _lay_out(left, K, S, peaks[1], f.left_words_back, U, f.left_words, Q)
    safe &= _lay_out(right, used, K, peaks[2], f.right_back, P, f.right, Q)
    safe &= _lay_out(right, K, S, peaks[2], f.right_words_back, U, f.right_words, Q)
    return peaks[0] + peaks[1] + peaks[2], safe


@compiled()
def weigh_splits(i, j, N, chart, weight):
    """weight[k] of the split after word i + k, next to the best. The best, and whether all are safe."""
    count, peak = j - i, -np.inf
    for k in range(count):
        weight[k] = chart.left_scale[i * N + i + k] + chart.right_scale[j * N + i + k + 1]
        peak = max(peak, weight[k])
    safe = True
    for k in range(count):
        safe &= weight[k] == -np.inf or weight[k] - peak >= LOG_TINY
        weight[k] = exp(weight[k] - peak) if peak > -np.inf else 0.0
    return peak, safe


@compiled("contract")
def _add_splits(out, left, right, weight, count, Q):
    """out[r] = Σ over k of weight[k] · left[k, r] · right[k, r]."""
    out[:] = 0.0
    for k in range(count):
        scale, a, b = weight[k], left[k * Q : (k + 1) * Q], right[k * Q : (k + 1) * Q]
        for r in range(Q):
            out[r] += scale * a[r] * b[r]


@compiled("nnan", "nsz")
def _best_product(x, y):
    """The largest product of two entries, or 0."""
    best = 0.0
    for k in range(len(x)):
        best = max(best, x[k] * y[k])
    return best


@compiled()
def _finish(i, j, peak, spans, sizes, row, chart):
    """The vector of a span from its sums over ranks; whether all that is feasible in it is safe."""
    N, K, P = sizes.N, sizes.K, sizes.P
    high = _range(spans[i, j])[0]
    factor, node = chart.node_factor[row * P : row * P + K], chart.nodes[row * P : row * P + K]
    safe = _weigh(spans[i, j], high, factor)
    top = _best_product(factor, node)
    scale = peak + high + np.log(top) if top > 0 else -np.inf
    chart.left_scale[i * N + j] = scale
    chart.right_scale[j * N + i] = scale
    safe &= top >= LEAST or top == 0
    if top > 0:
        for a in range(K):
            factor[a] /= top
            value = factor[a] * node[a]
            safe &= value >= SMALL or factor[a] == 0 or node[a] == 0
            node[a] = value
    return safe


@compiled()
def _project(out, place, source, begin, pitch, rows, table, count, sizes):
    """Adds to ranks of children, in a square from `place` on along its diagonal, what rows of symbols give."""
    step = (sizes.N + 1) * sizes.Q
    add_product(out, place, step, source, begin, pitch, 1, table, 0, sizes.Q, rows, sizes.Q, count)


@compiled()
def inside(terms, spans, ranks, n, sizes, best_rule, factors, chart, weight):
    """Fills the chart for n ≥ 2 words; False where log space has to do."""
    N, K, T, P, U, Q = sizes.N, sizes.K, sizes.T, sizes.P, sizes.U, sizes.Q
    for array in (chart.words, chart.nodes, chart.left, chart.right):
        array[:] = 0.0
    peaks = np.empty(n)
    for i in range(n):
        scale = _range(terms[i])[0]
        chart.left_scale[i * N + i] = scale
        chart.right_scale[i * N + i] = scale
        if not _weigh(terms[i], scale, chart.words[i * U :]):
            return False
    _project(chart.left, 0, chart.words, 0, U, n, factors.left_words, T, sizes)
    _project(chart.right, 0, chart.words, 0, U, n, factors.right_words, T, sizes)
    for w in range(1, n):
        count, begin = n - w, first(w, n)
        for i in range(count):
            j, row = i + w, (begin + i) * Q
            peaks[i], safe = weigh_splits(i, j, N, chart, weight)
            high = _range(ranks[i, j])[0]
            factor, own = chart.rank_factor[row : row + Q], chart.ranks[row : row + Q]
            safe &= _weigh(ranks[i, j], high, factor)
            if not safe:
                return False
            peaks[i] += high + best_rule
            _add_splits(own, chart.left[(i * N + i) * Q :], chart.right[(j * N + i + 1) * Q :], weight, w, Q)
            for r in range(Q):
                own[r] *= factor[r]
        add_product(chart.nodes, begin * P, P, chart.ranks, begin * Q, Q, 1, factors.heads, 0, P, count, P, sizes.R)
        for i in range(count):
            if not _finish(i, i + w, peaks[i], spans, sizes, begin + i, chart):
                return False
        if w < n - 1:
            _project(chart.left, w * Q, chart.nodes, begin * P, P, count, factors.left, K, sizes)
            _project(chart.right, w * N * Q, chart.nodes, begin * P, P, count, factors.right, K, sizes)
    return True


@compiled()
def weigh_roots(roots, n, sizes, chart):
    """The best root score of a nonterminal that can be built, and the sum of all weights next to it."""
    root, peak, total = first(n - 1, n) * sizes.P, -np.inf, 0.0
    for a in range(sizes.K):
        if chart.nodes[root + a] > 0:
            peak = max(peak, roots[a])
    for a in range(sizes.K):
        if chart.nodes[root + a] > 0 and peak > -np.inf:
            total += exp(roots[a] - peak) * chart.nodes[root + a]
    return peak, total


@compiled()
def value_of(roots, n, sizes, chart):
    """log Z."""
    peak, total = weigh_roots(roots, n, sizes, chart)
    return chart.left_scale[n - 1] + peak + np.log(total) if peak > -np.inf else peak


@compiled("contract")
def _share_splits(slope, left, right, d_left, d_right, weight, count, Q):
    """Adds the slopes of a span's ranks to those of its children."""
    for k in range(count):
        scale, begin, end = weight[k], k * Q, (k + 1) * Q
        a, b, d_a, d_b = left[begin:end], right[begin:end], d_left[begin:end], d_right[begin:end]
        for r in range(Q):
            each = scale * slope[r]
            d_a[r] += each * b[r]
            d_b[r] += each * a[r]


@compiled()
def _pull_back(out, row, pitch, slope, place, table, rows, sizes):
    """Adds to rows of symbols what the slopes of ranks of children, along a diagonal, say of them."""
    step = (sizes.N + 1) * sizes.Q
    add_product(out, row, pitch, slope, place, step, 1, table, 0, pitch, rows, pitch, sizes.R)


@compiled()
def _count_uses(out, source, begin, pitch, slope, place, rows, symbols, sizes):
    """Adds to the slopes of a table, from symbols to ranks, those of the children along a diagonal."""
    step = (sizes.N + 1) * sizes.Q
    add_product(out, 0, sizes.Q, source, begin, 1, pitch, slope, place, step, symbols, sizes.Q, rows)


@compiled()
def outside(
    roots, n, sizes, factors, chart, slopes, weight, d_terms, d_roots, d_heads, d_left, d_right, d_spans, d_ranks
):
    """Marginals of all parts, for a chart of finite value."""
    N, K, T, R, P, U, Q = sizes
    for array in slopes:
        array[:] = 0.0
    # A large scale leaves no digits to its sum with other logarithms: what is shared out does not pass through it.
    peak, total = weigh_roots(roots, n, sizes, chart)
    for w in range(n - 1, 0, -1):
        count, begin = n - w, first(w, n)
        slopes.nodes[: count * P] = 0.0
        if w == n - 1:
            for a in range(K):
                if chart.nodes[begin * P + a] > 0:
                    slopes.nodes[a] = exp(roots[a] - peak) / total
                    d_roots[a] = slopes.nodes[a] * chart.nodes[begin * P + a]
        else:
            for place, slope, table, out in (
                (w * Q, slopes.left, factors.left_back, slopes.d_left),
                (w * N * Q, slopes.right, factors.right_back, slopes.d_right),
            ):
                _pull_back(slopes.nodes, 0, P, slope, place, table, count, sizes)
                _count_uses(out, chart.nodes, begin * P, P, slope, place, count, K, sizes)
        for i in range(count):
            row = (begin + i) * P
            node, factor, slope = chart.nodes[row : row + P], chart.node_factor[row : row + P], slopes.nodes[i * P :]
            for a in range(K):
                # Anything where the span cannot be built.
                d_spans[i, i + w, a] = slope[a] * node[a] if node[a] > 0 else 0.0
                slope[a] = slope[a] * factor[a] if node[a] > 0 else 0.0
        add_product(slopes.heads, 0, Q, slopes.nodes, 0, 1, P, chart.ranks, begin * Q, Q, K, Q, count)
        slopes.ranks[: count * Q] = 0.0
        add_product(slopes.ranks, 0, Q, slopes.nodes, 0, P, 1, factors.heads_back, 0, Q, count, Q, K)
        for i in range(count):
            j, row = i + w, (begin + i) * Q
            own, factor, slope = chart.ranks[row : row + Q], chart.rank_factor[row : row + Q], slopes.ranks[i * Q :]
            for r in range(R):
                d_ranks[i, j, r] = slope[r] * own[r]
                slope[r] *= factor[r]
            weigh_splits(i, j, N, chart, weight)
            at_left, at_right = (i * N + i) * Q, (j * N + i + 1) * Q
            sides = chart.left[at_left:], chart.right[at_right:], slopes.left[at_left:], slopes.right[at_right:]
            _share_splits(slope, *sides, weight, w, Q)
    for slope, table, out in (
        (slopes.left, factors.left_words_back, slopes.d_left_words),
        (slopes.right, factors.right_words_back, slopes.d_right_words),
    ):
        _pull_back(slopes.words, 0, U, slope, 0, table, n, sizes)
        _count_uses(out, chart.words, 0, U, slope, 0, n, T, sizes)
    for i in range(n):
        for t in range(T):
            d_terms[i, t] = slopes.words[i * U + t] * chart.words[i * U + t]
    for a in range(K):
        for r in range(R):
            d_heads[a, r] = slopes.heads[a * Q + r] * factors.heads_back[a * Q + r]
    for out, d_table, table, d_words, words in (
        (d_left, slopes.d_left, factors.left, slopes.d_left_words, factors.left_words),
        (d_right, slopes.d_right, factors.right, slopes.d_right_words, factors.right_words),
    ):
        for r in range(R):
            for b in range(K):
                out[r, b] = d_table[b * Q + r] * table[b * Q + r]
            for t in range(T):
                out[r, K + t] = d_words[t * Q + r] * words[t * Q + r]


@compiled()
def new_factors(sizes):
    _, K, T, R, P, U, Q = sizes
    return Factors(
        np.empty(R * P),
        np.empty(K * Q),
        np.empty(K * Q),
        np.empty(T * Q),
        np.empty(K * Q),
        np.empty(T * Q),
        np.empty(R * P),
        np.empty(R * U),
        np.empty(R * P),
        np.empty(R * U),
    )


@compiled()
def new_chart(sizes):
    N, P, Q = sizes.N, sizes.P, sizes.Q
    spans, square = N * (N - 1) // 2, N * N
    return Chart(
        np.empty(N * sizes.U),
        np.empty(spans * P),
        np.empty(spans * P),
        np.empty(spans * Q),
        # its padding is multiplied by the padding of others, which is 0
        np.zeros(spans * Q),
        np.empty(square * Q),
        np.empty(square * Q),
        np.empty(square),
        np.empty(square),
    )


@compiled()
def new_slopes(sizes):
    N, K, T, _, P, U, Q = sizes
    return Slopes(
        np.empty(N * U),
        np.empty(N * P),
        np.empty(N * Q),
        np.empty(N * N * Q),
        np.empty(N * N * Q),
        np.empty(K * Q),
        np.empty(K * Q),
        np.empty(T * Q),
        np.empty(K * Q),
        np.empty(T * Q),
    )
