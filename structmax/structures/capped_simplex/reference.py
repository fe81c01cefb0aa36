"""Projections onto {lower ≤ p ≤ upper, Σ p = total} in plain torch, on any device. Derivations: README.md.

Both are p = clip(g(x − τ), lower, upper) with g the identity (Euclidean) or exp (Kullback-Leibler), and τ such that
Σ p = total. Entries leave their upper bound, then meet their lower bound, as τ grows past two breakpoints each; between
neighbouring breakpoints τ has a closed form. So: sort the breakpoints, bisect over them, solve once. Which entries are
free is known by index, never by comparing rounded probabilities.

All tensors are (B, n), total (B,). An entry with x = −inf should come with bounds 0, 0. All is computed in float64.
"""

import math

import torch
from torch import Tensor

from structmax.contract import returns

# Where rounding cannot tell whether a mass is the total, it is: below this fraction of their size, a gap is none.
SLACK = 2.0**-46

# A few operators of torch: on a GPU they are faster than copies to the host and back.
ON_DEVICE = ("csparsemax", "csoftmax")


def _ascending(x: Tensor, offset: Tensor) -> Tensor:
    """The order of x − offset, exactly: a score of 1e20 does not swallow a bound of 1. Equal places keep no order."""
    place = x - offset
    taken = x - place
    # What rounding took from `place`; nothing where the offset is infinite.
    lost = ((x - (place + taken)) + (taken - offset)).nan_to_num(0.0)
    order = lost.argsort(-1)
    return order.gather(-1, place.gather(-1, order).argsort(dim=-1, stable=True))


def _solve(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
    """p (B, n) and where each entry is (B, n) int8: −1 at its lower bound, 0 free, 1 at its upper bound."""
    dtype, n = x.dtype, x.shape[-1]
    broken = ~(x < math.inf).all(-1, keepdim=True)
    # Differences of scores stay finite.
    largest = torch.finfo(torch.float64).max / 4
    x = torch.where(broken | (x == -math.inf), 0.0, x.double()).clamp(-largest, largest)
    lower, upper, total = lower.double(), upper.double(), total.double().unsqueeze(-1)

    # Breakpoint k is τ = x − g⁻¹(bound): the score and the offset are kept apart, since their difference is rounded.
    scores, offsets = torch.cat([x, x], -1), torch.cat([upper, lower], -1)
    offsets = offsets.clamp_min(0).log() if soft else offsets
    order = _ascending(scores, offsets)
    scores, offsets = scores.gather(-1, order), offsets.gather(-1, order)

    def mass(at: Tensor) -> Tensor:
        """Σ p at the breakpoints `at` (B, 2): (B, 2)."""
        inner = x.unsqueeze(1) - scores.gather(-1, at).unsqueeze(-1) + offsets.gather(-1, at).unsqueeze(-1)
        inner = inner.exp() if soft else inner
        return inner.maximum(lower.unsqueeze(1)).minimum(upper.unsqueeze(1)).sum(-1)

    # The last breakpoint with more mass than the total, and the last with as much, −1 for none: τ is where rounding
    # cannot tell, just after the first and until just after the second.
    slack = SLACK * (total.abs() + torch.where(lower.isinf(), 0.0, lower).abs().sum(-1, keepdim=True))
    limit = torch.cat([total + slack, total - slack], -1)
    before = torch.full_like(limit, -1, dtype=torch.int64)
    after = torch.full_like(before, 2 * n)
    for _ in range((2 * n).bit_length()):
        middle = (before + after).clamp_min(0) // 2
        enough = mass(middle) > limit
        inside = (middle > before) & (middle < after)
        before, after = torch.where(inside & enough, middle, before), torch.where(inside & ~enough, middle, after)
    rank = torch.empty_like(order).scatter(-1, order, torch.arange(2 * n, device=x.device).expand_as(order))
    # Free are entries that are free at every such τ; the others are at a bound for one, and so within rounding for all.
    at_upper = rank[:, :n] > before[:, :1]
    at_lower = (rank[:, n:] <= before[:, 1:]) & ~at_upper
    free = ~at_upper & ~at_lower
    held = torch.where(at_upper, upper, torch.where(at_lower, lower, 0.0))
    rest = total - held.sum(-1, keepdim=True)

    # Measured from the greatest free score, nothing overflows, and not all underflows.
    some = free.any(-1, keepdim=True)
    z = x - torch.where(some, torch.where(free, x, -math.inf).amax(-1, keepdim=True), 0.0)
    if soft:
        weight = torch.where(free, z.exp(), 0.0)
        inner = weight * rest / torch.where(some, weight.sum(-1, keepdim=True), 1.0)
    else:
        count = free.sum(-1, keepdim=True).clamp_min(1)
        inner = z - (torch.where(free, z, 0.0).sum(-1, keepdim=True) - rest) / count
        # once more on the residual: scores far apart have cost digits above
        inner = inner - (torch.where(free, inner, 0.0).sum(-1, keepdim=True) - rest) / count
    # The closed form may leave the bounds by a rounding: clip the value, keep the index set.
    p = torch.where(free, inner.maximum(lower).minimum(upper), held)
    return p.masked_fill(broken, math.nan).to(dtype), at_upper.to(torch.int8) - at_lower.to(torch.int8)


@returns("parts", "parts:int8")
def csparsemax(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return _solve(x, lower, upper, total, soft=False)


@returns("parts", "parts:int8")
def csoftmax(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return _solve(x, lower, upper, total, soft=True)
