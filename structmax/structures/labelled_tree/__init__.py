"""Labels for the nodes of given trees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


class LabelledTreeParts(NamedTuple):
    """The parts of a labelling."""

    # (…, N, C): node n has label c
    unary: Tensor
    # (C, C), (…, C, C) or (…, N, C, C): the parent of node n has label i, and n has label j
    pairwise: Tensor


@dataclass(frozen=True)
class LabelledTree(AbstractStructure):
    """One of C labels for each of the N nodes of a given tree: a tree-shaped graphical model.

    Scores `Parts(unary, pairwise)`: unary (…, N, C); pairwise[i, j] from the label i of a parent to the label j of its
    child, as (C, C) for all, (…, C, C) for each instance or (…, N, C, C), where entry n belongs to node n and its
    parent; those of roots are ignored. A matrix that several nodes share counts how often each pair is used. A
    `LinearChain` is the tree in which each node has the one before as its parent.

    Args:
        parents: the parent of each node, −1 for a root, of which there may be several; integers (N,) for all instances,
            or (…, N). In any order, without cycles. Past the lengths they may hold anything.
        lengths: the number of nodes of each instance, at most N; integers that broadcast to the batch.

    Examples:
        Node 0 has two children, which should differ from it:

        >>> import torch, structmax
        >>> tree = structmax.LabelledTree(torch.tensor([-1, 0, 0]))
        >>> unary = torch.tensor([[0.5, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> best = structmax.argmax((unary, torch.tensor([[-2.0, 0.0], [0.0, -2.0]])), tree)
        >>> tree.decode(best)
        tensor([1, 0, 0])
        >>> best.pairwise
        tensor([[0., 0.],
                [2., 0.]])

    Reference:
        Pearl 1988, Probabilistic reasoning in intelligent systems.
    """

    parents: Tensor
    lengths: Tensor | None = None

    Parts: ClassVar[Any] = LabelledTreeParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("parents", "lengths")
    regularised: ClassVar[tuple[str, ...] | None] = ("unary",)

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or len(scores) != 2:
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a LabelledTree should be two tensors (unary, pairwise), but are {got}. "
                "Without preferences for pairs, let pairwise be torch.zeros(C, C)."
            )
        unary, pairwise = scores
        if unary.dim() < 2 or 0 in unary.shape[-2:]:
            raise ValueError(
                f"`unary` should have shape (…, N, C) with N, C ≥ 1, for node and label, but has {tuple(unary.shape)}."
            )
        *batch, N, C = unary.shape
        shapes = (C, C), (*batch, C, C), (*batch, N, C, C)
        if tuple(pairwise.shape) not in shapes:
            wanted = ", ".join(map(str, dict.fromkeys(shapes[:2]))) + f" or {shapes[2]}"
            raise ValueError(
                f"`pairwise` should have shape {wanted} to match `unary` {tuple(unary.shape)}, but has "
                f"{tuple(pairwise.shape)}. Roots have an entry, too, which is ignored."
            )
        check.same_kind("pairwise", pairwise, "unary", unary)
        check.whole_numbers("parents", self.parents)
        shape = tuple(self.parents.shape)
        if shape[-1:] != (N,) or not check.broadcasts(shape[:-1], batch):
            raise ValueError(
                f"`parents` should have shape (…, {N}), one for each node, where … broadcasts to the batch shape "
                f"{tuple(batch)} of the scores, but has {shape}."
            )
        self.check_fields(batch, (N, C))

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "nodes")}

    @classmethod
    def check_values(cls, event: Sequence[int], fields: Mapping[str, Any]) -> None:
        super().check_values(event, fields)
        parents, lengths, N = fields["parents"], fields["lengths"], event[0]
        if not check.readable(parents) or not (lengths is None or check.readable(lengths)):
            return
        count = torch.tensor(N) if lengths is None else lengths.long()
        real = torch.arange(N) < count.unsqueeze(-1)
        wrong = real & ((parents < -1) | (parents >= count.unsqueeze(-1)))
        if bool(wrong.any()):
            raise ValueError(
                "`parents` should be nodes of the instance, counted from 0, or −1 for a root, but hold "
                f"{int(parents.expand_as(wrong)[wrong][0])}. Try `lengths` to tell nodes from padding, and heads − 1 "
                "where 0 stands for the root."
            )
        # after N steps towards the root all are there, unless they go round
        parents = parents.long()
        above = torch.where(real, parents, -1)
        for _ in range(N):
            above = torch.where(above < 0, -1, parents.expand_as(above).gather(-1, above.clamp_min(0)))
        if bool((above >= 0).any()):
            raise ValueError(
                f"`parents` should form no cycle, but node {int(above[above >= 0][0])} lies on one. "
                "The parent of a root is −1."
            )

    def field_batch_dim(self, name: str) -> int:
        return getattr(self, name).dim() - (name == "parents")

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        unary, pairwise = scores
        return unary, pairwise.expand(*unary.shape[:-2], *pairwise.shape) if pairwise.dim() == 2 else pairwise

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {
            "parents": self.expanded("parents", tensors),
            "lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-2]),
        }

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        unary, pairwise = tensors
        fields = self.fields(tensors)
        here = torch.arange(unary.shape[-2], device=unary.device) < fields["lengths"].unsqueeze(-1)
        below = here & (fields["parents"] >= 0)
        pairs = below if pairwise.dim() > unary.dim() else below.any(-1)
        return here.unsqueeze(-1), pairs[..., None, None]

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        unary, pairwise = tensors
        return False, pairwise.dim() == unary.dim()

    def noise_size(self, scores: Scores) -> int:
        # One number for each label.
        return scores[0].shape[-2]

    def enumerate(self, scores: Scores) -> LabelledTreeParts:
        tensors = self.tensors(scores)
        N, C = tensors[0].shape
        length = N if self.lengths is None else int(self.lengths)
        rows = ([*labels, *[-1] * (N - length)] for labels in product(range(C), repeat=length))
        every = check.few("LabelledTree", rows, sum(t.numel() for t in tensors))
        like = LabelledTreeParts(*(t.unsqueeze(0) for t in tensors))
        return self.encode(torch.tensor(every), like)

    def decode(self, parts: Scores) -> Tensor:
        """The labels, −1 where there is none: (…, N) int64."""
        unary = self.fitting(parts)[0]
        return torch.where((unary > 0).any(-1), unary.argmax(-1), -1)

    def encode(self, labels: Tensor, scores: Scores) -> LabelledTreeParts:  # type: ignore[override]
        """Parts of labels (…, N) as `decode` returns them, shaped for `scores`, whose values do not matter.

        Labels past the lengths may hold anything.
        """
        unary, pairwise = scores
        N, C = unary.shape[-2:]
        check.whole_numbers("labels", labels)
        if labels.dim() < 1 or labels.shape[-1] != N:
            raise ValueError(f"`labels` should have shape (…, {N}), one for each node, not {tuple(labels.shape)}.")
        real = check.inside(self.lengths, N, labels)
        wanted = f"lie between 0 and {C - 1} at every node that counts"
        hint = " Try LabelledTree(parents, lengths) to tell labels from padding."
        here = check.encodable("labels", labels, (labels >= 0) & (labels < C), real, wanted, hint).unsqueeze(-1)
        own = (here & (labels.unsqueeze(-1) == torch.arange(C, device=labels.device))).to(unary.dtype)
        parents = self.parents.to(labels.device, torch.int64).expand(*labels.shape[:-1], N).unsqueeze(-1)
        above = own.gather(-2, parents.clamp(0, N - 1).expand_as(own)) * (parents >= 0)
        if pairwise.dim() > unary.dim():
            return LabelledTreeParts(own, above.unsqueeze(-1) * own.unsqueeze(-2))
        return LabelledTreeParts(own, above.mT @ own)
