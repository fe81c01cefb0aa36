"""Exact expectations over a set small enough to be listed."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax.estimators.expectation import AbstractEstimator, Problem
from structmax.inference.entmax import softmax
from structmax.inference.members import members as list_members
from structmax.inference.question import countable, inner, per_instance


@dataclass(frozen=True)
class Enumerate(AbstractEstimator):
    """Σ p(y) f(y) over every y in Y: exact, with exact gradients, and the judge of all others.

    f is evaluated on all feasible structures of each instance. Structures are listed by `structure.enumerate`; sets too
    large for that are refused.

    Examples:
        >>> import torch, structmax
        >>> count = lambda z, _: z.sum(-1)
        >>> structmax.expect(count, torch.zeros(4), structmax.Bits(), structmax.Enumerate())
        Expectation(value=tensor(2.), evaluations=16)
    """

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def estimate(self, problem: Problem) -> Tensor:
        members, is_member = _members(problem)
        structure = problem.structure
        scores = tuple(s.unsqueeze(0) for s in problem.scores)
        values = inner(countable(scores, members), members, structure)
        broken = (s.isneginf() & (m > 0) for s, m in zip(scores, members, strict=True))
        forbidden = torch.stack([b.any(-1) for b in per_instance(tuple(broken), structure)]).any(0)
        feasible = is_member & ~forbidden
        p = softmax(values, 0, mask=feasible)
        return (p * problem.losses(structure.parts(members), feasible)).sum(0)


def _members(problem: Problem) -> tuple[tuple[Tensor, ...], Tensor]:
    """All structures of each instance, parts (K, batch, …) with K that of the largest set, and which are there."""
    batch = problem.structure.batch_shape(problem.named)
    runs = list(_runs(problem, batch))
    most = max((1, *(len(members[0]) for members, _ in runs)))
    flat = tuple(s.new_zeros(most, batch.numel(), *s.shape[len(batch) :]) for s in problem.scores)
    there = torch.zeros(most, batch.numel(), dtype=torch.bool, device=flat[0].device)
    start = 0
    for members, count in runs:
        for tensor, member in zip(flat, members, strict=True):
            tensor[: len(member), start : start + count] = member.unsqueeze(1)
        there[: len(members[0]), start : start + count] = True
        start += count
    shaped = tuple(t.reshape(most, *s.shape) for t, s in zip(flat, problem.scores, strict=True))
    return shaped, there.reshape(most, *batch)


def _runs(problem: Problem, batch: torch.Size) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """The structures, (K, …), of instances in a row that have the same ones, and how many instances these are."""
    structure = problem.structure

    def members(index: tuple[int, ...]) -> tuple[Tensor, ...]:
        scores = tuple(s[index] for s in problem.scores)
        return list_members(
            structure.at(index, batch), scores, "Try SparseTopK(k), SparseSupport() or ScoreFunction()."
        )

    indices = list(itertools.product(*map(range, batch)))
    if indices and all(getattr(structure, name) is None for name in structure.per_instance):
        yield members(indices[0]), len(indices)
        return
    first = 0
    for last, index in enumerate(indices, 1):
        ends = last == len(indices)
        if ends or not structure.at(indices[last], batch).matches(structure.at(index, batch)):
            yield members(indices[first]), last - first
            first = last
