"""Exact draws from p(y) ∝ exp⟨θ, y⟩. Chance enters as a tensor of uniform numbers, so all backends draw the same."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed
from structmax.inference.question import Asked, discrete_rule, front


@summed
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

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> draws = structmax.sample(torch.tensor([0.0, 1.0, -torch.inf]), structmax.Simplex(), (1000,), generator=g)
        >>> draws.mean(0)
        tensor([0.2740, 0.7260, 0.0000])
    """
    tensors, asked = front(scores, structure, backend)
    return structure.parts(draw(asked, "sample", tensors, sample_shape, generator)[0])


class Drawn(NamedTuple):
    """`parts`, fields and shapes of the scores with n in front, and their `log_probs` (n, batch)."""

    parts: Any
    log_probs: Tensor


@summed
def sample_without_replacement(
    scores: Scores,
    structure: AbstractStructure,
    n: int,
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Drawn:
    """Exact draws one after the other from p(y) ∝ exp⟨θ, y⟩, each among the structures not drawn yet. All distinct.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        n: how many. Where fewer are feasible the rest has log-probability −inf and all-zero parts.
        generator: source of chance; the same seed gives the same draws on every backend.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `parts` with n in front of the scores' shape, in the order drawn, and `log_probs` (n, batch), the log p(y) of
        each in the whole set. Not differentiable: `log_prob` of the parts is.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.tensor([0.0, 1.0, -torch.inf])
        >>> drawn = structmax.sample_without_replacement(x, structmax.Simplex(), 3, generator=g)
        >>> structmax.Simplex().decode(drawn.parts)
        tensor([ 1,  0, -1])
        >>> drawn.log_probs.exp()
        tensor([0.7311, 0.2689, 0.0000])
    """
    check.whole("n", n, 1)
    tensors, asked = front(scores, structure, backend)
    parts, log_probs = draw(asked, "sample_without_replacement", tensors, (n,), generator)
    return Drawn(structure.parts(parts), log_probs[0])


def draw(
    asked: Asked,
    name: str,
    tensors: tuple[Tensor, ...],
    sample_shape: Sequence[int],
    generator: torch.Generator | None,
    **numbers: float,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Makes the noise and asks: part tensors with `sample_shape` in front, and what else the room returns."""
    shape = torch.Size(sample_shape)
    first = tensors[0]
    batch = first.shape[: first.dim() - asked.structure.event_dim]
    noise = torch.rand(
        (*batch, shape.numel(), asked.structure.noise_size(asked.structure.parts(tensors))),
        generator=generator,
        device=first.device,
        dtype=torch.promote_types(first.dtype, torch.float32),
    )
    rank = len(batch)
    out = [t.movedim(rank, 0) for t in discrete_rule(asked, name, noise, tuple(numbers.items()), *tensors)]
    in_front = tuple(t.reshape(*shape, *t.shape[1:]) for t in out)
    return in_front[: len(tensors)], in_front[len(tensors) :]
