"""Single structures: the best one, and draws. Both walk back from the last position over a filled chart."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba_math import exp
from structmax.structures.semi_markov.kernel_numba_inside import greatest, inside, new_chart


@compiled()
def _best(scores):
    """The first of the greatest scores."""
    best = 0
    for k in range(1, scores.size):
        best = k if scores[k] > scores[best] else best
    return best


@compiled()
def _drawn(scores, uniform):
    """The first entry at which the cumulative weight exc(scores) exceeds uniform · total, among those with weight."""
    peak = greatest(scores)
    total = 0.0
    for k in range(scores.size):
        scores[k] = exp(scores[k] - peak)
        total += scores[k]
    mass, last = 0.0, 0
    for k in range(scores.size):
        mass += scores[k]
        if scores[k] > 0:
            last = k
            if mass > uniform * total:
                break
    return last


@compiled()
def _decide(scores, noise, drawn):
    """The edge to take, and how many numbers have been drawn; without noise the best edge."""
    if noise is None:
        return _best(scores), drawn
    if scores.size == 1:
        return 0, drawn
    return _drawn(scores, noise[drawn]), drawn + 1


@compiled()
def _walk(segment, pairwise, length, chart, scores, noise, y_segment, y_pairwise):
    """Writes the structure that starts from the label at the end; see `_decide`."""
    widths, labels = segment.shape[1:]
    scores[:labels] = chart.end[length]
    label, drawn = _decide(scores[:labels], noise, 0)
    p = length
    while True:
        for w in range(min(widths, p)):
            n = p - 1 - w
            shift = chart.offset[n] - chart.offset[p - 1]
            scores[w] = chart.start[n, label] + segment[n, w, label] + shift
        w, drawn = _decide(scores[: min(widths, p)], noise, drawn)
        p -= w + 1
        y_segment[p, w, label] = 1
        if p == 0:
            return
        k = min(p, len(pairwise)) - 1
        for i in range(labels):
            scores[i] = chart.end[p, i] + pairwise[k, i, label]
        before, drawn = _decide(scores[:labels], noise, drawn)
        y_pairwise[k, before, label] += 1
        label = before


@compiled("contract")
def _best_chart(segment, pairwise, length, chart):
    """The chart with max in place of log Σ exp."""
    start, end, weight, offset = chart.start, chart.end, chart.weight, chart.offset
    dtype = segment.dtype.type
    widths, labels = segment.shape[1:]
    lowest = dtype(-np.inf)
    start[0] = 0
    offset[0] = 0
    for p in range(1, length + 1):
        for c in range(labels):
            end[p, c] = lowest
        for w in range(min(widths, p)):
            n = p - 1 - w
            shift = dtype(offset[n] - offset[p - 1])
            for c in range(labels):
                weight[w, c] = start[n, c] + segment[n, w, c] + shift
            for c in range(labels):
                end[p, c] = weight[w, c] if weight[w, c] > end[p, c] else end[p, c]
        if p == length:
            break
        k = min(p, len(pairwise)) - 1
        for c in range(labels):
            start[p, c] = lowest
        for i in range(labels):
            e = end[p, i]
            for c in range(labels):
                t = e + pairwise[k, i, c]
                start[p, c] = t if t > start[p, c] else start[p, c]
        level = greatest(start[p])
        for c in range(labels):
            start[p, c] -= level
        offset[p] = offset[p - 1] + level


@compiled()
def argmax_rows(first, last, segment, pairwise, lengths, y_segment, y_pairwise):
    chart = new_chart(segment)
    scores = np.empty(max(segment.shape[2:]), segment.dtype)
    for b in range(first, last):
        length = lengths[b]
        if length > 0:
            _best_chart(segment[b], pairwise[b], length, chart)
            if np.max(chart.end[length]) > -np.inf:
                _walk(segment[b], pairwise[b], length, chart, scores, None, y_segment[b], y_pairwise[b])


@compiled()
def sample_rows(first, last, segment, pairwise, lengths, noise, y_segment, y_pairwise):
    chart = new_chart(segment)
    scores = np.empty(max(segment.shape[2:]), segment.dtype)
    enter = np.empty((1, *pairwise.shape[2:]), pairwise.dtype)
    for b in range(first, last):
        length = lengths[b]
        if length > 0:
            inside(segment[b], pairwise[b], length, chart, None, enter)
            if np.max(chart.end[length]) > -np.inf:
                for s in range(noise.shape[1]):
                    y = y_segment[b, s], y_pairwise[b, s]
                    _walk(segment[b], pairwise[b], length, chart, scores, noise[b, s], *y)
