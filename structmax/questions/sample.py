"""Exact samples from p(y) ∝ exp⟨θ, y⟩. They are computed from a tensor of uniform numbers, so backends agree."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax import backends, check
from structmax.contract import AbstractStructure, Scores
from structmax.discrete import discrete
from structmax.outline import outline
from structmax.parts import Tensors
from structmax.problem import Problem


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
        sample_shape: leading dimensions of independent draws.
        generator: random number generator; the same seed gives the same draws on every backend.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Parts, `sample_shape` followed by fields and shapes of the scores: 0 and 1, or counts of parts that may be used
        several times; zeros where nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> g = torch.Generator().manual_seed(0)
        >>> draws = structmax.sample(torch.tensor([0.0, 1.0, -torch.inf]), structmax.Simplex(), (1000,), generator=g)
        >>> draws.mean(0)
        tensor([0.2740, 0.7260, 0.0000])
    """
    problem = Problem.of(scores, structure, backend)
    drawn = draw(problem, "sample", sample_shape, generator)
    return problem.stacked(drawn, *sample_shape)


class Drawn(NamedTuple):
    """`parts`, fields and shapes of the scores with the draws in front, and their `log_probs` (samples, batch)."""

    parts: Any
    log_probs: Tensor

    def __repr__(self) -> str:
        return outline(self)


def sample_without_replacement(
    scores: Scores,
    structure: AbstractStructure,
    samples: int,
    *,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Drawn:
    """Exact draws one after the other from p(y) ∝ exp⟨θ, y⟩, each among the structures not drawn yet. All distinct.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        samples: how many. Where fewer are feasible, the rest has log-probability −inf and all-zero parts.
        generator: random number generator; the same seed gives the same draws on every backend.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `parts` with the draws in front of the scores' shape, in the order drawn, and `log_probs` (samples, batch), the
        log p(y) of each in the whole set. Not differentiable: `log_prob` of the parts is.

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
    check.whole("samples", samples, 1)
    problem = Problem.of(scores, structure, backend)
    *parts, log_probs = draw(problem, "sample_without_replacement", (samples,), generator)
    return Drawn(problem.stacked(tuple(parts), samples), problem.stacked_values(log_probs))


def draw(
    problem: Problem, name: str, sample_shape: Sequence[int], generator: torch.Generator | None, **numbers: float
) -> Tensors:
    """Draws random numbers and calls the structure's function: tensors (B, S, …), with S draws in all."""
    if isinstance(sample_shape, int):
        raise TypeError(f"`sample_shape` should be a tuple of sizes, but is {sample_shape}. Try ({sample_shape},).")
    check.generator(generator)
    problem = problem.unfolded()
    first, structure = problem.scores[0], problem.structure
    size = structure.noise_size(structure.parts(problem.with_batch(problem.scores)))
    if size is None:
        size = backends.noise_size(structure.room, problem.scores, {**problem.shared, **problem.fields})
    shape = first.shape[0], math.prod(sample_shape), size
    wide = torch.promote_types(first.dtype, torch.float32)
    noise = torch.rand(shape, generator=generator, device=first.device, dtype=wide)
    return discrete(problem, name, noise, **numbers)
