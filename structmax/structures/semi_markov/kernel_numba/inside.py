"""The inside pass of a semi-Markov chain, and the chart it fills. Derivation: ../README.md.

Values are float64, so that long inputs lose nothing; what is left of them after the peak is taken off, and all weights,
have the dtype of the scores. Inner loops run over labels and write one array each: LLVM vectorises these.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.math import exp, log


class Chart(NamedTuple):
    """Scratch for one instance."""

    # values, float64
    start: np.ndarray  # (N, C)
    end: np.ndarray  # (N + 1, C)
    # 1 / Σ of the weights of the edges into start and end, 0 where there is none
    start_share: np.ndarray  # (N, C)
    end_share: np.ndarray  # (N + 1, C)
    # exp of end, its greatest label at 1
    mass: np.ndarray  # (N, C)
    # exp of the pairwise scores, their greatest at 1
    factor: np.ndarray  # (C, C)
    # of the node at hand: the greatest score of an edge, float64, and the sum of the weights
    peak: np.ndarray  # (C,)
    total: np.ndarray  # (C,)
    # of the segments at hand
    weight: np.ndarray  # (W, C)


@compiled()
def new_chart(segment):
    _, n, w, c = segment.shape
    dtype = segment.dtype
    return Chart(
        np.empty((n, c)),
        np.empty((n + 1, c)),
        np.empty((n, c), dtype),
        np.empty((n + 1, c), dtype),
        np.empty((n, c), dtype),
        np.empty((c, c), dtype),
        np.empty(c),
        np.empty(c, dtype),
        np.empty((w, c), dtype),
    )


@compiled()
def new_matrix(pairwise):
    """(1, C, C)"""
    labels = pairwise.shape[3]
    return np.empty((1, labels, labels), pairwise.dtype)


@compiled()
def _tiny(x):
    """Scaled sums below this are not trusted: terms that vanish beside it have lost less than a rounding error."""
    return x.dtype.type(1e-26 if x.itemsize == 4 else 1e-250)


@compiled("nnan", "nsz")
def greatest(row):
    """The greatest entry of a row, 0 if all are −inf; anything if one is NaN."""
    peak = row.dtype.type(-np.inf)
    for c in range(row.size):
        peak = max(peak, row[c])
    return peak if peak > -np.inf else row.dtype.type(0)


@compiled("contract")
def _conclude(peak, total, value, share):
    """value = peak + log total and share = 1 / total; −inf and 0 where total is 0, NaN where it is NaN."""
    zero, one = total.dtype.type(0), total.dtype.type(1)
    for c in range(value.size):
        value[c] = peak[c] + log(total[c]) if total[c] > zero else total[c] - np.inf
    for c in range(value.size):
        share[c] = one / total[c] if total[c] != zero else zero


@compiled("contract")
def _combine(weight, chart, value, share):
    """log Σ exp over the rows of `weight`, from which `chart.peak` is taken already; they are left as their exp."""
    total = chart.total
    rows, labels = weight.shape
    flat = weight.reshape(-1)
    for k in range(flat.size):
        flat[k] = exp(flat[k])
    for c in range(labels):
        total[c] = 0
    for r in range(rows):
        for c in range(labels):
            total[c] += weight[r, c]
    _conclude(chart.peak, total, value, share)


@compiled("contract")
def _close_segments(segment, chart, p, kept):
    """end(p, ·) over the segments that end before p. Their weights go to their places in `kept` (N, W, C), if given."""
    start, weight, peak = chart.start, chart.weight, chart.peak
    labels, widths = segment.shape[2], min(segment.shape[1], p)
    for c in range(labels):
        peak[c] = -np.inf
    for w in range(widths):
        n = p - 1 - w
        for c in range(labels):
            score = start[n, c] + segment[n, w, c]
            peak[c] = score if score > peak[c] else peak[c]
    for c in range(labels):
        peak[c] = peak[c] if peak[c] > -np.inf else 0.0
    for w in range(widths):
        n = p - 1 - w
        for c in range(labels):
            weight[w, c] = start[n, c] + segment[n, w, c] - peak[c]
    _combine(weight[:widths], chart, chart.end[p], chart.end_share[p])
    if kept is not None:
        for w in range(widths):
            for c in range(labels):
                kept[p - 1 - w, w, c] = weight[w, c]


@compiled("contract")
def open_exactly(pairwises, chart, p, enter):
    """start(p, ·) from end(p, ·); the probabilities of the transitions given their heads go to `enter` (K, C, C)."""
    k = min(p, len(pairwises)) - 1
    pairwise, weight = pairwises[k], enter[min(k, len(enter) - 1)]
    end, peak, share = chart.end, chart.peak, chart.start_share[p]
    labels = len(pairwise)
    for c in range(labels):
        peak[c] = -np.inf
    for i in range(labels):
        e = end[p, i]
        for c in range(labels):
            score = e + pairwise[i, c]
            peak[c] = score if score > peak[c] else peak[c]
    for c in range(labels):
        peak[c] = peak[c] if peak[c] > -np.inf else 0.0
    for i in range(labels):
        e = end[p, i]
        for c in range(labels):
            weight[i, c] = e + pairwise[i, c] - peak[c]
    _combine(weight, chart, chart.start[p], share)
    for i in range(labels):
        for c in range(labels):
            weight[i, c] *= share[c]


@compiled("contract")
def _scale(pairwise, factor):
    """factor = exp(pairwise − its greatest entry), which is returned."""
    peak = greatest(pairwise.reshape(-1))
    for i in range(len(pairwise)):
        for j in range(len(pairwise)):
            factor[i, j] = exp(pairwise[i, j] - peak)
    return peak


@compiled("contract")
def _open_scaled(pairwise, pairwise_peak, chart, p):
    """start(p, ·) from end(p, ·) as a product with `factor`; False if a label that can be reached underflows."""
    factor, mass, total, end = chart.factor, chart.mass, chart.total, chart.end[p]
    dtype = total.dtype.type
    labels = len(pairwise)
    peak = greatest(end)
    for c in range(labels):
        mass[p, c] = exp(dtype(end[c] - peak))
    for c in range(labels):
        total[c] = 0
        chart.peak[c] = peak + pairwise_peak
    for i in range(labels):
        m = mass[p, i]
        for c in range(labels):
            total[c] += m * factor[i, c]
    smallest = _tiny(total)
    for c in range(labels):
        if total[c] < smallest:
            for i in range(labels):
                if end[i] > -np.inf and pairwise[i, c] > -np.inf:
                    return False
            total[c] = 0
    _conclude(chart.peak, total, chart.start[p], chart.start_share[p])
    return True


@compiled()
def inside(segment, pairwise, length, chart, kept, enter):
    """Fills the chart of one instance of length ≥ 1; returns whether transitions were scaled.

    The weights of segments go to `kept` (N, W, C), if given; the probabilities of transitions to `enter`, shaped like
    `pairwise` (K, C, C), unless they were scaled. One matrix for all positions is scaled if that is safe.
    """
    # A single segment has no transitions: the matrix is not read.
    scaled = len(pairwise) == 1 and length > 1
    pairwise_peak = _scale(pairwise[0], chart.factor) if scaled else pairwise.dtype.type(0)
    for c in range(chart.total.size):
        chart.start[0, c] = 0
    filled = False
    while not filled:
        filled = True
        for p in range(1, length + 1):
            _close_segments(segment, chart, p, kept)
            if p < length and not scaled:
                open_exactly(pairwise, chart, p, enter)
            elif p < length and not _open_scaled(pairwise[0], pairwise_peak, chart, p):
                # Again, without scaling.
                filled = scaled = False
                break
    return scaled


@compiled("contract")
def finish(chart, length):
    """The log-partition, and in `chart.total` the probabilities of the last label."""
    end, total = chart.end[length], chart.total
    dtype = total.dtype.type
    peak = greatest(end)
    mass = 0.0
    for c in range(end.size):
        total[c] = exp(dtype(end[c] - peak))
        mass += total[c]
    share = dtype(1 / mass if mass != 0 else 0)
    for c in range(end.size):
        total[c] *= share
    return peak + np.log(mass)


@kernel()
def value_rows(first, last, segment, pairwise, lengths, value):
    chart, enter = new_chart(segment), new_matrix(pairwise)
    for b in range(first, last):
        value[b] = 0
        if lengths[b] > 0:
            inside(segment[b], pairwise[b], lengths[b], chart, None, enter)
            value[b] = finish(chart, lengths[b])
