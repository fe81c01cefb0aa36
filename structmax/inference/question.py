"""What questions to a structure share: the front that checks scores, and the rule of those without a gradient."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import backends, check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.rule import ask, constant, rule, transparent


@transparent
@dataclass(frozen=True)
class Asked:
    """Who is asked, and on which backend. Travels through autograd beside the tensors."""

    given: AbstractStructure
    backend: str
    # Inside transforms of torch.func, which look for tensors here, the per-instance fields in order.
    values: tuple[Tensor | None, ...] | None = None

    @property
    def structure(self) -> AbstractStructure:
        return self.given if self.values is None else self.given.with_values(self.values)

    def room(self, name: str, scores: tuple[Tensor, ...], *others: Tensor, **extra: Any) -> tuple[Tensor, ...]:
        structure = self.structure
        fields = structure.fields(scores)
        shared = {key: fields.pop(key) for key in list(fields) if key not in structure.per_instance}
        batch = scores[0].dim() - structure.event_dim
        tensors = (*scores, *others)
        # What a transform holds wrapped is seen by nobody before it comes here.
        checked = self.values is None
        given = {**fields, **extra}
        return tuple(ask(structure.room, name, tensors, batch, self.backend, len(scores), shared, checked, **given))


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
    known, key = backends.remembered(room), ("answers", name, device, backend)
    if key not in known:
        reasons = backends.explain(room, name, device)
        known[key] = None in (reasons.values() if backend == "auto" else (reasons.get(backend),))
    return known[key]


def front(scores: Scores, structure: AbstractStructure, backend: str) -> tuple[tuple[Tensor, ...], Asked]:
    """Checked part tensors, and the question's companion."""
    if not isinstance(structure, AbstractStructure):
        kind = structure.__name__ + " itself" if isinstance(structure, type) else type(structure).__name__
        raise TypeError(f"`structure` should be a structure such as Simplex(), but is {kind}. Try `Simplex()`.")
    for tensor in (scores,) if isinstance(scores, Tensor) else scores:
        if tensor is not None:
            check.floating("scores", tensor)
    structure.check(scores)
    tensors = structure.tensors(scores)
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return tensors, Asked(structure, backend)
    return tensors, Asked(structure, backend, structure.values(tensors[0].dim() - structure.event_dim))


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


def existing(structure: AbstractStructure, scores: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Parts with 0 for what no structure has, whatever they hold there: padding counts nothing."""
    exists = structure.exists(scores)
    return parts if exists is None else tuple(p.masked_fill(~e, 0.0) for p, e in zip(parts, exists, strict=True))


def countable(scores: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Scores to multiply with parts: 0 for −inf, and for whatever padding or a mask holds where the part is 0."""
    return tuple(s.masked_fill(s.isneginf() | (part == 0), 0.0) for s, part in zip(scores, parts, strict=True))
