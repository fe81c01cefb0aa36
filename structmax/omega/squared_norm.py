"""½‖μ‖²: SparseMAP, the sparse middle between argmax and marginals.

    μ = argmax over μ in conv(Y) of ⟨θ, μ⟩ − t/2 ‖μ_R‖²        R the regularised parts

With the support's structures as columns of M, μ = M p, where p is the best point of a simplex, max ⟨Mᵀθ, p⟩ −
t/2 ‖M_R p‖². While the support stays, Σ p = 1 and stationarity are linear equations, and with x = θ/t and the p-block Z
of the inverse of their matrix

    dp = Z Mᵀ dx        dμ = M Z Mᵀ dx        d value = ⟨μ, dθ⟩

Z is symmetric, so (v, w) ↦ (q, M q) with q = Z (v + Mᵀ w) is pullback and pushforward at once, and constant between
changes of the support, so that its own derivative is itself. Nothing of the search for the support is kept or unrolled:
lists of parts, and the factor of a matrix as large as the support.

Reference: Niculae, Martins, Blondel & Cardie 2018, SparseMAP: differentiable sparse structured inference.
"""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import check, rooms
from structmax.autograd import rule
from structmax.calling import call
from structmax.half import widened
from structmax.omega import relaxed
from structmax.omega.base import AbstractOmega
from structmax.omega.projection import projected, pulled_back
from structmax.parts import Tensors, flat, inner, scaled, unflat
from structmax.problem import Problem


class Solution(NamedTuple):
    """What a solver returns for x = θ/t, in float64; parts are counted in the flat vector of an instance, P long."""

    # (B,)
    value: Tensor
    # (B, K, L) int32: the parts of each structure, filled up with P
    lists: Tensor
    # (B, K), zeros past an instance's count
    weights: Tensor
    # (B, K, K): R, upper triangular, with RᵀR = G + 1 for the first `ranks` structures
    factor: Tensor
    # (B,), all of them
    counts: Tensor
    iterations: Tensor
    gap: Tensor
    converged: Tensor
    ranks: Tensor


def regularised(
    problem: Problem, names: tuple[str, ...] | None = None, argument: str = "regularised"
) -> tuple[bool, ...]:
    """For each part tensor whether ½‖μ‖² counts it: those of these names or, by default, as the structure says."""
    known = problem.structure.names[: problem.count]
    wanted = names if names is not None else problem.structure.regularised or known
    if isinstance(wanted, str) or not wanted or not set(wanted) <= set(known):
        listed = ", ".join(repr(name) for name in known)
        raise ValueError(f"`{argument}` should be a tuple of some of {listed}, but is {wanted!r}.")
    return tuple(name in wanted for name in known)


def weighed(problem: Problem, parts: Tensors) -> Tensors:
    """Parts times their weights in the norm: the gradient of ½ Σ w μ²."""
    weights = problem.structure.weights
    return parts if weights is None else tuple(w.to(p) * p for w, p in zip(weights, parts, strict=True))


class AbstractSolver(ABC):
    """How the support is found."""

    @abstractmethod
    def solve(self, problem: Problem, start: Tensor, regularised: Tensor, max_iter: int, tol: float) -> Solution:
        """For scores that are divided by the temperature, lists of structures to start from, and which parts are
        regularised: (P,) bool."""


@dataclass(frozen=True)
class ActiveSet(AbstractSolver):
    """Wolfe's method of the nearest point: adds the best structure, then finds the support's weights. Exact, finite.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 1.5], [1.0, 0.8]])
        >>> solver = structmax.omega.ActiveSet()
        >>> structmax.sparsemap(x, structmax.Matching(), solver=solver).marginals
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])
    """

    def solve(self, problem: Problem, start: Tensor, regularised: Tensor, max_iter: int, tol: float) -> Solution:
        everywhere = regularised.expand(len(start), -1)
        given = {"start": start, "regularised": everywhere, "max_iter": max_iter, "tol": tol}
        out = problem.ask("sparsemap", *problem.scores, **given)
        return Solution._make((*out, out[4]))


@dataclass(frozen=True)
class SquaredNorm(AbstractOmega):
    """temperature/2 ‖μ_R‖²: its point is that of `sparsemap`.

    Args:
        temperature: a number > 0; fewer structures as it falls.
        regularised: the names of the part tensors that ‖μ_R‖² counts; by default what the structure says, such as the
            labels of a chain, from which transitions follow.

    Examples:
        >>> import torch, structmax
        >>> structmax.smoothed_marginals(torch.tensor([0.0, 0.5]), structmax.Simplex(), structmax.omega.SquaredNorm())
        tensor([0.2500, 0.7500])
    """

    temperature: float = 1.0
    regularised: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check.number("temperature", self.temperature)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax",)

    def value(self, problem: Problem) -> Tensor:
        return self._mean(problem).value

    def point(self, problem: Problem) -> Tensors:
        if self._projects(problem):
            return projected(self._divided(problem))
        return self._mean(problem).marginals

    def _mean(self, problem: Problem) -> "Support | relaxed.Point":
        return self.relaxation(problem) if problem.answers("relax") else self.distribution(problem)

    def relaxation(self, problem: Problem, max_iter: int = 1000, tol: float = 1e-9) -> relaxed.Point:
        """The best point of a polytope around conv(Y), for structures that have `relax`."""
        counted = zip(problem.structure.names, regularised(problem, self.regularised), strict=True)
        wrong = [name for name, is_counted in counted if is_counted == (name in problem.structure.free)]
        if wrong:
            should = tuple(name for name in problem.structure.names if name not in problem.structure.free)
            raise ValueError(
                f"`regularised` of a {type(problem.structure).__name__} should be {should}, all that is not free, but "
                f"is {self.regularised!r}. Try leaving it out."
            )
        return relaxed.relaxed(problem, self.temperature, max_iter, tol)

    def pullback(self, problem: Problem, d_point: Tensors) -> Tensors:
        if self._projects(problem):
            return tuple(d / self.temperature for d in pulled_back(self._divided(problem), d_point))
        return super().pullback(problem, d_point)

    def _projects(self, problem: Problem) -> bool:
        """Whether the structure finds the point directly, as the nearest one to θ/t."""
        return problem.answers("project") and self.regularised in (None, problem.structure.names)

    def _divided(self, problem: Problem) -> Problem:
        # half precision is rounded once, in the answer
        return problem.at(tuple(s / self.temperature for s in widened(problem.scores)))

    def at(self, problem: Problem, parts: Tensors) -> Tensor:
        which = regularised(problem, self.regularised)
        counted, heavy = ([p for p, w in zip(ps, which, strict=True) if w] for ps in (parts, weighed(problem, parts)))
        return self.temperature / 2 * inner(counted, heavy)

    def distribution(
        self,
        problem: Problem,
        start: Tensor | None = None,
        max_iter: int = 1000,
        tol: float = 1e-9,
        solver: AbstractSolver = ActiveSet(),  # noqa: B008
    ) -> "Support":
        """The structures whose mean the point is, with their probabilities."""
        if start is None:
            first = problem.scores[0]
            start = torch.zeros((first.shape[0], 0, 0), dtype=torch.int32, device=first.device)
        named = regularised(problem, self.regularised)
        search = Search(solver, float(self.temperature), named, max_iter, float(tol))
        solve = _uncompiled if torch.compiler.is_compiling() else sparse_rule
        value, weights, *rest = solve(search, problem.blank, start, *problem.scores)
        marginals = tuple(rest[: problem.count])
        lists, _, _, counts, iterations, converged, gap = rest[problem.count :]
        order = weights.detach().argsort(dim=-1, descending=True, stable=True)
        lists = lists.gather(-2, order.unsqueeze(-1).expand(lists.shape))
        return Support(marginals, weights.gather(-1, order), value, counts, iterations, converged, gap, lists)


class Support(NamedTuple):
    """A distribution over few structures, as `sparsemap` shows it, with the batch in front."""

    marginals: Tensors
    # (B, K), the largest first
    probabilities: Tensor
    # (B,), all of them
    value: Tensor
    counts: Tensor
    iterations: Tensor
    converged: Tensor
    gap: Tensor
    # (B, K, L) in the order of the probabilities
    lists: Tensor


# ---------------------------------------------------------------- the gradient


@dataclass(frozen=True)
class Search:
    """How the support is searched for."""

    solver: AbstractSolver
    temperature: float
    # for each part tensor
    regularised: tuple[bool, ...]
    max_iter: int
    tol: float

    def mask(self, tensors: Tensors) -> Tensor:
        """Which parts are regularised: (P,)."""
        sizes = [math.prod(t.shape[1:]) for t in tensors]
        device = tensors[0].device
        return torch.cat(
            [torch.full((size,), each, device=device) for size, each in zip(sizes, self.regularised, strict=True)]
        )


def _ask(problem: Problem, name: str, *tensors: Tensor, **named: Any) -> list[Tensor]:
    """Calls functions of mixtures."""
    return call(rooms.SUPPORT, name, tensors, named, 1, problem.backend)


class Sparse(Function):
    """Value, weights and marginals, which are differentiable; then the rest of the solution."""

    @staticmethod
    def forward(search: Search, problem: Problem, start: Tensor, *scores: Tensor) -> Tensors:
        t, dtype = search.temperature, scores[0].dtype
        wide = tuple(score.double() if t == 1 else score.double() / t for score in scores)
        solution = search.solver.solve(problem.at(wide), start, search.mask(scores), search.max_iter, search.tol)
        (mixture,) = _ask(problem, "mixture", flat(scores), lists=solution.lists, weights=solution.weights)
        mixture = mixture.to(dtype)
        # A GPU is waited for once. Where a score is NaN nothing has converged.
        if not bool(solution.converged.all()):
            _warn(solution, search)
            mixture = torch.where(solution.value.isnan().unsqueeze(-1), math.nan, mixture)
        diff = (t * solution.value).to(dtype), solution.weights.to(dtype), *unflat(mixture, scores)
        found = solution.lists, solution.factor, solution.ranks
        numbers = solution.counts.clone(), solution.iterations, solution.converged, t * solution.gap
        # Forward mode wants outputs that are no views.
        return tuple(out.clone() if out._is_view() else out for out in (*diff, *found, *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.search, ctx.problem, *_ = inputs
        count = ctx.problem.count
        rest = output[2 + count :]
        ctx.rest = len(rest)
        kept = (*output[2 : 2 + count], *rest[:3])
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.mark_non_differentiable(*rest)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor | None, d_weights: Tensor | None, *d_rest: Tensor | None) -> tuple[Any, ...]:
        # Read once: a checkpoint recomputes what it gives, and gives it once.
        saved, count, t = ctx.saved_tensors, ctx.problem.count, ctx.search.temperature
        marginals, support = saved[:count], saved[count:]
        if d_weights is None:
            d_weights = torch.zeros_like(support[0][..., 0], dtype=marginals[0].dtype)
        _, moved = response_rule(ctx.problem, d_weights, flat(_given(d_rest[:count], marginals)), *support)
        d_scores = unflat(moved if t == 1 else moved / t, marginals)
        if d_value is not None:
            d_scores = tuple(a + b for a, b in zip(d_scores, scaled(d_value, marginals), strict=True))
        return None, None, None, *d_scores

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *given: Tensor | None) -> tuple[Any, ...]:
        saved, count = ctx.saved_tensors, ctx.problem.count
        marginals, support = saved[:count], saved[count:]
        tangents = _given(given, marginals)
        nothing = torch.zeros_like(support[0][..., 0], dtype=tangents[0].dtype)
        weights, moved = response_rule(ctx.problem, nothing, flat(tangents) / ctx.search.temperature, *support)
        return inner(marginals, tangents), weights, *unflat(moved, marginals), *(None,) * ctx.rest


def _given(tensors: tuple[Tensor | None, ...], like: Tensors) -> Tensors:
    """Zeros where nothing is given."""
    return tuple(torch.zeros_like(b) if a is None else a for a, b in zip(tensors, like, strict=True))


class Response(Function):
    """(v, w) ↦ (q, M q) with q = Z (v + Mᵀ w): a symmetric map, so its own pullback."""

    @staticmethod
    def forward(
        problem: Problem, change: Tensor, moved: Tensor, lists: Tensor, factor: Tensor, ranks: Tensor
    ) -> Tensors:
        out = _ask(problem, "response", moved, change, lists=lists, factor=factor, ranks=ranks)
        return tuple(t.to(moved.dtype) for t in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.problem, _, _, *support = inputs
        ctx.save_for_backward(*support)
        ctx.save_for_forward(*support)

    @staticmethod
    def backward(ctx: Any, d_weights: Tensor, d_moved: Tensor) -> tuple[Any, ...]:
        return None, *response_rule(ctx.problem, d_weights, d_moved, *ctx.saved_tensors), None, None, None

    @staticmethod
    def jvp(ctx: Any, _: None, change_t: Tensor, moved_t: Tensor, *__: None) -> Tensors:
        return response_rule(ctx.problem, change_t, moved_t, *ctx.saved_tensors)


sparse_rule, response_rule = rule(Sparse, fold=True), rule(Response, fold=True)


@torch._disable_dynamo
def _uncompiled(*args: Any) -> Tensors:
    """Sizes depend on values, so torch.compile breaks the graph here. The decorator loads the compiler when called."""
    return sparse_rule(*args)


def _warn(solution: Solution, search: Search) -> None:
    # An instance with NaN among its scores has NaN in its answer.
    open_ones = ~(solution.converged | solution.gap.isnan())
    if bool(open_ones.any()):
        worst = search.temperature * float(solution.gap[open_ones].max())
        warnings.warn(
            f"sparsemap did not converge in {int(open_ones.sum())} of {open_ones.numel()} instances after "
            f"max_iter={search.max_iter} best structures: the gap is {worst:.2g} at most. The answer is feasible, not "
            "exact. Try a larger `max_iter`, a larger `tol`, a lower `temperature`, or `start` from an earlier result.",
            stacklevel=4,
        )
