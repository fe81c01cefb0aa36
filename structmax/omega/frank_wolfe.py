"""Conditional gradients for the sparse map: other ways to the same point, for comparison and for tests.

Each step finds the best structure s of g = θ − μ_R and moves the weights along a direction by exact line search, as
far as they allow. The gap bounds what is left to gain. They converge to the point but never reach it exactly.

Reference: Lacoste-Julien & Jaggi 2015, On the global linear convergence of Frank-Wolfe optimization variants.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from structmax.numerics.active_set import DEPENDENT, NOTHING, Supports, from_lists, lists_of
from structmax.omega.squared_norm import AbstractSolver, Solution
from structmax.parts import flat, unflat
from structmax.problem import Problem


@dataclass(frozen=True)
class ConditionalGradient(AbstractSolver):
    """What the variants share: everything except the direction."""

    @abstractmethod
    def direction(self, weights: Tensor, best: Tensor, worst: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        """How the weights (B, K) change, and how far that may be followed: (B, K), (B,).

        `best` and `worst` are one-hot (B, K): the best structure of all, and the worst of the support. `gains` (B, K)
        is what each structure scores under g.
        """

    def solve(self, problem: Problem, start: Tensor, regularised: Tensor, max_iter: int, tol: float) -> Solution:
        scores = problem.scores
        theta = flat(scores)
        supports = Supports(theta, regularised.expand_as(theta).to(theta.dtype))

        def best_of(g: Tensor) -> Tensor:
            return flat(problem.ask("argmax", *unflat(g, scores)))

        y = best_of(theta)
        broken, lost = y.isnan().any(1), ~(y != 0).any(1)
        going = ~broken & ~lost
        for k, known in enumerate(from_lists(start, theta).unbind(1)):
            present = (start[:, k] >= 0).all(1) & (supports.score(known) > -math.inf)
            supports.place(known, going & present)
        supports.place(y, going & ~supports.alive.any(1))
        supports.weights = supports.alive / supports.alive.sum(1, keepdim=True).clamp_min(1).to(theta.dtype)
        scale = torch.where(y > 0, theta.abs(), 1.0).amax(1).clamp_min(1.0)
        calls, gap, converged = torch.zeros_like(going).long(), torch.zeros_like(scale), lost.clone()
        while bool(going.any()) and int(calls.max()) < max_iter:
            y = torch.where(going.unsqueeze(1), best_of(supports.direction()), 0.0)
            calls = calls + going
            gap = torch.where(going, self._step(supports, y, going), gap)
            converged = converged | (going & (gap <= tol * scale))
            going = going & (gap > tol * scale)
        return _solution(supports, broken, lost, calls, gap, converged)

    def _step(self, supports: Supports, y: Tensor, going: Tensor) -> Tensor:
        """One step; returns the gap before it."""
        known = (supports.members == y.unsqueeze(1)).all(2) & supports.alive
        new = supports.place(y, going & ~known.any(1))
        best = torch.nn.functional.pad(known, (0, new.shape[1] - known.shape[1])) | new
        inner = supports.members * supports.regular.unsqueeze(1)
        gains = torch.where(supports.alive, supports.scores - torch.einsum("bkp,bp->bk", inner, supports.mean()), 0.0)
        weights = supports.weights
        in_use = torch.where(weights > 0, gains, math.inf)
        worst = torch.nn.functional.one_hot(in_use.argmin(1), weights.shape[1]).to(weights.dtype)
        change, limit = self.direction(weights, best.to(weights.dtype), worst, gains)
        slope = (change * gains).sum(1)
        curvature = torch.einsum("bk,bkp->bp", change, inner).square().sum(1)
        step = torch.where(curvature > 0, slope / curvature, math.inf).clamp(min=0.0).minimum(limit)
        moved = weights + step.unsqueeze(1) * change
        moved = torch.where(moved > NOTHING, moved, 0.0)
        supports.weights = torch.where(going.unsqueeze(1), moved, weights)
        supports.alive = supports.alive & (supports.weights > 0)
        return ((best.to(weights.dtype) - weights) * gains).sum(1)


@dataclass(frozen=True)
class FrankWolfe(ConditionalGradient):
    """Straight towards the best structure. The gap falls as slowly as 1/iterations.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 1.5], [1.0, 0.8]])
        >>> solver = structmax.omega.FrankWolfe()
        >>> structmax.sparsemap(x, structmax.Matching(), solver=solver).marginals
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])
    """

    def direction(self, weights: Tensor, best: Tensor, worst: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        return best - weights, torch.ones_like(weights[:, 0])


@dataclass(frozen=True)
class AwaySteps(ConditionalGradient):
    """Towards the best structure, or away from the worst of the support, whichever gains more. Linear convergence.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 1.5], [1.0, 0.8]])
        >>> solver = structmax.omega.AwaySteps()
        >>> structmax.sparsemap(x, structmax.Matching(), solver=solver).marginals
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])
    """

    def direction(self, weights: Tensor, best: Tensor, worst: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        towards, away = best - weights, weights - worst
        better = (away * gains).sum(1) > (towards * gains).sum(1)
        share = (weights * worst).sum(1)
        limit = torch.where(share < 1, share / (1 - share), 0.0)
        return torch.where(better.unsqueeze(1), away, towards), torch.where(better, limit, 1.0)


@dataclass(frozen=True)
class PairwiseSteps(ConditionalGradient):
    """Moves weight from the worst structure of the support to the best of all.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 1.5], [1.0, 0.8]])
        >>> solver = structmax.omega.PairwiseSteps()
        >>> structmax.sparsemap(x, structmax.Matching(), solver=solver).marginals
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])
    """

    def direction(self, weights: Tensor, best: Tensor, worst: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        return best - worst, (weights * worst).sum(1)


def _solution(
    supports: Supports, broken: Tensor, lost: Tensor, calls: Tensor, gap: Tensor, converged: Tensor
) -> Solution:
    """The largest weights first, but last those that are affine combinations of others: they have no response."""
    counts = supports.alive.sum(1)
    order = supports.weights.argsort(dim=1, descending=True, stable=True)[:, : int(counts.max()) if len(counts) else 0]
    gram = _chosen(supports.gram(), order)
    independent = _independent(gram) & (torch.arange(order.shape[1], device=order.device) < counts.unsqueeze(1))
    resorted = (~independent).long().argsort(dim=1, stable=True)
    order, gram, ranks = order.gather(1, resorted), _chosen(gram, resorted), independent.sum(1)
    beyond = torch.arange(order.shape[1], device=order.device) >= ranks.unsqueeze(1)
    identity = torch.eye(order.shape[1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(torch.where(beyond.unsqueeze(1) | beyond.unsqueeze(2), identity, gram), upper=True)
    members = supports.members.gather(1, order.unsqueeze(2).expand(-1, -1, supports.theta.shape[1]))
    mean = supports.mean()
    value = torch.where(mean > 0, supports.theta * mean, 0.0).sum(1) - (mean * supports.regular).square().sum(1) / 2
    value = torch.where(broken, math.nan, torch.where(lost, -math.inf, value))
    gap = torch.where(broken, math.nan, gap.clamp_min(0.0))
    weights = supports.weights.gather(1, order)
    return Solution(value, lists_of(members), weights, factor, counts, calls, gap, converged, ranks)


def _chosen(matrix: Tensor, order: Tensor) -> Tensor:
    """Rows and columns `order` (B, k) of matrices (B, K, K)."""
    size = order.shape[1]
    rows = matrix.gather(1, order.unsqueeze(2).expand(-1, -1, matrix.shape[2]))
    return rows.gather(2, order.unsqueeze(1).expand(-1, size, -1))


def _independent(gram: Tensor) -> Tensor:
    """Which columns are no combination of those before, by elimination: (B, K)."""
    rest, out = gram.clone(), []
    for k in range(gram.shape[1]):
        pivot = rest[:, k, k]
        kept = pivot > DEPENDENT * gram[:, k, k]
        row = torch.where(kept, pivot, math.inf).rsqrt().unsqueeze(1) * rest[:, k]
        rest = rest - row.unsqueeze(2) * row.unsqueeze(1)
        out.append(kept)
    return torch.stack(out, 1) if out else gram.new_zeros(len(gram), 0, dtype=torch.bool)
