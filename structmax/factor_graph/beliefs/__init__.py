"""Belief propagation on a factor graph: marginals and the Bethe approximation of log Z, with their derivatives.

log Z is stationary in the messages, so its gradient is the beliefs μ, and ∇μ = ∇² log Z is symmetric: its pullback is
its pushforward. That is the derivative of a fixed point (fixed_point.py), and so is the next one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.backends import Refusal
from structmax.factor_graph import FactorGraph
from structmax.factor_graph.beliefs.fixed_point import Effort, Implicit
from structmax.factor_graph.beliefs.odds import certain
from structmax.factor_graph.beliefs.sweep import Sweep
from structmax.factor_graph.layout import Layout
from structmax.outline import outline
from structmax.parts import Tensors, inner, plus, scaled
from structmax.problem import Problem


class Beliefs(NamedTuple):
    """The result of `belief_propagation`, and how exact it is, for each instance."""

    # by name, in the shapes of the scores, differentiable; free ones too
    marginals: Any
    # the batch shape, differentiable
    log_partition: Tensor
    # how many sweeps were taken
    iterations: Tensor
    # whether the residual is within the tolerance
    converged: Tensor
    # by how much a factor's marginal of a variable and the variable's own differ at most
    residual: Tensor

    def __repr__(self) -> str:
        return outline(self)


def _sweep(problem: Problem, like: Tensor) -> Sweep:
    return Sweep(Layout.of_number(problem.shared["layout"]), problem.fields, like)


def _marginals(effort: Effort, sweep: Sweep, messages: Tensor, scores: Tensors) -> Tensors:
    """The marginals at a fixed point of messages (B, E), differentiable to any order."""
    theta, phi, _ = sweep.scores(scores)

    def step(messages: Tensor, theta: Tensor, phi: Tensor) -> Tensor:
        return sweep.say(theta, phi, messages).messages

    messages = Implicit.apply(effort, step, messages, theta, phi)
    said = sweep.say(theta, phi, messages)
    possible = ~said.impossible.unsqueeze(-1)
    return sweep.layout.split(
        torch.where(possible, sweep.beliefs(theta, messages), 0.0), torch.where(possible, said.own, 0.0)
    )


def _derivative(effort: Effort, problem: Problem, messages: Tensor, scores: Tensors, along: list[Tensors]) -> Tensors:
    """Of the marginals, times one direction, or of that, times another: symmetric in all of them."""
    sweep = _sweep(problem, messages)
    with torch.enable_grad():
        leaves = tuple(s.detach().double().requires_grad_() for s in scores)
        out = _marginals(effort, sweep, messages, leaves)
        for k, tangent in enumerate(along, 1):
            wide = tuple(t.to(torch.float64) for t in tangent)
            found = torch.autograd.grad(out, leaves, wide, create_graph=k < len(along), allow_unused=True)
            out = tuple(torch.zeros_like(s) if d is None else d for s, d in zip(leaves, found, strict=True))
    return tuple(o.detach().to(s.dtype) for o, s in zip(out, scores, strict=True))


class Point(Function):
    """log Z and marginals, which are differentiable; how the search went; and the messages."""

    @staticmethod
    def forward(effort: Effort, problem: Problem, *scores: Tensor) -> Tensors:
        sweep = _sweep(problem, scores[0])
        theta, phi, lost = sweep.scores(scores)
        rows = len(theta)
        messages = theta.new_zeros(rows, len(sweep.variable))
        running, impossible = ~lost, torch.zeros_like(lost)
        iterations, residual = torch.zeros_like(lost, dtype=torch.int64), theta.new_zeros(rows)
        for _ in range(effort.max_iter):
            if not bool(running.any()):
                break
            said = sweep.say(theta, phi, messages)
            iterations += running
            residual = torch.where(running, sweep.disagreement(said, messages), residual)
            impossible |= running & said.impossible
            sure = certain(said.messages) | certain(messages)
            new = torch.where(sure, said.messages, effort.mixed(said.messages, messages))
            messages = torch.where(running.unsqueeze(-1), new, messages)
            running &= ~impossible & (residual > effort.tol)
        said = sweep.say(theta, phi, messages)
        impossible |= said.impossible & ~lost
        value = sweep.bethe(theta, said, messages).masked_fill(impossible, -math.inf).masked_fill(lost, math.nan)
        residual = residual.masked_fill(impossible, 0.0).masked_fill(lost, math.nan)
        filling = torch.where(lost, math.nan, 0.0).to(theta).unsqueeze(-1)
        answered = ~(lost | impossible).unsqueeze(-1)
        parts = sweep.layout.split(
            torch.where(answered, sweep.beliefs(theta, messages), filling), torch.where(answered, said.own, filling)
        )
        numbers = iterations, residual <= effort.tol, residual, messages
        dtype = scores[0].dtype
        # Forward mode wants outputs that are no views.
        return value.to(dtype), *(p.to(dtype, copy=True) for p in parts), *numbers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.effort, ctx.problem, *scores = inputs
        count = ctx.problem.count
        ctx.mark_non_differentiable(*output[1 + count :])
        ctx.save_for_backward(*scores, *output[1 : 1 + count], output[-1])
        ctx.save_for_forward(*scores, *output[1 : 1 + count], output[-1])

    @staticmethod
    def backward(ctx: Any, d_value: Tensor, *d_rest: Tensor) -> tuple[Any, ...]:
        count = ctx.problem.count
        *saved, messages = ctx.saved_tensors
        moved = response_rule(ctx.effort, ctx.problem, messages, *saved[:count], *d_rest[:count])
        return None, None, *plus(moved, scaled(d_value, saved[count:]))

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> tuple[Any, ...]:
        count = ctx.problem.count
        *saved, messages = ctx.saved_tensors
        moved = response_rule(ctx.effort, ctx.problem, messages, *saved[:count], *tangents)
        return inner(saved[count:], tangents), *moved, *(None,) * 4


class Response(Function):
    """The Jacobian of the marginals times a tangent."""

    @staticmethod
    def forward(effort: Effort, problem: Problem, messages: Tensor, *tensors: Tensor) -> Tensors:
        scores, tangent = tensors[: problem.count], tensors[problem.count :]
        return _derivative(effort, problem, messages, scores, [tangent])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.effort, ctx.problem, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        messages, *tensors = ctx.saved_tensors
        bent = curvature_rule(ctx.effort, ctx.problem, messages, *tensors, *d_out)
        straight = response_rule(ctx.effort, ctx.problem, messages, *tensors[: ctx.problem.count], *d_out)
        return None, None, None, *bent, *straight

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Tensor) -> Tensors:
        messages, *tensors = ctx.saved_tensors
        count = ctx.problem.count
        bent = curvature_rule(ctx.effort, ctx.problem, messages, *tensors, *tangents[:count])
        return plus(bent, response_rule(ctx.effort, ctx.problem, messages, *tensors[:count], *tangents[count:]))


class Curvature(Function):
    """The second derivative of the marginals times two tangents."""

    @staticmethod
    def forward(effort: Effort, problem: Problem, messages: Tensor, *tensors: Tensor) -> Tensors:
        count = problem.count
        scores, first, second = (tensors[k * count : (k + 1) * count] for k in range(3))
        return _derivative(effort, problem, messages, scores, [first, second])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        raise Refusal(
            "belief_propagation has derivatives of marginals up to the second. Try `log_partition` of a structure, "
            "which has them all."
        )


point_rule, response_rule, curvature_rule = (rule(each, fold=True) for each in (Point, Response, Curvature))


# The decorator loads the compiler when what it decorates is called.
@torch._disable_dynamo
def _uncompiled(*arguments: Any) -> Tensors:
    """torch.compile breaks the graph here, since the number of sweeps depends on values."""
    return point_rule(*arguments)


def belief_propagation(
    scores: Mapping[str, Tensor],
    graph: FactorGraph,
    *,
    max_iter: int = 1000,
    tol: float = 1e-9,
    damping: float = 0.0,
) -> Beliefs:
    """Marginals and log-partition of a factor graph by sum-product message passing. Exact on trees.

    The distribution is p(y) ∝ exp⟨θ, y⟩ over the members of the graph: 0/1 variables that satisfy all factors. Factors
    and variables send each other messages until the factors' marginals agree on the variables they share. If no two
    factors are joined by two paths, as in a tree, marginals and log Z are exact. On other graphs they are those
    of the Bethe approximation, which is good where couplings are weak, and messages need not converge. Computed in
    float64, on the device of the scores. Inside torch.compile it breaks the graph and runs eagerly.

    Args:
        scores: θ by name, each (…, *shape); leading batch dimensions broadcast. −inf forbids: the variable is 0.
        graph: a `FactorGraph`. The structures among its factors should have `marginals`.
        max_iter: how many sweeps an instance may use; a tree needs about as many as its longest path. Beyond
            that, it warns, and `converged` is False.
        tol: by how much a factor's marginal of a variable and the variable's own may differ.
        damping: how much of the last messages is kept, 0 ≤ damping < 1. More of it helps messages that oscillate.

    Returns:
        `Beliefs` with `marginals` by name, in the shapes of the scores, and `log_partition`, whose gradient they are:
        both differentiable, by solving linear equations at the fixed point. Then, for each instance, `iterations`,
        whether it `converged`, and the `residual`. Where messages show that nothing satisfies all factors, as on trees
        they always do, marginals are zeros and the log-partition is −inf.

    Examples:
        >>> import torch, structmax
        >>> word = structmax.factors.Variables("word", (3,))
        >>> graph = structmax.FactorGraph(
        ...     structmax.factors.Xor(word[0], word[1]), structmax.factors.Imply(word[1], word[2])
        ... )
        >>> found = structmax.belief_propagation({"word": torch.zeros(3)}, graph)
        >>> found.marginals["word"], found.log_partition.exp()
        (tensor([0.6667, 0.3333, 0.6667]), tensor(3.))

    Reference: Pearl 1988, Probabilistic reasoning in intelligent systems; Yedidia, Freeman & Weiss 2005, Constructing
    free energy approximations and generalized belief propagation algorithms; Smith & Eisner 2008, Dependency parsing by
    belief propagation.
    """
    check.instance("graph", graph, FactorGraph, "a FactorGraph", " A single structure has `marginals`.")
    check.whole("max_iter", max_iter, 1)
    check.positive("tol", tol)
    if not 0 <= damping < 1:
        raise ValueError(f"`damping` should be at least 0 and less than 1, but is {damping}.")
    _require_binary(graph)
    problem = Problem.of(scores, graph)  # type: ignore[arg-type]
    ask = _uncompiled if torch.compiler.is_compiling() else point_rule
    value, *rest = ask(Effort(max_iter, float(tol), float(damping)), problem.blank, *problem.scores)
    iterations, converged, residual, _ = rest[problem.count :]
    found = Beliefs(
        problem.named(tuple(rest[: problem.count])),
        problem.shaped(value),
        *problem.with_batch((iterations, converged, residual)),
    )
    _warn(found)
    return found


def _require_binary(graph: FactorGraph) -> None:
    """Parts that are used several times have no binary belief."""
    like: Any = tuple(torch.zeros(variables.shape) for variables in graph.layout.variables)
    for name, counted in zip(graph.names, graph.counts(like), strict=True):
        if counted and name in graph.layout.bound:
            raise ValueError(
                f"`{name}` should be free: a structure of the graph uses its parts several times, and a variable is 0 "
                f"or 1. Try Variables({name!r}, …, free=True)."
            )


def _warn(found: Beliefs) -> None:
    if not check.readable(found.converged):
        return
    missed = ~found.converged & ~found.residual.isnan()
    if bool(missed.any()):
        warnings.warn(
            f"belief_propagation: {int(missed.sum())} of {missed.numel()} instances have not converged: marginals "
            f"differ by up to {found.residual[missed].max().item():.1e}. Try `damping=0.5`, or a larger `max_iter`.",
            stacklevel=3,
        )
