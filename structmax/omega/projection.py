"""The nearest point of conv(Y), argmin ½‖μ − θ‖², for structures that find it directly.

The projection onto a polytope is piecewise affine. On the face where the point lies its Jacobian J is the orthogonal
projector onto the directions of that face: symmetric, so pullback and pushforward are one function, and constant, so
the next derivative is 0.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from structmax.autograd import rule
from structmax.parts import Tensors
from structmax.problem import Problem


class Projection(Function):
    @staticmethod
    def forward(problem: Problem, *scores: Tensor) -> Tensors:
        return tuple(problem.ask("project", *scores))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.problem = inputs[0]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, *d_point: Tensor) -> tuple[Any, ...]:
        return None, *projection_jvp_rule(ctx.problem, *ctx.saved_tensors, *d_point)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> Tensors:
        return projection_jvp_rule(ctx.problem, *ctx.saved_tensors, *tangents)


class ProjectionJvp(Function):
    """J at a point, times a tangent. Arguments: the point and the tangent."""

    @staticmethod
    def forward(problem: Problem, *tensors: Tensor) -> Tensors:
        return tuple(problem.ask("project_jvp", *tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.problem, *tensors = inputs
        point = tensors[: len(tensors) // 2]
        ctx.save_for_backward(*point)
        ctx.save_for_forward(*point)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        return None, *(None,) * len(d_out), *projection_jvp_rule(ctx.problem, *ctx.saved_tensors, *d_out)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> Tensors:
        return projection_jvp_rule(ctx.problem, *ctx.saved_tensors, *tangents[len(tangents) // 2 :])


projection_rule, projection_jvp_rule = rule(Projection, fold=True), rule(ProjectionJvp, fold=True)


def projected(problem: Problem) -> Tensors:
    """The point of conv(Y) nearest to the scores: part tensors (B, …)."""
    return projection_rule(problem.blank, *problem.scores)


def pulled_back(problem: Problem, d_point: Tensors) -> Tensors:
    """The Jacobian of `projected`, which is symmetric, times d_point."""
    return projection_jvp_rule(problem.blank, *projected(problem), *d_point)
