"""The best score among the structures that have a given part: max over y with y_i = 1 of ⟨θ, y⟩."""

from typing import Any

from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed
from structmax.inference.question import discrete_rule, front


@summed
def max_marginals(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Any:
    """For each part, the score of the best structure that contains it; −inf where there is none.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields and shapes of the scores; no gradient.

    Examples:
        >>> import torch, structmax
        >>> structmax.max_marginals(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex())
        tensor([0.2000, 1.5000, 0.3000])
    """
    tensors, asked = front(scores, structure, backend)
    return structure.parts(discrete_rule(asked, "max_marginals", None, (), *tensors))
