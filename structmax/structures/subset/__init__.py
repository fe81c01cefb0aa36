"""k of n, or up to k of n."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


@dataclass(frozen=True)
class Subset(AbstractStructure):
    """Subsets of n items with a budget: exactly k of them, or at most `at_most`. Scores (…, n), one for each item.

    Y = {y in {0, 1}ⁿ : Σ y = k}, or Σ y ≤ at_most. An item that is out scores 0. The convex hull is the capped simplex
    {0 ≤ μ ≤ 1, Σ μ = k}.

    Args:
        k: how many items are in. An instance with fewer items has no member.
        at_most: instead of k, how many items may be in; the empty set is a member.
        lengths: how many of the n items each instance has, padding after them; integers that broadcast to the batch.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([1.0, 3.0, 2.0, 0.0])
        >>> structmax.Subset(2).decode(structmax.argmax(x, structmax.Subset(2)))
        tensor([1, 2])
        >>> structmax.marginals(x, structmax.Subset(2))
        tensor([0.3056, 0.8808, 0.6944, 0.1192])
        >>> structmax.log_partition(torch.zeros(4), structmax.Subset(at_most=2)).exp()
        tensor(11.0000)

    Reference: Chen, Dempster & Liu 1994, Weighted finite population sampling to maximize entropy.
    """

    k: int | None = None
    at_most: int | None = field(default=None, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True)

    event_dim: ClassVar[int] = 1
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)

    def __post_init__(self) -> None:
        if (self.k is None) == (self.at_most is None):
            given = "both" if self.k is not None else "none"
            raise TypeError(
                f"a Subset should be given either `k`, how many items are in, or `at_most`, but is given {given}. "
                "Try Subset(k) or Subset(at_most=k)."
            )
        check.whole("k" if self.at_most is None else "at_most", self.size, 0)

    @property
    def size(self) -> Any:
        return self.k if self.at_most is None else self.at_most

    def check(self, scores: Scores) -> None:
        if not isinstance(scores, Tensor) or scores.dim() < 1 or scores.shape[-1] < 1:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"`scores` of a Subset should have shape (…, n) with n ≥ 1, but are {shape}.")
        self.check_fields(scores.shape[:-1], scores.shape[-1:])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "items")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        lengths = self.expanded("lengths", tensors, default=tensors[0].shape[-1])
        return {"lengths": lengths, "size": self.size, "exact": self.at_most is None}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = tensors
        lengths = self.fields(tensors)["lengths"].unsqueeze(-1)
        # Of fewer items than have to be in there is no subset.
        enough = lengths >= (self.size if self.at_most is None else 0)
        return ((torch.arange(x.shape[-1], device=x.device) < lengths) & enough & (self.size > 0),)

    def noise_size(self, scores: Scores) -> int:
        """One number for each item, and with `at_most` one for how many."""
        return self.tensors(scores)[0].shape[-1] + (self.k is None)

    def enumerate(self, scores: Scores) -> Tensor:
        (x,) = self.tensors(scores)
        n = len(x) if self.lengths is None else int(self.lengths)
        sizes = range(self.size if self.at_most is None else 0, min(self.size, n) + 1)
        every = (subset for size in sizes for subset in itertools.combinations(range(n), size))
        subsets = check.few("Subset", every, len(x))
        members = x.new_zeros(len(subsets), len(x))
        for member, subset in zip(members, subsets, strict=True):
            member[list(subset)] = 1
        return members

    def decode(self, parts: Scores) -> Tensor:
        """The items that are in, ascending, −1 for none: (…, min(k, n))."""
        (tensor,) = self.tensors(self.fitting(parts))
        n = tensor.shape[-1]
        item = torch.where(tensor > 0, torch.arange(n, device=tensor.device), n).sort(-1).values[..., : self.size]
        return torch.where(item < n, item, -1)

    def encode(self, items: Tensor, n: int) -> Tensor:  # type: ignore[override]
        """Parts (…, n) of items (…, k) in any order; with `at_most`, −1 for none."""
        check.whole_numbers("items", items)
        size = n if self.lengths is None else self.lengths.to(items.device).unsqueeze(-1)
        valid = (items >= 0) & (items < size)
        wanted = f"be items from 0 to {n - 1}" + ("" if self.lengths is None else ", below the lengths")
        hint = " Try `Subset(at_most=k)`, where −1 stands for none." if self.at_most is None else " −1 stands for none."
        none = torch.zeros_like(valid) if self.at_most is None else items == -1
        here = check.encodable("items", items, valid | none, None, wanted, hint) & ~none
        place = torch.where(here, items, n)
        return torch.zeros(*place.shape[:-1], n + 1, device=items.device).scatter_(-1, place, 1.0)[..., :n]
