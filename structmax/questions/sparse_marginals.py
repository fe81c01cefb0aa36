"""The nearest point of conv(Y), argmin ½‖μ − θ/t‖²: the mean of few structures, with all others at exactly 0."""

from typing import Any

from structmax.contract import AbstractStructure, Scores
from structmax.omega.squared_norm import SquaredNorm
from structmax.problem import Problem


def sparse_marginals(
    scores: Scores, structure: AbstractStructure, *, temperature: float = 1.0, backend: str = "auto"
) -> Any:
    """argmax over μ in conv(Y) of ⟨θ, μ⟩ − temperature/2 ‖μ_R‖²: sparsemax of a structure.

    These are the `marginals` of `sparsemap`, which explains R, computed in the fastest way the structure has. Exact.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        temperature: a number > 0; the point tends to argmax as it falls, and to the most even μ as it grows.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields, shapes and dtype of the scores, differentiable; exactly 0 for parts of no selected structure.

    Examples:
        >>> import torch, structmax
        >>> structmax.sparse_marginals(torch.tensor([[2.0, 1.5], [1.0, 0.8]]), structmax.Matching())
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])

    Reference: Niculae, Martins, Blondel & Cardie 2018, SparseMAP: differentiable sparse structured inference.
    """
    omega, problem = SquaredNorm(temperature), Problem.of(scores, structure, backend)
    return problem.named(omega.point(problem))
