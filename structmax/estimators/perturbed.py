"""Perturbed optimisers: the mean of argmax under noise is smooth, and sampling estimates its Jacobian too.

    F(θ) = E max⟨θ + σ ε, y⟩          z(θ) = ∇F(θ) = E argmax⟨θ + σ ε, y⟩

With s = −∇ log density of ε, integration by parts moves the derivative from the argmax, which has none, to the density:

    ∇z(θ) = E[ y(θ + σ ε) s(ε)ᵀ ] / σ          s(ε) = ε for the normal, 1 − exp(−ε) for the Gumbel distribution

E s = 0, so y(θ + σ ε) may be replaced by y(θ + σ ε) − y(θ), which varies less (a control variate).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.surrogate import AbstractChoice
from structmax.inference.argmax import argmax
from structmax.inference.composed import summed
from structmax.inference.oracle import Oracle, Tensors, noise_like, plus, repeated, where
from structmax.inference.perturb import Normal, SmoothNoise
from structmax.inference.question import countable, front, inner, scaled


def _check(samples: object, sigma: object, noise: object) -> None:
    check.whole("samples", samples, 1)
    check.positive("sigma", sigma)
    if not isinstance(noise, SmoothNoise):
        raise TypeError(f"`noise` should be Normal(), Gumbel() or Logistic(), of known density, but is {noise!r}.")


@dataclass(frozen=True)
class Perturbed(AbstractChoice):
    """z = mean over samples of argmax⟨θ + σ ε, y⟩ forward; backward an unbiased estimate of the Jacobian of its mean.

        ∂L/∂θ = mean over samples of ⟨g, y(θ + σ ε)⟩ s(ε) / σ,       s = −∇ log density of ε

    Args:
        samples: how many draws of ε, ≥ 1.
        sigma: σ, how strong the noise is, > 0.
        noise: the distribution of ε: `Normal()`, `Gumbel()` or `Logistic()`.
        control_variate: take ⟨g, y(θ + σ ε) − y(θ)⟩ in the gradient: one best structure more, less variance.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
        >>> g = torch.Generator().manual_seed(0)
        >>> z = structmax.surrogate(x, structmax.Simplex(), structmax.Perturbed(1000, 0.5), generator=g)
        >>> z.detach()
        tensor([0.0480, 0.2280, 0.7240])

    Reference: Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, https://arxiv.org/abs/2002.08676.
    """

    samples: int = 10
    sigma: float = 1.0
    noise: SmoothNoise = Normal()  # noqa: RUF009
    control_variate: bool = False

    def __post_init__(self) -> None:
        _check(self.samples, self.sigma, self.noise)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def choose(self, ask: Oracle, scores: Tensors, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        rank = ask.rank(scores)
        many = repeated(scores, self.samples, rank)
        noise = noise_like(self.noise, many, generator)
        every = ask.each(argmax, plus(many, noise, self.sigma))
        return tuple(y.mean(rank) for y in every), (*noise, *every)

    def pullback(self, ask: Oracle, scores: Tensors, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        rank = ask.rank(scores)
        noise, every = saved[: len(scores)], saved[len(scores) :]
        if self.control_variate:
            every = plus(every, repeated(ask.parts(argmax, scores), self.samples, rank), -1.0)
        # ⟨g, y⟩ of every draw: (batch, samples)
        weight = inner(every, tuple(d.unsqueeze(rank) for d in d_z), ask.structure) / self.sigma
        d_scores = tuple(d.mean(rank) for d in scaled(weight, tuple(self.noise.slope(e) for e in noise)))
        return where(ask.possible(scores), d_scores)


@summed
def perturbed_value(
    scores: Scores,
    structure: AbstractStructure,
    samples: int = 10,
    sigma: float = 1.0,
    *,
    noise: SmoothNoise = Normal(),  # noqa: B008
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """The smoothed maximum F(θ) = E max⟨θ + σ ε, y⟩ over y in Y, by samples. Its gradient is the mean of the argmaxes.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        samples: how many draws of ε, ≥ 1.
        sigma: σ, how strong the noise is, > 0.
        noise: the distribution of ε: `Normal()`, `Gumbel()` or `Logistic()`.
        generator: source of chance.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> structmax.perturbed_value(torch.zeros(2), structmax.Simplex(), 10_000, generator=g)  # 1/√π
        tensor(0.5534)

    Reference: Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, https://arxiv.org/abs/2002.08676.
    """
    _check(samples, sigma, noise)
    tensors, _ = front(scores, structure, backend)
    ask = Oracle(structure, backend)
    rank = ask.rank(tensors)
    many = repeated(tensors, samples, rank)
    perturbed = plus(many, noise_like(noise, many, generator), sigma)
    best = ask.each(argmax, tuple(p.detach() for p in perturbed))
    return inner(countable(perturbed, best), best, structure).mean(rank)
