"""Inside and outside in products and sums: no exponential but one for each span.

Leaves are in every tree and are left out: their weight is 1. A tree over w + 1 leaves has w other spans, so that a
constant rate taken from each of their scores only scales the chart, by exp(−rate · w). A feasible span has to stay
between SMALLEST and LARGEST and a weight between 1 / LARGEST and LARGEST: then no product over- or underflows, a 0 is
a span that cannot be built, and all is exact to rounding. Where no rate allows that, log space does (../README.md).
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.llvm import LANES
from structmax.numerics.kernel_numba.tiles import add_products
from structmax.structures.binary_tree.kernel_numba.chart import chart_size, pitch_of, row_of, spans

SMALLEST, LARGEST = 1e-150, 1e100
# Trees of n leaves number about 4ⁿ.
LOG_GROWTH = np.log(4.0)
ATTEMPTS = 8


@compiled()
def _extent(scores, n):
    """Lowest, mean and highest finite score of the spans that are no leaves."""
    low, high, total, count = np.inf, -np.inf, 0.0, 0
    for w in range(1, n):
        for score in spans(scores, w, n):
            finite = score > -np.inf
            low, high = min(low, score if finite else np.inf), max(high, score)
            total += score if finite else 0.0
            count += finite
    return low, total / max(count, 1), high


@compiled()
def _weigh(scores, rate, weights):
    for i in range(len(scores)):
        weights[i] = exp(scores[i] - rate)


@compiled("contract", "reassoc", "nnan", "nsz")
def _multiply(weights, chart):
    """Turns sums over splits into spans of one width. Returns the largest, and the smallest that is feasible."""
    high, low = 0.0, 1.0
    for i in range(len(chart)):
        weight, splits = weights[i], chart[i]
        total = weight * splits
        chart[i] = total
        high = max(high, total)
        low = min(low, total if (weight > 0) & (splits > 0) else 1.0)
    return high, low


@compiled()
def clear(chart, n, w):
    row = row_of(w, n)
    chart[row : row + pitch_of(n)] = 0.0


@compiled()
def inside(scores, n, weights, chart):
    """The weight of each span and the chart exp(−rate · w) Σ over its trees of exp(score). Returns the rate, or NaN."""
    pitch = pitch_of(n)
    chart[: row_of(1, n)] = 0.0
    chart[LANES : LANES + n] = 1.0
    weights[LANES : LANES + n] = 1.0
    lowest, mean, highest = _extent(scores, n)
    rate = mean + LOG_GROWTH
    for _ in range(ATTEMPTS):
        if max(highest - rate, rate - lowest) > np.log(LARGEST):
            return np.nan
        for w in range(1, n):
            clear(chart, n, w)
            row = row_of(w, n)
            for i in range(0, n - w, LANES):
                # [i, i + t] and [i + t + 1, i + w]
                add_products(chart, row + i, chart, LANES + i, pitch, chart, row - pitch + i + 1, 1 - pitch, w)
            _weigh(spans(scores, w, n), rate, spans(weights, w, n))
            high, low = _multiply(spans(weights, w, n), spans(chart, w, n))
            if high > 0 and not 1 / LARGEST < high < LARGEST:
                rate += np.log(high) / w
                break
            if low < SMALLEST:
                return np.nan
        else:
            return rate
    return np.nan


@compiled()
def _add_parents(ratio, other, n, w, i, out):
    """out(i, j) += Σ over the parents of [i, j] of the parent's ratio times its other child, for a vector of spans."""
    pitch = pitch_of(n)
    place = row_of(w, n) + i
    # [i, j + u] = [i, j] [j + 1, j + u]
    add_products(out, place, ratio, place + pitch, pitch, other, LANES + i + w + 1, pitch, n - 1 - w)
    # [i − u, j] = [i − u, i − 1] [i, j]
    reach = min(i + LANES - 1, n - 1 - w)
    add_products(out, place, ratio, place + pitch - 1, pitch - 1, other, LANES + i - 1, pitch - 1, reach)


@compiled()
def _finish(weights, chart, ratio):
    for k in range(LANES):
        # The derivative of log Z in the span's entry of the chart; anything where the span cannot be built.
        slope = ratio[k] if chart[k] > 0 else 0.0
        ratio[k] = slope * weights[k]
        weights[k] = slope * chart[k]


@compiled()
def outside(n, weights, chart, ratio):
    """Marginals of spans, in place of the weights. `ratio` receives a span's marginal over its sum over splits."""
    ratio[: chart_size(n)] = 0.0
    root = row_of(n - 1, n)
    ratio[root] = 1 / chart[root]
    # A span's parents begin with it or before, and are wider. In this order they are still in the cache.
    for i in range(0, n, LANES):
        for w in range(n - 1 - i, 0, -1):
            _add_parents(ratio, chart, n, w, i, ratio)
            here = slice(row_of(w, n) + i, row_of(w, n) + i + LANES)
            _finish(weights[here], chart[here], ratio[here])


@compiled("contract")
def _multiply_tangent(weights, chart, tangent, d_chart):
    for i in range(len(chart)):
        d_chart[i] = weights[i] * d_chart[i] + chart[i] * tangent[i]


@compiled()
def inside_tangent(tangent, n, weights, chart, d_chart):
    """The tangent of the chart."""
    pitch = pitch_of(n)
    d_chart[: row_of(1, n)] = 0.0
    for w in range(1, n):
        clear(d_chart, n, w)
        row = row_of(w, n)
        for i in range(0, n - w, LANES):
            add_products(d_chart, row + i, d_chart, LANES + i, pitch, chart, row - pitch + i + 1, 1 - pitch, w)
            add_products(d_chart, row + i, chart, LANES + i, pitch, d_chart, row - pitch + i + 1, 1 - pitch, w)
        _multiply_tangent(spans(weights, w, n), spans(chart, w, n), spans(tangent, w, n), spans(d_chart, w, n))


@compiled("contract")
def _finish_tangent(tangent, weights, chart, ratio, d_chart, d_ratio, d_mu):
    for k in range(LANES):
        feasible = chart[k] > 0
        slope = ratio[k] if feasible else 0.0
        d_slope = d_ratio[k] if feasible else 0.0
        ratio[k] = slope * weights[k]
        d_ratio[k] = (d_slope + slope * tangent[k]) * weights[k]
        weights[k] = slope * chart[k]
        d_mu[k] = d_slope * chart[k] + slope * d_chart[k]


@compiled()
def outside_tangent(tangent, n, weights, chart, d_chart, ratio, d_ratio, d_mu):
    """Marginals in place of the weights, and their tangents."""
    ratio[: chart_size(n)] = 0.0
    d_ratio[: chart_size(n)] = 0.0
    root = row_of(n - 1, n)
    ratio[root] = 1 / chart[root]
    d_ratio[root] = -d_chart[root] * ratio[root] * ratio[root]
    for i in range(0, n, LANES):
        for w in range(n - 1 - i, 0, -1):
            _add_parents(ratio, chart, n, w, i, ratio)
            _add_parents(ratio, d_chart, n, w, i, d_ratio)
            _add_parents(d_ratio, chart, n, w, i, d_ratio)
            here = slice(row_of(w, n) + i, row_of(w, n) + i + LANES)
            d_here = d_chart[here], d_ratio[here], d_mu[here]
            _finish_tangent(tangent[here], weights[here], chart[here], ratio[here], *d_here)
