"""The k best structures, best first, with their scores."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.autograd import rule
from structmax.contract import AbstractStructure, Scores
from structmax.half import widened
from structmax.outline import outline
from structmax.parts import Tensors, countable, inner, scaled
from structmax.problem import Problem


class TopK(NamedTuple):
    """`parts`, fields and shapes of the scores with k in front, and their `values` (k, batch)."""

    parts: Any
    values: Tensor

    def __repr__(self) -> str:
        return outline(self)


class Best(Function):
    """Values ⟨θ, y_j⟩ and parts y_j. The k-th best value has gradient y_j; the parts have none."""

    @staticmethod
    def forward(problem: Problem, k: int, *scores: Tensor) -> Tensors:
        return tuple(problem.ask("topk", *scores, k=k))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, d_values: Tensor, *_: Tensor) -> tuple[Any, ...]:
        # Counts times half precision are rounded, and so would be each of many terms.
        terms = scaled(widened(d_values), widened(ctx.saved_tensors))
        return None, None, *(term.sum(1).to(d_values.dtype) for term in terms)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> tuple[Any, ...]:
        lifted = tuple(t.unsqueeze(1) for t in tangents)
        return inner(ctx.saved_tensors, countable(lifted, ctx.saved_tensors), 2), *(None,) * len(tangents)


best_rule = rule(Best, fold=True)


def best(problem: Problem, k: int) -> tuple[Tensor, Tensors]:
    """Values (B, k), differentiable, and parts (B, k, …) of the k best structures."""
    values, *parts = best_rule(problem.blank, k, *problem.scores)
    return values, tuple(parts)


def topk(scores: Scores, structure: AbstractStructure, k: int, *, backend: str = "auto") -> TopK:
    """The k best structures and their scores, best first, all distinct.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        k: how many. Where fewer are feasible, the rest has value −inf and all-zero parts.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `parts` with k in front of the scores' shape, and `values` (k, batch), differentiable.

    Examples:
        >>> import torch, structmax
        >>> parts, values = structmax.topk(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex(), 2)
        >>> values
        tensor([1.5000, 0.3000])
        >>> structmax.Simplex().decode(parts)
        tensor([1, 2])
    """
    check.whole("k", k, 1)
    problem = Problem.of(scores, structure, backend)
    values, parts = best(problem, k)
    return TopK(problem.stacked(parts, k), problem.stacked_values(values))
