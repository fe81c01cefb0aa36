"""Distributions of noise that is added to scores: for `perturb_and_map`, `perturbed_loss` and several estimators."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.numerics.noise import gumbel_like, logistic_like, normal_like
from structmax.parts import Tensors

__all__ = ["AbstractNoise", "AbstractSmoothNoise", "Gumbel", "Logistic", "Normal", "SumOfGamma"]


class AbstractNoise(ABC):
    """Independent noise for each part."""

    @abstractmethod
    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        """Noise in the shape of the scores, in float32 or wider."""


class AbstractSmoothNoise(AbstractNoise):
    """Noise whose density is known, so that means over it can be differentiated."""

    @abstractmethod
    def slope(self, noise: Tensor) -> Tensor:
        """−∇ log density at the noise: E[g(ε) slope(ε)] = E[∇g(ε)], which differentiates what is only sampled."""


@dataclass(frozen=True)
class Gumbel(AbstractSmoothNoise):
    """Standard Gumbel noise: argmax(θ + ε) over the simplex is an exact draw of softmax(θ)."""

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return gumbel_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return 1 - (-noise).exp()


@dataclass(frozen=True)
class Logistic(AbstractSmoothNoise):
    """Standard logistic noise: θ + ε > 0 is an exact draw of a bit with probability sigmoid(θ)."""

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return logistic_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return (noise / 2).tanh()


@dataclass(frozen=True)
class Normal(AbstractSmoothNoise):
    """Standard normal noise."""

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return normal_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return noise


@dataclass(frozen=True)
class SumOfGamma(AbstractNoise):
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


def noise_like(noise: AbstractNoise, scores: Tensors, generator: torch.Generator | None) -> Tensors:
    """Noise in the dtype of the scores."""
    return tuple(noise.like(s, generator).to(s.dtype) for s in scores)
