"""The best parse: products of matrices in maxima of sums, then down from the root. Only the chart is stored."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.tiles import raise_to_sum


@compiled()
def _outer(a, begin_a, rows, b, begin_b, columns, out, begin):
    """out[r, c] = a[r] + b[c]."""
    for r in range(rows):
        for c in range(columns):
            out[begin + r * columns + c] = a[begin_a + r] + b[begin_b + c]


@compiled()
def best_pairs(i, j, sizes, words, left, right, pairs, row):
    """The best splits of a span, in a row of pairs."""
    N, K, T, P, U = sizes.N, sizes.K, sizes.T, sizes.P, sizes.U
    if j == i + 1:
        _outer(words, i * U, T, words, j * U, U, pairs, row)
        return
    pairs[row : row + sizes.second] = -np.inf
    first, second = (i * N + i + 1) * P, (j * N + i + 2) * P
    raise_to_sum(pairs, row, P, left, first, 1, P, right, second, P, K, P, j - i - 2)
    _outer(words, i * U, T, right, (j * N + i + 1) * P, P, pairs, row + sizes.second)
    _outer(left, (i * N + j - 1) * P, K, words, j * U, U, pairs, row + sizes.third)


@compiled()
def fill_best(terms, spans, n, sizes, wide_columns, short_columns, words, left, right, pairs, sums):
    """The best score of each symbol over each span."""
    N, K, P, U = sizes.N, sizes.K, sizes.P, sizes.U
    words[:] = -np.inf
    for i in range(n):
        for t in range(sizes.T):
            words[i * U + t] = terms[i, t]
    for w in range(1, n):
        row, columns = (sizes.short, short_columns) if w == 1 else (sizes.pairs, wide_columns)
        for i in range(n - w):
            best_pairs(i, i + w, sizes, words, left, right, pairs, i * row)
        sums[: (n - w) * P] = -np.inf
        raise_to_sum(sums, 0, P, pairs, 0, row, 1, columns, 0, P, n - w, P, row)
        for i in range(n - w):
            for a in range(P):
                score = sums[i * P + a] + spans[i, i + w, a] if a < K else -np.inf
                left[(i * N + i + w) * P + a] = score
                right[((i + w) * N + i) * P + a] = score


@compiled()
def _score(i, j, symbol, sizes, words, left):
    """The best score of a symbol over a span; −inf where it cannot stand."""
    if i == j:
        return words[i * sizes.U + symbol - sizes.K] if symbol >= sizes.K else -np.inf
    return left[(i * sizes.N + j) * sizes.P + symbol] if symbol < sizes.K else -np.inf


@compiled()
def _symbols(place, short, sizes):
    """The pair of symbols at a place of a row of pairs."""
    K, P, U = sizes.K, sizes.P, sizes.U
    if short:
        return K + place // U, K + place % U
    if place < sizes.second:
        return place // P, place % P
    if place < sizes.third:
        return K + (place - sizes.second) // P, (place - sizes.second) % P
    return (place - sizes.third) // U, K + (place - sizes.third) % U


@compiled()
def follow_best(roots, n, sizes, wide, short, words, left, right, pairs, pending, d_terms, d_rules, d_roots, d_spans):
    """One best parse of n ≥ 2 words; nothing if there is none."""
    best, symbol = -np.inf, 0
    for a in range(sizes.K):
        score = roots[a] + left[(n - 1) * sizes.P + a]
        if score > best:
            best, symbol = score, a
    # as a number of the scores' dtype
    if roots.dtype.type(best) == -np.inf:
        return
    d_roots[symbol] = 1.0
    pending[0] = 0, n - 1, symbol
    count = 1
    while count > 0:
        count -= 1
        i, j, a = pending[count]
        if i == j:
            d_terms[i, a - sizes.K] = 1.0
            continue
        d_spans[i, j, a] = 1.0
        best_pairs(i, j, sizes, words, left, right, pairs, 0)
        row, rules = (sizes.short, short) if j == i + 1 else (sizes.pairs, wide)
        best, place = -np.inf, 0
        for q in range(row):
            score = rules[a * row + q] + pairs[q]
            if score > best:
                best, place = score, q
        b, c = _symbols(place, j == i + 1, sizes)
        d_rules[a, b, c] += 1.0
        best, split = -np.inf, i
        for k in range(i, j):
            score = _score(i, k, b, sizes, words, left) + _score(k + 1, j, c, sizes, words, left)
            if score > best:
                best, split = score, k
        pending[count] = split + 1, j, c
        pending[count + 1] = i, split, b
        count += 2
