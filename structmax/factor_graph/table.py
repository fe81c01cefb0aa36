"""All joint choices of some variables of many values, each with a score: what a dense factor is over."""

import functools
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax.contract import AbstractStructure, Scores


class Parts(NamedTuple):
    states: Tensor
    joint: Tensor


@dataclass(frozen=True)
class Table(AbstractStructure):
    """One of C_i states for each of k variables: `states` (…, C₁ + … + C_k) and `joint` (…, C₁ · … · C_k).

    Args:
        sizes: C₁, …, C_k.
    """

    sizes: tuple[int, ...]

    event_dim: ClassVar[int] = 1
    Parts: ClassVar[Any] = Parts

    @functools.cached_property
    def choices(self) -> Tensor:
        """For each joint choice its state of each variable, counted through: (C₁ · … · C_k, k)."""
        starts = itertools.accumulate((0, *self.sizes[:-1]))
        ranges = [range(start, start + size) for start, size in zip(starts, self.sizes, strict=True)]
        return torch.tensor(list(itertools.product(*ranges)))

    def check(self, scores: Scores) -> None:
        states, joint = self.tensors(scores)
        wanted = (sum(self.sizes), len(self.choices))
        if (states.shape[-1], joint.shape[-1]) != wanted:
            raise ValueError(
                f"`states` and `joint` should have {wanted} entries, but have shapes {tuple(states.shape)} and "
                f"{tuple(joint.shape)}."
            )

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"choices": self.choices.to(tensors[0].device)}

    def enumerate(self, scores: Scores) -> Scores:
        _, joint = self.tensors(scores)
        return self.encode(torch.arange(len(joint)).to(joint))

    def decode(self, parts: Scores) -> Tensor:
        """Which joint choice: integers (…)."""
        return self.tensors(parts)[1].argmax(-1)

    def encode(self, choice: Tensor) -> Parts:  # type: ignore[override]
        """Parts of joint choices (…)."""
        joint = torch.nn.functional.one_hot(choice.long(), len(self.choices))
        states = torch.nn.functional.one_hot(self.choices[choice.long()], sum(self.sizes)).sum(-2)
        dtype = choice.dtype if choice.is_floating_point() else torch.get_default_dtype()
        return Parts(states.to(dtype), joint.to(dtype))

    @staticmethod
    def argmax(states: Tensor, joint: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        value, best = (joint + states[:, choices].sum(-1)).max(-1)
        feasible = (value > -torch.inf).to(states).unsqueeze(-1)
        chosen = torch.zeros_like(states).scatter_(-1, choices[best], 1.0)
        return chosen * feasible, torch.zeros_like(joint).scatter_(-1, best.unsqueeze(-1), 1.0) * feasible

    @staticmethod
    def log_partition(states: Tensor, joint: Tensor, choices: Tensor) -> Tensor:
        return (joint + states[:, choices].sum(-1)).logsumexp(-1)
