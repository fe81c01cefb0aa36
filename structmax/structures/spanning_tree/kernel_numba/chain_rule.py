"""The head of each word in turn, given those of the words before: exact for any scores. Derivation: ../README.md.

A table of n words holds the logarithm of each arc's weight as column[m, h], as in edmonds.py. Trees grow
from node 0, and a random walk from word to head ends there.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.structures.spanning_tree.kernel_numba.edmonds import copy

# What is nearer to 0 may have lost digits to the smallest number there is.
FAINT = 1e-60


@compiled()
def log_sum(row, count):
    peak = -np.inf
    for i in range(count):
        peak = max(peak, row[i])
    if peak == -np.inf:
        return peak
    total = 0.0
    for i in range(count):
        total += math.exp(row[i] - peak)
    return peak + math.log(total)


@compiled()
def log_add(a, b):
    peak = max(a, b)
    return peak if peak == -np.inf else peak + math.log1p(math.exp(-abs(a - b)))


@compiled()
def choose(row, count, uniform):
    """An index in proportion to exp(row): the first at which the cumulative weight exceeds `uniform` of the total."""
    peak = -np.inf
    for i in range(count):
        peak = max(peak, row[i])
    total = 0.0
    for i in range(count):
        total += math.exp(row[i] - peak)
    reached, chosen = 0.0, 0
    for i in range(count):
        weight = math.exp(row[i] - peak)
        if weight > 0:
            reached += weight
            chosen = i
            if reached > uniform * total:
                break
    return chosen


@compiled()
def read_sums(arc, n, labels, column):
    """column[m, h] = log Σ exp over the labels of arc[h, m]; whether all usable scores are numbers below inf."""
    sound = True
    for h in range(n + 1):
        for m in range(1, n + 1):
            if h == m:
                column[m, h] = -np.inf
                continue
            for part in range(m * labels, (m + 1) * labels):
                sound &= arc[h, part] < np.inf
            column[m, h] = arc[h, m] if labels == 1 else log_sum(arc[h, m * labels :], labels)
    return sound


@compiled()
def _add(a, b, is_linear):
    return a + b if is_linear else log_add(a, b)


@compiled()
def _total(row, count, is_linear):
    if not is_linear:
        return log_sum(row, count)
    total = 0.0
    for i in range(count):
        total += row[i]
    return total


@compiled("contract")
def _pass_over(work, k, rate, first, last, is_linear):
    """Takes word k off the walk: for words m below k, the heads h of k in first … last − 1 replace k.

    Their weights have both steps over the rate at which walks leave k. It is a sum, and so is all else: no digit is
    lost to a difference, whatever the scores.
    """
    for m in range(1, k):
        if is_linear:
            through = work[m, k] / rate
            for h in range(first, last):
                work[m, h] += through * work[k, h]
        elif work[m, k] > -np.inf:
            through = work[m, k] - rate
            for h in range(first, last):
                work[m, h] = log_add(work[m, h], through + work[k, h])


@compiled("contract")
def _weigh_roots(column, n, work, rate, weight):
    """What `weigh_roots` writes, without logarithms; False where a number comes so near to 0 that digits are lost."""
    for m in range(1, n + 1):
        weight[m] = -np.inf
        for h in range(1, n + 1):
            weight[m] = max(weight[m], column[m, h])
        for h in range(1, n + 1):
            work[m, h] = math.exp(column[m, h] - weight[m]) if column[m, h] > -np.inf else 0.0
    for k in range(n, 1, -1):
        rate[k] = 0.0
        for h in range(1, k):
            rate[k] += work[k, h]
        if not rate[k] > FAINT:
            return False
        _pass_over(work, k, rate[k], 1, k, True)
    measure = rate
    measure[1] = 1.0
    for k in range(2, n + 1):
        into = 0.0
        for m in range(1, k):
            into += work[m, k] * measure[m]
        measure[k] = into / rate[k]
        if not FAINT < measure[k] < 1 / FAINT:
            return False
    for r in range(1, n + 1):
        # the best arc into r, taken out above, is not needed
        weight[r] = math.log(measure[r]) + column[r, 0] - weight[r]
    return True


@compiled()
def weigh_roots(column, n, work, rate, weight):
    """weight[r] = log of the weight of all trees in which word r is the only one below the root, for r = 1 … n.

    That is the root's arc times the trees of the words alone that grow from r, the stationary measure of their walk.
    Up to a constant.
    """
    weight[0] = -np.inf
    if n > 1 and _weigh_roots(column, n, work, rate, weight):
        return
    copy(column, work, n + 1, n + 1)
    for k in range(n, 1, -1):
        rate[k] = log_sum(work[k, 1:], k - 1)
        if rate[k] == -np.inf:
            # Trees grow from k, if at all, and its own head is of no consequence: let it be word 1, at rate 1.
            work[k, 1] = 0.0
            _pass_over(work, k, 0.0, 1, 2, False)
        else:
            _pass_over(work, k, rate[k], 1, k, False)
    weight[1] = 0.0
    for k in range(2, n + 1):
        for m in range(1, k):
            rate[m] = work[m, k] + weight[m]
        weight[k] = log_sum(rate[1:], k - 1)
        for m in range(1, k):
            weight[m] += rate[k]
    for r in range(1, n + 1):
        weight[r] += column[r, 0]


@compiled()
def weigh_heads(chain, n, v, weight):
    """weight[u] = log p of u as the head of v, given the heads of words v + 1 … n.

    Words with a head have become one with the root of their tree: merged[m, h] is the weight of all arcs from the tree
    of h to m. A walk from v is taken after its last visit to v: by its first step, and the chance to escape to 0 from
    there before it comes to v again.
    """
    (column, merged, work), rate, (root_of, _, is_linear) = chain
    linear = is_linear[0]
    zero, one = (0.0, 1.0) if linear else (-np.inf, 0.0)
    copy(merged, work, v, v + 1)
    for k in range(v - 1, 0, -1):
        rate[k] = _add(_total(work[k], k, linear), work[k, v], linear)
        _pass_over(work, k, rate[k], 0, k, linear)
        _pass_over(work, k, rate[k], v, v + 1, linear)
    # the rate of a word becomes its chance of an escape
    rate[0], rate[v] = one, zero
    for k in range(1, v):
        for h in range(k):
            weight[h] = work[k, h] * rate[h] if linear else work[k, h] + rate[h]
        escaping = _total(weight, k, linear)
        rate[k] = escaping / rate[k] if linear else escaping - rate[k]
    for u in range(n + 1):
        chance = rate[root_of[u]]
        weight[u] = math.log(column[v, u] * chance) if linear else column[v, u] + chance
    total = log_sum(weight, n + 1)
    for u in range(n + 1):
        weight[u] -= total


@compiled()
def join(chain, n, v, u):
    """Word v and its tree become part of the tree of u."""
    (_, merged, _), _, (root_of, _, is_linear) = chain
    root = root_of[u]
    for m in range(1, v):
        merged[m, root] = _add(merged[m, root], merged[m, v], is_linear[0])
    for i in range(n + 1):
        if root_of[i] == v:
            root_of[i] = root


# --- a tree --------------------------------------------------------------------------------------------------------


@compiled()
def new_chain(size):
    """The table of a tree to grow, the same with words merged, and one for work; rates; for each node the root it hangs
    on and which one it is; and whether the tables hold weights or their logarithms."""
    return (
        (np.empty((size, size)), np.empty((size, size)), np.empty((size, size))),
        np.empty(size),
        (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(1, np.bool_)),
    )


@compiled()
def begin(column, n, single_root, chain, roots):
    """roots[r] = log p of r as the only word below the root, or of the root itself where it may have several.

    Returns whether there is a tree.
    """
    (_, _, work), rate, (stack, is_met, is_linear) = chain
    is_linear[0] = _is_narrow(column, n)
    for r in range(n + 1):
        roots[r] = -np.inf
    if n > 0 and single_root:
        weigh_roots(column, n, work, rate, roots)
        total = log_sum(roots, n + 1)
        for r in range(n + 1):
            roots[r] -= total
        return total > -np.inf
    roots[0] = 0.0
    return _all_reach_root(column, n, stack, is_met)


@compiled()
def _is_narrow(column, n):
    """Whether no product of weights on a path, each a share of all heads of a word, can fall below e⁻⁶⁰⁰."""
    width = 0.0
    for m in range(1, n + 1):
        low, high = np.inf, -np.inf
        for h in range(n + 1):
            high = max(high, column[m, h])
            low = min(low, column[m, h] if column[m, h] > -np.inf else np.inf)
        width = max(width, high - low)
    return n * (width + math.log(n + 1)) < 600


@compiled()
def _all_reach_root(column, n, stack, is_met):
    is_met[: n + 1] = 0
    stack[0], height, met = 0, 1, 0
    while height > 0:
        height -= 1
        h = stack[height]
        for m in range(1, n + 1):
            if column[m, h] > -np.inf and is_met[m] == 0:
                is_met[m] = 1
                stack[height] = m
                height += 1
                met += 1
    return met == n


@compiled()
def root_at(column, n, target, chain):
    """Prepares for a tree that grows from `target`, in which every word is a tree of its own; how many words it has."""
    (rooted, merged, _), _, (root_of, node, is_linear) = chain
    node[0], words = target, 0
    for m in range(1, n + 1):
        if m != target:
            words += 1
            node[words] = m
    for i in range(words + 1):
        root_of[i] = i
        row = column[node[i]]
        peak = -np.inf
        for j in range(words + 1):
            rooted[i, j] = row[node[j]]
            peak = max(peak, rooted[i, j])
        for j in range(words + 1):
            if i > 0 and is_linear[0]:
                rooted[i, j] = math.exp(rooted[i, j] - peak)
            merged[i, j] = rooted[i, j]
    return words
