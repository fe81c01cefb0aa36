"""A walk from the goal by noisy edges, and its relaxation: Gumbel-CRF, for any ordered hypergraph.

With s(e) = Σ score(parts of e) + Σ value(tails of e), value = logsumexp, and a Gumbel g(e) for each edge, a node takes
the edge of the highest s(e) + g(e): an exact draw, since argmax(log q + g) is one of q = softmax(s). At a temperature
γ > 0 it takes all of its edges, each as far as it has weight,

    w(e) = softmax over the edges of its node of (s(e) + g(e)) / γ          E(goal) = 1
    E(tail) += E(head) w(e) for each tail of e          count(part) += E(head) w(e) for each part of e

so that the counts are those a walk expects that leaves each node by e with probability w(e); as γ falls they become
those of the draw. The pullback of cotangents c of the counts goes up once and down once:

    a(e) = Σ c(parts) + Σ a(tails)          a(v) = Σ w(e) a(e)          d(e) = E(head) w(e) (a(e) − a(head)) / γ
    ds(e) = d(e) + dv(head) q(e)            dv(tail) += ds(e)           dx(part) += ds(e)

A draw whose derivation comes to one node several times would choose there once for all of them: it is refused.

Reference: Fu, Tan, Bi, Chen, Feng & Rush 2020, Latent template induction with Gumbel-CRFs,
https://arxiv.org/abs/2011.14244.
"""

import math
from typing import Any

import torch
from torch import Tensor

from structmax.recursion import checks
from structmax.recursion.edges import Hyperedges
from structmax.recursion.reference import _at, _edge_scores, _logsumexp, _planned, _walk_probabilities


def noisy_walk(x: Tensor, *, gumbel: Tensor, gamma: float, goal: Tensor, **edges: Tensor) -> Tensor:
    checks.noise_of_edges(gumbel, x, edges["tails"])
    scores, place, plan = _planned(x, goal, Hyperedges(**edges))
    # a place for the edge that is none
    noise = torch.nn.functional.pad(gumbel, (0, 1))
    values, seen = scores.new_zeros(len(x), 1), []
    for level in plan.levels:
        s = _edge_scores(scores, values, level)
        values = torch.cat([values, _logsumexp(s)], 1)
        seen.append((level, s + _at(noise, level.edges)))
    expected = torch.zeros_like(values).scatter(1, place, 1.0).detach()
    count, stop = torch.zeros_like(scores), values.shape[1]
    for level, noisy in reversed(seen):
        here = expected[:, stop - len(level.edges) : stop]
        if gamma == 0 and bool(((here > 1) & ((noisy > -math.inf).sum(-1) > 1)).any()):
            raise ValueError(checks.SHARED_CHOICE)
        taken = here.unsqueeze(-1) * (_best_edge(noisy) if gamma == 0 else _walk_probabilities(noisy, 1.0, gamma))
        used, below = (taken.unsqueeze(-1).expand(-1, *t.shape).flatten(1) for t in (level.parts, level.tails))
        count = count.scatter_add(1, level.parts.flatten().expand(len(x), -1), used)
        expected = expected.scatter_add(1, level.tails.flatten().expand(len(x), -1), below)
        stop -= len(level.edges)
    broken = values.gather(1, place).isnan()
    return torch.where(broken, math.nan, count[:, :-2])


def _best_edge(s: Tensor) -> Tensor:
    """One-hot, the first of equals; zeros where no edge is feasible."""
    top, best = s.detach().max(-1, keepdim=True)
    return torch.zeros_like(s).scatter(-1, best, (top > -math.inf).to(s.dtype))


def noisy_walk_pullback(x: Tensor, d_parts: Tensor, **rest: Any) -> Tensor:
    d_parts = torch.where(x == -math.inf, 0.0, d_parts)
    with torch.inference_mode(False):
        x, d_parts = (t.clone() if t.is_inference() else t for t in (x, d_parts))
        return torch.func.vjp(lambda t: noisy_walk(t, **rest), x)[1](d_parts)[0]
