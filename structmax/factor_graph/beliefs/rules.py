"""What all approximations of log Z share: the search for a fixed point, and the derivatives there.

log Z is stationary in the fixed point, so its gradient is the marginals μ, and ∇μ = ∇² log Z is symmetric: its pullback
is its pushforward. That is the derivative of a fixed point (fixed_point.py), and so is the next one.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.backends import Refusal
from structmax.factor_graph import FactorGraph
from structmax.factor_graph.beliefs.fixed_point import Effort
from structmax.factor_graph.layout import Layout
from structmax.outline import outline
from structmax.parts import Tensors, inner, plus, scaled
from structmax.problem import Problem


class Beliefs(NamedTuple):
    """The result of `belief_propagation` and `mean_field`, and how exact it is, for each instance."""

    # by name, in the shapes of the scores, differentiable; free ones too
    marginals: Any
    # the batch shape, differentiable
    log_partition: Tensor
    # how many sweeps were taken
    iterations: Tensor
    # whether the residual is within the tolerance
    converged: Tensor
    # belief propagation: by how much a factor's marginal of a variable and the variable's own differ at most; mean
    # field: by how much a marginal changed in the last sweep
    residual: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Found(NamedTuple):
    """What a search ends with, in float64."""

    # (B,), an approximation of log Z
    value: Tensor
    # marginals of variables (B, n) and of free parts (B, m)
    marginals: Tensor
    own: Tensor
    # (B,)
    iterations: Tensor
    residual: Tensor
    # what the derivatives start from
    state: Tensor

    def of_instances(self, lost: Tensor, impossible: Tensor) -> Found:
        """With NaN for instances (B,) that hold NaN or +inf; −inf and zeros for those that nothing satisfies."""
        filling = torch.where(lost, math.nan, 0.0).to(self.value)
        answered = ~(lost | impossible).unsqueeze(-1)
        return self._replace(
            value=self.value.masked_fill(impossible, -math.inf).masked_fill(lost, math.nan),
            marginals=torch.where(answered, self.marginals, filling.unsqueeze(-1)),
            own=torch.where(answered, self.own, filling.unsqueeze(-1)),
            residual=self.residual.masked_fill(impossible, 0.0).masked_fill(lost, math.nan),
        )

    def outputs(self, problem: Problem, effort: Effort, dtype: torch.dtype) -> Tensors:
        """log Z, marginals by part tensor, iterations, converged, residual."""
        parts = Layout.of_number(problem.shared["layout"]).split(self.marginals, self.own)
        numbers = self.iterations, self.residual <= effort.tol, self.residual
        # Forward mode wants outputs that are no views.
        return self.value.to(dtype), *(p.to(dtype, copy=True) for p in parts), *numbers


@dataclass(frozen=True)
class AbstractWay(ABC):
    """A way to approximate log Z."""

    effort: Effort

    @abstractmethod
    def search(self, problem: Problem, scores: Tensors) -> Found:
        """The fixed point for scores (B, …)."""

    @abstractmethod
    def marginals(self, problem: Problem, state: Tensor, scores: Tensors) -> Tensors:
        """The marginals at the state that a search has found, differentiable to any order, in float64."""


def _derivative(way: AbstractWay, problem: Problem, state: Tensor, scores: Tensors, along: list[Tensors]) -> Tensors:
    """Of the marginals, times one direction, or of that, times another: symmetric in all of them."""
    with torch.enable_grad():
        leaves = tuple(s.detach().double().requires_grad_() for s in scores)
        out = way.marginals(problem, state, leaves)
        for k, tangent in enumerate(along, 1):
            wide = tuple(t.to(torch.float64) for t in tangent)
            found = torch.autograd.grad(out, leaves, wide, create_graph=k < len(along), allow_unused=True)
            out = tuple(torch.zeros_like(s) if d is None else d for s, d in zip(leaves, found, strict=True))
    return tuple(o.detach().to(s.dtype) for o, s in zip(out, scores, strict=True))


class Point(Function):
    """log Z and marginals, which are differentiable; how the search went; and the state it ended in."""

    @staticmethod
    def forward(way: AbstractWay, problem: Problem, *scores: Tensor) -> Tensors:
        found = way.search(problem, scores)
        return *found.outputs(problem, way.effort, scores[0].dtype), found.state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.way, ctx.problem, *scores = inputs
        count = ctx.problem.count
        ctx.mark_non_differentiable(*output[1 + count :])
        ctx.save_for_backward(*scores, *output[1 : 1 + count], output[-1])
        ctx.save_for_forward(*scores, *output[1 : 1 + count], output[-1])

    @staticmethod
    def backward(ctx: Any, d_value: Tensor, *d_rest: Tensor) -> tuple[Any, ...]:
        count = ctx.problem.count
        *saved, state = ctx.saved_tensors
        moved = response_rule(ctx.way, ctx.problem, state, *saved[:count], *d_rest[:count])
        return None, None, *plus(moved, scaled(d_value, saved[count:]))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> tuple[Any, ...]:
        count = ctx.problem.count
        *saved, state = ctx.saved_tensors
        moved = response_rule(ctx.way, ctx.problem, state, *saved[:count], *tangents)
        return inner(saved[count:], tangents), *moved, *(None,) * 4


class Response(Function):
    """The Jacobian of the marginals times a tangent."""

    @staticmethod
    def forward(way: AbstractWay, problem: Problem, state: Tensor, *tensors: Tensor) -> Tensors:
        scores, tangent = tensors[: problem.count], tensors[problem.count :]
        return _derivative(way, problem, state, scores, [tangent])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.way, ctx.problem, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        state, *tensors = ctx.saved_tensors
        bent = curvature_rule(ctx.way, ctx.problem, state, *tensors, *d_out)
        straight = response_rule(ctx.way, ctx.problem, state, *tensors[: ctx.problem.count], *d_out)
        return None, None, None, *bent, *straight

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Tensor) -> Tensors:
        state, *tensors = ctx.saved_tensors
        count = ctx.problem.count
        bent = curvature_rule(ctx.way, ctx.problem, state, *tensors, *tangents[:count])
        return plus(bent, response_rule(ctx.way, ctx.problem, state, *tensors[:count], *tangents[count:]))


class Curvature(Function):
    """The second derivative of the marginals times two tangents."""

    @staticmethod
    def forward(way: AbstractWay, problem: Problem, state: Tensor, *tensors: Tensor) -> Tensors:
        count = problem.count
        scores, first, second = (tensors[k * count : (k + 1) * count] for k in range(3))
        return _derivative(way, problem, state, scores, [first, second])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.name = inputs[0].effort.name

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        raise Refusal(
            f"{ctx.name} has derivatives of marginals up to the second. Try `log_partition` of a structure, which has "
            "them all."
        )


point_rule, response_rule, curvature_rule = (rule(each, fold=True) for each in (Point, Response, Curvature))


# The decorator loads the compiler when what it decorates is called.
@torch._disable_dynamo
def _uncompiled(*arguments: Any) -> Tensors:
    """torch.compile breaks the graph here, since the number of sweeps depends on values."""
    return point_rule(*arguments)


def posed(scores: Mapping[str, Tensor], graph: FactorGraph) -> Problem:
    """The problem of a graph all of whose variables are 0 or 1."""
    check.instance("graph", graph, FactorGraph, "a FactorGraph", " A single structure has `marginals`.")
    # Parts that are used several times have no binary belief.
    like: Any = tuple(torch.zeros(variables.shape) for variables in graph.layout.variables)
    for name, counted in zip(graph.names, graph.counts(like), strict=True):
        if counted and name in graph.layout.bound:
            raise ValueError(
                f"`{name}` should be free: a structure of the graph uses its parts several times, and a variable is 0 "
                f"or 1. Try Variables({name!r}, …, free=True)."
            )
    return Problem.of(scores, graph)  # type: ignore[arg-type]


def beliefs(way: AbstractWay, problem: Problem) -> Beliefs:
    """What a search finds, with the derivatives of the fixed point."""
    ask = _uncompiled if torch.compiler.is_compiling() else point_rule
    found = named(problem, ask(way, problem.blank, *problem.scores)[:-1])
    _warn(way.effort.name, found)
    return found


def named(problem: Problem, outputs: Tensors) -> Beliefs:
    """Outputs of a search, in the batch and by the names of the scores."""
    value, *rest = outputs
    parts, numbers = tuple(rest[: problem.count]), tuple(rest[problem.count :])
    return Beliefs(problem.named(parts), problem.shaped(value), *problem.with_batch(numbers))


def _warn(name: str, found: Beliefs) -> None:
    if not check.readable(found.converged):
        return
    missed = ~found.converged & ~found.residual.isnan()
    if bool(missed.any()):
        warnings.warn(
            f"{name}: {int(missed.sum())} of {missed.numel()} instances have not converged: marginals differ by up to "
            f"{found.residual[missed].max().item():.1e}. Try `damping=0.5`, or a larger `max_iter`.",
            stacklevel=4,
        )
