"""Elimination of words in logarithms, for any scores, with the derivative of each logarithm along a tangent beside it.

The same as kernel_numba_linear.py, cell by cell; names with `d_` are derivatives of logarithms, which are means of
tangents and stay in range. Every sum of products runs along two rows, so that `plan` and `slope` are kept transposed as
well. Derivations: README.md in this folder.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba_exp import exp

TABLES = 7
WEIGHT, PLAN, PLAN_TURNED, SLOPE, SLOPE_TURNED, LINES, OUT = range(TABLES)
# Rows of the table LINES
PIVOT, COLUMN, THROUGH, ZEROS = range(4)


@compiled("nnan", "nsz")
def _largest(a, b, low, high):
    peak = -np.inf
    for i in range(low, high):
        peak = max(peak, a[i] + b[i])
    return peak


@compiled("contract", "reassoc")
def _sums(a, d_a, b, d_b, low, high, peak):
    total = moment = 0.0
    for i in range(low, high):
        term = exp(a[i] + b[i] - peak)
        total += term
        moment += term * (d_a[i] + d_b[i])
    return total, moment


@compiled()
def _dot(a, d_a, b, d_b, low, high):
    """log Σ exp(a[i] + b[i]) over low ≤ i < high, and its derivative."""
    peak = _largest(a, b, low, high)
    if peak == -np.inf:
        return peak, 0.0
    total, moment = _sums(a, d_a, b, d_b, low, high, peak)
    return peak + math.log(total), moment / total


@compiled()
def _add(a, d_a, b, d_b):
    """log(exp a + exp b), and its derivative."""
    peak = max(a, b)
    if peak == -np.inf:
        return peak, 0.0
    left, right = exp(a - peak), exp(b - peak)
    return peak + math.log(left + right), (left * d_a + right * d_b) / (left + right)


@compiled()
def eliminate(n, single_root, tables, d_tables):
    """Fills plan and pivot from the weights; returns log Z."""
    weight, plan, turned, lines = tables[WEIGHT], tables[PLAN], tables[PLAN_TURNED], tables[LINES]
    d_weight, d_plan, d_turned, d_lines = d_tables[WEIGHT], d_tables[PLAN], d_tables[PLAN_TURNED], d_tables[LINES]
    column, d_column, zeros = lines[COLUMN], d_lines[COLUMN], d_lines[ZEROS]
    first = 1 if single_root else 0
    value = 0.0
    for m in range(1, n + 1):
        zeros[m - 1] = zeros[m] = 0.0
        plan[0, m], d_plan[0, m] = weight[0, m], d_weight[0, m]
    for k in range(n, 0, -1):
        for h in range(first, k):
            paths, d_paths = _dot(plan[h], d_plan[h], turned[k], d_turned[k], k + 1, n + 1)
            column[h], d_column[h] = _add(weight[h, k], d_weight[h, k], paths, d_paths)
        for m in range(1, k):
            paths, d_paths = _dot(plan[k], d_plan[k], turned[m], d_turned[m], k + 1, n + 1)
            plan[k, m], d_plan[k, m] = _add(weight[k, m], d_weight[k, m], paths, d_paths)
            turned[m, k], d_turned[m, k] = plan[k, m], d_plan[k, m]
        total, d_total = _dot(column, d_column, zeros, zeros, first, k)
        lines[PIVOT, k], d_lines[PIVOT, k] = total, d_total
        for h in range(first, k):
            plan[h, k], d_plan[h, k] = (0.0 if h == 1 else -np.inf), 0.0
            if total > -np.inf:
                plan[h, k], d_plan[h, k] = column[h] - total, d_column[h] - d_total
        if single_root:
            among, d_among = total, d_total
            total, d_total = _add(among, d_among, plan[0, k], d_plan[0, k])
            stays, d_stays = among - total, d_among - d_total
            hangs, d_hangs = plan[0, k] - total, d_plan[0, k] - d_total
            for m in range(1, k if total > -np.inf else 1):
                plan[0, m], d_plan[0, m] = _add(
                    stays + plan[0, m], d_stays + d_plan[0, m], hangs + plan[k, m], d_hangs + d_plan[k, m]
                )
        if total == -np.inf:
            return total
        value += total
    return value


@compiled()
def pull(n, single_root, bound, tables, d_tables):
    """Fills slope, after `eliminate`. No derivative exceeds `bound`, unless by rounding, where a slope should be 0."""
    plan, slope, turned, lines = tables[PLAN], tables[SLOPE], tables[SLOPE_TURNED], tables[LINES]
    d_plan, d_slope, d_turned, d_lines = d_tables[PLAN], d_tables[SLOPE], d_tables[SLOPE_TURNED], d_tables[LINES]
    share, through, d_share, d_through = lines[COLUMN], lines[THROUGH], d_lines[COLUMN], d_lines[THROUGH]
    first = 1 if single_root else 0
    for k in range(1, n + 1):
        pivot, d_pivot = lines[PIVOT, k], d_lines[PIVOT, k]
        # How likely k has a head among what is left, less how many paths go through k: a number, no logarithm
        likely, d_likely = 1.0, 0.0
        for h in range(first, k):
            share[h], d_share[h] = plan[h, k], d_plan[h, k]
            through[h], d_through[h] = _dot(slope[h], d_slope[h], plan[k], d_plan[k], 1, k)
            paths = exp(share[h] + through[h])
            likely -= paths
            d_likely -= paths * (d_share[h] + d_through[h])
        for m in range(1, k):
            slope[k, m], d_slope[k, m] = _dot(share, d_share, turned[m], d_turned[m], first, k)
        if single_root:
            total, d_total = _add(pivot, d_pivot, plan[0, k], d_plan[0, k])
            hangs, d_hangs = plan[0, k] - total, d_plan[0, k] - d_total
            below, d_below = 0.0, 0.0
            if k > 1:
                below, d_below = _dot(slope[0], d_slope[0], plan[k], d_plan[k], 1, k)
            from_root = exp(hangs + below)
            likely -= from_root
            d_likely -= from_root * (d_hangs + d_below)
            for m in range(1, k):
                slope[k, m], d_slope[k, m] = _add(
                    slope[k, m], d_slope[k, m], hangs + slope[0, m], d_hangs + d_slope[0, m]
                )
                slope[0, m] += pivot - total
                d_slope[0, m] += d_pivot - d_total
            slope[0, k], d_slope[0, k] = below - total, d_below - d_total
        for h in range(first, k):
            peak = max(0.0, through[h])
            base, paths = exp(-peak), exp(through[h] - peak)
            number = likely * base + paths
            slope[h, k], d_slope[h, k] = -np.inf, 0.0
            if number > 0 and pivot > -np.inf:
                slope[h, k] = peak + math.log(number) - pivot
                d_slope[h, k] = (d_likely * base + paths * d_through[h]) / number - d_pivot
                d_slope[h, k] = max(-bound, min(bound, d_slope[h, k]))
        slope[k, k], d_slope[k, k] = -np.inf, 0.0
        for m in range(k + 1):
            turned[m, k], d_turned[m, k] = slope[k, m], d_slope[k, m]
            turned[k, m], d_turned[k, m] = slope[m, k], d_slope[m, k]


@compiled()
def solve(n, single_root, table, d_table, bound, tables, d_tables):
    """log Z of log-weights table[h, m], and the marginals and their derivatives along d_table in both tables' OUT."""
    weight, slope, mu = tables[WEIGHT], tables[SLOPE], tables[OUT]
    d_weight, d_slope, d_mu = d_tables[WEIGHT], d_tables[SLOPE], d_tables[OUT]
    shift = 0.0
    for m in range(1, n + 1):
        peak = -np.inf
        for h in range(n + 1):
            peak = max(peak, table[h, m])
        # Any number will do where there is no head.
        peak = peak if peak > -np.inf else 0.0
        shift += peak
        for h in range(n + 1):
            weight[h, m], d_weight[h, m] = table[h, m] - peak, d_table[h, m]
    value = shift + eliminate(n, single_root, tables, d_tables)
    feasible = value > -np.inf
    if feasible:
        pull(n, single_root, bound, tables, d_tables)
    for h in range(n + 1):
        for m in range(1, n + 1):
            mu[h, m] = exp(weight[h, m] + slope[h, m]) if feasible else 0.0
            d_mu[h, m] = mu[h, m] * (d_weight[h, m] + d_slope[h, m]) if feasible else 0.0
    return value
