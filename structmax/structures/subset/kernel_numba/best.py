"""The best subsets: one, the k best, and the best with each item. Nothing but selection and sorting."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.heap import pop, push
from structmax.numerics.kernel_numba.select import keep_best, kth_largest
from structmax.structures.subset.kernel_numba.row import load, usable


@compiled()
def _worth_taking(x, k, exact):
    """How many items the best subset has: k, or those of them that score above 0."""
    if exact:
        return k
    positive = 0
    for i in range(x.size):
        positive += x[i] > 0
    return min(k, positive)


@compiled()
def _choose(x, count, work, inside):
    """Marks the `count` best, the first of equals; returns their score and that of the worst, +inf if there is none."""
    worst = kth_largest(x, count, work) if count > 0 else np.inf
    total, equal = 0.0, count
    for i in range(x.size):
        inside[i] = x[i] > worst
        total += x[i] if inside[i] else 0.0
        equal -= inside[i]
    for i in range(x.size):
        if equal == 0:
            break
        if x[i] == worst:
            inside[i] = True
            total += worst
            equal -= 1
    return total, worst


@kernel()
def argmax_rows(first, last, scores, lengths, sizes, exact, y):
    n = scores.shape[1]
    items, place, work, inside = np.empty(n), np.empty(n, np.int64), np.empty(n), np.empty(n, np.bool_)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        y[b] = 0
        if m < 0:
            y[b, :length] = np.nan
        elif not exact or m >= sizes[b]:
            x = items[:m]
            total, _ = _choose(x, _worth_taking(x, sizes[b], exact), work, inside)
            # A sum of finite scores may be −inf in their dtype.
            for i in range(m if y.dtype.type(total) > -np.inf else 0):
                y[b, place[i]] = inside[i]


@kernel()
def max_marginal_rows(first, last, scores, lengths, sizes, exact, out):
    """The best subset, if the item is in it; else the item takes the place of the worst, or joins."""
    n = scores.shape[1]
    items, place, work, inside = np.empty(n), np.empty(n, np.int64), np.empty(n), np.empty(n, np.bool_)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        out[b] = -np.inf
        if m < 0:
            out[b, :length] = np.nan
        elif not exact or m >= sizes[b]:
            x = items[:m]
            count = _worth_taking(x, sizes[b], exact)
            best, worst = _choose(x, count, work, inside)
            others = best - worst if count == sizes[b] else best
            for i in range(m):
                out[b, place[i]] = best if inside[i] else others + x[i]


@compiled()
def _completed(x, sums, j, left, exact, positive):
    """The best of the items from j on, of which `left` are wanted; −inf if there are fewer. Scores descend."""
    if left < 0 or (exact and j + left > x.size):
        return -np.inf
    stop = j + left if exact else max(j, min(j + left, positive))
    if sums[stop] > -np.inf:
        return sums[stop] - sums[j]
    # Finite scores of which the first are too many for a finite sum.
    total = 0.0
    for i in range(j, stop):
        total += x[i]
    return total


@compiled()
def _complete(y, j, left, exact, positive):
    stop = j + left if exact else max(j, min(j + left, positive))
    y[j:stop] = True
    y[stop:] = False


@kernel()
def topk_rows(first, last, scores, lengths, sizes, exact, values, parts):
    """Each subset found splits the others by the first item at which they differ from it; each class has its best.

    Only the best size + k − 1 items matter: a subset with another is no better than k others.
    """
    n, k = scores.shape[1], values.shape[1]
    items, place, work = np.empty(n), np.empty(n, np.int64), np.empty(n)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        values[b], parts[b] = -np.inf, 0
        if m < 0:
            values[b], parts[b, :, :length] = np.nan, np.nan
            continue
        size = sizes[b]
        m = keep_best(items, place, m, size + k - 1, work)
        order = np.argsort(-items[:m])
        x, sums = items[order], np.zeros(m + 1)
        positive = 0
        for i in range(m):
            sums[i + 1] = sums[i] + x[i]
            positive += x[i] > 0
        found = np.empty((k, m), np.bool_)
        # Candidates: worth, the subset they leave, and at which item; each subset found makes m at most.
        worth = np.empty(1 + k * m)
        leaves, at, heap = (
            np.empty(worth.size, np.int64),
            np.empty(worth.size, np.int64),
            np.empty(worth.size, np.int64),
        )
        worth[0], leaves[0], at[0], count, held = _completed(x, sums, 0, size, exact, positive), -1, -1, 1, 0
        if worth[0] > -np.inf:
            held = push(worth, heap, held, 0)
        for rank in range(k):
            if held == 0:
                break
            n_best, held = pop(worth, heap, held)
            values[b, rank] = worth[n_best]
            # as a number of the scores' dtype
            if values[b, rank] == -np.inf:
                break
            y, left, total, j = found[rank], size, 0.0, at[n_best]
            for i in range(j + 1):
                y[i] = found[leaves[n_best], i] != (i == j)
                left -= y[i]
                total += x[i] if y[i] else 0.0
            _complete(y, j + 1, left, exact, positive)
            for i in range(m):
                parts[b, rank, place[order[i]]] = y[i]
            for i in range(j + 1, m):
                # as y up to i, but there
                rest = _completed(x, sums, i + 1, left if y[i] else left - 1, exact, positive)
                if rest > -np.inf:
                    worth[count], leaves[count], at[count] = total + (0.0 if y[i] else x[i]) + rest, rank, i
                    held = push(worth, heap, held, count)
                    count += 1
                left -= y[i]
                total += x[i] if y[i] else 0.0
