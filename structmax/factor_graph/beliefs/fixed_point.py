"""The derivative of a fixed point s = T(s, x), to any order, by solving linear equations.

    d s = (I − T_s)⁻¹ T_x d x        so a cotangent c of s gives x the cotangent T_xᵀ g,   g = c + T_sᵀ g

and g is a fixed point of its own: its derivative is found in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check

Step = Callable[..., Tensor]


@dataclass(frozen=True)
class Effort:
    """When to stop, and how much of the last step is kept in the next."""

    # who asks, for warnings
    name: str
    max_iter: int
    tol: float
    damping: float

    @staticmethod
    def of(name: str, max_iter: int, tol: float, damping: float) -> Effort:
        check.whole("max_iter", max_iter, 1)
        if not 0 <= damping < 1:
            raise ValueError(f"`damping` should be at least 0 and less than 1, but is {damping}.")
        return Effort(name, max_iter, float(tol), float(damping))

    def mixed(self, new: Tensor, old: Tensor) -> Tensor:
        return new if self.damping == 0 else torch.lerp(new, old, self.damping)


class Implicit(Function):
    """s (B, E), with the derivative of the fixed point that it is; all tensors have the batch in front."""

    @staticmethod
    def forward(ctx: Any, effort: Effort, step: Step, state: Tensor, *inputs: Tensor) -> Tensor:
        ctx.effort, ctx.step = effort, step
        out = state.clone()
        ctx.save_for_backward(out, *inputs)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        state, *inputs = ctx.saved_tensors
        differentiable = torch.is_grad_enabled()

        def adjoint(g: Tensor, c: Tensor, state: Tensor, *inputs: Tensor) -> Tensor:
            return c + _pulled(ctx.step, g, state, inputs)[0]

        g = _solved(ctx.effort, ctx.step, cotangent.detach(), state.detach(), [t.detach() for t in inputs])
        if differentiable:
            g = Implicit.apply(ctx.effort, adjoint, g, cotangent, state, *inputs)
        return None, None, None, *_pulled(ctx.step, g, state, inputs)[1:]


def _pulled(step: Step, g: Tensor, state: Tensor, inputs: Any) -> tuple[Tensor, ...]:
    """Cotangents of the state and the inputs for a cotangent g of a step; recorded where autograd records."""
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [t if t.requires_grad and recording else t.detach().requires_grad_() for t in (state, *inputs)]
        # a view, so that each is told apart from the others' own history
        seen = [t.view_as(t) for t in leaves]
        out = step(*seen)
        found = torch.autograd.grad(out, seen, g, create_graph=recording, allow_unused=True)
    return tuple(torch.zeros_like(t) if d is None else d for t, d in zip(seen, found, strict=True))


def _solved(effort: Effort, step: Step, cotangent: Tensor, state: Tensor, inputs: list[Tensor]) -> Tensor:
    """g = c + T_sᵀ g, by the same damped steps that led to the fixed point."""
    with torch.enable_grad():
        leaf = state.requires_grad_()
        out = step(leaf, *inputs)
    if not cotangent.numel() or not out.requires_grad:
        return cotangent
    g, size = cotangent, cotangent.abs().amax(1)
    running, missed = size > 0, size
    for _ in range(effort.max_iter):
        (moved,) = torch.autograd.grad(out, leaf, g, retain_graph=True, allow_unused=True)
        new = cotangent if moved is None else cotangent + moved
        missed = torch.where(running, (new - g).abs().amax(1) / size, missed)
        g = torch.where(running.unsqueeze(-1), effort.mixed(new, g), g)
        running = running & ~(missed <= effort.tol)
        if not bool(running.any()):
            return g
    warnings.warn(
        f"{effort.name}: the gradients of {int(running.sum())} of {len(g)} instances have not converged; they "
        f"miss by up to {missed[running].max().item():.1e}. Try a larger `max_iter` or more `damping`.",
        stacklevel=2,
    )
    return g
