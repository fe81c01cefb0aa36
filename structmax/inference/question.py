"""What questions to a structure share: the front that checks scores, and the rule of those without a gradient."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd import Function

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.rule import ask, rule


@dataclass(frozen=True)
class Asked:
    """Who is asked, and on which backend. Travels through autograd beside the tensors."""

    structure: AbstractStructure
    backend: str

    def room(self, name: str, scores: tuple[Tensor, ...], *others: Tensor, **extra: Any) -> tuple[Tensor, ...]:
        batch = scores[0].dim() - self.structure.event_dims[0]
        fields = self.structure.fields()
        return tuple(
            ask(
                self.structure.room,
                name,
                (*scores, *others),
                batch,
                self.backend,
                parts=len(scores),
                **fields,
                **extra,
            )
        )


class Discrete(Function):
    """A question whose answer is piecewise constant, or taken as such: it has no gradient."""

    @staticmethod
    def forward(asked: Asked, name: str, noise: Tensor | None, *scores: Tensor) -> tuple[Tensor, ...]:
        extra = {} if noise is None else {"noise": noise}
        return asked.room(name, scores, **extra)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        return (None,) * (3 + len(_))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        return (None,) * (len(tangents) - 3)


discrete_rule = rule(Discrete)


def front(scores: Scores, structure: AbstractStructure, backend: str) -> tuple[tuple[Tensor, ...], Asked]:
    """Checked part tensors, and the question's companion."""
    if not isinstance(structure, AbstractStructure):
        kind = structure.__name__ + " itself" if isinstance(structure, type) else type(structure).__name__
        raise TypeError(f"`structure` should be a structure such as Simplex(), but is {kind}. Try `Simplex()`.")
    tensors = structure.tensors(scores)
    for tensor in tensors:
        check.floating("scores", tensor)
    structure.check(scores)
    return tensors, Asked(structure, backend)


def inner(a: tuple[Tensor, ...], b: tuple[Tensor, ...], structure: AbstractStructure) -> Tensor:
    """⟨a, b⟩ over the parts of each instance: the batch shape."""
    pairs = zip(a, b, structure.event_dims, strict=True)
    products = [(x * y).flatten(x.dim() - dims).sum(-1) for x, y, dims in pairs]
    return sum(products[1:], products[0])


def scaled(weight: Tensor, parts: tuple[Tensor, ...], structure: AbstractStructure) -> tuple[Tensor, ...]:
    """Each instance's parts times its weight."""
    return tuple(
        weight.reshape(*weight.shape, *(1,) * dims) * part
        for part, dims in zip(parts, structure.event_dims, strict=True)
    )


def without_infinities(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """−inf scores replaced by 0: they only ever meet marginals that are 0, and 0 · −inf should count as 0."""
    return tuple(part.masked_fill(part.isneginf(), 0.0) for part in parts)
