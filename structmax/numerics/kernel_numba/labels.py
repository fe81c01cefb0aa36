"""The labels of an arc or a span: one log-weight for all, and what it receives shared out among them by softmax.

Shares are normalised where they are formed: the log-weight of labels at −1e15 has no digits left for their number.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp


@compiled("nnan", "nsz")
def best_label(scores):
    peak = scores.dtype.type(-np.inf)
    for c in range(scores.size):
        peak = max(peak, scores[c])
    return np.float64(peak)


@compiled("contract", "reassoc")
def _total(scores, peak):
    total = 0.0
    for c in range(scores.size):
        total += exp(scores[c] - peak)
    return total


@compiled()
def log_sum(scores):
    """log Σ exp(scores)"""
    peak = best_label(scores)
    return peak if peak == -np.inf else peak + math.log(_total(scores, peak))


@compiled()
def share_out(scores, amount, out):
    """out = amount · softmax(scores), zeros if no label is feasible; of nothing, whatever the scores."""
    peak = best_label(scores)
    scale = amount / _total(scores, peak) if amount != 0 and peak > -np.inf else 0.0
    for c in range(scores.size):
        out[c] = scale * exp(scores[c] - peak) if scale != 0 else 0.0


@compiled()
def mean_over_labels(scores, values):
    """⟨softmax(scores), values⟩, 0 if no label is feasible; what is not may have any value."""
    peak = best_label(scores)
    if peak == -np.inf:
        return 0.0
    total = moment = 0.0
    for c in range(scores.size):
        if scores[c] > -np.inf:
            term = exp(scores[c] - peak)
            total += term
            moment += term * values[c]
    return moment / total


@compiled()
def share_out_along(scores, tangent, amount, d_amount, out):
    """The derivative of what `share_out` writes."""
    mean, peak = mean_over_labels(scores, tangent), best_label(scores)
    scale = 1 / _total(scores, peak) if peak > -np.inf else 0.0
    for c in range(scores.size):
        out[c] = 0.0
        if scores[c] > -np.inf:
            out[c] = scale * exp(scores[c] - peak) * (d_amount + amount * (tangent[c] - mean))
