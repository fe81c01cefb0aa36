"""The best parse: products of matrices in maxima of sums, then down from the root. Only the chart is stored."""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.tiles import raise_to_sum
from structmax.structures.low_rank_pcfg.kernel_numba.chart import first


class Best(NamedTuple):
    """Scores of the factors by what is chosen, and the best score of each symbol, rank and child; padding is −inf."""

    # (R, P), and (K, Q), (T, Q) for either side
    heads: np.ndarray
    left: np.ndarray
    left_words: np.ndarray
    right: np.ndarray
    right_words: np.ndarray
    # (N, U), (spans, P) and (spans, Q)
    words: np.ndarray
    nodes: np.ndarray
    ranks: np.ndarray
    # (N, N, Q), by first and last word, and by last and first
    lefts: np.ndarray
    rights: np.ndarray


@compiled()
def new_best(sizes):
    N, K, T, R, P, U, Q = sizes
    spans, square = N * (N - 1) // 2, N * N
    return Best(
        np.empty(R * P),
        np.empty(K * Q),
        np.empty(T * Q),
        np.empty(K * Q),
        np.empty(T * Q),
        np.empty(N * U),
        np.empty(spans * P),
        np.empty(spans * Q),
        np.empty(square * Q),
        np.empty(square * Q),
    )


@compiled()
def _turn(matrix, begin, stop, pitch, out):
    """out[c, r] = matrix[r, begin + c]."""
    for r in range(matrix.shape[0]):
        for c in range(stop - begin):
            out[c * pitch + r] = matrix[r, begin + c]


@compiled()
def fill_best(terms, heads, left, right, spans, ranks, n, sizes, best):
    """The best score of each symbol, rank and child over each span."""
    N, K, T, R, P, U, Q = sizes
    for array in best:
        array[:] = -np.inf
    _turn(heads, 0, R, P, best.heads)
    for table, symbols, words in ((left, best.left, best.left_words), (right, best.right, best.right_words)):
        # Two words have no child that is a nonterminal.
        if n > 2:
            _turn(table, 0, K, Q, symbols)
        _turn(table, K, K + T, Q, words)
    for i in range(n):
        for t in range(T):
            best.words[i * U + t] = terms[i, t]
    step = (N + 1) * Q
    raise_to_sum(best.lefts, 0, step, best.words, 0, U, 1, best.left_words, 0, Q, n, Q, T)
    raise_to_sum(best.rights, 0, step, best.words, 0, U, 1, best.right_words, 0, Q, n, Q, T)
    for w in range(1, n):
        count, begin = n - w, first(w, n)
        for i in range(count):
            j, row = i + w, (begin + i) * Q
            own = best.ranks[row : row + Q]
            for k in range(w):
                a, b = (i * N + i + k) * Q, (j * N + i + k + 1) * Q
                lefts, rights = best.lefts[a : a + Q], best.rights[b : b + Q]
                for r in range(Q):
                    own[r] = max(own[r], lefts[r] + rights[r])
            for r in range(R):
                own[r] += ranks[i, j, r]
        raise_to_sum(best.nodes, begin * P, P, best.ranks, begin * Q, Q, 1, best.heads, 0, P, count, P, R)
        for i in range(count):
            own = best.nodes[(begin + i) * P : (begin + i + 1) * P]
            for a in range(K):
                own[a] += spans[i, i + w, a]
        if w < n - 1:
            raise_to_sum(best.lefts, w * Q, step, best.nodes, begin * P, P, 1, best.left, 0, Q, count, Q, K)
            raise_to_sum(best.rights, w * N * Q, step, best.nodes, begin * P, P, 1, best.right, 0, Q, count, Q, K)


@compiled()
def _best_sum(x, y):
    """Where x + y is largest; the first such place."""
    best, place = -np.inf, 0
    for k in range(len(x)):
        if x[k] + y[k] > best:
            best, place = x[k] + y[k], k
    return best, place


@compiled()
def _child(i, j, table, n, sizes, best):
    """The best symbol under a rank, whose scores of symbols are given."""
    K, T, P, U = sizes.K, sizes.T, sizes.P, sizes.U
    if i == j:
        return K + _best_sum(table[K:], best.words[i * U : i * U + T])[1]
    row = (first(j - i, n) + i) * P
    return _best_sum(table[:K], best.nodes[row : row + K])[1]


@compiled()
def follow_best(
    roots, heads, left, right, n, sizes, best, pending, d_terms, d_roots, d_heads, d_left, d_right, d_spans, d_ranks
):
    """One best parse of n ≥ 2 words; nothing if there is none."""
    N, K, R, P, Q = sizes.N, sizes.K, sizes.R, sizes.P, sizes.Q
    row = first(n - 1, n) * P
    value, symbol = _best_sum(roots, best.nodes[row : row + K])
    # as a number of the scores' dtype
    if roots.dtype.type(value) == -np.inf:
        return
    d_roots[symbol] = 1.0
    pending[0] = 0, n - 1, symbol
    count = 1
    while count > 0:
        count -= 1
        i, j, a = pending[count]
        if i == j:
            d_terms[i, a - K] = 1.0
            continue
        row = (first(j - i, n) + i) * Q
        _, r = _best_sum(heads[a], best.ranks[row : row + R])
        # the children of this rank, one for each split
        lefts, rights = best.lefts[(i * N + i) * Q + r : (i * N + j) * Q : Q], best.rights[(j * N + i + 1) * Q + r :: Q]
        _, k = _best_sum(lefts, rights)
        b = _child(i, i + k, left[r], n, sizes, best)
        c = _child(i + k + 1, j, right[r], n, sizes, best)
        d_heads[a, r] += 1.0
        d_left[r, b] += 1.0
        d_right[r, c] += 1.0
        d_spans[i, j, a] = 1.0
        d_ranks[i, j, r] = 1.0
        pending[count] = i + k + 1, j, c
        pending[count + 1] = i, i + k, b
        count += 2
