"""Transition sequences that build binary trees."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores

SHIFT, REDUCE = 0, 1


@dataclass(frozen=True)
class ShiftReduce(AbstractStructure):
    """Sequences of 2n − 1 actions that build a binary tree over n leaves: another view of `BinaryTree`.

    Shift puts the next leaf on a stack; reduce joins the two topmost trees of it into one. Scores (…, 2N − 1, 2) are
    for [step, 0] shift and [step, 1] reduce. Impossible actions, reducing fewer than two trees or shifting when
    no leaf is left, are never chosen, whatever their scores.

    Args:
        lengths: the number of leaves of each instance, at most N; integers that broadcast to the batch.

    Examples:
        >>> import torch, structmax
        >>> structure = structmax.ShiftReduce()
        >>> scores = torch.zeros(5, 2)
        >>> scores[2, 1] = 1.0
        >>> best = structmax.argmax(scores, structure)
        >>> structure.decode(best)
        tensor([0, 0, 1, 0, 1])
        >>> structmax.BinaryTree().decode(structure.to_spans(best)).tolist()
        [[0, 2], [0, 1], [0, 0], [1, 1], [2, 2]]

    Reference:
        Aho and Ullman 1972, The theory of parsing, translation and compiling; Yogatama, Blunsom, Dyer, Grefenstette and
        Ling 2017, Learning to compose words into sentences with reinforcement learning.
    """

    lengths: Tensor | None = None

    event_dim: ClassVar[int] = 2
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)

    def check(self, scores: Scores) -> None:
        check.floating("scores", scores)
        assert isinstance(scores, Tensor)
        if scores.dim() < 2 or scores.shape[-1] != 2 or scores.shape[-2] % 2 == 0:
            raise ValueError(
                "`scores` of a ShiftReduce should have shape (…, 2N − 1, 2), for shift and reduce at each step, but "
                f"have {tuple(scores.shape)}."
            )
        self.check_fields(scores.shape[:-2], scores.shape[-2:])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": ((event[0] + 1) // 2, "leaves")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=(tensors[0].shape[-2] + 1) // 2)}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = tensors
        step = torch.arange(x.shape[-2], device=x.device)
        leaves = self.fields(tensors)["lengths"].unsqueeze(-1)
        shift = (step < 2 * leaves - 2) | ((step == 0) & (leaves > 0))
        return (torch.stack([shift, (step >= 2) & (step < 2 * leaves - 1)], -1),)

    def noise_size(self, scores: Scores) -> int:
        # Sequences are drawn from their end: the first three steps and the last one leave no choice.
        return max(1, self.tensors(scores)[0].shape[-2] - 4)

    def enumerate(self, scores: Scores) -> Tensor:
        (tensor,) = self.tensors(scores)
        length = (len(tensor) + 1) // 2 if self.lengths is None else int(self.lengths)
        sequences = (actions + [-1] * (len(tensor) - len(actions)) for actions in _sequences(length, 0))
        every = check.few("ShiftReduce", sequences, tensor.numel())
        return self.encode(torch.tensor(every)).to(tensor)

    def decode(self, parts: Scores) -> Tensor:
        """The action of each step, 0 shift and 1 reduce, padded with −1: (…, 2N − 1) int64."""
        (tensor,) = self.tensors(self.fitting(parts))
        return torch.where((tensor > 0).any(-1), tensor.argmax(-1), -1)

    def encode(self, actions: Tensor) -> Tensor:  # type: ignore[override]
        """Parts (…, 2N − 1, 2) of actions (…, 2N − 1), which may hold anything past the lengths."""
        check.whole_numbers("actions", actions)
        steps = None if self.lengths is None else 2 * self.lengths - 1
        real = check.inside(steps, actions.shape[-1], actions)
        wanted = "be 0, shift, or 1, reduce, at each of the 2n − 1 steps"
        hint = " Try ShiftReduce(lengths) to tell steps from padding."
        here = check.encodable("actions", actions, (actions >= 0) & (actions < 2), real, wanted, hint).unsqueeze(-1)
        one_hot = actions.unsqueeze(-1) == torch.arange(2, device=actions.device)
        return (here & one_hot).to(torch.get_default_dtype())

    def allowed(self, actions: Tensor, leaves: int | Tensor) -> Tensor:
        """Which actions may come next: (…, 2) bool, all False when the tree is built.

        For policies that score a step by what was built before it: `structmax.incremental` has them, step by step.

        Args:
            actions: those made, (…, t), as `decode` returns them.
            leaves: how many leaves there are; a number, or integers that broadcast to the batch.
        """
        shifts, reduces = (actions == SHIFT).sum(-1), (actions == REDUCE).sum(-1)
        return possible(shifts, shifts - reduces, leaves)

    def to_spans(self, parts: Scores) -> Tensor:
        """The tree, as parts (…, N, N) of `BinaryTree`."""
        actions = self.decode(parts)
        batch, steps = actions.shape[:-1], actions.shape[-1]
        actions = actions.reshape(batch.numel(), steps)
        N = (steps + 1) // 2
        rows = torch.arange(len(actions), device=actions.device)
        # Of each tree on the stack its first leaf; the last row and column are for steps that make no tree.
        stack = actions.new_zeros(len(actions), N + 1)
        height, shifted = actions.new_zeros(len(actions)), actions.new_zeros(len(actions))
        spans = self.tensors(parts)[0].new_zeros(len(actions), N + 1, N + 1)
        for action in actions.unbind(1):
            stack[rows, torch.where(action == SHIFT, height, N)] = shifted
            height += (action == SHIFT).long() - (action == REDUCE).long()
            shifted += action == SHIFT
            made = action >= 0
            first = stack[rows, (height - 1).clamp_min(0)]
            spans[rows, torch.where(made, first, N), torch.where(made, shifted - 1, N)] = 1
        return spans[:, :N, :N].reshape(*batch, N, N)

    def from_spans(self, spans: Tensor) -> Tensor:
        """Parts (…, 2N − 1, 2) of the tree whose parts of `BinaryTree` are `spans` (…, N, N)."""
        present = spans > 0
        N = spans.shape[-1]
        # After a leaf comes a reduction for each wider span that ends with it.
        ending = present.triu(1).sum(-2)
        leaf = present.diagonal(dim1=-2, dim2=-1)
        # the step that shifts each leaf
        shift = torch.arange(N, device=spans.device) + ending.cumsum(-1) - ending
        steps = torch.arange(2 * N - 1, device=spans.device)
        is_shift = ((shift.unsqueeze(-1) == steps) & leaf.unsqueeze(-1)).any(-2)
        in_use = steps < 2 * leaf.sum(-1, keepdim=True) - 1
        return torch.stack([is_shift, in_use & ~is_shift], -1).to(spans.dtype)


def possible(read: Tensor, height: Tensor, leaves: int | Tensor) -> Tensor:
    """Whether one may shift, and reduce, with so many leaves read and trees on the stack: (…, 2) bool."""
    return torch.stack([read < leaves, height >= 2], -1)


def _sequences(leaves: int, height: int) -> Iterator[list[int]]:
    """All that is left to do with so many leaves to shift, and so many trees on the stack."""
    if leaves == 0 and height <= 1:
        yield []
    if height >= 2:
        yield from ([REDUCE, *rest] for rest in _sequences(leaves, height - 1))
    if leaves:
        yield from ([SHIFT, *rest] for rest in _sequences(leaves - 1, height + 1))
