"""Room for searches that add and subtract scores, some of which may be at the end of the range of their dtype.

The order of matchings does not change when all scores are divided by a power of two, and no digit is lost.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

ROOM = 2.0**10
# Newton's method has no digits for scores beyond.
FAR = -1e8


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
    """A projection that forbids pairs too bad to be in its support.

    From a matching y to the best one, whose score is S, ⟨θ, μ⟩ − ½‖μ‖² grows by S − ⟨θ, y⟩ at least, less the number n
    of pairs: y is not in the support if it scores less than S − n. No y with a pair scores more than this pair and the
    best of all other rows (or columns, if these are fewer).
    """

    def projected(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
        far = (scores < FAR) & (scores > -math.inf)
        if not bool(far.any()):
            return project(scores, rows=rows, columns=columns, partial=partial)
        N, M = scores.shape[1:]
        device = scores.device
        valid = (torch.arange(N, device=device) < rows.unsqueeze(1)).unsqueeze(2)
        valid = valid & (torch.arange(M, device=device) < columns.unsqueeze(1)).unsqueeze(1)
        x = torch.where(valid, scores, -math.inf).double() / ROOM
        best = argmax(scores, rows=rows, columns=columns, partial=partial)
        score = torch.where(best > 0, x, 0.0).sum((1, 2))
        best_of = x.amax(2, keepdim=True), x.amax(1, keepdim=True)
        tops = [torch.where(top == -math.inf, 0.0, top.clamp_min(0.0) if partial else top) for top in best_of]
        by_row = (rows <= columns)[:, None, None]
        bound = torch.where(by_row, tops[0].sum(1, keepdim=True), tops[1].sum(2, keepdim=True))
        loss = torch.where(by_row, tops[0], tops[1]) - x
        reached = loss <= bound - score[:, None, None] + min(N, M) / ROOM
        within = scores.masked_fill(far & ~reached, -math.inf)
        return project(within, rows=rows, columns=columns, partial=partial)

    return projected
