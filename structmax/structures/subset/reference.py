"""Subsets in plain torch: the recursion, and what sorting answers faster. Derivations: README.md in this folder.

Functions take x (B, n), lengths (B,), and subsets have `size` items if `exact`, else up to `size`.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.recursion import reference as engine
from structmax.recursion.edges import Hyperedges, Recursion

# A few operators of torch: on a GPU they are faster than copies to the host and back.
ON_DEVICE = ("argmax", "max_marginals", "project", "project_jvp")


def recursion(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Recursion:
    n = x.shape[1]
    # More than n is as impossible as n + 1.
    most = min(size, n + 1)
    goal = lengths * (most + 1) + most if exact else (n + 1) * (most + 1) + lengths
    return Recursion(_edges(n, most, bool(exact)), goal)


@functools.lru_cache(maxsize=8)
def _edges(n: int, most: int, exact: bool) -> Hyperedges:
    """Node (i, c), at i · (most + 1) + c, has c of the first i items; it takes item i − 1 or leaves it.

    Unless exact there follow the goals: (i, any c) for each i.
    """
    node = np.arange((n + 1) * (most + 1)).reshape(n + 1, most + 1)
    i, c = np.nonzero(np.arange(n + 1)[:, None] >= np.arange(most + 1))
    take, leave = (i > 0) & (c > 0), c < i
    columns = [
        # head, tail and part
        (node[0, :1], np.array([-1]), np.array([-1])),
        (node[i, c][take], node[i - 1, c - 1][take], i[take] - 1),
        (node[i, c][leave], node[i - 1, c][leave], np.full(leave.sum(), -1)),
    ]
    if not exact:
        columns.append((node.size + i, node[i, c], np.full(len(i), -1)))
    head, tail, part = (torch.from_numpy(np.concatenate(column)) for column in zip(*columns, strict=True))
    nodes = node.size + (0 if exact else n + 1)
    return Hyperedges.of(head, tail.unsqueeze(1), part.unsqueeze(1), nodes)


def _clean(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    """−inf for what no subset has, and NaN throughout an instance that has NaN or +inf."""
    usable = lengths * (size > 0) * (size <= lengths if exact else 1)
    inside = torch.arange(x.shape[1], device=x.device) < usable.unsqueeze(1)
    broken = (inside & ~(x < math.inf)).any(-1, keepdim=True)
    return torch.where(inside, x.masked_fill(broken, math.nan), -math.inf)


def _feasible(x: Tensor, size: int, exact: bool) -> Tensor:
    return (x != -math.inf).sum(-1, keepdim=True) >= (size if exact else 0)


def _best(x: Tensor, size: int, exact: bool) -> tuple[Tensor, Tensor]:
    """Which items the best subset has, the first of equals, and its score, which may be −inf: (B, n), (B, 1)."""
    rank = x.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
    inside = (rank < size) & (x > (-math.inf if exact else 0)) & _feasible(x, size, exact)
    return inside, torch.where(inside, x, 0.0).sum(-1, keepdim=True)


def argmax(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    """The first of equals."""
    x = _clean(x, lengths, size, exact)
    inside, best = _best(x, size, exact)
    inside = inside & (best > -math.inf)
    return torch.where(x.isnan(), x, inside.to(x.dtype))


def max_marginals(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    """The best subset, if the item is in it; else the item takes the place of the worst, or joins."""
    x = _clean(x, lengths, size, exact)
    inside, best = _best(x, size, exact)
    worst = torch.where(inside, x, math.inf).amin(-1, keepdim=True)
    full = inside.sum(-1, keepdim=True) == size
    others = torch.where(full, best - torch.where(worst < math.inf, worst, 0.0), best)
    through = torch.where(inside, best, others + x)
    return torch.where(x.isnan(), x, torch.where(_feasible(x, size, exact), through, -math.inf))


def topk(x: Tensor, k: int, lengths: Tensor, size: int, exact: bool) -> tuple[Tensor, Tensor]:
    """A subset with an item beyond the best size + k − 1 is no better than k others: swap it for one that is out."""
    x = _clean(x, lengths, size, exact)
    best = x.sort(dim=-1, descending=True, stable=True)
    few = slice(0, max(1, min(size + k - 1, x.shape[1])))
    scores, index = best.values[:, few], best.indices[:, few]
    edges, goal = recursion(scores, lengths.clamp_max(scores.shape[1]), size, exact)
    values, parts = engine.topk(scores, k=k, goal=goal, **edges._asdict())
    out = x.new_zeros(len(x), k, x.shape[1])
    return values, out.scatter_(-1, index.unsqueeze(1).expand_as(parts), parts)


def project(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    x = _clean(x, lengths, size, exact)
    cube = x.clamp(0, 1)
    if size == 0:
        return cube
    capped = _capped(x.double(), size).to(x.dtype)
    if exact:
        return torch.where(_feasible(x, size, exact), capped, 0.0)
    return torch.where(cube.sum(-1, keepdim=True) > size, capped, cube)


def _capped(x: Tensor, size: int) -> Tensor:
    """μ = clip(x − τ, 0, 1) with Σ μ = size, where so many are not forbidden.

    τ lies within 1 below the size-th best score. There each item has one point at most where it leaves 1 or meets 0;
    between neighbouring points the free items are known, and τ has a closed form.
    """
    anchor = x.sort(-1, descending=True).values[:, min(size, x.shape[1]) - 1, None]
    z = x - torch.where(anchor == -math.inf, 0.0, anchor)
    points = torch.where((z > -1) & (z <= 0), z, torch.where((z > 0) & (z < 1), z - 1, -1.0)).sort(-1).values
    # Invariant: the sum is at least `size` at points[before], or at −1, and below it at points[after].
    before = torch.full_like(anchor, -1, dtype=torch.int64)
    after = torch.full_like(before, z.shape[1])
    for _ in range(z.shape[1].bit_length()):
        middle = (before + after).clamp_min(0) // 2
        enough = (z - points.gather(-1, middle)).clamp(0, 1).sum(-1, keepdim=True) >= size
        between = (middle > before) & (middle < after)
        before, after = torch.where(between & enough, middle, before), torch.where(between & ~enough, middle, after)
    start = torch.where(before < 0, -1.0, points.gather(-1, before.clamp_min(0)))
    ones, free = z - 1 > start, (z > start) & (z - 1 <= start)
    rest = size - ones.sum(-1, keepdim=True)
    tau = (torch.where(free, z, 0.0).sum(-1, keepdim=True) - rest) / free.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(x.isnan(), x, torch.where(ones, 1.0, torch.where(free, (z - tau).clamp(0, 1), 0.0)))


def project_jvp(point: Tensor, tangent: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    """On the free items, those strictly between 0 and 1, the tangent less its mean, if the budget is spent."""
    free = (point > 0) & (point < 1)
    mean = torch.where(free, tangent, 0.0).sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp_min(1)
    spent = _spent(point, size, exact)
    return torch.where(free, tangent - torch.where(spent, mean, 0.0), torch.where(point.isnan(), point, 0.0))


def _spent(point: Tensor, size: int, exact: bool) -> Tensor:
    """Whether Σ μ = size, up to the rounding of its terms: (B, 1)."""
    slack = 8 * torch.finfo(point.dtype).eps
    return (point.double().sum(-1, keepdim=True) >= size * (1 - slack)) | bool(exact)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    fields = {"lengths": torch.full((len(x),), x.shape[1], device=x.device), "size": 2, "exact": True}
    for name in ("log_partition", "log_partition_and_marginals", "argmax", "max_marginals", "project"):
        yield name, (x,), fields
    yield "marginals_jvp", (x, x), fields
    yield "topk", (x,), {"k": 2, **fields}
    yield "sample", (x,), {"noise": x.new_zeros(len(x), 1, x.shape[1] + 1), **fields}
