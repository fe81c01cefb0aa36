"""Sums over all literals that satisfy a factor of logic, by merging literals in a tree.

A literal has a label: 0 where it is off, and another number where it is on, its cost in a sum. Labels of neighbours are
merged into one: that of a sum is the sum, cut off where it no longer matters. What is left at the top is accepted or
not. Weights of labels go up the tree by log-sum-exp, and those of all else come down to the literals: no difference of
large numbers is ever taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structmax.backends import Refusal
from structmax.factor_graph.beliefs.odds import CERTAIN

# Sums that differ by less are the same.
SAME = 1e-9
# How many pairs of labels may meet.
MOST_PAIRS = 2**20


@dataclass(frozen=True)
class Rule:
    """Which labels literals have, how two of them merge (NaN for what nothing can accept), and which are accepted."""

    labels: tuple[float, ...]
    merge: Callable[[np.ndarray, np.ndarray], np.ndarray]
    accept: Callable[[np.ndarray], np.ndarray]


def of_sum(costs: tuple[float, ...], least: float, most: float) -> Rule:
    """least ≤ Σ costs ≤ most."""

    def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = a + b
        return np.minimum(total, max(least, 0.0)) if np.isinf(most) else np.where(total > most + SAME, np.nan, total)

    return Rule(costs, merge, lambda total: (total >= least - SAME) & (total <= most + SAME))


def of_output(count: int) -> Rule:
    """The last of the literals is on where any of the others is: 1 stands for these, 2 for the last."""

    def merge(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.maximum(a % 2, b % 2) + a - a % 2 + b - b % 2

    return Rule((*(1.0,) * (count - 1), 2.0), merge, lambda label: (label == 0) | (label == 3))


class Level(NamedTuple):
    """How pairs of neighbours merge into W nodes. An index past the last label stands for an impossible one.

    For each label of a node the labels of both neighbours, (W, C, P) each; for each label of the left one those of the
    right one and of the node; for each label of the right one those of the left one and of the node.
    """

    up: tuple[Tensor, Tensor]
    left: tuple[Tensor, Tensor]
    right: tuple[Tensor, Tensor]


class Tree(NamedTuple):
    levels: tuple[Level, ...]
    # how many literals there are, and places for them
    literals: int
    width: int
    # (2,), the weights of off and on where there is a single literal
    single: Tensor

    def to(self, device: torch.device) -> Tree:
        def moved(level: Level) -> Level:
            return Level(*(tuple(t.to(device) for t in pair) for pair in level))  # type: ignore[arg-type]

        return Tree(tuple(map(moved, self.levels)), self.literals, self.width, self.single.to(device))


def grown(rule: Rule) -> Tree:
    """The tree of a rule."""
    count = len(rule.labels)
    width = 1 << (count - 1).bit_length()
    # a place without a literal is off
    nodes = [np.array([0.0, label]) for label in rule.labels] + [np.array([0.0])] * (width - count)
    single = torch.from_numpy(np.where(rule.accept(nodes[0]), 0.0, -CERTAIN))
    levels = []
    while len(nodes) > 1:
        pairs = [_merged(a, b, rule, len(nodes) == 2) for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
        widths = max(map(len, nodes)), max(len(labels) for labels, _ in pairs)
        levels.append(_level([places for _, places in pairs], *widths))
        nodes = [labels for labels, _ in pairs]
    return Tree(tuple(levels), count, width, single)


def _merged(a: np.ndarray, b: np.ndarray, rule: Rule, last: bool) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a node, and which label of the left, of the right and of the node go together: (pairs, 3)."""
    if len(a) * len(b) > MOST_PAIRS:
        raise Refusal(
            f"a factor over a sum should have at most {MOST_PAIRS} pairs of different partial sums, but has "
            f"{len(a) * len(b)}. Try costs rounded to few different values, or a Budget."
        )
    left, right = (index.ravel() for index in np.indices((len(a), len(b))))
    merged = rule.merge(a[left], b[right])
    there = rule.accept(merged) if last else ~np.isnan(merged)
    left, right, merged = left[there], right[there], merged[there]
    if last:
        merged = np.zeros_like(merged)
    order = np.argsort(merged, kind="stable")
    gaps = np.diff(merged[order], prepend=-np.inf) > 1e-12 * (1 + np.abs(merged).max(initial=0.0))
    number = np.empty(len(merged), np.int64)
    number[order] = np.cumsum(gaps) - 1
    return merged[order][gaps], np.stack([left, right, number], 1)


def _level(nodes: list[np.ndarray], below: int, above: int) -> Level:
    """Padded indices, for `below` labels of each neighbour and `above` of each node at most."""
    above = max(above, 1)

    def by(key: int, size: int, first: int, second: int) -> tuple[Tensor, Tensor]:
        ends = {0: below, 1: below, 2: above}
        counts = [np.bincount(pairs[:, key], minlength=size) for pairs in nodes]
        shape = len(nodes), size, max(1, *(int(c.max()) for c in counts))
        found = tuple(np.full(shape, ends[other], np.int64) for other in (first, second))
        for w, (pairs, count) in enumerate(zip(nodes, counts, strict=True)):
            pairs = pairs[np.argsort(pairs[:, key], kind="stable")]
            rank = np.arange(len(pairs)) - np.repeat(np.cumsum(count) - count, count)
            for index, other in zip(found, (first, second), strict=True):
                index[w, pairs[:, key], rank] = pairs[:, other]
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])

    return Level(up=by(2, above, 0, 1), left=by(0, below, 1, 2), right=by(1, below, 0, 2))


def _summed(a: Tensor, b: Tensor, index: tuple[Tensor, Tensor]) -> Tensor:
    """log Σ exp(a + b) over pairs of labels: (…, W, labels)."""
    node = torch.arange(len(index[0]), device=a.device)[:, None, None]
    padded = (torch.nn.functional.pad(t, (0, 1), value=-CERTAIN) for t in (a, b))
    first, second = (t[..., node, at] for t, at in zip(padded, index, strict=True))
    return torch.logsumexp(first + second, -1)


def rest(tree: Tree, on: Tensor, off: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What all other literals weigh where a literal is on, and where it is off (…, k), and what all weigh (…).

    Args:
        tree: of a rule for k literals.
        on: log weights (…, k) of literals that are on.
        off: those of literals that are off.
    """
    if not tree.levels:
        single = tree.single.expand(*on.shape, 2)
        return single[..., 1], single[..., 0], torch.logsumexp(single + torch.stack([off, on], -1), -1).squeeze(-1)
    leaves = torch.stack([off, on], -1)
    empty = torch.stack([torch.zeros_like(off[..., :1]), torch.full_like(on[..., :1], -CERTAIN)], -1)
    inside = [torch.cat([leaves, empty.expand(*off.shape[:-1], tree.width - tree.literals, 2)], -2)]
    for level in tree.levels:
        inside.append(_summed(inside[-1][..., ::2, :], inside[-1][..., 1::2, :], level.up))
    outside = torch.zeros_like(inside[-1])
    for level, nodes in zip(reversed(tree.levels), reversed(inside[:-1]), strict=True):
        left = _summed(nodes[..., 1::2, :], outside, level.left)
        right = _summed(nodes[..., ::2, :], outside, level.right)
        outside = torch.stack([left, right], -2).flatten(-3, -2)
    outside = outside[..., : tree.literals, :]
    return outside[..., 1], outside[..., 0], inside[-1].flatten(-2).squeeze(-1)
