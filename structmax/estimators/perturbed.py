"""Perturbed optimisers: the mean of argmax under noise is smooth, and sampling estimates its Jacobian too.

    F(θ) = E max⟨θ + t ε, y⟩          z(θ) = ∇F(θ) = E argmax⟨θ + t ε, y⟩

With s = −∇ log density of ε, integration by parts moves the derivative from the argmax, which has none, to the density:

    ∇z(θ) = E[ y(θ + t ε) s(ε)ᵀ ] / t          s(ε) = ε for the normal, 1 − exp(−ε) for the Gumbel distribution

E s = 0, so y(θ + t ε) may be replaced by y(θ + t ε) − y(θ), which varies less (a control variate).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.possible import best_of_each, lifted, possible
from structmax.estimators.surrogate import AbstractChoice
from structmax.noise import AbstractSmoothNoise, Normal, noise_like
from structmax.parts import Tensors, countable, inner, plus, scaled, where
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


def _check(samples: object, temperature: object, noise: object) -> None:
    check.whole("samples", samples, 1)
    check.positive("temperature", temperature)
    check.instance("noise", noise, AbstractSmoothNoise, "Normal(), Gumbel() or Logistic(), of known density")


@dataclass(frozen=True)
class Perturbed(AbstractChoice):
    """z = mean over samples of argmax⟨θ + t ε, y⟩ forward; backward an unbiased estimate of the Jacobian of its mean.

        ∂L/∂θ = mean over samples of ⟨g, y(θ + t ε)⟩ s(ε) / t,       s = −∇ log density of ε

    Args:
        samples: how many draws of ε, ≥ 1.
        temperature: t, how strong the noise is, > 0.
        noise: the distribution of ε: `Normal()`, `Gumbel()` or `Logistic()`.
        control_variate: take ⟨g, y(θ + t ε) − y(θ)⟩ in the gradient: one best structure more, less variance.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
        >>> g = torch.Generator().manual_seed(0)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.estimators.Perturbed(1000, 0.5), generator=g)
        >>> z.detach()
        tensor([0.0480, 0.2280, 0.7240])

    Reference: Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, https://arxiv.org/abs/2002.08676.
    """

    samples: int = 10
    temperature: float = 1.0
    noise: AbstractSmoothNoise = Normal()  # noqa: RUF009
    control_variate: bool = False

    def __post_init__(self) -> None:
        _check(self.samples, self.temperature, self.noise)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        many = lifted(problem.scores, self.samples)
        noise = noise_like(self.noise, many, generator)
        every = best_of_each(problem, plus(many, noise, self.temperature))
        return tuple(y.mean(1) for y in every), (*noise, *every)

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        noise, every = saved[: problem.count], saved[problem.count :]
        if self.control_variate:
            every = plus(every, lifted(ZERO.point(problem), self.samples), -1.0)
        # ⟨g, y⟩ of every draw: (B, samples)
        weight = inner(every, tuple(d.unsqueeze(1) for d in d_z), 2) / self.temperature
        d_scores = tuple(d.mean(1) for d in scaled(weight, tuple(self.noise.slope(e) for e in noise)))
        return where(possible(problem), d_scores)


def perturbed_value(
    scores: Scores,
    structure: AbstractStructure,
    *,
    samples: int = 10,
    temperature: float = 1.0,
    noise: AbstractSmoothNoise = Normal(),  # noqa: B008
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """The smoothed maximum F(θ) = E max⟨θ + t ε, y⟩ over y in Y, by samples. Its gradient is the mean of the argmaxes.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        samples: how many draws of ε, ≥ 1.
        temperature: t, how strong the noise is, > 0.
        noise: the distribution of ε: `Normal()`, `Gumbel()` or `Logistic()`.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.perturbed_value(torch.zeros(2), structmax.Simplex(), samples=10_000, generator=g)  # 1/√π
        tensor(0.5534)

    Reference: Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, https://arxiv.org/abs/2002.08676.
    """
    _check(samples, temperature, noise)
    problem = Problem.of(scores, structure, backend)
    many = lifted(problem.scores, samples)
    perturbed = plus(many, noise_like(noise, many, generator), temperature)
    best = best_of_each(problem, tuple(p.detach() for p in perturbed))
    return problem.shaped(inner(countable(perturbed, best), best, 2).mean(1))
