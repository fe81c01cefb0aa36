"""The sparse map of spanning trees: Edmonds' algorithm inside the active-set method, all of it compiled.

Scores are kept as table[m, h · labels + l], a row for each dependent m, where the search wants them: parts are counted
in that order, and in that of the scores outside. Edge {i, j} of an undirected graph is the arc into the larger.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.arcs import words_of
from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.active_set import OPEN, begin, copy, new_support, offer
from structmax.numerics.kernel_numba.active_set_batch import solve_rows, write, write_none
from structmax.structures.spanning_tree.kernel_numba.edmonds import best_heads, new_search


@compiled()
def _is_sound(table, n, labels, directed):
    """Whether all usable scores are numbers below inf."""
    sound = True
    for m in range(1, n + 1):
        for h in range((n if directed else m - 1) + 1):
            for part in range(h * labels, (h + 1) * labels):
                sound &= (h == m) | (table[m, part] < np.inf)
    return sound


@compiled()
def _read_columns(table, n, labels, directed, column):
    """column[m, h] = the best label of that arc."""
    for m in range(1, n + 1):
        for h in range(n + 1):
            best = table[m, h * labels]
            for part in range(h * labels + 1, (h + 1) * labels):
                best = max(best, table[m, part])
            column[m, h] = best
        column[m, m] = -np.inf
    if not directed:
        for m in range(1, n + 1):
            for h in range(1, m):
                column[h, m] = column[m, h]


@compiled()
def _list_parts(table, n, labels, directed, heads, new):
    """The arcs of a tree, with their best labels, word by word."""
    for m in range(1, n + 1):
        row, arc = m, heads[m] * labels
        if not directed and heads[m] > m:
            row, arc = heads[m], m * labels
        part = arc
        for other in range(arc + 1, arc + labels):
            if table[row, other] > table[row, part]:
                part = other
        new[m - 1] = row * table.shape[1] + part


@kernel()
def _turn(part, size, labels):
    """The place of [a, b, l] in a list of [b, a, l]."""
    arc, label = part // labels, part % labels
    return (arc % size * size + arc // size) * labels + label


@compiled()
def _turn_all(lists, size, labels):
    for i in range(lists.shape[0]):
        for q in range(lists.shape[1]):
            lists[i, q] = _turn(lists[i, q], size, labels)


@kernel()
def _sparsemap(first, stop, turned, size, lengths, single_root, directed, ranges, start, longest, max_iter, tol, out):
    """Over tables (B, (N + 1)² · labels), and lists to start from that name their parts."""
    parts, capacity = turned.shape[1], out[1].shape[1]
    labels = parts // (size * size)
    theta, g, new = np.empty(parts), np.empty(parts), np.empty(longest, np.int32)
    table = g.reshape(size, size * labels)
    column, heads, search = np.empty((size, size)), np.empty(size, np.int64), new_search(size)
    support = new_support(capacity, longest, parts)
    problem = theta, g, ranges, directed
    for b in range(first, stop):
        n = lengths[b]
        copy(turned[b], theta)
        copy(turned[b], g)
        if not _is_sound(table, n, labels, directed):
            write_none(np.nan, b, out)
            continue
        begin(support, problem, start[b], new, tol)
        calls, state = 0, OPEN
        while calls < max_iter and state == OPEN:
            _read_columns(table, n, labels, directed, column)
            if not best_heads(column, n, single_root, search, heads):
                break
            _list_parts(table, n, labels, directed, heads, new)
            calls += 1
            state = offer(support, problem, new, n, n, tol)
        _turn_all(support[0][: support[6][0], :n], size, labels)
        write(support, calls, state, b, out)


def _turned_lists(lists: Tensor, arc: Tensor) -> Tensor:
    size, labels, parts = arc.shape[1], arc.shape[3] if arc.dim() == 4 else 1, math.prod(arc.shape[1:])
    return torch.where((lists >= 0) & (lists < parts), _turn.py_func(lists, size, labels), lists)


def sparsemap(
    arc: Tensor,
    *,
    lengths: Tensor,
    single_root: bool,
    directed: bool,
    regularised: Tensor,
    start: Tensor,
    max_iter: int,
    tol: float,
) -> tuple[Tensor, ...]:
    words = words_of(lengths, directed)
    turned = arc.transpose(1, 2).contiguous().flatten(1).numpy()
    arrays = turned, arc.shape[1], words.numpy(), bool(single_root), bool(directed)
    start = _turned_lists(start, arc)
    return solve_rows(_sparsemap, arrays, arc.shape[1] - 1, 4 * arc.numel(), regularised, start, max_iter, tol)
