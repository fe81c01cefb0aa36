"""log Z and the marginals: the chart forward, what is above it backward."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.subset.kernel_numba.chart import close, descend, fill, new_chart, recall
from structmax.structures.subset.kernel_numba.row import load, usable
from structmax.structures.subset.kernel_numba.tilt import tilt


@compiled()
def new_items(n):
    """Scores, places, probabilities to be in and to be out, and room to work."""
    return np.empty(n), np.empty(n, np.int64), np.empty(n), np.empty(n), np.empty(n)


@compiled()
def trivial(x, k, exact):
    """Whether there is no choice: no subset, the empty one, or all items."""
    return k <= 0 or (exact and k >= x.size) or x.size == 0


@compiled()
def trivial_value(x, k, exact):
    if k < 0 or (exact and k > x.size):
        return -np.inf
    total = 0.0
    for score in x[: k if exact else 0]:
        total += score
    return total


@kernel()
def value_rows(first, last, scores, lengths, sizes, exact, value):
    n = scores.shape[1]
    items, place, p, q, work = new_items(n)
    rows, starts, spans = new_chart(n, sizes)
    above = np.empty(n + 2)
    for b in range(first, last):
        m = load(scores[b, : usable(lengths[b], sizes[b], exact)], items, place)
        x, k = items[: max(m, 0)], sizes[b] if exact else min(sizes[b], m)
        if m < 0:
            value[b] = np.nan
        elif trivial(x, k, exact):
            value[b] = trivial_value(x, k, exact)
        else:
            log_normaliser, share = tilt(x, k, exact, p[:m], q[:m], work)
            block = fill(p[:m], q[:m], k, exact, rows, starts, spans)
            total = close(rows[m - block * (len(rows) - 1)], spans[m], k, share, above)
            value[b] = log_normaliser + np.log(total)


@kernel()
def marginal_rows(first, last, scores, lengths, sizes, exact, value, mu):
    n = scores.shape[1]
    items, place, p, q, work = new_items(n)
    rows, starts, spans = new_chart(n, sizes)
    above = np.empty(n + 2)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        x, k = items[: max(m, 0)], sizes[b] if exact else min(sizes[b], m)
        mu[b] = 0
        if m < 0:
            value[b] = mu[b, :length] = np.nan
        elif trivial(x, k, exact):
            value[b] = trivial_value(x, k, exact)
            if exact and k == m and value[b] > -np.inf:
                for i in range(m):
                    mu[b, place[i]] = 1
        else:
            log_normaliser, share = tilt(x, k, exact, p[:m], q[:m], work)
            block = fill(p[:m], q[:m], k, exact, rows, starts, spans)
            start = block * (len(rows) - 1)
            total = close(rows[m - start], spans[m], k, share, above)
            value[b] = log_normaliser + np.log(total)
            # A sum of finite scores may be −inf in their dtype.
            if value[b] == -np.inf:
                continue
            stop = m
            while True:
                descend(start, stop, p, q, rows, spans, above, work)
                if start == 0:
                    break
                block -= 1
                start, stop = recall(block, p[:m], q[:m], k, exact, rows, starts, spans)
            for i in range(m):
                mu[b, place[i]] = work[i] / total
