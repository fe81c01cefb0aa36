"""Belief propagation: trees of every kind of factor against enumeration, loopy graphs against its own conditions."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from relaxations import LOGIC, STRUCTURES, TABLES, One, RandomGraph, sizes
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax import FactorGraph, belief_propagation
from structmax.factors import (
    AtMostOne,
    Budget,
    Dense,
    Factor,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Variables,
    Xor,
    XorOut,
)

# Those whose sums are tractable.
WHOLE = tuple(kind for kind in STRUCTURES if "matching" not in kind)
KINDS = (*LOGIC, "pair", *TABLES, *WHOLE)


class RandomTree(RandomGraph):
    """Factors each of which shares one variable, at the most, with those before."""

    def __init__(self, generator: np.random.Generator, kinds: tuple[str, ...]) -> None:
        self.n, self.m, self.factors = 0, 0, []
        for kind in kinds:
            wide, own = (int(generator.integers(2, 5)), 0) if kind in LOGIC else sizes(kind)
            index = list(range(self.n, self.n + wide))
            if self.n and generator.random() < 0.9:
                index = [int(generator.integers(self.n)), *index[:-1]]
            flips = generator.random(wide) < generator.choice([0.0, 0.5])
            if kind in STRUCTURES:
                flips[:] = flips[0]
            order = generator.permutation(wide)
            self.factors.append(One(kind, tuple(index[k] for k in order), tuple(flips.tolist()), self.m))
            self.n, self.m = max(self.n, *(i + 1 for i in index)), self.m + own
        self.graph = FactorGraph(Variables("x", (self.n,)), *map(self._made, self.factors))

    def ask_beliefs(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Log-partition, and marginals of variables and then of own parts."""
        found = belief_propagation(self.scores(flat), self.graph, tol=1e-12)
        assert bool(found.converged.all())
        return found.log_partition, torch.cat([found.marginals["x"], *([found.marginals["own"]] if self.m else [])], -1)


def members(graph: FactorGraph, scores: dict[str, Tensor]) -> Tensor:
    """All members of a graph, flat: (M, parts)."""
    listed = graph.enumerate({name: scores[name] for name in graph.names})
    return torch.cat([listed[name].flatten(1) for name in graph.names], 1)


def enumerated(scores: Tensor, listed: Tensor) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals of scores (B, parts), from all members."""
    if not len(listed):
        return scores.new_full(scores.shape[:-1], -math.inf), torch.zeros_like(scores)
    barred = scores.isneginf()
    worth = scores.masked_fill(barred, 0.0) @ listed.mT
    worth = worth.masked_fill((barred.double() @ listed.mT) > 0, -math.inf)
    value = worth.logsumexp(-1)
    return value, (worth - value.unsqueeze(-1)).exp().nan_to_num(0.0) @ listed


def disagreement(seed: int, first: str, count: int) -> float:
    """By how much a random tree and enumeration differ, with random, large and forbidden scores."""
    generator = np.random.default_rng(seed)
    tree = RandomTree(generator, (first, *map(str, generator.choice(KINDS, count))))
    scores = torch.from_numpy(generator.standard_normal((6, tree.n + tree.m)))
    scores[2:4] *= 8.0
    off = torch.from_numpy(generator.random((3, tree.n + tree.m)) < 0.15)
    scores[3:] = scores[3:].masked_fill(off, -math.inf)
    listed = members(tree.graph, tree.scores(scores[0]))
    value, marginals = tree.ask_beliefs(scores)
    want_value, want = enumerated(scores, listed)
    assert torch.equal(value.isneginf(), want_value.isneginf()), (seed, value, want_value)
    feasible = ~want_value.isneginf()
    errors = (marginals - want).abs().amax(), (value - want_value)[feasible].abs().sum()
    return max(map(float, errors))


@pytest.mark.parametrize("kind", KINDS)
def test_trees(kind):
    """Exact on trees: log-partition and marginals, with −inf and with negated literals."""
    for seed in range(4):
        assert disagreement(seed, kind, 1 + seed % 2) < 1e-10


@pytest.mark.thorough
def test_many_trees():
    for seed in range(1000, 1200):
        assert disagreement(seed, KINDS[seed % len(KINDS)], 2) < 1e-10
