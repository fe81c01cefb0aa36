"""Sets a pulled-back target may be projected onto: the polytope of the structures, or something larger and cheaper."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from structmax.estimators.possible import possible
from structmax.mappings.capped import budget
from structmax.mappings.entmax import sparsemax
from structmax.omega.squared_norm import SquaredNorm, weighed
from structmax.parts import Tensors, flat, plus, unflat, where
from structmax.problem import Problem


class AbstractProjection(ABC):
    """A convex set around the structures."""

    @abstractmethod
    def shift(self, problem: Problem, point: Tensors, move: Tensors) -> Tensors:
        """point − Proj(point − move): how far the projected step goes. Forbidden parts and padding stay at 0."""


@dataclass(frozen=True)
class Polytope(AbstractProjection):
    """conv(Y) itself, exactly, by `sparse_marginals` or, without a direct projection, `sparsemap`.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import Polytope, Spigot
        >>> x = torch.tensor([0.0, 1.0, 0.5], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), Spigot(projection=Polytope()))
        >>> (z @ torch.tensor([0.0, 0.5, 0.0])).backward()
        >>> x.grad
        tensor([-0.1667,  0.3333, -0.1667])
    """

    def shift(self, problem: Problem, point: Tensors, move: Tensors) -> Tensors:
        # all parts counted, whatever the structure regularises, but for those that it cannot: these have their linear
        # term alone, as in argmin ⟨move, μ⟩ + ½ ‖μ − point‖², in the norm of the structure
        names = problem.structure.names[: problem.count]
        counted = tuple(name for name in names if name not in problem.structure.free)
        goals = zip(names, plus(weighed(problem, point), move, -1.0), move, problem.scores, strict=True)
        wish = tuple((w if n in counted else -m).masked_fill(s.isneginf(), -math.inf) for n, w, m, s in goals)
        nearest = SquaredNorm(regularised=counted)
        return plus(point, nearest.point(problem.at(wish)), -1.0)


@dataclass(frozen=True)
class Simplices(AbstractProjection):
    """A simplex along `dim` for every other index: with arcs (…, N+1, N+1) and dim = −2, one head for every word.

    Part tensors of a structure are all projected along `dim`, so that it suits those with one. Rows without a possible
    part stay 0.

    Args:
        dim: along which each row is projected.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import Simplices, Spigot
        >>> x = torch.tensor([0.0, 1.0, 0.5], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), Spigot(projection=Simplices(dim=-1)))
        >>> (z @ torch.tensor([0.0, 0.5, 0.0])).backward()
        >>> x.grad
        tensor([-0.1667,  0.3333, -0.1667])
    """

    dim: int = -2

    def shift(self, problem: Problem, point: Tensors, move: Tensors) -> Tensors:
        wishes = zip(plus(point, move, -1.0), possible(problem), strict=True)
        nearest = tuple(sparsemax(w, self.dim, mask=mask, backend=problem.backend) for w, mask in wishes)
        return plus(point, nearest, -1.0)


@dataclass(frozen=True)
class Box(AbstractProjection):
    """0 ≤ μ ≤ 1, for parts that are there or not.

    Args:
        budget: keep the number of parts as well, Σ μ = Σ z: as many arcs as there are words.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import Box, Spigot
        >>> x = torch.tensor([0.0, 1.0, 0.5], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), Spigot(projection=Box()))
        >>> (z @ torch.tensor([0.0, 0.5, 0.0])).backward()
        >>> x.grad
        tensor([0.0000, 0.5000, 0.0000])
    """

    budget: bool = False

    def shift(self, problem: Problem, point: Tensors, move: Tensors) -> Tensors:
        if self.budget:
            return _of_the_same_sum(problem, point, move)
        nearest = tuple(w.clamp(0.0, 1.0) for w in plus(point, move, -1.0))
        return where(possible(problem), plus(point, nearest, -1.0))


def _of_the_same_sum(problem: Problem, point: Tensors, move: Tensors) -> Tensors:
    vector, mask = flat(point), flat(possible(problem))
    total = vector.sum(-1, keepdim=True)
    empty = total == 0
    # An instance without parts stays without, whatever the set.
    wish = vector - flat(move)
    nearest = budget(wish, torch.where(empty, 1.0, total), mask=mask | empty, backend=problem.backend)
    return unflat((vector - nearest).masked_fill(empty, 0.0), point)


@dataclass(frozen=True)
class WholeSpace(AbstractProjection):
    """No constraint at all: the straight-through gradient, times the step.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import WholeSpace, Spigot
        >>> x = torch.tensor([0.0, 1.0, 0.5], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Simplex(), Spigot(projection=WholeSpace()))
        >>> (z @ torch.tensor([0.0, 0.5, 0.0])).backward()
        >>> x.grad
        tensor([0.0000, 0.5000, 0.0000])
    """

    def shift(self, problem: Problem, point: Tensors, move: Tensors) -> Tensors:
        return where(possible(problem), move)
