"""The inside pass of a semi-Markov chain, and the chart it fills. Derivation: README.md in this folder.

Both rows of a position are kept near 0: start(p, ·) is `start[p]` + `offset[p]`, and end(p, ·) is `end[p]` +
`offset[p − 1]`, the offsets in float64. Inner loops run over labels, each writes one array: LLVM vectorises these.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba_math import exp, log


class Chart(NamedTuple):
    """Scratch for one instance; `weight` (W, C) and `flat` (W · C,) are the same memory."""

    start: np.ndarray  # (N, C)
    end: np.ndarray  # (N + 1, C)
    offset: np.ndarray  # (N,) float64
    # 1 / Σ of the weights of the edges into start and end, 0 where there is none
    start_share: np.ndarray  # (N, C)
    end_share: np.ndarray  # (N + 1, C)
    # exp of end, its greatest label at 1
    mass: np.ndarray  # (N, C)
    # exp of the pairwise scores, their greatest at 1
    factor: np.ndarray  # (C, C)
    peak: np.ndarray  # (C,)
    total: np.ndarray  # (C,)
    weight: np.ndarray
    flat: np.ndarray


@compiled()
def new_chart(segment):
    _, n, w, c = segment.shape
    dtype = segment.dtype
    flat = np.empty(w * c, dtype)
    return Chart(
        np.empty((n, c), dtype),
        np.empty((n + 1, c), dtype),
        np.empty(n),
        np.empty((n, c), dtype),
        np.empty((n + 1, c), dtype),
        np.empty((n, c), dtype),
        np.empty((c, c), dtype),
        np.empty(c, dtype),
        np.empty(c, dtype),
        flat.reshape(w, c),
        flat,
    )


@compiled()
def tiny(x):
    """Scaled sums below this are not trusted: terms that vanish beside it have lost less than a rounding error."""
    return x.dtype.type(1e-26 if x.itemsize == 4 else 1e-250)


@compiled("contract")
def _conclude(peak, total, value, share):
    """value = peak + log total and share = 1 / total; −inf and 0 where total is 0, NaN where it is NaN."""
    dtype = value.dtype.type
    zero, one, infinity = dtype(0), dtype(1), dtype(np.inf)
    for c in range(value.size):
        value[c] = peak[c] + log(total[c]) if total[c] > zero else total[c] - infinity
    for c in range(value.size):
        share[c] = one / total[c] if total[c] != zero else zero


@compiled("contract")
def _exp_flat(flat):
    for k in range(flat.size):
        flat[k] = exp(flat[k])


@compiled("contract")
def close_segments(segment, chart, p, kept):
    """end(p, ·) over the segments that end before p. Their weights go to their places in `kept` (N, W, C), if given."""
    start, weight, peak, total = chart.start, chart.weight, chart.peak, chart.total
    dtype = segment.dtype.type
    labels, widths = segment.shape[2], min(segment.shape[1], p)
    zero, lowest = dtype(0), dtype(-np.inf)
    for c in range(labels):
        peak[c] = lowest
    for w in range(widths):
        n = p - 1 - w
        shift = dtype(chart.offset[n] - chart.offset[p - 1])
        for c in range(labels):
            weight[w, c] = start[n, c] + segment[n, w, c] + shift
        for c in range(labels):
            peak[c] = weight[w, c] if weight[w, c] > peak[c] else peak[c]
    for c in range(labels):
        total[c] = zero
        peak[c] = peak[c] if peak[c] > lowest else zero
    for w in range(widths):
        for c in range(labels):
            weight[w, c] -= peak[c]
    _exp_flat(chart.flat[: widths * labels])
    for w in range(widths):
        for c in range(labels):
            total[c] += weight[w, c]
    _conclude(peak, total, chart.end[p], chart.end_share[p])
    if kept is not None:
        for w in range(widths):
            for c in range(labels):
                kept[p - 1 - w, w, c] = weight[w, c]


@compiled("nnan", "nsz")
def greatest(row):
    """The greatest entry of a row, 0 if all are −inf; anything if one is NaN."""
    peak = row.dtype.type(-np.inf)
    for c in range(row.size):
        peak = max(peak, row[c])
    return peak if peak > -np.inf else row.dtype.type(0)


@compiled("contract")
def scale_pairwise(pairwise, factor):
    """factor = exp(pairwise − its greatest entry), which is returned."""
    peak = greatest(pairwise.reshape(-1))
    for i in range(len(pairwise)):
        for j in range(len(pairwise)):
            factor[i, j] = exp(pairwise[i, j] - peak)
    return peak


@compiled("contract")
def open_scaled(pairwise, pairwise_peak, chart, p):
    """start(p, ·) from end(p, ·) as a product with `factor`; False if a label that can be reached underflows."""
    factor, mass, total, end = chart.factor, chart.mass[p], chart.total, chart.end[p]
    labels = len(pairwise)
    zero = end.dtype.type(0)
    peak = greatest(end)
    for c in range(labels):
        mass[c] = exp(end[c] - peak)
        total[c] = zero
    for i in range(labels):
        m = mass[i]
        for c in range(labels):
            total[c] += m * factor[i, c]
    smallest = tiny(end)
    for c in range(labels):
        if total[c] < smallest:
            for i in range(labels):
                if end[i] > -np.inf and pairwise[i, c] > -np.inf:
                    return False
            total[c] = zero
    chart.peak[:] = zero
    _conclude(chart.peak, total, chart.start[p], chart.start_share[p])
    chart.offset[p] = chart.offset[p - 1] + peak + pairwise_peak
    return True


@compiled("contract")
def open_exactly(pairwises, chart, p, enter):
    """start(p, ·) from end(p, ·); the probabilities of the transitions given their heads go to `enter` (K, C, C)."""
    peak, total, end, start, share = chart.peak, chart.total, chart.end[p], chart.start[p], chart.start_share[p]
    k = min(p, len(pairwises)) - 1
    pairwise, weight = pairwises[k], enter[min(k, len(enter) - 1)]
    dtype = end.dtype.type
    labels = len(pairwise)
    zero, lowest = dtype(0), dtype(-np.inf)
    for c in range(labels):
        peak[c] = lowest
    for i in range(labels):
        e = end[i]
        for c in range(labels):
            weight[i, c] = e + pairwise[i, c]
        for c in range(labels):
            peak[c] = weight[i, c] if weight[i, c] > peak[c] else peak[c]
    for c in range(labels):
        total[c] = zero
        peak[c] = peak[c] if peak[c] > lowest else zero
    for i in range(labels):
        for c in range(labels):
            weight[i, c] -= peak[c]
    _exp_flat(weight.reshape(-1))
    for i in range(labels):
        for c in range(labels):
            total[c] += weight[i, c]
    _conclude(peak, total, start, share)
    for i in range(labels):
        for c in range(labels):
            weight[i, c] *= share[c]
    level = greatest(start)
    for c in range(labels):
        start[c] -= level
    chart.offset[p] = chart.offset[p - 1] + level


@compiled()
def inside(segment, pairwise, length, chart, kept, enter):
    """Fills the chart of one instance of length ≥ 1; returns whether transitions were scaled.

    The weights of segments go to `kept` (N, W, C), if given; the probabilities of transitions to `enter`, shaped like
    `pairwise` (K, C, C), unless they were scaled. One matrix for all positions is scaled if that is safe.
    """
    # A single segment has no transitions: the matrix is not read.
    if len(pairwise) == 1 and length > 1 and _inside(segment, pairwise, length, chart, kept, enter, True):
        return True
    _inside(segment, pairwise, length, chart, kept, enter, False)
    return False


@compiled()
def _inside(segment, pairwise, length, chart, kept, enter, scaled):
    chart.start[0] = 0
    chart.offset[0] = 0
    pairwise_peak = scale_pairwise(pairwise[0], chart.factor) if scaled else pairwise.dtype.type(0)
    for p in range(1, length + 1):
        close_segments(segment, chart, p, kept)
        if p < length:
            if scaled:
                if not open_scaled(pairwise[0], pairwise_peak, chart, p):
                    return False
            else:
                open_exactly(pairwise, chart, p, enter)
    return True


@compiled("contract")
def finish(chart, length):
    """The log-partition, and in `chart.total` the probabilities of the last label."""
    end, total = chart.end[length], chart.total
    peak = greatest(end)
    mass = 0.0
    for c in range(end.size):
        total[c] = exp(end[c] - peak)
        mass += total[c]
    share = end.dtype.type(1 / mass if mass != 0 else 0)
    for c in range(end.size):
        total[c] *= share
    return chart.offset[length - 1] + peak + np.log(mass)


@compiled()
def value_rows(first, last, segment, pairwise, lengths, value):
    chart = new_chart(segment)
    enter = np.empty((1, *pairwise.shape[2:]), pairwise.dtype)
    for b in range(first, last):
        value[b] = 0
        if lengths[b] > 0:
            inside(segment[b], pairwise[b], lengths[b], chart, None, enter)
            value[b] = finish(chart, lengths[b])
