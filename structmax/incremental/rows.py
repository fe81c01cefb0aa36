"""Sequences side by side: how far each is, the model's state for it, and how they are moved, followed and put together.

A model is called once for each step, with all of them: w · B rows, B instances in each of w places.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from structmax import check
from structmax.half import widened
from structmax.incremental.choices import log_probs
from structmax.outline import outline


class Sequences(NamedTuple):
    """`actions` (…, B, steps), integers, −1 past the end, and their `log_probs` (…, B), which have gradients.

    A sequence that breaks off, or is not there, has log-probability −inf and all its actions −1.
    """

    actions: Tensor
    log_probs: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Distinct(NamedTuple):
    """`Sequences` that are all distinct, in the order drawn, and `perturbed` (k, B): `log_probs` with Gumbel noise.

    The noise of all sequences there are is independent, and those drawn have the highest sums with it.
    """

    actions: Tensor
    log_probs: Tensor
    perturbed: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Rows:
    """R sequences that a model goes on with, R a multiple of its B instances."""

    def __init__(self, model: Any, copies: int) -> None:
        self.model = model
        self.rows = copies * len(model.begin)
        # the last action of each, the model's state, how many actions each is to have, and whether it goes on
        self.last = self._repeated(model.begin, copies)
        self.state = tree_map(lambda leaf: self._repeated(leaf, copies), model.state)
        self.lengths = self._repeated(model.most, copies)
        self.over = self.lengths == 0
        self.number = 0

    def _repeated(self, leaf: Any, copies: int) -> Any:
        if not has_rows(leaf):
            return leaf
        return leaf.expand(copies, *leaf.shape).reshape(copies * len(leaf), *leaf.shape[1:])

    def all_over(self) -> bool:
        """Whether there is nothing left to do, where this can be read."""
        return check.has_values(self.over) and bool(self.over.all())

    def log_probs(self) -> Tensor:
        """Of the actions that may come next: (R, A), −inf for those of sequences that are over."""
        scores, self.state = self.model.step(self.last, self.state)
        self._check(scores)
        scores = widened(scores)
        return log_probs(scores, ~(scores.isneginf() | self.over.unsqueeze(-1)))

    def _check(self, scores: Any) -> None:
        check.floating("the scores of a step", scores)
        if scores.dim() != 2 or len(scores) != self.rows or not scores.shape[1]:
            raise ValueError(
                f"`step` should return scores of shape ({self.rows}, A), a row for each action it got, but returned "
                f"{tuple(scores.shape)}."
            )
        check_state(self.state, self.rows, "the state that `step` returns")

    def pick(self, origin: Tensor) -> None:
        """Goes on with the rows at these places (w, B) of the old ones."""
        index = (origin * origin.shape[1] + torch.arange(origin.shape[1], device=origin.device)).flatten()
        self.last, self.lengths, self.over = (t.index_select(0, index) for t in (self.last, self.lengths, self.over))
        self.state = tree_map(lambda leaf: leaf.index_select(0, index) if has_rows(leaf) else leaf, self.state)
        self.rows = len(index)

    def take(self, action: Tensor, lost: Tensor) -> Tensor:
        """Adds an action (R,) to each that is not over, and returns it, −1 for others; those that are lost end."""
        action = action.masked_fill(self.over | lost, -1)
        self.last = torch.where(action >= 0, action, self.last)
        self.number += 1
        ended = self.lengths <= self.number
        if self.model.end is not None:
            ended = ended | (action == self.model.end)
        self.over = self.over | lost | ended
        return action


def has_rows(leaf: Any) -> bool:
    """Whether this part of a state belongs to the rows: numbers and the like do not."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def check_state(state: Any, rows: int, name: str) -> None:
    def check_leaf(leaf: Any) -> None:
        if has_rows(leaf) and len(leaf) != rows:
            raise ValueError(
                f"The tensors of {name} should have the {rows} sequences in front, but one has the shape "
                f"{tuple(leaf.shape)}. Try transpose(0, 1) for the states of nn.GRU and nn.LSTM."
            )

    tree_map(check_leaf, state)


def stacked(actions: Sequence[Tensor], log_probs: Tensor, steps: int) -> Tensor:
    """Actions of each step, each (…, B), as (…, B, steps), all −1 where the log-probability is −inf."""
    nothing = torch.full((*log_probs.shape, 0), -1, device=log_probs.device)
    together = torch.stack(tuple(actions), -1) if actions else nothing
    whole = torch.nn.functional.pad(together, (0, steps - together.shape[-1]), value=-1)
    return whole.masked_fill(log_probs.isneginf().unsqueeze(-1), -1)
