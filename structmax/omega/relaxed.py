"""The best point of a relaxation of conv(Y), a polytope around it, where no distribution over structures is known.

    μ = argmax over μ in L of ⟨θ, μ⟩ − t/2 ‖μ_R‖²        L ⊇ conv(Y), R all parts but the free ones

It is piecewise affine. While μ stays on its face, its Jacobian is a symmetric matrix, so pullback and pushforward are
one function, and constant, so the next derivative is 0. To multiply by it, the structure's functions keep two
tensors from the solution, with a row for each instance.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax.autograd import rule
from structmax.parts import Tensors, inner, scaled
from structmax.problem import Problem


class Point(NamedTuple):
    """A point of a relaxation, with the batch in front."""

    marginals: Tensors
    # (B,), all of them
    value: Tensor
    iterations: Tensor
    converged: Tensor
    gap: Tensor
    # (B, 2): of the constraints, and of optimality
    residuals: Tensor


@dataclass(frozen=True)
class Effort:
    """What is solved for, and when to stop."""

    temperature: float
    max_iter: int
    tol: float


class Relax(Function):
    """Value and marginals, which are differentiable; then the rest."""

    @staticmethod
    def forward(effort: Effort, problem: Problem, *scores: Tensor) -> Tensors:
        t, dtype = effort.temperature, scores[0].dtype
        wide = tuple(score.double() if t == 1 else score.double() / t for score in scores)
        value, *rest = problem.ask("relax", *wide, max_iter=effort.max_iter, tol=effort.tol)
        parts, (iterations, converged, gap, *others) = rest[: problem.count], rest[problem.count :]
        out = (t * value).to(dtype), *(p.to(dtype) for p in parts), iterations, converged, t * gap, *others
        # Forward mode wants outputs that are no views.
        return tuple(each.clone() if each._is_view() else each for each in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.effort, ctx.problem, *_ = inputs
        count = ctx.problem.count
        rest = output[1 + count :]
        ctx.rest = len(rest)
        kept = (*output[1 : 1 + count], *rest[-2:])
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.mark_non_differentiable(*rest)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor, *d_rest: Tensor) -> tuple[Any, ...]:
        *marginals, whole, real = ctx.saved_tensors
        moved = response_rule(ctx.problem, whole, real, *d_rest[: ctx.problem.count])
        each = zip(moved, scaled(d_value, marginals), strict=True)
        return None, None, *(m / ctx.effort.temperature + s for m, s in each)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> tuple[Any, ...]:
        *marginals, whole, real = ctx.saved_tensors
        moved = response_rule(ctx.problem, whole, real, *(t / ctx.effort.temperature for t in tangents))
        return inner(marginals, tangents), *moved, *(None,) * ctx.rest


class Response(Function):
    """The Jacobian of the marginals times a tangent: a symmetric map, so its own pullback."""

    @staticmethod
    def forward(problem: Problem, whole: Tensor, real: Tensor, *tangent: Tensor) -> Tensors:
        return tuple(problem.ask("relax_jvp", *tangent, whole, real))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.problem, whole, real, *_ = inputs
        ctx.save_for_backward(whole, real)
        ctx.save_for_forward(whole, real)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        return None, None, None, *response_rule(ctx.problem, *ctx.saved_tensors, *d_out)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Tensor) -> Tensors:
        return response_rule(ctx.problem, *ctx.saved_tensors, *tangents)


relax_rule, response_rule = rule(Relax, fold=True), rule(Response, fold=True)


@torch._disable_dynamo
def _uncompiled(*args: Any) -> Tensors:
    """Sizes depend on values, so torch.compile breaks the graph here. The decorator loads the compiler when called."""
    return relax_rule(*args)


def relaxed(problem: Problem, temperature: float, max_iter: int, tol: float) -> Point:
    """The best point of the relaxation, differentiable."""
    ask = _uncompiled if torch.compiler.is_compiling() else relax_rule
    value, *rest = ask(Effort(float(temperature), max_iter, float(tol)), problem.blank, *problem.scores)
    iterations, converged, gap, residuals, _, _ = rest[problem.count :]
    return Point(tuple(rest[: problem.count]), value, iterations, converged, gap, residuals)
