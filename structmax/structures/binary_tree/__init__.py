"""Binary trees over a sequence of leaves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.numerics.spans import decode_spans, encode_spans, real_spans


@dataclass(frozen=True)
class BinaryTree(AbstractStructure):
    """Binary bracketings of a sequence of leaves: every span of two or more leaves is split into two.

    Scores (…, N, N): entry [i, j] is for the span from leaf i to leaf j, both included; entries with i > j are ignored.
    The parts of a tree over n leaves are its 2n − 1 spans: the leaves [i, i], the whole [0, n − 1] and what is between.
    Labelled scores are (…, N, N, C), and each span has one of C labels.

    Args:
        lengths: the number of leaves of each instance, at most N; integers that broadcast to the batch.
        labelled: whether spans have labels.

    Examples:
        >>> import torch, structmax
        >>> scores = torch.zeros(3, 3)
        >>> scores[1, 2] = 1.0
        >>> structure = structmax.BinaryTree()
        >>> structmax.marginals(scores, structure)
        tensor([[1.0000, 0.2689, 1.0000],
                [0.0000, 1.0000, 0.7311],
                [0.0000, 0.0000, 1.0000]])
        >>> structure.decode(structmax.argmax(scores, structure)).tolist()
        [[0, 2], [0, 0], [1, 2], [1, 1], [2, 2]]

    Reference:
        Baker 1979, Trainable grammars for speech recognition; Stern, Andreas and Klein 2017, A minimal span-based
        neural constituency parser.
    """

    lengths: Tensor | None = None
    labelled: bool = field(default=False, kw_only=True)

    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)

    @property
    def event_dim(self) -> int:
        return 3 if self.labelled else 2

    def check(self, scores: Scores) -> None:
        check.floating("scores", scores)
        assert isinstance(scores, Tensor)
        rank = self.event_dim
        event = scores.shape[-rank:]
        if scores.dim() < rank or 0 in event or event[0] != event[1]:
            wanted = "(…, N, N, C) with N, C ≥ 1" if self.labelled else "(…, N, N) with N ≥ 1"
            kind = "labelled BinaryTree" if self.labelled else "BinaryTree"
            other = rank - 1 if self.labelled else rank + 1
            fits = scores.dim() >= other and scores.shape[-other] == scores.shape[1 - other]
            hint = f" Try BinaryTree(..., labelled={not self.labelled})." if fits else ""
            raise ValueError(f"`scores` of a {kind} should have shape {wanted}, but have {tuple(scores.shape)}.{hint}")
        self.check_fields(scores.shape[:-rank], event)

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "leaves")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-self.event_dim])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        spans = real_spans(tensors[0].shape[-self.event_dim], self.fields(tensors)["lengths"])
        return (spans.unsqueeze(-1) if self.labelled else spans,)

    def noise_size(self, scores: Scores) -> int:
        # One number for each span of more than two leaves, and one for each label if there is a choice.
        event = self.tensors(scores)[0].shape[-self.event_dim :]
        labels = 2 * event[0] - 1 if self.labelled and event[-1] > 1 else 0
        return max(event[0] - 2, 0) + labels

    def enumerate(self, scores: Scores) -> Tensor:
        (tensor,) = self.tensors(scores)
        N = tensor.shape[0]
        length = N if self.lengths is None else int(self.lengths)
        trees = _bracketings(0, length - 1) if length else [[]]
        labels = range(tensor.shape[2] if self.labelled else 1)
        labelled = ((spans, chosen) for spans in trees for chosen in product(labels, repeat=len(spans)))
        every = check.few("BinaryTree", labelled, tensor.numel())
        members = tensor.new_zeros(len(every), *tensor.shape)
        for member, (spans, chosen) in zip(members, every, strict=True):
            for (i, j), label in zip(spans, chosen, strict=True):
                member[(i, j, label) if self.labelled else (i, j)] = 1
        return members

    def decode(self, parts: Scores) -> Tensor:
        """The spans, a parent before its children and the left child before the right, padded with −1.

        Returns:
            (…, 2N − 1, 2) int64, rows (first leaf, last leaf), or (…, 2N − 1, 3) with the label as third.
        """
        (tensor,) = self.tensors(self.fitting(parts))
        return decode_spans(tensor, self.labelled)

    def encode(self, spans: Tensor, scores: Scores) -> Tensor:  # type: ignore[override]
        """Parts of spans as `decode` returns them, in any order, shaped for `scores`, whose values do not matter.

        A tree over n leaves has 2n − 1 spans; the other rows are −1.
        """
        (tensor,) = self.tensors(scores)
        return encode_spans(spans, tensor, self.lengths, "BinaryTree", self.labelled)


def _bracketings(i: int, j: int) -> Iterator[list[tuple[int, int]]]:
    """The spans of every binary tree over the leaves i … j."""
    if i == j:
        yield [(i, j)]
    for k in range(i, j):
        for left in _bracketings(i, k):
            for right in _bracketings(k + 1, j):
                yield [(i, j), *left, *right]
