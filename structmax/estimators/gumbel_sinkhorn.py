"""Relaxed and hard random matchings by Gumbel noise.

The best matching of scores with Gumbel noise, argmax ⟨θ + G, y⟩, is random; `sinkhorn` in place of the argmax relaxes
it. `hard` takes the argmax forward and the gradient of the relaxation backward (straight-through).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from structmax import check
from structmax.applications.sinkhorn import sinkhorn
from structmax.numerics.noise import gumbel_like
from structmax.questions.argmax import argmax
from structmax.structures.matching import Matching


def gumbel_sinkhorn(
    scores: Tensor,
    matching: Matching | None = None,
    *,
    temperature: float = 1.0,
    noise_scale: float = 1.0,
    sample_shape: Sequence[int] = (),
    hard: bool = False,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """A relaxed random matching sinkhorn(θ + noise_scale · G, temperature), with G standard Gumbel noise.

    Args:
        scores: θ (…, N, M), with any leading batch dimensions. −inf forbids a pair.
        matching: the set of matchings; by default `Matching()`.
        temperature: a number > 0; the sample tends to a matching as it falls.
        noise_scale: a number ≥ 0; 0 is `sinkhorn` itself.
        sample_shape: dimensions of independent samples, put in front.
        hard: return the best matching of θ + noise_scale · G, with the gradient of the relaxed one.
        generator: random number generator.
        backend: "auto", "numba" or "reference".

    Returns:
        `sample_shape` followed by the shape of the scores, in their dtype; zeros where no matching exists.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> samples = structmax.gumbel_sinkhorn(torch.zeros(3, 3), sample_shape=(4,), hard=True, generator=g)
        >>> samples.sum(-1)
        tensor([[1., 1., 1.],
                [1., 1., 1.],
                [1., 1., 1.],
                [1., 1., 1.]])

    Reference: Mena, Belanger, Linderman & Snoek 2018, https://arxiv.org/abs/1802.08665.
    """
    matching = Matching() if matching is None else matching
    check.floating("scores", scores)
    check.positive("noise_scale", noise_scale, or_zero=True)
    wide = scores.expand(*sample_shape, *scores.shape)
    perturbed = wide + noise_scale * gumbel_like(wide, generator)
    soft = sinkhorn(perturbed, matching, temperature=temperature, backend=backend).marginals.to(scores.dtype)
    if not hard:
        return soft
    best = argmax(perturbed.detach(), matching, backend=backend).to(scores.dtype)
    return best + (soft - soft.detach())
