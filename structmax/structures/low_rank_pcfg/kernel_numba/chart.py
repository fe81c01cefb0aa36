"""How the numbers of one sentence lie in memory, for products of matrices.

Vectors over nonterminals are padded to P entries, those over preterminals to U, those over ranks to Q. The vectors of
all spans of one width lie one after the other: those of the words i … i + w at row `first(w, n) + i`. As a child of
ranks a span lies in a square, under (first word, last word) on the left and (last word, first word) on the right: the
left children of a span are then neighbours, and so are its right children.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import LANES


class Sizes(NamedTuple):
    N: int
    K: int
    T: int
    R: int
    P: int
    U: int
    Q: int

    @classmethod
    def of(cls, N: int, T: int, K: int, R: int) -> "Sizes":
        return cls(N, K, T, R, *(-(-size // LANES) * LANES for size in (K, T, R)))


@compiled()
def first(w, n):
    """The row of the first span of width w ≥ 1, of n words."""
    return (w - 1) * n - w * (w - 1) // 2


@compiled()
def sound(terms, roots, heads, left, right, spans, ranks, n):
    """Whether no score of a sentence of n ≥ 2 words is NaN or +inf."""
    good = True
    for i in range(n):
        for t in range(terms.shape[1]):
            good &= terms[i, t] < np.inf
        for j in range(i + 1, n):
            for a in range(spans.shape[2]):
                good &= spans[i, j, a] < np.inf
            for r in range(ranks.shape[2]):
                good &= ranks[i, j, r] < np.inf
    K, R = heads.shape
    for a in range(K):
        good &= roots[a] < np.inf
        for r in range(R):
            good &= heads[a, r] < np.inf
    # Two words have no child that is a nonterminal.
    for r in range(R):
        for b in range(K if n < 3 else 0, left.shape[1]):
            good &= left[r, b] < np.inf
            good &= right[r, b] < np.inf
    return good
