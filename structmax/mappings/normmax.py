"""The normmax: the simplex with a norm as regulariser, Ω(p) = ‖p‖_α.

The value is the threshold τ itself, since a norm is homogeneous: ⟨p, x⟩ = τ + ‖p‖. With u = x − τ on the support and
q = α/(α−1), p ∝ u^(q−1) and Σ u^q = 1, so dτ = ⟨p, dx⟩ and

    J = (I − p 1ᵀ) D (I − 1 pᵀ),   D = diag(‖p‖ (p/‖p‖)^(2−α)) / (α−1)

which needs nothing but p. With r = (p/‖p‖)^α, which sums to 1, u = (p/‖p‖)^(α−1), and for the order itself

    dτ/dq = ‖p‖ Σ r log u / q     d log p = (log u − (q−1)/u · dτ/dq) dq, less its mean under p     dq = −dα/(α−1)²
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.calling import ask
from structmax.mappings.entmax_rules import Alpha, column, recall, remember
from structmax.structures.simplex import Simplex


class Normmax(Function):
    """The point p and the value τ."""

    @staticmethod
    def forward(x: Tensor, alpha: Alpha, backend: str) -> tuple[Tensor, Tensor]:
        point, value = ask(Simplex.room, "normmax", (x,), x.dim() - 1, backend, alpha=alpha)
        return point, value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        remember(ctx, inputs[1], output[0])

    @staticmethod
    def backward(ctx: Any, d_p: Tensor, d_value: Tensor) -> tuple[Any, ...]:
        alpha, p = recall(ctx)
        d_alpha = None
        if ctx.needs_input_grad[1]:
            p_slope, value_slope = _alpha_slopes(p, alpha)
            d_alpha = (d_p * p_slope).sum(-1) + d_value * value_slope
        return _jacobian_product(p, d_p, alpha) + d_value.unsqueeze(-1) * p, d_alpha, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, alpha_t: Tensor | None, _: None) -> tuple[Tensor, Tensor]:
        alpha, p = recall(ctx)
        p_t, value_t = _jacobian_product(p, x_t, alpha), (p * x_t).sum(-1)
        if alpha_t is None:
            return p_t, value_t
        p_slope, value_slope = _alpha_slopes(p, alpha)
        return p_t + alpha_t.unsqueeze(-1) * p_slope, value_t + alpha_t * value_slope


normmax_rule = rule(Normmax)


def _relative(p: Tensor, alpha: Alpha) -> tuple[Tensor, Tensor, Tensor]:
    """Where p > 0, ‖p‖_α (1 in a row of zeros), and p / ‖p‖, 1 where p is 0."""
    inside = p > 0
    safe = torch.where(inside, p, 1.0)
    total = torch.where(inside, safe ** column(alpha), 0.0).sum(-1, keepdim=True)
    norm = torch.where(total > 0, total, 1.0) ** (1 / column(alpha))
    return inside, norm, torch.where(inside, safe / norm, 1.0)


def _jacobian_product(p: Tensor, v: Tensor, alpha: Alpha) -> Tensor:
    inside, norm, relative = _relative(p, alpha)
    a = column(alpha)
    scale = torch.where(inside, norm * relative ** (2 - a) / (a - 1), 0.0)
    w = scale * (v - (p * v).sum(-1, keepdim=True))
    return w - p * w.sum(-1, keepdim=True)


def _alpha_slopes(p: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """∂p/∂α (…, n) and ∂τ/∂α (…,)."""
    inside, norm, relative = _relative(p, alpha)
    a = alpha.unsqueeze(-1)
    log_u = (a - 1) * relative.log()
    r = torch.where(inside, relative**a, 0.0)
    tau_slope = norm * (r * log_u).sum(-1, keepdim=True) * (a - 1) / a
    # p d log p, with p/u = ‖p‖ (p/‖p‖)^(2−α)
    h = torch.where(inside, p * log_u - norm * relative ** (2 - a) * tau_slope / (a - 1), 0.0)
    h = h - p * h.sum(-1, keepdim=True)
    q_slope = -((a - 1) ** -2)
    return q_slope * h, (q_slope * tau_slope).squeeze(-1)


def normmax(
    scores: Tensor,
    alpha: float | Tensor = 2.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """The α-normmax: argmax over the simplex of ⟨p, x⟩ − ‖p‖_α. Sparse; flatter inside its support than entmax.

    Args:
        scores: x, any shape; −inf forbids an entry.
        alpha: the order of the norm, a number > 1 or a tensor as `alpha` in `entmax`. It receives a gradient.
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
    return check.back(normmax_rule(x, check.per_row("alpha", alpha, x, dim), backend)[0], dim)


def normmax_value(x: Tensor, alpha: float, backend: str) -> Tensor:
    """max over the simplex of ⟨p, x⟩ − ‖p‖_α, over the last dimension; its gradient is `normmax`."""
    if isinstance(alpha, Tensor):
        raise TypeError("`alpha` of the normmax loss should be a number > 1, but is a tensor. Try `float(alpha)`.")
    _check_order(alpha)
    return normmax_rule(x, float(alpha), backend)[1]


def _check_order(alpha: object) -> None:
    check.positive("alpha", alpha, above=1.0, hint=" A norm of order 1 is constant on the simplex.")
