"""Inside and outside in log space, for scores of any range. Leaves are left out: their score counts as 0.

`splits` has the best score of a span's two children, and `share` one over the sum over its splits, relative to that:
shares of splits sum to 1 however large the logarithms. At −1e15 these have no digits left for the number of splits.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.llvm import LANES
from structmax.numerics.kernel_numba.tiles import raise_to_sums
from structmax.structures.binary_tree.kernel_numba.chart import pitch_of, row_of, spans


@compiled()
def best_splits(n, w, chart):
    """The best score of the two children of each span of width w, in the span's place."""
    pitch, row = pitch_of(n), row_of(w, n)
    chart[row : row + pitch] = -np.inf
    for i in range(0, n - w, LANES):
        raise_to_sums(chart, row + i, chart, LANES + i, pitch, chart, row - pitch + i + 1, 1 - pitch, w)


@compiled()
def start(n, chart):
    chart[: row_of(1, n)] = -np.inf
    chart[LANES : LANES + n] = 0.0


@compiled()
def _children(chart, w, t, n):
    """The left and the right children of all spans of width w, split after t + 1 leaves."""
    count, left, right = len(spans(chart, w, n)), row_of(t, n), row_of(w - t - 1, n) + t + 1
    return chart[left : left + count], chart[right : right + count]


@compiled("contract")
def _add_split(left, right, peak, total):
    """total += exp(score of the two children − peak)."""
    for i in range(len(total)):
        total[i] += exp((left[i] + right[i]) - peak[i])


@compiled()
def _finish(scores, splits, share, chart):
    for i in range(len(chart)):
        feasible = chart[i] > 0
        share[i] = 1 / chart[i] if feasible else 0.0
        chart[i] = splits[i] + np.log(chart[i]) + scores[i] if feasible else -np.inf


@compiled()
def inside(scores, n, splits, share, chart):
    """log Σ over a span's trees of exp(score), in `chart`; `splits` is 0 instead of −inf."""
    start(n, chart)
    for w in range(1, n):
        best_splits(n, w, chart)
        row, peak = spans(chart, w, n), spans(splits, w, n)
        for i in range(len(row)):
            # −inf − 0 is fine where −inf − (−inf) is not.
            peak[i] = row[i] if row[i] > -np.inf else 0.0
            row[i] = 0.0
        for t in range(w):
            _add_split(*_children(chart, w, t, n), peak, row)
        _finish(spans(scores, w, n), peak, spans(share, w, n), row)


@compiled("contract")
def _pass_on(left, right, splits, share, mu, mu_left, mu_right):
    """Adds to each child its share of the marginal of its parent, for one split of the spans of one width."""
    for i in range(len(mu)):
        amount = mu[i] * share[i] * exp((left[i] + right[i]) - splits[i])
        mu_left[i] += amount
        mu_right[i] += amount


@compiled()
def outside(n, splits, share, chart, mu):
    """Marginals of all spans."""
    mu[:] = 0.0
    mu[row_of(n - 1, n)] = 1.0
    for w in range(n - 1, 0, -1):
        for t in range(w):
            left, right = _children(chart, w, t, n)
            mu_left, mu_right = _children(mu, w, t, n)
            _pass_on(left, right, spans(splits, w, n), spans(share, w, n), spans(mu, w, n), mu_left, mu_right)


@compiled("contract")
def _add_mean(left, right, splits, share, d_left, d_right, d_chart):
    for i in range(len(d_chart)):
        d_chart[i] += share[i] * exp((left[i] + right[i]) - splits[i]) * (d_left[i] + d_right[i])


@compiled()
def inside_tangent(tangent, n, splits, share, chart, d_splits, d_chart):
    """The tangent of the chart, and without the span itself the mean over its splits, in `d_splits`."""
    d_chart[:] = 0.0
    d_splits[:] = 0.0
    for w in range(1, n):
        for t in range(w):
            left, right = _children(chart, w, t, n)
            d_left, d_right = _children(d_chart, w, t, n)
            above = spans(splits, w, n), spans(share, w, n)
            _add_mean(left, right, *above, d_left, d_right, spans(d_splits, w, n))
        spans(d_chart, w, n)[:] = spans(d_splits, w, n) + spans(tangent, w, n)


@compiled("contract")
def _pass_on_tangent(
    left, right, splits, share, d_left, d_right, d_splits, mu, mu_left, mu_right, d_mu, d_mu_left, d_mu_right
):
    for i in range(len(mu)):
        split = share[i] * exp((left[i] + right[i]) - splits[i])
        amount = split * mu[i]
        d_amount = split * (d_mu[i] + mu[i] * (d_left[i] + d_right[i] - d_splits[i]))
        mu_left[i] += amount
        mu_right[i] += amount
        d_mu_left[i] += d_amount
        d_mu_right[i] += d_amount


@compiled()
def outside_tangent(n, splits, share, chart, d_splits, d_chart, mu, d_mu):
    """Marginals of all spans, and their tangents."""
    mu[:], d_mu[:] = 0.0, 0.0
    mu[row_of(n - 1, n)] = 1.0
    for w in range(n - 1, 0, -1):
        for t in range(w):
            left, right = _children(chart, w, t, n)
            d_left, d_right = _children(d_chart, w, t, n)
            mu_left, mu_right = _children(mu, w, t, n)
            d_mu_left, d_mu_right = _children(d_mu, w, t, n)
            above = spans(splits, w, n), spans(share, w, n), d_left, d_right, spans(d_splits, w, n)
            passed = spans(mu, w, n), mu_left, mu_right, spans(d_mu, w, n), d_mu_left, d_mu_right
            _pass_on_tangent(left, right, *above, *passed)
