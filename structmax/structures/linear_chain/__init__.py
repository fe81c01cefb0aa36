"""Label sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise as neighbours
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


class LinearChainParts(NamedTuple):
    """The parts of a label sequence."""

    # (…, N, C): label c at position n
    unary: Tensor
    # (C, C), (…, C, C) or (…, N − 1, C, C): label i at n is followed by label j at n + 1
    pairwise: Tensor
    # (C,) or (…, C): only in scores, for the first and the last label
    start: Tensor | None = None
    end: Tensor | None = None


@dataclass(frozen=True)
class LinearChain(AbstractStructure):
    """Sequences of N labels out of C.

    Scores `Parts(unary, pairwise, start, end)`: unary (…, N, C); pairwise[i, j] from label i to the next label j, as
    (C, C) for all, (…, C, C) for each instance or (…, N − 1, C, C) for each position; and, if wanted, scores (C,) or
    (…, C) for the first and the last label. Answers have `unary` and `pairwise`; a matrix that several positions share
    counts how often each transition is used, instance by instance.

    Args:
        lengths: the number of positions of each instance, at most N; integers that broadcast to the batch.
        keep: instead of lengths, which positions count, (…, N) bool, in any pattern: the others, such as later pieces
            of a word, are skipped. The transition into a kept position n is scored by pairwise[n − 1].

    Examples:
        The best of the sequences whose labels differ from their neighbours':

        >>> import torch, structmax
        >>> unary = torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
        >>> pairwise = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]])
        >>> chain = structmax.LinearChain()
        >>> chain.decode(structmax.argmax((unary, pairwise), chain))
        tensor([0, 1, 0])

    Reference:
        Lafferty, McCallum and Pereira 2001, Conditional random fields.
    """

    lengths: Tensor | None = None
    keep: Tensor | None = None

    Parts: ClassVar[Any] = LinearChainParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("lengths", "keep")
    regularised: ClassVar[tuple[str, ...] | None] = ("unary",)

    def __post_init__(self) -> None:
        if self.lengths is not None and self.keep is not None:
            raise ValueError(
                "Either `lengths` or `keep` should be given, but both are. "
                "Positions past a length are not kept: try `keep & (torch.arange(N) < lengths.unsqueeze(-1))`."
            )

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or not 2 <= len(scores) <= 4:
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a {type(self).__name__} should be (unary, pairwise) or "
                f"Parts(unary, pairwise, start, end), but are {got}. Without preferences for transitions, let pairwise "
                "be torch.zeros(C, C)."
            )
        unary, pairwise, start, end = LinearChainParts(*scores)
        if unary.dim() < 2 or 0 in unary.shape[-2:]:
            raise ValueError(
                "`unary` should have shape (…, N, C) with N, C ≥ 1, for position and label, "
                f"but has {tuple(unary.shape)}."
            )
        *batch, N, C = unary.shape
        self._fits("pairwise", pairwise, unary, (C, C), (*batch, C, C), (*batch, N - 1, C, C))
        for name, ends in (("start", start), ("end", end)):
            if ends is not None:
                self._fits(name, ends, unary, (C,), (*batch, C))
        self.check_fields(batch, unary.shape[-2:])
        if self.keep is not None:
            check.mask_like("keep", self.keep, unary[..., 0])

    @staticmethod
    def _fits(name: str, tensor: Tensor, unary: Tensor, *shapes: tuple[int, ...]) -> None:
        if tuple(tensor.shape) not in shapes:
            *others, last = map(str, dict.fromkeys(shapes))
            wanted = f"{', '.join(others)} or {last}" if others else last
            N, C = unary.shape[-2:]
            hint = " Did you include a start transition?" if tensor.shape[-3:] == (N, C, C) else ""
            raise ValueError(
                f"`{name}` should have shape {wanted} to match `unary` {tuple(unary.shape)}, "
                f"but has {tuple(tensor.shape)}.{hint}"
            )
        check.same_kind(name, tensor, "unary", unary)

    def field_batch_dim(self, name: str) -> int:
        return getattr(self, name).dim() - (name == "keep")

    def adds(self, scores: Scores) -> bool:
        return not isinstance(scores, Tensor) and any(ends is not None for ends in scores[2:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        unary, pairwise, start, end = LinearChainParts(*scores)
        pairwise = pairwise.expand(*unary.shape[:-2], *pairwise.shape) if pairwise.dim() == 2 else pairwise
        if self.keep is not None:
            order, transitions = self._order(unary)
            unary = unary.gather(-2, _along(order, unary, -2))
            if pairwise.dim() > unary.dim():
                pairwise = pairwise.gather(-3, _along(transitions, pairwise, -3))
        if start is not None or end is not None:
            unary = self._with_ends(unary, start, end)
        return unary, pairwise

    def parts(self, tensors: tuple[Tensor, ...]) -> LinearChainParts:
        unary, pairwise = tensors
        if self.keep is not None:
            order, transitions = self._order(unary)
            unary = torch.zeros_like(unary).scatter(-2, _along(order, unary, -2), unary)
            if pairwise.dim() > unary.dim():
                pairwise = torch.zeros_like(pairwise).scatter(-3, _along(transitions, pairwise, -3), pairwise)
        return LinearChainParts(unary, pairwise)

    def _order(self, unary: Tensor) -> tuple[Tensor, Tensor]:
        """Which position, kept ones first, and which transition comes to each place: (…, N) and (…, N − 1).

        The transition into the position at place k comes to place k − 1. Position 0 has none; where it is skipped,
        it gets that of the first position kept, which is not used.
        """
        assert self.keep is not None
        order = (~self.keep.to(unary.device)).expand(unary.shape[:-1]).long().argsort(dim=-1, stable=True)
        first, later = order[..., :1], order[..., 1:]
        return order, torch.where(later == 0, first, later) - 1

    def _with_ends(self, unary: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
        """Scores of the first and the last label, added to those of their positions."""
        position = torch.arange(unary.shape[-2], device=unary.device)
        lengths = self.fields((unary,))["lengths"].unsqueeze(-1)
        for scores, place in ((start, 0 * lengths), (end, lengths - 1)):
            if scores is not None:
                here = (position == place).unsqueeze(-1)
                # not a product: 0 · −inf
                unary = torch.where(here, unary + scores.unsqueeze(-2), unary)
        return unary

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "positions")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        unary = tensors[0]
        if self.keep is not None:
            return {"lengths": self.keep.to(unary.device).sum(-1).expand(unary.shape[:-2])}
        return {"lengths": self.expanded("lengths", tensors, default=unary.shape[-2])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        unary, pairwise = tensors
        here = torch.arange(unary.shape[-2], device=unary.device) < self.fields(tensors)["lengths"].unsqueeze(-1)
        pairs = here[..., 1:] if pairwise.dim() > unary.dim() else here[..., 1:].any(-1)
        return here.unsqueeze(-1), pairs[..., None, None]

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        unary, pairwise = tensors
        return False, pairwise.dim() == unary.dim()

    def noise_size(self, scores: Scores) -> int:
        # One number for each label.
        return scores[0].shape[-2]

    def enumerate(self, scores: Scores) -> Any:
        unary, pairwise = scores[:2]
        N, C = unary.shape
        positions = list(range(N if self.lengths is None else int(self.lengths)))
        if self.keep is not None:
            positions = self.keep.nonzero().flatten().tolist()
        sequences = product(range(C), repeat=len(positions))
        every = check.few(type(self).__name__, sequences, unary.numel() + pairwise.numel())
        y_unary, y_pairwise = (t.new_zeros(len(every), *t.shape) for t in (unary, pairwise))
        for k, labels in enumerate(every):
            for n, label in zip(positions, labels, strict=True):
                y_unary[k, n, label] = 1
            for n, (i, j) in zip(positions[1:], neighbours(labels), strict=True):
                y_pairwise[(k, i, j) if pairwise.dim() == 2 else (k, n - 1, i, j)] += 1
        return LinearChainParts(y_unary, y_pairwise)

    def decode(self, parts: Scores) -> Tensor:
        """The labels, −1 where there is none: (…, N) int64."""
        unary = self.fitting(parts)[0]
        return torch.where((unary > 0).any(-1), unary.argmax(-1), -1)

    def encode(self, labels: Tensor, scores: Scores) -> LinearChainParts:  # type: ignore[override]
        """Parts of labels (…, N) as `decode` returns them, shaped for `scores`, whose values do not matter.

        What `lengths` or `keep` leave out is padding and may hold anything, such as −1 or −100. Its parts, and those of
        transitions from or to it, are 0.
        """
        unary, pairwise = scores[:2]
        N, C = unary.shape[-2:]
        check.whole_numbers("labels", labels)
        if labels.dim() < 1 or labels.shape[-1] != N:
            raise ValueError(f"`labels` should have shape (…, {N}), one for each position, not {tuple(labels.shape)}.")
        real = check.inside(self.lengths, N, labels) if self.keep is None else self.keep.to(labels.device)
        wanted = f"lie between 0 and {C - 1} at every position that counts"
        hint = f" Try `{type(self).__name__}` with lengths=… or keep=… to tell labels from padding."
        here = check.encodable("labels", labels, (labels >= 0) & (labels < C), real, wanted, hint).unsqueeze(-1)
        unary_of = (here & (labels.unsqueeze(-1) == torch.arange(C, device=labels.device))).to(unary.dtype)
        if self.keep is not None:
            order, _ = self._order(unary_of)
            unary_of = unary_of.gather(-2, _along(order, unary_of, -2))
        before, after = unary_of[..., :-1, :], unary_of[..., 1:, :]
        per_position = pairwise.dim() > unary.dim()
        pairwise_of = before.unsqueeze(-1) * after.unsqueeze(-2) if per_position else before.mT @ after
        return self.parts((unary_of, pairwise_of))


def _along(index: Tensor, tensor: Tensor, dim: int) -> Tensor:
    """`index` for `tensor.gather(dim, …)`, the same for all that follows."""
    after = -dim - 1
    return index.reshape(*index.shape, *(1,) * after).expand(*index.shape, *tensor.shape[tensor.dim() - after :])
