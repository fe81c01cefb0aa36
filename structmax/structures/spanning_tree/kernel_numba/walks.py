"""Trees drawn by chance. Derivations: ../README.md.

Noise of a draw: noise[0] chooses the word below the root where there is one only, noise[m] the head of word m, and with
labels noise[N + m] the label of its arc.
"""

import math

import numpy as np
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.structures.spanning_tree.kernel_numba.chain_rule import (
    begin,
    choose,
    join,
    new_chain,
    read_sums,
    root_at,
    weigh_heads,
)
from structmax.structures.spanning_tree.kernel_numba.edmonds import copy, fill_usable, is_feasible

# A walk that takes more steps than this for each word is given up.
PATIENCE = 20


# --- Wilson's walks ------------------------------------------------------------------------------------------------


@compiled()
def _mix(z):
    """The finaliser of SplitMix64: a bijection of 64 bits that leaves no trace of its argument."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled()
def _seed(noise):
    seed = np.uint64(0)
    for i in range(noise.size):
        seed = _mix(seed ^ np.uint64(noise[i] * 2.0**53))
    return seed


@compiled()
def _uniform(seed, step):
    """The number of that step in [0, 1)."""
    return (_mix(seed + np.uint64(step) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(11)) * 2.0**-53


@compiled()
def _accumulate(column, n, first, cumulative):
    """cumulative[m, h] = the weight of all heads of m from `first` to h, where the greatest weight is 1."""
    for m in range(1, n + 1):
        peak = -np.inf
        for h in range(first, n + 1):
            peak = max(peak, column[m, h])
        total = 0.0
        for h in range(n + 1):
            if h >= first and column[m, h] > -np.inf:
                total += math.exp(column[m, h] - peak)
            cumulative[m, h] = total


@compiled()
def _first_above(row, level):
    low, high = 0, row.size - 1
    while low < high:
        middle = (low + high) // 2
        if row[middle] > level:
            high = middle
        else:
            low = middle + 1
    return low


@compiled()
def _walk(cumulative, n, target, seed, is_in_tree, heads):
    """Writes heads of a tree that grows from `target`; whether patience sufficed.

    From each word a walk goes from head to head until it meets the tree; of a word met several times the last head
    counts. How many steps all walks take together has no influence on the tree: those that take too many may be given
    up, and the tree be drawn anew in another way.
    """
    is_in_tree[: n + 1] = False
    is_in_tree[target] = True
    step = 0
    for start in range(1, n + 1):
        v = start
        while not is_in_tree[v]:
            if step == PATIENCE * n:
                return False
            row = cumulative[v, : n + 1]
            heads[v] = _first_above(row, _uniform(seed, step) * row[n])
            v = heads[v]
            step += 1
        v = start
        while not is_in_tree[v]:
            is_in_tree[v] = True
            v = heads[v]
    return True


# --- the chain rule ------------------------------------------------------------------------------------------------


@compiled()
def _follow_chain(column, n, target, noise, chain, weight, heads):
    """Writes heads of a tree that grows from `target`: decides from the last word to the first."""
    node = chain[2][1]
    words = root_at(column, n, target, chain)
    for v in range(words, 0, -1):
        weigh_heads(chain, words, v, weight)
        u = choose(weight, words + 1, noise[node[v]])
        heads[node[v]] = node[u]
        join(chain, words, v, u)


@kernel()
def _draw(start, stop, arc, noise, lengths, single_root, out):
    size, width = arc.shape[1], arc.shape[2]
    labels = width // size
    theta, column, cumulative = np.empty((size, width)), np.empty((size, size)), np.empty((size, size))
    chain, roots, weight = new_chain(size), np.empty(size), np.empty(size)
    heads, is_in_tree = np.empty(size, np.int64), np.empty(size, np.bool_)
    for b in range(start, stop):
        n = lengths[b]
        out[b] = 0
        copy(arc[b], theta, n + 1, width)
        if not read_sums(theta, n, labels, column):
            for s in range(out.shape[1]):
                fill_usable(out[b, s], n, labels, np.nan)
            continue
        if not begin(column, n, single_root, chain, roots):
            continue
        _accumulate(column, n, 1 if single_root else 0, cumulative)
        for s in range(out.shape[1]):
            target = choose(roots, n + 1, noise[b, s, 0])
            heads[target] = 0
            if not _walk(cumulative, n, target, _seed(noise[b, s]), is_in_tree, heads):
                _follow_chain(column, n, target, noise[b, s], chain, weight, heads)
            for m in range(1, n + 1 if is_feasible(arc[b], labels, heads, n) else 0):
                part = m * labels
                if labels > 1:
                    part += choose(theta[heads[m], part:], labels, noise[b, s, size - 1 + m])
                out[b, s, heads[m], part] = 1.0


def sample(arc: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    drawn = arc.new_empty(len(arc), noise.shape[1], *arc.shape[1:])
    arrays = (
        arc.flatten(2).numpy(),
        noise.double().numpy(),
        words.numpy(),
        bool(single_root),
        drawn.flatten(3).numpy(),
    )
    over_rows(_draw, len(arc), drawn.numel(), *arrays)
    return from_arcs(drawn, directed, arc.dim() == 4)
