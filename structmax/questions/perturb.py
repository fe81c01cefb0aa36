"""Perturb-and-MAP: the best structure of noisy scores, a sample that only needs argmax.

    y = argmax over Y of ⟨θ + temperature · ε, y⟩

With a Gumbel for each member of Y it would be an exact draw of p(y) ∝ exp(⟨θ, y⟩ / temperature); with one for each part
it is another distribution, cheap for every structure, that agrees with it where parts are members: on the Simplex. On
Subset(k) it is Gumbel-top-k, k draws without replacement. Independent bits are exact under logistic noise.

Reference: Papandreou & Yuille 2011, Perturb-and-MAP random fields.
"""

from collections.abc import Sequence
from typing import Any

import torch

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.noise import AbstractNoise, Gumbel, noise_like
from structmax.parts import plus
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


def perturb_and_map(
    scores: Scores,
    structure: AbstractStructure,
    sample_shape: Sequence[int] = (),
    *,
    noise: AbstractNoise = Gumbel(),  # noqa: B008
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Any:
    """Independent draws argmax⟨θ + temperature · ε, y⟩, for any structure with `argmax`. Not differentiable.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        sample_shape: leading dimensions of independent draws.
        noise: the distribution of ε: `Gumbel()`, `Logistic()` or `Normal()`.
        temperature: how strong the noise is, > 0.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Parts, `sample_shape` followed by fields and shapes of the scores: 0 and 1, or counts of parts that may be used
        several times; zeros where nothing is feasible.

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
    check.instance("noise", noise, AbstractNoise, "Gumbel(), Logistic() or Normal()")
    problem = Problem.of(scores, structure, backend, wide=True).repeated(*sample_shape)
    fixed = tuple(t.detach() for t in problem.scores)
    perturbed = problem.at(plus(fixed, noise_like(noise, fixed, generator), temperature))
    return perturbed.named(ZERO.point(perturbed))
