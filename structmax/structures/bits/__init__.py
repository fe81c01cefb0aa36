"""Any subset of n."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


@dataclass(frozen=True)
class Bits(AbstractStructure):
    """Any subset of n items, each in or out by itself: Y = {0, 1}ⁿ, scores (…, n). Its convex hull is the cube.

    An item that is out scores 0. The items are independent: marginals are sigmoids, log Z = Σ log(1 + exp θ_i).

    Args:
        lengths: how many of the n items each instance has, padding after them; integers that broadcast to the batch.

    Examples:
        >>> import torch, structmax
        >>> structmax.marginals(torch.tensor([0.0, 2.0, -torch.inf]), structmax.Bits())
        tensor([0.5000, 0.8808, 0.0000])
        >>> structmax.Bits().decode(structmax.argmax(torch.tensor([-1.0, 2.0, 0.5]), structmax.Bits()))
        tensor([False,  True,  True])
    """

    lengths: Tensor | None = None

    event_dim: ClassVar[int] = 1
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)

    def check(self, scores: Scores) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 1 or scores.shape[-1] < 1:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"`scores` of Bits should have shape (…, n) with n ≥ 1, but are {shape}.")
        self.check_fields(scores.shape[:-1], scores.shape[-1:])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "items")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-1])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = tensors
        return (torch.arange(x.shape[-1], device=x.device) < self.fields(tensors)["lengths"].unsqueeze(-1),)

    def noise_size(self, scores: Scores) -> int:
        return self.tensors(scores)[0].shape[-1]

    def enumerate(self, scores: Scores) -> Tensor:
        (x,) = self.tensors(scores)
        n = len(x) if self.lengths is None else int(self.lengths)
        members = torch.tensor(check.few("Bits", range(2**n), len(x))).unsqueeze(-1) >> torch.arange(n - 1, -1, -1) & 1
        return torch.nn.functional.pad(members.to(x), (0, len(x) - n))

    def decode(self, parts: Scores) -> Tensor:
        """Which items are in: bool (…, n)."""
        (tensor,) = self.tensors(self.fitting(parts))
        return tensor > 0

    def encode(self, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Parts (…, n) of a bool mask (…, n), which may hold anything past the lengths."""
        check.boolean("mask", mask, ", True for the items that are in")
        real = check.inside(self.lengths, mask.shape[-1], mask)
        return (mask if real is None else mask & real).to(torch.get_default_dtype())
