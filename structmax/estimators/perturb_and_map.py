"""Perturb-and-MAP with a gradient: the best structure of noisy scores, straight-through at those scores."""

from dataclasses import dataclass

import torch

from structmax import check
from structmax.estimators.pullbacks import Identity, Pullback
from structmax.estimators.surrogate import AbstractChoice
from structmax.noise import AbstractNoise, Gumbel, noise_like
from structmax.omega.smooth import Entropy
from structmax.parts import Tensors, plus
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


@dataclass(frozen=True)
class PerturbAndMAP(AbstractChoice):
    """z = argmax⟨θ + temperature · ε, y⟩ forward; backward straight-through at the perturbed scores.

    Args:
        noise: the distribution of ε: `Gumbel()`, `Logistic()`, `Normal()` or `SumOfGamma(k)`.
        temperature: how strong the noise is, > 0.
        backward: as in `StraightThrough`; at θ + temperature · ε.

    Examples:
        >>> import torch, structmax
        >>> x = torch.zeros(2, 3, 3, requires_grad=True)
        >>> estimator = structmax.estimators.PerturbAndMAP(backward=structmax.omega.Entropy())
        >>> trees, g = structmax.SpanningTree(single_root=True), torch.Generator().manual_seed(0)
        >>> z = structmax.surrogate(x, trees, estimator, generator=g)
        >>> trees.decode(z)
        tensor([[2, 0],
                [0, 1]])

    Reference: Corro & Titov 2019, Differentiable perturb-and-parse, https://arxiv.org/abs/1807.09875.
    """

    noise: AbstractNoise = Gumbel()  # noqa: RUF009
    temperature: float = 1.0
    backward: Pullback = Identity()  # noqa: RUF009

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax", *self.backward.needs)

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        perturbed = plus(problem.scores, noise_like(self.noise, problem.scores, generator), self.temperature)
        return ZERO.point(problem.at(perturbed)), perturbed

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        return self.backward.pullback(problem.at(saved), d_z)


def straight_through_gumbel(temperature: float = 1.0) -> PerturbAndMAP:
    """argmax(θ + G) forward, an exact draw on the Simplex; backward through the marginals at (θ + G) / temperature.

    Args:
        temperature: of the marginals, > 0.

    Returns:
        `PerturbAndMAP(Gumbel(), backward=Entropy(temperature))`.

    Examples:
        >>> import structmax
        >>> structmax.estimators.straight_through_gumbel(0.5)
        PerturbAndMAP(noise=Gumbel(), temperature=1.0, backward=Entropy(temperature=0.5))

    Reference: Jang, Gu & Poole 2017, https://arxiv.org/abs/1611.01144.
    """
    return PerturbAndMAP(Gumbel(), backward=Entropy(temperature))
