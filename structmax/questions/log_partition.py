"""log Z(θ) = log Σ over y in Y of exp⟨θ, y⟩, and its gradient, the marginals μ(θ) = E[y].

d log Z = ⟨μ, dθ⟩       dμ = H dθ, with H = ∇² log Z = Cov[y]
"""

from typing import Any

from torch import Tensor

from structmax.contract import AbstractStructure, Scores
from structmax.omega.smooth import Entropy
from structmax.problem import Problem

ENTROPY = Entropy()


def log_partition(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The log-partition log Σ over y of exp⟨θ, y⟩; its gradient is `marginals`.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape. −inf for an instance in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> structmax.log_partition(torch.tensor([0.0, 0.0, -torch.inf]), structmax.Simplex())
        tensor(0.6931)
    """
    problem = Problem.of(scores, structure, backend)
    return problem.shaped(ENTROPY.value(problem))


def marginals(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Any:
    """The marginals E[y] under p(y) ∝ exp⟨θ, y⟩: how probable each part is. Differentiable to any order.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields and shapes of the scores; zeros for an instance in which nothing is feasible.

    Examples:
        >>> import torch, structmax
        >>> structmax.marginals(torch.tensor([0.0, 0.0, -torch.inf]), structmax.Simplex())
        tensor([0.5000, 0.5000, 0.0000])
    """
    problem = Problem.of(scores, structure, backend)
    return problem.named(ENTROPY.point(problem))
