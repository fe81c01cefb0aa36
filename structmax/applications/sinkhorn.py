"""Entropic relaxations of matchings: the Sinkhorn operator, by Newton's method, with its exact derivatives.

    F(θ) = max over μ of ⟨θ, μ⟩ − τ Σ μ (log μ − 1)       over matrices μ ≥ 0 with sums of rows and columns 1 (or ≤ 1)
    μ = ∇F(θ),    ∇²F(θ) t = μ ∘ (t − a ⊕ b) / τ          where μ ∘ (t − a ⊕ b) has sums 0, if those of μ are held at 1

The potentials a ⊕ b = K x with x = μ ∘ t are linear and symmetric in x, and their derivative by μ is of that kind too:

    dK[δ] x = −K (δ ∘ K x)          so K has the cotangents  d_x = K d,  d_μ = −(K d) ∘ (K x)

With K as the one rule, derivatives of every order are composed of it; no iteration is ever unrolled.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.outline import outline
from structmax.parts import inner, scaled
from structmax.problem import Problem
from structmax.structures.matching import Matching


class EntropicMatching(NamedTuple):
    """The result of `sinkhorn`, and how exact it is, for each instance."""

    marginals: Tensor
    value: Tensor
    iterations: Tensor
    converged: Tensor
    error: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Potentials(Function):
    """K x at μ."""

    @staticmethod
    def forward(problem: Problem, tol: float, mu: Tensor, x: Tensor) -> Tensor:
        return problem.ask("potentials", mu, x, tol=tol)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.problem, ctx.tol, mu, _ = inputs
        ctx.save_for_backward(mu, output)
        ctx.save_for_forward(mu, output)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Any, ...]:
        mu, kx = ctx.saved_tensors
        kd = potentials_rule(ctx.problem, ctx.tol, mu, d)
        return None, None, -kd * kx, kd

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, d_mu: Tensor | None, d_x: Tensor | None) -> Tensor:
        mu, kx = ctx.saved_tensors
        moved = torch.zeros_like(kx) if d_mu is None else -d_mu * kx
        return potentials_rule(ctx.problem, ctx.tol, mu, moved if d_x is None else moved + d_x)


potentials_rule = rule(Potentials, fold=True)


class Point(Function):
    """μ, F, and how well they are solved; the first two are differentiable."""

    @staticmethod
    def forward(problem: Problem, numbers: tuple[tuple[str, float], ...], theta: Tensor) -> tuple[Tensor, ...]:
        return tuple(problem.ask("sinkhorn", theta, **dict(numbers)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.problem, ctx.numbers, _ = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(output[0])
        ctx.save_for_forward(output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_mu: Tensor | None, d_value: Tensor | None, *_: None) -> tuple[Any, ...]:
        (mu,) = ctx.saved_tensors
        pulled = None if d_mu is None else _hessian(ctx, mu, d_mu)
        if d_value is not None:
            (straight,) = scaled(d_value, (mu,))
            pulled = straight if pulled is None else pulled + straight
        return None, None, pulled

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, tangent: Tensor) -> tuple[Any, ...]:
        (mu,) = ctx.saved_tensors
        return _hessian(ctx, mu, tangent), inner((mu,), (tangent,)), None, None, None


def _hessian(ctx: Any, mu: Tensor, t: Tensor) -> Tensor:
    """∇²F t = μ ∘ (t − K (μ ∘ t)) / τ"""
    numbers = dict(ctx.numbers)
    return mu * (t - potentials_rule(ctx.problem, numbers["tol"], mu, mu * t)) / numbers["temperature"]


point_rule = rule(Point, fold=True)


def sinkhorn(
    scores: Tensor,
    matching: Matching | None = None,
    *,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
    backend: str = "auto",
) -> EntropicMatching:
    """The entropic matching: argmax over μ of ⟨θ, μ⟩ − temperature Σ μ (log μ − 1). A soft permutation matrix.

    Rows and columns of μ have the sums that averages of matchings have: 1 on the smaller side (on both, if they are
    equally long), at most 1 elsewhere, with `Matching(partial=True)` at most 1 on both. As the temperature falls, μ
    tends to the best matching; for square scores it is the limit of normalising rows and columns of
    exp(θ / temperature) alternately. Here it is found by Newton's method, in a few dozen steps even where alternating
    would take millions.

    Args:
        scores: θ (…, N, M), with any leading batch dimensions. −inf forbids a pair.
        matching: the lengths, and whether rows and columns may stay unmatched; by default `Matching()`.
        temperature: a number > 0.
        max_iter: how often the sums of an instance are computed, at most.
        tol: by how much a sum may miss 1.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `EntropicMatching` with `marginals` μ, shaped as the scores, and `value`, the maximum, whose gradient is μ: both
        differentiable any number of times, by solving linear equations. Then, for each instance, `iterations`,
        whether it `converged`, and `error`, the largest violation of a sum; a warning is raised if some did not. Where
        no matching exists, μ is zeros and the value −inf.

    Examples:
        >>> import torch, structmax
        >>> structmax.sinkhorn(torch.tensor([[2.0, 0.0], [1.0, 1.0]])).marginals
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])

    Reference: Sinkhorn & Knopp 1967; Cuturi 2013, https://arxiv.org/abs/1306.0895; Mena, Belanger, Linderman & Snoek
    2018, https://arxiv.org/abs/1802.08665.
    """
    matching = Matching() if matching is None else matching
    if not isinstance(matching, Matching):
        kind = matching.__name__ + " itself" if isinstance(matching, type) else type(matching).__name__
        raise TypeError(f"`matching` should be a Matching, but is {kind}. Try `Matching()`.")
    check.number("temperature", temperature)
    check.number("tol", tol)
    check.whole("max_iter", max_iter, 1)
    problem = Problem.of(scores, matching, backend)
    numbers = (("temperature", float(temperature)), ("tol", float(tol)), ("max_iter", max_iter))
    answer = point_rule(problem.blank, numbers, *problem.scores)
    mu, value, error, iterations, converged = problem.with_batch(answer)
    found = EntropicMatching(mu, value, iterations, converged, error)
    if check.readable(found.converged):
        missed = ~found.converged & (found.error > 0)
        if bool(missed.any()):
            warnings.warn(
                f"sinkhorn: {int(missed.sum())} of {missed.numel()} instances have not converged: sums miss 1 by up to "
                f" {found.error[missed].max().item():.1e}. Try a larger `max_iter` or a higher `temperature`.",
                stacklevel=2,
            )
    return found
