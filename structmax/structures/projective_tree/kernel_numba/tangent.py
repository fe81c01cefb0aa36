"""`inside` and `outside` along a tangent: each cell beside the derivative of its logarithm.

A derivative of a logarithm is a mean of tangents: it keeps their size, in whatever semiring and however small the cell.
"""

from structmax.numerics.kernel_numba import compiled
from structmax.structures.projective_tree.kernel_numba.chart import (
    BOTH,
    INSIDE,
    LINK,
    LINK_TURNED,
    OUT_GAP,
    OUT_TREE,
    OUT_TREE_TURNED,
    TREE,
    TREE_TURNED,
)
from structmax.structures.projective_tree.kernel_numba.semiring import (
    LINEAR,
    PAD,
    dual_dot,
    dual_dot_below,
    times,
)


@compiled()
def inside_along(semiring, n, single_root, weight, d_weight, chart, slope):
    """As `inside`; `slope` has the derivatives of the logarithms in `chart`."""
    tree, tree_turned, link, link_turned = chart[TREE], chart[TREE_TURNED], chart[LINK], chart[LINK_TURNED]
    d_tree, d_turned, d_link, d_link_turned = slope[TREE], slope[TREE_TURNED], slope[LINK], slope[LINK_TURNED]
    chart[:INSIDE, : n + 1] = semiring.zero
    slope[:INSIDE, : n + 1] = 0.0
    for i in range(n + 1):
        tree[i, PAD + i] = tree_turned[i, PAD + i] = semiring.one
    for width in range(1, n + 1):
        for i in range(n + 1 - width):
            j = i + width
            at_i, at_j = PAD + i, PAD + j
            gap, d_gap = dual_dot(semiring, tree, d_tree, i, at_i, tree, d_tree, j, at_i + 1, width)
            link[i, at_j] = link_turned[j, at_i] = times(semiring, weight[i, j], gap)
            d_link[i, at_j] = d_link_turned[j, at_i] = d_weight[i, j] + d_gap
            if i > 0 or j == n or not single_root:
                half, d_half = dual_dot(semiring, link, d_link, i, at_i + 1, tree_turned, d_turned, j, at_i + 1, width)
                tree[i, at_j] = tree_turned[j, at_i] = half
                d_tree[i, at_j] = d_turned[j, at_i] = d_half
            if i > 0:
                link[j, at_i] = link_turned[i, at_j] = times(semiring, weight[j, i], gap)
                d_link[j, at_i] = d_link_turned[i, at_j] = d_weight[j, i] + d_gap
                half, d_half = dual_dot(semiring, link, d_link, j, at_i, tree_turned, d_turned, i, at_i, width)
                tree[j, at_i] = tree_turned[i, at_j] = half
                d_tree[j, at_i] = d_turned[i, at_j] = d_half


@compiled()
def _add(a, d_a, b, d_b):
    """a + b, and the derivative of its logarithm."""
    total = a + b
    return total, d_a + b / total * (d_b - d_a) if total > 0 else 0.0


@compiled()
def outside_along(n, single_root, weight, d_weight, chart, slope, marginals, d_marginals):
    """As `outside`, after `inside_along` in LINEAR; d_marginals is the derivative of the marginals."""
    tree, tree_turned, link, link_turned = chart[TREE], chart[TREE_TURNED], chart[LINK], chart[LINK_TURNED]
    d_tree, d_turned, d_link, d_link_turned = slope[TREE], slope[TREE_TURNED], slope[LINK], slope[LINK_TURNED]
    out_tree, out_turned, out_gap = chart[OUT_TREE], chart[OUT_TREE_TURNED], chart[OUT_GAP]
    d_out_tree, d_out_turned, d_out_gap = slope[OUT_TREE], slope[OUT_TREE_TURNED], slope[OUT_GAP]
    chart[INSIDE:BOTH, : n + 1] = 0.0
    slope[INSIDE:BOTH, : n + 1] = 0.0
    out_tree[0, PAD + n] = out_turned[n, PAD] = 1 / tree[0, PAD + n]
    d_out_tree[0, PAD + n] = d_out_turned[n, PAD] = -d_tree[0, PAD + n]
    for width in range(n, 0, -1):
        for i in range(n + 1 - width):
            j = i + width
            at_i, at_j = PAD + i, PAD + j
            after = n - j
            if i > 0 or not (single_root or j == n):
                taken, d_taken = dual_dot_below(
                    LINEAR, out_turned, d_out_turned, j, link_turned, d_link_turned, i, PAD, i
                )
                if after > 0:
                    met, d_met = dual_dot(
                        LINEAR, out_gap, d_out_gap, i, at_j + 1, tree_turned, d_turned, j + 1, at_j + 1, after
                    )
                    taken, d_taken = _add(taken, d_taken, met, d_met)
                out_tree[i, at_j] = out_turned[j, at_i] = taken
                d_out_tree[i, at_j] = d_out_turned[j, at_i] = d_taken
            to, d_to = dual_dot(LINEAR, out_tree, d_out_tree, i, at_j, tree, d_tree, j, at_j, after + 1)
            marginals[i, j] = link[i, at_j] * to
            d_marginals[i, j] = marginals[i, j] * (d_link[i, at_j] + d_to)
            around, d_around = weight[i, j] * to, d_weight[i, j] + d_to
            if i > 0:
                taken, d_taken = dual_dot(
                    LINEAR, out_turned, d_out_turned, i, at_j + 1, link_turned, d_link_turned, j, at_j + 1, after
                )
                met, d_met = dual_dot_below(LINEAR, out_gap, d_out_gap, j, tree_turned, d_turned, i - 1, PAD, i)
                taken, d_taken = _add(taken, d_taken, met, d_met)
                out_tree[j, at_i] = out_turned[i, at_j] = taken
                d_out_tree[j, at_i] = d_out_turned[i, at_j] = d_taken
                to, d_to = dual_dot_below(LINEAR, out_tree, d_out_tree, j, tree, d_tree, i, PAD, i + 1)
                marginals[j, i] = link[j, at_i] * to
                d_marginals[j, i] = marginals[j, i] * (d_link[j, at_i] + d_to)
                around, d_around = _add(around, d_around, weight[j, i] * to, d_weight[j, i] + d_to)
            out_gap[i, at_j] = out_gap[j, at_i] = around
            d_out_gap[i, at_j] = d_out_gap[j, at_i] = d_around
