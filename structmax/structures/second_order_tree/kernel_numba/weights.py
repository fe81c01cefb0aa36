"""The weights of one sentence: linear numbers that keep cells near 1, and whether they were safe. See ../README.md."""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.structures.second_order_tree.kernel_numba.chart import GAP, LINK, TREE, inside
from structmax.structures.second_order_tree.kernel_numba.semiring import LINEAR

# When linear numbers are exact; the reasons are in ../README.md.
LOWEST, HIGHEST = 1e-100, 1e100
LARGEST_LOG, LARGEST_LOSS = 600.0, 640.0
# What exp makes 0, and the score of a pair that is not worth the care.
FAINTEST, LARGEST_PAIR = -708.0, 600.0
# There are about (27/4)^n projective trees over n words, in which arcs of length d have a share like d^(−3/2).
GROWTH, DECAY = 27 / 4, -1.5
# Σ d^(−3/2)
ZETA = 2.612375348685488


@compiled()
def beyond(h, s, n):
    """The words m that may come after s among the dependents of h: low ≤ m < high."""
    return (s + 1, n + 1) if s > h else (1, s)


@compiled()
def _are_below(arc, sibling, n, single_root, limit):
    """Whether all scores are below infinity, those of siblings below a limit, and none of these too low for exp."""
    above = lost = 0
    for h in range(n + 1):
        for m in range(1, n + 1):
            above += (not arc[h, m] < np.inf) & (m != h)
        if h == 0 and single_root:
            continue
        for s in range(1, n + 1):
            if s == h:
                continue
            low, high = beyond(h, s, n)
            for m in range(low, high):
                x = sibling[h, s, m]
                above += not x < limit
                lost += (x < FAINTEST) & (x > -np.inf)
    return above == 0, lost > 0


@compiled()
def _read_arcs(arc, n, weight):
    """Arcs as they are, −inf where there is none."""
    for h in range(n + 1):
        for m in range(n + 1):
            weight[h, m] = arc[h, m]
        weight[h, 0] = weight[h, h] = -np.inf


@compiled()
def turn(pair, n, single_root, turned):
    """turned[h, m, s] = pair[h, s, m], for siblings that can be."""
    for h in range(1 if single_root else 0, n + 1):
        for s in range(1, n + 1):
            if s != h:
                low, high = beyond(h, s, n)
                for m in range(low, high):
                    turned[h, m, s] = pair[h, s, m]


@compiled()
def read_scores(arc, sibling, n, single_root, weight, turned):
    """Scores as they are, of siblings at turned[h, m, s]; False if one is NaN or +inf."""
    sound, _ = _are_below(arc, sibling, n, single_root, np.inf)
    if sound:
        _read_arcs(arc, n, weight)
        turn(sibling, n, single_root, turned)
    return sound


@compiled()
def arc_lengths(words):
    """What arcs of each length count for, such that all heads of a word count for GROWTH at most."""
    law = np.zeros(words + 1)
    for d in range(1, words + 1):
        law[d] = d**DECAY * GROWTH / (2 * ZETA)
    return law


@compiled()
def _exponentials(scores, out):
    """exp of a whole array: more than is needed, but vector by vector."""
    scores, out = scores.ravel(), out.ravel()
    for k in range(scores.size):
        out[k] = exp(scores[k])


@compiled("contract", "nsz")
def _weigh(n, single_root, law, weight, pair):
    """Weights of arcs from their scores, scaled by dependent such that half-trees of any width weigh about 1.

    Returns the logarithm of what all trees were divided by, that of a number no cell exceeds, and whether a weight
    became 0 that should not be.
    """
    peak, near, every = np.full(n + 1, -np.inf), np.zeros(n + 1), np.zeros(n + 1)
    mean, best = np.empty(n + 1), np.empty(n + 1)
    lost, moved, bound = 0, 0.0, 0.0
    for h in range(n + 1):
        for m in range(n + 1):
            peak[m] = max(peak[m], weight[h, m])
    for m in range(n + 1):
        peak[m] = 0.0 if peak[m] == -np.inf else peak[m]
    for h in range(n + 1):
        mean[:] = 1.0
        best[:] = 1.0
        for s in range(1, n + 1 if h > 0 or not single_root else 0):
            if s != h:
                low, high = beyond(h, s, n)
                for m in range(low, high):
                    mean[m] += pair[h, s, m]
                    best[m] = max(best[m], pair[h, s, m])
        for m in range(n + 1):
            x = weight[h, m] - peak[m]
            weight[h, m] = exp(x)
            lost += (x < FAINTEST) & (x > -np.inf)
            # of the siblings that m may follow, and none
            near[m] += weight[h, m] * mean[m] / max(1, abs(h - m)) * law[abs(h - m)]
            every[m] += weight[h, m] * best[m]
    for m in range(n + 1):
        scale = 1 / near[m] if near[m] > 0 else 1.0
        moved += peak[m] - math.log(scale)
        bound += max(0.0, math.log(every[m] * scale))
        near[m] = scale
    for h in range(n + 1):
        for m in range(n + 1):
            weight[h, m] *= near[m]
    return moved, bound, lost > 0


@compiled()
def _are_in_range(table):
    """Whether all numbers are 0 or of a size of which no product of three leaves float64."""
    lost = 0
    for row in table:
        for x in row:
            # NaN is lost too
            lost += (x != 0) & (not ((x >= LOWEST) & (x <= HIGHEST)))
    return lost == 0


@compiled()
def _kept_all(n, single_root, weight, pair, chart):
    """Whether no term of `inside` was lost."""
    kept = _are_in_range(weight[: n + 1, : n + 1])
    for table in (TREE, LINK, GAP):
        kept = kept and _are_in_range(chart[table, 0, : n + 1, : n + 1])
    for h in range(1 if single_root else 0, n + 1):
        for s in range(1, n + 1):
            low, high = beyond(h, s, n)
            kept = kept and (s == h or _are_in_range(pair[h, s : s + 1, low:high]))
    return kept


@compiled()
def evaluate(arc, sibling, n, single_root, law, weight, pair, turned, chart):
    """Weights and `inside` in linear numbers: whether nothing was lost, and then log Z.

    Not safe, in addition: a sentence without a tree, or with NaN or +inf among its scores.
    """
    sound, lost_pairs = _are_below(arc, sibling, n, single_root, LARGEST_PAIR)
    if not sound:
        return False, np.nan
    _read_arcs(arc, n, weight[0])
    for h in range(n + 1):
        _exponentials(sibling[h, : n + 1], pair[0, h, : n + 1])
    turn(pair[0], n, single_root, turned[0])
    moved, bound, lost = _weigh(n, single_root, law, weight[0], pair[0])
    total, _ = inside(LINEAR, n, single_root, weight, turned, chart)
    if not 0 < total < np.inf:
        return False, np.nan
    value = math.log(total)
    bounded = bound < LARGEST_LOG and bound - value + 3 * math.log(n + 1) < LARGEST_LOSS
    if bounded or (not (lost or lost_pairs) and _kept_all(n, single_root, weight[0], pair[0], chart)):
        return True, moved + value
    return False, np.nan
