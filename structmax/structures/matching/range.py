"""Room for searches that add and subtract scores, some of which may be at the end of the range of their dtype.

The order of matchings does not change when all scores are divided by a power of two, and no digit is lost.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

ROOM = 2.0**10


def with_room(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A search for scores, on scores divided by ROOM."""

    def searched(scores: Tensor, **fields: Tensor | bool) -> Tensor:
        return search(scores / ROOM, **fields) * ROOM

    return searched


def best_with_room(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A search for one matching: zeros if its score is −inf, although no part of it is."""

    def searched(scores: Tensor, **fields: Tensor | bool) -> Tensor:
        parts = search(scores / ROOM, **fields)
        score = torch.where(parts > 0, scores, 0.0).sum((-2, -1), keepdim=True)
        return parts.masked_fill(score == -math.inf, 0.0)

    return searched


def ranked_with_room(search: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """A search for matchings and their scores: zeros where the score is −inf."""

    def searched(scores: Tensor, **fields: Tensor | bool | int) -> tuple[Tensor, Tensor]:
        values, parts = search(scores / ROOM, **fields)
        values = values * ROOM
        return values, parts.masked_fill((values == -math.inf)[..., None, None], 0.0)

    return searched
