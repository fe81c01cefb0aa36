"""Room for searches that add and subtract scores, some of which may be at the end of the range of their dtype.

The order of matchings does not change when all scores are divided by a power of two, and no digit is lost.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROOM = 2.0**10
# Newton's method has few digits for scores beyond.
FAR = 1e8


def _is_far(scores: Tensor) -> bool:
    """Whether some score is so large that sums and differences of scores may overflow."""
    if not scores.numel():
        return False
    low, high = scores.aminmax()
    if low == -math.inf:
        low = scores.masked_fill(scores == -math.inf, 0.0).amin()
    limit = torch.finfo(scores.dtype).max / ROOM
    return not bool((low > -limit) & (high < limit))


def with_room(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A search for scores, on scores divided by ROOM."""

    def searched(scores: Tensor, **fields: Tensor | bool) -> Tensor:
        return search(scores / ROOM, **fields) * ROOM if _is_far(scores) else search(scores, **fields)

    return searched


def best_with_room(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A search for one matching: zeros if its score is −inf, although no part of it is."""

    def searched(scores: Tensor, **fields: Tensor | bool) -> Tensor:
        if not _is_far(scores):
            return search(scores, **fields)
        parts = search(scores / ROOM, **fields)
        score = torch.where(parts > 0, scores, 0.0).sum((-2, -1), keepdim=True)
        return parts.masked_fill(score == -math.inf, 0.0)

    return searched


def ranked_with_room(search: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """A search for matchings and their scores: zeros where the score is −inf."""

    def searched(scores: Tensor, **fields: Tensor | bool | int) -> tuple[Tensor, Tensor]:
        if not _is_far(scores):
            return search(scores, **fields)
        values, parts = search(scores / ROOM, **fields)
        values = values * ROOM
        return values, parts.masked_fill((values == -math.inf)[..., None, None], 0.0)

    return searched


def projected_within_reach(project: Callable[..., Tensor], argmax: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A projection that sees scores far from 0 brought within reach: n pairs change −½‖μ‖² by n at most."""

    def projected(scores: Tensor, **sizes: Any) -> Tensor:
        if not bool(_far(scores, 1.0).any()):
            return project(scores, **sizes)
        return project(_brought_near(scores, argmax, min(scores.shape[1:]) + 1.0, 1.0, **sizes)[0], **sizes)

    return projected


def sinkhorn_within_reach(
    sinkhorn: Callable[..., tuple[Tensor, ...]], argmax: Callable[..., Tensor]
) -> Callable[..., tuple[Tensor, ...]]:
    """The same for entropic matchings. In a cycle of n pairs that is l worse than the best matching, in temperatures,
    one has a share of exp(−l / n) at most: nothing, in float64, for l beyond 800 n."""

    @functools.wraps(sinkhorn)
    def solved(
        scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, temperature: float, **how: Any
    ) -> tuple[Tensor, ...]:
        sizes: dict[str, Any] = {"rows": rows, "columns": columns, "partial": partial}
        lost = None
        if bool(_far(scores, temperature).any()):
            reach = 800.0 * min(scores.shape[1:]) * temperature
            scores, lost = _brought_near(scores, argmax, reach, temperature, **sizes)
        parts, value, *report = sinkhorn(scores, **sizes, temperature=temperature, **how)
        return parts, value if lost is None else value + lost, *report

    return solved


def _brought_near(
    scores: Tensor, argmax: Callable[..., Tensor], reach: float, unit: float, **sizes: Any
) -> tuple[Tensor, Tensor]:
    """Scores within reach, and what the matchings within reach lost: (B, N, M) and (B,)."""
    shared = scores if sizes["partial"] else _without_shared(scores, unit, sizes["rows"], sizes["columns"])
    best = argmax(shared, **sizes)
    score = torch.where(best > 0, scores, 0.0).sum((1, 2))
    near = within_reach(shared, best, reach, unit, **sizes)
    lost = torch.where(best > 0, scores - near, 0.0).sum((1, 2))
    # a sum of finite scores may be −inf in their dtype
    return near.masked_fill((score == -math.inf)[:, None, None], -math.inf), lost


def _without_shared(scores: Tensor, unit: float, rows: Tensor, columns: Tensor) -> Tensor:
    """Lines whose sum is 1 in each matching, and whose scores are all far below 0, less the best of them."""
    inside = _inside(scores, rows, columns)
    for dim, tight in ((2, rows <= columns), (1, columns <= rows)):
        best = torch.where(inside, scores, -math.inf).amax(dim, keepdim=True)
        scores = scores - torch.where(tight[:, None, None] & _far(best, unit) & (best < 0), best, 0.0)
    return scores


def _inside(scores: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Which pairs an instance has: (B, N, M)."""
    N, M = scores.shape[1:]
    in_rows = torch.arange(N, device=scores.device) < rows.unsqueeze(1)
    return in_rows.unsqueeze(2) & (torch.arange(M, device=scores.device) < columns.unsqueeze(1)).unsqueeze(1)


def within_reach(
    scores: Tensor, best: Tensor, reach: float, unit: float, *, rows: Tensor, columns: Tensor, partial: bool
) -> Tensor:
    """Scores of about the size of `reach` that have the same solution, given a best matching: (B, N, M).

    Instances without scores beyond FAR units are left as they are.

    Let u and v be the prices of the best matching: u ⊕ v ≥ θ, with equality at its pairs, and 0 for who is single in
    it. A solution differs from it by alternating cycles and paths. Each loses what its pairs are below u ⊕ v, and the
    prices of those who become single; it gains no more than `reach`. So pairs further below can be forbidden, and who
    has a higher price is not single: his sum is 1, and any number may be subtracted from his scores.
    """
    N, M = scores.shape[1:]
    most = max(N, M)
    inside = _inside(scores, rows, columns)
    # the smaller side first
    turned = (rows > columns)[:, None, None]
    there = torch.where(inside, scores.double() / ROOM, -math.inf)
    room = (0, most - M, 0, most - N)
    square = torch.nn.functional.pad(there, room, value=-math.inf), torch.nn.functional.pad(best.double(), room)
    x, y = (torch.where(turned, t.mT, t) for t in square)
    chosen = y > 0
    own = torch.where(chosen, x, 0.0).sum(2, keepdim=True)
    single = ~chosen.any(2, keepdim=True)
    # The least prices v ≥ 0: who has a column keeps it, so that another costs what he would gain by it.
    v = x.new_zeros(len(x), 1, most)
    for _ in range(most):
        held = torch.where(chosen, v, 0.0).sum(2, keepdim=True)
        v = torch.maximum(v, (x - own + held).amax(1, keepdim=True))
    u = torch.where(single, 0.0, own - torch.where(chosen, v, 0.0).sum(2, keepdim=True))
    # Prices round to their own last digit, but what is chosen is not below them, and nothing is above.
    below = torch.where(chosen, 0.0, (x - u - v).clamp_max(0.0)) * ROOM
    low = [t.mul(ROOM).clamp_max(2 * reach) for t in (u, v)]
    near = below.masked_fill(below < -reach, -math.inf) + (low[0] if partial else 0.0) + low[1]
    near = torch.where(turned, near.mT, near)[:, :N, :M].to(scores.dtype)
    # others of the batch keep their scores as they are, and so does who has NaN or +inf
    far = (inside & _far(scores, unit)).flatten(1).any(1) & ~best.isnan().flatten(1).any(1)
    return torch.where(far[:, None, None] & inside, near, scores)


def _far(scores: Tensor, unit: float) -> Tensor:
    return (scores.abs() > FAR * unit) & scores.isfinite()
