"""Every question to a dynamic program, answered in torch for any ordered hypergraph: slow but correct, on any device.

All functions take x (B, P), the flat scores, and the recursion as keywords: `goal` (B,) and the fields of `Hyperedges`.
Values are computed level by level without writing in place, so that autograd may pass: marginals are gradients, a best
derivation is the gradient of its score, and tangents are second derivatives. `kernel_numba` has the same
functions, compiled.

`smoothed` replaces the max of every node by max_Ω(s) = max over p in the simplex of ⟨p, s⟩ − γ Ω_α(p), with
Ω_α(p) = Σ (p^α − p) / (α(α−1)): the recursion of log Z at α = γ = 1. Its maximiser q says with which probability a walk
from the goal takes each edge.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Layout, Level, layout

Combine = Callable[[Tensor], Tensor]
BISECTIONS = 100


# ---------------------------------------------------------------- what a node makes of its edges: s (…, D) → (…,)


def _logsumexp(s: Tensor) -> Tensor:
    """−inf with gradient 0 where no edge is feasible."""
    peak = s.detach().amax(-1, keepdim=True)
    peak = torch.where(peak == -math.inf, 0.0, peak)
    total = (s - peak).exp().sum(-1)
    some = total != 0
    return torch.where(some, torch.where(some, total, 1.0).log() + peak.squeeze(-1), -math.inf)


def _best(s: Tensor) -> Tensor:
    return s.max(-1).values


def _walk_probabilities(s: Tensor, alpha: float, gamma: float) -> Tensor:
    """q = entmax_α(s / γ), zeros where no edge is feasible; differentiable up to third order.

    The threshold τ is found without autograd. Two Newton steps from there change nothing but carry its derivatives.
    """
    inside, z = _below_best(s, gamma)
    feasible = inside.any(-1, keepdim=True)
    if alpha == 1:
        weight = torch.where(inside, z.exp(), 0.0)
        return weight / torch.where(feasible, weight.sum(-1, keepdim=True), 1.0)
    power = 1 / (alpha - 1)

    def q_of(z: Tensor, tau: Tensor, exponent: float) -> Tensor:
        u = (alpha - 1) * (z - tau)
        return torch.where(inside & (u > 0), torch.where(u > 0, u, 1.0) ** exponent, 0.0)

    # q(τ) sums to at least 1 at τ = −1/(α−1), where the best alone has 1, and to 0 at τ = 0.
    low, high = (torch.full_like(z[..., :1], bound).detach() for bound in (-power, 0.0))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = q_of(z.detach(), middle, power).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    tau = low.detach()
    for _ in range(2):
        slope = q_of(z, tau, power - 1).sum(-1, keepdim=True)
        tau = tau + (q_of(z, tau, power).sum(-1, keepdim=True) - 1) / torch.where(feasible, slope, 1.0)
    return q_of(z, tau, power)


def _below_best(s: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Which edges are feasible, and (s − the best) / γ: 0 for others, since what is far above 0 has no derivative."""
    inside = s != -math.inf
    peak = s.detach().amax(-1, keepdim=True)
    return inside, torch.where(inside, s - peak, 0.0) / gamma


def _walk_logs(s: Tensor, alpha: float, gamma: float) -> Tensor:
    """log q, −inf for edges that no walk takes. That of an improbable edge is finite where q is none."""
    if alpha == 1:
        inside, z = _below_best(s, gamma)
        return torch.where(inside, z - _logsumexp(torch.where(inside, z, -math.inf)).unsqueeze(-1), -math.inf)
    q = _walk_probabilities(s, alpha, gamma)
    # NaN stays
    return torch.where(q == 0, -math.inf, torch.where(q == 0, 1.0, q).log())


def _smoothed_max(alpha: float, gamma: float) -> Combine:
    if alpha == 1 and gamma == 1:
        return _logsumexp

    def combine(s: Tensor) -> Tensor:
        q = _walk_probabilities(s, alpha, gamma)
        on = q > 0
        safe = torch.where(on, q, 1.0)
        regulariser = q * safe.log() if alpha == 1 else (safe**alpha - safe) / (alpha * (alpha - 1))
        # relative to the best, as q sums to 1: far from 0 there are no digits left
        peak = s.detach().amax(-1, keepdim=True)
        above = torch.where(on, q * torch.where(on, s - peak, 0.0) - gamma * regulariser, 0.0).sum(-1)
        value = peak.squeeze(-1) + above
        broken = s.isnan().any(-1)
        return torch.where(broken, math.nan, torch.where((s > -math.inf).any(-1), value, -math.inf))

    return combine


# ---------------------------------------------------------------- values, level by level


def _at(table: Tensor, index: Tensor) -> Tensor:
    """table (B, n) at index (…): (B, …)."""
    return table.index_select(1, index.flatten()).unflatten(1, index.shape)


def reached(goal: Tensor, plan: Layout, batch: int, size: int) -> tuple[Tensor, Tensor]:
    """The goal's place (B, 1), and which of `size` parts its derivations can use: (B, P) bool."""
    device = plan.place.device
    place = plan.place[goal.to(device)].unsqueeze(1)
    nodes = torch.zeros(batch, 1 + len(plan.place), device=device).scatter(1, place, 1.0)
    wanted = torch.zeros(batch, size + 2, device=device)
    stop = nodes.shape[1]
    for level in reversed(plan.levels):
        start = stop - len(level.edges)
        here = nodes[:, start:stop, None, None].clone()
        for marks, index in ((nodes, level.tails), (wanted, level.parts)):
            marks.index_add_(1, index.flatten(), here.expand(-1, *index.shape).flatten(1)).clamp_(max=1.0)
        stop = start
    return place, wanted[:, :-2] > 0


def _planned(x: Tensor, goal: Tensor, edges: Hyperedges) -> tuple[Tensor, Tensor, Layout]:
    """Scores followed by 0 and −inf (B, P + 2), the goal's place (B, 1), and the levels.

    Parts that no derivation of the goal can use are 0: padding may hold anything, NaN too.
    """
    plan = layout(edges, x.shape[1], x.device)
    place, wanted = reached(goal, plan, *x.shape)
    x = torch.where(wanted, x, 0.0)
    constants = x.new_tensor([0.0, -math.inf]).expand(len(x), 2)
    return torch.cat([x, constants], 1), place, plan


def _edge_scores(scores: Tensor, values: Tensor, level: Level) -> Tensor:
    """Σ scores of its parts + Σ values of its tails, for every edge of the level: (B, n, D)."""
    return _at(scores, level.parts).sum(-1) + _at(values, level.tails).sum(-1)


def _values(scores: Tensor, plan: Layout, combine: Combine) -> Tensor:
    """The value of each node by its place, after a 0 for none: (B, 1 + V)."""
    values = scores.new_zeros(len(scores), 1)
    for level in plan.levels:
        values = torch.cat([values, combine(_edge_scores(scores, values, level))], 1)
    return values


def _value(x: Tensor, goal: Tensor, edges: Hyperedges, combine: Combine) -> Tensor:
    scores, place, plan = _planned(x, goal, edges)
    return _values(scores, plan, combine).gather(1, place).squeeze(1)


def _gradient(function: Combine, x: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return torch.func.grad(lambda t: function(t).sum())(x.clone() if x.is_inference() else x)


def _hessian_times(function: Combine, x: Tensor, tangent: Tensor) -> Tensor:
    """The Hessian is symmetric: its pullback is its pushforward, and reverse mode asks less of an operator."""
    with torch.inference_mode(False):
        x, tangent = (t.clone() if t.is_inference() else t for t in (x, tangent))
        return torch.func.vjp(lambda t: _gradient(function, t), x)[1](tangent)[0]


# ---------------------------------------------------------------- the smooth questions


def smoothed(x: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor) -> Tensor:
    return _value(x, goal, Hyperedges(**edges), _smoothed_max(alpha, gamma))


def smoothed_and_marginals(x: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return smoothed(x, **rest), _gradient(lambda t: smoothed(t, **rest), x)


def smoothed_marginals_jvp(x: Tensor, tangent: Tensor, **rest: Any) -> Tensor:
    return _hessian_times(lambda t: smoothed(t, **rest), x, tangent)


def log_partition(x: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    return _value(x, goal, Hyperedges(**edges), _logsumexp)


def log_partition_and_marginals(x: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return log_partition(x, **rest), _gradient(lambda t: log_partition(t, **rest), x)


def marginals_jvp(x: Tensor, tangent: Tensor, **rest: Any) -> Tensor:
    return _hessian_times(lambda t: log_partition(t, **rest), x, tangent)


def given_log_partition(x: Tensor, required: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """log Σ over the derivations that use all required parts: a node counts only the edges that use most of them."""
    scores, place, plan = _planned(x, goal, Hyperedges(**edges))
    uses = torch.nn.functional.pad((required > 0).to(x.dtype), (0, 2))
    values, counts = scores.new_zeros(len(x), 1), scores.new_zeros(len(x), 1)
    for level in plan.levels:
        s, count = _edge_scores(scores, values, level), _edge_scores(uses, counts, level)
        s, most = _most(s, count)
        values, counts = torch.cat([values, _logsumexp(s)], 1), torch.cat([counts, most], 1)
    enough = counts.gather(1, place) == uses.sum(1, keepdim=True)
    return torch.where(enough, values.gather(1, place), -math.inf).squeeze(1)


def _most(s: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """s with −inf at edges whose count is not the highest of the feasible ones, and that count (0 if there is none)."""
    count = torch.where(s == -math.inf, -1.0, count)
    most = count.amax(-1, keepdim=True)
    return torch.where(count == most, s, -math.inf), most.squeeze(-1).clamp_min(0.0)


def given_log_partition_and_marginals(x: Tensor, required: Tensor, **rest: Any) -> tuple[Tensor, Tensor]:
    return given_log_partition(x, required, **rest), _gradient(lambda t: given_log_partition(t, required, **rest), x)


def given_marginals_jvp(x: Tensor, required: Tensor, tangent: Tensor, **rest: Any) -> Tensor:
    return _hessian_times(lambda t: given_log_partition(t, required, **rest), x, tangent)


def smoothed_log_prob(x: Tensor, y: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor) -> Tensor:
    """log of the probability of a walk that yields the parts y: Σ log q over the edges of its derivation.

    How often an edge is taken is said by a part that no other edge has, among the edges without parts outside y. Visits
    to a node that are left take its edge that leads to the most parts.
    """
    scores, place, plan = _planned(x, goal, Hyperedges(**edges))
    size = x.shape[1]
    given = torch.nn.functional.pad(y, (0, 2))
    may_use = torch.cat([(y > 0).to(y.dtype), y.new_tensor([1.0, 0.0]).expand(len(y), 2)], 1)
    combine = _smoothed_max(alpha, gamma)
    values, most = scores.new_zeros(len(x), 1), scores.new_zeros(len(x), 1)
    users = torch.zeros_like(given)
    seen = []
    for level in plan.levels:
        s = _edge_scores(scores, values, level)
        log_q = _walk_logs(s, alpha, gamma)
        allowed = (log_q > -math.inf) & (_at(may_use, level.parts) > 0).all(-1)
        uses = (level.parts < size).sum(-1) + _at(most, level.tails).sum(-1)
        uses = torch.where(allowed, uses, -math.inf)
        alive = (uses > -math.inf).unsqueeze(-1).expand(-1, *level.parts.shape).flatten(1).to(y.dtype)
        users = users.scatter_add(1, level.parts.flatten().expand(len(x), -1), alive)
        values, most = torch.cat([values, combine(s)], 1), torch.cat([most, uses.amax(-1)], 1)
        seen.append((level, torch.where(allowed, log_q, 0.0), uses))
    visits = torch.zeros_like(values).scatter(1, place, 1.0).detach()
    total, count = scores.new_zeros(len(x)), torch.zeros_like(given)
    found, stop = torch.ones_like(total, dtype=torch.bool), values.shape[1]
    for level, log_q, uses in reversed(seen):
        start = stop - len(level.edges)
        alive = uses > -math.inf
        own = (_at(users, level.parts) == 1) & (level.parts < size) & alive.unsqueeze(-1)
        times = torch.where(own, _at(given, level.parts), 0.0).amax(-1)
        rest = visits[:, start:stop] - times.sum(-1)
        others = torch.where(own.any(-1), -math.inf, uses)
        best = others.max(-1, keepdim=True)
        times = times.scatter_add(-1, best.indices, torch.where(best.values > -math.inf, rest.unsqueeze(-1), 0.0))
        found = found & (times.sum(-1) == visits[:, start:stop]).all(-1) & (times >= 0).flatten(1).all(-1)
        total = total + (times * log_q).flatten(1).sum(-1)
        spread = times.unsqueeze(-1)
        used, below = (spread.expand(-1, *index.shape).flatten(1) for index in (level.parts, level.tails))
        count = count.scatter_add(1, level.parts.flatten().expand(len(x), -1), used)
        visits = visits.scatter_add(1, level.tails.flatten().expand(len(x), -1), below)
        stop = start
    found = found & (count[:, :size] == y).all(-1)
    return torch.where(found, total, -math.inf)


def smoothed_log_prob_pullback(x: Tensor, y: Tensor, *, d_value: Tensor, **rest: Any) -> Tensor:
    def reachable(t: Tensor) -> Tensor:
        value = smoothed_log_prob(t, y, **rest)
        return torch.where(value == -math.inf, 0.0, value) * d_value

    return _gradient(reachable, x)


# ---------------------------------------------------------------- the best


def argmax(x: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """The gradient of the best score: the max of each node passes it to one edge."""
    return topk(x, k=1, goal=goal, **edges)[1].squeeze(1)


def topk(x: Tensor, *, k: int, goal: Tensor, **edges: Tensor) -> tuple[Tensor, Tensor]:
    def best(t: Tensor) -> Tensor:
        scores, place, plan = _planned(t, goal, Hyperedges(**edges))
        return _goal_list([_at(scores, level.parts).sum(-1) for level in plan.levels], place, plan, k)

    return _with_parts(best, x)


def smoothed_topk(
    x: Tensor, *, k: int, alpha: float, gamma: float, goal: Tensor, **edges: Tensor
) -> tuple[Tensor, Tensor]:
    """The best derivations where an edge scores log q, and its parts nothing but that they are counted."""
    scores, place, plan = _planned(x, goal, Hyperedges(**edges))
    values, logs = scores.new_zeros(len(x), 1), []
    for level in plan.levels:
        s = _edge_scores(scores, values, level)
        logs.append(_walk_logs(s, alpha, gamma))
        values = torch.cat([values, _smoothed_max(alpha, gamma)(s)], 1)

    def best(t: Tensor) -> Tensor:
        counted = torch.nn.functional.pad(t, (0, 2))
        own = [log_q + _at(counted, level.parts).sum(-1) for log_q, level in zip(logs, plan.levels, strict=True)]
        return _goal_list(own, place, plan, k)

    return _with_parts(best, torch.zeros_like(x))


def _goal_list(own: list[Tensor], place: Tensor, plan: Layout, k: int) -> Tensor:
    """The k best values of the goal (B, k), for edges that score `own` (B, n, D) at each level beside their tails."""
    first = own[0]
    alone = torch.cat([first.new_zeros(len(first), 1, 1), first.new_full((len(first), 1, k - 1), -math.inf)], 2)
    values = alone
    for level, scores in zip(plan.levels, own, strict=True):
        lists = alone.unsqueeze(1) + scores.unsqueeze(-1)
        for tail in level.tails.unbind(-1):
            pairs = lists.unsqueeze(-1) + _at(values, tail).unsqueeze(-2)
            lists = pairs.flatten(-2).topk(k, -1).values
        values = torch.cat([values, lists.flatten(-2).topk(k, -1).values], 1)
    return values.gather(1, place.unsqueeze(-1).expand(-1, -1, k)).squeeze(1)


def _with_parts(best: Combine, x: Tensor) -> tuple[Tensor, Tensor]:
    """The values (B, k) that `best` has at x, and their derivations: the j-th is the gradient of its value."""
    with torch.inference_mode(False):
        values, pullback = torch.func.vjp(best, x.clone() if x.is_inference() else x)  # type: ignore[misc]
        parts = torch.stack([pullback(d_values)[0] for d_values in _each(values)], 1)
    return values, torch.where((values == -math.inf).unsqueeze(-1), 0.0, parts)


def _each(values: Tensor) -> Tensor:
    """Cotangents (k, B, k) that pick out one column each."""
    return torch.eye(values.shape[1], dtype=values.dtype, device=values.device).unsqueeze(1).expand(-1, *values.shape)


def max_marginals(x: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """For each part the best over its edges of: best way up to the goal + the edge's own best score."""
    scores, place, plan = _planned(x, goal, Hyperedges(**edges))
    values = _values(scores, plan, _best)
    above = torch.full_like(values, -math.inf).scatter(1, place, 0.0)
    best = torch.full_like(scores, -math.inf)
    stop = values.shape[1]
    for level in reversed(plan.levels):
        start = stop - len(level.edges)
        s = _edge_scores(scores, values, level) + above[:, start:stop, None]
        through = s.unsqueeze(-1).expand(-1, *level.parts.shape).flatten(1)
        best = best.scatter_reduce(1, level.parts.flatten().expand(len(x), -1), through, "amax")
        below = _at(values, level.tails)
        around = torch.where(below == -math.inf, -math.inf, s.unsqueeze(-1) - below).flatten(1)
        above = above.scatter_reduce(1, level.tails.flatten().expand(len(x), -1), around, "amax")
        stop = start
    return best[:, :-2]
