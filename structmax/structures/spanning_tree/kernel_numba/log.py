"""Elimination of words in logarithms, of near scores, with the derivative of each logarithm along a tangent beside it.

On the way back nothing is a logarithm: what reaches an arc is shared out among the paths that it stands for, by shares
that are summed where they are formed. Names with `d_` are derivatives, of logarithms in `plan`, of numbers in what is
shared out. Every loop runs along two rows, so that `plan` is kept transposed as well. Derivations: README.md here.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp

EPS = 2.0**-52
TABLES = 8
WEIGHT, PLAN, PLAN_TURNED, HANGS, FROM, INTO, LINES, OUT = range(TABLES)
# Rows of the table LINES
PIVOT, COLUMN, TERM, ZEROS = range(4)


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
    """Fills plan, pivots and, for a single root, hangs from the weights; returns log Z.

    hangs[k, m] is the share of the root's arc to m that goes through k, when k has been eliminated.
    """
    weight, plan, turned, lines = tables[WEIGHT], tables[PLAN], tables[PLAN_TURNED], tables[LINES]
    d_weight, d_plan, d_turned, d_lines = d_tables[WEIGHT], d_tables[PLAN], d_tables[PLAN_TURNED], d_tables[LINES]
    column, d_column, zeros = lines[COLUMN], d_lines[COLUMN], d_lines[ZEROS]
    hangs, d_hangs = tables[HANGS], d_tables[HANGS]
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
        peak = _largest(column, zeros, first, k)
        total, d_total = peak, 0.0
        if peak > -np.inf:
            mass, moment = _sums(column, d_column, zeros, zeros, first, k, peak)
            total, d_total = peak + math.log(mass), moment / mass
        lines[PIVOT, k], d_lines[PIVOT, k] = total, d_total
        for h in range(first, k):
            plan[h, k], d_plan[h, k] = (0.0 if h == 1 else -np.inf), 0.0
            if peak > -np.inf:
                # Shares sum to 1, however large the logarithms.
                plan[h, k], d_plan[h, k] = column[h] - peak - math.log(mass), d_column[h] - d_total
        if single_root:
            among, d_among = total, d_total
            total, d_total = _add(among, d_among, plan[0, k], d_plan[0, k])
            stays, d_stays = among - total, d_among - d_total
            goes, d_goes = plan[0, k] - total, d_plan[0, k] - d_total
            for m in range(1, k if total > -np.inf else 1):
                direct, d_direct = stays + plan[0, m], d_stays + d_plan[0, m]
                path, d_path = goes + plan[k, m], d_goes + d_plan[k, m]
                plan[0, m], d_plan[0, m] = _add(direct, d_direct, path, d_path)
                peak, share = max(direct, path), 0.0
                if peak > -np.inf:
                    share = exp(path - peak) / (exp(direct - peak) + exp(path - peak))
                hangs[k, m], d_hangs[k, m] = share, share * (1 - share) * (d_path - d_direct)
        if total == -np.inf:
            return total
        value += total
    return value


@compiled()
def _share(arc, paths, low, high, amount, d_amount, term, passed):
    """Shares out an amount among an arc and the paths exp(a[j] + b[j]), adding to both halves of each path.

    Returns what the arc has of it, and the derivative of that.
    """
    (direct, d_direct), (a, d_a, b, d_b), (to_a, d_to_a, to_b, d_to_b) = arc, paths, passed
    peak = max(direct, _largest(a, b, low, high))
    if peak == -np.inf or (amount == 0 and d_amount == 0):
        return 0.0, 0.0
    own = exp(direct - peak)
    total, moment = own, own * d_direct
    for j in range(low, high):
        term[j] = exp(a[j] + b[j] - peak)
        total += term[j]
        moment += term[j] * (d_a[j] + d_b[j])
    mean = moment / total
    for j in range(low, high):
        share = term[j] / total
        d_share = share * (d_amount + amount * (d_a[j] + d_b[j] - mean))
        share *= amount
        to_a[j] += share
        d_to_a[j] += d_share
        to_b[j] += share
        d_to_b[j] += d_share
    own /= total
    return amount * own, own * (d_amount + amount * (d_direct - mean))


@compiled()
def share_out(n, single_root, tables, d_tables):
    """Fills the marginals, after `eliminate`: words come back in the order 1, 2, … n.

    into[h, j] and from[m, j] are how many arcs of the tree run from h through j, and through j to m, j being the last
    word on the way: what arcs between words before j have handed to the arcs h → j and j → m.
    """
    weight, plan, turned, lines = tables[WEIGHT], tables[PLAN], tables[PLAN_TURNED], tables[LINES]
    d_weight, d_plan, d_turned = d_tables[WEIGHT], d_tables[PLAN], d_tables[PLAN_TURNED]
    hangs, through, onward, mu = tables[HANGS], tables[INTO], tables[FROM], tables[OUT]
    d_hangs, d_through, d_onward, d_mu = d_tables[HANGS], d_tables[INTO], d_tables[FROM], d_tables[OUT]
    term = lines[TERM]
    first = 1 if single_root else 0
    for table in (through, onward, mu, d_through, d_onward, d_mu):
        table[: n + 1, : n + 1] = 0.0
    for k in range(1, n + 1):
        # How likely k has a head among what is left, less how many paths go through k
        likely, d_likely = 1.0, 0.0
        if single_root:
            for m in range(1, k):
                arcs = mu[0, m] * hangs[k, m]
                d_arcs = d_mu[0, m] * hangs[k, m] + mu[0, m] * d_hangs[k, m]
                onward[m, k] += arcs
                d_onward[m, k] += d_arcs
                mu[0, k] += arcs
                d_mu[0, k] += d_arcs
                mu[0, m] -= arcs
                d_mu[0, m] -= d_arcs
            if k == 1:
                mu[0, 1] = 1.0
            likely, d_likely = 1.0 - mu[0, k], -d_mu[0, k]
        for h in range(first, k):
            likely -= through[h, k]
            d_likely -= d_through[h, k]
        # Rounding leaves something of nothing, which no mask bears.
        likely = likely if abs(likely) > n * EPS else 0.0
        for h in range(first, k if lines[PIVOT, k] > -np.inf else 0):
            share = exp(plan[h, k])
            amount = share * likely + through[h, k]
            d_amount = share * (d_likely + likely * d_plan[h, k]) + d_through[h, k]
            arc, passed = (weight[h, k], d_weight[h, k]), (through[h], d_through[h], onward[k], d_onward[k])
            paths = plan[h], d_plan[h], turned[k], d_turned[k]
            mu[h, k], d_mu[h, k] = _share(arc, paths, k + 1, n + 1, max(amount, 0.0), d_amount, term, passed)
        for m in range(1, k):
            arc, passed = (weight[k, m], d_weight[k, m]), (through[k], d_through[k], onward[m], d_onward[m])
            paths = plan[k], d_plan[k], turned[m], d_turned[m]
            mu[k, m], d_mu[k, m] = _share(arc, paths, k + 1, n + 1, onward[m, k], d_onward[m, k], term, passed)


@compiled()
def solve(n, single_root, tables, d_tables):
    """log Z of the log-weights in `tables`, and the marginals and their derivatives along those in `d_tables`."""
    value = eliminate(n, single_root, tables, d_tables)
    share_out(n, single_root, tables, d_tables)
    return value
