"""What questions to a structure share: the front that checks scores, and the rule of those without a gradient."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import backends, check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.rule import ask, constant, rule


@dataclass(frozen=True)
class Asked:
    """Who is asked, and on which backend. Travels through autograd beside the tensors."""

    structure: AbstractStructure
    backend: str

    def room(self, name: str, scores: tuple[Tensor, ...], *others: Tensor, **extra: Any) -> tuple[Tensor, ...]:
        structure = self.structure
        fields = structure.fields(scores)
        shared = {key: fields.pop(key) for key in list(fields) if key not in structure.per_instance}
        batch = scores[0].dim() - structure.event_dim
        tensors = (*scores, *others)
        return tuple(ask(structure.room, name, tensors, batch, self.backend, len(scores), shared, **fields, **extra))


class Discrete(Function):
    """A question whose answer is piecewise constant, or taken as such: it has no gradient."""

    @staticmethod
    def forward(
        asked: Asked, name: str, noise: Tensor | None, numbers: tuple[tuple[str, float], ...], *scores: Tensor
    ) -> tuple[Tensor, ...]:
        extra = {} if noise is None else {"noise": noise}
        return asked.room(name, scores, **extra, **dict(numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.arguments, ctx.outputs = len(inputs), len(output)
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.arguments

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        return (None,) * ctx.outputs


discrete_rule = rule(Discrete)


# A compiler takes the answer as it is, and follows no imports.
@constant
def answers(room: str, name: str, device: str, backend: str = "auto") -> bool:
    """Whether a room has this function for scores on that device, on some backend or on one."""
    return _answers(AbstractStructure.registry[room], name, device, backend)


# The class is the key, not its name: people define theirs anew in a notebook.
@functools.cache
def _answers(structure: type[AbstractStructure], name: str, device: str, backend: str) -> bool:
    reasons = backends.explain(structure.room, name, device)
    return None in (reasons.values() if backend == "auto" else (reasons.get(backend),))


def front(scores: Scores, structure: AbstractStructure, backend: str) -> tuple[tuple[Tensor, ...], Asked]:
    """Checked part tensors, and the question's companion."""
    if not isinstance(structure, AbstractStructure):
        kind = structure.__name__ + " itself" if isinstance(structure, type) else type(structure).__name__
        raise TypeError(f"`structure` should be a structure such as Simplex(), but is {kind}. Try `Simplex()`.")
    for tensor in (scores,) if isinstance(scores, Tensor) else scores:
        if tensor is not None:
            check.floating("scores", tensor)
    structure.check(scores)
    return structure.tensors(scores), Asked(structure, backend)


def per_instance(tensors: tuple[Tensor, ...], structure: AbstractStructure) -> list[Tensor]:
    """Each part tensor with what belongs to one instance in one last dimension."""
    batch = tensors[0].dim() - structure.event_dim
    return [t.flatten(batch) if t.dim() > batch else t.unsqueeze(-1) for t in tensors]


def flat(tensors: tuple[Tensor, ...], structure: AbstractStructure) -> Tensor:
    """All parts of each instance in one vector: (batch, P)."""
    return torch.cat(per_instance(tensors, structure), -1)


def unflat(vectors: Tensor, like: tuple[Tensor, ...], structure: AbstractStructure) -> tuple[Tensor, ...]:
    """The way back, from vectors (…, P) to tensors of the events of `like`, behind whatever stands in front of P."""
    batch = like[0].dim() - structure.event_dim
    events = [t.shape[batch:] for t in like]
    pieces = vectors.split([math.prod(event) for event in events], -1)
    return tuple(p.reshape(*p.shape[:-1], *event) for p, event in zip(pieces, events, strict=True))


def inner(a: tuple[Tensor, ...], b: tuple[Tensor, ...], structure: AbstractStructure) -> Tensor:
    """⟨a, b⟩ over the parts of each instance: the batch shape."""
    products = [p.sum(-1) for p in per_instance(tuple(x * y for x, y in zip(a, b, strict=True)), structure)]
    return sum(products[1:], products[0])


def scaled(weight: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each instance's parts times its weight."""
    return tuple(weight.reshape(*weight.shape, *(1,) * (part.dim() - weight.dim())) * part for part in parts)


def countable(scores: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores to multiply with parts: 0 for −inf, and for whatever padding or a mask holds where the part is 0."""
    return tuple(s.masked_fill(s.isneginf() | (part == 0), 0.0) for s, part in zip(scores, parts, strict=True))
