"""The sparse map of any ordered hypergraph: best derivations inside the active-set method, all of it compiled."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.active_set import OPEN, begin, copy, new_support, offer, read
from structmax.numerics.kernel_numba.active_set_batch import write, write_none
from structmax.recursion.kernel_numba.passes import reach


@compiled()
def _ascend(graph, nodes, score, value, choice):
    """The value of each node, the best over its edges, and that edge, the first of equals; the value of the goal.

    NaN if a score that counts is NaN or +inf.
    """
    first, tails, parts = graph
    for v in nodes:
        best, chosen, sound = -np.inf, -1, True
        for e in range(first[v], first[v + 1]):
            total = 0.0
            for j in range(parts.shape[1]):
                total += score[parts[e, j]]
            for j in range(tails.shape[1]):
                total += value[tails[e, j]]
            sound &= total < np.inf
            if total > best:
                best, chosen = total, e
        value[v], choice[v] = best if sound else np.nan, chosen
    return value[nodes[-1]]


@compiled()
def _list_parts(graph, goal, choice, stack, out):
    """The parts of the best derivation, as often as they are used; how many they are."""
    _, tails, parts = graph
    stack[0] = goal
    height, size = 1, 0
    while height > 0:
        height -= 1
        e = choice[stack[height]]
        for j in range(parts.shape[1]):
            if parts[e, j] >= 0:
                out[size] = parts[e, j]
                size += 1
        for j in range(tails.shape[1] - 1, -1, -1):
            if tails[e, j] >= 0:
                stack[height] = tails[e, j]
                height += 1
    return size


@kernel()
def most_parts(graph):
    """How many parts a derivation of any node uses at most."""
    first, tails, parts = graph
    most = np.zeros(first.size, np.int64)
    largest = 0
    for v in range(first.size - 1):
        for e in range(first[v], first[v + 1]):
            total = 0
            for j in range(parts.shape[1]):
                total += parts[e, j] >= 0
            for j in range(tails.shape[1]):
                total += most[tails[e, j]] if tails[e, j] >= 0 else 0
            most[v] = max(most[v], total)
        largest = max(largest, most[v])
    return largest


@kernel()
def sparsemap_rows(start_row, stop, x, goal, first, tails, arc_parts, ranges, start, longest, max_iter, tol, out):
    graph = (first, tails, arc_parts)
    parts, capacity = x.shape[1], out[1].shape[1]
    # One cell more for the part that is none.
    theta, g = np.empty(parts), np.zeros(parts + 1)
    value, choice = np.zeros(first.size), np.empty(first.size, np.int32)
    needed, order = np.zeros(first.size, np.bool_), np.empty(first.size, np.int32)
    nodes, stack = order[:0], np.empty(first.size * max(1, tails.shape[1]) + 1, np.int32)
    found, new = np.empty(longest, np.int32), np.empty(longest, np.int32)
    support = new_support(capacity, longest, parts)
    problem = theta, g, ranges, False
    for b in range(start_row, stop):
        copy(x[b], theta)
        copy(x[b], g)
        nodes = reach(graph, goal[b], needed, order, nodes)
        best = _ascend(graph, nodes, g, value, choice)
        if not best > -np.inf:
            write_none(best, b, out)
            continue
        begin(support, problem, start[b], new, tol)
        calls, state = 0, OPEN
        while calls < max_iter and state == OPEN:
            _ascend(graph, nodes, g, value, choice)
            inner, size = read(found[: _list_parts(graph, goal[b], choice, stack, found)], ranges, parts, new)
            calls += 1
            state = offer(support, problem, new, inner, size, tol)
        write(support, calls, state, b, out)
