"""The chart by width, and sums over the splits of many spans at once.

Entry w · pitch + i of a chart, after LANES of margin, belongs to the span [i, i + w]. Its splits pair

    [i, i + t]      entry t · pitch + i                        of step pitch       in t
    [i + t + 1, i + w]      entry (w − t − 1) · pitch + i + t + 1      of step 1 − pitch

so LANES neighbouring spans of one width are one vector, and sums over t stay in registers. A row of width w has n − w
entries; from there to the next row are spans that cannot be built, whose entries count nothing.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.labels import (
    best_label,
    log_sum,
    mean_over_labels,
    share_out,
    share_out_along,
)
from structmax.numerics.kernel_numba.llvm import LANES


@compiled()
def pitch_of(n):
    return n + LANES


@compiled()
def chart_size(n):
    return LANES + n * pitch_of(n)


@compiled()
def new_chart(n):
    """Each chart is memory of its own: LLVM vectorises loops over two of them only if it can tell them apart."""
    return np.empty(chart_size(n))


@compiled()
def row_of(w, n):
    """Where the spans of width w begin."""
    return LANES + w * pitch_of(n)


@compiled()
def spans(chart, w, n):
    """The spans of width w by where they begin, and on to a whole number of vectors."""
    row = row_of(w, n)
    return chart[row : row + (n - w + LANES - 1) // LANES * LANES]


# --- between scores (N, N, C) and charts -----------------------------------------------------------------------------


@compiled()
def read(x, n, soft, scores):
    """The score of each span by width: log Σ exp over its labels if `soft`, else the best. False if NaN or +inf."""
    pitch, sound = pitch_of(n), True
    scores[: chart_size(n)] = -np.inf
    for i in range(n):
        for w in range(n - i):
            for c in range(x.shape[2]):
                sound &= x[i, i + w, c] < np.inf
        for w in range(n - i):
            place = LANES + w * pitch + i
            if x.shape[2] == 1:
                scores[place] = x[i, i + w, 0]
            else:
                scores[place] = log_sum(x[i, i + w]) if soft else best_label(x[i, i + w])
    return sound


@compiled()
def read_tangent(x, tangent, n, out):
    """The tangent of each span's score, the mean over its labels, by width; 0 at a score of −inf."""
    pitch = pitch_of(n)
    out[: chart_size(n)] = 0.0
    for i in range(n):
        for w in range(n - i):
            place = LANES + w * pitch + i
            out[place] = mean_over_labels(x[i, i + w], tangent[i, i + w])


@compiled()
def write(x, mu, n, out):
    """Marginals of labels from those of spans: out[i, j, c] = μ · p(c), for i ≤ j < n."""
    pitch = pitch_of(n)
    for i in range(n):
        for w in range(n - i):
            place = LANES + w * pitch + i
            if x.shape[2] == 1:
                out[i, i + w, 0] = mu[place]
            else:
                share_out(x[i, i + w], mu[place], out[i, i + w])


@compiled()
def write_tangent(x, mu, tangent, d_mu, n, out):
    """The tangent of `write`: out[i, j, c] = p(c) · (dμ + μ · (tangent − its mean)), 0 at a score of −inf."""
    pitch = pitch_of(n)
    for i in range(n):
        for w in range(n - i):
            place = LANES + w * pitch + i
            if x.shape[2] == 1:
                out[i, i + w, 0] = d_mu[place]
            else:
                share_out_along(x[i, i + w], tangent[i, i + w], mu[place], d_mu[place], out[i, i + w])
