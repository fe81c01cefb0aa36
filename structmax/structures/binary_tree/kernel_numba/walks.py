"""From a chart down to trees, the best or drawn ones. Spans are visited depth first, left children before right."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.structures.binary_tree.kernel_numba.chart import row_of
from structmax.structures.binary_tree.kernel_numba.log import best_splits, start


@compiled()
def _push_children(i, j, k, pending, count):
    """[i, k] above [k + 1, j] on the stack; its new height."""
    pending[count, 0], pending[count, 1] = k + 1, j
    pending[count + 1, 0], pending[count + 1, 1] = i, k
    return count + 2


@compiled()
def follow_best(x, scores, n, chart, pending, out):
    """One best tree of n leaves: among equals the first split and the first label. Nothing if there is no tree."""
    start(n, chart)
    total = 0.0
    for i in range(n):
        total += scores[row_of(0, n) + i]
    for w in range(1, n):
        best_splits(n, w, chart)
        row = row_of(w, n)
        for place in range(row, row + n - w):
            chart[place] += scores[place]
    # as a number of the scores' dtype
    if x.dtype.type(total + chart[row_of(n - 1, n)]) == -np.inf:
        return
    pending[0, 0], pending[0, 1] = 0, n - 1
    count = 1
    while count > 0:
        count -= 1
        i, j = pending[count]
        out[i, j, np.argmax(x[i, j])] = 1.0
        if i < j:
            best, split = -np.inf, i
            for k in range(i, j):
                score = chart[row_of(k - i, n) + i] + chart[row_of(j - k - 1, n) + k + 1]
                if score > best:
                    best, split = score, k
            count = _push_children(i, j, split, pending, count)


@compiled()
def _choose(mass, count, u):
    """The first of which the cumulative mass exceeds u of the total, never one without mass."""
    total = 0.0
    for k in range(count):
        total += mass[k]
    cumulative, chosen = 0.0, 0
    for k in range(count):
        cumulative += mass[k]
        if mass[k] > 0:
            chosen = k
            if cumulative > u * total:
                break
    return chosen


@compiled()
def draw(x, noise, n, in_log_space, chart, pending, mass, out):
    """One tree of n leaves: at each span its split, then its label, each from the next number if there is a choice."""
    used = 0
    pending[0, 0], pending[0, 1] = 0, n - 1
    count = 1
    while count > 0:
        count -= 1
        i, j = pending[count]
        split = i
        if j - i > 1:
            peak = -np.inf
            for k in range(i, j):
                left, right = chart[row_of(k - i, n) + i], chart[row_of(j - k - 1, n) + k + 1]
                mass[k - i] = left + right if in_log_space else left * right
                peak = max(peak, mass[k - i])
            if in_log_space:
                for k in range(j - i):
                    mass[k] = exp(mass[k] - peak)
            split = i + _choose(mass, j - i, noise[used])
            used += 1
        label = 0
        if x.shape[2] > 1:
            peak = np.max(x[i, j])
            for c in range(x.shape[2]):
                mass[c] = exp(np.float64(x[i, j, c] - peak))
            label = _choose(mass, x.shape[2], noise[used])
            used += 1
        out[i, j, label] = 1.0
        if i < j:
            count = _push_children(i, j, split, pending, count)
