"""The nearest point of conv(Y): argmin over μ in conv(Y) of ½‖μ − θ/t‖².

It is the sparse middle between argmax and marginals: the mean of few structures, with all others at exactly 0. The
projection onto a polytope is piecewise affine. On the face where the point lies its Jacobian J is the orthogonal
projector onto the directions of that face: symmetric, so pullback and pushforward are one function, and constant, so
the next derivative is 0. Where a room does not project directly, it is the mean of what `sparsemap` finds.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed
from structmax.inference.question import Asked, answers, front
from structmax.inference.rule import rule
from structmax.inference.sparsemap import sparsemap


class Projection(Function):
    @staticmethod
    def forward(asked: Asked, *scores: Tensor) -> tuple[Tensor, ...]:
        return asked.room("project", scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.asked = inputs[0]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, *d_point: Tensor) -> tuple[Any, ...]:
        return None, *projection_jvp_rule(ctx.asked, *ctx.saved_tensors, *d_point)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        return projection_jvp_rule(ctx.asked, *ctx.saved_tensors, *tangents)


class ProjectionJvp(Function):
    """J at a point, times a tangent. Arguments: the point and the tangent."""

    @staticmethod
    def forward(asked: Asked, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = len(tensors) // 2
        return asked.room("project_jvp", tensors[:count], *tensors[count:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.asked, *tensors = inputs
        point = tensors[: len(tensors) // 2]
        ctx.save_for_backward(*point)
        ctx.save_for_forward(*point)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        return None, *(None,) * len(d_out), *projection_jvp_rule(ctx.asked, *ctx.saved_tensors, *d_out)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        return projection_jvp_rule(ctx.asked, *ctx.saved_tensors, *tangents[len(tangents) // 2 :])


projection_rule = rule(Projection)
projection_jvp_rule = rule(ProjectionJvp)


@summed
def sparse_marginals(
    scores: Scores, structure: AbstractStructure, temperature: float = 1.0, *, backend: str = "auto"
) -> Any:
    """argmax over μ in conv(Y) of ⟨θ, μ⟩ − temperature/2 ‖μ_R‖²: sparsemax of a structure.

    These are the `marginals` of `sparsemap`, where R is said, by the shortest way a structure knows; both are exact.

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
    check.positive("temperature", temperature)
    tensors, asked = front(scores, structure, backend)
    if not answers(structure.room, "project", tensors[0].device.type, backend):
        return sparsemap(scores, structure, temperature=temperature, backend=backend).marginals
    return structure.parts(projection_rule(asked, *(tensor / temperature for tensor in tensors)))
