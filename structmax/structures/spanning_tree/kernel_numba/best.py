"""The k best trees, and the best tree with each arc. Derivations: ../README.md."""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.structures.spanning_tree.kernel_numba.edmonds import (
    advance,
    arc_worth,
    begin,
    best_heads,
    copy,
    fill_usable,
    new_search,
    read_columns,
)
from structmax.structures.spanning_tree.reference_trees import best_of_both

NOBODY = -1


# --- the next best tree of a set -----------------------------------------------------------------------------------


@compiled()
def _from_root(heads, n, order):
    """Nodes in an order in which heads come before their dependents."""
    order[0], count = 0, 1
    for i in range(n + 1):
        for m in range(1, n + 1):
            if heads[m] == order[i]:
                order[count] = m
                count += 1


@compiled()
def _mark_below(heads, order, n, m, is_below):
    """Marks m and all that hang on it."""
    is_below[0] = False
    for i in range(1, n + 1):
        x = order[i]
        is_below[x] = x == m or is_below[heads[x]]


@compiled()
def _rival(column, scores, n, single_root, search, v, is_below):
    """The worth of the second best arc into the place v that makes a tree if it takes the place of the best."""
    (_, name, following, _), _, (_, arc_head, arc_end), _, _, _ = search
    head, end = arc_head[name[v]], arc_end[name[v]]
    rival = -np.inf
    # from another head, which may not hang on v
    for h in range(1 if single_root else 0, n + 1):
        if h != head and not is_below[h] and column[v, h] > rival:
            rival = column[v, h]
    # from the same head to another word of the supernode
    m = following[v]
    while True:
        if m != end:
            rival = max(rival, arc_worth(scores[m, head], head, m, single_root, search))
        if m == v:
            return rival
        m = following[m]


@compiled()
def _rival_label(theta, part, labels):
    """The score of the best other label of the arc that has this part; `theta` is the row of its head."""
    rival = -np.inf
    first = part // labels * labels
    for other in range(first, first + labels):
        if other != part:
            rival = max(rival, theta[other])
    return rival


@compiled()
def _next_best(theta, n, labels, single_root, tree, space):
    """How much less than `tree`, a best one, the next best is worth, and at which word it has another part."""
    column, scores, search, heads, order, is_below = space
    read_columns(theta, n, labels, column)
    copy(column, scores, n + 1, n + 1)
    size = len(column)
    for m in range(1, n + 1):
        heads[m] = tree[m] // (size * labels)
    _from_root(heads, n, order)
    least, word = np.inf, NOBODY
    begin(column, n, single_root, search)
    (_, name, _, worth), _, (_, arc_head, arc_end), _, _, _ = search
    while True:
        v = advance(column, n, single_root, search)
        if v <= 0:
            return least, word
        m = arc_end[name[v]]
        if heads[m] != arc_head[name[v]]:
            # a supernode around v has an arc that takes its place
            continue
        _mark_below(heads, order, n, m, is_below)
        loss = worth[v] - _rival(column, scores, n, single_root, search, v, is_below)
        part = tree[m] % (size * labels)
        loss = min(loss, theta[heads[m], part] - _rival_label(theta[heads[m]], part, labels))
        if loss < least:
            least, word = loss, m


# --- the k best ----------------------------------------------------------------------------------------------------


@compiled()
def _constrain(arc, n, labels, constraints, latest, theta):
    """theta = arc with −inf where the constraints forbid a part, or require another one of the same word."""
    part_of, is_required, older = constraints
    width = arc.shape[1]
    copy(arc, theta, n + 1, width)
    while latest != NOBODY:
        head, part = part_of[latest] // width, part_of[latest] % width
        score = theta[head, part]
        if is_required[latest]:
            first = part // labels * labels
            theta[: n + 1, first : first + labels] = -np.inf
            theta[head, part] = score
        else:
            theta[head, part] = -np.inf
        latest = older[latest]


@compiled()
def _best_tree(theta, n, labels, single_root, tree, space):
    """Writes the parts of a best tree, as places in theta, to `tree`; returns its score, −inf if there is none."""
    column, _, search, heads, _, _ = space
    read_columns(theta, n, labels, column)
    if not best_heads(column, n, single_root, search, heads):
        return -np.inf
    value, width = 0.0, theta.shape[1]
    for m in range(1, n + 1):
        h, best = heads[m], m * labels
        for part in range(m * labels + 1, (m + 1) * labels):
            if theta[h, part] > theta[h, best]:
                best = part
        tree[m] = h * width + best
        value += theta[h, best]
    return value


@compiled()
def _rank(base, n, labels, single_root, sets, constraints, theta, space):
    """Finds the best trees, best first, and returns how many there are.

    Each tree found is the best of its set, and the sets share out all trees. The set with the best second is split by
    the part in which its second differs: the first keeps those that have it.
    """
    trees, values, seconds, word, latest = sets
    part_of, is_required, older = constraints
    latest[0] = NOBODY
    for new in range(values.size):
        old = 0
        for i in range(1, new):
            if seconds[i] > seconds[old]:
                old = i
        if new > 0:
            if seconds[old] == -np.inf:
                return new
            node, part = 2 * new, trees[old, word[old]]
            part_of[node], is_required[node], older[node] = part, False, latest[old]
            part_of[node + 1], is_required[node + 1], older[node + 1] = part, True, latest[old]
            latest[new], latest[old] = node, node + 1
        for turn in range(2 if new > 0 else 1):
            i = old if turn else new
            _constrain(base, n, labels, constraints, latest[i], theta)
            if i == new:
                values[i] = _best_tree(theta, n, labels, single_root, trees[i], space)
                if values[i] == -np.inf:
                    return new
            loss, word[i] = _next_best(theta, n, labels, single_root, trees[i], space)
            seconds[i] = values[i] - loss
    return values.size


@compiled()
def _new_space(size):
    """Scratch: two tables, a search, heads, nodes in order, and marks."""
    table, other = np.empty((size, size)), np.empty((size, size))
    return table, other, new_search(size), np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.bool_)


@kernel()
def _ranks(start, stop, arc, lengths, single_root, value, out):
    size, width, k = arc.shape[1], arc.shape[2], value.shape[1]
    labels = width // size
    space, base, theta = _new_space(size), np.empty((size, width)), np.empty((size, width))
    trees, values, seconds = np.empty((k, size), np.int64), np.empty(k), np.empty(k)
    sets = trees, values, seconds, np.empty(k, np.int64), np.empty(k, np.int64)
    constraints = np.empty(2 * k, np.int64), np.empty(2 * k, np.bool_), np.empty(2 * k, np.int64)
    for b in range(start, stop):
        n = lengths[b]
        value[b], out[b] = -np.inf, 0
        copy(arc[b], base, n + 1, width)
        if not read_columns(base, n, labels, space[0]):
            value[b] = np.nan
            for rank in range(k):
                fill_usable(out[b, rank], n, labels, np.nan)
            continue
        for rank in range(_rank(base, n, labels, single_root, sets, constraints, theta, space)):
            value[b, rank] = values[rank]
            # as a number of the scores' dtype
            if value[b, rank] == -np.inf:
                break
            for m in range(1, n + 1):
                out[b, rank, trees[rank, m] // width, trees[rank, m] % width] = 1.0


def topk(arc: Tensor, *, k: int, lengths: Tensor, single_root: bool, directed: bool) -> tuple[Tensor, Tensor]:
    arc, words = as_arcs(arc, lengths, directed)
    value, best = arc.new_empty(len(arc), k), arc.new_empty(len(arc), k, *arc.shape[1:])
    arrays = (arc.flatten(2).numpy(), words.numpy(), bool(single_root), value.numpy(), best.flatten(3).numpy())
    over_rows(_ranks, len(arc), 12 * best.numel(), *arrays)
    return value, from_arcs(best, directed, arc.dim() == 4)


# --- the best tree with each arc -----------------------------------------------------------------------------------


@kernel()
def _bests(start, stop, arc, lengths, single_root, out):
    size = arc.shape[1]
    labels = arc.shape[2] // size
    column, scores, search, heads, _, _ = _new_space(size)
    for b in range(start, stop):
        n = lengths[b]
        out[b] = -np.inf
        if not read_columns(arc[b], n, labels, scores):
            fill_usable(out[b], n, labels, np.nan)
            continue
        for m in range(1, n + 1):
            for h in range(n + 1):
                if scores[m, h] == -np.inf:
                    continue
                copy(scores, column, n + 1, n + 1)
                column[m, : n + 1] = -np.inf
                # its own score is added for each label
                column[m, h] = 0.0
                if best_heads(column, n, single_root, search, heads):
                    others = 0.0
                    for i in range(1, n + 1):
                        others += scores[i, heads[i]] if i != m else 0.0
                    for part in range(m * labels, (m + 1) * labels):
                        out[b, h, part] = others + arc[b, h, part]


def max_marginals(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    best = torch.empty_like(arc)
    arrays = (arc.flatten(2).numpy(), words.numpy(), bool(single_root), best.flatten(2).numpy())
    over_rows(_bests, len(arc), arc.numel() * arc.shape[1] ** 2, *arrays)
    return best_of_both(best, directed)
