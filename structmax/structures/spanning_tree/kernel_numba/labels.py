"""Arcs with labels, and without: log-weights of arcs from scores, and what a label has of its arc.

Scores of an instance are rows (N + 1, (N + 1) · labels), with one label where there are none; tables are (N + 1, at
least N + 1). Labels are summed before words are eliminated, and shares of an arc go to its labels afterwards.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.labels import best_label, log_sum, mean_over_labels, share_out, share_out_along


@compiled()
def _broken(row, low, high):
    """How many entries are NaN or +inf."""
    count = 0
    for i in range(low, high):
        count += not row[i] < np.inf
    return count


@compiled()
def read(arc, n, labels, table):
    """table[h, m] = log Σ over labels of exp arc[h, m · labels + l], −inf on the diagonal; False at NaN or +inf."""
    broken = 0
    for h in range(n + 1):
        row, out = arc[h], table[h]
        broken += _broken(row, labels, h * labels) + _broken(row, (h + 1) * labels, (n + 1) * labels)
        if labels == 1:
            for m in range(1, n + 1):
                out[m] = row[m]
        else:
            for m in range(1, n + 1):
                out[m] = log_sum(row[m * labels : (m + 1) * labels])
        out[h] = -np.inf
    return broken == 0


@compiled()
def add_other_labels(arc, n, labels, table):
    """table[h, m], a log-weight of the best label, becomes that of all: they are compared before they are far away."""
    for h in range(n + 1):
        for m in range(1, n + 1 if labels > 1 else 1):
            if table[h, m] > -np.inf:
                scores = arc[h, m * labels : (m + 1) * labels]
                peak, total = best_label(scores), 0.0
                for score in scores:
                    total += exp(score - peak)
                table[h, m] += math.log(total)


@compiled()
def read_tangent(arc, tangent, n, labels, out):
    """out[h, m] = Σ over labels of their shares times their tangents; 0 where the arc cannot be.

    Returns a bound for the difference of two trees' tangents.
    """
    bound = 0.0
    for m in range(1, n + 1):
        steepest = 0.0
        names = slice(m * labels, (m + 1) * labels)
        for h in range(n + 1):
            out[h, m] = mean_over_labels(arc[h, names], tangent[h, names]) if h != m else 0.0
            steepest = max(steepest, abs(out[h, m]))
        bound += 2 * steepest
    return bound


@compiled()
def clear(out):
    for h in range(out.shape[0]):
        for part in range(out.shape[1]):
            out[h, part] = 0


@compiled()
def write(arc, n, labels, mu, out):
    """mu[h, m] times the share of each label, and zeros elsewhere."""
    clear(out)
    for h in range(n + 1):
        if labels == 1:
            for m in range(1, n + 1):
                out[h, m] = mu[h, m]
        else:
            for m in range(1, n + 1):
                names = slice(m * labels, (m + 1) * labels)
                share_out(arc[h, names], mu[h, m] if h != m else 0.0, out[h, names])


@compiled()
def write_along(arc, tangent, n, labels, mu, d_mu, out):
    """The derivative of what `write` writes."""
    clear(out)
    for h in range(n + 1):
        for m in range(1, n + 1):
            names = slice(m * labels, (m + 1) * labels)
            if labels == 1:
                out[h, m] = d_mu[h, m] if arc[h, m] > -np.inf and h != m else 0.0
            elif h != m:
                share_out_along(arc[h, names], tangent[h, names], mu[h, m], d_mu[h, m], out[h, names])


@compiled()
def refuse(n, labels, out):
    """NaN at every arc into a word from another node, 0 elsewhere."""
    clear(out)
    for h in range(n + 1):
        for m in range(1, n + 1):
            for part in range(m * labels, (m + 1) * labels if m != h else 0):
                out[h, part] = np.nan
