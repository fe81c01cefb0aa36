"""Single derivations: drawn with and without replacement, and the probability that a walk draws a given one.

A walk goes depth-first from the goal, tails in listed order. At a node with two edges or more it takes the next number
u of its noise and the first edge at which the cumulative weight exceeds u times the total; a single edge asks nothing.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.recursion.kernel_numba.node import least, sensitivity
from structmax.recursion.kernel_numba.passes import (
    add_up,
    copy,
    fill,
    load_free,
    most_edges,
    new_chart,
    pass_on,
    total_of,
)

# Weights at a node that sum to less may have lost some on the way: they are summed again as logarithms.
FAINT = 1e-200


@compiled()
def new_stack(first, tails):
    """Room for all nodes a depth-first walk leaves for later: T − 1 for each node on its way down, and T."""
    return np.empty(max(tails.shape[1] - 1, 0) * first.size + tails.shape[1] + 1, np.int32)


@compiled()
def _pick(weight, u):
    reached, target, chosen = 0.0, u * total_of(weight), 0
    for i in range(weight.size):
        if weight[i] > 0:
            reached += weight[i]
            chosen = i
            if reached > target:
                break
    return chosen


@compiled()
def _next_number(noise, used):
    if used == noise.size:
        raise ValueError("`noise` should have a number for each decision a derivation can take.")
    return noise[used]


@compiled()
def _take(tails, parts, e, stack, height, out):
    """Counts the parts of e and leaves its tails on the stack, the first on top; returns the height of the stack."""
    for j in range(parts.shape[1]):
        if parts[e, j] >= 0:
            out[parts[e, j]] += 1
    for j in range(tails.shape[1] - 1, -1, -1):
        if tails[e, j] >= 0:
            stack[height] = tails[e, j]
            height += 1
    return height


@compiled()
def _walk(graph, q, goal, noise, stack, out):
    first, tails, parts = graph
    stack[0], height, used = goal, 1, 0
    while height > 0:
        height -= 1
        start, stop = first[stack[height]], first[stack[height] + 1]
        e = start
        if stop - start > 1:
            e += _pick(q[start:stop], _next_number(noise, used))
            used += 1
        height = _take(tails, parts, e, stack, height, out)


# --- without replacement -------------------------------------------------------------------------------------------


@compiled()
def _new_trie(decisions):
    """The decisions of all walks so far: node 0 is the beginning of every walk, a child is one decision more.

    The edge a node takes, the log of the share of its mass not yet drawn, its youngest child and next older sibling.
    """
    size = decisions + 1
    return np.empty(size, np.int32), np.empty(size), np.empty(size, np.int32), np.empty(size, np.int32)


@compiled()
def _follow(trie, size, node, e):
    """The child of `node` by edge e, made if there is none; and the size of the trie."""
    edge, left, youngest, older = trie
    child = youngest[node]
    while child >= 0 and edge[child] != e:
        child = older[child]
    if child >= 0:
        return child, size
    edge[size], left[size], youngest[size], older[size] = e, 0.0, -1, youngest[node]
    youngest[node] = size
    return size, size + 1


@compiled()
def _weigh(graph, chart, trie, node, v, weight):
    """What is left below each edge of v, the decision after `node`, up to a factor; returns the log of their sum."""
    first, tails, parts = graph
    _, _, score, value, q, _ = chart
    edge, left, youngest, older = trie
    start, stop = first[v], first[v + 1]
    copy(q[start:stop], weight)
    child = youngest[node]
    while child >= 0:
        weight[edge[child] - start] *= math.exp(left[child])
        child = older[child]
    total = total_of(weight)
    if total > FAINT:
        return math.log(total)
    add_up(tails, parts, start, stop, score, value, weight)
    child = youngest[node]
    while child >= 0:
        weight[edge[child] - start] += left[child]
        child = older[child]
    peak = -np.inf
    for i in range(weight.size):
        peak = max(peak, weight[i])
    if peak == -np.inf:
        return peak
    for i in range(weight.size):
        weight[i] = math.exp(weight[i] - peak)
    return peak - value[v] + math.log(total_of(weight))


@compiled()
def log_probability(graph, chart, v, e, alpha, gamma):
    """log q(e): from q as long as that is a number, for values far from 0 have no digits for small differences."""
    _, tails, parts = graph
    _, _, score, value, q, _ = chart
    if alpha != 1 or q[e] > FAINT:
        return math.log(q[e])
    s = 0.0
    for j in range(parts.shape[1]):
        s += score[parts[e, j]]
    for j in range(tails.shape[1]):
        s += value[tails[e, j]]
    return (s - value[v]) / gamma if s > -np.inf else s


@compiled()
def _walk_anew(graph, chart, trie, size, goal, noise, stack, path, decided, weight, out):
    """A walk like none before: the size of the trie after it, and the log-probability of the derivation.

    Afterwards what is left is summed up anew along the path, not subtracted: nothing is where all is drawn.
    """
    first, tails, parts = graph
    _, left, _, _ = trie
    stack[0], height, used, total = goal, 1, 0, 0.0
    path[0] = 0
    while height > 0:
        height -= 1
        v = stack[height]
        degree = first[v + 1] - first[v]
        e = first[v]
        if degree > 1:
            _weigh(graph, chart, trie, path[used], v, weight[:degree])
            e += _pick(weight[:degree], _next_number(noise, used))
            path[used + 1], size = _follow(trie, size, path[used], e)
            decided[used] = v
            used += 1
            total += log_probability(graph, chart, v, e, 1.0, 1.0)
        height = _take(tails, parts, e, stack, height, out)
    left[path[used]] = -np.inf
    for step in range(used - 1, -1, -1):
        v = decided[step]
        left[path[step]] = _weigh(graph, chart, trie, path[step], v, weight[: first[v + 1] - first[v]])
    return size, total


# --- the probability of a walk -------------------------------------------------------------------------------------


@compiled()
def _parse(graph, score, nodes, y, covered, uses, users):
    """For each edge how many parts its derivations have at most if they have none outside y, −inf if there is none;
    and for each part how often such edges have it."""
    first, tails, parts = graph
    fill(0.0, users)
    for v in nodes:
        covered[v] = -np.inf
        for e in range(first[v], first[v + 1]):
            uses[e] = 0.0
            for j in range(tails.shape[1]):
                uses[e] += covered[tails[e, j]]
            for j in range(parts.shape[1]):
                part = parts[e, j]
                if part >= 0:
                    uses[e] += 1.0 if y[part] > 0 and score[part] > -np.inf else -np.inf
            covered[v] = max(covered[v], uses[e])
            if uses[e] > -np.inf:
                for j in range(parts.shape[1]):
                    users[parts[e, j]] += 1.0


@compiled()
def _divide(parts, start, stop, visits, y, uses, users, times):
    """How often each edge of a node is taken; False if that cannot be.

    A part that no other edge has says so. Visits that are left take the edge that leads to the most parts.
    """
    rest, best = visits, -1
    for e in range(start, stop):
        times[e], own = 0.0, False
        for j in range(parts.shape[1]):
            part = parts[e, j]
            if part >= 0 and users[part] == 1 and uses[e] > -np.inf:
                times[e], own = max(times[e], y[part]), True
        rest -= times[e]
        if not own and uses[e] > -np.inf and (best < 0 or uses[e] > uses[best]):
            best = e
    if best >= 0:
        times[best] = rest
    return rest == 0 or (rest > 0 and best >= 0)


@compiled()
def _log_prob(graph, chart, nodes, y, alpha, gamma, uses, users, visits, times, count):
    """Σ log q over the derivation whose parts are y, −inf if there is none; how often it takes each edge of the nodes
    that it visits, and how often it visits each node."""
    first, tails, parts = graph
    fill(0.0, count)
    for v in nodes:
        visits[v] = 0.0
    visits[nodes[-1]] = 1.0
    total = 0.0
    for v in nodes[::-1]:
        if visits[v] > 0:
            if not _divide(parts, first[v], first[v + 1], visits[v], y, uses, users, times):
                return -np.inf
            for e in range(first[v], first[v + 1]):
                if times[e] > 0:
                    for j in range(parts.shape[1]):
                        count[parts[e, j]] += times[e]
                    for j in range(tails.shape[1]):
                        visits[tails[e, j]] += times[e]
                    total += times[e] * log_probability(graph, chart, v, e, alpha, gamma)
    for part in range(y.size):
        if count[part] != y[part]:
            return -np.inf
    return total


@compiled()
def _differentiate_log(q, times, alpha, gamma, out):
    """The gradient of Σ c log q for the numbers c of times: with w = q^(2−α) and the sum over all edges taken,
    Σ c q^(1−α) (onehot − w / Σ w) / γ."""
    lowest = least(q, alpha)
    total, mass = 0.0, 0.0
    for i in range(q.size):
        out[i] = sensitivity(q[i], lowest, alpha)
        total += out[i]
        if times[i] > 0:
            mass += times[i] * (1.0 if alpha == 1 else q[i] ** (1 - alpha))
    # Times its own weight, an edge gains what all others have: 1 − w / Σ w without cancellation.
    scale = 1 / gamma / total
    for i in range(q.size):
        if times[i] > 0:
            times[i] *= 1.0 if alpha == 1 else q[i] ** (1 - alpha)
            others = 0.0
            for k in range(q.size):
                others += sensitivity(q[k], lowest, alpha) if k != i else 0.0
            out[i] = scale * (times[i] * others - out[i] * (mass - times[i]))
        else:
            out[i] *= -scale * mass


@compiled()
def _log_prob_gradient(graph, nodes, q, alpha, gamma, visits, times, d_value, d_score, count):
    """The gradient of `_log_prob` for the parts: of the choice at each visited node, and of the values it rests on."""
    first, tails, parts = graph
    fill(0.0, count)
    for v in nodes:
        d_value[v] = 0.0
    for v in nodes[::-1]:
        start, stop = first[v], first[v + 1]
        if visits[v] > 0:
            _differentiate_log(q[start:stop], times[start:stop], alpha, gamma, d_score[start:stop])
            pass_on(tails, parts, start, stop, d_value[v], q, 1.0, d_score, d_value, count)
        elif d_value[v] != 0:
            pass_on(tails, parts, start, stop, d_value[v], q, 0.0, q, d_value, count)


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def sample_rows(start, stop, x, noise, alpha, gamma, goal, first, tails, parts, out):
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    _, order, _, _, q, _ = chart
    nodes = order[:0]
    stack = new_stack(first, tails)
    for i in range(start, stop):
        nodes, value = load_free(graph, chart, nodes, x, goal, i, alpha, gamma)
        for s in range(noise.shape[1]):
            fill(np.nan if np.isnan(value) else 0.0, out[i, s])
            if value > -np.inf:
                _walk(graph, q, goal[i], noise[i, s], stack, out[i, s])


@kernel()
def sample_without_replacement_rows(start, stop, x, noise, goal, first, tails, parts, out, log_prob):
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    nodes = chart[1][:0]
    stack, weight = new_stack(first, tails), np.empty(most_edges(first))
    path, decided = np.empty(noise.shape[2] + 1, np.int32), np.empty(noise.shape[2], np.int32)
    trie = _new_trie(noise.shape[1] * noise.shape[2])
    _, left, youngest, _ = trie
    for i in range(start, stop):
        nodes, value = load_free(graph, chart, nodes, x, goal, i, 1.0, 1.0)
        left[0], youngest[0], size = 0.0, -1, 1
        for s in range(noise.shape[1]):
            fill(np.nan if np.isnan(value) else 0.0, out[i, s])
            log_prob[i, s] = np.nan if np.isnan(value) else -np.inf
            if value > -np.inf and left[0] > -np.inf:
                size, log_prob[i, s] = _walk_anew(
                    graph, chart, trie, size, goal[i], noise[i, s], stack, path, decided, weight, out[i, s]
                )
                # The score of the whole, which nobody has summed yet, may overflow.
                if x.dtype.type(value + log_prob[i, s]) == -np.inf:
                    log_prob[i, s] = -np.inf
                    fill(0.0, out[i, s])


@kernel()
def log_prob_rows(start, stop, x, y, d_log_prob, alpha, gamma, goal, first, tails, parts, log_prob, d_x):
    """The log-probability of each y, and its gradient times `d_log_prob` where `d_x` has rows."""
    graph = (first, tails, parts)
    chart = new_chart(graph, x)
    _, order, score, _, q, _ = chart
    nodes = order[:0]
    covered, visits, d_value = np.zeros(first.size), np.empty(first.size), np.empty(first.size)
    uses, times, d_score = np.empty(len(tails)), np.empty(len(tails)), np.empty(len(tails))
    count, users = np.empty(x.shape[1] + 1), np.empty(x.shape[1] + 1)
    for i in range(start, stop):
        nodes, value = load_free(graph, chart, nodes, x, goal, i, alpha, gamma)
        if value > -np.inf:
            _parse(graph, score, nodes, y[i], covered, uses, users)
            value = _log_prob(graph, chart, nodes, y[i], alpha, gamma, uses, users, visits, times, count)
        log_prob[i] = value
        if len(d_x) == 0:
            continue
        if value > -np.inf:
            _log_prob_gradient(graph, nodes, q, alpha, gamma, visits, times, d_value, d_score, count)
            for part in range(x.shape[1]):
                d_x[i, part] = count[part] * d_log_prob[i]
        else:
            fill(0.0 if value == -np.inf else np.nan, d_x[i])
