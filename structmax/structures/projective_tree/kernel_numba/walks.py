"""Walks through a filled chart, from the whole tree down: a best tree, or one drawn by chance.

They decide in the order of the hyperedges in reference.py: depth first, left before right, the label of an arc right
after the arc itself. A decision among two or more takes the next number of the noise.
"""

import math

import numpy as np
from numba.extending import overload

from structmax.numerics.kernel_numba import compiled
from structmax.structures.projective_tree.kernel_numba.chart import LINK, TREE, TREE_TURNED
from structmax.structures.projective_tree.kernel_numba.semiring import PAD, Best, Linear


@compiled()
def _first_best(a, i, x, b, j, y, count):
    best = 0
    for k in range(1, count):
        if a[i, x + k] + b[j, y + k] > a[i, x + best] + b[j, y + best]:
            best = k
    return best


@compiled()
def _drawn(a, i, x, b, j, y, count, uniform):
    total = 0.0
    for k in range(count):
        total += a[i, x + k] * b[j, y + k]
    mass, last = 0.0, 0
    for k in range(count):
        term = a[i, x + k] * b[j, y + k]
        mass += term
        if term > 0:
            last = k
            if mass > uniform * total:
                break
    return last


@compiled()
def _drawn_by_logarithms(a, i, x, b, j, y, count, uniform):
    peak = -np.inf
    for k in range(count):
        peak = max(peak, a[i, x + k] + b[j, y + k])
    total = 0.0
    for k in range(count):
        total += math.exp(a[i, x + k] + b[j, y + k] - peak)
    mass, last = 0.0, 0
    for k in range(count):
        term = math.exp(a[i, x + k] + b[j, y + k] - peak)
        mass += term
        if term > 0:
            last = k
            if mass > uniform * total:
                break
    return last


def choose(semiring, a, i, x, b, j, y, count, uniform):
    """The k whose a[i, x + k] ⊗ b[j, y + k] is best, the first of them; or one drawn in proportion."""


@overload(choose)
def _choose(semiring, a, i, x, b, j, y, count, uniform):
    if semiring.instance_class is Best:
        return lambda semiring, a, i, x, b, j, y, count, uniform: _first_best(a, i, x, b, j, y, count)
    if semiring.instance_class is Linear:
        return lambda semiring, a, i, x, b, j, y, count, uniform: _drawn(a, i, x, b, j, y, count, uniform)
    return lambda semiring, a, i, x, b, j, y, count, uniform: _drawn_by_logarithms(a, i, x, b, j, y, count, uniform)


@compiled()
def _push(stack, height, is_gap, head, end):
    stack[height, 0], stack[height, 1], stack[height, 2] = is_gap, head, end


@compiled()
def walk(semiring, semiring_of_labels, n, single_root, chart, arc, labels, noise, stack, names, out):
    """Sets out[h, m · labels + l] = 1 at each arc of one tree over n words.

    Scratch: `stack` (2n + 2, 3), and `names` (2, labels), in which labels are chosen as a sum of products is.
    """
    tree, tree_turned, link = chart[TREE], chart[TREE_TURNED], chart[LINK]
    names[0] = semiring_of_labels.one
    spent = 0
    # To be decided: trees of a head and their end, or gaps from left to right. What is on top comes first.
    _push(stack, 0, 0, 0, n)
    height = 1
    while height > 0:
        height -= 1
        is_gap, head, end = stack[height]
        width = abs(end - head)
        if width == 0:
            continue
        # Before its single word the root has nothing but its empty tree.
        count = 1 if is_gap and single_root and head == 0 else width
        uniform = noise[spent] if count > 1 else 0.0
        spent += count > 1
        if is_gap:
            k = head + choose(semiring, tree, head, PAD + head, tree, end, PAD + head + 1, count, uniform)
            _push(stack, height, 0, end, k + 1)
            _push(stack, height + 1, 0, head, k)
        else:
            low = min(head + 1, end)
            m = low + choose(semiring, link, head, PAD + low, tree_turned, end, PAD + low, count, uniform)
            label = 0
            if labels > 1:
                names[1] = arc[head, m * labels : (m + 1) * labels]
                label = choose(semiring_of_labels, names, 0, 0, names, 1, 0, labels, noise[spent])
                spent += 1
            out[head, m * labels + label] = 1.0
            _push(stack, height + (end > head), 1, min(head, m), max(head, m))
            _push(stack, height + (end < head), 0, m, end)
        height += 2
