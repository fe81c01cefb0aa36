"""Every question to a structure, judged by its members."""

import torch
from torch import Tensor

import structmax
from fuzzing.trial import Trial


def best(t: Trial) -> None:
    """argmax: a feasible member that no other beats; zeros where there is none."""
    truth = t.truth
    got = t.rows(structmax.argmax(t.scores, t.structure, backend=t.backend))
    index = truth.which(got)
    wrong = ~truth.some & ~(truth.lost & (index >= 0)) & got.ne(0).any(-1)
    t.wrong("argmax", "not zeros where infeasible", wrong)
    t.wrong("argmax", "not a member", truth.some & (index < 0))
    value, size = truth.of(truth.lead, index), truth.of(truth.size, index)
    t.wrong("argmax", "infeasible member", truth.some & (index >= 0) & value.isneginf())
    short = -value > truth.base + truth.unit * torch.maximum(size, truth.scale)
    t.wrong("argmax", "not the best", truth.some & value.isfinite() & short, lambda b: f"{value[b]:.3g} below")


def several(t: Trial) -> None:
    """topk: the best values in order, distinct members, −inf and zeros past the last; gradients of the values."""
    truth = t.truth
    M = truth.members.shape[-2]
    k = int(t.rng.choice([1, 2, 5, M + 2]))
    given, leaves = t.leaves()
    out = structmax.topk(given, t.structure, k, backend=t.backend)
    values, parts = t.numbers(out.values, k), t.rows(out.parts, k)
    want = torch.full((t.count, k), -torch.inf, dtype=torch.float64)
    kept = min(k, M)
    order = truth.score.topk(kept, -1)
    want[:, :kept] = order.values
    sizes = torch.zeros_like(want)
    # Members whose scores differ by less than rounding may change places, so their sizes count together.
    sizes[:, :kept] = truth.size.gather(-1, order.indices).cummax(-1).values
    tolerance = truth.base + truth.unit * sizes
    t.same("topk", values, want, tolerance)
    index = truth.which(parts).T
    found = want > -torch.inf
    t.wrong("topk", "not members", found & (index < 0))
    t.wrong("topk", "not zeros past the last", ~found & parts.ne(0).any(-1).T)
    of_parts = torch.where(found, truth.of(truth.score, index.T).T, -torch.inf)
    t.wrong("topk", "an infeasible member", found & (index >= 0) & of_parts.isneginf())
    # two members change places where the errors of both bridge their distance
    t.wrong("topk", "parts do not have the value", found & ((of_parts - want).abs() > 2 * tolerance))
    seen = torch.zeros(t.count, M).scatter_add(-1, index.clamp_min(0), (found & (index >= 0)).float())
    t.wrong("topk", "not distinct", seen > 1)
    weight = torch.randn(k, dtype=torch.float64, generator=t.generator).to(t.dtype)
    total = (out.values.masked_fill(out.values.isinf(), 0.0) * weight.reshape(-1, *(1,) * len(t.batch))).sum()
    alive = found & values.isfinite()
    expected = torch.einsum("k,kbp,bk->bp", weight.double(), parts, alive.double())
    gradients(t, "topk gradient", total, leaves, expected, truth.base * truth.used.double())


def gradients(t: Trial, what: str, total: Tensor, leaves: list[Tensor], want: Tensor, tolerance: Tensor) -> None:
    """The gradient of a number by all scores, where that by the flat scores should be `want` (B, P) ± tolerance."""
    got = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    # What is shared by the batch gets a sum, in the dtype of the scores.
    eps = torch.finfo(t.dtype).eps
    size = t.pulled(want.abs() * eps * (4 if t.dtype != torch.float64 else 0) + tolerance)
    for g, w, slack in zip(got, t.pulled(want), size, strict=True):
        bad = ~((g.double() - w).abs() <= 4 * slack + torch.finfo(t.dtype).tiny * t.count)
        if g.dtype != t.dtype:
            raise AssertionError(f"the gradient has dtype {g.dtype} for scores of {t.dtype}")
        if bool(g.isnan().any()):
            t.wrong(what, "NaN", g.isnan().flatten()[None])
        elif bool(bad.any()):
            at = tuple(bad.nonzero()[0].tolist())
            one = f"at {at} got {g[at].item():.6g}, want {w[at].item():.6g} ± {4 * slack[at].item():.1g}"
            t.wrong(what, "wrong", bad.flatten()[None], lambda _, one=one: one)


def sums(t: Trial) -> None:
    """log_partition, marginals, and three derivatives of them."""
    truth = t.truth
    given, leaves = t.leaves()
    log_z = structmax.log_partition(given, t.structure, backend=t.backend)
    t.same("log_partition", t.numbers(log_z), truth.log_z, truth.base + truth.delta)
    if not t.answers("marginals"):
        return
    mu = structmax.marginals(given, t.structure, backend=t.backend)
    got = t.rows(mu)
    point(t, "marginals", got, truth.mean)
    if bool((truth.vague | truth.lost).any()):
        for name, answer in (("log_partition", log_z), ("marginals", t.structure.tensors(mu)[0])):
            finite(t, f"{name} gradient", answer.masked_fill(answer.isinf(), 0.0).sum(), leaves)
        return
    tolerance = (truth.base + truth.delta).unsqueeze(-1) * truth.used
    gradients(t, "log_partition gradient", log_z[log_z.isfinite()].sum(), leaves, got, tolerance)
    v, w = (torch.randn(truth.theta.shape, dtype=torch.float64, generator=t.generator) for _ in range(2))
    v, w = v.to(t.dtype).double() * truth.used, w.to(t.dtype).double() * truth.used
    a, b = (torch.einsum("bmp,bp->bm", truth.y, x) for x in (v, w))
    a, b = (x - (truth.p * x).sum(-1, keepdim=True) for x in (a, b))
    total = dot(t, mu, v)
    tolerance = tolerance * (1 + v.abs().sum(-1, keepdim=True)) ** 2
    gradients(t, "marginals gradient", total, leaves, truth.average(truth.p * a), tolerance)
    if t.rng.random() < 0.3 and t.answers("marginals_jvp"):
        first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        # the directional derivative along w, of flat scores: w enters by the way the scores do
        along = sum(
            ((g * x.to(g.dtype)).sum() for g, x in zip(first, raw_direction(t, w), strict=True)), torch.zeros(())
        )
        if not along.requires_grad:
            return
        moved = t.structure.tensors(t.parts_of(rejoined(t, raw_direction(t, w))))
        w_flat = t.rows(t.structure.parts(tuple(x.to(t.dtype) for x in moved))) * truth.used
        b = torch.einsum("bmp,bp->bm", truth.y, w_flat)
        b = b - (truth.p * b).sum(-1, keepdim=True)
        want = truth.average(truth.p * a * b) - truth.mean * (truth.p * a * b).sum(-1, keepdim=True)
        if t.dtype == torch.float64:
            slack = tolerance * (1 + w_flat.abs().sum(-1, keepdim=True)) ** 2
            gradients(t, "marginals second gradient", along, leaves, want, slack)
        else:
            finite(t, "marginals second gradient", along, leaves)


def raw_direction(t: Trial, w: Tensor) -> list[Tensor]:
    """A direction for the scores that were passed."""
    return [x / max(1, t.count) ** 0.5 for x in t.pulled(w)]


def rejoined(t: Trial, tensors: list[Tensor]) -> tuple[Tensor | None, ...]:
    found = iter(tensors)
    return tuple(None if x is None else next(found) for x in t.raw)


def dot(t: Trial, parts: object, v: Tensor) -> Tensor:
    """Σ ⟨parts, v⟩ over the batch, with v in the dtype of the scores."""
    pairs = zip(t.structure.tensors(parts), t.structure.tensors(t.unrows(v)), strict=True)
    return sum(((x * y).sum() for x, y in pairs), torch.zeros((), dtype=t.dtype))


def finite(t: Trial, what: str, total: Tensor, leaves: list[Tensor], steep: bool = False) -> None:
    """Gradients are finite. Steep ones, such as 1/q of a probability q, may be too large for float16 alone."""
    # A gradient summed over a batch may itself be too large for float16: scaled, it is not.
    small = 2.0**-12 * total if t.dtype == torch.float16 else total
    for g in torch.autograd.grad(small, leaves, retain_graph=True, allow_unused=True, materialize_grads=True):
        too_large = g.isinf() & (steep and t.dtype == torch.float16)
        t.wrong(what, "not finite", (~g.isfinite() & ~too_large).flatten()[None])


def point(t: Trial, what: str, got: Tensor, want: Tensor) -> None:
    """Expected parts: right where scores can be told apart, and in the hull, whatever happens."""
    truth = t.truth
    tolerance = truth.base + truth.delta + 4 * torch.finfo(t.dtype).eps
    unsure = (truth.vague | truth.lost).unsqueeze(-1)
    t.same(what, torch.where(unsure, 0.0, got), torch.where(unsure, 0.0, want), tolerance)
    t.wrong(what, "not finite, or outside the box", ~((got >= -0.01) & (got <= truth.often * 1.01 + 0.01)))
    vague = truth.vague & truth.some
    slack = truth.base + 16 * torch.finfo(t.dtype).eps * (1 + truth.most)
    if bool(vague.any()):
        outside = truth.outside_hull(got.nan_to_num(), slack)
        t.wrong(what, "outside the hull under masks", vague & outside, lambda b: f"{got[b].tolist()}")


def maxima(t: Trial) -> None:
    """max_marginals: the best score of a member that has the part."""
    truth = t.truth
    got = t.rows(structmax.max_marginals(t.scores, t.structure, backend=t.backend))
    has = truth.y > 0
    want, index = torch.where(has, truth.score.unsqueeze(-1), -torch.inf).max(-2)
    close = has & (truth.score.unsqueeze(-1) > -torch.inf)
    size = truth.size.gather(-1, index)
    # a member as good but for rounding may be larger
    near = close & (truth.score.unsqueeze(-1) >= (want - truth.base - truth.unit * size).unsqueeze(-2))
    size = torch.where(near, truth.size.unsqueeze(-1), 0.0).amax(-2)
    t.same("max_marginals", got, want, truth.base + truth.unit * size)


def draws(t: Trial) -> None:
    """sample: feasible members that are not next to impossible, with about the right means."""
    truth, n = t.truth, 48
    got = t.rows(structmax.sample(t.scores, t.structure, (n,), generator=t.generator, backend=t.backend), n)
    drawn(t, "sample", got, truth.log_p, truth.mean)


def drawn(t: Trial, what: str, got: Tensor, log_p: Tensor, mean: Tensor) -> None:
    truth, n = t.truth, len(got)
    t.wrong(what, "not zeros where infeasible", ~truth.some & ~truth.lost & got.ne(0).any(-1).any(0))
    index = truth.which(got).T
    t.wrong(what, "not a member", truth.some.unsqueeze(-1) & (index < 0))
    infeasible = truth.some.unsqueeze(-1) & ~torch.isfinite(truth.of(truth.lead, index.T).T)
    t.wrong(what, "an infeasible member", infeasible & (index >= 0))
    clear = truth.some & ~truth.vague
    chance = truth.of(log_p, index.T).T
    t.wrong(what, "an impossible member", clear.unsqueeze(-1) & (index >= 0) & (chance < -40))
    # Hoeffding: below 1e-11 for a 0/1 part; counts are larger in proportion
    off = (got.mean(0) - mean).abs() > truth.often * (26.0 / (2 * n)) ** 0.5 + truth.base + truth.delta.unsqueeze(-1)
    t.wrong(what, "means far off", clear.unsqueeze(-1) & off)


def distinct_draws(t: Trial) -> None:
    """sample_without_replacement: distinct feasible members with their log-probabilities, all of them if asked."""
    truth = t.truth
    M = truth.members.shape[-2]
    n = int(t.rng.choice([1, 3, M + 1]))
    out = structmax.sample_without_replacement(t.scores, t.structure, n, generator=t.generator, backend=t.backend)
    got, logs = t.rows(out.parts, n), t.numbers(out.log_probs, n)
    index = truth.which(got).T
    count = truth.feasible.sum(-1).clamp_max(n)
    there = torch.arange(n) < count.unsqueeze(-1)
    what = "sample_without_replacement"
    t.wrong(what, "not members", there & (index < 0))
    # A member whose sum overflows may come last, by a kernel that never forms the sum.
    over = (~truth.feasible & ~truth.forbidden).double().log()
    late = ~there & (index >= 0) & (truth.of(over, index.T).T == 0) & (logs <= -torch.finfo(t.dtype).max / 2)
    late = late | (~there & truth.lost.unsqueeze(-1))
    t.wrong(what, "not zeros past the last", ~there & ~late & got.ne(0).any(-1).T)
    t.wrong(what, "infeasible members", there & (index >= 0) & truth.of(truth.lead, index.T).T.isneginf())
    seen = torch.zeros(t.count, M).scatter_add(-1, index.clamp_min(0), (there & (index >= 0)).float())
    t.wrong(what, "not distinct", seen > 1)
    size = truth.of(truth.size, index.T).T.clamp_min(0.0) + truth.scale.unsqueeze(-1)
    want = torch.where(there & (index >= 0), truth.of(truth.log_p, index.T).T, -torch.inf)
    logs = torch.where(late & ~logs.isnan(), -torch.inf, logs)
    t.same(f"{what} log_probs", logs, want, truth.base + truth.unit * size)
