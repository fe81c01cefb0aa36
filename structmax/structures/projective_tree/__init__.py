"""Projective dependency trees."""

import itertools
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
    encode_arcs,
    is_projective_tree,
    usable,
)


@dataclass(frozen=True)
class ProjectiveTree(ArcConventions, AbstractStructure):
    """Projective dependency trees over N words: every word has one head, another word or the root, and no arcs cross.

    Scores arc (…, N + 1, N + 1), or (…, N + 1, N + 1, L) for `labelled` arcs: arc[h, m] is the score of h as the head
    of m. Node 0 is the root, and words are 1 … N. The root has no head and no word is its own: column 0 and the
    diagonal are ignored. A part is an arc (with its label), so a tree has one part for each word.

    Projective means that a head governs, directly or through others, every word between itself and each of its
    dependents; arcs drawn above the sentence do not cross, those from the root included.

    Args:
        lengths: how many words each instance has, the root not counted; integers that broadcast to the batch.
        single_root: whether the root has exactly one dependent, as in most treebanks, or any number ≥ 1.
        labelled: whether the scores have a last dimension of labels.

    Examples:
        >>> import torch, structmax
        >>> arc = torch.zeros(4, 4)
        >>> arc[0, 2] = arc[2, 1] = arc[2, 3] = 1.0
        >>> structure = structmax.ProjectiveTree(single_root=True)
        >>> structure.decode(structmax.argmax(arc, structure))
        tensor([2, 0, 2])
        >>> structmax.log_partition(torch.zeros(4, 4), structure).exp()
        tensor(7.0000)

    References:
        Eisner 1996, Three new probabilistic models for dependency parsing: an exploration.
    """

    lengths: Tensor | None = None
    single_root: bool = field(kw_only=True)
    labelled: bool = field(default=False, kw_only=True)

    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)

    def __post_init__(self) -> None:
        if not isinstance(self.single_root, bool):
            raise TypeError(
                f"`single_root` should be True (one word hangs on the root) or False (one or more), "
                f"but is {self.single_root!r}."
            )

    @property
    def event_dim(self) -> int:
        return 3 if self.labelled else 2

    def check(self, scores: Scores) -> None:
        check_arcs("ProjectiveTree", scores, self.labelled, "N + 1", "row 0 for the root and N words")
        assert isinstance(scores, Tensor)
        self.check_fields(scores.shape[: -self.event_dim], scores.shape[-self.event_dim :])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0] - 1, "words without the root")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        words = tensors[0].shape[-2 - self.labelled] - 1
        return {"lengths": self.expanded("lengths", tensors, default=words), "single_root": self.single_root}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arcs = usable(tensors[0].shape[-2 - self.labelled], self.fields(tensors)["lengths"])
        return (arcs.unsqueeze(-1) if self.labelled else arcs,)

    def noise_size(self, scores: Scores) -> int:
        """For each arc: which word is taken, where the words up to it part, and its label."""
        words = self.tensors(scores)[0].shape[-2 - self.labelled] - 1
        return max(1, (3 if self.labelled else 2) * words)

    def enumerate(self, scores: Scores) -> Tensor:
        (arc,) = self.tensors(scores)
        words = arc.shape[0] - 1
        n = words if self.lengths is None else int(self.lengths)
        trees = (h for h in itertools.product(range(n + 1), repeat=n) if is_projective_tree(h, self.single_root))
        names = range(arc.shape[2] if self.labelled else 1)
        labelled = ((heads, labels) for heads in trees for labels in itertools.product(names, repeat=n))
        every = check.few("ProjectiveTree", labelled, arc.numel())
        members = arc.new_zeros(len(every), *arc.shape)
        for member, (heads, labels) in zip(members, every, strict=True):
            for m, h in enumerate(heads, 1):
                member[(h, m, labels[m - 1]) if self.labelled else (h, m)] = 1
        return members

    def decode(self, parts: Scores) -> Any:
        """The head of each word, 0 for the root, −1 past the length: (…, N), word m at m − 1.

        With labels: heads and labels, both (…, N).
        """
        (tensor,) = self.tensors(self.fitting(parts))
        return decode_arcs(tensor, self.labelled)

    def encode(  # type: ignore[override]
        self, heads: Tensor, labels: Tensor | None = None, count: int | None = None
    ) -> Tensor:
        """Parts (…, N + 1, N + 1) of heads (…, N). With labels (…, N), of which `count` there are: a last dimension.

        Words past the length are padding, and may have any head and label.
        """
        return encode_arcs(heads, self.labelled, labels, count, self.lengths)
