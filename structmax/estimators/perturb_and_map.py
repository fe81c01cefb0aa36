"""Perturb-and-MAP with a gradient: the best structure of noisy scores, straight-through at those scores."""

from dataclasses import dataclass

import torch

from structmax import check
from structmax.estimators.pullbacks import AbstractPullback, Identity, Marginals
from structmax.estimators.surrogate import AbstractChoice
from structmax.inference.argmax import argmax
from structmax.inference.oracle import Oracle, Tensors, noise_like, plus
from structmax.inference.perturb import Gumbel, Noise


@dataclass(frozen=True)
class PerturbAndMap(AbstractChoice):
    """z = argmax⟨θ + temperature · ε, y⟩ forward; backward straight-through at the perturbed scores.

    Args:
        noise: the distribution of ε: `Gumbel()`, `Logistic()`, `Normal()` or `SumOfGamma(k)`.
        temperature: how strong the noise is, > 0.
        backward: as in `StraightThrough`; at θ + temperature · ε.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(2, 3, 3, requires_grad=True)
        >>> estimator = structmax.PerturbAndMap(backward=structmax.Marginals())
        >>> trees, g = structmax.SpanningTree(single_root=True), torch.Generator().manual_seed(0)
        >>> z = structmax.surrogate(x, trees, estimator, generator=g)
        >>> trees.decode(z)
        tensor([[2, 0],
                [0, 1]])

    Reference: Corro & Titov 2019, Differentiable perturb-and-parse, https://arxiv.org/abs/1807.09875.
    """

    noise: Noise = Gumbel()  # noqa: RUF009
    temperature: float = 1.0
    backward: AbstractPullback = Identity()  # noqa: RUF009

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax", *self.backward.needs)

    def choose(self, ask: Oracle, scores: Tensors, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        perturbed = plus(scores, noise_like(self.noise, scores, generator), self.temperature)
        return ask.parts(argmax, perturbed), perturbed

    def pullback(self, ask: Oracle, scores: Tensors, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        return self.backward.pullback(ask, saved, d_z)


def StraightThroughGumbel(temperature: float = 1.0) -> PerturbAndMap:  # noqa: N802
    """argmax(θ + G) forward, an exact draw on the Simplex; backward through the marginals at (θ + G) / temperature.

    Args:
        temperature: of the marginals, > 0.

    Returns:
        `PerturbAndMap(Gumbel(), backward=Marginals(temperature))`.

    Examples:
        >>> import structmax
        >>> structmax.StraightThroughGumbel(0.5)
        PerturbAndMap(noise=Gumbel(), temperature=1.0, backward=Marginals(temperature=0.5))

    Reference: Jang, Gu & Poole 2017, https://arxiv.org/abs/1611.01144.
    """
    return PerturbAndMap(Gumbel(), backward=Marginals(temperature))
