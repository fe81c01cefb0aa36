"""Single structures: the best one, and draws. Both walk back from the last position over a filled chart."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.semi_markov.kernel_numba.inside import greatest, inside, new_chart, new_matrix


@compiled()
def _best(scores):
    """The first of the greatest scores."""
    best = 0
    for k in range(1, scores.size):
        best = k if scores[k] > scores[best] else best
    return best


@compiled()
def _drawn(scores, uniform):
    """The first entry at which the cumulative weight exp(scores) exceeds uniform · total, among those with weight."""
    peak = greatest(scores)
    total = 0.0
    for k in range(scores.size):
        scores[k] = np.exp(scores[k] - peak)
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
    for c in range(labels):
        scores[c] = chart.end[length, c]
    label, drawn = _decide(scores[:labels], noise, 0)
    p = length
    while True:
        for w in range(min(widths, p)):
            scores[w] = chart.start[p - 1 - w, label] + segment[p - 1 - w, w, label]
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


@compiled()
def _best_chart(segment, pairwise, length, chart):
    """The values with max in place of log Σ exp."""
    start, end = chart.start, chart.end
    widths, labels = segment.shape[1:]
    for c in range(labels):
        start[0, c] = 0
    for p in range(1, length + 1):
        for c in range(labels):
            end[p, c] = -np.inf
        for w in range(min(widths, p)):
            n = p - 1 - w
            for c in range(labels):
                score = start[n, c] + segment[n, w, c]
                end[p, c] = score if score > end[p, c] else end[p, c]
        if p == length:
            break
        k = min(p, len(pairwise)) - 1
        for c in range(labels):
            start[p, c] = -np.inf
        for i in range(labels):
            e = end[p, i]
            for c in range(labels):
                score = e + pairwise[k, i, c]
                start[p, c] = score if score > start[p, c] else start[p, c]


@kernel()
def argmax_rows(first, last, segment, pairwise, lengths, y_segment, y_pairwise):
    chart = new_chart(segment)
    scores = np.empty(max(segment.shape[2:]))
    for b in range(first, last):
        length = lengths[b]
        if length > 0:
            _best_chart(segment[b], pairwise[b], length, chart)
            if chart.end[length].max() > -np.inf:
                _walk(segment[b], pairwise[b], length, chart, scores, None, y_segment[b], y_pairwise[b])


@kernel()
def sample_rows(first, last, segment, pairwise, lengths, noise, y_segment, y_pairwise):
    chart = new_chart(segment)
    scores = np.empty(max(segment.shape[2:]))
    enter = new_matrix(pairwise)
    for b in range(first, last):
        length = lengths[b]
        if length > 0:
            inside(segment[b], pairwise[b], length, chart, None, enter)
            if chart.end[length].max() > -np.inf:
                for s in range(noise.shape[1]):
                    y = y_segment[b, s], y_pairwise[b, s]
                    _walk(segment[b], pairwise[b], length, chart, scores, noise[b, s], *y)
