"""Walks through a filled chart, from the whole tree down: a best tree, or one drawn by chance.

They decide in the order of the hyperedges in ../reference.py: depth first, tails in their order. A decision among two
or more takes the next number of the noise.
"""

import numpy as np
from numba.extending import overload

from structmax.numerics.kernel_numba import compiled
from structmax.structures.second_order_tree.kernel_numba.chart import GAP, LINK, TREE, TURNED
from structmax.structures.second_order_tree.kernel_numba.semiring import Best, times


@compiled()
def _first_best(terms, uniform):
    best = 0
    for k in range(1, terms.size):
        if terms[k] > terms[best]:
            best = k
    return best


@compiled()
def _drawn(terms, uniform):
    total = 0.0
    for term in terms:
        total += term
    mass, last = 0.0, 0
    for k in range(terms.size):
        if terms[k] > 0:
            mass += terms[k]
            last = k
            if mass > uniform * total:
                break
    return last


def choose(semiring, terms, uniform):
    """The first of the best terms; or one drawn in proportion to them."""


@overload(choose)
def _choose(semiring, terms, uniform):
    if semiring.instance_class is Best:
        return lambda semiring, terms, uniform: _first_best(terms, uniform)
    return lambda semiring, terms, uniform: _drawn(terms, uniform)


@compiled()
def _product(semiring, a, b):
    """a ⊗ b of plain numbers."""
    return times(semiring, (a, 0.0), (b, 0.0))[0]


@compiled()
def _fill_terms(semiring, kind, x, y, alone, pair, chart, terms):
    """The terms of a cell of that kind, in the order of its hyperedges, up to a factor; returns how many there are."""
    tree, turned, link, gap = chart[TREE, 0], chart[TURNED, 0], chart[LINK, 0], chart[GAP, 0]
    low, width = min(x, y), abs(y - x)
    if kind == LINK:
        terms[0] = tree[y, x + 1 if x < y else x - 1]
        for s in range(low + 1, low + width):
            terms[s - low] = _product(semiring, _product(semiring, link[x, s], gap[y, s]), pair[x, y, s])
        return 1 if alone else width
    first = low if kind == GAP or x > y else low + 1
    for k in range(width):
        if kind == GAP:
            terms[k] = _product(semiring, tree[x, first + k], tree[y, first + k + 1])
        else:
            terms[k] = _product(semiring, link[x, first + k], turned[y, first + k])
    return width


@compiled()
def _push(stack, height, kind, x, y):
    stack[height, 0], stack[height, 1], stack[height, 2] = kind, x, y
    return height + 1


@compiled()
def new_stack(size):
    """Room for all that a walk leaves for later, and for the terms of a cell."""
    return np.empty((4 * size + 4, 3), np.int64), np.empty(size)


@compiled()
def walk(semiring, n, single_root, pair, chart, noise, stack, terms, out_arc, out_sibling):
    """Sets 1 at each part of one tree over n words."""
    spent = 0
    height = _push(stack, 0, TREE, 0, n)
    while height > 0:
        height -= 1
        kind, x, y = stack[height]
        if x == y:
            continue
        count = _fill_terms(semiring, kind, x, y, single_root and x == 0, pair, chart, terms)
        k = 0
        if count > 1:
            k = choose(semiring, terms[:count], noise[spent])
            spent += 1
        low = min(x, y)
        # what comes first goes on top
        if kind == TREE:
            m = low + k + (x < y)
            height = _push(stack, height, TREE, m, y)
            height = _push(stack, height, LINK, x, m)
        elif kind == GAP:
            height = _push(stack, height, TREE, y, low + k + 1)
            height = _push(stack, height, TREE, x, low + k)
        else:
            out_arc[x, y] = 1.0
            if k == 0:
                height = _push(stack, height, TREE, y, x + 1 if x < y else x - 1)
            else:
                s = low + k
                out_sibling[x, s, y] = 1.0
                height = _push(stack, height, GAP, min(s, y), max(s, y))
                height = _push(stack, height, LINK, x, s)
