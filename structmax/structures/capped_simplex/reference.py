"""Projections onto {lower ≤ p ≤ upper, Σ p = total} in plain torch, on any device.

Both are p = clip(g(x − τ), lower, upper) with g the identity (Euclidean) or exp (Kullback-Leibler), and τ such that
Σ p = total. Entries leave their upper bound, then meet their lower bound, as τ grows past two breakpoints each; between
neighbouring breakpoints τ has a closed form. So: sort the breakpoints, bisect over them, solve once. Which entries are
free is known by index, never by comparing rounded probabilities.

All tensors are (B, n), total (B,). An entry with x = −inf should come with bounds 0, 0.
"""

import math

import torch
from torch import Tensor

from structmax.contract import returns


def _solve(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
    """p (B, n) and where each entry is (B, n) int8: −1 at its lower bound, 0 free, 1 at its upper bound."""
    peak = x.amax(-1, keepdim=True)
    peak = torch.where(peak == -math.inf, 0.0, peak)
    broken = peak.isnan() | (peak == math.inf)
    x = torch.where(x == -math.inf, 0.0, x - peak)
    total = total.unsqueeze(-1)
    leaves_upper = x - (upper.log() if soft else upper)
    meets_lower = x - (lower.log() if soft else lower)

    def mass(tau: Tensor) -> Tensor:
        inner = (x - tau).exp() if soft else x - tau
        bounded = torch.where(meets_lower <= tau, lower, torch.where(leaves_upper >= tau, upper, inner))
        return bounded.sum(-1, keepdim=True)

    points = torch.cat([leaves_upper, meets_lower], -1).sort(-1).values
    # Invariant: mass(points[before]) ≥ total > mass(points[after]), with −1 and 2n standing for −inf and +inf.
    before = torch.full_like(total, -1, dtype=torch.int64)
    after = torch.full_like(before, points.shape[-1])
    for _ in range(points.shape[-1].bit_length()):
        middle = (before + after).clamp_min(0) // 2
        enough = mass(points.gather(-1, middle)) >= total
        inside = (middle > before) & (middle < after)
        before, after = torch.where(inside & enough, middle, before), torch.where(inside & ~enough, middle, after)
    start = torch.where(before < 0, -math.inf, points.gather(-1, before.clamp_min(0)))
    at_upper = leaves_upper > start
    at_lower = (meets_lower <= start) & ~at_upper
    free = ~at_upper & ~at_lower
    rest = (
        total
        - torch.where(at_upper, upper, 0.0).sum(-1, keepdim=True)
        - torch.where(at_lower, lower, 0.0).sum(-1, keepdim=True)
    )
    if soft:
        weight = torch.where(free, x.exp(), 0.0)
        inner = weight * rest / torch.where(free.any(-1, keepdim=True), weight.sum(-1, keepdim=True), 1.0)
    else:
        count = free.sum(-1, keepdim=True).clamp_min(1)
        inner = x - (torch.where(free, x, 0.0).sum(-1, keepdim=True) - rest) / count
        # once more on the residual: scores far apart have cost digits above
        inner = inner - (torch.where(free, inner, 0.0).sum(-1, keepdim=True) - rest) / count
    # The closed form may leave the bounds by a rounding: clip the value, keep the index set.
    inner = torch.minimum(torch.maximum(inner, lower), upper)
    p = torch.where(at_lower, lower, torch.where(at_upper, upper, inner))
    return p.masked_fill(broken, math.nan), at_upper.to(torch.int8) - at_lower.to(torch.int8)


@returns("parts", "parts:int8")
def csparsemax(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return _solve(x, lower, upper, total, soft=False)


@returns("parts", "parts:int8")
def csoftmax(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return _solve(x, lower, upper, total, soft=True)
