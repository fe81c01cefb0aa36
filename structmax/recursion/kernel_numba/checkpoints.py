"""Value and expected counts in less memory: the nodes in about √V blocks, of which one at a time is held.

The way up keeps, at the cut before each block, the values that nodes behind it use: the frontier. The way down computes
one block after the other anew from its frontier, and carries what is expected of the frontier on to the next. Every
number is computed as in passes.py, by the same operations in the same order.

A block works in a chart of its own: first its frontier, then its nodes, and a cell for none at the end. `at` (V + 1,)
says where a node stands in it, −1 for nodes that the goal does not build on.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.recursion.kernel_numba.node import choose
from structmax.recursion.kernel_numba.passes import copy, fill, most_edges


@compiled()
def _last_uses(graph, goal, at):
    """Into `at`: the last node that builds on each, of those the goal builds on; −1 for others, itself for the goal."""
    first, tails, _ = graph
    fill(-1, at)
    at[goal] = goal
    for v in range(goal, -1, -1):
        if at[v] >= 0:
            for e in range(first[v], first[v + 1]):
                for j in range(tails.shape[1]):
                    t = tails[e, j]
                    if t >= 0 and at[t] < 0:
                        at[t] = v


@compiled()
def _cut(goal, at, size):
    """The first node of each block of `size` nodes that count, and one past the goal."""
    cuts, blocks, count = np.empty(goal + 2, np.int32), 0, 0
    for v in range(goal + 1):
        if at[v] >= 0:
            if count % size == 0:
                cuts[blocks] = v
                blocks += 1
            count += 1
    cuts[blocks] = goal + 1
    return cuts[: blocks + 1].copy()


@compiled()
def _frontiers(cuts, at):
    """The nodes before each cut that are used behind it: those of cut b from place[b] to place[b + 1]."""
    blocks = cuts.size - 1
    place = np.zeros(blocks + 1, np.int64)
    nodes = np.empty(0, np.int32)
    for fills in (False, True):
        if fills:
            for b in range(blocks, 0, -1):
                place[b] = place[b - 1]
            place[0] = 0
            for b in range(blocks):
                place[b + 1] += place[b]
            nodes = np.empty(place[blocks], np.int32)
        taken = np.zeros(blocks, np.int64)
        for b in range(blocks):
            for v in range(cuts[b], cuts[b + 1]):
                later = b + 1
                while later < blocks and cuts[later] <= at[v]:
                    if fills:
                        nodes[place[later] + taken[later]] = v
                        taken[later] += 1
                    else:
                        place[later] += 1
                    later += 1
    return place, nodes


@kernel()
def checkpoints(goal, first, tails, parts, at):
    """The blocks for a goal: cuts, and the frontier of each as `place` and `nodes`; `at` is 0 or more where they count.

    One block where the frontiers would hold more than all the values do.
    """
    _last_uses((first, tails, parts), goal, at)
    count = 0
    for v in range(goal + 1):
        count += at[v] >= 0
    cuts = _cut(goal, at, math.ceil(math.sqrt(count)))
    place, nodes = _frontiers(cuts, at)
    if nodes.size > count:
        cuts = _cut(goal, at, count)
        place, nodes = _frontiers(cuts, at)
    return cuts, place, nodes


@compiled()
def _sizes(first, at, cuts, place):
    """The most nodes, with their frontier, and the most edges of a block."""
    most, edges = 0, 0
    for b in range(cuts.size - 1):
        size, own = place[b + 1] - place[b], 0
        for v in range(cuts[b], cuts[b + 1]):
            if at[v] >= 0:
                size += 1
                own += first[v + 1] - first[v]
        most, edges = max(most, size), max(edges, own)
    return most, edges


@compiled()
def _ascend_block(graph, b, plan, at, score, saved, value, q, spare, alpha, gamma):
    """The values and probabilities of a block; returns how many edges it has."""
    first, tails, parts = graph
    cuts, place, nodes = plan
    count, edges = 0, 0
    for f in range(place[b], place[b + 1]):
        at[nodes[f]] = count
        value[count] = saved[f]
        count += 1
    for v in range(cuts[b], cuts[b + 1]):
        if at[v] < 0:
            continue
        at[v] = count
        own = edges
        for e in range(first[v], first[v + 1]):
            total = 0.0
            for j in range(parts.shape[1]):
                total += score[parts[e, j]]
            for j in range(tails.shape[1]):
                total += value[at[tails[e, j]]]
            q[edges] = total
            edges += 1
        value[count] = choose(q[own:edges], alpha, gamma, spare)
        count += 1
    return edges


@compiled()
def _descend_block(graph, b, plan, at, edges, q, expected, count):
    """Adds to what is expected of the block, its frontier and the parts."""
    first, tails, parts = graph
    cuts = plan[0]
    for v in range(cuts[b + 1] - 1, cuts[b] - 1, -1):
        if at[v] < 0:
            continue
        edges -= first[v + 1] - first[v]
        here = expected[at[v]]
        if not here > 0:
            continue
        for e in range(first[v], first[v + 1]):
            weight = here * q[edges + e - first[v]]
            if weight != 0:
                for j in range(tails.shape[1]):
                    expected[at[tails[e, j]]] += weight
                for j in range(parts.shape[1]):
                    count[parts[e, j]] += weight


@kernel()
def checkpointed_rows(start, stop, x, alpha, gamma, goal, first, tails, parts, values, out):
    """The value and the expected counts of each instance; counts only where `out` has rows."""
    graph = (first, tails, parts)
    at, score, count = np.empty(first.size, np.int32), np.zeros(x.shape[1] + 1), np.empty(x.shape[1] + 1)
    spare, known = np.empty(most_edges(first)), -1
    plan = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32)
    saved, value, q, expected, carried = np.empty(0), np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    for i in range(start, stop):
        if goal[i] != known:
            known = goal[i]
            plan = checkpoints(known, first, tails, parts, at)
            most, edges = _sizes(first, at, plan[0], plan[1])
            saved, carried = np.empty(plan[2].size), np.empty(most)
            value, expected, q = np.zeros(most + 1), np.empty(most + 1), np.empty(edges)
        cuts, place, nodes = plan
        blocks = cuts.size - 1
        copy(x[i], score)
        for b in range(blocks):
            _ascend_block(graph, b, plan, at, score, saved, value, q, spare, alpha, gamma)
            if b + 1 < blocks:
                for f in range(place[b + 1], place[b + 2]):
                    saved[f] = value[at[nodes[f]]]
        goal_value = value[at[known]]
        # What the dtype of the scores cannot hold is −inf: in float32 a sum of finite ones as in float64.
        values[i] = -np.inf if x.dtype.type(goal_value) == -np.inf else goal_value
        if len(out) == 0:
            continue
        if not goal_value > -np.inf or values[i] == -np.inf:
            fill(np.nan if np.isnan(goal_value) else 0.0, out[i])
            continue
        fill(0.0, count)
        for b in range(blocks - 1, -1, -1):
            edges = _ascend_block(graph, b, plan, at, score, saved, value, q, spare, alpha, gamma)
            fill(0.0, expected)
            if b == blocks - 1:
                expected[at[known]] = 1.0
            else:
                for f in range(place[b + 1], place[b + 2]):
                    expected[at[nodes[f]]] = carried[f - place[b + 1]]
            _descend_block(graph, b, plan, at, edges, q, expected, count)
            for f in range(place[b + 1] - place[b]):
                carried[f] = expected[f]
        copy(count, out[i])
