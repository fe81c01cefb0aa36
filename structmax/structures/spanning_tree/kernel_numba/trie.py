"""Trees drawn without replacement. Derivations: ../README.md.

A draw decides on the word below the root where there is one only, then on all heads, from the last word to the first,
then on all labels, from the first word to the last. Noise as in walks.py.
"""

import numpy as np
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.labels import best_label
from structmax.structures.spanning_tree.kernel_numba.chain_rule import (
    begin,
    choose,
    join,
    log_sum,
    new_chain,
    read_sums,
    root_at,
    weigh_heads,
)
from structmax.structures.spanning_tree.kernel_numba.edmonds import copy, fill_usable


@compiled()
def _new_trie(decisions):
    """The decisions of all draws so far: node 0 is the beginning of each, a child is one decision more.

    The option a node stands for, the log of the share of its mass not yet drawn, its youngest child, its older
    sibling; and how many nodes there are.
    """
    size = decisions + 1
    links = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    return links, np.empty(size), np.empty(1, np.int64)


@compiled()
def _weigh_rest(trie, node, log_prob, rest):
    """rest = the log of what is left of each option after `node`; returns that of their sum."""
    (option, youngest, older), left, _ = trie
    for i in range(log_prob.size):
        rest[i] = log_prob[i]
    child = youngest[node]
    while child >= 0:
        rest[option[child]] += left[child]
        child = older[child]
    return log_sum(rest, log_prob.size)


@compiled()
def _decide(trie, draw, step, count, uniform):
    """Takes an option of this step that is not exhausted, and the step in the trie; returns the option."""
    (option, youngest, older), left, size = trie
    path, counts, log_probs, rest = draw
    node, counts[step] = path[step], count
    _weigh_rest(trie, node, log_probs[step, :count], rest)
    chosen = choose(rest, count, uniform)
    child = youngest[node]
    while child >= 0 and option[child] != chosen:
        child = older[child]
    if child < 0:
        child = size[0]
        option[child], left[child], youngest[child], older[child] = chosen, 0.0, -1, youngest[node]
        youngest[node] = child
        size[0] += 1
    path[step + 1] = child
    return chosen


@compiled()
def _new_draw(size, labels):
    """What a draw keeps of each decision: the node of the trie it begins at, how many options, their log-probabilities.

    And a vector for what is left of the options.
    """
    options, decisions = max(size, labels), 2 * size
    path, counts = np.empty(decisions + 1, np.int64), np.empty(decisions, np.int64)
    return path, counts, np.empty((decisions, options)), np.empty(options)


@compiled()
def _draw_anew(theta, column, n, labels, roots, noise, chain, trie, draw, tree):
    """Writes the parts of a tree like none before to `tree`, as places in theta; returns its log-probability."""
    node = chain[2][1]
    path, _, log_probs, _ = draw
    width = theta.shape[1]
    path[0] = 0
    for r in range(n + 1):
        log_probs[0, r] = roots[r]
    target = _decide(trie, draw, 0, n + 1, noise[0])
    total, step = roots[target], 1
    tree[target] = target * labels
    words = root_at(column, n, target, chain)
    for v in range(words, 0, -1):
        weigh_heads(chain, words, v, log_probs[step])
        u = _decide(trie, draw, step, words + 1, noise[node[v]])
        join(chain, words, v, u)
        tree[node[v]] = node[u] * width + node[v] * labels
        total += log_probs[step, u]
        step += 1
    for m in range(1, n + 1 if labels > 1 else 0):
        names = theta[tree[m] // width, m * labels : (m + 1) * labels]
        peak = best_label(names)
        for label in range(labels):
            log_probs[step, label] = names[label] - peak
        # normalised near 0, where logarithms have digits
        mass = log_sum(log_probs[step], labels)
        for label in range(labels):
            log_probs[step, label] -= mass
        label = _decide(trie, draw, step, labels, noise[len(column) - 1 + m])
        tree[m] += label
        total += log_probs[step, label]
        step += 1
    _forget(trie, draw, step)
    return total


@compiled()
def _forget(trie, draw, steps):
    """Takes a tree out. What is left is summed up anew, not subtracted: nothing is where all is drawn."""
    path, counts, log_probs, rest = draw
    left = trie[1]
    left[path[steps]] = -np.inf
    for step in range(steps - 1, -1, -1):
        left[path[step]] = _weigh_rest(trie, path[step], log_probs[step, : counts[step]], rest)


@kernel()
def _draw_all(start, stop, arc, noise, lengths, single_root, out, log_prob):
    size, width = arc.shape[1], arc.shape[2]
    labels = width // size
    theta, column = np.empty((size, width)), np.empty((size, size))
    chain, draw, trie = new_chain(size), _new_draw(size, labels), _new_trie(noise.shape[1] * noise.shape[2])
    (_, youngest, _), left, nodes = trie
    tree, roots = np.empty(size, np.int64), np.empty(size)
    for b in range(start, stop):
        n = lengths[b]
        out[b], log_prob[b] = 0, -np.inf
        copy(arc[b], theta, n + 1, width)
        if not read_sums(theta, n, labels, column):
            log_prob[b] = np.nan
            for s in range(out.shape[1]):
                fill_usable(out[b, s], n, labels, np.nan)
            continue
        if not begin(column, n, single_root, chain, roots):
            continue
        left[0], youngest[0], nodes[0] = 0.0, -1, 1
        for s in range(out.shape[1]):
            if left[0] == -np.inf:
                break
            drawn = _draw_anew(theta, column, n, labels, roots, noise[b, s], chain, trie, draw, tree)
            score = 0.0
            for m in range(1, n + 1):
                score += theta[tree[m] // width, tree[m] % width]
            # What follows is worse: sums that are no numbers of the scores' dtype.
            if arc.dtype.type(score) == -np.inf:
                break
            log_prob[b, s] = drawn
            for m in range(1, n + 1):
                out[b, s, tree[m] // width, tree[m] % width] = 1.0


def sample_without_replacement(
    arc: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor]:
    arc, words = as_arcs(arc, lengths, directed)
    drawn, log_prob = arc.new_empty(len(arc), noise.shape[1], *arc.shape[1:]), arc.new_empty(noise.shape[:2])
    arrays = (
        arc.flatten(2).numpy(),
        noise.double().numpy(),
        words.numpy(),
        bool(single_root),
        drawn.flatten(3).numpy(),
        log_prob.numpy(),
    )
    over_rows(_draw_all, len(arc), drawn.numel() * arc.shape[1], *arrays)
    return from_arcs(drawn, directed, arc.dim() == 4), log_prob
