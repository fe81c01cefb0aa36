"""Fenchel-Young losses of a structure: the conjugate of a regulariser Ω at the scores, measured at a target.

    L(θ, y) = Ω*(θ) + Ω(y) − ⟨θ, y⟩          ∇L = μ̂(θ) − y          Ω*(θ) = max over μ in conv(Y) of ⟨θ, μ⟩ − Ω(μ)

It is convex in θ, never negative, and 0 exactly where the point μ̂(θ) is the target. A cost linear in the parts,
cost(z) = ⟨c, z − y⟩, turns it into a margin loss by a shift of the scores:

    max over μ of ⟨θ, μ⟩ + cost(μ) − Ω(μ), plus Ω(y) − ⟨θ, y⟩,  is  L(θ + c, y)

Reference: Blondel, Martins & Niculae 2020, Learning with Fenchel-Young losses, https://arxiv.org/abs/1901.02324.
"""

import math

from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.omega.base import AbstractOmega, value_of
from structmax.parts import Tensors, score
from structmax.problem import Problem
from structmax.questions.smoothed import checked


def reduce(losses: Tensor, reduction: str) -> Tensor:
    """The losses of all instances, reduced as `reduction` says."""
    check.choice("reduction", reduction, ("mean", "sum", "none"))
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


def reduced(problem: Problem, losses: Tensor, reduction: str) -> Tensor:
    """The losses (B,) of a problem as an answer, rounded once."""
    if reduction == "none":
        return problem.shaped(losses)
    return reduce(losses, reduction).to(problem.dtype)


def fenchel_young(
    scores: Scores,
    structure: AbstractStructure,
    target: Scores,
    omega: AbstractOmega,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """The Fenchel-Young loss Ω*(θ) + Ω(y) − ⟨θ, y⟩ of a structure; gradient point − target. 0 iff they are the same.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        target: y, the parts of a structure for each instance, as `structure.encode` makes them.
        omega: a regulariser of `structmax.omega`: `Zero()`, `Entropy(t)`, `SquaredNorm(t)`, `LocalL2(t)`,
            `LocalTsallis(alpha, t)`, or your own.
        reduction: "mean" over the instances, "sum" or "none".
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A scalar, or the batch shape for "none". +inf for a target with a forbidden part.

    Examples:
        >>> import torch, structmax
        >>> x, y = torch.tensor([[1.0, 0.5], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> structmax.fenchel_young(x, structmax.Matching(), y, structmax.omega.Zero())
        tensor(2.5000)

    Reference: Blondel, Martins & Niculae 2020, https://arxiv.org/abs/1901.02324.
    """
    problem = Problem.of(scores, structure, backend, wide=True)
    return reduced(problem, loss(problem, problem.given("target", target), checked(omega)), reduction)


def loss(problem: Problem, target: Tensors, omega: AbstractOmega) -> Tensor:
    """value + Ω(y) − ⟨θ, y⟩ of every instance: (B,)."""
    of_target = score(problem.scores, target)
    best = value_of(omega, problem)
    value = best + omega.at(problem, target) - of_target
    # 0, not −inf, where there are no structures; +inf, not −inf + inf, for a forbidden target
    return value.masked_fill(best.isneginf(), 0.0).masked_fill(of_target.isneginf(), math.inf)
