"""Single trees, slow but correct: those that are sampled. Derivations: README.md in this folder.

Tables and trees are those of reference_trees.py. Noise of a draw: noise[0] chooses the word below the root where there
is one only, noise[m] the head of word m, and with labels noise[N + m] the label of its arc.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from structmax.numerics.exact_sum import in_dtype
from structmax.structures.spanning_tree.reference_trees import Table, Tree, parts_of, score_of, tables

# Logarithms of weights, [m][h].
Weights = list[list[float]]

PATIENCE = 20
BITS = 2**64 - 1


def _log_sum(logs: list[float]) -> float:
    peak = max(logs, default=-math.inf)
    return peak if peak == -math.inf else peak + math.log(sum(math.exp(x - peak) for x in logs))


def _choose(logs: list[float], uniform: float) -> int:
    """The first index at which the cumulative weight exceeds `uniform` of the total."""
    peak = max(logs)
    weights = [math.exp(x - peak) for x in logs]
    level, reached, chosen = uniform * sum(weights), 0.0, 0
    for i, weight in enumerate(weights):
        if weight > 0:
            reached, chosen = reached + weight, i
            if reached > level:
                break
    return chosen


# --- Wilson's walks ------------------------------------------------------------------------------------------------


def _mix(z: int) -> int:
    """The finaliser of SplitMix64: a bijection of 64 bits that leaves no trace of its argument."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & BITS
    return z ^ (z >> 31)


def _seed(noise: list[float]) -> int:
    seed = 0
    for x in noise:
        seed = _mix(seed ^ int(x * 2.0**53))
    return seed


def _uniform(seed: int, step: int) -> float:
    return (_mix(seed + step * 0x9E3779B97F4A7C15 & BITS) >> 11) * 2.0**-53


def _walk(weight: Weights, target: int, noise: list[float]) -> dict[int, int] | None:
    """The head of each word in a tree that grows from `target`, from its children on; None after too many steps."""
    words = range(1, len(weight))
    heads: dict[int, int] = {}
    tree = {target}
    seed, step = _seed(noise), 0
    for start in words:
        v = start
        while v not in tree:
            if step == PATIENCE * len(words):
                return None
            heads[v] = _choose(weight[v], _uniform(seed, step))
            v, step = heads[v], step + 1
        v = start
        while v not in tree:
            tree.add(v)
            v = heads[v]
    return heads


# --- the chain rule ------------------------------------------------------------------------------------------------


def _pass_over(weight: Weights, k: int, others: list[int]) -> float:
    """Takes k off the walk among `others`: its heads replace it as the head of its dependents. Returns its rate."""
    rate = _log_sum([weight[k][h] for h in others])
    for m in others:
        if weight[m][k] > -math.inf:
            for h in others:
                if h != m:
                    weight[m][h] = _log_sum([weight[m][h], weight[m][k] - rate + weight[k][h]])
    return rate


def _log_prob_of_roots(weight: Weights) -> list[float]:
    """For each word, of being the only one below the root; all −inf where there is no tree."""
    size = len(weight)
    logs = [-math.inf] * size
    for r in range(1, size):
        # All trees of the words that grow from r: the product of the rates at which words leave.
        left = [[-math.inf if h == 0 else x for h, x in enumerate(row)] for row in weight]
        logs[r] = weight[r][0]
        for k in range(1, size):
            if k != r and logs[r] > -math.inf:
                rate = _log_sum([left[k][h] for h in range(1, size) if h > k or h == r])
                logs[r] += rate
                if rate > -math.inf:
                    _pass_over(left, k, [h for h in range(1, size) if (h > k or h == r) and h != k])
    total = _log_sum(logs)
    return logs if total == -math.inf else [x - total for x in logs]


class _Chain:
    """Heads decided one after the other, from the last word to the first, in a tree that grows from `target`.

    Words with a head have become one with the root of their tree: `merged[m][h]` has all arcs from the tree of h to m.
    """

    def __init__(self, weight: Weights, target: int) -> None:
        self.weight, self.merged = weight, [row.copy() for row in weight]
        self.target = target
        self.open = [m for m in range(1, len(weight)) if m != target]
        self.nodes = [target, *self.open]
        self.tree_of = {u: u for u in self.nodes}

    def log_probs(self) -> list[float]:
        """Of each of the nodes as the head of the last open word v.

        A walk from v is taken after its last visit to v: by its first step, and the probability to escape to the target
        from there before it comes to v again.
        """
        *inner, v = self.open
        left = [row.copy() for row in self.merged]
        rate = {k: _pass_over(left, k, [self.target, v, *inner[:i]]) for i, k in reversed(list(enumerate(inner)))}
        escape = {self.target: 0.0, v: -math.inf}
        for k in inner:
            escape[k] = _log_sum([left[k][h] + chance for h, chance in escape.items()]) - rate[k]
        logs = [self.weight[v][u] + escape[self.tree_of[u]] for u in self.nodes]
        total = _log_sum(logs)
        return [x - total for x in logs]

    def decide(self, choice: int) -> tuple[int, int]:
        """The arc from that node to the last open word."""
        v, head = self.open.pop(), self.nodes[choice]
        root = self.tree_of[head]
        for m in self.open:
            self.merged[m][root] = _log_sum([self.merged[m][root], self.merged[m][v]])
        self.tree_of = {u: root if of == v else of for u, of in self.tree_of.items()}
        return head, v


# --- the questions -------------------------------------------------------------------------------------------------


class _Instance(NamedTuple):
    """Log-probabilities of the node that trees grow from, the root or its only word; weights of the other arcs."""

    roots: list[float]
    weight: Weights


def _prepared(table: Table, single_root: bool) -> _Instance | None:
    """None if there is no tree."""
    weight = [[_log_sum(labels) for labels in row] for row in table]
    if not single_root or len(table) == 1:
        met = [0]
        for h in met:
            met += [m for m in range(1, len(table)) if weight[m][h] > -math.inf and m not in met]
        return _Instance([0.0], weight) if len(met) == len(table) else None
    roots = _log_prob_of_roots(weight)
    return None if max(roots) == -math.inf else _Instance(roots, [[-math.inf, *row[1:]] for row in weight])


def sample(arc: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    size = arc.shape[1]
    arc, used, every = tables(arc, lengths, directed)
    drawn: list[list[Tree] | None] = []
    for table, rows in zip(every, noise.tolist(), strict=True):
        if table is None:
            drawn.append(None)
            continue
        some = _prepared(table, single_root)
        trees = [_draw(table, some, row, size) for row in rows] if some else []
        # a sum of finite scores may be −inf
        drawn.append([tree for tree in trees if score_of(table, tree) > -math.inf])
    return parts_of(arc, used, drawn, noise.shape[1], directed)


def _draw(table: Table, some: _Instance, noise: list[float], size: int) -> Tree:
    target = _choose(some.roots, noise[0])
    heads = _walk(some.weight, target, noise)
    if heads is None:
        # The tree a walk ends in does not depend on its number of steps, so giving up adds no bias.
        heads, chain = {}, _Chain(some.weight, target)
        while chain.open:
            head, m = chain.decide(_choose(chain.log_probs(), noise[chain.open[-1]]))
            heads[m] = head
    if target:
        heads[target] = 0
    return [(h, m, _choose(table[m][h], noise[size - 1 + m]) if len(table[m][h]) > 1 else 0) for m, h in heads.items()]


def sample_without_replacement(
    arc: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor]:
    size = arc.shape[1]
    arc, used, every = tables(arc, lengths, directed)
    log_prob = torch.full(noise.shape[:2], -math.inf, dtype=arc.dtype)
    drawn: list[list[Tree] | None] = []
    for b, (table, rows) in enumerate(zip(every, noise.tolist(), strict=True)):
        if table is None:
            drawn.append(None)
            log_prob[b] = math.nan
            continue
        some, trees = _prepared(table, single_root), []
        # For each beginning of a draw, a tuple of choices: the log of the share of its mass that is left.
        left: dict[tuple[int, ...], float] = {}
        for s, row in enumerate(rows):
            if some and left.get((), 0.0) > -math.inf:
                tree, logs = _draw_anew(table, some, row, size, left)
                # What follows is worse: sums that are no numbers of the scores' dtype.
                if in_dtype(score_of(table, tree), arc.dtype) == -math.inf:
                    break
                trees.append(tree)
                log_prob[b, s] = in_dtype(logs, arc.dtype)
        drawn.append(trees)
    return parts_of(arc, used, drawn, noise.shape[1], directed), log_prob.to(arc.device)


def _draw_anew(
    table: Table, some: _Instance, noise: list[float], size: int, left: dict[tuple[int, ...], float]
) -> tuple[Tree, float]:
    """A tree like none before, and its log-probability; takes it out of what is `left`."""
    path: tuple[int, ...] = ()
    options: list[list[float]] = []

    def rest(logs: list[float]) -> list[float]:
        return [x + left.get((*path, i), 0.0) for i, x in enumerate(logs)]

    def decide(logs: list[float], uniform: float) -> int:
        nonlocal path
        choice = _choose(rest(logs), uniform)
        options.append(logs)
        path = (*path, choice)
        return choice

    target = decide(some.roots, noise[0])
    chain = _Chain(some.weight, target)
    arcs = [(0, target)] if target else []
    while chain.open:
        arcs.append(chain.decide(decide(chain.log_probs(), noise[chain.open[-1]])))
    tree: Tree = []
    for h, m in sorted(arcs, key=lambda arc: arc[1]):
        # normalised near 0, where logarithms have digits
        logs = [x - max(table[m][h]) for x in table[m][h]]
        total = _log_sum(logs)
        label = decide([x - total for x in logs], noise[size - 1 + m]) if len(logs) > 1 else 0
        tree.append((h, m, label))
    log_prob = sum(logs[choice] for logs, choice in zip(options, path, strict=True))
    left[path] = -math.inf
    for logs in reversed(options):
        path = path[:-1]
        left[path] = _log_sum(rest(logs))
    return tree, log_prob
