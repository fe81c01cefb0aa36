"""Public questions asked of one structure, from tuples of part tensors to tuples of part tensors.

Losses and estimators ask at scores of their own making, shifted or perturbed: they compute with tuples, and meet the
named parts of a structure only here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structmax.inference.max_marginals import max_marginals
from structmax.inference.perturb import Noise
from structmax.inference.question import Asked, answers, flat, unflat
from structmax.inference.rule import transparent
from structmax.inference.sparse_marginals import sparse_marginals
from structmax.inference.sparsemap import sparsemap

Tensors = tuple[Tensor, ...]


@transparent
@dataclass(frozen=True)
class Oracle(Asked):
    """Who is asked public questions, and on which backend."""

    def parts(self, question: Callable[..., Any], scores: Tensors, *arguments: Any) -> Tensors:
        """The answer of a question to which it is parts."""
        parts = question(self.structure.parts(scores), self.structure, *arguments, backend=self.backend)
        return self.structure.tensors(parts)

    def value(self, question: Callable[..., Any], scores: Tensors, *arguments: Any) -> Tensor:
        """The answer of a question to which it is a number: the batch shape."""
        return question(self.structure.parts(scores), self.structure, *arguments, backend=self.backend)

    def each(self, question: Callable[..., Any], scores: Tensors, *arguments: Any) -> Tensors:
        """For scores with a dimension of draws behind the batch: answers with the same."""
        rank = self.rank(scores) - 1
        in_front = tuple(s.movedim(rank, 0) for s in scores)
        return tuple(a.movedim(0, rank) for a in self.parts(question, in_front, *arguments))

    def rank(self, scores: Tensors) -> int:
        """How many dimensions of the scores are batch."""
        return scores[0].dim() - self.structure.event_dim

    def answers(self, name: str, scores: Tensors) -> bool:
        """Whether some backend has this function for scores on their device."""
        return answers(self.structure.room, name, scores[0].device.type)

    def possible(self, scores: Tensors) -> Tensors:
        """False for padding and for forbidden parts, which no structure has.

        A structure of your own that tells neither `exists` nor `max_marginals` is taken to have no padding.
        """
        allowed = tuple(~s.isneginf() for s in scores)
        exists = self.structure.exists(scores)
        if exists is None and self.answers("max_marginals", scores):
            exists = tuple(~m.isneginf() for m in self.parts(max_marginals, tuple(torch.zeros_like(s) for s in scores)))
        return allowed if exists is None else tuple(a & e for a, e in zip(allowed, exists, strict=True))

    def nearest(self, point: Tensors) -> Tensors:
        """The point of conv(Y) nearest to another, all parts counted. Exact."""
        if self.answers("project", point):
            return self.parts(sparse_marginals, point)
        names = self.structure.Parts._fields[: len(point)] if self.structure.Parts else None
        found = sparsemap(self.structure.parts(point), self.structure, regularised=names, backend=self.backend)
        return self.structure.tensors(found.marginals)

    def flat(self, tensors: Tensors) -> Tensor:
        """All parts of each instance in one vector: (batch, P)."""
        return flat(tensors, self.structure)

    def unflat(self, vectors: Tensor, like: Tensors) -> Tensors:
        """The way back, to the shapes of `like`."""
        return unflat(vectors, like, self.structure)


def plus(a: Tensors, b: Tensors, weight: float = 1.0) -> Tensors:
    """a + weight · b."""
    return tuple(x + weight * y for x, y in zip(a, b, strict=True))


def where(mask: Tensors, tensors: Tensors) -> Tensors:
    """The tensors where the mask is True, and 0 elsewhere, whatever they hold there."""
    return tuple(t.masked_fill(~m, 0.0) for m, t in zip(mask, tensors, strict=True))


def noise_like(noise: Noise, scores: Tensors, generator: torch.Generator | None) -> Tensors:
    """Noise in the dtype of the scores."""
    return tuple(noise.like(s, generator).to(s.dtype) for s in scores)


def repeated(scores: Tensors, count: int, rank: int) -> Tensors:
    """A dimension of `count` equal draws behind the `rank` dimensions of the batch."""
    return tuple(s.unsqueeze(rank).expand(*s.shape[:rank], count, *s.shape[rank:]) for s in scores)
