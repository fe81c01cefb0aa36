"""The best score among the structures that have a given part: max over y with y_i = 1 of ⟨θ, y⟩."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from structmax.contract import AbstractStructure, Scores
from structmax.inference.question import Asked, front
from structmax.inference.rule import rule


class MaxMarginals(Function):
    @staticmethod
    def forward(asked: Asked, *scores: Tensor) -> tuple[Tensor, ...]:
        return asked.room("max_marginals", scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        return (None,) * (1 + len(_))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[None, ...]:
        return (None,) * len(tangents)


max_marginals_rule = rule(MaxMarginals)


def max_marginals(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Any:
    """For each part, the score of the best structure that contains it; −inf where there is none.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields and shapes of the scores; no gradient.

    Example:
        >>> import torch, structmax
        >>> structmax.max_marginals(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex())
        tensor([0.2000, 1.5000, 0.3000])
    """
    tensors, asked = front(scores, structure, backend)
    return structure.parts(max_marginals_rule(asked, *tensors))
