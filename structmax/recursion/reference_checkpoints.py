"""Smoothed recursions in less memory, in torch: the levels in about √L blocks, each differentiated by itself.

A block knows the values it uses of the levels before, its frontier, and gives those that later blocks use. The way up
keeps the frontiers alone; the way down computes one block at a time anew.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Layout, Level
from structmax.recursion.reference import Combine, _edge_scores, _planned, _smoothed_max, smoothed


class Block(NamedTuple):
    """Levels whose tails are positions in: 0 for none, the frontier, the nodes of the block."""

    levels: list[Level]
    # the places of its nodes are start … stop − 1
    start: int
    stop: int
    # (F,): the places of the frontier
    frontier: Tensor

    def position(self, place: Tensor) -> Tensor:
        """Where the values of places stand, which are 0 for none, in the frontier or in the block."""
        before = 1 + torch.searchsorted(self.frontier, place)
        inside = 1 + len(self.frontier) + place - self.start
        return torch.where(place >= self.start, inside, torch.where(place > 0, before, 0))


def blocks_of(plan: Layout) -> list[Block]:
    """About √L blocks of the L levels."""
    size = max(1, math.ceil(math.sqrt(len(plan.levels))))
    groups = [plan.levels[i : i + size] for i in range(0, len(plan.levels), size)]
    found: list[Block] = []
    stop, used = 1 + len(plan.place), plan.place.new_zeros(0)
    for levels in reversed(groups):
        start = stop - sum(len(level.edges) for level in levels)
        used = torch.cat([used, *(level.tails.flatten() for level in levels)]).unique()
        used = used[(used > 0) & (used < start)]
        block = Block([], start, stop, used)
        local = [level._replace(tails=block.position(level.tails)) for level in levels]
        found.append(block._replace(levels=local))
        stop = start
    return found[::-1]


def _values(block: Block, scores: Tensor, frontier: Tensor, combine: Combine) -> Tensor:
    """The frontier's values (B, F) followed by those of the block, after a 0 for none."""
    values = torch.cat([scores.new_zeros(len(scores), 1), frontier], 1)
    for level in block.levels:
        values = torch.cat([values, combine(_edge_scores(scores, values, level))], 1)
    return values


def _step(block: Block, after: Block | None, place: Tensor, combine: Combine) -> Callable[..., tuple[Tensor, Tensor]]:
    """From scores and the frontier: the next frontier, and the values of goals in this block, 0 for others."""
    inside = (place >= block.start) & (place < block.stop)
    goal = block.position(torch.where(inside, place, 0))

    def step(scores: Tensor, frontier: Tensor) -> tuple[Tensor, Tensor]:
        values = _values(block, scores, frontier, combine)
        kept = values[:, :0] if after is None else values.index_select(1, block.position(after.frontier))
        return kept, torch.where(inside, values.gather(1, goal), 0.0).squeeze(1)

    return step


def smoothed_checkpointed(x: Tensor, **rest: Any) -> Tensor:
    """Differentiable to any order, for which autograd keeps what it needs."""
    return smoothed(x, **rest)


def smoothed_checkpointed_and_marginals(
    x: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        scores, place, plan = _planned(x.clone() if x.is_inference() else x, goal, Hyperedges(**edges))
        combine = _smoothed_max(alpha, gamma)
        blocks = blocks_of(plan)
        steps = [_step(b, after, place, combine) for b, after in zip(blocks, [*blocks[1:], None], strict=True)]
        frontiers, value = [scores[:, :0]], scores.new_zeros(len(x))
        for step in steps:
            kept, found = step(scores, frontiers[-1])
            frontiers.append(kept)
            value = value + found
        d_scores, d_kept = torch.zeros_like(scores), frontiers.pop()
        for step in reversed(steps):
            _, pullback = torch.func.vjp(step, scores, frontiers.pop())  # type: ignore[misc]
            here, d_kept = pullback((d_kept, torch.ones_like(value)))
            d_scores = d_scores + here
        return value, d_scores[:, : x.shape[1]]
