"""Exact draws from p(y) ∝ exp⟨θ, y⟩. Chance enters as a tensor of uniform numbers, so all backends draw the same."""

from collections.abc import Sequence
from typing import Any

import torch

from structmax.contract import AbstractStructure, Scores
from structmax.inference.question import discrete_rule, front


def sample(
    scores: Scores,
    structure: AbstractStructure,
    sample_shape: Sequence[int] = (),
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Any:
    """Independent exact draws from p(y) ∝ exp⟨θ, y⟩. Not differentiable: estimators give gradients to samples.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        sample_shape: dimensions of independent draws, put in front.
        generator: source of chance; the same seed gives the same draws on every backend.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        0/1 parts, `sample_shape` followed by fields and shapes of the scores; zeros where nothing is feasible.

    Example:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> draws = structmax.sample(torch.tensor([0.0, 1.0, -torch.inf]), structmax.Simplex(), (1000,), generator=g)
        >>> draws.mean(0)
        tensor([0.2740, 0.7260, 0.0000])
    """
    tensors, asked = front(scores, structure, backend)
    batch = structure.batch_shape(scores)
    shape = torch.Size(sample_shape)
    first = tensors[0]
    noise = torch.rand(
        (*batch, shape.numel(), structure.noise_size(scores)),
        generator=generator,
        device=first.device,
        dtype=torch.promote_types(first.dtype, torch.float32),
    )
    drawn = discrete_rule(asked, "sample", noise, *tensors)
    rank = len(batch)
    in_front = [part.movedim(rank, 0) for part in drawn]
    return structure.parts(tuple(part.reshape(*shape, *part.shape[1:]) for part in in_front))
