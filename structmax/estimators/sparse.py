"""Exact expectations under a sparse distribution: f is evaluated only where the probability is not 0."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.estimators.expectation import AbstractEstimator, Evaluations, in_front
from structmax.mappings.entmax import sparsemax
from structmax.omega.squared_norm import SquaredNorm
from structmax.parts import unflat
from structmax.problem import Problem
from structmax.questions.sparsemap import members_of
from structmax.questions.topk import best

# How many of the best structures are listed at first.
FEW = 16


@dataclass(frozen=True)
class SparseTopK(AbstractEstimator):
    """Σ q(y) f(y) with q = sparsemax of the scores ⟨θ, y⟩ of the k best structures. Deterministic.

    Where fewer than k structures have probability, q is the sparsemax over all of Y. Training makes it so: as the
    scores grow apart, the support shrinks, down to one evaluation of f.

    Args:
        k: how many of the best structures may have probability, ≥ 1.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.tensor([0.0, 1.4, 2.0]), torch.tensor([3.0, 2.0, 1.0])
        >>> structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), structmax.estimators.SparseTopK(3))
        Expectation(value: 1.2; evaluations: 2; torch.float32, cpu)

    Reference: Correia, Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent
    variables via sparsity, https://arxiv.org/abs/2007.01919.
    """

    k: int = 10

    def __post_init__(self) -> None:
        check.whole("k", self.k, 1)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def needs(self) -> tuple[str, ...]:
        return ("topk",)

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        # a backend that was named should take k, or refuse it, whatever the scores are
        k = min(self.k, FEW) if problem.backend == "auto" else self.k
        values, parts = best(problem, k)
        q = sparsemax(values)
        # Where the last of them has no probability, those behind it have none either.
        while k < self.k and not (q[:, -1] == 0).all():
            k = min(self.k, 4 * k)
            values, parts = best(problem, k)
            q = sparsemax(values)
        return f.summed(problem, in_front(parts), q.movedim(1, 0))


@dataclass(frozen=True)
class SparseSupport(AbstractEstimator):
    """Σ q(y) f(y) with q the distribution of `sparsemap` over few structures. Deterministic.

    On the Simplex q = sparsemax(θ / temperature). The support has at most as many structures as an instance has parts,
    and one; it only needs best structures.

    Args:
        temperature: a number > 0; fewer structures as it falls.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.tensor([0.0, 1.4, 2.0]), torch.tensor([3.0, 2.0, 1.0])
        >>> structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), structmax.estimators.SparseSupport())
        Expectation(value: 1.2; evaluations: 2; torch.float32, cpu)

    Reference: Correia, Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent
    variables via sparsity, https://arxiv.org/abs/2007.01919.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def unbiased(self) -> bool:
        return False

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        found = SquaredNorm(self.temperature).distribution(problem)
        q = found.probabilities.movedim(1, 0)
        structures = unflat(members_of(found.lists, problem.scores), problem.scores)
        # An instance with NaN among its scores has no support that could show it.
        return f.summed(problem, in_front(structures), q.masked_fill(found.value.isnan(), math.nan))
