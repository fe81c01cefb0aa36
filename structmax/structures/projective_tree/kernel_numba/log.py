"""The way down through a chart of logarithms, along a tangent: what reaches a cell is shared out among its terms.

The shares of a cell are summed where they are formed, and sum to 1 however large the logarithms: at −1e15 these have no
digits left for the number of terms. `slope` holds the derivatives of the logarithms in `chart`.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.exp import exp
from structmax.structures.projective_tree.kernel_numba.chart import (
    LINK,
    OUT_TREE,
    OUT_TREE_TURNED,
    TREE,
    TREE_TURNED,
)
from structmax.structures.projective_tree.kernel_numba.semiring import PAD


@compiled()
def _share(a, d_a, b, d_b, amount, d_amount, term, to_a, d_to_a, to_b, d_to_b):
    """Adds to both factors of the products exp(a + b), side by side, their share of an amount, and its derivative."""
    if amount == 0 and d_amount == 0:
        return
    peak, total, moment = -np.inf, 0.0, 0.0
    for k in range(a.size):
        peak = max(peak, a[k] + b[k])
    for k in range(a.size):
        term[k] = exp(a[k] + b[k] - peak)
        total += term[k]
        moment += term[k] * (d_a[k] + d_b[k])
    mean = moment / total
    for k in range(a.size):
        share = term[k] / total
        d_share = share * (d_amount + amount * (d_a[k] + d_b[k] - mean))
        share *= amount
        to_a[k] += share
        d_to_a[k] += d_share
        to_b[k] += share
        d_to_b[k] += d_share


@compiled()
def outside_log(n, chart, slope, marginals, d_marginals):
    """Fills marginals[h, m] after `inside_along` in LOG, and their derivatives; widest spans first."""
    tree, turned, link = chart[TREE], chart[TREE_TURNED], chart[LINK]
    d_tree, d_turned, d_link = slope[TREE], slope[TREE_TURNED], slope[LINK]
    # What has reached tree[h, e]: from gaps at [h, e], from wider trees at [e, h].
    below, above = chart[OUT_TREE], chart[OUT_TREE_TURNED]
    d_below, d_above = slope[OUT_TREE], slope[OUT_TREE_TURNED]
    for table in (below, above, d_below, d_above):
        table[: n + 1] = 0.0
    marginals[: n + 1] = 0.0
    d_marginals[: n + 1] = 0.0
    term = np.empty(n + 1)
    below[0, PAD + n] = 1.0
    for width in range(n, 0, -1):
        for i in range(n + 1 - width):
            j = i + width
            at_i, at_j = PAD + i, PAD + j
            # the outermost arc of a tree of i, to a word up to j; then of one of j
            low, high = at_i + 1, at_j + 1
            arcs, d_arcs = marginals[i, i + 1 : j + 1], d_marginals[i, i + 1 : j + 1]
            amount, d_amount = below[i, at_j] + above[j, at_i], d_below[i, at_j] + d_above[j, at_i]
            cells = link[i, low:high], d_link[i, low:high], turned[j, low:high], d_turned[j, low:high]
            _share(*cells, amount, d_amount, term, arcs, d_arcs, above[j, low:high], d_above[j, low:high])
            low, high = at_i, at_j
            arcs, d_arcs = marginals[j, i:j], d_marginals[j, i:j]
            amount, d_amount = below[j, at_i] + above[i, at_j], d_below[j, at_i] + d_above[i, at_j]
            cells = link[j, low:high], d_link[j, low:high], turned[i, low:high], d_turned[i, low:high]
            _share(*cells, amount, d_amount, term, arcs, d_arcs, above[i, low:high], d_above[i, low:high])
            # where the trees of i and j meet under an arc between them
            amount, d_amount = marginals[i, j] + marginals[j, i], d_marginals[i, j] + d_marginals[j, i]
            cells = tree[i, low:high], d_tree[i, low:high], tree[j, low + 1 : high + 1], d_tree[j, low + 1 : high + 1]
            reached = below[i, low:high], d_below[i, low:high], below[j, low + 1 : high + 1]
            _share(*cells, amount, d_amount, term, *reached, d_below[j, low + 1 : high + 1])
