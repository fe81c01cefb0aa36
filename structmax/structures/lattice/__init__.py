"""Paths of any directed acyclic graph."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores, outside_transforms
from structmax.recursion.edges import Hyperedges, listed, listed_examples, most_decisions


@dataclass(frozen=True)
class Lattice(AbstractStructure):
    """Paths of a directed acyclic graph from source to sink, scores (…, E), one for each edge.

    Args:
        edges: (E, 2) pairs (from, to) of nodes, in any order; parallel edges are different parts.
        source: the node where paths start.
        sink: the node where they end.

    Examples:
        Paths through a diamond, 0 → {1, 2} → 3, with a way straight through:

        >>> import torch, structmax
        >>> edges = torch.tensor([[0, 1], [0, 2], [1, 3], [2, 3], [0, 3]])
        >>> diamond = structmax.Lattice(edges, source=0, sink=3)
        >>> best = structmax.argmax(torch.tensor([1.0, 2.0, 1.0, 2.0, 3.0]), diamond)
        >>> diamond.decode(best)
        tensor([1, 3])
    """

    edges: Tensor
    source: int
    sink: int

    event_dim: ClassVar[int] = 1
    per_instance: ClassVar[tuple[str, ...]] = ("goal",)
    recursion = staticmethod(listed)
    examples = staticmethod(listed_examples)
    # made of the fields once: the edges by head, and the sink among the nodes in order
    grouped: ClassVar[Hyperedges]
    goal: ClassVar[Tensor]
    # and which edges some path takes, (E,)
    used: ClassVar[Tensor]

    def __post_init__(self) -> None:
        if not isinstance(self.edges, Tensor) or self.edges.dim() != 2 or self.edges.shape[1] != 2:
            shape = tuple(self.edges.shape) if isinstance(self.edges, Tensor) else type(self.edges).__name__
            raise ValueError(f"`edges` should be an integer tensor (E, 2) of pairs (from, to), but is {shape}.")
        if self.edges.is_floating_point():
            raise TypeError(f"`edges` should hold integers, but has dtype {self.edges.dtype}. Try `edges.long()`.")
        check.whole("source", self.source, 0)
        check.whole("sink", self.sink, 0)
        if self.edges.numel() and int(self.edges.min()) < 0:
            raise ValueError(f"`edges` should be between nodes 0, 1, …, but hold {int(self.edges.min())}.")
        with outside_transforms():
            object.__setattr__(self, "grouped", self._grouped())
            object.__setattr__(self, "goal", self._order[self.sink].clone())
            object.__setattr__(self, "used", self.grouped.used(self.goal.unsqueeze(0), len(self.edges))[0])

    @functools.cached_property
    def _order(self) -> Tensor:
        """The rank of each node in an order in which every edge goes up."""
        pairs = self.edges.tolist()
        nodes = max([self.source, self.sink, *(node for pair in pairs for node in pair)]) + 1
        after: list[list[int]] = [[] for _ in range(nodes)]
        waiting = [0] * nodes
        for a, b in pairs:
            after[a].append(b)
            waiting[b] += 1
        ready = [node for node in range(nodes) if not waiting[node]]
        for node in ready:
            for b in after[node]:
                waiting[b] -= 1
                if not waiting[b]:
                    ready.append(b)
        if len(ready) < nodes:
            stuck = next(node for node in range(nodes) if waiting[node])
            raise ValueError(f"`edges` should form no cycle, but node {stuck} lies on one or behind one.")
        rank = torch.empty(nodes, dtype=torch.int64)
        rank[torch.tensor(ready)] = torch.arange(nodes)
        return rank

    def _grouped(self) -> Hyperedges:
        """Each edge builds its end from its start; one edge without tails and parts builds the source."""
        ends = self._order[self.edges.long().cpu()]
        leaf = torch.tensor([-1])
        head = torch.cat([ends[:, 1], self._order[self.source, None]])
        tails = torch.cat([ends[:, 0], leaf]).unsqueeze(1)
        parts = torch.cat([torch.arange(len(ends)), leaf]).unsqueeze(1)
        return Hyperedges.of(head, tails, parts, len(self._order)).pruned()

    def check(self, scores: Scores) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 1 or scores.shape[-1] != len(self.edges):
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"`scores` of this Lattice should have shape (…, {len(self.edges)}), one for each edge, "
                f"but are {shape}."
            )

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {**self.grouped._asdict(), "goal": self.expanded("goal", tensors)}

    def at(self, index: tuple[int, ...], batch: Any) -> "Lattice":
        return self

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (self.used.to(tensors[0].device),)

    def noise_size(self, scores: Scores) -> int:
        return max(1, self._decisions)

    @functools.cached_property
    def _decisions(self) -> int:
        return most_decisions(self.grouped)[int(self._order[self.sink])]

    def enumerate(self, scores: Scores) -> Tensor:
        (x,) = self.tensors(scores)
        pairs = self.edges.tolist()

        def paths(node: int) -> Iterator[list[int]]:
            if node == self.sink:
                yield []
            for edge, (a, b) in enumerate(pairs):
                if a == node:
                    yield from ([edge, *rest] for rest in paths(b))

        rows = [
            self.encode(torch.tensor(path, dtype=torch.int64))
            for path in check.few("Lattice", paths(self.source), len(x))
        ]
        return torch.stack(rows).to(x) if rows else x.new_zeros(0, len(x))

    def decode(self, parts: Scores) -> Tensor:
        """The edges of the path in its order, padded with −1: (…, length of the longest)."""
        (tensor,) = self.tensors(self.fitting(parts))
        along = self._order[self.edges[:, 0].cpu()].to(tensor.device)
        last = int(along.max()) + 1 if len(along) else 0
        order = torch.where(tensor > 0, along, last).argsort(dim=-1, stable=True)
        longest = int((tensor > 0).sum(-1).max()) if tensor.numel() else 0
        chosen = tensor.gather(-1, order) > 0
        return torch.where(chosen, order, -1)[..., :longest]

    def encode(self, path: Tensor) -> Tensor:  # type: ignore[override]
        """Parts (…, E) of edge indices (…, L), in any order, −1 for none."""
        check.whole_numbers("path", path)
        count = len(self.edges)
        valid = (path >= -1) & (path < count)
        wanted = f"be edges from 0 to {count - 1}, or −1 for none"
        here = check.encodable("path", path, valid, None, wanted, " Try the rows of `edges`, counted from 0.")
        parts = torch.zeros(*path.shape[:-1], count + 1, device=path.device)
        return parts.scatter_(-1, torch.where(here & (path >= 0), path, count), 1.0)[..., :-1]
