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
    """Standard Gumbel noise: argmax(θ + ε) over the simplex is an exact draw of softmax(θ).

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> scores, noise = torch.tensor([0.0, 1.0]), structmax.noise.Gumbel()
        >>> draws = structmax.perturb_and_map(scores, structmax.Simplex(), (10000,), noise=noise, generator=g)
        >>> torch.allclose(draws.mean(0), scores.softmax(-1), atol=0.01)
        True
    """

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return gumbel_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return 1 - (-noise).exp()


@dataclass(frozen=True)
class Logistic(AbstractSmoothNoise):
    """Standard logistic noise: θ + ε > 0 is an exact draw of a bit with probability sigmoid(θ).

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> scores, noise = torch.tensor([0.0, 1.0]), structmax.noise.Logistic()
        >>> draws = structmax.perturb_and_map(scores, structmax.Bits(), (10000,), noise=noise, generator=g)
        >>> torch.allclose(draws.mean(0), scores.sigmoid(), atol=0.01)
        True
    """

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return logistic_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return (noise / 2).tanh()


@dataclass(frozen=True)
class Normal(AbstractSmoothNoise):
    """Standard normal noise.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.noise.Normal().like(torch.zeros(10000), g).std().round(decimals=1)
        tensor(1.)
    """

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

    Examples:
        Pairs of items, whose two parts add up to one Gumbel:

        >>> import torch, structmax
        >>> noise, g = structmax.noise.SumOfGamma(2), torch.Generator().manual_seed(0)
        >>> structmax.perturb_and_map(torch.zeros(4), structmax.Subset(2), noise=noise, generator=g).sum()
        tensor(2.)

    Reference: Niepert, Minervini & Franceschi 2021, https://arxiv.org/abs/2106.01798.
    """

    k: int
    iterations: int = 10

    def __post_init__(self) -> None:
        check.whole("k", self.k, 1)
        check.whole("iterations", self.iterations, 1)

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        check.generator(generator)
        wide = torch.promote_types(scores.dtype, torch.float32)
        shape = torch.full(scores.shape, 1 / self.k, dtype=wide, device=scores.device)
        # k/i · Gamma(1/k), and 1/k in front of the sum
        terms = [torch._standard_gamma(shape, generator=generator) / i for i in range(1, self.iterations + 1)]
        return sum(terms[1:], terms[0]) - math.log(self.iterations) / self.k


def noise_like(noise: AbstractNoise, scores: Tensors, generator: torch.Generator | None) -> Tensors:
    """Noise in the dtype of the scores."""
    return tuple(noise.like(s, generator).to(s.dtype) for s in scores)
