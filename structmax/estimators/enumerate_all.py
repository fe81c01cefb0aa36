"""Exact expectations over a set small enough to be listed."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax.estimators.expectation import AbstractEstimator, Evaluations
from structmax.mappings.entmax import softmax
from structmax.parts import Tensors, score
from structmax.problem import Problem
from structmax.questions.members import members as list_members


@dataclass(frozen=True)
class Enumerate(AbstractEstimator):
    """Σ p(y) f(y) over every y in Y: exact, with exact gradients. Other estimators are compared with it.

    f is evaluated on all feasible structures of each instance. Structures are listed by `structure.enumerate`; sets too
    large for that raise a `Refusal`.

    Examples:
        >>> import torch, structmax
        >>> count = lambda z, _: z.sum(-1)
        >>> structmax.expect(count, torch.zeros(4), structmax.Bits(), structmax.estimators.Enumerate())
        Expectation(value: 2; evaluations: 16; torch.float32, cpu)
    """

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        members, is_member = _members(problem)
        values = score(tuple(s.unsqueeze(0) for s in problem.scores), members, 2)
        feasible = is_member & ~values.isneginf()
        p = softmax(values, 0, mask=feasible)
        return f.summed(problem, members, p)


def _members(problem: Problem) -> tuple[Tensors, Tensor]:
    """All structures of each instance, parts (K, B, …) with K that of the largest set, and which are there."""
    runs = list(_runs(problem))
    most = max((1, *(len(members[0]) for members, _ in runs)))
    every = tuple(s.new_zeros(most, *s.shape) for s in problem.scores)
    there = torch.zeros(every[0].shape[:2], dtype=torch.bool, device=every[0].device)
    start = 0
    for members, count in runs:
        for tensor, member in zip(every, members, strict=True):
            tensor[: len(member), start : start + count] = member.unsqueeze(1)
        there[: len(members[0]), start : start + count] = True
        start += count
    return every, there


def _runs(problem: Problem) -> Iterator[tuple[Tensors, int]]:
    """The structures, (K, …), of instances in a row that have the same ones, and how many instances these are."""
    structure, batch = problem.structure, problem.batch
    every = problem.with_batch(problem.scores)

    def members(index: tuple[int, ...]) -> Tensors:
        scores = tuple(s[index] for s in every)
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
