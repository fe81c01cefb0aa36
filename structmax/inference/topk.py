"""The k best structures, best first, with their scores."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed, widened
from structmax.inference.question import Asked, countable, front, inner, scaled
from structmax.inference.rule import rule


class TopK(NamedTuple):
    """`values` (k, batch) and `parts`, fields and shapes of the scores with k in front."""

    values: Tensor
    parts: Any


class Best(Function):
    """Values ⟨θ, y_j⟩ and parts y_j. The k-th best value has gradient y_j; the parts have none."""

    @staticmethod
    def forward(asked: Asked, k: int, *scores: Tensor) -> tuple[Tensor, ...]:
        return asked.room("topk", scores, k=k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.asked = inputs[0]
        ctx.save_for_backward(*output[1:])
        ctx.save_for_forward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, d_values: Tensor, *_: Tensor) -> tuple[Any, ...]:
        batch = d_values.dim() - 1
        # Counts times half precision are rounded, and so would be each of many terms.
        terms = scaled(widened(d_values), widened(ctx.saved_tensors))
        return None, None, *(term.sum(batch).to(d_values.dtype) for term in terms)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> tuple[Any, ...]:
        structure = ctx.asked.structure
        batch = tangents[0].dim() - structure.event_dim
        lifted = tuple(t.unsqueeze(batch) for t in tangents)
        return inner(ctx.saved_tensors, countable(lifted, ctx.saved_tensors), structure), *(None,) * len(tangents)


best_rule = rule(Best)


@summed
def topk(scores: Scores, structure: AbstractStructure, k: int, *, backend: str = "auto") -> TopK:
    """The k best structures and their scores, best first, all distinct.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        k: how many. Where fewer are feasible the rest has value −inf and all-zero parts.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        `values` (k, batch), differentiable, and `parts` with k in front of the scores' shape.

    Examples:
        >>> import torch, structmax
        >>> values, parts = structmax.topk(torch.tensor([0.2, 1.5, 0.3]), structmax.Simplex(), 2)
        >>> values
        tensor([1.5000, 0.3000])
        >>> structmax.Simplex().decode(parts)
        tensor([1, 2])
    """
    check.whole("k", k, 1)
    tensors, asked = front(scores, structure, backend)
    values, *parts = best_rule(asked, k, *tensors)
    batch = values.dim() - 1
    return TopK(values.movedim(-1, 0), structure.parts(tuple(part.movedim(batch, 0) for part in parts)))
