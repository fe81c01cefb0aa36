"""What it costs to have a pair: the cheapest alternating cycle through it. Derivations: ../README.md."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.structures.matching.kernel_numba.assignment import NONE, copy


@compiled()
def profit(scores, i, price, column):
    """What row i has from its column after its price; 0 from staying single."""
    return 0.0 if column[i] == NONE else scores[i, column[i]] - price[column[i]]


@compiled()
def _first_steps(scores, n, m, partial, price, column, owner, loss):
    """loss[a, b] if row a takes the place of row b. Number n is nobody, who has all that is free."""
    loss[: n + 1, : n + 1] = np.inf
    for a in range(n):
        own = profit(scores, a, price, column)
        for j in range(m):
            b = owner[j] if owner[j] != NONE else n
            loss[a, b] = min(loss[a, b], max(0.0, own - (scores[a, j] - price[j])))
        if partial:
            loss[a, n] = min(loss[a, n], max(0.0, own))
    if partial or m > n:
        for b in range(n):
            loss[n, b] = 0.0 if column[b] == NONE else max(0.0, price[column[b]])
    for a in range(n + 1):
        loss[a, a] = 0.0


@compiled("nnan", "nsz")
def _all_pairs(count, loss):
    """The shortest ways of any number of steps (Floyd and Warshall)."""
    onward = np.empty(count)
    for middle in range(count):
        # out of the table, where LLVM would expect it to change
        copy(loss[middle], count, onward)
        for a in range(count):
            way = loss[a]
            first = way[middle]
            for b in range(count):
                through = first + onward[b]
                way[b] = through if through < way[b] else way[b]


@compiled()
def best_with_each_pair(scores, n, m, partial, price, column, owner, loss, out):
    """out[i, j] = the score of the best matching with the pair (i, j); scratch `loss` (n + 1, n + 1)."""
    _first_steps(scores, n, m, partial, price, column, owner, loss)
    _all_pairs(n + 1, loss)
    total = 0.0
    for i in range(n):
        if column[i] != NONE:
            total += scores[i, column[i]]
    for i in range(n):
        own = profit(scores, i, price, column)
        for j in range(m):
            gap = max(0.0, own - (scores[i, j] - price[j]))
            out[i, j] = total if owner[j] == i else total - (gap + loss[owner[j] if owner[j] != NONE else n, i])
