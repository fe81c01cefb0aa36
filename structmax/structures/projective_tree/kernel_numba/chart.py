"""The chart of one sentence: weights of its arcs, and the passes that fill it. Derivations: ../README.md.

A chart is an array (tables, N + 1, N + 1 + 2 PAD) of float64: column y of a table stands at y + PAD, between zeros.

    tree[h, e]      ⊕ over what h governs on the side of e, reaching e and no further
    link[h, m]      the same with the arc h → m outermost, and nothing that m governs beyond itself
    gap             ⊕ over what can stand between i and j under an arc from one to the other: link without its arc

A table that is `_turned` is transposed, so that every sum runs along two rows; `out_` are derivatives of log Z.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import positive_exp
from structmax.numerics.kernel_numba.labels import best_label, log_sum
from structmax.structures.projective_tree.kernel_numba.semiring import (
    LINEAR,
    LOG,
    PAD,
    dot,
    dot_below,
    times,
)

TREE, TREE_TURNED, LINK, LINK_TURNED = range(4)
INSIDE = 4
OUT_TREE, OUT_TREE_TURNED, OUT_GAP = range(4, 7)
BOTH = 7

# When LINEAR is exact; the reasons are in ../README.md.
LOWEST, HIGHEST = 1e-100, 1e100
LARGEST_LOG, LARGEST_LOSS = 600.0, 640.0
# There are about (27/4)^n projective trees over n words, in which arcs of length d have a share like d^(−3/2).
GROWTH, DECAY = 27 / 4, -1.5
# Σ d^(−3/2)
ZETA = 2.612375348685488

# --- weights -------------------------------------------------------------------------------------------------------


@compiled()
def _usable(row):
    broken = 0
    for x in row:
        broken += not x < np.inf
    return broken == 0


@compiled()
def read_scores(arc, n, labels, best, table):
    """table[h, m] = ⊕ over labels of arc[h, m · labels + l], −inf if there is no such arc; False at NaN or +inf."""
    for h in range(n + 1):
        row, out = arc[h], table[h]
        if not (_usable(row[labels : h * labels]) and _usable(row[(h + 1) * labels : (n + 1) * labels])):
            return False
        if labels == 1:
            for m in range(n + 1):
                out[m] = row[m]
        else:
            for m in range(1, n + 1):
                names = row[m * labels : (m + 1) * labels]
                out[m] = best_label(names) if best else log_sum(names)
        out[0] = out[h] = -np.inf
    return True


@compiled()
def arc_lengths(size):
    """What arcs of each length count for, at m − h + size, such that all heads of a word count for GROWTH at most."""
    law = np.zeros(2 * size + 1)
    for d in range(1, size + 1):
        law[size - d] = law[size + d] = d**DECAY * GROWTH / (2 * ZETA)
    return law


@compiled("contract")
def _shift(table, n, weight, shift):
    """Logarithms of weights, shifted such that the largest of each column is 0; the shifts, and their sum."""
    shift[: n + 1] = -np.inf
    for h in range(n + 1):
        for m in range(n + 1):
            shift[m] = max(shift[m], table[h, m])
    for m in range(n + 1):
        shift[m] = 0.0 if shift[m] == -np.inf else shift[m]
    for h in range(n + 1):
        for m in range(n + 1):
            weight[h, m] = table[h, m] - shift[m]
    return shift[: n + 1].sum()


@compiled("contract")
def _balance(n, law, weight, scale):
    """Weights from their logarithms, scaled by column such that half-trees of any width weigh about 1.

    Returns the logarithm of the scales' product, and of a number that no cell exceeds.
    """
    near, all_heads = np.zeros(n + 1), np.zeros(n + 1)
    for h in range(n + 1):
        share = law[law.size // 2 - h :]
        for m in range(n + 1):
            weight[h, m] = positive_exp(weight[h, m])
            near[m] += weight[h, m] * share[m]
            all_heads[m] += weight[h, m]
    moved = bound = 0.0
    for m in range(n + 1):
        scale[m] = 1 / near[m] if near[m] > 0 else 1.0
        moved -= math.log(scale[m])
        bound += max(0.0, math.log(all_heads[m] * scale[m]))
    for h in range(n + 1):
        for m in range(n + 1):
            weight[h, m] *= scale[m]
    return moved, bound


@compiled()
def _in_range(table, n):
    """Whether all cells are 0 or of a size of which no product of three leaves float64."""
    lost = 0
    for h in range(n + 1):
        for x in table[h]:
            # NaN is lost too
            lost += (x != 0) & (not ((x >= LOWEST) & (x <= HIGHEST)))
    return lost == 0


# --- the passes ----------------------------------------------------------------------------------------------------


@compiled()
def inside(semiring, n, single_root, weight, chart):
    """Fills tree and link, and returns tree[0, n] = ⊕ over all trees. Narrow spans first: wider cells are zero."""
    tree, tree_turned, link, link_turned = chart[TREE], chart[TREE_TURNED], chart[LINK], chart[LINK_TURNED]
    chart[:INSIDE, : n + 1] = semiring.zero
    for i in range(n + 1):
        tree[i, PAD + i] = tree_turned[i, PAD + i] = semiring.one
    for width in range(1, n + 1):
        for i in range(n + 1 - width):
            j = i + width
            at_i, at_j = PAD + i, PAD + j
            gap = dot(semiring, tree, i, at_i, tree, j, at_i + 1, width)
            link[i, at_j] = link_turned[j, at_i] = times(semiring, weight[i, j], gap)
            # A root with one word has no tree but the whole one: none that a second arc could build on.
            if i > 0 or j == n or not single_root:
                tree[i, at_j] = dot(semiring, link, i, at_i + 1, tree_turned, j, at_i + 1, width)
                tree_turned[j, at_i] = tree[i, at_j]
            if i > 0:
                link[j, at_i] = link_turned[i, at_j] = times(semiring, weight[j, i], gap)
                tree[j, at_i] = dot(semiring, link, j, at_i, tree_turned, i, at_i, width)
                tree_turned[i, at_j] = tree[j, at_i]
    return tree[0, PAD + n]


@compiled()
def outside(n, single_root, weight, chart, marginals):
    """Fills marginals[h, m] after `inside` in LINEAR: derivatives of log Z, widest first; narrower cells are zero."""
    tree, tree_turned, link, link_turned = chart[TREE], chart[TREE_TURNED], chart[LINK], chart[LINK_TURNED]
    out_tree, out_turned, out_gap = chart[OUT_TREE], chart[OUT_TREE_TURNED], chart[OUT_GAP]
    chart[INSIDE:BOTH, : n + 1] = 0.0
    out_tree[0, PAD + n] = out_turned[n, PAD] = 1 / tree[0, PAD + n]
    for width in range(n, 0, -1):
        for i in range(n + 1 - width):
            j = i + width
            at_i, at_j = PAD + i, PAD + j
            after = n - j
            if i > 0 or not (single_root or j == n):
                # tree[i, j] is outermost in tree[h, j], h < i; or meets a tree of k > j in the gap from i to k
                taken = dot_below(LINEAR, out_turned, j, link_turned, i, PAD, i)
                if after > 0:
                    taken += dot(LINEAR, out_gap, i, at_j + 1, tree_turned, j + 1, at_j + 1, after)
                out_tree[i, at_j] = out_turned[j, at_i] = taken
            to_right = dot(LINEAR, out_tree, i, at_j, tree, j, at_j, after + 1)
            marginals[i, j] = link[i, at_j] * to_right
            around = weight[i, j] * to_right
            if i > 0:
                taken = dot(LINEAR, out_turned, i, at_j + 1, link_turned, j, at_j + 1, after)
                met = dot_below(LINEAR, out_gap, j, tree_turned, i - 1, PAD, i)
                out_tree[j, at_i] = out_turned[i, at_j] = taken + met
                to_left = dot_below(LINEAR, out_tree, j, tree, i, PAD, i + 1)
                marginals[j, i] = link[j, at_i] * to_left
                around += weight[j, i] * to_left
            out_gap[i, at_j] = out_gap[j, at_i] = around


@compiled()
def evaluate(n, single_root, table, law, vector, weight, chart):
    """Weights and `inside`, in LINEAR if that loses nothing, else in LOG: whether it was LINEAR, and log Z."""
    shifted = _shift(table, n, weight, vector)
    scaled, bound = _balance(n, law, weight, vector)
    total = inside(LINEAR, n, single_root, weight, chart)
    loss = bound - math.log(total) + 3 * math.log(n + 1) if total > 0 else np.inf
    if (bound < LARGEST_LOG and loss < LARGEST_LOSS) or (
        _in_range(weight[:, : n + 1], n) and _in_range(chart[TREE], n) and _in_range(chart[LINK], n)
    ):
        return True, shifted + scaled + math.log(total) if total > 0 else -np.inf
    _shift(table, n, weight, vector)
    return False, shifted + inside(LOG, n, single_root, weight, chart)
