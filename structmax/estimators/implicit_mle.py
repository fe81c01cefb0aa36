"""Implicit maximum likelihood: the difference of two best structures, before and after a step against the cotangent."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.estimators.surrogate import AbstractChoice
from structmax.inference.argmax import argmax
from structmax.inference.oracle import Oracle, Tensors, noise_like, plus, repeated
from structmax.inference.perturb import Gumbel, Noise


@dataclass(frozen=True)
class SumOfGamma(Noise):
    """Noise of which k independent ones add up to a Gumbel: for structures with k parts.

        ε = (Σ over i ≤ iterations of Gamma(1/k, scale k/i) − log iterations) / k

    Args:
        k: how many parts a structure has, ≥ 1.
        iterations: terms of the sum, which is exact in the limit.

    Reference: Niepert, Minervini & Franceschi 2021, https://arxiv.org/abs/2106.01798.
    """

    k: int
    iterations: int = 10

    def __post_init__(self) -> None:
        check.whole("k", self.k, 1)
        check.whole("iterations", self.iterations, 1)

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        wide = torch.promote_types(scores.dtype, torch.float32)
        shape = torch.full(scores.shape, 1 / self.k, dtype=wide, device=scores.device)
        # k/i · Gamma(1/k), and 1/k in front of the sum
        terms = [torch._standard_gamma(shape, generator=generator) / i for i in range(1, self.iterations + 1)]
        return sum(terms[1:], terms[0]) - math.log(self.iterations) / self.k


@dataclass(frozen=True)
class ImplicitMLE(AbstractChoice):
    """z = argmax⟨θ + ε, y⟩ forward; ∂L/∂θ = (z(θ + ε) − z(θ − step · g + ε)) / step, with the same ε in both.

    With several samples z is their mean, a point inside conv(Y), and so is the gradient. For as many discrete z give
    the scores one more batch dimension, `scores.expand(S, …)`.

    Args:
        step: λ, > 0. Small ones leave the best structure as it is, and the gradient 0; large ones point to the
            structure that the cotangent likes best.
        samples: how many draws of ε, ≥ 1.
        noise: the distribution of ε: `Gumbel()`, `Logistic()`, `Normal()`, or `SumOfGamma(k)` for k parts.
        temperature: how strong the noise is, > 0.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(4, requires_grad=True)
        >>> estimator = structmax.ImplicitMLE(step=10.0, noise=structmax.SumOfGamma(2))
        >>> z = structmax.surrogate(x, structmax.Subset(2), estimator, generator=torch.Generator().manual_seed(0))
        >>> (z * torch.tensor([0.0, 0.0, 5.0, 5.0])).sum().backward()
        >>> z.detach(), x.grad
        (tensor([0., 1., 0., 1.]), tensor([-0.1000,  0.0000,  0.0000,  0.1000]))

    Reference: Niepert, Minervini & Franceschi 2021, Implicit MLE, https://arxiv.org/abs/2106.01798.
    """

    step: float = 1.0
    samples: int = 1
    noise: Noise = Gumbel()  # noqa: RUF009
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check.positive("step", self.step)
        check.whole("samples", self.samples, 1)
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def choose(self, ask: Oracle, scores: Tensors, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        many = repeated(scores, self.samples, ask.rank(scores))
        perturbed = plus(many, noise_like(self.noise, many, generator), self.temperature)
        return self.mean(ask, perturbed), perturbed

    def pullback(self, ask: Oracle, scores: Tensors, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        better = plus(saved, repeated(d_z, self.samples, ask.rank(scores)), -self.step)
        return tuple(d / self.step for d in plus(z, self.mean(ask, better), -1.0))

    def mean(self, ask: Oracle, many: Tensors) -> Tensors:
        """The mean of the best structures for scores with a dimension of draws behind the batch."""
        return tuple(z.mean(ask.rank(many) - 1) for z in ask.each(argmax, many))
