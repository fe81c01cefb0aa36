"""Gumbel-CRF: a draw by forward filtering and backward sampling, relaxed at every choice it makes."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import backends, check, rooms
from structmax.autograd import rule
from structmax.estimators.surrogate import AbstractSurrogate, final_rule
from structmax.numerics.noise import gumbel_like
from structmax.parts import Tensors
from structmax.problem import Problem


@dataclass(frozen=True)
class GumbelRecursion(AbstractSurrogate):
    """Gumbel-CRF for any recursion: z is an exact draw of p(y) ∝ exp⟨θ, y⟩; backward, each of its choices is relaxed.

    A recursion with values v has the edge probabilities q(e) = exp(s(e) − v(head)). From the goal down, each node takes
    the best edge of log q + g, with Gumbel noise g of its own for each edge of each instance. The relaxed walk takes
    all edges of a node with weights

        w(e) = softmax((log q(e) + g(e)) / temperature)

    and its z counts the expected parts: E(goal) = 1, and an edge passes E(head) w(e) on to its tails and parts. As the
    temperature falls it tends to the draw. The gradient is the exact derivative of the relaxed z, through w and
    through the values. For a chain the walk goes backwards, and the relaxed state at t + 1 weighs the rows
    w(state at t | state at t + 1). The paper takes the row of the best state instead, which gives gradients only
    where states are decided one by one; here trees, segmentations and alignments have them as well.

    Structures without a recursion raise a `Refusal`: `straight_through_gumbel` and `gumbel_relaxation` put the noise on
    the parts instead. The noise takes as much memory as there are edges: C² for each step of a chain.

    Args:
        temperature: of the relaxed choices, > 0.
        hard: z is the draw itself, with the gradient of the relaxed one; otherwise z is relaxed. A `Hypergraph` whose
            derivation comes to one node twice raises an error for it, since both times it would choose alike.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(2, 4, 4, requires_grad=True)
        >>> trees, g = structmax.BinaryTree(), torch.Generator().manual_seed(0)
        >>> estimator = structmax.estimators.GumbelRecursion(temperature=0.5)
        >>> z = structmax.surrogate(x, trees, estimator, generator=g)
        >>> z.sum((-2, -1)).tolist()
        [7.0, 7.0]
        >>> z[0, 0, 1].backward()
        >>> bool(x.grad[0].any()), bool(x.grad[1].any())
        (True, False)

    Reference: Fu, Tan, Bi, Chen, Feng & Rush 2020, Latent template induction with Gumbel-CRFs,
    https://arxiv.org/abs/2011.14244.
    """

    temperature: float = 1.0
    hard: bool = True

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return "noisy_walk", "noisy_walk_pullback"

    def output(self, problem: Problem, generator: torch.Generator | None) -> Tensors:
        own = problem.unfolded()
        edges = backends.edge_count(own.structure.room, own.scores, {**own.shared, **own.fields})
        first = own.scores[0]
        gumbel = gumbel_like(first.detach().new_empty(1).expand(len(first), edges), generator)
        return walk_rule(self, problem.blank, gumbel, *problem.scores)


class Walk(Function):
    """The draw, or its relaxation."""

    @staticmethod
    def forward(estimator: GumbelRecursion, problem: Problem, gumbel: Tensor, *scores: Tensor) -> Tensors:
        gamma = 0.0 if estimator.hard else float(estimator.temperature)
        return tuple(problem.ask("noisy_walk", *scores, gumbel=gumbel, gamma=gamma))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.estimator, ctx.problem, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d_z: Tensor) -> tuple[Any, ...]:
        estimator, (gumbel, *scores) = ctx.estimator, ctx.saved_tensors
        d_scores = slope_rule(estimator, ctx.problem, gumbel, *scores, *d_z)
        if estimator.hard and torch.is_grad_enabled():
            d_scores = final_rule(repr(estimator), len(scores), *d_scores, *scores, *d_z)
        return None, None, None, *d_scores


class Slope(Function):
    """The pullback of the relaxation. Its own goes through the structure's reference in differentiable torch."""

    @staticmethod
    def forward(estimator: GumbelRecursion, problem: Problem, gumbel: Tensor, *scores_and_d_z: Tensor) -> Tensors:
        gamma = float(estimator.temperature)
        return tuple(problem.ask("noisy_walk_pullback", *scores_and_d_z, gumbel=gumbel, gamma=gamma))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.estimator, ctx.problem, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        problem, (gumbel, *tensors) = ctx.problem, ctx.saved_tensors
        reference: Any = rooms.function(problem.structure.room, "noisy_walk_pullback", "reference")
        fields = {**problem.shared, **problem.fields, "gumbel": gumbel, "gamma": float(ctx.estimator.temperature)}
        pullback = torch.func.vjp(lambda *t: reference(*t, **fields), *tensors)[1]
        return None, None, None, *pullback(d_out)


walk_rule, slope_rule = rule(Walk, fold=True), rule(Slope, fold=True)
