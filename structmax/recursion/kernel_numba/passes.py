"""Passes over an ordered hypergraph: up for values and probabilities, down for expected counts, both for tangents.

value(v) = ⊕ over the edges e of v of s(e), with s(e) = Σ score(parts) + Σ value(tails); tails come before heads, so one
pass in order fills every value, and with it q(e), the probability of e given its head. From q alone the way down gives
expected counts: E(goal) = 1, and each edge passes E(head) q(e) on to its tails and parts.

Parts and tails that are −1 point to the last cell of an array, as Python's indices do: there is one cell more than
there are parts or nodes, it scores 0, and what is counted there is not read. Whatever the dtype of the scores, all is
float64 in between.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.recursion.kernel_numba.node import choose, differentiate

# What belongs together travels as a tuple, without a name: Numba's cache on disk could not be read again once a named
# one had changed. `graph` is (first, tails, parts), and
#   chart   needed (V + 1,)    whether the goal builds on the node
#           order (V + 1,)     those nodes, ascending
#           score (P + 1,), value (V + 1,), q (E,)
#           spare              room for the edges of one node
#   given   required (P + 1,)  1 where a part must be used; all three are empty if none must
#           met (V + 1,)       how many required parts the derivations of the node have
#           uses               how many those have that take the edge, for the edges of one node


@compiled()
def most_edges(first):
    """Of one node."""
    most = 0
    for v in range(first.size - 1):
        most = max(most, first[v + 1] - first[v])
    return most


@compiled()
def new_chart(graph, x):
    first, tails, _ = graph
    score, value, q = np.zeros(x.shape[1] + 1), np.zeros(first.size), np.zeros(len(tails))
    return np.zeros(first.size, np.bool_), np.empty(first.size, np.int32), score, value, q, np.empty(most_edges(first))


@compiled()
def new_given(graph, required):
    if required.size == 0:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    first, _, _ = graph
    return np.zeros(required.shape[1] + 1), np.zeros(first.size), np.empty(most_edges(first))


@compiled()
def copy(values, out):
    """As far as both go; without the checks of a slice assignment, which are slow to compile."""
    for i in range(min(values.size, out.size)):
        out[i] = values[i]


@compiled()
def fill(value, out):
    for i in range(out.size):
        out[i] = value


@compiled()
def total_of(values):
    total = 0.0
    for i in range(values.size):
        total += values[i]
    return total


@compiled()
def reach(graph, goal, needed, order, nodes):
    """The nodes the goal builds on and itself, ascending; `nodes` is what the last call returned, and may be it."""
    if nodes.size > 0 and nodes[-1] == goal:
        return nodes
    first, tails, _ = graph
    fill(False, needed[:goal])
    needed[goal] = True
    for v in range(goal, -1, -1):
        if needed[v]:
            for e in range(first[v], first[v + 1]):
                for j in range(tails.shape[1]):
                    needed[tails[e, j]] = True
    count = 0
    for v in range(goal + 1):
        order[count] = v
        count += needed[v]
    return order[:count]


# --- one node: a call for each edge would take longer than the edge ------------------------------------------------


@compiled()
def add_up(tails, parts, start, stop, score, value, out):
    """Σ score(parts) + Σ value(tails) for the edges from start to stop."""
    for e in range(start, stop):
        total = 0.0
        for j in range(parts.shape[1]):
            total += score[parts[e, j]]
        for j in range(tails.shape[1]):
            total += value[tails[e, j]]
        out[e - start] = total


@compiled()
def pass_on(tails, parts, start, stop, a, q, b, d, expected, count):
    """Adds a q(e) + b d(e) to what is expected of the tails and parts of each edge from start to stop."""
    for e in range(start, stop):
        weight = a * q[e] + b * d[e]
        if weight != 0:
            for j in range(tails.shape[1]):
                expected[tails[e, j]] += weight
            for j in range(parts.shape[1]):
                count[parts[e, j]] += weight


@compiled()
def _keep_fullest(uses, q):
    """Forbids the edges by which a derivation has fewer required parts than by another; returns that number.

    A derivation of the goal with all of them has, below each of its nodes, as many as that node can have.
    """
    most = 0.0
    for e in range(q.size):
        if q[e] > -np.inf:
            most = max(most, uses[e])
    for e in range(q.size):
        # NaN and +inf stay
        if q[e] < np.inf and uses[e] < most:
            q[e] = -np.inf
    return most


# --- passes --------------------------------------------------------------------------------------------------------


@compiled()
def ascend(graph, nodes, chart, given, alpha, gamma):
    """value(v) and q(e) for all nodes that count; returns the value of the goal, which is the last."""
    first, tails, parts = graph
    _, _, score, value, q, spare = chart
    required, met, uses = given
    for v in nodes:
        start, stop = first[v], first[v + 1]
        s = q[start:stop]
        add_up(tails, parts, start, stop, score, value, s)
        if met.size > 0:
            add_up(tails, parts, start, stop, required, met, uses)
            met[v] = _keep_fullest(uses, s)
        value[v] = choose(s, alpha, gamma, spare)
    goal = nodes[-1]
    if met.size > 0 and met[goal] < total_of(required) and value[goal] < np.inf:
        return -np.inf
    return value[goal]


@compiled()
def descend(graph, nodes, q, expected, count):
    """The expected number of uses of each node and each part by the walk that leaves a node by e with q(e)."""
    first, tails, parts = graph
    fill(0.0, count)
    for v in nodes:
        expected[v] = 0.0
    expected[nodes[-1]] = 1.0
    for v in nodes[::-1]:
        if expected[v] > 0:
            pass_on(tails, parts, first[v], first[v + 1], expected[v], q, 0.0, q, expected, count)


@compiled()
def ascend_tangent(graph, nodes, q, tangent, alpha, gamma, d_value, d_q):
    """The change of q when the scores move along `tangent`, which counts nothing where q is 0."""
    first, tails, parts = graph
    for v in nodes:
        start, stop = first[v], first[v + 1]
        add_up(tails, parts, start, stop, tangent, d_value, d_q[start:stop])
        d_value[v] = 0.0
        for e in range(start, stop):
            if q[e] > 0:
                d_value[v] += q[e] * d_q[e]
        differentiate(q[start:stop], d_q[start:stop], alpha, gamma)


@compiled()
def descend_tangent(graph, nodes, q, d_q, expected, d_expected, d_count):
    """The change of the expected counts when q changes by d_q."""
    first, tails, parts = graph
    fill(0.0, d_count)
    for v in nodes:
        d_expected[v] = 0.0
    for v in nodes[::-1]:
        if expected[v] > 0:
            pass_on(tails, parts, first[v], first[v + 1], d_expected[v], q, expected[v], d_q, d_expected, d_count)


@compiled()
def load(graph, chart, given, nodes, x, required, goal, i, alpha, gamma):
    """Instance i into the chart: the nodes that count, and the value of the goal."""
    needed, order, score, _, _, _ = chart
    nodes = reach(graph, goal[i], needed, order, nodes)
    copy(x[i], score)
    if required.size > 0:
        for part in range(x.shape[1]):
            given[0][part] = required[i, part] > 0
    value = ascend(graph, nodes, chart, given, alpha, gamma)
    # What the dtype of the scores cannot hold is −inf: in float32 a sum of finite ones as in float64.
    return nodes, (-np.inf if x.dtype.type(value) == -np.inf else value)


@compiled()
def load_free(graph, chart, nodes, x, goal, i, alpha, gamma):
    """The same where nothing is required."""
    return load(graph, chart, new_given(graph, x[:0]), nodes, x, x[:0], goal, i, alpha, gamma)


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def counts_rows(start, stop, x, required, alpha, gamma, goal, first, tails, parts, values, out):
    """The value and the expected counts of each instance; counts only where `out` has rows."""
    graph = (first, tails, parts)
    chart, given = new_chart(graph, x), new_given(graph, required)
    _, order, _, _, q, _ = chart
    nodes = order[:0]
    expected, count = np.empty(first.size), np.empty(x.shape[1] + 1)
    for i in range(start, stop):
        nodes, value = load(graph, chart, given, nodes, x, required, goal, i, alpha, gamma)
        values[i] = value
        if len(out) == 0:
            continue
        if value > -np.inf:
            descend(graph, nodes, q, expected, count)
            copy(count, out[i])
        else:
            fill(0.0 if value == -np.inf else np.nan, out[i])


@kernel()
def counts_jvp_rows(start, stop, x, required, tangent, alpha, gamma, goal, first, tails, parts, out):
    graph = (first, tails, parts)
    chart, given = new_chart(graph, x), new_given(graph, required)
    _, order, _, _, q, _ = chart
    nodes = order[:0]
    direction, count, d_count = np.zeros(x.shape[1] + 1), np.empty(x.shape[1] + 1), np.empty(x.shape[1] + 1)
    d_value, expected, d_expected = np.zeros(first.size), np.empty(first.size), np.empty(first.size)
    d_q = np.empty(len(tails))
    for i in range(start, stop):
        nodes, value = load(graph, chart, given, nodes, x, required, goal, i, alpha, gamma)
        if value > -np.inf:
            copy(tangent[i], direction)
            ascend_tangent(graph, nodes, q, direction, alpha, gamma, d_value, d_q)
            descend(graph, nodes, q, expected, count)
            descend_tangent(graph, nodes, q, d_q, expected, d_expected, d_count)
            copy(d_count, out[i])
        else:
            fill(0.0 if value == -np.inf else np.nan, out[i])
