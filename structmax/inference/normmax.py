"""The normmax: the simplex with a norm as regulariser, Ω(p) = ‖p‖_α.

The value is the threshold τ itself, since a norm is homogeneous: ⟨p, x⟩ = τ + ‖p‖. With u = x − τ on the support and
q = α/(α−1), p ∝ u^(q−1) and Σ u^q = 1, so dτ = ⟨p, dx⟩ and

    J = (I − p 1ᵀ) D (I − 1 pᵀ),   D = diag(‖p‖ (p/‖p‖)^(2−α)) / (α−1)

which needs nothing but p.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.inference.rule import ask, rule
from structmax.structures.simplex import Simplex


class Normmax(Function):
    """The point p and the value τ."""

    @staticmethod
    def forward(x: Tensor, alpha: float, backend: str) -> tuple[Tensor, Tensor]:
        point, value = ask(Simplex.room, "normmax", (x,), x.dim() - 1, backend, alpha=alpha)
        return point, value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.alpha, _ = inputs
        ctx.save_for_backward(output[0])
        ctx.save_for_forward(output[0])

    @staticmethod
    def backward(ctx: Any, d_p: Tensor, d_value: Tensor) -> tuple[Any, ...]:
        (p,) = ctx.saved_tensors
        return _jacobian_product(p, d_p, ctx.alpha) + d_value.unsqueeze(-1) * p, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, _: None, __: None) -> tuple[Tensor, Tensor]:
        (p,) = ctx.saved_tensors
        return _jacobian_product(p, x_t, ctx.alpha), (p * x_t).sum(-1)


normmax_rule = rule(Normmax)


def _jacobian_product(p: Tensor, v: Tensor, alpha: float) -> Tensor:
    inside = p > 0
    safe = torch.where(inside, p, 1.0)
    norm = torch.where(inside, safe**alpha, 0.0).sum(-1, keepdim=True)
    norm = torch.where(norm > 0, norm, 1.0) ** (1 / alpha)
    scale = torch.where(inside, norm * (safe / norm) ** (2 - alpha) / (alpha - 1), 0.0)
    w = scale * (v - (p * v).sum(-1, keepdim=True))
    return w - p * w.sum(-1, keepdim=True)


def normmax(
    scores: Tensor,
    alpha: float = 2.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The α-normmax: argmax over the simplex of ⟨p, x⟩ − ‖p‖_α. Sparse; flatter inside its support than entmax.

    Args:
        scores: x, any shape; −inf forbids an entry.
        alpha: the order of the norm, a number > 1.
        dim: the dimension that sums to 1.
        mask: True where an entry may be used; broadcasts to the scores.
        lengths: how many leading entries of `dim` may be used; broadcasts to the scores without `dim`.
        backend: "auto" or "reference".

    Returns:
        Probabilities, shape and dtype of the scores.

    Examples:
        >>> import torch, structmax
        >>> structmax.normmax(torch.tensor([0.0, 1.0, 1.5]))
        tensor([0.0000, 0.3110, 0.6890])

    Reference: Blondel, Martins & Niculae 2020, https://arxiv.org/abs/1901.02324; Santos et al. 2024,
    https://arxiv.org/abs/2402.13725.
    """
    _check_order(alpha)
    x = check.last(scores, dim, mask, lengths)
    return check.back(normmax_rule(x, float(alpha), backend)[0], dim)


def normmax_value(x: Tensor, alpha: float, backend: str) -> Tensor:
    """max over the simplex of ⟨p, x⟩ − ‖p‖_α, over the last dimension; its gradient is `normmax`."""
    _check_order(alpha)
    return normmax_rule(x, float(alpha), backend)[1]


def _check_order(alpha: object) -> None:
    if isinstance(alpha, Tensor):
        raise TypeError("`alpha` of normmax should be a number > 1, but is a tensor. `entmax` takes a tensor.")
    check.positive("alpha", alpha, above=1.0, hint=" A norm of order 1 is constant on the simplex.")
