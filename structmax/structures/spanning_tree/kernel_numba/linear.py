"""Elimination of words in numbers as they are, for scores whose trees fit into float64. Derivations: ../README.md here.

`plan` holds the elimination of words n, n − 1, … 1, in place as an LU decomposition does:

    plan[k, m], m < k    the arc k → m at the time when k is eliminated
    plan[h, k], h < k    the share of h in k's heads at that time; of a single root, its arc to k

`slope` holds derivatives of log Z by arcs. They are the same at all times: an arc of the smaller graph is one of the
greater plus the path through k. Only a single root's arcs shrink by a factor. Names with `d_` are derivatives along a
tangent of the scores. Tables may hold any finite numbers where nothing is said; products with them are with zeros.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.matrix import add_columns, add_dots

# A word whose heads among the words weigh less has none; the reason is in ../README.md.
LONELY = 1e-290


@compiled()
def _column_below(table, k, n, out):
    """out[j] = table[j, k] for k < j ≤ n, and zeros around."""
    out[:] = 0.0
    for j in range(k + 1, n + 1):
        out[j] = table[j, k]


@compiled()
def _start_of_row(table, k, out):
    """out[m] = table[k, m] for 1 ≤ m < k, and zeros around."""
    out[:] = 0.0
    for m in range(1, k):
        out[m] = table[k, m]


@compiled()
def eliminate(n, single_root, weight, plan, pivot, scratch):
    """Fills plan and pivot, the weight of k's heads among what is left; returns log Z, −inf if it is (nearly) 0."""
    column, row, below = scratch[0], scratch[1], scratch[2]
    first = 1 if single_root else 0
    value = 0.0
    if single_root:
        for m in range(1, n + 1):
            plan[0, m] = weight[0, m]
    for k in range(n, 0, -1):
        _column_below(plan, k, n, below)
        column[:] = 0.0
        add_dots(plan, first, k, below, k + 1, n + 1, column)
        total = 0.0
        for h in range(first, k):
            column[h] += weight[h, k]
            total += column[h]
        row[:] = 0.0
        add_columns(plan, k + 1, n + 1, plan[k], k, row)
        for m in range(1, k):
            plan[k, m] = weight[k, m] + row[m]
        if single_root and total < LONELY:
            total = 0.0
            for h in range(1, k):
                plan[h, k] = 1.0 if h == 1 else 0.0
        pivot[k] = total
        if total > 0:
            for h in range(first, k):
                plan[h, k] = column[h] / total
        if single_root:
            total += plan[0, k]
        if not total > 0:
            return -np.inf
        value += math.log(total)
        if single_root:
            stays, hangs = pivot[k] / total, plan[0, k] / total
            for m in range(1, k):
                plan[0, m] = stays * plan[0, m] + hangs * plan[k, m]
    return value


@compiled()
def pull(n, single_root, plan, pivot, slope, scratch):
    """Fills slope, after `eliminate`: words come back in the order 1, 2, … n."""
    through, row, out, shares = scratch[0], scratch[1], scratch[2], scratch[3]
    first = 1 if single_root else 0
    ceiling = float(n)
    for k in range(1, n + 1):
        _start_of_row(plan, k, row)
        through[:] = 0.0
        add_dots(slope, first, k, row, 0, k, through)
        for h in range(first, k):
            shares[h] = plan[h, k]
        out[:] = 0.0
        add_columns(slope, first, k, shares, k, out)
        # How likely k has a head among what is left, less how many paths go through k
        likely = 1.0
        total = pivot[k] + plan[0, k] if single_root else pivot[k]
        # No slope exceeds n / Z, where that of a forbidden arc should be 0 rounding has no bound.
        ceiling /= total
        if single_root:
            stays, hangs = pivot[k] / total, plan[0, k] / total
            below_root = 1.0 if k == 1 else 0.0
            for m in range(1, k):
                below_root += slope[0, m] * row[m]
                out[m] += hangs * slope[0, m]
                slope[0, m] *= stays
            slope[0, k] = below_root / total
            likely -= hangs * below_root
        for m in range(1, k):
            slope[k, m] = out[m]
        slope[k, k] = 0.0
        for h in range(first, k):
            likely -= shares[h] * through[h]
        for h in range(first, k):
            slope[h, k] = min(ceiling, max(0.0, likely + through[h]) / pivot[k]) if pivot[k] > 0 else 0.0


@compiled()
def eliminate_along(n, single_root, weight, d_weight, plan, pivot, d_plan, d_pivot, scratch):
    """Fills d_plan and d_pivot, after `eliminate`."""
    d_column, d_row, below, root = scratch[0], scratch[1], scratch[2], scratch[3]
    first = 1 if single_root else 0
    if single_root:
        for m in range(1, n + 1):
            root[m], d_plan[0, m] = weight[0, m], d_weight[0, m]
    for k in range(n, 0, -1):
        d_column[:] = 0.0
        _column_below(plan, k, n, below)
        add_dots(d_plan, first, k, below, k + 1, n + 1, d_column)
        _column_below(d_plan, k, n, below)
        add_dots(plan, first, k, below, k + 1, n + 1, d_column)
        d_total = 0.0
        for h in range(first, k):
            d_column[h] += d_weight[h, k]
            d_total += d_column[h]
        d_row[:] = 0.0
        add_columns(plan, k + 1, n + 1, d_plan[k], k, d_row)
        add_columns(d_plan, k + 1, n + 1, plan[k], k, d_row)
        for m in range(1, k):
            d_plan[k, m] = d_weight[k, m] + d_row[m]
        d_pivot[k] = d_total if pivot[k] > 0 else 0.0
        for h in range(first, k):
            d_plan[h, k] = (d_column[h] - plan[h, k] * d_total) / pivot[k] if pivot[k] > 0 else 0.0
        if single_root:
            total = pivot[k] + root[k]
            stays, hangs = pivot[k] / total, root[k] / total
            d_hangs = (stays * d_plan[0, k] - hangs * d_pivot[k]) / total
            for m in range(1, k):
                d_plan[0, m] = stays * d_plan[0, m] + hangs * d_plan[k, m] + d_hangs * (plan[k, m] - root[m])
                root[m] = stays * root[m] + hangs * plan[k, m]


@compiled()
def pull_along(n, single_root, plan, pivot, d_plan, d_pivot, bound, slope, d_slope, scratch):
    """Fills slope and d_slope, after `eliminate_along`; `bound` is one for the derivatives of logarithms of slopes."""
    through, d_through, row, d_row = scratch[0], scratch[1], scratch[2], scratch[3]
    out, d_out, shares, d_shares = scratch[4], scratch[5], scratch[6], scratch[7]
    first = 1 if single_root else 0
    ceiling = float(n)
    for k in range(1, n + 1):
        _start_of_row(plan, k, row)
        _start_of_row(d_plan, k, d_row)
        through[:] = d_through[:] = 0.0
        add_dots(slope, first, k, row, 0, k, through)
        add_dots(slope, first, k, d_row, 0, k, d_through)
        add_dots(d_slope, first, k, row, 0, k, d_through)
        for h in range(first, k):
            shares[h], d_shares[h] = plan[h, k], d_plan[h, k]
        out[:] = d_out[:] = 0.0
        add_columns(slope, first, k, shares, k, out)
        add_columns(slope, first, k, d_shares, k, d_out)
        add_columns(d_slope, first, k, shares, k, d_out)
        likely, d_likely = 1.0, 0.0
        total = pivot[k] + plan[0, k] if single_root else pivot[k]
        ceiling /= total
        if single_root:
            stays, hangs = pivot[k] / total, plan[0, k] / total
            d_hangs = (stays * d_plan[0, k] - hangs * d_pivot[k]) / total
            below_root = 1.0 if k == 1 else 0.0
            d_below_root = 0.0
            for m in range(1, k):
                root, d_root = slope[0, m], d_slope[0, m]
                below_root += root * row[m]
                d_below_root += root * d_row[m] + d_root * row[m]
                out[m] += hangs * root
                d_out[m] += hangs * d_root + d_hangs * root
                slope[0, m] = stays * root
                d_slope[0, m] = stays * d_root - d_hangs * root
            slope[0, k] = below_root / total
            d_slope[0, k] = (d_below_root - slope[0, k] * (d_pivot[k] + d_plan[0, k])) / total
            likely -= hangs * below_root
            d_likely -= hangs * d_below_root + d_hangs * below_root
        for m in range(1, k):
            slope[k, m], d_slope[k, m] = out[m], d_out[m]
        slope[k, k] = d_slope[k, k] = 0.0
        for h in range(first, k):
            likely -= shares[h] * through[h]
            d_likely -= shares[h] * d_through[h] + d_shares[h] * through[h]
        for h in range(first, k):
            slope[h, k] = d_slope[h, k] = 0.0
            if pivot[k] > 0:
                slope[h, k] = min(ceiling, max(0.0, likely + through[h]) / pivot[k])
                d_slope[h, k] = (d_likely + d_through[h] - slope[h, k] * d_pivot[k]) / pivot[k]
                d_slope[h, k] = max(-ceiling * bound, min(ceiling * bound, d_slope[h, k]))
