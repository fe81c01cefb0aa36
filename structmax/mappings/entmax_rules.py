"""The gradient rules of the Tsallis family on the simplex.

With Ω_α(p) = Σ (p_i^α − p_i) / (α(α−1)), whose limit at α = 1 is Σ p_i log p_i,

    value  Ω*(x) = max over p of ⟨p, x⟩ − Ω_α(p)        point  p(x) = ∇Ω*(x)

The point is p_i = [1 + (α−1)(x_i − τ)]₊^(1/(α−1)) with τ such that Σ p = 1. Differentiating on the support, with
s_i = p_i^(2−α) and ⟨v⟩ = Σ s v / Σ s,

    J v = s (v − ⟨v⟩)            symmetric: Point pulls back through Pullback, and Pullback through itself
    ∂p/∂α = h − s Σh / Σs        h given at `_alpha_numerator`

The same rules serve every α. `EntmaxValue` minus the score of a target is the Fenchel-Young loss of a row, and
`EntmaxTotal` that of a batch.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from structmax.autograd import is_plain, plain_apply, recorded, rule
from structmax.backends import HALF
from structmax.calling import ask
from structmax.structures.simplex import Simplex

ROOM = Simplex.room
Alpha = float | Tensor
# The target of a value without a target term, as in the kernels.
NOTHING = -(2**62)


def remember(ctx: Any, alpha: Alpha, *tensors: Tensor) -> None:
    """Saves tensors and alpha, which is a tensor or a number."""
    ctx.alpha = alpha
    saved = tensors
    if isinstance(alpha, Tensor):
        ctx.alpha = None
        saved = (alpha, *tensors)
    ctx.save_for_backward(*saved)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*saved)


def recall(ctx: Any) -> tuple[Any, ...]:
    return ctx.saved_tensors if ctx.alpha is None else (ctx.alpha, *ctx.saved_tensors)


def column(alpha: Alpha) -> Alpha:
    return alpha.unsqueeze(-1) if isinstance(alpha, Tensor) else alpha


def _weights(p: Tensor, alpha: Alpha) -> Tensor:
    """s = p^(2−α) on the support, 0 outside."""
    inside = p > 0
    return torch.where(inside, torch.where(inside, p, 1.0) ** (2 - column(alpha)), 0.0)


def _centred(v: Tensor, s: Tensor) -> Tensor:
    """v − Σ s v / Σ s."""
    total = s.sum(-1, keepdim=True)
    return v - (s * v).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)


def _alpha_numerator(p: Tensor, alpha: Tensor) -> Tensor:
    """h with ∂p/∂α = h − s Σh/Σs.

    At fixed τ, with e = α−1 and y = e log p, ∂p/∂α = p log²p ψ(y), ψ(y) = (1 − y − e^(−y))/y²: finite at α = 1, where
    ψ = −1/2. For α > 2 the equivalent h = p (1 − y)/e² (they differ by s/e², which drops out) does not overflow.
    """
    alpha, inside = alpha.unsqueeze(-1), p > 0
    safe = torch.where(inside, p, 1.0)
    log_p = safe.log()
    y = (alpha - 1) * log_p
    small = y.abs() < 0.3
    y_small, y_large = torch.where(small, y, 0.0), torch.where(small, 1.0, y)
    series = torch.zeros_like(y)
    for k in range(13, 1, -1):
        series = (1.0 if k % 2 else -1.0) / math.factorial(k) + series * y_small
    # Above 2 the first form is not used: keep its exponential from overflowing there.
    psi = torch.where(small, series, (1 - y_large - torch.exp(-torch.where(alpha > 2, 1.0, y_large))) / y_large**2)
    flat = safe * log_p**2 * psi
    steep = safe * (1 - y) / torch.where(alpha > 2, alpha - 1, 1.0) ** 2
    return torch.where(inside, torch.where(alpha > 2, steep, flat), 0.0)


def _alpha_pullback(p: Tensor, alpha: Tensor, d_p: Tensor) -> Tensor:
    """⟨d_p, ∂p/∂α⟩."""
    return (_alpha_numerator(p, alpha) * _centred(d_p, _weights(p, alpha))).sum(-1)


def _alpha_pushforward(p: Tensor, alpha: Tensor, alpha_t: Tensor) -> Tensor:
    """∂p/∂α · alpha_t; 0 in a row without a feasible entry."""
    h, s = _alpha_numerator(p, alpha), _weights(p, alpha)
    total = s.sum(-1, keepdim=True)
    return alpha_t.unsqueeze(-1) * (h - s * h.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0))


class Point(Function):
    @staticmethod
    def forward(x: Tensor, alpha: Alpha, backend: str) -> Tensor:
        return ask(ROOM, "entmax", (x,), x.dim() - 1, backend, alpha=alpha)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, alpha, ctx.backend = inputs
        remember(ctx, alpha, output)

    @staticmethod
    def backward(ctx: Any, d_p: Tensor) -> tuple[Any, ...]:
        alpha, p = recall(ctx)
        d_alpha = None
        if ctx.needs_input_grad[1]:
            d_alpha = _alpha_pullback(p, alpha, d_p)
        return pullback_rule(p, d_p, alpha, ctx.backend), d_alpha, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, alpha_t: Tensor | None, _: None) -> Tensor:
        alpha, p = recall(ctx)
        out = pullback_rule(p, x_t, alpha, ctx.backend)
        return out if alpha_t is None else out + _alpha_pushforward(p, alpha, alpha_t)


point_rule = rule(Point)


class Pullback(Function):
    """F(p, v) = s (v − ⟨v⟩). Its cotangents are d_v = F(p, w) and d_s = (v − ⟨v⟩)(w − ⟨w⟩), with s = p^(2−α)."""

    @staticmethod
    def forward(p: Tensor, v: Tensor, alpha: Alpha, backend: str) -> Tensor:
        return ask(ROOM, "entmax_pullback", (p, v), p.dim() - 1, backend, alpha=alpha)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        p, v, alpha, ctx.backend = inputs
        remember(ctx, alpha, p, v)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> tuple[Any, ...]:
        alpha, p, v = recall(ctx)
        s = _weights(p, alpha)
        d_s = torch.where(p > 0, _centred(v, s) * _centred(w, s), 0.0)
        d_alpha = None
        if ctx.needs_input_grad[2]:
            d_alpha = -(d_s * s * torch.where(p > 0, p, 1.0).log()).sum(-1)
        return d_s * _slope(p, alpha), pullback_rule(p, w, alpha, ctx.backend), d_alpha, None

    @staticmethod
    def jvp(ctx: Any, p_t: Tensor, v_t: Tensor, alpha_t: Tensor | None, _: None) -> Tensor:
        alpha, p, v = recall(ctx)
        s = _weights(p, alpha)
        s_t = _slope(p, alpha) * p_t
        if alpha_t is not None:
            s_t = s_t - column(alpha_t) * s * torch.where(p > 0, p, 1.0).log()
        centred = _centred(v, s)
        total = s.sum(-1, keepdim=True)
        moved = (s_t * centred).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return s_t * centred - s * moved + pullback_rule(p, v_t, alpha, ctx.backend)


pullback_rule = rule(Pullback)


def _slope(p: Tensor, alpha: Alpha) -> Tensor:
    """ds/dp = (2−α) p^(1−α) on the support."""
    a, inside = column(alpha), p > 0
    return torch.where(inside, (2 - a) * torch.where(inside, p, 1.0) ** (1 - a), 0.0)


class EntmaxValue(Function):
    """Ω*(x) − x[target], 0 where that is `ignored`, and the state that recovers p: float32 or wider.

    Gradient: p − e_target.
    """

    @staticmethod
    def forward(x: Tensor, target: Tensor, alpha: Alpha, ignored: int, backend: str) -> tuple[Tensor, Tensor]:
        value, state = ask(ROOM, "entmax_value", (x, target), x.dim() - 1, backend, alpha=alpha, ignored=ignored)
        return value, state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, target, alpha, ctx.ignored, ctx.backend = inputs
        remember(ctx, alpha, x, output[1], target)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_value: Tensor, _: Tensor) -> tuple[Any, ...]:
        alpha, x, state, target = recall(ctx)
        d_alpha = None
        if ctx.needs_input_grad[2]:
            slope = _alpha_slope_of_omega(point_rule(x, alpha, ctx.backend), alpha)
            d_alpha = -_counted(d_value, target, ctx.ignored) * slope
        d_x = entmax_gradient_rule(x, state, target, d_value, alpha, ctx.ignored, ctx.backend)
        return d_x, None, d_alpha, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, _: None, alpha_t: Tensor | None, __: None, ___: None) -> tuple[Any, ...]:
        alpha, x, state, target = recall(ctx)
        out = _pushforward(x_t, x, state, target, alpha, ctx.ignored, ctx.backend)
        if alpha_t is not None:
            slope = _alpha_slope_of_omega(point_rule(x, alpha, ctx.backend), alpha)
            out = out - _counted(alpha_t, target, ctx.ignored) * slope
        return out, None


entmax_value_rule = rule(EntmaxValue)


def _pushforward(
    x_t: Tensor, x: Tensor, state: Tensor, target: Tensor, alpha: Alpha, ignored: int, backend: str
) -> Tensor:
    """⟨p − e_target, x_t⟩ of each row."""
    gradient = entmax_gradient_rule(x, state, target, torch.ones_like(x[..., 0]), alpha, ignored, backend)
    return (gradient.to(state.dtype) * x_t).sum(-1)


class EntmaxTotal(Function):
    """`EntmaxValue` summed over its last `rows` dimensions; with `mean`, over the number of rows that count.

    Also the states, and that number, 1 without `mean`. One node of autograd, and one call of a kernel forward and
    backward: a loss of a small batch takes as long as the host needs for its launches. vmap puts more dimensions in
    front, and a gradient of the gradient needs the rules of the rows: both are composed of these. α is a number.
    """

    @staticmethod
    def forward(
        x: Tensor, target: Tensor, alpha: float, ignored: int, rows: int, mean: bool, backend: str
    ) -> tuple[Tensor, ...]:
        if target.dim() == rows:
            tensors = x, target
            return tuple(ask(ROOM, "entmax_total", tensors, rows, backend, alpha=alpha, ignored=ignored, mean=mean))
        value, state = ask(ROOM, "entmax_value", (x, target), x.dim() - 1, backend, alpha=alpha, ignored=ignored)
        total = _total(value, rows)
        count = _total(target != ignored, rows).to(value.dtype) if mean else torch.ones_like(total)
        return total / count, state, count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, target, alpha, ctx.ignored, ctx.rows, _, ctx.backend = inputs
        remember(ctx, alpha, x, target, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        # No zeros in place of gradients that nobody has.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_total: Tensor | None, *_: None) -> tuple[Any, ...]:
        if d_total is None:
            return (None,) * 7
        alpha, x, target, state, count = recall(ctx)
        if target.dim() == ctx.rows and not recorded((x, d_total)):
            tensors, fields = (x, state, target, d_total, count), {"alpha": alpha, "ignored": ctx.ignored}
            (d_x,) = ask(ROOM, "entmax_total_gradient", tensors, ctx.rows, ctx.backend, **fields)
        else:
            d_value = _spread(d_total / count, ctx.rows).expand_as(target)
            d_x = entmax_gradient_rule(x, state, target, d_value, alpha, ctx.ignored, ctx.backend)
        return d_x, None, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, *_: None) -> tuple[Any, ...]:
        alpha, x, target, state, count = recall(ctx)
        out = _total(_pushforward(x_t, x, state, target, alpha, ctx.ignored, ctx.backend), ctx.rows)
        return out / count, None, None


entmax_total_rule = rule(EntmaxTotal)


class SmallTotal(Function):
    """The total of `EntmaxTotal` for few numbers: its gradient is made with it and kept, by one call of a kernel.

    What a small batch costs is the calls, not the memory. For plain calls only, which no transform sees.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool, backend: str) -> Tensor:
        tensors, fields = (x, target), {"alpha": alpha, "ignored": ignored, "mean": mean}
        total, d_x = ask(ROOM, "entmax_total_and_gradient", tensors, target.dim(), backend, **fields)
        ctx.save_for_backward(x, target, d_x)
        ctx.settings = alpha, ignored, target.dim(), mean, backend
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Any, ...]:
        x, target, d_x = ctx.saved_tensors
        if torch.is_grad_enabled():
            # by the rules that have derivatives of their own
            total, *_ = entmax_total_rule(x, target, *ctx.settings)
            (d_x,) = torch.autograd.grad(total, x, d_total, create_graph=True)
        else:
            d_x = d_x * d_total
        return d_x, None, None, None, None, None


_small_total = plain_apply(SmallTotal)
# Most numbers of a batch whose gradient is made with its loss.
SMALL = 4096


def entmax_total(x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool, backend: str) -> Tensor:
    """The values of all rows of x, less the scores of their targets, added up; or their mean over those that count."""
    if x.numel() <= SMALL and x.requires_grad and x.dtype not in HALF and is_plain():
        return _small_total(x, target, alpha, ignored, mean, backend)
    return entmax_total_rule(x, target, alpha, ignored, target.dim(), mean, backend)[0]


def _total(values: Tensor, rows: int) -> Tensor:
    """The sum over the last `rows` dimensions: no dimensions would mean all to torch."""
    return values.sum(tuple(range(-rows, 0))) if rows else values


def _spread(total: Tensor, rows: int) -> Tensor:
    """As many dimensions of size 1 at the end as `_total` has summed over; a single number broadcasts without."""
    return total.reshape(total.shape + (1,) * rows) if total.dim() else total


def _alpha_slope_of_omega(p: Tensor, alpha: Tensor) -> Tensor:
    """∂Ω_α(p)/∂α with Ω = Σ p log p φ(y)/α, y = (α−1) log p, φ(y) = (e^y − 1)/y: finite at α = 1."""
    inside = p > 0
    safe = torch.where(inside, p, 1.0)
    log_p = safe.log()
    a = alpha.unsqueeze(-1)
    y = (a - 1) * log_p
    small = y.abs() < 0.3
    y_small, y_large = torch.where(small, y, 0.0), torch.where(small, 1.0, y)
    phi, slope = torch.zeros_like(y), torch.zeros_like(y)
    for k in range(13, 0, -1):
        phi = 1 / math.factorial(k) + phi * y_small
        slope = k / math.factorial(k + 1) + slope * y_small
    phi = torch.where(small, phi, torch.expm1(y_large) / y_large)
    slope = torch.where(small, slope, (torch.exp(y_large) * (y_large - 1) + 1) / y_large**2)
    terms = safe * log_p * (log_p * slope - phi / a) / a
    return torch.where(inside, terms, 0.0).sum(-1)


class EntmaxGradient(Function):
    """d_value · (p(x) − e_target)."""

    @staticmethod
    def forward(
        x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: Alpha, ignored: int, backend: str
    ) -> Tensor:
        tensors = x, state, target, d_value
        return ask(ROOM, "entmax_gradient", tensors, x.dim() - 1, backend, alpha=alpha, ignored=ignored)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, target, d_value, alpha, ctx.ignored, ctx.backend = inputs
        remember(ctx, alpha, x, target, d_value)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> tuple[Any, ...]:
        alpha, x, target, d_value = recall(ctx)
        p = point_rule(x, alpha, ctx.backend)
        scaled = _counted(d_value, target, ctx.ignored).unsqueeze(-1) * w
        d_alpha = None
        if ctx.needs_input_grad[4]:
            d_alpha = _alpha_pullback(p, alpha, scaled)
        d_d_value = (w * _difference(p, target, ctx.ignored)).sum(-1)
        return pullback_rule(p, scaled, alpha, ctx.backend), None, None, d_d_value, d_alpha, None, None

    @staticmethod
    def jvp(ctx: Any, x_t: Tensor, _: Any, __: Any, d_value_t: Tensor, alpha_t: Tensor | None, *___: None) -> Tensor:
        alpha, x, target, d_value = recall(ctx)
        p = point_rule(x, alpha, ctx.backend)
        p_t = pullback_rule(p, x_t, alpha, ctx.backend)
        if alpha_t is not None:
            p_t = p_t + _alpha_pushforward(p, alpha, alpha_t)
        scaled = _counted(d_value, target, ctx.ignored).unsqueeze(-1) * p_t
        return scaled + d_value_t.unsqueeze(-1) * _difference(p, target, ctx.ignored)


entmax_gradient_rule = rule(EntmaxGradient)


def _counted(rows: Tensor, target: Tensor, ignored: int) -> Tensor:
    """Rows, 0 where the target is ignored."""
    return rows.masked_fill(target == ignored, 0.0)


def _difference(p: Tensor, target: Tensor, ignored: int) -> Tensor:
    """p − e_target: p where there is no target, 0 where it is ignored."""
    hit = torch.arange(p.shape[-1], device=p.device) == target.unsqueeze(-1)
    return (p - hit.to(p.dtype)).masked_fill((target == ignored).unsqueeze(-1), 0.0)
