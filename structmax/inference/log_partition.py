"""log Z(θ) = log Σ over y in Y of exp⟨θ, y⟩, and its gradient, the marginals μ(θ) = E[y].

    d log Z = ⟨μ, dθ⟩       dμ = H dθ, with H = ∇² log Z = Cov[y]       H is symmetric: its pullback is its pushforward

so three rules chain: LogPartition pulls back through Marginals, Marginals through MarginalsJvp, and MarginalsJvp, for
third and higher orders, through the room's reference in differentiable torch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import backends
from structmax.contract import AbstractStructure, Scores, by_autograd
from structmax.inference.question import Asked, front, inner, scaled
from structmax.inference.rule import rule


class LogPartition(Function):
    @staticmethod
    def forward(asked: Asked, *scores: Tensor) -> Tensor:
        return asked.room("log_partition", scores)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.asked, *scores = inputs
        ctx.save_for_backward(*scores)
        ctx.save_for_forward(*scores)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor) -> tuple[Any, ...]:
        mu = marginals_rule(ctx.asked, *ctx.saved_tensors)
        return None, *scaled(d_value, mu, ctx.asked.structure)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> Tensor:
        return inner(marginals_rule(ctx.asked, *ctx.saved_tensors), tangents, ctx.asked.structure)


log_partition_rule = rule(LogPartition)


class Marginals(Function):
    @staticmethod
    def forward(asked: Asked, *scores: Tensor) -> tuple[Tensor, ...]:
        return asked.room("marginals", scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.asked, *scores = inputs
        ctx.save_for_backward(*scores)
        ctx.save_for_forward(*scores)

    @staticmethod
    def backward(ctx: Any, *d_mu: Tensor) -> tuple[Any, ...]:
        return None, *marginals_jvp_rule(ctx.asked, *ctx.saved_tensors, *d_mu)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        return marginals_jvp_rule(ctx.asked, *ctx.saved_tensors, *tangents)


marginals_rule = rule(Marginals)


class MarginalsJvp(Function):
    @staticmethod
    def forward(asked: Asked, *scores_and_tangent: Tensor) -> tuple[Tensor, ...]:
        half = len(scores_and_tangent) // 2
        return asked.room("marginals_jvp", scores_and_tangent[:half], *scores_and_tangent[half:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.asked, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        half = len(d_out)
        scores, tangent = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        pullback = torch.func.vjp(lambda *s: _differentiable_jvp(ctx.asked, s, tangent), *scores)[1]
        return None, *pullback(d_out), *marginals_jvp_rule(ctx.asked, *scores, *d_out)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        half = len(tangents) // 2
        scores, tangent = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        third = torch.func.jvp(lambda *s: _differentiable_jvp(ctx.asked, s, tangent), scores, tangents[:half])[1]
        straight = marginals_jvp_rule(ctx.asked, *scores, *tangents[half:])
        return tuple(a + b for a, b in zip(third, straight, strict=True))


marginals_jvp_rule = rule(MarginalsJvp)


def _differentiable_jvp(asked: Asked, scores: tuple[Tensor, ...], tangent: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    structure = asked.structure
    log_partition = backends.function(structure.room, "log_partition", "reference")
    assert log_partition is not None
    batch = structure.batch_shape(scores)

    def flat(tensors: tuple[Tensor, ...]) -> list[Tensor]:
        return [t.reshape(batch.numel(), *t.shape[len(batch) :]) for t in tensors]

    out = by_autograd(log_partition)["marginals_jvp"](*flat(scores), *flat(tangent), **structure.fields())
    return tuple(o.reshape(s.shape) for o, s in zip(out, scores, strict=True))


def log_partition(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Tensor:
    """The log-partition log Σ over y of exp⟨θ, y⟩; its gradient is `marginals`.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        The batch shape. −inf for an instance in which nothing is feasible.

    Example:
        >>> import torch, structmax
        >>> structmax.log_partition(torch.tensor([0.0, 0.0, -torch.inf]), structmax.Simplex())
        tensor(0.6931)
    """
    tensors, asked = front(scores, structure, backend)
    return log_partition_rule(asked, *tensors)


def marginals(scores: Scores, structure: AbstractStructure, *, backend: str = "auto") -> Any:
    """The marginals E[y] under p(y) ∝ exp⟨θ, y⟩: how probable each part is. Twice differentiable and more.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        Fields and shapes of the scores; zeros for an instance in which nothing is feasible.

    Example:
        >>> import torch, structmax
        >>> structmax.marginals(torch.tensor([0.0, 0.0, -torch.inf]), structmax.Simplex())
        tensor([0.5000, 0.5000, 0.0000])
    """
    tensors, asked = front(scores, structure, backend)
    return structure.parts(marginals_rule(asked, *tensors))
