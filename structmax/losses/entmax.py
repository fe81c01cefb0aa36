"""Fenchel-Young losses: value + Ω(y) − ⟨x, y⟩, whose gradient is the point minus the target.

For an integer target Ω(y) is a constant of the mapping (0 for entmax, 1 for normmax), and loss and gradient come from
`EntmaxValue` and `EntmaxTotal`: one pass over the scores forward, one backward, no probabilities kept in between. A
small batch has both at once, `SmallTotal`. Class weights, label smoothing, ignored targets and reductions mean what
they mean in `torch.nn.functional.cross_entropy`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from structmax import check
from structmax.half import widened
from structmax.losses.split import Settings, split_loss
from structmax.losses.words import is_dtensor
from structmax.mappings.entmax_rules import NOTHING, entmax_total, entmax_value_rule
from structmax.mappings.normmax import normmax_value

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Of scores, targets, the target that is ignored, and a reduction: the loss Ω*(x) + Ω(e_target) − x[target], or Ω*(x)
# where the target is NOTHING. It is float32 or wider: what is made of it is rounded once, at the end.
Value = Callable[[Tensor, Tensor, int, str], Tensor]


def _fenchel_young(
    scores: Tensor,
    target: Tensor,
    value: Value,
    omega: Callable[[Tensor], Tensor],
    dim: int,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """All losses are this one; `omega` is Ω of soft targets."""
    check.loss_settings(reduction, label_smoothing)
    x = check.last(scores, dim, None, None)
    if weight is not None:
        check.class_weights(weight, x)
    if target.is_floating_point():
        losses, rows = _soft(x, check.soft_target(target, x, dim), value, omega, weight, label_smoothing)
    else:
        target = check.hard_target(target, x, ignore_index)
        if weight is None and label_smoothing == 0:
            losses = value(x, target, ignore_index, reduction)
            return losses if losses.dtype == scores.dtype else losses.to(scores.dtype)
        losses, rows = _hard(x, target, value, weight, ignore_index, label_smoothing)
    if reduction != "none":
        losses = losses.sum() if reduction == "sum" else losses.sum() / rows
    return losses.to(scores.dtype)


def _hard(
    x: Tensor,
    target: Tensor,
    value: Value,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the weights their mean divides by."""
    losses = value(x, target, ignore_index, "none")
    used = target != ignore_index
    safe = torch.where(used, target, 0)
    importance = used.to(losses.dtype) if weight is None else torch.where(used, weight[safe], 0.0)
    smoothed = losses * importance
    if label_smoothing > 0:
        # The loss of class c is this row's plus x[target] − x[c].
        ahead = losses + x.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
        spread = _uniform(x, ahead, weight)
        smoothed = (1 - label_smoothing) * smoothed + label_smoothing * spread
    return torch.where(used, smoothed, 0.0), importance.sum()


def _uniform(x: Tensor, ahead: Tensor, weight: Tensor | None) -> Tensor:
    """The mean over classes c of w_c (ahead − x_c)."""
    x = widened(x)
    weights = torch.ones_like(x[..., :1]).expand_as(x) if weight is None else weight.expand_as(x)
    return ahead * weights.mean(-1) - (weights * x).mean(-1)


def _soft(
    x: Tensor,
    target: Tensor,
    value: Value,
    omega: Callable[[Tensor], Tensor],
    weight: Tensor | None,
    label_smoothing: float,
) -> tuple[Tensor, Tensor]:
    ahead = value(x, torch.full(x.shape[:-1], NOTHING, dtype=torch.int64, device=x.device), 0, "none")
    x, target = widened(x), widened(target)
    weighted = target if weight is None else target * weight
    total = weighted.sum(-1)
    share = weighted / torch.where(total > 0, total, 1.0).unsqueeze(-1)
    # 0 · −inf counts as 0: a forbidden class may have no probability
    inner = torch.where(weighted > 0, weighted * x, 0.0).sum(-1)
    losses = total * (ahead + omega(share)) - inner
    if label_smoothing > 0:
        losses = (1 - label_smoothing) * losses + label_smoothing * _uniform(x, ahead, weight)
    return losses, torch.ones_like(losses).sum()


def _tsallis(p: Tensor, alpha: float) -> Tensor:
    """Ω_α(p) = Σ (p^α − p) / (α(α−1)), Σ p log p at α = 1; 0 at a one-hot."""
    safe = torch.where(p > 0, p, 1.0)
    if alpha == 1.0:
        return (torch.where(p > 0, p, 0.0) * safe.log()).sum(-1)
    return torch.where(p > 0, safe**alpha - safe, 0.0).sum(-1) / (alpha * (alpha - 1))


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float = 1.5,
    dim: int = -1,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    group: "ProcessGroup | None" = None,
    backend: str = "auto",
) -> Tensor:
    """The α-entmax loss Ω*_α(x) + Ω_α(y) − ⟨x, y⟩; gradient entmax(x) − y. Cross-entropy at α = 1, sparsemax at 2.

    Zero as soon as the target's score leads by 1/(α−1): unlike cross-entropy, the loss reaches zero.

    Args:
        scores: x, (…, n) or any shape with classes along `dim`. −inf forbids a class.
        target: integer classes, the scores' shape without `dim`; or probabilities in the scores' shape, for which the
            loss is zero at its minimum (at α = 1 the KL divergence: `cross_entropy` minus the target's entropy).
        alpha: a number > 0.
        dim: the dimension of the classes.
        weight: (n,) weights of the classes.
        ignore_index: integer targets of this value are ignored and get no gradient.
        reduction: "mean" (weighted, as in `cross_entropy`), "sum" or "none".
        label_smoothing: share of the target spread evenly over the classes.
        group: the processes among which the classes are split: the scores here are this process's slice of every row,
            of any size, in the order of the processes. Loss and gradient are those of the whole rows. Targets count all
            classes and are integers, and `alpha` is at most 2. A DTensor that is split along `dim` needs no group.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the scores' shape without `dim` for "none".

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, 0.0]])
        >>> structmax.entmax_loss(x, torch.tensor([2, 0]), alpha=1.5, reduction="none")
        tensor([0.0000, 0.5635])

    Reference: Blondel, Martins & Niculae 2020, https://arxiv.org/abs/1901.02324.
    """
    check.positive("alpha", alpha, hint=" alpha = 1 is cross-entropy, 2 the sparsemax loss.")
    if isinstance(alpha, Tensor):
        raise TypeError("`alpha` of a loss should be a number, but is a tensor. Try `float(alpha)`.")

    if group is not None or is_dtensor(scores):
        check.loss_settings(reduction, label_smoothing)
        if weight is not None:
            raise ValueError("`weight` should be None where the classes are split over processes, but is given.")
        settings = Settings(float(alpha), ignore_index, reduction, label_smoothing, backend)
        return split_loss(scores, target, dim, group, settings)

    def value(x: Tensor, index: Tensor, ignored: int, reduction: str) -> Tensor:
        if reduction == "none":
            return entmax_value_rule(x, index, float(alpha), ignored, backend)[0]
        return entmax_total(x, index, float(alpha), ignored, reduction == "mean", backend)

    return _fenchel_young(
        scores,
        target,
        value,
        lambda y: _tsallis(y, float(alpha)),
        dim,
        weight,
        ignore_index,
        reduction,
        label_smoothing,
    )


def sparsemax_loss(
    scores: Tensor,
    target: Tensor,
    dim: int = -1,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """The sparsemax loss: `entmax_loss` at α = 2. Zero as soon as the target's score leads by 1.

    Args:
        scores: as in `entmax_loss`.
        target: as in `entmax_loss`.
        dim: the dimension of the classes.
        weight: (n,) weights of the classes.
        ignore_index: integer targets of this value are ignored and get no gradient.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target spread evenly over the classes.
        backend: "auto", "numba", "triton" or "reference".

    Examples:
        >>> import torch, structmax
        >>> structmax.sparsemax_loss(torch.tensor([[0.0, 0.5]]), torch.tensor([1]))
        tensor(0.0625)

    Reference: Martins & Astudillo 2016, https://arxiv.org/abs/1602.02068.
    """
    return entmax_loss(
        scores,
        target,
        2.0,
        dim,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        backend=backend,
    )


def entmax15_loss(
    scores: Tensor,
    target: Tensor,
    dim: int = -1,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """The 1.5-entmax loss: `entmax_loss` at α = 1.5. Zero as soon as the target's score leads by 2.

    Args:
        scores: as in `entmax_loss`.
        target: as in `entmax_loss`.
        dim: the dimension of the classes.
        weight: (n,) weights of the classes.
        ignore_index: integer targets of this value are ignored and get no gradient.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target spread evenly over the classes.
        backend: "auto", "numba", "triton" or "reference".

    Examples:
        >>> import torch, structmax
        >>> structmax.entmax15_loss(torch.tensor([[0.0, 2.0]]), torch.tensor([1]))
        tensor(0.)
    """
    return entmax_loss(
        scores,
        target,
        1.5,
        dim,
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        backend=backend,
    )


def normmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: float = 2.0,
    dim: int = -1,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """The α-normmax loss: the Fenchel-Young loss of Ω = ‖·‖_α; gradient normmax(x) − y.

    Args:
        scores: as in `entmax_loss`.
        target: as in `entmax_loss`.
        alpha: the order of the norm, a number > 1.
        dim: the dimension of the classes.
        weight: (n,) weights of the classes.
        ignore_index: integer targets of this value are ignored and get no gradient.
        reduction: "mean", "sum" or "none".
        label_smoothing: share of the target spread evenly over the classes.
        backend: "auto" or "reference".

    Examples:
        >>> import torch, structmax
        >>> structmax.normmax_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor(0.2929)
    """

    def value(x: Tensor, index: Tensor, ignored: int, reduction: str) -> Tensor:
        used = index != ignored
        # an ignored row may hold anything
        x = widened(x).masked_fill(~used.unsqueeze(-1), 0.0)
        ahead = normmax_value(x, alpha, backend)
        chosen = x.gather(-1, torch.where(used, index, 0).clamp_min(0).unsqueeze(-1)).squeeze(-1)
        # A forbidden target costs +inf, also in a row without other entries.
        loss = torch.where(ahead == -torch.inf, torch.inf, ahead - chosen + 1)
        losses = torch.where(used, torch.where(index == NOTHING, ahead, loss), 0.0)
        return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.sum() / used.sum()

    def norm(y: Tensor) -> Tensor:
        return torch.linalg.vector_norm(y, alpha, -1)

    return _fenchel_young(scores, target, value, norm, dim, weight, ignore_index, reduction, label_smoothing)
