"""Implicit maximum likelihood: the difference of two best structures, before and after a step against the cotangent."""

from dataclasses import dataclass

import torch

from structmax import check
from structmax.estimators.possible import best_of_each, lifted
from structmax.estimators.surrogate import AbstractChoice
from structmax.noise import AbstractNoise, Gumbel, noise_like
from structmax.parts import Tensors, plus
from structmax.problem import Problem


@dataclass(frozen=True)
class ImplicitMLE(AbstractChoice):
    """z = argmax⟨θ + ε, y⟩ forward; ∂L/∂θ = (z(θ + ε) − z(θ − step · g + ε)) / step, with the same ε in both.

    With several samples z is their mean, a point inside conv(Y), and so is the gradient. For as many discrete z give
    the scores one more batch dimension, `scores.expand(S, …)`.

    Args:
        step: λ, > 0. Small steps leave the best structure unchanged, and the gradient is 0; large ones
            point to the structure that the cotangent prefers.
        samples: how many draws of ε, ≥ 1.
        noise: the distribution of ε: `Gumbel()`, `Logistic()`, `Normal()`, or `SumOfGamma(k)` for k parts.
        temperature: how strong the noise is, > 0.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(4, requires_grad=True)
        >>> estimator = structmax.estimators.ImplicitMLE(step=10.0, noise=structmax.noise.SumOfGamma(2))
        >>> z = structmax.surrogate(x, structmax.Subset(2), estimator, generator=torch.Generator().manual_seed(0))
        >>> (z * torch.tensor([0.0, 0.0, 5.0, 5.0])).sum().backward()
        >>> z.detach(), x.grad
        (tensor([0., 1., 0., 1.]), tensor([-0.1000,  0.0000,  0.0000,  0.1000]))

    Reference: Niepert, Minervini & Franceschi 2021, Implicit MLE, https://arxiv.org/abs/2106.01798.
    """

    step: float = 1.0
    samples: int = 1
    noise: AbstractNoise = Gumbel()  # noqa: RUF009
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("step", self.step)
        check.whole("samples", self.samples, 1)
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        many = lifted(problem.scores, self.samples)
        perturbed = plus(many, noise_like(self.noise, many, generator), self.temperature)
        return _mean(problem, perturbed), perturbed

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        better = plus(saved, lifted(d_z, self.samples), -self.step)
        return tuple(d / self.step for d in plus(z, _mean(problem, better), -1.0))


def _mean(problem: Problem, many: Tensors) -> Tensors:
    """The mean of the best structures for scores with a dimension of draws behind the batch."""
    return tuple(z.mean(1) for z in best_of_each(problem, many))
