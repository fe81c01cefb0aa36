"""Draws: from the last item to the first, each in with its probability given how many are still wanted."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.subset.kernel_numba.chart import close, fill, new_chart, recall
from structmax.structures.subset.kernel_numba.marginal import new_items, trivial, trivial_value
from structmax.structures.subset.kernel_numba.row import load, usable
from structmax.structures.subset.kernel_numba.tilt import tilt


@compiled()
def _how_many(row, span, above, total, uniform):
    """The first count at which the cumulative probability exceeds uniform · total, among those that have some."""
    mass, chosen = 0.0, span[1]
    for c in range(span[0], span[1] + 1):
        weight = row[span[2] + c] * above[c]
        mass += weight
        if weight > 0:
            chosen = c
            if mass > uniform * total:
                break
    return chosen


@compiled()
def _walk(first, last, behind, rows, spans, p, place, noise, wanted, drawn, y):
    """Decides the items of a block for one draw that wants so many and has drawn so many numbers: returns both.

    `behind` is the item after the block. A number is drawn wherever the recursion has a choice by its shape alone: for
    forbidden items too, and for any other but where all up to it are wanted, or none.
    """
    for i in range(last - 1, first - 1, -1):
        if wanted == 0:
            break
        drawn += behind - place[i] - 1
        behind = place[i]
        row, before = rows[i - first + 1], rows[i - first]
        taken = True
        if wanted <= place[i]:
            in_all = row[spans[i + 1, 2] + wanted]
            lo, hi = spans[i, 0], spans[i, 1]
            in_with = p[i] * before[spans[i, 2] + wanted - 1] if lo < wanted <= hi + 1 else 0.0
            taken = noise[drawn] * in_all < in_with
            drawn += 1
        if taken:
            y[place[i]] = 1
            wanted -= 1
    return wanted, drawn


@kernel()
def sample_rows(first, last, scores, lengths, sizes, exact, noise, y):
    n = scores.shape[1]
    items, place, p, q, work = new_items(n)
    rows, starts, spans = new_chart(n, sizes)
    above = np.empty(n + 2)
    wanted, drawn = np.empty(noise.shape[1], np.int64), np.empty(noise.shape[1], np.int64)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        x, k = items[: max(m, 0)], sizes[b] if exact else min(sizes[b], m)
        y[b] = 0
        if m < 0:
            y[b, :, :length] = np.nan
        elif trivial(x, k, exact):
            if exact and k == m and y.dtype.type(trivial_value(x, k, exact)) > -np.inf:
                for i in range(m):
                    y[b, :, place[i]] = 1
        else:
            log_normaliser, share = tilt(x, k, exact, p[:m], q[:m], work)
            # A sum of finite scores may be −inf in their dtype.
            if y.dtype.type(log_normaliser) == -np.inf:
                continue
            block = fill(p[:m], q[:m], k, exact, rows, starts, spans)
            start, stop, behind = block * (len(rows) - 1), m, length
            total = close(rows[m - start], spans[m], k, share, above)
            for s in range(len(wanted)):
                wanted[s], drawn[s] = k, 0
                if not exact:
                    wanted[s], drawn[s] = _how_many(rows[m - start], spans[m], above, total, noise[b, s, 0]), 1
            while True:
                for s in range(len(wanted)):
                    wanted[s], drawn[s] = _walk(
                        start, stop, behind, rows, spans, p, place, noise[b, s], wanted[s], drawn[s], y[b, s]
                    )
                if start == 0:
                    break
                block -= 1
                behind = place[start]
                start, stop = recall(block, p[:m], q[:m], k, exact, rows, starts, spans)
