"""Probabilities with bounds: csparsemax, csoftmax and the budget.

p = clip(g(x − τ), l, u) with Σ p = T, where g is the identity (½‖p‖²) or exp (entropy). With s = g′ on the free entries
(1, or p), 0 elsewhere, and ⟨v⟩ = Σ s v / Σ s,

    d_x = s (v − ⟨v⟩)     d_l = v − ⟨v⟩ at the lower bound     d_u = v − ⟨v⟩ at the upper bound     d_T = ⟨v⟩

Where the bounds alone decide, nothing is free: p does not move with x, and ⟨v⟩ is 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.calling import ask

ROOM = "structmax.structures.capped_simplex"


class Capped(Function):
    """p, and where each entry is: −1 lower, 0 free, 1 upper."""

    @staticmethod
    def forward(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, name: str, backend: str) -> tuple[Tensor, ...]:
        return tuple(ask(ROOM, name, (x, lower, upper, total), x.dim() - 1, backend))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.soft = inputs[4] == "csoftmax"
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_p: Tensor, _: Tensor) -> tuple[Any, ...]:
        p, bound = ctx.saved_tensors
        s, share = _weights(p, bound, ctx.soft)
        mean = (share * d_p).sum(-1, keepdim=True)
        centred = d_p - mean
        at_lower, at_upper = (bound < 0).to(p.dtype), (bound > 0).to(p.dtype)
        return s * centred, at_lower * centred, at_upper * centred, mean.squeeze(-1), None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, lower_t: Tensor, upper_t: Tensor, total_t: Tensor, *_: None) -> tuple[Any, ...]:
        p, bound = ctx.saved_tensors
        s, share = _weights(p, bound, ctx.soft)
        zero = torch.zeros_like(p)
        fixed = torch.where(bound < 0, zero if lower_t is None else lower_t, zero)
        fixed = fixed + torch.where(bound > 0, zero if upper_t is None else upper_t, zero)
        moved = s * (zero if x_t is None else x_t) + fixed
        missing = moved.sum(-1, keepdim=True) - (0 if total_t is None else total_t.unsqueeze(-1))
        return moved - share * missing, None


capped_rule = rule(Capped)


def _weights(p: Tensor, bound: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
    """s and s / Σ s (zeros where nothing is free)."""
    s = torch.where(bound == 0, p if soft else torch.ones_like(p), 0.0)
    total = s.sum(-1, keepdim=True)
    return s, s / torch.where(total > 0, total, 1.0)


def _capped(
    name: str,
    scores: Tensor,
    lower: float | Tensor,
    upper: float | Tensor,
    budget: float | Tensor | None,
    dim: int,
    mask: Tensor | None,
    lengths: Tensor | None,
    backend: str,
) -> Tensor:
    """Sums to `budget`, or to 1."""
    x = check.last(scores, dim, mask, lengths)
    where = check.axis(scores, dim)
    usable = x > -torch.inf
    wide = torch.promote_types(x.dtype, torch.float32)
    low, high = (
        check.per_entry(bound_name, bound, scores).to(wide).movedim(where, -1).masked_fill(~usable, 0.0)
        for bound_name, bound in (("lower", lower), ("upper", upper))
    )
    sums = check.per_row("budget", 1.0 if budget is None else budget, x, dim)
    sums = sums if isinstance(sums, Tensor) else torch.full(x.shape[:-1], sums, dtype=wide, device=x.device)
    # A row without a usable entry is all zeros by convention, whatever it should sum to.
    sums = torch.where(usable.any(-1), sums, 0.0)
    check.feasible_bounds(low, high, sums, is_budget=budget is not None)
    return check.back(capped_rule(x, low, high, sums, name, backend)[0], dim)


def csparsemax(
    scores: Tensor,
    lower: float | Tensor = 0.0,
    upper: float | Tensor = 1.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The constrained sparsemax: Euclidean projection onto {lower ≤ p ≤ upper, Σ p = 1}.

    Args:
        scores: x, any shape; −inf forbids an entry.
        lower: numbers that broadcast to the scores; receives a gradient.
        upper: likewise. Bounds that no p can meet raise an error.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.csparsemax(torch.tensor([0.0, 1.0, 3.0]), upper=torch.tensor([1.0, 1.0, 0.5]))
        tensor([0.0000, 0.5000, 0.5000])

    Reference: Malaviya, Ferreira & Martins 2018, https://aclanthology.org/P18-2059.
    """
    return _capped("csparsemax", scores, lower, upper, None, dim, mask, lengths, backend)


def csoftmax(
    scores: Tensor,
    lower: float | Tensor = 0.0,
    upper: float | Tensor = 1.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The constrained softmax: the point of {lower ≤ p ≤ upper, Σ p = 1} nearest to softmax(x) in KL divergence.

    Args:
        scores: x, any shape; −inf forbids an entry.
        lower: numbers that broadcast to the scores; receives a gradient.
        upper: likewise. Bounds that no p can meet raise an error.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "triton" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.csoftmax(torch.tensor([0.0, 0.0, 3.0]), upper=0.5)
        tensor([0.2500, 0.2500, 0.5000])

    Reference: Martins & Kreutzer 2017, https://aclanthology.org/D17-1036.
    """
    return _capped("csoftmax", scores, lower, upper, None, dim, mask, lengths, backend)


def budget(
    scores: Tensor,
    budget: float | Tensor = 2.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The budget mapping: Euclidean projection onto {0 ≤ p ≤ 1, Σ p = budget}, the hull of the k-subsets.

    Args:
        scores: x, any shape; −inf forbids an entry.
        budget: a number ≥ 0, or a tensor as `alpha` in `entmax`; receives a gradient. At most the number of usable
            entries.
        dim: the dimension that sums to `budget`.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto", "triton" or "reference".

    Returns:
        Shape and dtype of the scores, entries in [0, 1].

    Examples:
        >>> import torch, structmax
        >>> structmax.budget(torch.tensor([0.0, 0.2, 3.0, -1.0]), budget=2)
        tensor([0.4000, 0.6000, 1.0000, 0.0000])
    """
    check.positive("budget", budget, or_zero=True)
    return _capped("csparsemax", scores, 0.0, 1.0, budget, dim, mask, lengths, backend)
