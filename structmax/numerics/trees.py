"""What the structures made of arcs share: trees over the words of a sentence, or over nodes without directions."""

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.numerics.arcs import (
    ArcConventions,
    check_arcs,
    decode_arcs,
    decode_edges,
    encode_arcs,
    encode_edges,
    usable,
)


@dataclass(frozen=True)
class AbstractTree(ArcConventions, AbstractStructure):
    """Trees below node 0. Subclasses say which of them, and answer the questions about them."""

    lengths: Tensor | None = None
    single_root: bool | None = field(default=None, kw_only=True)
    labelled: bool = field(default=False, kw_only=True)
    directed: bool = field(default=True, kw_only=True)

    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)

    def __post_init__(self) -> None:
        if not isinstance(self.single_root, bool) and (self.directed or self.single_root is not None):
            one, any_number = (
                ("one word hangs on the root", "one or more")
                if self.directed
                else ("node 0 has one edge", "any number, as without it")
            )
            raise TypeError(
                f"`single_root` should be True ({one}) or False ({any_number}), but is {self.single_root!r}."
            )

    @property
    def event_dim(self) -> int:
        return 3 if self.labelled else 2

    def check(self, scores: Scores) -> None:
        size, rows = ("N + 1", "row 0 for the root and N words") if self.directed else ("N", "a row for each node")
        check_arcs(type(self).__name__, scores, self.labelled, size, rows)
        assert isinstance(scores, Tensor)
        self.check_fields(scores.shape[: -self.event_dim], scores.shape[-self.event_dim :])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        directed = fields["directed"]
        return {"lengths": (event[0] - 1, "words without the root") if directed else (event[0], "nodes")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        nodes = tensors[0].shape[-2 - self.labelled]
        return {
            "lengths": self.expanded("lengths", tensors, default=nodes - self.directed),
            "single_root": bool(self.single_root),
            "directed": self.directed,
        }

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nodes, lengths = tensors[0].shape[-2 - self.labelled], self.fields(tensors)["lengths"]
        arcs = usable(nodes, lengths) if self.directed else usable(nodes, lengths - 1).triu(1)
        return (arcs.unsqueeze(-1) if self.labelled else arcs,)

    def enumerate(self, scores: Scores) -> Tensor:
        (arc,) = self.tensors(scores)
        nodes = arc.shape[0]
        size = nodes if self.lengths is None else int(self.lengths) + self.directed
        words = max(size - 1, 0)
        trees = (heads for heads in itertools.product(range(size), repeat=words) if self._is_tree(heads))
        names = range(arc.shape[2] if self.labelled else 1)
        labelled = ((heads, labels) for heads in trees for labels in itertools.product(names, repeat=words))
        every = check.few(type(self).__name__, labelled, arc.numel())
        members = arc.new_zeros(len(every), *arc.shape)
        for member, (heads, labels) in zip(members, every, strict=True):
            for m, h in enumerate(heads, 1):
                ends = (h, m) if self.directed else (min(h, m), max(h, m))
                member[(*ends, labels[m - 1]) if self.labelled else ends] = 1
        return members

    def _is_tree(self, heads: tuple[int, ...]) -> bool:
        paths = to_the_root(heads)
        return is_tree(heads, paths, bool(self.single_root)) and self._is_member(heads, paths)

    @abstractmethod
    def _is_member(self, heads: tuple[int, ...], paths: list[list[int]]) -> bool:
        """Whether a tree is one of these: the heads of words 1, 2, …, and the ways from them to the root."""

    def decode(self, parts: Scores) -> Any:
        """The head of each word, 0 for the root, −1 past the length: (…, N), word m at m − 1.

        Without directions: the edges (…, N − 1, 2), rows of −1 past the last. With labels: heads or edges, and labels
        (…, N) or (…, N − 1).
        """
        (tensor,) = self.tensors(self.fitting(parts))
        return (decode_arcs if self.directed else decode_edges)(tensor, self.labelled)

    def encode(  # type: ignore[override]
        self, tree: Tensor, labels: Tensor | None = None, count: int | None = None
    ) -> Tensor:
        """The inverse, parts of heads or edges; with labels, of which `count` there are: a last dimension.

        What is past the lengths is padding and may hold anything.
        """
        return (encode_arcs if self.directed else encode_edges)(tree, self.labelled, labels, count, self.lengths)


# --- trees by definition, from the heads of words 1, 2, …; without directions, of nodes on their way to node 0


def to_the_root(heads: Sequence[int]) -> list[list[int]]:
    """For each word: itself, its head, the head of that, and so on to the root; or n steps in a circle."""
    paths = []
    for m in range(1, len(heads) + 1):
        path = [m]
        while path[-1] != 0 and len(path) <= len(heads):
            path.append(heads[path[-1] - 1])
        paths.append(path)
    return paths


def is_tree(heads: Sequence[int], paths: list[list[int]], single_root: bool) -> bool:
    """Whether all paths lead to the root, on which one word hangs if `single_root`."""
    return all(path[-1] == 0 for path in paths) and (not single_root or heads.count(0) == min(1, len(heads)))


def is_projective(heads: Sequence[int], paths: list[list[int]]) -> bool:
    """Whether each head is on the paths of all words between itself and its dependent."""
    arcs = [(h, m) for m, h in enumerate(heads, 1)]
    return all(h in paths[k - 1] for h, m in arcs for k in range(min(h, m) + 1, max(h, m)))


def is_projective_tree(heads: Sequence[int], single_root: bool) -> bool:
    paths = to_the_root(heads)
    return is_tree(heads, paths, single_root) and is_projective(heads, paths)
