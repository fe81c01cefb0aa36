"""Perturb-and-MAP: the best structure of noisy scores, a draw that needs nothing but argmax.

    y = argmax over Y of ⟨θ + temperature · ε, y⟩

With a Gumbel for each member of Y it would be an exact draw of p(y) ∝ exp(⟨θ, y⟩ / temperature); with one for each part
it is another distribution, cheap for every structure, that agrees with it where parts are members: on the Simplex. On
Subset(k) it is Gumbel-top-k, k draws without replacement. Independent bits are exact under logistic noise.

Reference: Papandreou & Yuille 2011, Perturb-and-MAP random fields.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.argmax import argmax
from structmax.inference.composed import composed
from structmax.inference.question import front
from structmax.numerics.noise import gumbel_like, logistic_like, normal_like


class Noise(ABC):
    """Independent noise for each part."""

    @abstractmethod
    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        """Noise in the shape of the scores, in float32 or wider."""


class SmoothNoise(Noise):
    """Noise whose density is known, so that means over it can be differentiated."""

    @abstractmethod
    def slope(self, noise: Tensor) -> Tensor:
        """−∇ log density at the noise: E[g(ε) slope(ε)] = E[∇g(ε)], which differentiates what is only sampled."""


@dataclass(frozen=True)
class Gumbel(SmoothNoise):
    """Standard Gumbel noise: argmax(θ + ε) over the simplex is an exact draw of softmax(θ)."""

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return gumbel_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return 1 - (-noise).exp()


@dataclass(frozen=True)
class Logistic(SmoothNoise):
    """Standard logistic noise: θ + ε > 0 is an exact draw of a bit with probability sigmoid(θ)."""

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return logistic_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return (noise / 2).tanh()


@dataclass(frozen=True)
class Normal(SmoothNoise):
    """Standard normal noise."""

    def like(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        return normal_like(scores, generator)

    def slope(self, noise: Tensor) -> Tensor:
        return noise


@composed
def perturb_and_map(
    scores: Scores,
    structure: AbstractStructure,
    sample_shape: Sequence[int] = (),
    *,
    noise: Noise = Gumbel(),  # noqa: B008
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Any:
    """Independent draws argmax⟨θ + temperature · ε, y⟩, for any structure that answers `argmax`. Not differentiable.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        sample_shape: dimensions of independent draws, put in front.
        noise: the distribution of ε: `Gumbel()`, `Logistic()` or `Normal()`.
        temperature: how strong the noise is, > 0.
        generator: source of chance.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        0/1 parts, `sample_shape` followed by fields and shapes of the scores; zeros where nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> draws = structmax.perturb_and_map(x, structmax.Matching(), (1000,), generator=g)
        >>> structmax.Matching().decode(draws[0])
        tensor([0, 1])

    Reference: Papandreou & Yuille 2011, Perturb-and-MAP random fields; Kool, van Hoof & Welling 2019 for Gumbel-top-k.
    """
    check.positive("temperature", temperature)
    if not isinstance(noise, Noise):
        raise TypeError(f"`noise` should be Gumbel(), Logistic() or Normal(), but is {noise!r}.")
    tensors, _ = front(scores, structure, backend)
    wide = tuple(t.detach().expand(*sample_shape, *t.shape) for t in tensors)
    perturbed = tuple(t + temperature * noise.like(t, generator).to(t.dtype) for t in wide)
    return argmax(structure.parts(perturbed), structure, backend=backend)
