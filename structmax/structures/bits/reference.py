"""Independent bits in plain torch: closed forms, and the recursion for what has none. Derivations: README.md.

Functions take x (B, n) and lengths (B,). A score of −inf forces 0.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from structmax.recursion.edges import Hyperedges, Recursion

# A few operators of torch: on a GPU they are faster than copies to the host and back.
ON_DEVICE = (
    "log_partition",
    "marginals",
    "marginals_jvp",
    "argmax",
    "max_marginals",
    "sample",
    "project",
    "project_jvp",
    "given_log_partition",
    "given_log_partition_and_marginals",
    "given_marginals_jvp",
    "log_partition_and_marginals",
)


def recursion(x: Tensor, lengths: Tensor) -> Recursion:
    """The goal of length n is node n."""
    return Recursion(_edges(x.shape[1]), lengths)


@functools.lru_cache(maxsize=8)
def _edges(n: int) -> Hyperedges:
    """Node 0, without items; node i + 1 takes item i or leaves it, and goes on from node i."""
    item = torch.arange(n)
    none = torch.full_like(item, -1)
    leaf = torch.tensor([-1])
    head = torch.cat([torch.tensor([0]), item + 1, item + 1])
    tails = torch.cat([leaf, item, item])
    parts = torch.cat([leaf, item, none])
    return Hyperedges.of(head, tails.unsqueeze(1), parts.unsqueeze(1), n + 1)


def _inside(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)


def _clean(x: Tensor, lengths: Tensor) -> Tensor:
    """−inf past the length, and NaN throughout an instance that has NaN or +inf."""
    inside = _inside(x, lengths)
    broken = (inside & ~(x < math.inf)).any(-1, keepdim=True)
    return torch.where(inside, x.masked_fill(broken, math.nan), -math.inf)


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    x = _clean(x, lengths)
    free = x != -math.inf
    return torch.where(free, -logsigmoid(-torch.where(free, x, 0.0)), 0.0).sum(-1)


def marginals(x: Tensor, lengths: Tensor) -> Tensor:
    return _clean(x, lengths).sigmoid()


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    x = _clean(x, lengths)
    variance = x.sigmoid() * (-x).sigmoid()
    return torch.where(variance == 0, 0.0, variance * tangent)


def argmax(x: Tensor, lengths: Tensor) -> Tensor:
    x = _clean(x, lengths)
    return torch.where(x.isnan(), x, (x > 0).to(x.dtype))


def max_marginals(x: Tensor, lengths: Tensor) -> Tensor:
    """Every other item as it is best, and this one in."""
    x = _clean(x, lengths)
    best = x.clamp_min(0)
    return torch.where(x > 0, best.sum(-1, keepdim=True), best.sum(-1, keepdim=True) + x)


def sample(x: Tensor, noise: Tensor, lengths: Tensor) -> Tensor:
    """The item's own uniform number is below its probability: (B, S, n)."""
    p = marginals(x, lengths).unsqueeze(1)
    return torch.where(p.isnan(), p, (noise < p).to(x.dtype))


def project(x: Tensor, lengths: Tensor) -> Tensor:
    return _clean(x, lengths).clamp(0, 1)


def project_jvp(point: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    free = (point > 0) & (point < 1)
    return torch.where(free, tangent, torch.where(point.isnan(), point, 0.0))


# ---------------------------------------------------------------- given that some items are in


def _split(x: Tensor, required: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of the items left to choose, the required ones (B, n), and their score (B,): −inf where impossible."""
    fixed = required > 0
    possible = torch.where(fixed, torch.where(_inside(x, lengths), x, -math.inf), 0.0)
    return x.masked_fill(fixed, -math.inf), fixed, possible.sum(-1)


def given_log_partition(x: Tensor, required: Tensor, lengths: Tensor) -> Tensor:
    rest, _, score = _split(x, required, lengths)
    return score + log_partition(rest, lengths)


def given_log_partition_and_marginals(x: Tensor, required: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    rest, fixed, score = _split(x, required, lengths)
    mu = torch.where(fixed, 1.0, marginals(rest, lengths))
    return score + log_partition(rest, lengths), mu.masked_fill(score.isneginf().unsqueeze(1), 0.0)


def given_marginals_jvp(x: Tensor, required: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    rest, _, score = _split(x, required, lengths)
    return marginals_jvp(rest, tangent, lengths).masked_fill(score.isneginf().unsqueeze(1), 0.0)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    fields = {"lengths": torch.full((len(x),), x.shape[1], device=x.device)}
    yield "log_partition", (x,), fields
    yield "log_partition_and_marginals", (x,), fields
    yield "marginals_jvp", (x, x), fields
    yield "topk", (x,), {"k": 2, **fields}
