"""The chart of one sentence with scores for siblings, and the passes that fill it. Derivations: ../README.md.

A chart is an array (tables, planes, N + 1, N + 1 + PAD) of float64.

    tree[h, e]     ⊕ over what h governs on the side of e, reaching e and no further; `turned` is its transpose
    link[h, m]     the same with the arc h → m outermost, and nothing that m governs beyond itself
    gap[s, m]      ⊕ over what can stand between s and m, neighbouring dependents of one head; symmetric
    out_…          derivatives of log Z, for tree in two parts that are to be added
    inner[h, m]    out_link times the weight of the arc

Weights: arc (planes, N + 1, N + 1) at [h, m], and pair (planes, N + 1, N + 1, N + 1 + PAD) at [h, m, s], of s and m as
dependents of h.
"""

from structmax.numerics.kernel_numba import compiled
from structmax.structures.second_order_tree.kernel_numba.semiring import (
    add,
    at,
    dot,
    dot_three,
    plus,
    put,
    spread,
    spread_three,
    times,
)

TREE, TURNED, LINK, GAP = range(4)
INSIDE = 4
OUT_TREE, OUT_TURNED, OUT_LINK, OUT_GAP, INNER = range(4, 9)
BOTH = 9


@compiled()
def _link(semiring, h, m, nearest, alone, arc, pair, chart):
    """link[h, m]: m is the first on its side of h, or comes after s."""
    below = at(semiring, chart[TREE], m, nearest)
    if not alone:
        low, count = min(h, m) + 1, abs(h - m) - 1
        later = dot_three(semiring, chart[LINK], h, chart[GAP], m, pair[:, h], m, low, count)
        below = plus(semiring, below, later)
    return times(semiring, at(semiring, arc, h, m), below)


@compiled()
def _put_both(semiring, table, turned, i, j, cell):
    put(semiring, table, i, j, cell)
    put(semiring, turned, j, i, cell)


@compiled()
def inside(semiring, n, single_root, arc, pair, chart):
    """Fills tree, link and gap, and returns tree[0, n] = ⊕ over all trees. Narrow spans first: wider cells are zero.

    A sum may read past its last term. There, or there and in the term itself until it is put, one of the factors is
    wider; or it is link[h, h], which is zero as well.
    """
    tree, turned, link, gap = chart[TREE], chart[TURNED], chart[LINK], chart[GAP]
    chart[:INSIDE, :, : n + 1] = semiring.zero
    for i in range(n + 1):
        _put_both(semiring, tree, turned, i, i, (semiring.one, 0.0))
    for width in range(1, n + 1):
        # One kind after the other: a vector with a cell that was just written would wait for it.
        for i in range(1, n + 1 - width):
            _put_both(semiring, gap, gap, i, i + width, dot(semiring, tree, i, i, tree, i + width, i + 1, width))
        for i in range(n + 1 - width):
            j = i + width
            put(semiring, link, i, j, _link(semiring, i, j, i + 1, single_root and i == 0, arc, pair, chart))
            if i > 0:
                put(semiring, link, j, i, _link(semiring, j, i, j - 1, False, arc, pair, chart))
        for i in range(n + 1 - width):
            j = i + width
            if i > 0 or j == n:
                right = dot(semiring, link, i, i + 1, turned, j, i + 1, width)
                _put_both(semiring, tree, turned, i, j, right)
            if i > 0:
                _put_both(semiring, tree, turned, j, i, dot(semiring, link, j, i, turned, i, i, width))
    return at(semiring, tree, 0, n)


@compiled()
def _link_back(semiring, h, m, nearest, alone, arc, pair, chart):
    """The derivatives of `_link`, times that of link[h, m]."""
    out = times(semiring, at(semiring, chart[OUT_LINK], h, m), at(semiring, arc, h, m))
    put(semiring, chart[INNER], h, m, out)
    add(semiring, chart[OUT_TREE], m, nearest, out)
    if not alone:
        low, count = min(h, m) + 1, abs(h - m) - 1
        links, gaps = (chart[LINK], chart[OUT_LINK], h), (chart[GAP], chart[OUT_GAP], m)
        spread_three(semiring, out, *links, *gaps, pair[:, h], m, low, count)


@compiled()
def outside(semiring, n, single_root, arc, pair, chart):
    """Fills the derivatives of log Z after `inside`, widest spans first: what is done there, undone."""
    tree, turned, link = chart[TREE], chart[TURNED], chart[LINK]
    out_tree, out_turned, out_link, out_gap = chart[OUT_TREE], chart[OUT_TURNED], chart[OUT_LINK], chart[OUT_GAP]
    chart[INSIDE:BOTH, :, : n + 1] = 0.0
    total, d_total = at(semiring, tree, 0, n)
    put(semiring, out_tree, 0, n, (1 / total, -d_total / (total * total)))
    for width in range(n, 0, -1):
        # One kind after the other, as above.
        for i in range(n + 1 - width):
            j = i + width
            if i > 0 or j == n:
                out = plus(semiring, at(semiring, out_tree, i, j), at(semiring, out_turned, j, i))
                spread(semiring, out, link, out_link, i, i + 1, turned, out_turned, j, i + 1, width)
            if i > 0:
                out = plus(semiring, at(semiring, out_tree, j, i), at(semiring, out_turned, i, j))
                spread(semiring, out, link, out_link, j, i, turned, out_turned, i, i, width)
        for i in range(n + 1 - width):
            j = i + width
            _link_back(semiring, i, j, i + 1, single_root and i == 0, arc, pair, chart)
            if i > 0:
                _link_back(semiring, j, i, j - 1, False, arc, pair, chart)
        for i in range(1, n + 1 - width):
            j = i + width
            out = plus(semiring, at(semiring, out_gap, i, j), at(semiring, out_gap, j, i))
            spread(semiring, out, tree, out_tree, i, i, tree, out_tree, j, i + 1, width)
