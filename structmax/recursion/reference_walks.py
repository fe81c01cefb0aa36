"""Draws by walks from the goal: at each node take an edge with its probability, then derive its tails, left first.

A walk consumes one uniform number at each node that has more than one edge, and inverts the distribution over the edges
in their order, so that every backend that follows the same order draws the same.
"""

import math
from typing import Any

import torch
from torch import Tensor

from structmax.numerics.exact_sum import in_dtype
from structmax.recursion.edges import Hyperedges
from structmax.recursion.reference import _planned, _smoothed_max, _values, _walk_probabilities

OUT_OF_NUMBERS = "`noise` should have a number for each decision a derivation can take."


def sample(x: Tensor, *, noise: Tensor, **rest: Any) -> Tensor:
    return smoothed_sample(x, noise=noise, alpha=1.0, gamma=1.0, **rest)


def smoothed_sample(
    x: Tensor, *, noise: Tensor, alpha: float, gamma: float, goal: Tensor, first: Tensor, tails: Tensor, parts: Tensor
) -> Tensor:
    """All walks side by side, each with a stack of the nodes it has yet to derive: (B, S, P)."""
    scores, place, plan = _planned(x, goal, Hyperedges(first, tails, parts))
    values = _values(scores, plan, _smoothed_max(alpha, gamma))
    first, tails, parts = (t.to(x.device).long() for t in (first, tails, parts))
    # One number more: all walks are asked at each step, those that have nothing to decide too.
    numbers = noise.shape[2]
    noise = torch.nn.functional.pad(noise, (0, 1))
    # −1, for none, becomes place 0
    places = torch.nn.functional.pad(plan.place, (0, 1))
    offsets = torch.arange(int(first.diff().max()), device=x.device)
    batch = torch.arange(len(x), device=x.device)[:, None, None, None]
    counts = torch.nn.functional.pad(torch.zeros_like(x), (0, 1)).unsqueeze(1).repeat(1, noise.shape[1], 1)
    stack = goal.to(x.device)[:, None, None].expand(*noise.shape[:2], 1)
    height = (values.gather(1, place) > -math.inf).long().expand(noise.shape[:2])
    drawn = torch.zeros_like(height)
    while bool((height > 0).any()):
        active = height > 0
        height = height - active.long()
        node = stack.gather(2, height.unsqueeze(-1)).squeeze(-1)
        degree = first[node + 1] - first[node]
        edges = torch.where(offsets < degree.unsqueeze(-1), first[node].unsqueeze(-1) + offsets, -1)
        s = scores[batch, torch.where(parts[edges] < 0, x.shape[1], parts[edges])].sum(-1)
        s = (s + values[batch, places[tails[edges]]].sum(-1)).masked_fill(edges < 0, -math.inf)
        uniform = noise.gather(2, drawn.unsqueeze(-1).clamp_max(numbers))
        edge = edges.gather(2, _inverted(_walk_probabilities(s, alpha, gamma), uniform)).squeeze(-1)
        drawn = drawn + (active & (degree > 1)).long()
        used = torch.where(active.unsqueeze(-1), parts[edge], -1)
        ones = torch.ones_like(used, dtype=x.dtype)
        counts = counts.scatter_add(2, torch.where(used < 0, x.shape[1], used), ones)
        for tail in reversed(tails[edge].unbind(-1)):
            push = active & (tail >= 0)
            stack = torch.nn.functional.pad(stack, (0, max(0, int(height.max()) + 1 - stack.shape[2])))
            here = height.unsqueeze(-1)
            stack = stack.scatter(2, here, torch.where(push.unsqueeze(-1), tail.unsqueeze(-1), stack.gather(2, here)))
            height = height + push.long()
    if bool((drawn > numbers).any()):
        raise ValueError(OUT_OF_NUMBERS)
    return counts[..., :-1]


def _inverted(q: Tensor, uniform: Tensor) -> Tensor:
    """The first entry at which the cumulative mass exceeds uniform · total, among those that have mass: (…, 1)."""
    mass = q.cumsum(-1)
    over = (mass > uniform * mass[..., -1:]) & (q > 0)
    # uniform · total may round up to total: the last entry that has mass
    last = q.shape[-1] - 1 - (q > 0).flip(-1).long().argmax(-1, keepdim=True)
    return torch.where(over.any(-1, keepdim=True), over.long().argmax(-1, keepdim=True), last)


class _Prefix:
    """A prefix of decisions some draw has taken: the log of the share of its mass not drawn yet, and what follows."""

    def __init__(self) -> None:
        self.left = 0.0
        self.after: dict[int, _Prefix] = {}

    def shares(self, log_q: list[float], start: int) -> list[float]:
        """The logs of what is left behind each edge of a node whose first edge is `start`."""
        return [
            share + self.after[edge].left if edge in self.after else share
            for edge, share in enumerate(log_q, start=start)
        ]


def sample_without_replacement(
    x: Tensor, *, noise: Tensor, goal: Tensor, first: Tensor, tails: Tensor, parts: Tensor
) -> tuple[Tensor, Tensor]:
    """Draws one after the other, each from what the draws before have left: (B, S, P), and log-probabilities (B, S).

    A tree of the decisions taken so far holds for each prefix the share of its mass that is left, summed again along
    each draw: never by subtraction, so that what is exhausted is exactly 0; and as a logarithm, so that what is
    improbable is not.
    """
    scores, place, plan = _planned(x, goal, Hyperedges(first, tails, parts))
    values = _values(scores, plan, _smoothed_max(1.0, 1.0))
    places = torch.nn.functional.pad(plan.place, (0, 1))
    head = torch.repeat_interleave(torch.arange(len(first) - 1), first.diff().long())
    log_q = scores[:, torch.where(parts < 0, x.shape[1], parts.long()).to(x.device)].sum(-1)
    log_q = log_q + values[:, places[tails.long().to(x.device)]].sum(-1) - values[:, plan.place[head.to(x.device)]]
    logs_of: list[list[float]] = torch.where(log_q.isnan(), -math.inf, log_q).tolist()
    start_of, tails_of, parts_of = first.tolist(), tails.tolist(), parts.tolist()
    drawn = torch.zeros(*noise.shape[:2], x.shape[1], dtype=x.dtype)
    logs = torch.full(noise.shape[:2], -math.inf, dtype=x.dtype)
    for b, log_z in enumerate(values.gather(1, place).squeeze(1)):
        root = _Prefix()
        root.left = 0.0 if bool(log_z > -math.inf) else -math.inf
        for s, uniforms in enumerate(noise[b].tolist()):
            if root.left == -math.inf:
                break
            stack, path, prefix, log_p = [int(goal[b])], [], root, 0.0
            used, numbers = [], list(reversed(uniforms))
            while stack:
                node = stack.pop()
                start, stop = start_of[node], start_of[node + 1]
                own = logs_of[b][start:stop]
                edge = start
                if len(own) > 1:
                    if not numbers:
                        raise ValueError(OUT_OF_NUMBERS)
                    edge += _first_over(prefix.shares(own, start), numbers.pop())
                path.append((prefix, own, start))
                log_p += own[edge - start]
                prefix = prefix.after.setdefault(edge, _Prefix())
                used += [part for part in parts_of[edge] if part >= 0]
                stack.extend(tail for tail in reversed(tails_of[edge]) if tail >= 0)
            if bool(log_z + log_p == -math.inf):
                # Its score overflows, as do those of all that are left, which are no more probable.
                break
            for part in used:
                drawn[b, s, part] += 1
            logs[b, s] = in_dtype(log_p, x.dtype)
            prefix.left = -math.inf
            for above, own, start in reversed(path):
                above.left = _log_sum(above.shares(own, start))
    return drawn.to(x.device), logs.to(x.device)


def _log_sum(logs: list[float]) -> float:
    peak = max(logs)
    return peak if peak == -math.inf else peak + math.log(sum(math.exp(share - peak) for share in logs))


def _first_over(logs: list[float], uniform: float) -> int:
    """`_inverted` for one list of logarithms."""
    peak = max(logs)
    q = [math.exp(share - peak) for share in logs]
    goal, mass, last = uniform * sum(q), 0.0, 0
    for index, share in enumerate(q):
        mass += share
        if share > 0:
            last = index
            if mass > goal:
                return index
    return last
