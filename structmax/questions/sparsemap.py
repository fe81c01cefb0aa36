"""SparseMAP as a distribution over few structures. The mathematics is in structmax/omega/squared_norm.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractRelaxation, AbstractStructure, Scores
from structmax.numerics.active_set import lists_of
from structmax.omega.relaxed import Point
from structmax.omega.squared_norm import AbstractSolver, ActiveSet, SquaredNorm, Support
from structmax.outline import outline
from structmax.parts import flat, unflat
from structmax.problem import Problem


@dataclass(frozen=True)
class SparseMAP:
    """A distribution over few structures, and how the search for it went. K is the largest support of the batch."""

    # Σ p y: fields, shapes and dtype of the scores, differentiable
    marginals: Any
    # (K, batch): the largest first, 0 past an instance's count, differentiable
    probabilities: Tensor
    # max ⟨θ, μ⟩ − t/2 ‖μ_R‖²: the batch shape, differentiable
    value: Tensor
    # how many structures each instance has, and how many best structures were searched for
    counts: Tensor
    iterations: Tensor
    # whether the gap, by how much a better value cannot exceed this one, is within the tolerance
    converged: Tensor
    gap: Tensor
    structure: AbstractStructure = field(repr=False)
    # (batch, K, L): the parts of each structure in the flat vector of an instance, in the order of the probabilities
    lists: Tensor = field(repr=False)

    def __repr__(self) -> str:
        return outline(self)

    @property
    def parts(self) -> Any:
        """The structures in the order of their probabilities: parts with K in front, zeros past an instance's count.

        They are made when asked for, from lists of their parts.
        """
        like = self.structure.tensors(self.marginals)
        rank = self.counts.dim()
        events = tuple(t.reshape((math.prod(t.shape[:rank]), *t.shape[rank:])) if rank != 1 else t for t in like)
        vectors = members_of(self.lists, events)
        return self.structure.parts(unflat(vectors.movedim(-2, 0), events))


@dataclass(frozen=True)
class Relaxed:
    """The best point of a relaxation, as `sparsemap` gives it for a `FactorGraph`, and how exact it is."""

    # by name, in the shapes of the scores, differentiable; free ones too
    marginals: Any
    # max ⟨θ, μ⟩ − t/2 ‖μ_R‖², free ones not in R: the batch shape, differentiable
    value: Tensor
    # how many steps were taken
    iterations: Tensor
    # whether both residuals are within the tolerance
    converged: Tensor
    # no point has a value higher than `value` by more than this, but for the primal residual
    gap: Tensor
    # the largest distance between a variable and a factor's copy of it
    primal_residual: Tensor
    # the largest change of a variable in the last step, times the penalty
    dual_residual: Tensor

    def __repr__(self) -> str:
        return outline(self)


def members_of(lists: Tensor, like: Sequence[Tensor]) -> Tensor:
    """Structures (…, K, P) from lists (…, K, L) of their parts, for part tensors (B, …) of the same events."""
    parts = sum(math.prod(t.shape[1:]) for t in like)
    vectors = like[0].new_zeros((*lists.shape[:-1], parts + 1))
    vectors.scatter_add_(-1, lists.long(), vectors.new_ones(()).expand(lists.shape))
    return vectors[..., :-1]


# Typed as an AbstractStructure, a relaxation returns a `Relaxed`, which the first overload does not promise.
@overload
def sparsemap(  # type: ignore[overload-overlap]
    scores: Any,
    structure: AbstractRelaxation,
    *,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
    backend: str = "auto",
) -> Relaxed: ...


@overload
def sparsemap(
    scores: Scores,
    structure: AbstractStructure,
    *,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
    start: Any = None,
    regularised: tuple[str, ...] | None = None,
    solver: AbstractSolver = ActiveSet(),  # noqa: B008
    backend: str = "auto",
) -> SparseMAP: ...


def sparsemap(
    scores: Any,
    structure: AbstractStructure,
    *,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
    start: Any = None,
    regularised: tuple[str, ...] | None = None,
    solver: AbstractSolver = ActiveSet(),  # noqa: B008
    backend: str = "auto",
) -> SparseMAP | Relaxed:
    """argmax over μ in conv(Y) of ⟨θ, μ⟩ − temperature/2 ‖μ_R‖², as a distribution over few structures. Differentiable.

    It only needs best structures, so every structure with `argmax` supports it, exactly. Scores of any dtype are
    solved for in float64. Inside torch.compile it breaks the graph and runs eagerly.

    For a `FactorGraph` it is LP-SparseMAP: conv(Y) is replaced by the intersection of the hulls of its factors. Then
    `max_iter` counts steps, `tol` bounds both residuals, and `start` and `solver` are not supported.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        temperature: a number > 0; fewer structures as it falls, down to argmax, and more as it grows.
        max_iter: how many best structures an instance may use. Beyond that, it warns, and `converged` is False.
        tol: how large the duality gap may be, relative to the largest score of a best structure, or to 1 if that is
            smaller (both in units of the temperature). The error of the probabilities is of the size of the gap.
        start: structures to try before any is searched for: parts with a leading dimension, or an earlier result.
            It saves searches if the scores have changed little, and never changes the answer.
        regularised: the names of the part tensors ‖μ_R‖² counts; by default what the structure says, such as the
            labels of a chain, from which transitions follow.
        solver: `ActiveSet()`, or for comparison `FrankWolfe()`, `AwaySteps()`, `PairwiseSteps()`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A `SparseMAP` with `marginals`, `parts`, `probabilities`, `value`, and per instance `counts`, `iterations`,
        `converged` and `gap`; for a `FactorGraph` a `Relaxed`, with residuals and without structures. An instance in
        which nothing is feasible has zeros, value −inf and no structures.

    Examples:
        >>> import torch, structmax
        >>> unary, pairwise = torch.tensor([[1.0, 0.5], [2.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 2)
        >>> chain = structmax.LinearChain()
        >>> result = structmax.sparsemap((unary, pairwise), chain)
        >>> result.probabilities
        tensor([0.7500, 0.2500])
        >>> chain.decode(result.parts)
        tensor([[0, 0, 1],
                [1, 0, 1]])
        >>> result.marginals.unary
        tensor([[0.7500, 0.2500],
                [1.0000, 0.0000],
                [0.0000, 1.0000]])

    Reference: Niculae, Martins, Blondel & Cardie 2018, SparseMAP: differentiable sparse structured inference.
    """
    check.positive("tol", tol)
    check.whole("max_iter", max_iter, 1)
    check.instance("solver", solver, AbstractSolver, "ActiveSet() or another solver")
    omega, problem = SquaredNorm(temperature, regularised), Problem.of(scores, structure, backend)
    if problem.answers("relax"):
        if start is not None or solver != ActiveSet():
            raise ValueError(
                f"sparsemap of a {type(structure).__name__} should have neither `start` nor `solver`: it is solved as "
                "a relaxation, which uses no structures. Try it without them."
            )
        return _of_relaxation(problem, omega.relaxation(problem, max_iter, tol))
    found = omega.distribution(problem, _started(start, problem), max_iter, tol, solver)
    return answered(problem, found)


def _of_relaxation(problem: Problem, point: Point) -> Relaxed:
    """A point of a relaxation as an answer."""
    real = point.value, point.gap, *point.residuals.unbind(-1)
    value, gap, primal, dual = (problem.shaped(t.to(problem.scores[0].dtype)) for t in real)
    iterations, converged = problem.with_batch((point.iterations, point.converged))
    return Relaxed(problem.named(point.marginals), value, iterations, converged, gap, primal, dual)


def answered(problem: Problem, found: Support) -> SparseMAP:
    """A support as an answer."""
    numbers = found.counts, found.iterations, found.converged, found.gap, found.lists
    counts, iterations, converged, gap, lists = problem.with_batch(numbers)
    return SparseMAP(
        problem.named(found.marginals),
        problem.stacked_values(found.probabilities),
        problem.shaped(found.value),
        counts,
        iterations,
        converged,
        gap,
        problem.structure,
        lists,
    )


def _started(start: Any, problem: Problem) -> Tensor | None:
    """The structures to start from as lists of their parts, −1 where there is none: (B, S, L)."""
    if start is None:
        return None
    structure, batch, first = problem.structure, problem.batch, problem.scores[0]
    like = [(*batch, *t.shape[1:]) for t in problem.scores]
    if isinstance(start, SparseMAP):
        former = [tuple(t.shape) for t in structure.tensors(start.marginals)]
        if former != like:
            raise ValueError(f"`start` should be a result for scores of shapes {like}, but is a result for {former}.")
        absent = torch.arange(start.lists.shape[-2], device=first.device) >= start.counts.unsqueeze(-1)
        return start.lists.masked_fill(absent.unsqueeze(-1), -1).reshape(first.shape[0], *start.lists.shape[-2:])
    parts = structure.tensors(start)
    if [tuple(t.shape[1:]) for t in parts] != like:
        shapes = [tuple(t.shape) for t in parts]
        raise ValueError(
            f"`start` should be structures with one dimension in front of the scores' shapes {like}, but has {shapes}. "
            "Try `argmax(...).unsqueeze(0)`."
        )
    count = parts[0].shape[0]
    rows = tuple(t.detach().reshape(count, *s.shape).movedim(0, 1) for t, s in zip(parts, problem.scores, strict=True))
    vectors = flat(rows, 2)
    # Zeros stand behind the last structure of a result.
    return lists_of(vectors).masked_fill((vectors == 0).all(-1, keepdim=True), -1)
