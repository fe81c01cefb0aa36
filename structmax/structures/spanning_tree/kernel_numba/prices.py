"""Scores of moderate size that have the same trees, by the prices of the best one. Derivation: README.md here."""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.structures.spanning_tree.kernel_numba.edmonds import (
    INSIDE,
    KEPT,
    NOBODY,
    ROOT,
    advance,
    begin,
    copy,
    sum_up,
)

# exp(−800) is 0 in float64.
FAR = 800.0


@compiled()
def bring_near(column, n, labels, single_root, search, below, near):
    """near[h, m]: a score for each arc of column[m, h], the size of FAR for each supernode around it at most.

    Trees whose share is not 0 in float64 keep their differences in score, up to the rounding of their scores. Returns
    the score that all of them lost, −inf if there is no tree. Destroys `column`.
    """
    reach = FAR + n * math.log((n + 1) * labels)
    (_, name, following, worth), (place, sums), (_, arc_head, _), _, _, now = search
    copy(column, below, n + 1, n + 1)
    near[: n + 1, : n + 1] = 0.0
    lost, below_root = 0.0, NOBODY
    begin(column, n, single_root, search)
    while True:
        v = advance(column, n, single_root, search)
        if v == 0:
            break
        if v < 0 or (single_root and arc_head[name[v]] == 0 and below_root != NOBODY):
            return -np.inf
        if single_root and arc_head[name[v]] == 0:
            below_root = v
            continue
        price = max(worth[v], -reach) if name[v] > n else 0.0
        lost -= price
        _charge(n, v, worth[v], price, following, place, below, near)
    sum_up(now[3], search)
    for m in range(1, n + 1):
        if place[m] == m:
            # What hangs on a single root is worth all that is inside.
            lost += worth[m] + (sums[INSIDE, name[m]] if m != below_root else 0.0)
        if single_root:
            # An arc of the root to other words would leave none for those that can hang on the root alone.
            hangs = place[m] == below_root
            below[m, 0] = sums[ROOT, m] + sums[KEPT, m] - worth[below_root] if hangs else -np.inf
        for h in range(n + 1):
            near[h, m] = near[h, m] + below[m, h] if below[m, h] >= -reach else -np.inf
    return lost


@compiled()
def _charge(n, v, worth, price, following, place, below, near):
    """Arcs into the word or supernode at v are worth so much less, by the same subtractions by which it was found."""
    m = v
    while True:
        for h in range(n + 1):
            if place[h] != v:
                below[m, h] -= worth
                near[h, m] += price
        m = following[m]
        if m == v:
            return
