"""A walk by noisy edges, its relaxation and its pullback: recursion/reference_noisy.py has the formulas."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.recursion.checks import SHARED_CHOICE
from structmax.recursion.kernel_numba.node import choose
from structmax.recursion.kernel_numba.passes import (
    add_up,
    ascend_tangent,
    copy,
    fill,
    load_free,
    new_chart,
    pass_on,
)


@compiled()
def _feasible(s):
    count = 0
    for i in range(s.size):
        count += s[i] > -np.inf
    return count


@compiled()
def _descend_noisy(graph, nodes, chart, gumbel, gamma, w, expected, count):
    """Weights of the edges of all nodes that the walk comes to, 0 for others, and the counts."""
    first, tails, parts = graph
    _, _, score, value, _, spare = chart
    fill(0.0, count)
    for v in nodes:
        expected[v] = 0.0
    expected[nodes[-1]] = 1.0
    for v in nodes[::-1]:
        start, stop = first[v], first[v + 1]
        own = w[start:stop]
        if expected[v] > 0:
            add_up(tails, parts, start, stop, score, value, own)
            if gamma == 0 and expected[v] > 1 and _feasible(own) > 1:
                raise ValueError(SHARED_CHOICE)
            for e in range(start, stop):
                w[e] += gumbel[e]
            choose(own, 1.0, gamma, spare)
            pass_on(tails, parts, start, stop, expected[v], w, 0.0, w, expected, count)
        else:
            fill(0.0, own)


@compiled()
def _descend_slopes(graph, nodes, q, d_w, expected, d_value, count):
    """From the slopes of the choices, d_w for a walk that comes to the node once, those of the scores."""
    first, tails, parts = graph
    fill(0.0, count)
    for v in nodes:
        d_value[v] = 0.0
    for v in nodes[::-1]:
        if expected[v] > 0 or d_value[v] != 0:
            pass_on(tails, parts, first[v], first[v + 1], d_value[v], q, expected[v], d_w, d_value, count)


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def noisy_walk_rows(start, stop, x, gumbel, gamma, goal, first, tails, parts, out):
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    nodes = chart[1][:0]
    w, expected, count = np.empty(len(tails)), np.empty(first.size), np.empty(x.shape[1] + 1)
    for i in range(start, stop):
        nodes, value = load_free(graph, chart, nodes, x, goal, i, 1.0, 1.0)
        if value > -np.inf:
            _descend_noisy(graph, nodes, chart, gumbel[i], gamma, w, expected, count)
            copy(count, out[i])
        else:
            fill(0.0 if value == -np.inf else np.nan, out[i])


@kernel()
def pullback_rows(start, stop, x, d_parts, gumbel, gamma, goal, first, tails, parts, out):
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    _, order, _, _, q, _ = chart
    nodes = order[:0]
    w, d_w, direction = np.empty(len(tails)), np.empty(len(tails)), np.zeros(x.shape[1] + 1)
    expected, d_value, count = np.empty(first.size), np.zeros(first.size), np.empty(x.shape[1] + 1)
    for i in range(start, stop):
        nodes, value = load_free(graph, chart, nodes, x, goal, i, 1.0, 1.0)
        if value > -np.inf:
            _descend_noisy(graph, nodes, chart, gumbel[i], gamma, w, expected, count)
            copy(d_parts[i], direction)
            # the way up of a tangent is that of a cotangent of the counts
            d_value[-1] = 0.0
            ascend_tangent(graph, nodes, w, direction, 1.0, gamma, d_value, d_w)
            _descend_slopes(graph, nodes, q, d_w, expected, d_value, count)
            copy(count, out[i])
        else:
            fill(0.0 if value == -np.inf else np.nan, out[i])
