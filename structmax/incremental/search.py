"""Beam search, by log-probability or by log-probability with Gumbel noise.

Of sequences with log-probabilities φ and Gumbel noise g, those with the k highest φ + g are k draws without
replacement. Stochastic beam search draws the noise from the top down: G of a prefix is the maximum over all its
sequences, itself Gumbel(φ), and G of its continuations are drawn given that their maximum is that of the prefix. With
fresh G̃ = φ + g of the continuations and Z = max G̃,

    G ← −log(exp(−G) − exp(−Z) + exp(−G̃))

Reference: Kool, van Hoof & Welling 2019, Stochastic beams and where to find them, https://arxiv.org/abs/1903.06059.
"""

import math
from typing import Any

import torch
from torch import Tensor

from structmax.incremental.rows import Distinct, Rows, stacked
from structmax.numerics.noise import gumbel_like


def search(model: Any, k: int, noisy: bool, generator: torch.Generator | None = None) -> Distinct:
    """The best that are found with k kept at each step, best first; by log-probability, unless noisy."""
    rows, count = Rows(model, 1), len(model.begin)
    # of what is kept, (w, B): log-probabilities, and what it is ranked by
    values = torch.zeros(1, count, device=model.begin.device)
    ranks = gumbel_like(values, generator) if noisy else values
    kept: list[tuple[Tensor, Tensor]] = []
    for _ in range(model.steps):
        if rows.all_over():
            break
        over = rows.over.unflatten(0, values.shape)
        # (w, B, A)
        log_p = rows.log_probs().unflatten(0, values.shape)
        ways = values.detach().unsqueeze(-1) + log_p.detach()
        if noisy:
            ways = _given_maximum(ways + gumbel_like(ways, generator), ranks.unsqueeze(-1))
        # What is over goes on as it is, in the first of its places. What is lost has rank −inf.
        stays = torch.where(torch.arange(ways.shape[-1], device=ways.device) == 0, 0.0, -math.inf)
        ways = torch.where(over.unsqueeze(-1), ranks.detach().unsqueeze(-1) + stays, ways)
        size = ways.shape[-1]
        ranks, place = (t.mT for t in _by_instance(ways).topk(min(k, len(ways) * size), -1))
        origin, action = place // size, place % size
        gained = _by_instance(log_p).gather(1, place.mT).mT.masked_fill(over.gather(0, origin), 0.0)
        values = (values.gather(0, origin) + gained).masked_fill(ranks.isneginf(), -math.inf)
        rows.pick(origin)
        action = rows.take(action.flatten(), values.isneginf().flatten()).unflatten(0, values.shape)
        kept.append((origin, action))
    missing = k - len(values)
    actions = stacked(_followed_back(kept, values), values, model.steps)
    return Distinct(
        torch.nn.functional.pad(actions, (0, 0, 0, 0, 0, missing), value=-1),
        torch.nn.functional.pad(values, (0, 0, 0, missing), value=-math.inf),
        torch.nn.functional.pad(ranks, (0, 0, 0, missing), value=-math.inf),
    )


def _by_instance(ways: Tensor) -> Tensor:
    """(w, B, A) as (B, w · A)."""
    return ways.transpose(0, 1).flatten(1)


def _given_maximum(fresh: Tensor, maximum: Tensor) -> Tensor:
    """Gumbels (…, A), moved so that their maximum is the one given, (…, 1); −inf stays."""
    possible = ~fresh.isneginf()
    top = fresh.amax(-1, keepdim=True).masked_fill(~possible.any(-1, keepdim=True), 0.0)
    below = torch.where(possible, fresh - top, 0.0)
    # log(exp(−G̃) − exp(−Z)) + G, whose first term is −G̃ + log(1 − exp(G̃ − Z)), taken where it keeps its digits
    small = below > -math.log(2)
    log_rest = torch.where(small, (-torch.expm1(below)).log(), torch.log1p(-below.exp()))
    v = maximum - torch.where(possible, fresh, 0.0) + log_rest
    moved = maximum - v.clamp_min(0.0) - torch.log1p((-v.abs()).exp())
    return torch.where(possible, moved, -math.inf)


def _followed_back(kept: list[tuple[Tensor, Tensor]], values: Tensor) -> list[Tensor]:
    """The actions of each of the last beams, step by step, by where it came from."""
    at = torch.arange(len(values), device=values.device).unsqueeze(1).expand_as(values)
    actions = []
    for origin, action in reversed(kept):
        actions.append(action.gather(0, at))
        at = origin.gather(0, at)
    return actions[::-1]
