"""SparseMAP: the sparse middle between argmax and marginals, as a distribution over few structures.

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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import backends, check
from structmax.contract import AbstractStructure, Scores
from structmax.inference.composed import summed
from structmax.inference.question import Asked, flat, front, inner, scaled, unflat
from structmax.inference.rule import ask, rule, transparent
from structmax.numerics.active_set import lists_of


class Solution(NamedTuple):
    """What a solver returns for x = θ/t, in float64; parts are counted in the flat vector of an instance, P long."""

    # the batch shape
    value: Tensor
    # (batch, K, L) int32: the parts of each structure, filled up with P
    lists: Tensor
    # (batch, K), zeros past an instance's count
    weights: Tensor
    # (batch, K, K): R, upper triangular, with RᵀR = G + 1 for the first `ranks` structures
    factor: Tensor
    # the batch shape, all of them
    counts: Tensor
    iterations: Tensor
    gap: Tensor
    converged: Tensor
    ranks: Tensor


class Solver(ABC):
    """How the support is found."""

    @abstractmethod
    def solve(
        self, asked: Asked, scores: tuple[Tensor, ...], start: Tensor, regularised: Tensor, max_iter: int, tol: float
    ) -> Solution:
        """For scores that are divided by the temperature, lists of structures to start from, and which parts are
        regularised: (P,) bool."""


@dataclass(frozen=True)
class ActiveSet(Solver):
    """Wolfe's method of the nearest point: adds the best structure, and weighs the support anew. Exact, and finite."""

    def solve(
        self, asked: Asked, scores: tuple[Tensor, ...], start: Tensor, regularised: Tensor, max_iter: int, tol: float
    ) -> Solution:
        everywhere = regularised.expand(*start.shape[:-2], -1)
        given = {"start": start, "regularised": everywhere, "max_iter": max_iter, "tol": tol}
        out = asked.room("sparsemap", scores, **given)
        return Solution._make((*out, out[4]))


# ---------------------------------------------------------------- the gradient


@transparent
@dataclass(frozen=True)
class Task:
    """What the rule is asked beside the scores."""

    asked: Asked
    solver: Solver
    temperature: float
    # for each part tensor
    regularised: tuple[bool, ...]
    max_iter: int
    tol: float

    def flat(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """All parts of each instance in one vector: (batch, P)."""
        return flat(tensors, self.asked.structure)

    def unflat(self, vectors: Tensor, like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The way back, to the shapes of `like`."""
        return unflat(vectors, like, self.asked.structure)

    def mask(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """Which parts are regularised: (P,)."""
        batch = tensors[0].dim() - self.asked.structure.event_dim
        sizes = [math.prod(t.shape[batch:]) for t in tensors]
        return torch.tensor(self.regularised).repeat_interleave(torch.tensor(sizes)).to(tensors[0].device)

    def support(self, name: str, *tensors: Tensor, **named: Any) -> list[Tensor]:
        """Asks about mixtures, which have no Triton kernel of their own."""
        backend = "auto" if self.asked.backend == "triton" else self.asked.backend
        return ask(backends.SUPPORT, name, tensors, tensors[0].dim() - 1, backend, **named)


class Sparse(Function):
    """Value, weights and marginals, which are differentiable; then the rest of the solution."""

    @staticmethod
    def forward(task: Task, start: Tensor, *scores: Tensor) -> tuple[Tensor, ...]:
        t, dtype = task.temperature, scores[0].dtype
        wide = tuple(score.double() if t == 1 else score.double() / t for score in scores)
        solution = task.solver.solve(task.asked, wide, start, task.mask(scores), task.max_iter, task.tol)
        _warn(solution, task)
        flat = task.flat(scores)
        (mixture,) = task.support("mixture", flat, lists=solution.lists, weights=solution.weights)
        mixture, broken = mixture.to(dtype), solution.value.isnan()
        if bool(broken.any()):
            mixture = torch.where(broken.unsqueeze(-1), math.nan, mixture)
        diff = (t * solution.value).to(dtype), solution.weights.to(dtype), *task.unflat(mixture, scores)
        found = solution.lists, solution.factor, solution.ranks
        numbers = solution.counts.clone(), solution.iterations, solution.converged, t * solution.gap
        # Forward mode wants outputs that are no views.
        return tuple(out.clone() if out._is_view() else out for out in (*diff, *found, *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.task, _, *scores = inputs
        ctx.count = len(scores)
        rest = output[2 + ctx.count :]
        ctx.rest = len(rest)
        kept = (*output[2 : 2 + ctx.count], *rest[:3])
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)
        ctx.mark_non_differentiable(*rest)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor | None, d_weights: Tensor | None, *d_rest: Tensor | None) -> tuple[Any, ...]:
        # Read once: a checkpoint recomputes what it gives, and gives it once.
        saved = ctx.saved_tensors
        marginals, support = saved[: ctx.count], saved[ctx.count :]
        task = ctx.task
        if d_weights is None:
            d_weights = torch.zeros_like(support[0][..., 0], dtype=marginals[0].dtype)
        flat = task.flat(_given(d_rest[: ctx.count], marginals))
        _, moved = response_rule(task, d_weights, flat, *support)
        d_scores = task.unflat(moved if task.temperature == 1 else moved / task.temperature, marginals)
        if d_value is not None:
            d_scores = tuple(a + b for a, b in zip(d_scores, scaled(d_value, marginals), strict=True))
        return None, None, *d_scores

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *given: Tensor | None) -> tuple[Any, ...]:
        marginals, support = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        task, tangents = ctx.task, _given(given, marginals)
        nothing = torch.zeros_like(support[0][..., 0], dtype=tangents[0].dtype)
        weights, moved = response_rule(task, nothing, task.flat(tangents) / task.temperature, *support)
        value = inner(marginals, tangents, task.asked.structure)
        return value, weights, *task.unflat(moved, marginals), *(None,) * ctx.rest


def _given(tensors: tuple[Tensor | None, ...], like: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Zeros where nothing is given."""
    return tuple(torch.zeros_like(b) if a is None else a for a, b in zip(tensors, like, strict=True))


class Response(Function):
    """(v, w) ↦ (q, M q) with q = Z (v + Mᵀ w): a symmetric map, so its own pullback."""

    @staticmethod
    def forward(
        task: Task, change: Tensor, flat: Tensor, lists: Tensor, factor: Tensor, ranks: Tensor
    ) -> tuple[Tensor, ...]:
        out = task.support("response", flat, change, lists=lists, factor=factor, ranks=ranks)
        return tuple(t.to(flat.dtype) for t in out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.task, _, _, *support = inputs
        ctx.save_for_backward(*support)
        ctx.save_for_forward(*support)

    @staticmethod
    def backward(ctx: Any, d_weights: Tensor, d_moved: Tensor) -> tuple[Any, ...]:
        return None, *response_rule(ctx.task, d_weights, d_moved, *ctx.saved_tensors), None, None, None

    @staticmethod
    def jvp(ctx: Any, _: None, change_t: Tensor, flat_t: Tensor, *__: None) -> tuple[Tensor, ...]:
        return response_rule(ctx.task, change_t, flat_t, *ctx.saved_tensors)


sparse_rule = rule(Sparse)
response_rule = rule(Response)


@torch._disable_dynamo
def _apart(*args: Any) -> tuple[Tensor, ...]:
    """Sizes depend on values, so compiled code leaves off here. The decorator loads the compiler when called."""
    return sparse_rule(*args)


def _warn(solution: Solution, task: Task) -> None:
    # An instance with NaN among its scores says so by its answer.
    open_ones = ~(solution.converged | solution.gap.isnan())
    if bool(open_ones.any()):
        worst = task.temperature * float(solution.gap[open_ones].max())
        warnings.warn(
            f"sparsemap did not converge in {int(open_ones.sum())} of {open_ones.numel()} instances after "
            f"max_iter={task.max_iter} best structures: the gap is {worst:.2g} at most. The answer is feasible, not "
            "exact. Try a larger `max_iter`, a larger `tol`, a lower `temperature`, or `start` from a former result.",
            stacklevel=4,
        )


# ---------------------------------------------------------------- the question


@dataclass(frozen=True)
class SparseMAP:
    """A distribution over few structures, and how the search for it went. K is the largest support of the batch."""

    # Σ p y: fields, shapes and dtype of the scores, differentiable
    marginals: Any
    # (K, batch): the largest first, 0 past an instance's count, differentiable
    probabilities: Tensor
    # max ⟨θ, μ⟩ − t/2 ‖μ_R‖²: the batch shape, differentiable
    value: Tensor
    # how many structures each instance has, and for how many best structures it asked
    counts: Tensor
    iterations: Tensor
    # whether the gap, by how much a better value cannot exceed this one, is within the tolerance
    converged: Tensor
    gap: Tensor
    structure: AbstractStructure = field(repr=False)
    # (batch, K, L): the parts of each structure in the flat vector of an instance, in the order of the probabilities
    lists: Tensor = field(repr=False)

    @property
    def structures(self) -> Any:
        """The structures in the order of their probabilities: parts with K in front, zeros past an instance's count.

        They are made when asked for, from lists of their parts.
        """
        like = self.structure.tensors(self.marginals)
        parts = flat(like, self.structure).shape[-1]
        vectors = like[0].new_zeros((*self.lists.shape[:-1], parts + 1))
        vectors.scatter_add_(-1, self.lists.long(), vectors.new_ones(()).expand(self.lists.shape))
        return self.structure.parts(unflat(vectors.movedim(-2, 0)[..., :-1], like, self.structure))


@summed
def sparsemap(
    scores: Scores,
    structure: AbstractStructure,
    *,
    temperature: float = 1.0,
    max_iter: int = 1000,
    tol: float = 1e-9,
    start: Any = None,
    regularised: tuple[str, ...] | None = None,
    solver: Solver = ActiveSet(),  # noqa: B008
    backend: str = "auto",
) -> SparseMAP:
    """argmax over μ in conv(Y) of ⟨θ, μ⟩ − temperature/2 ‖μ_R‖², as a distribution over few structures. Differentiable.

    It asks for nothing but best structures, so every structure that answers `argmax` answers it, exactly. Scores of
    any dtype are solved for in float64. Inside torch.compile it breaks the graph and runs as it is.

    Args:
        scores: θ, shaped as the structure says, with any leading batch dimensions. −inf forbids a part.
        structure: the set Y.
        temperature: a number > 0; fewer structures as it falls, down to argmax, and more as it grows.
        max_iter: how many best structures an instance may ask for. Beyond, it warns and says so in `converged`.
        tol: how large the duality gap may be, relative to the largest score of a best structure, or to 1 if that is
            smaller (both in units of the temperature). The error of the probabilities is of the size of the gap.
        start: structures to try before any is searched for: parts with a leading dimension, or a former result. It
            saves searches where scores have changed little, and never changes the answer.
        regularised: the names of the part tensors ‖μ_R‖² counts; by default what the structure says, such as the
            labels of a chain, from which transitions follow.
        solver: `ActiveSet()`, or for study `FrankWolfe()`, `AwaySteps()`, `PairwiseSteps()`.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A `SparseMAP` with `marginals`, `structures`, `probabilities`, `value`, and per instance `counts`, `iterations`,
        `converged` and `gap`. An instance in which nothing is feasible has zeros, value −inf and no structures.

    Examples:
        >>> import torch, structmax
        >>> unary, pairwise = torch.tensor([[1.0, 0.5], [2.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 2)
        >>> chain = structmax.LinearChain()
        >>> result = structmax.sparsemap((unary, pairwise), chain)
        >>> result.probabilities
        tensor([0.7500, 0.2500])
        >>> chain.decode(result.structures)
        tensor([[0, 0, 1],
                [1, 0, 1]])
        >>> result.marginals.unary
        tensor([[0.7500, 0.2500],
                [1.0000, 0.0000],
                [0.0000, 1.0000]])

    Reference: Niculae, Martins, Blondel & Cardie 2018, SparseMAP: differentiable sparse structured inference.
    """
    check.positive("temperature", temperature)
    check.positive("tol", tol)
    check.whole("max_iter", max_iter, 1)
    if not isinstance(solver, Solver):
        raise TypeError(f"`solver` should be ActiveSet() or another solver, but is {solver!r}.")
    tensors, asked = front(scores, structure, backend)
    named = _named(structure, regularised, len(tensors))
    task = Task(asked, solver, float(temperature), named, max_iter, float(tol))
    solve = _apart if torch.compiler.is_compiling() else sparse_rule
    value, weights, *rest = solve(task, _started(start, structure, tensors), *tensors)
    marginals, (lists, _, _, counts, iterations, converged, gap) = rest[: len(tensors)], rest[len(tensors) :]
    order = weights.detach().argsort(dim=-1, descending=True, stable=True)
    probabilities = weights.gather(-1, order).movedim(-1, 0)
    lists = lists.gather(-2, order.unsqueeze(-1).expand(lists.shape))
    return SparseMAP(
        structure.parts(tuple(marginals)),
        probabilities,
        value,
        counts,
        iterations,
        converged,
        gap,
        structure,
        lists,
    )


def _named(structure: AbstractStructure, regularised: tuple[str, ...] | None, count: int) -> tuple[bool, ...]:
    """For each part tensor whether it is regularised."""
    names = structure.Parts._fields[:count] if structure.Parts else ("scores",)
    wanted = names if regularised is None and structure.regularised is None else regularised or structure.regularised
    if isinstance(wanted, str) or not wanted or not set(wanted) <= set(names):
        listed = ", ".join(repr(name) for name in names)
        raise ValueError(f"`regularised` should be a tuple of some of {listed}, but is {wanted!r}.")
    return tuple(name in wanted for name in names)


def _started(start: Any, structure: AbstractStructure, tensors: tuple[Tensor, ...]) -> Tensor:
    """The structures to start from as lists of their parts, −1 where there is none: (batch, S, L)."""
    first = tensors[0]
    batch = first.shape[: first.dim() - structure.event_dim]
    if start is None:
        return torch.zeros((*batch, 0, 0), dtype=torch.int32, device=first.device)
    like = [tuple(t.shape) for t in tensors]
    if isinstance(start, SparseMAP):
        former = [tuple(t.shape) for t in structure.tensors(start.marginals)]
        if former != like:
            raise ValueError(f"`start` should be a result for scores of shapes {like}, but is one for {former}.")
        absent = torch.arange(start.lists.shape[-2], device=first.device) >= start.counts.unsqueeze(-1)
        return start.lists.masked_fill(absent.unsqueeze(-1), -1)
    parts = structure.tensors(start)
    if [tuple(t.shape[1:]) for t in parts] != like:
        shapes = [tuple(t.shape) for t in parts]
        raise ValueError(
            f"`start` should be structures with one dimension in front of the scores' shapes {like}, but has {shapes}. "
            "Try `argmax(...).unsqueeze(0)`."
        )
    flat = torch.cat([t.detach().flatten(1 + len(batch)) for t in parts], -1).movedim(0, len(batch))
    lists = lists_of(flat.reshape(batch.numel(), *flat.shape[-2:]))
    # Zeros stand behind the last structure of a result.
    return lists.reshape(*flat.shape[:-1], lists.shape[-1]).masked_fill((flat == 0).all(-1, keepdim=True), -1)
