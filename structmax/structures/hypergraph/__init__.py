"""Derivations of any ordered hypergraph: a user's own dynamic program."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores, outside_transforms
from structmax.recursion import checks
from structmax.recursion.edges import Hyperedges, listed, listed_examples, most_decisions


@dataclass(frozen=True)
class Hypergraph(AbstractStructure):
    """Derivations of an ordered hypergraph, scores (…, P): any dynamic program, with support for every question.

    A hyperedge builds its head from its tails and uses some parts. A derivation of a node takes one of its edges, and
    derives each of its tails in turn; the members are the derivations of the goal, as vectors that count the parts
    they use. List each structure once: two derivations with the same parts count as two.

    Args:
        head: (E,) the node each edge builds. Nodes are numbers 0, 1, … in an order in which tails come before heads.
        tails: (E, T) the nodes it builds on, −1 for none; an edge without tails makes a leaf. (E,) if T is 1.
        part: (E,) or (E, K) the parts it uses, −1 for none. By default edge e uses part e.
        goal: the node whose derivations are the members, by default the last; one for each instance if a tensor
            (that is how lengths work: one hypergraph for the longest, and the goals of the shorter).

    Examples:
        Paths through a diamond, 0 → {1, 2} → 3:

        >>> import torch, structmax
        >>> paths = structmax.Hypergraph(
        ...     head=torch.tensor([0, 1, 2, 3, 3]),
        ...     tails=torch.tensor([-1, 0, 0, 1, 2]),
        ...     part=torch.tensor([-1, 0, 1, 2, 3]),
        ... )
        >>> structmax.marginals(torch.zeros(4), paths)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])

    Reference: Huang (2008), Advanced dynamic programming in semiring and hypergraph frameworks.
    """

    head: Tensor
    tails: Tensor
    part: Tensor | None = None
    goal: int | Tensor | None = None

    event_dim: ClassVar[int] = 1
    per_instance: ClassVar[tuple[str, ...]] = ("goal",)
    recursion = staticmethod(listed)
    examples = staticmethod(listed_examples)
    # made of the fields once: the edges by head, and the number of parts they use
    grouped: ClassVar[Hyperedges]
    size: ClassVar[int]
    # and which of them the derivations of each of the different goals use, (G, size), with each instance's row
    used: ClassVar[Tensor]
    row: ClassVar[Tensor]

    def __post_init__(self) -> None:
        checks.hyperedges(head=self.head, tails=self.tails, part=self.part)
        goal = torch.as_tensor(int(self.head.max()) if self.goal is None else self.goal)
        if check.readable(goal) and not bool(((goal >= 0) & (goal <= self.head.max())).all()):
            raise ValueError(
                f"`goal` should be a node, between 0 and {int(self.head.max())}, "
                f"but lies between {int(goal.min())} and {int(goal.max())}."
            )
        object.__setattr__(self, "goal", goal)
        with outside_transforms():
            object.__setattr__(self, "grouped", self._grouped())
            goals, row = goal.cpu().unique(return_inverse=True)
            self._require_derivable(goals)
            object.__setattr__(self, "size", int(self.grouped.parts.max()) + 1 if self.grouped.parts.numel() else 0)
            object.__setattr__(self, "used", self.grouped.used(goals, self.size))
            object.__setattr__(self, "row", row.to(goal.device))

    @classmethod
    def from_function(cls, edges: Callable[..., Iterator[tuple[int, ...]]], *sizes: int, goal: Any = None) -> Any:
        """From a generator that lists the hyperedges; it is compiled, so that large ones are listed quickly.

        Args:
            edges: `edges(*sizes)` yields (head, part, tail, …), whole numbers, in any order; −1 for none. It should be
                written as Numba can compile it: loops and arithmetic.
            sizes: its arguments.
            goal: as in the constructor.

        Examples:
            All ways to cut n tokens into pieces; part [i, j] scores the piece from i to before j:

            >>> import torch, structmax
            >>> def pieces(n):
            ...     yield 0, -1, -1
            ...     for j in range(1, n + 1):
            ...         for i in range(j):
            ...             yield j, i * (n + 1) + j, i
            >>> cuts = structmax.Hypergraph.from_function(pieces, 4)
            >>> structmax.log_count(torch.zeros(25), cuts).exp()
            tensor(8.0000, dtype=torch.float64)
        """
        from structmax.structures.hypergraph.kernel_numba import _list_edges

        rows = torch.from_numpy(_list_edges(edges, *sizes))
        return cls(rows[:, 0].contiguous(), rows[:, 2:].contiguous(), rows[:, 1].contiguous(), goal)

    def _require_derivable(self, goals: Tensor) -> None:
        """Every goal (G,) can be derived: an edge that is not pruned builds it."""
        counts = self.grouped.first.diff()[goals.long()]
        if bool((counts == 0).any()):
            goal = int(goals[counts == 0][0])
            raise ValueError(
                f"`goal` should be a node that can be derived, but node {goal} cannot: {self._stuck(goal)} "
                "Try edges without tails (tail −1) for the leaves, or another `goal`."
            )

    def _stuck(self, goal: int) -> str:
        """Why a node cannot be derived: the first below it that no edge builds."""
        tails, derivable, node = self.tails.reshape(len(self.head), -1), self.grouped.first.diff() > 0, goal
        while (edges := tails[self.head == node]).numel():
            # tails come before heads, so this ends
            node = next(t for t in edges[0].tolist() if t >= 0 and not derivable[t])
        return f"no edge builds {'it' if node == goal else f'node {node}, on which it depends'}."

    def __repr__(self) -> str:
        nodes, edges = int(self.head.max()) + 1, len(self.head)
        return f"Hypergraph({nodes} nodes, {edges} edges, {self.size} parts)"

    def _grouped(self) -> Hyperedges:
        """The edges by head."""
        part = torch.arange(len(self.head)) if self.part is None else self.part.cpu()
        columns = [t.unsqueeze(1) if t.dim() == 1 else t for t in (self.tails.cpu(), part)]
        return Hyperedges.of(self.head.cpu(), columns[0], columns[1], int(self.head.max()) + 1).pruned()

    def check(self, scores: Scores) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 1 or scores.shape[-1] < self.size:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(
                f"`scores` of this Hypergraph should have shape (…, P) with P ≥ {self.size}, its parts, "
                f"but are {shape}. Try scores.flatten(-2) if your parts form a matrix."
            )

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {**self.grouped._asdict(), "goal": self.expanded("goal", tensors)}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = tensors
        rows = self.expanded("row", tensors)
        return (torch.nn.functional.pad(self.used.to(x.device)[rows], (0, x.shape[-1] - self.size)),)

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        return (True,)

    def noise_size(self, scores: Scores) -> int:
        return max(1, self._decisions)

    @functools.cached_property
    def _decisions(self) -> int:
        assert isinstance(self.goal, Tensor)
        most = most_decisions(self.grouped)
        return max((most[goal] for goal in self.goal.unique().tolist()), default=0)

    def enumerate(self, scores: Scores) -> Tensor:
        (x,) = self.tensors(scores)
        first, tails, parts = (t.tolist() for t in self.grouped)

        def derivations(node: int) -> Iterator[list[int]]:
            for edge in range(first[node], first[node + 1]):
                own = [p for p in parts[edge] if p >= 0]
                for below in itertools.product(*(derivations(t) for t in tails[edge] if t >= 0)):
                    yield own + [p for used in below for p in used]

        assert isinstance(self.goal, Tensor)
        rows = [
            torch.bincount(torch.tensor(used, dtype=torch.int64), minlength=len(x))
            for used in check.few("Hypergraph", derivations(int(self.goal)), len(x))
        ]
        return torch.stack(rows).to(x) if rows else x.new_zeros(0, len(x))

    def decode(self, parts: Scores) -> list[Any]:
        """The indices of the parts in use, each as often as it is used, in nested lists by the leading dimensions."""
        (tensor,) = self.tensors(self.fitting(parts))
        if tensor.dim() > 1:
            return [self.decode(t) for t in tensor]
        return torch.arange(len(tensor), device=tensor.device).repeat_interleave(tensor.long()).tolist()

    def encode(self, indices: list[Any], size: int) -> Tensor:  # type: ignore[override]
        """Parts (…, size) from what `decode` returns."""
        if indices and isinstance(indices[0], list):
            return torch.stack([self.encode(row, size) for row in indices])
        wrong = next((index for index in indices if not 0 <= index < size), None)
        if wrong is not None:
            raise ValueError(
                f"`indices` should be parts from 0 to {size - 1}, but hold {wrong}. "
                "Try `encode(indices, size)` with the size of the scores."
            )
        return torch.bincount(torch.tensor(indices, dtype=torch.int64), minlength=size).to(torch.get_default_dtype())
