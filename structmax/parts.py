"""Arithmetic on tuples of part tensors with the batch in front: one batch dimension, unless `rank` says otherwise."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


def plus(a: Sequence[Tensor], b: Sequence[Tensor], weight: float = 1.0) -> Tensors:
    """a + weight · b."""
    return tuple(x + weight * y for x, y in zip(a, b, strict=True))


def where(mask: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensors:
    """The tensors where the mask is True, and 0 elsewhere, whatever they hold there."""
    return tuple(t.masked_fill(~m, 0.0) for m, t in zip(mask, tensors, strict=True))


def scaled(weight: Tensor, parts: Sequence[Tensor]) -> Tensors:
    """Each instance's parts times its weight."""
    return tuple(weight[(...,) + (None,) * (part.dim() - weight.dim())] * part for part in parts)


def rows(tensors: Sequence[Tensor], rank: int = 1) -> list[Tensor]:
    """Each part tensor with what belongs to one instance in one last dimension."""
    return [t.flatten(rank) if t.dim() > rank else t.unsqueeze(-1) for t in tensors]


def flat(tensors: Sequence[Tensor], rank: int = 1) -> Tensor:
    """All parts of each instance in one vector: (B, P)."""
    return torch.cat(rows(tensors, rank), -1)


def unflat(vectors: Tensor, like: Sequence[Tensor]) -> Tensors:
    """The inverse, from vectors (…, P) to tensors with the events of `like`, behind whatever stands in front of P."""
    events = [t.shape[1:] for t in like]
    pieces = vectors.split([math.prod(event) for event in events], -1)
    return tuple(p.reshape((*p.shape[:-1], *event)) for p, event in zip(pieces, events, strict=True))


def inner(a: Sequence[Tensor], b: Sequence[Tensor], rank: int = 1) -> Tensor:
    """⟨a, b⟩ over the parts of each instance: (B,)."""
    products = [p.sum(-1) for p in rows([x * y for x, y in zip(a, b, strict=True)], rank)]
    return sum(products[1:], products[0])


def countable(scores: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensors:
    """Scores to multiply with parts: 0 for −inf, and for whatever padding or a mask holds where the part is 0."""
    return tuple(s.masked_fill(s.isneginf() | (part == 0), 0.0) for s, part in zip(scores, parts, strict=True))


def score(scores: Sequence[Tensor], parts: Sequence[Tensor], rank: int = 1, above: float = 0.0) -> Tensor:
    """⟨θ, y⟩ with 0 · −inf = 0: (B,); −inf where y has more than `above` of a forbidden part."""
    value = inner(countable(scores, parts), parts, rank)
    forbidden = [s.isneginf() & (y > above) for s, y in zip(scores, parts, strict=True)]
    broken = torch.stack([f.any(-1) for f in rows(forbidden, rank)]).any(0)
    return value.masked_fill(broken, -math.inf)
