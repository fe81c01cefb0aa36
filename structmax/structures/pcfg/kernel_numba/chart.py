"""How the numbers of one sentence lie in memory, for products of matrices.

Vectors over nonterminals are padded to P entries, those over preterminals to U. A span's vector lies in `left` under
(first word, last word) and in `right` under (last word, first word): the left children of a span are then neighbours,
and so are its right children. The pairs (b, c) of children lie one after the other, in three blocks for spans of three
or more words, and in one for those of two:

    nonterminals (K, P) · preterminal, nonterminal (T, P) · nonterminal, preterminal (K, U)          preterminals (T, U)
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import LANES


class Sizes(NamedTuple):
    N: int
    K: int
    T: int
    P: int
    U: int
    # Where the second and third block of pairs begin, how many there are, and how many for spans of two words.
    second: int
    third: int
    pairs: int
    short: int

    @classmethod
    def of(cls, N: int, T: int, K: int) -> "Sizes":
        P, U = (-(-size // LANES) * LANES for size in (K, T))
        return cls(N, K, T, P, U, K * P, (K + T) * P, (K + T) * P + K * U, T * U)


@compiled()
def usable(b, c, n, K):
    """Whether a sentence of n words is long enough for a rule with these children."""
    return n >= 2 + (b < K) + (c < K)


@compiled()
def sound(terms, rules, roots, spans, n):
    """Whether no score of the sentence is NaN or +inf."""
    good = True
    for i in range(n):
        for t in range(terms.shape[1]):
            good &= terms[i, t] < np.inf
        for j in range(i + 1, n):
            for a in range(spans.shape[2]):
                good &= spans[i, j, a] < np.inf
    K, S = rules.shape[0], rules.shape[1]
    for a in range(K):
        for b in range(S):
            for c in range(S):
                good &= rules[a, b, c] < np.inf or not usable(b, c, n, K)
    for score in roots:
        good &= score < np.inf
    return good


@compiled()
def place_of_pair(b, c, sizes):
    """Where the pair of symbols (b, c) lies among those of wide spans, or of short ones."""
    K = sizes.K
    if b < K:
        return b * sizes.P + c if c < K else sizes.third + b * sizes.U + c - K
    return sizes.second + (b - K) * sizes.P + c if c < K else (b - K) * sizes.U + c - K


@compiled()
def lay_out(rules, n, sizes, nothing, wide, short):
    """rules (K, S, S) in rows of pairs, (K, pairs) and (K, short); `nothing` where they cannot be used."""
    wide[:] = nothing
    short[:] = nothing
    K, S = sizes.K, sizes.K + sizes.T
    for a in range(K):
        for b in range(S):
            for c in range(S):
                place = place_of_pair(b, c, sizes)
                if not usable(b, c, n, K):
                    continue
                if b < K or c < K:
                    wide[a * sizes.pairs + place] = rules[a, b, c]
                else:
                    short[a * sizes.short + place] = rules[a, b, c]


@compiled()
def transpose(a, rows, columns, pitch, out):
    """out[c, r] = a[r, c]: rows of `columns` entries become rows of `pitch`, whose padding is left as it is."""
    for r in range(rows):
        for c in range(columns):
            out[c * pitch + r] = a[r * columns + c]
