"""One of n."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


@dataclass(frozen=True)
class Simplex(AbstractStructure):
    """One of n: Y = {e_1, …, e_n}, scores (…, n). Its convex hull is the probability simplex.

    Examples:
        >>> import torch, structmax
        >>> structmax.marginals(torch.zeros(4), structmax.Simplex())
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    event_dim: ClassVar[int] = 1
    fronted: ClassVar[tuple[str, ...]] = ("structmax.structures.capped_simplex", "structmax.structures.proximal")

    def check(self, scores: Scores) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 1 or scores.shape[-1] < 1:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"`scores` of a Simplex should have shape (…, n) with n ≥ 1, but are {shape}.")

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (torch.ones((), dtype=torch.bool, device=tensors[0].device),)

    def noise_size(self, scores: Scores) -> int:
        return 1

    def enumerate(self, scores: Scores) -> Tensor:
        (tensor,) = self.tensors(scores)
        return torch.eye(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)

    def decode(self, parts: Scores) -> Tensor:
        """The index of the chosen entry, −1 where nothing is chosen: (…,)."""
        (tensor,) = self.tensors(self.fitting(parts))
        return torch.where(tensor.sum(-1) > 0, tensor.argmax(-1), -1)

    def encode(self, index: Tensor, n: int) -> Tensor:  # type: ignore[override]
        """One-hot parts (…, n) of indices (…,) from 0 to n − 1; all zeros for −1."""
        check.whole_numbers("index", index)
        column = index.unsqueeze(-1)
        hint = f" Try `encode(index, n)` with n > {n}, or the right index."
        check.encodable("index", column, (column >= 0) & (column < n), None, f"lie between 0 and {n - 1}", hint)
        return (torch.arange(n, device=index.device) == column).to(torch.get_default_dtype())
