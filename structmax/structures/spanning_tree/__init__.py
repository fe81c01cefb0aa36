"""Spanning trees: of a directed graph from its root, or of an undirected graph."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores, families
from structmax.numerics.arcs import (
    ArcConventions,
    check_arcs,
    decode_arcs,
    decode_edges,
    encode_arcs,
    encode_edges,
    usable,
)

NO_RECURSION = (
    "spanning trees are counted by a determinant, not by a recursion whose steps could be others; "
    "ProjectiveTree has one, or ask for `marginals` at a temperature"
)


@dataclass(frozen=True)
class SpanningTree(ArcConventions, AbstractStructure):
    """Spanning trees over N words and a root: each word has one head, another word or the root, without cycles.

    Scores arc (…, N + 1, N + 1), or (…, N + 1, N + 1, L) for `labelled` arcs: arc[h, m] is the score of h as the head
    of m. Node 0 is the root, and words are 1 … N. The root has no head and no word is its own: column 0 and the
    diagonal are ignored. A part is an arc (with its label), so a tree has one part for each word. Arcs may cross; see
    `ProjectiveTree` for those that may not.

    With `directed=False`: spanning trees over N nodes without a root. Scores edge (…, N, N), or (…, N, N, L), and edge
    {i, j} is the part [i, j] with i < j; the diagonal and what is below it are ignored.

    Args:
        lengths: how many words (the root not counted) or nodes each instance has; integers that broadcast to the batch.
        single_root: whether the root has exactly one dependent, as in most treebanks, or any number ≥ 1.
            Required unless `directed=False`, where there is no root.
        labelled: whether the scores have a last dimension of labels.
        directed: whether trees are directed away from a root, or have neither root nor directions.

    Examples:
        >>> import torch, structmax
        >>> arc = torch.zeros(4, 4)
        >>> arc[0, 2] = arc[2, 1] = arc[1, 3] = 1.0
        >>> structure = structmax.SpanningTree(single_root=True)
        >>> structure.decode(structmax.argmax(arc, structure))
        tensor([2, 0, 1])
        >>> structmax.log_partition(torch.zeros(4, 4), structure).exp().round()
        tensor(9.)
        >>> structmax.log_partition(torch.zeros(4, 4), structmax.SpanningTree(directed=False)).exp().round()
        tensor(16.)

    References:
        Tutte 1984, Graph theory, VI.4: the matrix-tree theorem of directed graphs. Koo, Globerson, Carreras and
        Collins 2007, Structured prediction models via the matrix-tree theorem.
    """

    lengths: Tensor | None = None
    single_root: bool | None = field(default=None, kw_only=True)
    labelled: bool = field(default=False, kw_only=True)
    directed: bool = field(default=True, kw_only=True)

    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    intractable: ClassVar[dict[str, str]] = dict.fromkeys(families("smoothed", "semiring"), NO_RECURSION)

    def __post_init__(self) -> None:
        if self.directed and not isinstance(self.single_root, bool):
            raise TypeError(
                f"`single_root` should be True (one word hangs on the root) or False (one or more), "
                f"but is {self.single_root!r}."
            )
        if not self.directed and self.single_root is not None:
            raise TypeError(
                f"`single_root` should not be given with directed=False, where trees have no root, "
                f"but is {self.single_root!r}."
            )

    @property
    def event_dim(self) -> int:
        return 3 if self.labelled else 2

    def check(self, scores: Scores) -> None:
        size, rows = ("N + 1", "row 0 for the root and N words") if self.directed else ("N", "a row for each node")
        check_arcs("SpanningTree", scores, self.labelled, size, rows)
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

    def noise_size(self, scores: Scores) -> int:
        """For each word its head and its label, and which word hangs on the root."""
        words = self.tensors(scores)[0].shape[-2 - self.labelled] - 1
        return (1 + self.labelled) * words + 1

    def enumerate(self, scores: Scores) -> Tensor:
        (arc,) = self.tensors(scores)
        nodes = arc.shape[0]
        size = nodes if self.lengths is None else int(self.lengths) + self.directed
        words = max(size - 1, 0)
        trees = (heads for heads in itertools.product(range(size), repeat=words) if self._is_member(heads))
        names = range(arc.shape[2] if self.labelled else 1)
        labelled = ((heads, labels) for heads in trees for labels in itertools.product(names, repeat=words))
        every = check.few("SpanningTree", labelled, arc.numel())
        members = arc.new_zeros(len(every), *arc.shape)
        for member, (heads, labels) in zip(members, every, strict=True):
            for m, h in enumerate(heads, 1):
                ends = (h, m) if self.directed else (min(h, m), max(h, m))
                member[(*ends, labels[m - 1]) if self.labelled else ends] = 1
        return members

    def _is_member(self, heads: tuple[int, ...]) -> bool:
        """By definition, for the heads of words 1, 2, …; without directions, of nodes on their way to node 0."""
        for m in range(1, len(heads) + 1):
            node, steps = m, 0
            while node != 0 and steps <= len(heads):
                node, steps = heads[node - 1], steps + 1
            if node != 0:
                return False
        return not self.single_root or heads.count(0) == min(1, len(heads))

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
