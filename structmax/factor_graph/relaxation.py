"""The gradient of a factor graph's sparse marginals, and what is returned with them.

At the solution every factor's copy lies on a face of its polytope, and moves along it. The point that they share moves
in the directions common to all faces: the Jacobian is the orthogonal projector onto these, symmetric, so pullback and
pushforward are one function, and constant from place to place, so the next derivative is 0. Free scores enter through
the factors' own parts, linear functions of the variables along a face. Derivation: README.md in this folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax.factor_graph.solver import Solver


@dataclass(frozen=True)
class Relaxed:
    """Sparse marginals of a factor graph, and how well they are known.

    Args:
        marginals: by name, in the shapes of the scores, differentiable; free ones too.
        value: ⟨θ, μ⟩ − temperature/2 ‖μ‖², without the free ones in the norm: one for each instance, differentiable.
        iterations: how many steps were taken.
        converged: whether both residuals fell below the tolerance.
        gap: no point has a value higher than `value` by more than this, but for the primal residual.
        primal_residual: the largest distance between a variable and a factor's copy of it.
        dual_residual: the largest change of a variable in the last step, times the penalty.
    """

    marginals: dict[str, Tensor]
    value: Tensor
    iterations: Tensor
    converged: Tensor
    gap: Tensor
    primal_residual: Tensor
    dual_residual: Tensor


class JacobianProduct(Function):
    """The Jacobian at the solver's answer, times a vector."""

    @staticmethod
    def forward(solver: Solver, bound: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        moved, along = solver.derivative(bound.numpy(), free.numpy())
        return torch.from_numpy(moved), torch.from_numpy(along)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.solver = inputs[0]

    @staticmethod
    def backward(ctx: Any, d_bound: Tensor, d_free: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return None, *JacobianProduct.apply(ctx.solver, d_bound, d_free)

    @staticmethod
    def jvp(ctx: Any, _: None, bound: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return JacobianProduct.apply(ctx.solver, bound, free)


class Relaxation(JacobianProduct):
    """The solver's answer as a function of the scores it was given: its derivatives are products with the Jacobian."""

    @staticmethod
    def forward(solver: Solver, theta: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        u, nu = solver.answer()
        return torch.from_numpy(u), torch.from_numpy(nu)
