"""Noise that is added to scores, drawn in float32 or wider and never infinite."""

import torch
from torch import Tensor

from structmax import check


def uniform_like(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform in [0, 1)."""
    check.generator(generator)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.rand(scores.shape, generator=generator, dtype=wide, device=scores.device)


def gumbel_like(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise −log E with E = −log(1 − U) exponential."""
    uniform = uniform_like(scores, generator)
    return -(-torch.log1p(-uniform)).clamp_min(torch.finfo(uniform.dtype).eps / 4).log()


def logistic_like(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard logistic noise log U − log(1 − U), the difference of two Gumbels."""
    uniform = uniform_like(scores, generator)
    return uniform.logit(torch.finfo(uniform.dtype).eps / 4)


def normal_like(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise."""
    check.generator(generator)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.randn(scores.shape, generator=generator, dtype=wide, device=scores.device)
