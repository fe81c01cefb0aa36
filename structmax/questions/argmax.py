"""The best structure: argmax over y in Y of ⟨θ, y⟩ (MAP). Piecewise constant, so its gradient is zero."""

from typing import Any

from structmax.contract import AbstractStructure, Scores
from structmax.omega.zero import Zero
from structmax.problem import Problem

ZERO = Zero()


def argmax(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Any:
    """The parts of one best structure; ties are broken the same way each time. Its gradient is zero.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Parts with fields, shapes and dtype of the scores: 0 and 1, or counts of parts that may be used several times;
        all zeros where nothing is feasible.
        `structure.decode` turns them into indices.

    Examples:
        >>> import torch, structmax
        >>> structmax.argmax(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex())
        tensor([0., 1., 0.])
    """
    problem = Problem.of(scores, structure, backend)
    return problem.named(ZERO.point(problem))
