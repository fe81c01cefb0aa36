"""An ordered hypergraph: what every dynamic program is made of.

Nodes stand in topological order; a hyperedge builds its head from its tails and uses some parts of the scores:

    value(v) = ⊕ over the edges e of v of  Σ scores[parts of e] + Σ value(tails of e)

with ⊕ = max, logsumexp, … A derivation of a node takes one of its edges, and derives each of its tails in turn. The
derivations of the goal are the structures. An edge without tails makes a leaf; a node without edges cannot be derived.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from structmax.contract import outside_transforms


class Hyperedges(NamedTuple):
    """The edges, grouped by head. All int32, on the CPU; −1 stands for none."""

    # (V + 1,): the edges of node v are first[v] … first[v + 1] − 1
    first: Tensor
    # (E, T): nodes that come before the head
    tails: Tensor
    # (E, P): positions in the flat part vector of an instance
    parts: Tensor

    @classmethod
    def of(cls, head: Tensor, tails: Tensor, parts: Tensor, nodes: int) -> "Hyperedges":
        """From edges in any order: head (E,), tails (E, T), parts (E, P). Edges of one head keep their order."""
        order = head.argsort(stable=True)
        first = torch.searchsorted(head[order].contiguous(), torch.arange(nodes + 1, dtype=head.dtype))
        return cls(first.int(), tails[order].int().contiguous(), parts[order].int().contiguous())

    def pruned(self) -> "Hyperedges":
        """Without the edges no derivation can take, because one of their tails cannot be derived."""
        first, tails = self.first.tolist(), self.tails.tolist()
        derivable = [False] * (len(first) - 1)
        kept, head = [], []
        for v in range(len(derivable)):
            own = [e for e in range(first[v], first[v + 1]) if all(t < 0 or derivable[t] for t in tails[e])]
            derivable[v] = bool(own)
            kept += own
            head += [v] * len(own)
        index = torch.tensor(kept, dtype=torch.int64)
        return Hyperedges.of(
            torch.tensor(head, dtype=torch.int64), self.tails[index], self.parts[index], len(derivable)
        )


class Recursion(NamedTuple):
    """A dynamic program over a batch: one hypergraph for all, and each instance's goal."""

    edges: Hyperedges
    # (B,) int64: lengths are goals
    goal: Tensor


def listed(*_scores: Tensor, first: Tensor, tails: Tensor, parts: Tensor, goal: Tensor) -> Recursion:
    """The recursion of a structure whose fields are the hyperedges themselves."""
    return Recursion(Hyperedges(first, tails, parts), goal)


def listed_examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """One of two edges builds the goal: a call for such a structure, from which others follow."""
    edges = Hyperedges.of(torch.tensor([0, 0]), torch.tensor([[-1], [-1]]), torch.tensor([[0], [1]]), 1)
    yield "log_partition", (x,), {**edges._asdict(), "goal": torch.zeros(len(x), dtype=torch.int64, device=x.device)}


def most_decisions(edges: Hyperedges, goal: int) -> int:
    """How many nodes with more than one edge a derivation of the goal has at most."""
    first, tails = edges.first.tolist(), edges.tails.tolist()
    # a node that cannot be derived has none
    most = [0] * (goal + 1)
    for v in range(goal + 1):
        own = range(first[v], first[v + 1])
        below = [sum(most[t] for t in tails[e] if t >= 0) for e in own]
        most[v] = max(below, default=0) + (len(own) > 1)
    return most[goal]


class Level(NamedTuple):
    """Nodes that depend only on levels before, with as many edges as the fullest of them has."""

    # (n, D, T): positions of the tails in level order; position 0 is nobody, whose value is 0
    tails: Tensor
    # (n, D, P): positions in the part vector followed by 0 and −inf
    parts: Tensor
    # (n, D): the edge at that place, E where there is none
    edges: Tensor


class Layout(NamedTuple):
    """The hypergraph cut into levels, for array programs: a node's place is 1 + its rank by level."""

    levels: list[Level]
    place: Tensor


_layouts = WeakTensorKeyDictionary()


def layout(edges: Hyperedges, size: int, device: torch.device) -> Layout:
    """The levels for a part vector of `size` entries; kept as long as the edges live."""
    known = _layouts.setdefault(edges.first, {})
    if (size, device) not in known:
        with outside_transforms():
            known[size, device] = _layout(edges, size, device)
    return known[size, device]


def _layout(edges: Hyperedges, size: int, device: torch.device) -> Layout:
    first, tails, parts = (t.numpy().astype(np.int64) for t in edges)
    nodes, count = len(first) - 1, len(tails)
    depth = np.zeros(nodes, dtype=np.int64)
    for v in range(nodes):
        below = tails[first[v] : first[v + 1]]
        below = below[below >= 0]
        depth[v] = depth[below].max() + 1 if below.size else 0
    ranked = np.argsort(depth, kind="stable")
    place = np.empty(nodes, dtype=np.int64)
    place[ranked] = 1 + np.arange(nodes)
    # One row more each, for the edge that is none: it has no tails, and the part whose score is −inf.
    tail_places = np.vstack([np.where(tails < 0, 0, place[tails]), np.zeros((1, tails.shape[1]), dtype=np.int64)])
    nothing = np.full((1, max(1, parts.shape[1])), size)
    nothing[0, 0] = size + 1
    part_places = np.vstack([np.where(parts < 0, size, parts).reshape(count, -1), nothing[:, : max(1, parts.shape[1])]])
    levels = []
    for rank in range(depth.max(initial=-1) + 1):
        level = ranked[depth[ranked] == rank]
        degree = first[level + 1] - first[level]
        offsets = np.arange(max(1, degree.max()))
        index = np.where(offsets < degree[:, None], first[level][:, None] + offsets, count)
        levels.append(Level(*(torch.from_numpy(t).to(device) for t in (tail_places[index], part_places[index], index))))
    return Layout(levels, torch.from_numpy(place).to(device))
