"""An ordered hypergraph: what every dynamic program is made of.

Nodes stand in topological order; a hyperedge builds its head from its tails and uses some parts of the scores:

    value(v) = ⊕ over the edges e of v of  Σ scores[parts of e] + Σ value(tails of e)

with ⊕ = max, logsumexp, … A derivation of a node takes one of its edges, and derives each of its tails in turn. The
derivations of the goal are the structures. An edge without tails makes a leaf; a node without edges cannot be derived.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from structmax import check
from structmax.contract import EXTRAS, GROUPS, RETURNS, outside_transforms
from structmax.parts import flat, unflat
from structmax.recursion import checks

# Edges that have been checked, as long as they live: by `first`, the other two and the largest part.
_largest_parts = WeakTensorKeyDictionary()


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
        """From edges in any order: integers head (E,), tails (E, T) or (E,), parts (E, P) or (E,).

        `nodes` is their number. Edges of one head keep their order. Edges to other nodes raise an error.
        """
        checks.on_host(head=head, tails=tails, parts=parts)
        checks.hyperedges(nodes, head=head, tails=tails, parts=parts)
        order = head.argsort(stable=True)
        first = torch.searchsorted(head[order].long(), torch.arange(nodes + 1))
        columns = (t.unsqueeze(1) if t.dim() == 1 else t for t in (tails, parts))
        return cls(first.int(), *(t[order].int().contiguous() for t in columns))._seen()

    def _seen(self) -> "Hyperedges":
        """The same edges, known to point at nodes there are."""
        largest = int(self.parts.max()) if self.parts.numel() else -1
        _largest_parts[self.first] = self.tails, self.parts, largest
        return self

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

    def used(self, goals: Tensor, size: int) -> Tensor:
        """Which of `size` parts the derivations of each goal (G,) use: (G, size) bool."""
        first, tails, parts = (t.numpy() for t in self)
        nodes = len(first) - 1
        # from the goals down; one row more for tails that are none
        reached = np.zeros((nodes + 1, len(goals)), dtype=bool)
        reached[goals.numpy(), np.arange(len(goals))] = True
        for v in range(nodes - 1, -1, -1):
            reached[tails[first[v] : first[v + 1]]] |= reached[v]
        taken = np.repeat(reached[:-1], np.diff(first), axis=0)
        found = np.zeros((len(goals), size + 1), dtype=bool)
        for goal in range(len(goals)):
            found[goal, parts[taken[:, goal]]] = True
        return torch.from_numpy(found[:, :size])


class Recursion(NamedTuple):
    """A dynamic program over a batch: one hypergraph for all, and each instance's goal."""

    edges: Hyperedges
    # (B,) int64: lengths are goals
    goal: Tensor


def check_recursion(edges: Hyperedges, goal: Tensor, batch: int, size: int) -> None:
    """All that indexes memory: nodes in order, parts among the `size` scores of an instance, goals among the nodes.

    Edges are checked once; goals, which come with the lengths of a batch, each time.
    """
    if not isinstance(edges, Hyperedges):
        raise TypeError(f"the edges should be Hyperedges, but are {type(edges).__name__}. Try Hyperedges.of.")
    known = _largest_parts.get(edges.first) if isinstance(edges.first, Tensor) else None
    if known is None or known[0] is not edges.tails or known[1] is not edges.parts:
        checks.grouped_hyperedges(*edges)
        known = _largest_parts[edges._seen().first]
    if known[2] >= size:
        edge = int((edges.parts == known[2]).any(1).nonzero()[0])
        raise ValueError(
            f"`parts` should be between −1 and {size - 1}, for {size} scores, but an edge of node "
            f"{int((edges.first <= edge).sum()) - 1} has {known[2]}."
        )
    nodes = len(edges.first) - 1
    check.whole_numbers("goal", goal)
    if goal.shape != (batch,):
        raise ValueError(
            f"`goal` should have shape ({batch},), one node for each instance, but has {tuple(goal.shape)}."
        )
    check.between("goal", goal, nodes - 1, f"the last of {nodes} nodes")


def by_recursion(spoken: str, room: Any, name: str, engine: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a structure that lists its hyperedges, by an `engine` for any hypergraph, over flat part vectors.

    The flat vector of an instance is its part tensors one after the other, unless the structure has its own `pack`
    and `unpack`.
    """
    pack, unpack = getattr(room, "pack", _pack), getattr(room, "unpack", _unpack)
    kinds = RETURNS[name]

    def answer(*tensors: Tensor, **keywords: Any) -> tuple[Tensor, ...]:
        extras = {key: keywords.pop(key) for key in EXTRAS if key in keywords}
        # an element of a semiring may have several numbers, with scores for each
        count = len(tensors) // extras.get("width", GROUPS.get(name, 1))
        scores = tensors[:count]
        groups = [tensors[i : i + count] for i in range(0, len(tensors), count)]
        vectors = [pack(*group, **keywords) for group in groups]
        edges, goal = _recursion(spoken, room, vectors[0], scores, keywords)
        try:
            out = engine(*vectors, goal=goal.long(), **edges._asdict(), **extras)
        except ValueError as error:
            if "noise" not in extras:
                raise
            raise ValueError(
                f"`noise_size` of {spoken} should be the largest number of choices a derivation can have, but with "
                f"{extras['noise'].shape[2]} the numbers ran out. Try leaving `noise_size` out: it is then counted."
            ) from error
        answers: list[Tensor] = []
        for kind, value in zip(kinds, (out,) if isinstance(out, Tensor) else out, strict=True):
            answers.extend(unpack(value, *scores, **keywords) if kind.startswith("parts") else (value,))
        return tuple(answers)

    return answer


def _recursion(
    spoken: str, room: Any, vectors: Tensor, scores: tuple[Tensor, ...], fields: dict[str, Any]
) -> Recursion:
    """What the structure lists, checked."""
    try:
        with outside_transforms():
            edges, goal = room.recursion(*scores, **fields)
            check_recursion(edges, goal, *vectors.shape)
    except (TypeError, ValueError) as error:
        raise type(error)(f"In the `recursion` of {spoken}, {error}") from error
    return Recursion(edges, goal)


def noise_size(spoken: str, room: Any, tensors: Sequence[Tensor], fields: dict[str, Any]) -> int:
    """How many numbers a draw takes at most: one for each choice of the derivation that has the most of them."""
    instead = f"{spoken} should have a method `noise_size(scores)` when a transform maps over its fields"
    return max(1, *most_decisions(_edges(spoken, room, tensors, fields, instead)))


def edge_count(spoken: str, room: Any, tensors: Sequence[Tensor], fields: dict[str, Any]) -> int:
    """How many numbers a walk by noisy edges takes: one for each edge."""
    instead = f"The fields of {spoken} should be the same for all instances that a transform maps over"
    return len(_edges(spoken, room, tensors, fields, instead).tails)


def _edges(spoken: str, room: Any, tensors: Sequence[Tensor], fields: dict[str, Any], instead: str) -> Hyperedges:
    """Those that the structure lists for such scores."""
    hidden = (isinstance(t, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(t) for t in fields.values())
    if any(hidden):
        raise ValueError(f"{instead}, since its recursion cannot be read there.")
    with outside_transforms():
        # like the scores, and of no transform
        scores = tuple(torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in tensors)
        vectors = getattr(room, "pack", _pack)(*scores, **fields)
        return _recursion(spoken, room, vectors, scores, fields).edges


def _pack(*tensors: Tensor, **_: Any) -> Tensor:
    return flat(tensors) if len(tensors) > 1 else tensors[0].flatten(1)


def _unpack(vectors: Tensor, *tensors: Tensor, **_: Any) -> tuple[Tensor, ...]:
    """Vectors (B, P) or (B, S, P) to tensors of the scores' shapes, with S after the batch."""
    return unflat(vectors, tensors)


def listed(*_scores: Tensor, first: Tensor, tails: Tensor, parts: Tensor, goal: Tensor) -> Recursion:
    """The recursion of a structure whose fields are the hyperedges themselves."""
    return Recursion(Hyperedges(first, tails, parts), goal)


def listed_examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """One of two edges builds the goal: a call for such a structure, from which others follow."""
    edges = Hyperedges.of(torch.tensor([0, 0]), torch.tensor([[-1], [-1]]), torch.tensor([[0], [1]]), 1)
    yield "log_partition", (x,), {**edges._asdict(), "goal": torch.zeros(len(x), dtype=torch.int64, device=x.device)}


# As long as the edges live.
_decisions = WeakTensorKeyDictionary()


def most_decisions(edges: Hyperedges) -> list[int]:
    """For each node how many nodes with more than one edge a derivation of it has at most."""
    known = _decisions.get(edges.first)
    if known is None:
        first, tails = edges.first.tolist(), edges.tails.tolist()
        # a node that cannot be derived has none
        known = _decisions[edges.first] = [0] * (len(first) - 1)
        for v in range(len(known)):
            own = range(first[v], first[v + 1])
            below = [sum(known[t] for t in tails[e] if t >= 0) for e in own]
            known[v] = max(below, default=0) + (len(own) > 1)
    return known


class Level(NamedTuple):
    """Nodes that depend only on levels before, with as many edges as the fullest of them has."""

    # (n, D, T): positions of the tails in level order; position 0 stands for none, with value 0
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
