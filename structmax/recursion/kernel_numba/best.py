"""The best derivations: the k best of each instance, and the best with each part.

Each node keeps its best derivations in order. One is an edge and, for each tail, a rank in the tail's list: it is worse
with any rank raised. So a heap that holds the best of each edge, and of each derivation taken out of it those with one
rank raised by 1, yields them in order. Raising only ranks after which all are 0 reaches each of them once.

The most probable walks are the best derivations of the same nodes and tails where each edge has one part, its own, that
scores log q.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.heap import arrange, pop, push
from structmax.recursion.kernel_numba.passes import (
    add_up,
    copy,
    fill,
    load_free,
    most_edges,
    new_chart,
)
from structmax.recursion.kernel_numba.walks import log_probability


@compiled()
def _new_lists(size, arity):
    """Derivations: value (n,), edge (n,) and ranks (n, T).

    Those of one node are next to each other. The first is the derivation of nothing, which is what a tail of −1 has.
    """
    return np.zeros(size), np.empty(size, np.int32), np.empty((size, arity), np.int32)


@compiled()
def _measure(graph, score, nodes, k, size, begin):
    """How many derivations each node has, up to k, and where its list begins; returns the size of all lists.

    There may be fewer: a sum of finite scores can be −inf.
    """
    first, tails, parts = graph
    size[-1], begin[-1], total = 1, 0, 1
    for v in nodes:
        count = np.int64(0)
        for e in range(first[v], first[v + 1]):
            ways = np.int64(1)
            for j in range(parts.shape[1]):
                ways = ways if score[parts[e, j]] > -np.inf else 0
            for j in range(tails.shape[1]):
                ways = min(ways * size[tails[e, j]], k)
            count = min(count + ways, k)
        size[v], begin[v] = count, total
        total += count
    return total


@compiled()
def _fill_list(graph, score, s, v, size, begin, lists, found, heap):
    """The list of v, whose edges score s, from those of its tails; returns how many derivations it has."""
    first, tails, parts = graph
    value, edge, rank = found
    list_value, list_edge, list_rank = lists
    count = 0
    for i in range(s.size):
        if s[i] > -np.inf:
            value[count], edge[count], heap[count] = s[i], first[v] + i, count
            for j in range(tails.shape[1]):
                rank[count, j] = 0
            count += 1
    held, listed = count, 0
    arrange(value, heap, held)
    while held > 0 and listed < size[v]:
        n, held = pop(value, heap, held)
        place = begin[v] + listed
        listed += 1
        e = edge[n]
        list_value[place], list_edge[place] = value[n], e
        for j in range(tails.shape[1]):
            list_rank[place, j] = rank[n, j]
        for raised in range(tails.shape[1] - 1, -1, -1):
            if rank[n, raised] + 1 < size[tails[e, raised]]:
                # Summed as `add_up` does, so that rounding cannot put a worse derivation before a better one.
                total = 0.0
                for j in range(parts.shape[1]):
                    total += score[parts[e, j]]
                for j in range(tails.shape[1]):
                    rank[count, j] = rank[n, j] + (j == raised)
                    total += list_value[begin[tails[e, j]] + rank[count, j]]
                if total > -np.inf:
                    value[count], edge[count] = total, e
                    held = push(value, heap, held, count)
                    count += 1
            if rank[n, raised] > 0:
                break
    return listed


@compiled()
def _list_all(graph, score, value, nodes, k, size, begin, lists, found, heap, s):
    """Fills the lists of all nodes in order, and value(v), that of the first; returns them, longer ones if need be."""
    first, tails, parts = graph
    room = _measure(graph, score, nodes, k, size, begin)
    if room > lists[0].size:
        lists = _new_lists(room, tails.shape[1])
    for v in nodes:
        edges = s[: first[v + 1] - first[v]]
        add_up(tails, parts, first[v], first[v + 1], score, value, edges)
        size[v] = _fill_list(graph, score, edges, v, size, begin, lists, found, heap)
        value[v] = lists[0][begin[v]] if size[v] > 0 else -np.inf
    return lists


@compiled()
def _unfold(graph, begin, lists, goal, rank, stack, ranks, out):
    """Counts the parts of the goal's derivation of that rank."""
    _, tails, parts = graph
    _, list_edge, list_rank = lists
    stack[0], ranks[0], height = goal, rank, 1
    while height > 0:
        height -= 1
        n = begin[stack[height]] + ranks[height]
        e = list_edge[n]
        for j in range(parts.shape[1]):
            if parts[e, j] >= 0:
                out[parts[e, j]] += 1
        for j in range(tails.shape[1]):
            if tails[e, j] >= 0:
                stack[height], ranks[height] = tails[e, j], list_rank[n, j]
                height += 1


@compiled()
def _best_with_part(graph, nodes, score, value, s, outside, best):
    """For each part the best of: an edge with it, its tails, and what surrounds its head; s holds the edges' scores."""
    first, tails, parts = graph
    fill(-np.inf, best)
    for v in nodes:
        outside[v] = -np.inf
    outside[nodes[-1]] = 0.0
    for v in nodes[::-1]:
        add_up(tails, parts, first[v], first[v + 1], score, value, s)
        for e in range(first[v], first[v + 1]):
            total = outside[v] + s[e - first[v]]
            if total > -np.inf:
                for j in range(parts.shape[1]):
                    part = parts[e, j]
                    best[part] = max(best[part], total)
                for j in range(tails.shape[1]):
                    tail = tails[e, j]
                    outside[tail] = max(outside[tail], total - value[tail])


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def topk_rows(start, stop, x, k, alpha, gamma, goal, first, tails, parts, values, out):
    """The best derivations for γ = 0, else the most probable walks."""
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    _, order, score, value, _, _ = chart
    nodes = order[:0]
    own = np.arange(len(tails) if gamma > 0 else 0).astype(np.int32).reshape(-1, 1)
    listed = (first, tails, own if gamma > 0 else parts)
    logs = np.zeros(len(own) + 1)
    degree, arity = most_edges(first), tails.shape[1]
    size, begin = np.zeros(first.size, np.int64), np.zeros(first.size, np.int64)
    lists, found = _new_lists(1, arity), _new_lists(degree + k * arity, arity)
    heap, s = np.empty(degree + k * arity, np.int32), np.empty(degree)
    stack, ranks = np.empty(first.size * arity + 1, np.int32), np.empty(first.size * arity + 1, np.int32)
    for i in range(start, stop):
        nodes, best = load_free(graph, chart, nodes, x, goal, i, alpha, gamma)
        available = 0
        if best > -np.inf:
            if gamma > 0:
                for v in nodes:
                    for e in range(first[v], first[v + 1]):
                        logs[e] = log_probability(graph, chart, v, e, alpha, gamma)
            used = logs if gamma > 0 else score
            lists = _list_all(listed, used, value, nodes, k, size, begin, lists, found, heap, s)
            available = size[goal[i]]
        for rank in range(k):
            fill(np.nan if np.isnan(best) else 0.0, out[i, rank])
            values[i, rank] = np.nan if np.isnan(best) else -np.inf
            if rank < available:
                values[i, rank] = lists[0][begin[goal[i]] + rank]
            # In float32 it may be −inf only now.
            if values[i, rank] > -np.inf:
                _unfold(graph, begin, lists, goal[i], rank, stack, ranks, out[i, rank])


@kernel()
def max_marginals_rows(start, stop, x, goal, first, tails, parts, out):
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    _, order, score, value, q, _ = chart
    nodes = order[:0]
    outside, best_with = np.empty(first.size), np.empty(x.shape[1] + 1)
    for i in range(start, stop):
        nodes, best = load_free(graph, chart, nodes, x, goal, i, 1.0, 0.0)
        if best > -np.inf:
            _best_with_part(graph, nodes, score, value, q, outside, best_with)
            copy(best_with, out[i])
        else:
            fill(best, out[i])
