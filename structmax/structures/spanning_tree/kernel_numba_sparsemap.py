"""The sparse map of spanning trees: Edmonds' algorithm inside the active-set method, all of it compiled.

Scores are kept as table[m, h · labels + l], a row for each dependent m, where the search wants them: parts are counted
in that order, and in that of the scores outside. Edge {i, j} of an undirected graph is the arc into the larger.
"""

import numpy as np
from torch import Tensor

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba_active_set import (
    CONVERGED,
    OPEN,
    OVERFULL,
    new_support,
    offer,
    read,
    solve_rows,
    within,
    write,
    write_none,
)
from structmax.structures.spanning_tree.kernel_numba_edmonds import best_heads, new_search


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
        if labels == 1:
            column[m, : n + 1] = table[m, : n + 1]
        else:
            for h in range(n + 1):
                column[m, h] = np.max(table[m, h * labels : (h + 1) * labels])
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


@compiled()
def _turn(part, size, labels):
    """The place of [a, b, l] in a list of [b, a, l]."""
    arc, label = part // labels, part % labels
    return (arc % size * size + arc // size) * labels + label


@compiled()
def _sparsemap(
    begin, stop, turned, lengths, single_root, directed, ranges, start, longest, max_iter, tol, out
):
    size = turned.shape[1]
    labels, parts, capacity = turned.shape[2] // size, turned[0].size, out[1].shape[1]
    theta, g = np.empty(parts), np.empty(parts)
    table = g.reshape(size, size * labels)
    column, heads, search = np.empty((size, size)), np.empty(size, np.int64), new_search(size)
    given, new = np.empty(start.shape[2], np.int32), np.empty(longest, np.int32)
    support = new_support(capacity, longest, parts)
    problem = theta, g, ranges, directed
    for b in range(begin, stop):
        n = lengths[b]
        theta[:] = turned[b].reshape(parts)
        g[:] = theta
        if not _is_sound(table, n, labels, directed):
            write_none(np.nan, b, out)
            continue
        count = calls = 0
        for k in range(start.shape[1]):
            for q in range(given.size):
                given[q] = _turn(start[b, k, q], size, labels) if start[b, k, q] < parts else parts
            inner, number = read(given, ranges, parts, new)
            if number > 0 and count < capacity:
                count, _ = offer(support, count, problem, new, inner, number, tol)
        state = OPEN
        while calls < max_iter:
            _read_columns(table, n, labels, directed, column)
            calls += 1
            if count == capacity:
                state = OVERFULL
                break
            if not best_heads(column, n, single_root, search, heads):
                break
            _list_parts(table, n, labels, directed, heads, new)
            count, taken = offer(support, count, problem, new, n, n, tol)
            if not taken:
                state = CONVERGED if within(support, tol) else OPEN
                break
        for i in range(count):
            for q in range(n):
                support[0][i, q] = _turn(support[0][i, q], size, labels)
        write(support, count, problem, calls, state, b, out)


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
    words = lengths if directed else (lengths - 1).clamp_min(0)
    turned = arc.transpose(1, 2).contiguous().flatten(2).numpy()
    arrays = turned, words.numpy(), bool(single_root), bool(directed)
    return solve_rows(_sparsemap, arrays, arc.shape[1] - 1, 4 * arc.numel(), regularised, start, max_iter, tol)
