"""The best structure: argmax over y in Y of ⟨θ, y⟩ (MAP). Piecewise constant, so its gradient is zero."""

from typing import Any

from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed
from structmax.inference.question import discrete_rule, front


@summed
def argmax(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Any:
    """The parts of one best structure; ties are broken the same way each time. Its gradient is zero.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        0/1 parts with fields, shapes and dtype of the scores; all zeros where nothing is feasible.
        `structure.decode` turns them into indices.

    Examples:
        >>> import torch, structmax
        >>> structmax.argmax(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex())
        tensor([0., 1., 0.])
    """
    tensors, asked = front(scores, structure, backend)
    return structure.parts(discrete_rule(asked, "argmax", None, (), *tensors))
