"""The active-set method of sparse maps in plain torch, for any structure with `argmax`, on any device.

All instances of a batch advance together, each with dense members, and every system is solved from scratch: slow but
correct. Its twins keep a factor up to date, kernel_numba/active_set.py, or an inverse, kernel_triton/active_set.py.
The latter is taken on CUDA where `argmax` has a kernel. Derivation: structures/sparse_support.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax.parts import flat, unflat

# As in the compiled twin.
DEPENDENT, NOTHING, ROUNDING = 1e-9, 1e-14, 1e-14
# How many structures a support grows by.
GROWTH = 8


class Supports:
    """Structures and weights of each instance, which `offer` keeps optimal."""

    def __init__(self, theta: Tensor, regular: Tensor) -> None:
        rows, parts = theta.shape
        # (B, P) scores, and 1 where they are regularised
        self.theta, self.regular = theta, regular
        # (B, K, P) structures and (B, K) which of them are in the support, their weights and scores
        self.members = theta.new_zeros(rows, 0, parts)
        self.alive = torch.zeros(rows, 0, dtype=torch.bool, device=theta.device)
        self.weights, self.scores = theta.new_zeros(rows, 0), theta.new_zeros(rows, 0)
        # (B,) what all structures of the support score under g, and the scale of scores
        self.level, self.scale = theta.new_zeros(rows), theta.new_ones(rows)

    def mean(self) -> Tensor:
        return torch.einsum("bk,bkp->bp", self.weights, self.members)

    def direction(self) -> Tensor:
        """g = θ − μ where parts are regularised, θ elsewhere."""
        return self.theta - self.mean() * self.regular

    def score(self, y: Tensor) -> Tensor:
        """⟨θ, y⟩ for y (B, P): (B,)."""
        return torch.where(y > 0, self.theta * y, 0.0).sum(-1)

    def gap(self, y: Tensor) -> Tensor:
        """How much better than the support y (B, P) is under g: (B,)."""
        gap = self.score(y) - (self.mean() * self.regular * y).sum(-1) - self.level
        return torch.where(self.alive.any(1), gap, math.inf)

    def scale_with(self, y: Tensor) -> Tensor:
        """The scale of scores, those of y (B, P) among them: (B,)."""
        # at least 1, also where there are no parts
        largest = torch.nn.functional.pad(torch.where(y > 0, self.theta.abs(), 1.0), (0, 1), value=1.0).amax(1)
        return torch.maximum(largest, self.scale)

    def offer(self, y: Tensor, wanted: Tensor) -> None:
        """Takes y (B, P) into the support of the instances that are `wanted` (B,)."""
        if not bool(wanted.any()):
            return
        is_first = wanted & ~self.alive.any(1)
        self.scale = torch.where(wanted, self.scale_with(y), self.scale)
        given = self._make_room(y, wanted)
        at = self.place(y, wanted)
        self.weights = torch.where(at, torch.where(is_first, 1.0, given).unsqueeze(1), self.weights)
        self._settle(wanted)

    def place(self, y: Tensor, wanted: Tensor) -> Tensor:
        """Puts y (B, P) at the first free place, with weight 0, of instances that are `wanted`; where: (B, K)."""
        if bool(self.alive.all(1).any()):
            self._grow()
        at = torch.nn.functional.one_hot((~self.alive).long().argmax(1), self.alive.shape[1]).bool()
        at &= wanted.unsqueeze(1)
        self.members = torch.where(at.unsqueeze(2), y.unsqueeze(1), self.members)
        self.scores = torch.where(at, self.score(y).unsqueeze(1), self.scores)
        self.alive = self.alive | at
        return at

    def _grow(self) -> None:
        self.members = torch.nn.functional.pad(self.members, (0, 0, 0, GROWTH))
        self.alive, self.weights, self.scores = (
            torch.nn.functional.pad(t, (0, GROWTH)) for t in (self.alive, self.weights, self.scores)
        )

    def _drop(self, index: Tensor, where: Tensor) -> None:
        """Structure index (B,) of the instances `where` (B,) leaves the support."""
        out = torch.nn.functional.one_hot(index, self.alive.shape[1]).bool() & where.unsqueeze(1)
        self.alive = self.alive & ~out
        self.weights = torch.where(self.alive, self.weights, 0.0)
        self.members = torch.where(out.unsqueeze(2), 0.0, self.members)

    def gram(self) -> Tensor:
        """G + 1 over the support, the identity elsewhere: (B, K, K)."""
        inner = self.members * self.regular.unsqueeze(1)
        both = self.alive.unsqueeze(1) & self.alive.unsqueeze(2)
        identity = torch.eye(self.alive.shape[1], dtype=inner.dtype, device=inner.device)
        return torch.where(both, inner @ inner.mT + 1, identity)

    def _make_room(self, y: Tensor, wanted: Tensor) -> Tensor:
        """Where y is an affine combination of others in its regularised parts, they give it weight until one has none.

        Returns the weight given: (B,).
        """
        given = torch.zeros_like(self.level)
        while self.alive.shape[1] > 0:
            inner = y * self.regular
            overlap = torch.where(self.alive, torch.einsum("bkp,bp->bk", self.members, inner) + 1, 0.0)
            own = (inner * inner).sum(1) + 1
            share = torch.linalg.solve(self.gram(), overlap.unsqueeze(2)).squeeze(2)
            stuck = wanted & (own - (overlap * share).sum(1) <= DEPENDENT * own)
            if not bool(stuck.any()):
                break
            ratio = torch.where(self.alive & (share > 0), self.weights / share, math.inf)
            step, index = ratio.min(1)
            step = torch.where(stuck, step, 0.0)
            self.weights = (self.weights - step.unsqueeze(1) * share).clamp_min(0.0)
            given = given + step
            self._drop(index, stuck)
        return given

    def _settle(self, wanted: Tensor) -> None:
        """Moves to the best weights, dropping what comes to nothing."""
        while bool(wanted.any()):
            ones = self.alive.to(self.theta.dtype)
            # Weights depend on differences of scores alone.
            base = torch.where(self.alive, self.scores, -math.inf).amax(1, keepdim=True)
            right = torch.stack([torch.where(self.alive, self.scores - base, 0.0), ones], 2)
            of_scores, of_ones = torch.linalg.solve(self.gram(), right).unbind(2)
            level = (of_scores.sum(1) - 1) / of_ones.sum(1)
            target = of_scores - level.unsqueeze(1) * of_ones
            blocked = self.alive & (target <= NOTHING) & (self.alive.sum(1) > 1).unsqueeze(1)
            share = torch.where(self.weights > target, self.weights / (self.weights - target), 0.0)
            step, index = torch.where(blocked, share.clamp_max(1.0), math.inf).min(1)
            free, stopped = wanted & ~blocked.any(1), wanted & blocked.any(1)
            step = torch.where(free, 1.0, torch.where(stopped, step, 0.0)).unsqueeze(1)
            self.weights = torch.where(step > 0, self.weights + step * (target - self.weights), self.weights)
            self.weights = torch.where(self.alive, self.weights, 0.0)
            self.level = torch.where(free, level + 1 + base.squeeze(1), self.level)
            self._drop(index, stopped)
            wanted = stopped


def sparsemap(
    argmax: Callable[..., Any],
    is_feasible: Callable[..., Tensor] | None,
    *scores: Tensor,
    regularised: Tensor,
    start: Tensor,
    max_iter: int,
    tol: float,
    **fields: Any,
) -> tuple[Tensor, ...]:
    """What the contract says of `sparsemap`, using the structure's `argmax`.

    A best structure without parts may be the empty one, or there is none: `is_feasible` tells, where it is given.
    """
    theta = flat(scores)
    supports = Supports(theta, regularised.to(theta.dtype))

    def best(g: Tensor) -> Tensor:
        parts = argmax(*unflat(g, scores), **fields)
        return flat((parts,) if isinstance(parts, Tensor) else parts)

    first = best(theta)
    broken, lost = first.isnan().any(1), ~(first != 0).any(1)
    if is_feasible is not None and bool(lost.any()):
        lost = lost & ~is_feasible(*scores, **fields)
    lost = lost | broken
    for k in range(start.shape[1]):
        y = from_lists(start[:, k : k + 1], theta)[:, 0]
        bar = max(tol, ROUNDING * start.shape[2]) * supports.scale_with(y)
        allowed = ~lost & (start[:, k] >= 0).all(1) & (supports.score(y) > -math.inf)
        supports.offer(y, allowed & (supports.gap(y) > bar))
    converged, calls, gap = lost & ~broken, torch.zeros_like(broken).long(), torch.zeros_like(supports.level)
    going = ~lost
    while bool(going.any()) and int(calls.max()) < max_iter:
        y = torch.where(going.unsqueeze(1), best(supports.direction()), 0.0)
        calls = calls + going
        gap = torch.where(going, supports.gap(y), gap)
        within = gap <= max(tol, ROUNDING * float(y.sum(1).max())) * supports.scale_with(y)
        converged = converged | (going & within)
        going = going & ~within
        supports.offer(y, going)
    return _outcome(supports, lost, broken, calls, gap, converged)


def _outcome(
    supports: Supports, lost: Tensor, broken: Tensor, calls: Tensor, gap: Tensor, converged: Tensor
) -> tuple[Tensor, ...]:
    order = (~supports.alive).long().argsort(dim=1, stable=True)
    counts = supports.alive.sum(1)
    order = order[:, : int(counts.max()) if len(counts) else 0]
    weights = supports.weights.gather(1, order)
    members = supports.members.gather(1, order.unsqueeze(2).expand(-1, -1, supports.theta.shape[1]))
    gram = supports.gram()
    gram = gram.gather(1, order.unsqueeze(2).expand(-1, -1, gram.shape[2]))
    gram = gram.gather(2, order.unsqueeze(1).expand(-1, order.shape[1], -1))
    mean = supports.mean()
    value = torch.where(mean > 0, supports.theta * mean, 0.0).sum(1) - ((mean * supports.regular) ** 2).sum(1) / 2
    value = torch.where(broken, math.nan, torch.where(lost, -math.inf, value))
    gap = torch.where(broken, math.nan, gap.clamp_min(0.0))
    factor = torch.linalg.cholesky(gram, upper=True)
    return value, lists_of(members), weights, factor, counts, calls, gap, converged


# --- flat vectors and lists of parts --------------------------------------------------------------------------------


def lists_of(members: Tensor) -> Tensor:
    """The parts of each structure (B, K, P), as often as they count, filled up with P: (B, K, L) int32."""
    B, K, P = members.shape
    rows = members.reshape(B * K, P)
    row, part = rows.nonzero(as_tuple=True)
    times = rows[row, part].round().long()
    sizes = torch.zeros(B * K, dtype=torch.int64, device=members.device).scatter_add_(0, row, times)
    row, part = row.repeat_interleave(times), part.repeat_interleave(times)
    place = torch.arange(len(row), device=members.device) - (sizes.cumsum(0) - sizes)[row]
    longest = max(1, int(sizes.max())) if B * K else 1
    lists = torch.full((B * K, longest), P, dtype=torch.int32, device=members.device)
    lists[row, place] = part.int()
    return lists.reshape(B, K, longest)


def from_lists(lists: Tensor, like: Tensor) -> Tensor:
    """The inverse, (B, K, P), in dtype and width of `like` (B, P); zeros for lists of −1, which are absent."""
    out = like.new_zeros(*lists.shape[:2], like.shape[1] + 1)
    places = torch.where(lists < 0, like.shape[1], lists).long()
    return out.scatter_add_(2, places, like.new_ones(()).expand(lists.shape))[..., :-1]
