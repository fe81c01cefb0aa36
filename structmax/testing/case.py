"""A structure with scores to try it on, brute-force enumeration, and the one comparison all laws use."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structmax import backends
from structmax.contract import AbstractStructure, Scores
from structmax.parts import flat
from structmax.questions.members import members

# What finds the nearest point of conv(Y), one way or another.
NEAREST = "project|sparsemap|relax"
MakeScores = Callable[[torch.Generator, torch.dtype], Scores]


@dataclass(frozen=True)
class Case:
    """A structure, and how to draw float scores for a small batch of it: `make_scores(generator, dtype)`."""

    structure: AbstractStructure
    make_scores: MakeScores

    def drawn(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Scores as they are drawn."""
        drawn = self.structure.tensors(self.make_scores(torch.Generator().manual_seed(seed), dtype))
        return tuple(t.contiguous() for t in drawn)

    def scores(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Scores that can be differentiated: with a number in the place of each −inf that was drawn."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            torch.where(t.isneginf(), torch.randn(t.shape, generator=generator, dtype=torch.float64).to(dtype), t)
            for t in self.drawn(seed, dtype)
        )

    def parts(self, tensors: tuple[Tensor, ...]) -> Any:
        return self.structure.parts(tensors)

    def answers(self, name: str, backend: str) -> bool:
        """Whether the backend has this function, or one of several between bars."""
        return any(backends.explain(self.structure.room, one, "cpu")[backend] is None for one in name.split("|"))

    def flat(self, answer: Scores) -> Tensor:
        """Parts of each instance in one vector: (batch, d)."""
        return self.vector(self.structure.tensors(answer))

    def outputs(self, out: Any) -> tuple[Tensor, ...]:
        """The tensors of an answer: a value, or parts."""
        return (out,) if isinstance(out, Tensor) else self.structure.tensors(out)

    def vector(self, tensors: tuple[Tensor, ...]) -> Tensor:
        return flat(tensors, tensors[0].dim() - self.structure.event_dim)

    def unflat(self, vectors: Tensor, scores: tuple[Tensor, ...]) -> Any:
        """The inverse: vectors (…, batch, d) to parts shaped like the scores."""
        rank = scores[0].dim() - self.structure.event_dim
        pieces = vectors.split([math.prod(t.shape[rank:]) for t in scores], -1)
        return self.parts(tuple(p.reshape(*p.shape[:-1], *t.shape[rank:]) for p, t in zip(pieces, scores, strict=True)))

    def members(self, scores: tuple[Tensor, ...]) -> Tensor:
        """All structures of each instance as vectors: (batch, M, d), rows of −1 where an instance has fewer."""
        batch = scores[0].shape[: scores[0].dim() - self.structure.event_dim]
        every = []
        for index in itertools.product(*map(range, batch)):
            one = self.structure.at(index, batch)
            listed = one.enumerate(one.parts(tuple(t[index] for t in scores)))
            every.append(flat(one.tensors(listed)))
        most = max(len(rows) for rows in every)
        padded = [torch.nn.functional.pad(rows, (0, 0, 0, most - len(rows)), value=-1.0) for rows in every]
        return torch.stack(padded).reshape(*batch, most, -1)

    def listable(self) -> None:
        """Raises an error for a set too large to be listed."""
        scores = self.scores()
        batch = self.structure.batch_shape(self.parts(scores))
        for index in list(itertools.product(*map(range, batch)))[:1]:
            one = tuple(t[index] for t in scores)
            members(self.structure.at(index, batch), one, "Try a smaller instance: some hundred members are enough.")

    def repeats_parts(self) -> bool:
        """Whether some member has a part several times: then a part is not simply there or absent."""
        return bool((self.members(self.scores()) > 1).any())

    def scores_of_members(self, scores: tuple[Tensor, ...]) -> Tensor:
        """⟨θ, y⟩ of every structure, −inf if it has a forbidden part or is none: (batch, M)."""
        theta, y = self.vector(scores).unsqueeze(-2), self.members(scores)
        value = torch.where(y > 0, theta * y, 0.0).sum(-1)
        return value.masked_fill((y < 0).any(-1), -math.inf)

    def probabilities(self, scores: tuple[Tensor, ...]) -> Tensor:
        """p(y) of every structure, zeros where nothing is feasible: (batch, M)."""
        return self.scores_of_members(scores).softmax(-1).nan_to_num(0.0)

    def mean(self, probabilities: Tensor, scores: tuple[Tensor, ...]) -> Tensor:
        """Σ p(y) y: (batch, d)."""
        return (probabilities.unsqueeze(-1) * self.members(scores)).sum(-2)


def same(what: str, got: Tensor, want: Tensor, tolerance: float = 1e-10) -> None:
    """Equal shapes, infinities at the same places, finite values within `tolerance` (relative above 1)."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} should be {tuple(want.shape)}"
    assert not got.isnan().any(), f"{what}: holds NaN"
    assert torch.equal(got.isinf(), want.isinf()), f"{what}: infinities differ"
    finite = want.isfinite()
    if finite.any():
        gap = ((got - want).abs() / want.abs().clamp_min(1))[finite].max().item()
        assert gap <= tolerance, f"{what}: differs by {gap:.2e} > {tolerance:.0e}"


def forbid(scores: tuple[Tensor, ...], seed: int, share: float = 0.3) -> tuple[Tensor, ...]:
    """A random share of the parts set to −inf."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(t.masked_fill(torch.rand(t.shape, generator=generator) < share, -math.inf) for t in scores)


def variants(case: Case) -> dict[str, tuple[Tensor, ...]]:
    """Scores as drawn, without −inf, with forbidden parts, all forbidden, all tied, and large."""
    drawn, scores = case.drawn(), case.scores()
    return ({"drawn": drawn} if any(bool(t.isneginf().any()) for t in drawn) else {}) | {
        "random": scores,
        "forbidden": forbid(scores, 1),
        "infeasible": tuple(torch.full_like(t, -math.inf) for t in scores),
        "tied": tuple(torch.zeros_like(t) for t in scores),
        "large": tuple(1e3 * t for t in scores),
    }


def tied(case: Case) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) for t in case.scores())
