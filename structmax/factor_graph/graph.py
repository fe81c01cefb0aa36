"""Factor graphs: intersections of constraints and structures, with scores."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from structmax import check
from structmax.backends import Refusal
from structmax.factor_graph.factors import AbstractFactor
from structmax.factor_graph.layout import lay_out, places
from structmax.factor_graph.masks import bring_near
from structmax.factor_graph.relaxation import Relaxation, Relaxed
from structmax.factor_graph.search import Best, search
from structmax.factor_graph.solver import FORBIDDEN, INFEASIBLE, RUNNING, Problem, Solver
from structmax.factor_graph.variables import Variables

Answer = TypeVar("Answer")


class FactorGraph:
    """Binary variables under constraints that hold together: logic, couplings, and whole structures.

    The set of its members is the intersection of its factors; its relaxation, on which `sparsemap` works, is the
    intersection of their convex hulls (the local polytope). Described once, it serves every batch of scores.

    Args:
        items: factors, and variables that are in none.

    Examples:
        >>> import torch, structmax
        >>> x = structmax.factors.Variables("x", (2, 2))
        >>> lines = [structmax.factors.Xor(line) for line in (x[0], x[1], x[:, 0], x[:, 1])]
        >>> graph = structmax.FactorGraph(*lines)
        >>> graph.sparsemap({"x": torch.tensor([[2.0, 1.5], [1.0, 0.8]])}).marginals["x"]
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])

    Reference: Niculae & Martins 2020, LP-SparseMAP: differentiable relaxed optimization for sparse structured
    prediction.
    """

    def __init__(self, *items: AbstractFactor | Variables) -> None:
        for item in items:
            if not isinstance(item, AbstractFactor | Variables):
                raise TypeError(
                    f"FactorGraph should be given factors and Variables, but got a {type(item).__name__}. "
                    "A list of factors is given as FactorGraph(*factors)."
                )
        self.layout = lay_out(items)

    def sparsemap(
        self,
        scores: Mapping[str, Tensor],
        *,
        temperature: float = 1.0,
        mask: Mapping[str, Tensor] | None = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
    ) -> Relaxed:
        """argmax over μ in the local polytope of ⟨θ, μ⟩ − temperature/2 ‖μ‖² (LP-SparseMAP).

        Args:
            scores: θ by name, each (…, *shape); leading batch dimensions broadcast. −inf forbids: the variable is 0.
            temperature: a number > 0; free variables are not regularised.
            mask: by name, True where a variable exists, broadcast to its scores. Others are 0, and a factor all of
                whose variables are absent says nothing: padding.
            max_iter: steps at most.
            tol: what both residuals should fall below. Most answers are exact far beyond: see the residuals.

        Returns:
            A `Relaxed`. An instance that no point satisfies has zeros and value −inf.

        Examples:
            >>> import torch, structmax
            >>> word = structmax.factors.Variables("word", (4,))
            >>> budget = structmax.factors.Budget(word, at_most=2)
            >>> graph = structmax.FactorGraph(budget, structmax.factors.Imply(word[3], word[0]))
            >>> graph.sparsemap({"word": torch.tensor([0.1, 0.9, 0.7, 0.8])}).marginals["word"]
            tensor([0.3250, 0.7750, 0.5750, 0.3250])
        """
        check.positive("temperature", temperature)
        check.whole("max_iter", max_iter, 1)
        check.positive("tol", tol)
        return _apart(self._sparsemap, scores, temperature, mask, max_iter, tol)

    def _sparsemap(
        self,
        scores: Mapping[str, Tensor],
        temperature: float,
        mask: Mapping[str, Tensor] | None,
        max_iter: int,
        tol: float,
    ) -> Relaxed:
        theta, phi, batch = self._flat(scores)
        scaled = theta / temperature, phi / temperature
        problem, lost = self._problem(*scaled, mask, batch)
        solver = Solver(self.layout, problem, tol)
        solver.run(max_iter)
        u, nu = Relaxation.apply(solver, *scaled)
        fixed = _without_rounding(u, scaled[0], problem.theta), _without_rounding(nu, scaled[1], problem.phi)
        impossible = torch.from_numpy(solver.status == INFEASIBLE)
        value = _inner(theta, fixed[0]) + _inner(phi, fixed[1]) - temperature / 2 * (fixed[0] ** 2).sum(-1)
        gap = temperature * torch.from_numpy(solver.bound()) - value.detach()
        value, gap = value.masked_fill(impossible, -math.inf), gap.clamp_min(0.0).masked_fill(impossible, 0.0)
        _warn(solver, max_iter)
        nothing = theta.new_full((), math.nan)
        u, nu = (torch.where(lost.unsqueeze(-1), nothing, t) for t in (u, nu))
        return Relaxed(
            self._named(u, nu, batch, scores),
            _shaped(torch.where(lost, nothing, value), batch, scores),
            iterations=_shaped(torch.from_numpy(solver.iterations), batch, scores),
            converged=_shaped(torch.from_numpy(solver.status != RUNNING) & ~lost, batch, scores),
            gap=_shaped(gap, batch, scores),
            primal_residual=_shaped(torch.from_numpy(solver.residuals[:, 0]), batch, scores),
            dual_residual=_shaped(torch.from_numpy(solver.residuals[:, 1]), batch, scores),
        )

    def argmax(
        self,
        scores: Mapping[str, Tensor],
        *,
        exact: bool = False,
        mask: Mapping[str, Tensor] | None = None,
        max_iter: int = 1000,
        max_nodes: int = 1000,
    ) -> Best:
        """A best structure of the graph: 0/1 variables that satisfy all factors, with the highest score.

        The linear relaxation is solved first; where its answer is 0/1, as for many graphs it mostly is, that is a best
        structure. Elsewhere a search by branching on fractional variables ends with the first structure it finds, or
        goes on until the best one is certain. Piecewise constant: no gradient.

        Args:
            scores: θ by name, as for `sparsemap`.
            exact: whether to search on until it is certain that no structure is better.
            mask: as for `sparsemap`.
            max_iter: steps at most for one quadratic program.
            max_nodes: how many relaxations may be solved for one instance. Beyond, `exact` says False.

        Returns:
            A `Best`.

        Examples:
            >>> import torch, structmax
            >>> word = structmax.factors.Variables("word", (3,))
            >>> pairs = [structmax.factors.AtMostOne(word[i], word[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
            >>> best = structmax.FactorGraph(*pairs).argmax({"word": torch.tensor([0.9, 1.0, 0.8])})
            >>> best.parts["word"], best.relaxed["word"], best.exact
            (tensor([0., 1., 0.]), tensor([0.5000, 0.5000, 0.5000]), tensor(True))

        Reference: Martins, Figueiredo, Aguiar, Smith & Xing 2015, AD3: alternating directions dual decomposition for
        MAP inference in graphical models.
        """
        check.whole("max_iter", max_iter, 1)
        check.whole("max_nodes", max_nodes, 1)
        return _apart(self._argmax, scores, exact, mask, max_iter, max_nodes)

    def _argmax(
        self,
        scores: Mapping[str, Tensor],
        exact: bool,
        mask: Mapping[str, Tensor] | None,
        max_iter: int,
        max_nodes: int,
    ) -> Best:
        with torch.no_grad():
            theta, phi, batch = self._flat(scores)
        problem, lost = self._problem(theta, phi, mask, batch)
        found = search(self.layout, problem, exact, max_iter, max_nodes)
        numbers = (torch.from_numpy(a) for a in (found.value, found.upper_bound, found.exact, found.converged))
        nothing = theta.new_full((), math.nan)
        value, bound, certain, converged = numbers
        # of the scores as they are: the search has seen low ones raised
        worth = _inner(theta, torch.from_numpy(found.u)) + _inner(phi, torch.from_numpy(found.nu))
        value = torch.where(value > -math.inf, worth, value)
        bound = torch.where(certain, value, bound)
        return Best(
            self._named(torch.from_numpy(found.u), torch.from_numpy(found.nu), batch, scores),
            _shaped(torch.where(lost, nothing, value), batch, scores),
            exact=_shaped(certain & ~lost, batch, scores),
            converged=_shaped(converged & ~lost, batch, scores),
            upper_bound=_shaped(torch.where(lost, nothing, bound), batch, scores),
            relaxed=self._named(torch.from_numpy(found.relaxed[0]), torch.from_numpy(found.relaxed[1]), batch, scores),
        )

    def _named(self, u: Tensor, nu: Tensor, batch: torch.Size, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        answers = self.layout.split(u, nu, batch)
        return {name: tensor.to(scores[name].device, scores[name].dtype) for name, tensor in answers.items()}

    def _flat(self, scores: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, torch.Size]:
        """Scores of variables (B, n) and free ones (B, m), in float64 on the host, and the batch shape."""
        names = {**self.layout.bound, **self.layout.free}
        unknown, missing = sorted(set(scores) - set(names)), sorted(set(names) - set(scores))
        if unknown or missing:
            raise ValueError(
                f"`scores` should have the names {sorted(names)}, but "
                + " and ".join([f"{n!r} is unknown" for n in unknown] + [f"{n!r} is missing" for n in missing])
                + "."
            )
        batches = []
        for name, variables in names.items():
            check.floating(name, scores[name])
            shape, rank = tuple(scores[name].shape), len(variables.shape)
            if len(shape) < rank or shape[len(shape) - rank :] != variables.shape:
                raise ValueError(f"`{name}` should have shape (…, {_spoken(variables.shape)}), but has {shape}.")
            batches.append(shape[: len(shape) - rank])
        try:
            batch = torch.broadcast_shapes(*batches)
        except RuntimeError:
            found = ", ".join(f"{name} {b}" for name, b in zip(names, batches, strict=True))
            raise ValueError(f"the batch dimensions of `scores` should broadcast, but are {found}.") from None
        for outside in self.layout.outside:
            # its lengths, or what else it has for each instance, fit the batch
            structure = outside.factor.structure
            like = tuple(torch.zeros(()).expand(*batch, *shape) for shape in outside.shapes)
            structure.check(structure.parts(like))
        rows = math.prod(batch)

        def flat(group: dict[str, Variables]) -> Tensor:
            parts = [scores[n].expand(*batch, *v.shape).reshape(rows, v.size).double().cpu() for n, v in group.items()]
            return torch.cat([torch.zeros(rows, 0, dtype=torch.float64), *parts], 1)

        return flat(self.layout.bound), flat(self.layout.free), batch

    def _problem(
        self, theta: Tensor, phi: Tensor, mask: Mapping[str, Tensor] | None, batch: torch.Size
    ) -> tuple[Problem, Tensor]:
        """What the solver gets, and which instances hold NaN or +inf: solved as if these were 0, and then lost."""
        absent = self._absent(mask, batch)
        free, bound = _values(phi), _values(theta)
        present = bound.masked_fill(torch.from_numpy(absent), 0.0)
        lost = ~((present < math.inf).all(-1) & (free < math.inf).all(-1))
        forbidden = absent | bound.isneginf().numpy()
        clean = present.nan_to_num(0.0, 0.0, 0.0).numpy()
        arrays = self.layout.arrays
        vacuous = np.zeros((len(clean), len(arrays.kind)), bool)
        if len(arrays.kind):
            vacuous = np.logical_and.reduceat(absent[:, arrays.variable], arrays.start[:-1], 1)
        blocked = (free <= FORBIDDEN).numpy()
        both = np.concatenate([clean, np.where(blocked, 0.0, free.nan_to_num(0.0, 0.0, 0.0).numpy())], 1)
        near = bring_near(both)
        clean = np.ascontiguousarray(near[:, : clean.shape[1]])
        own = np.where(blocked, FORBIDDEN, near[:, clean.shape[1] :])
        high = np.where(forbidden, 0.0, 1.0)
        return Problem(clean, own, np.zeros_like(clean), high, vacuous, np.arange(len(clean)), tuple(batch)), lost

    def _absent(self, mask: Mapping[str, Tensor] | None, batch: torch.Size) -> np.ndarray:
        names = self.layout.bound
        absent = np.zeros((math.prod(batch), sum(variables.size for variables in names.values())), bool)
        for name, given in (mask or {}).items():
            if name not in names:
                raise ValueError(f"`mask` should have names among {sorted(names)}, but has {name!r}.")
            shape = (*batch, *names[name].shape)
            check.mask_like(f"mask[{name!r}]", given, torch.empty(shape, device="meta"))
            absent[:, places(names)[name]] = ~given.cpu().expand(shape).reshape(len(absent), names[name].size).numpy()
        return absent


def _apart(method: Callable[..., Answer], *arguments: Any) -> Answer:
    """Compiled code leaves off here: how long it takes depends on values."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise Refusal(
            "FactorGraph cannot answer inside a transform of torch.func, such as vmap or grad. Try leading batch "
            "dimensions of the scores, and torch.autograd.grad."
        )
    return _uncompiled(method, *arguments) if torch.compiler.is_compiling() else method(*arguments)


# The decorator loads the compiler when what it decorates is called.
@torch._disable_dynamo
def _uncompiled(method: Callable[..., Answer], *arguments: Any) -> Answer:
    return method(*arguments)


def _shaped(numbers: Tensor, batch: torch.Size, scores: Mapping[str, Tensor]) -> Tensor:
    """One number for each instance (B,), where the scores are, in their dtype if it is a real number."""
    like = next(iter(scores.values()))
    return numbers.to(like.device, like.dtype if numbers.is_floating_point() else None).reshape(batch)


def _values(tensor: Tensor) -> Tensor:
    """The tensor without its derivatives, contiguous."""
    if forward_ad._current_level >= 0:
        tensor = forward_ad.unpack_dual(tensor).primal
    return tensor.detach().contiguous()


def _without_rounding(parts: Tensor, scores: Tensor, raised: np.ndarray) -> Tensor:
    """Parts with exactly 0 where one is off whose score is so low that rounding would be worth something."""
    parts = parts.detach()
    return parts.masked_fill((parts < 1e-9) & (scores.detach() < torch.from_numpy(raised)), 0.0)


def _inner(scores: Tensor, parts: Tensor) -> Tensor:
    return (scores.masked_fill((parts == 0) & ~scores.isfinite(), 0.0) * parts).sum(-1)


def _spoken(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _warn(solver: Solver, max_iter: int) -> None:
    open_ones = int((solver.status == RUNNING).sum())
    if open_ones:
        warnings.warn(
            f"sparsemap of a FactorGraph: {open_ones} of {len(solver.status)} instances did not converge in {max_iter} "
            "steps: look at `converged` and the residuals. Try a larger `max_iter`, or see whether the constraints can "
            "hold together.",
            stacklevel=3,
        )
