"""sparsemap, projections and losses, judged by the members."""

import torch
from torch import Tensor

import structmax
from fuzzing.measures import targets
from fuzzing.questions import dot, finite
from fuzzing.trial import Trial
from fuzzing.truth import Truth
from structmax.half import widened


def wide(t: Trial) -> Truth:
    """The truth for what is solved in float64, whatever the dtype of the scores."""
    if t.truth.kernel == torch.float64:
        return t.truth
    return Truth(t.structure, t.structure.tensors(widened(t.scores)), torch.float64)


def regular(t: Trial) -> Tensor:
    """1 for the parts that ½‖μ‖² counts: (P,)."""
    tensors = t.structure.tensors(t.scores)
    names = t.structure.regularised
    rank = tensors[0].dim() - t.structure.event_dim
    fields = t.structure.Parts._fields if t.structure.Parts else ("scores",)
    pieces = [
        torch.full((x.shape[rank:].numel(),), float(names is None or field in names), dtype=torch.float64)
        for field, x in zip(fields, tensors, strict=False)
    ]
    return torch.cat(pieces)


def sparse(t: Trial) -> None:
    """A distribution over few feasible members whose mean no member could improve."""
    truth = wide(t)
    temperature = float(t.rng.choice([0.5, 1.0, 1.0, 3.0]))
    given, leaves = t.leaves()
    if bool((truth.best / temperature < -torch.finfo(torch.float64).max).any()):
        # best scores that overflow when they are divided
        return
    result = structmax.sparsemap(given, t.structure, temperature=temperature, backend=t.backend)
    p = t.numbers(result.probabilities, len(result.probabilities))
    K = p.shape[-1]
    y = t.rows(result.parts, K)
    index = truth.which(y).T
    used = torch.arange(K) < result.counts.reshape(-1, 1)
    eps = torch.finfo(t.dtype).eps
    slack = t.truth.base + 16 * eps
    what = "sparsemap"
    t.wrong(what, "NaN", p.isnan())
    t.wrong(what, "negative probabilities", p < 0)
    t.wrong(
        what,
        "probabilities do not sum to 1",
        (p.sum(-1) - truth.some.double()).abs() > slack * 2,
        lambda b: f"{p[b].tolist()}",
    )
    t.wrong(what, "not members", used & (index < 0))
    t.wrong(what, "an infeasible member", used & (index >= 0) & truth.of(truth.lead, index.T).T.isneginf())
    t.wrong(what, "a structure where there is none", ~truth.some & (result.counts.reshape(-1) > 0))
    mean = t.rows(result.marginals)
    most = 1 + truth.most
    mixed = torch.einsum("bk,kbp->bp", p, y)
    t.wrong(what, "not the mean of its structures", (mean - mixed).abs() > (2 * slack * most).unsqueeze(-1))
    optimal(t, what, mean, temperature, regular(t), result.value)
    smooth = truth.some.all() and not truth.vague.any()
    total = dot(t, result.marginals, torch.randn(truth.theta.shape, dtype=torch.float64, generator=t.generator))
    finite(t, f"{what} gradient", total + result.value[result.value.isfinite()].sum(), leaves)
    if smooth and t.dtype == torch.float64 and t.base == "normal" and t.mask in ("none", "forbidden"):
        differences(t, temperature)


def optimal(t: Trial, what: str, mean: Tensor, temperature: float, counted: Tensor, value: Tensor | None) -> None:
    """The variational inequality: ⟨g, y⟩ ≤ ⟨g, μ⟩ for all feasible members, with g = θ − t μ_R."""
    truth = wide(t)
    usable = (truth.y * truth.feasible.unsqueeze(-1)).amax(-2) > 0
    theta = torch.where(usable, truth.theta, 0.0)
    # where all sums overflow, a projection that forms none of them may be a point
    t.wrong(what, "mass on what no feasible structure has", (mean != 0) & ~usable & ~truth.lost.unsqueeze(-1))
    g = theta - temperature * mean * counted
    each = torch.where(truth.feasible, torch.einsum("bmp,bp->bm", truth.y, g), -torch.inf)
    reached = (g * mean).sum(-1)
    # sparsemap's own tolerance is 1e-9 of the largest score; the answer is rounded to the dtype of the scores
    eps = torch.finfo(t.dtype).eps
    size = torch.maximum((g * mean).abs().sum(-1), truth.scale) + (theta.abs() * mean.gt(0)).sum(-1)
    slack = (1e-8 + 64 * eps + t.truth.base) * (1 + size) * (1 + temperature)
    bad = truth.some & (each.amax(-1) - reached > slack)
    t.wrong(what, "a member improves it", bad, lambda b: f"by {each[b].max() - reached[b]:.3g} > {slack[b]:.1g}")
    if value is not None:
        # the lowest score times 1 + eps would overflow
        held = torch.minimum(mean, truth.often)
        want = (theta * held).sum(-1) - temperature / 2 * (held**2 * counted).sum(-1)
        want = torch.where(truth.some, want, -torch.inf)
        t.same(f"{what} value", t.numbers(value), want, slack)


def differences(t: Trial, temperature: float) -> None:
    """The Jacobian against differences, where two steps agree that there is no kink."""
    v = torch.randn(t.truth.theta.shape, dtype=torch.float64, generator=t.generator)
    given, leaves = t.leaves()
    w = [torch.randn(x.shape, dtype=torch.float64, generator=t.generator) for x in leaves]

    def at(step: float) -> Tensor:
        found = iter(w)
        moved = tuple(None if x is None else x + step * next(found) for x in t.raw)
        out = structmax.sparsemap(t.parts_of(moved), t.structure, temperature=temperature, backend=t.backend)
        return (t.rows(out.marginals) * v).sum(-1)

    slopes = [(at(h) - at(-h)) / (2 * h) for h in (1e-4, 3e-5)]
    if bool(((slopes[0] - slopes[1]).abs() > 1e-5).any()):
        return
    here = structmax.sparsemap(given, t.structure, temperature=temperature, backend=t.backend)
    got = torch.autograd.grad(dot(t, here.marginals, v), leaves, allow_unused=True, materialize_grads=True)
    total = sum((torch.where(x != 0, x * y, 0.0).sum() for x, y in zip(got, w, strict=True)), torch.zeros(()))
    off = (total - slopes[1].sum()).abs()
    t.wrong(
        "sparsemap gradient",
        "is not its difference",
        (off > 1e-4 * (1 + slopes[1].abs().sum()))[None],
        lambda _: f"{total} is not {slopes[1].sum()}",
    )


def projected(t: Trial) -> None:
    """sparse_marginals: in the hull, no member improves it, and near to what sparsemap finds by another way."""
    truth = t.truth
    given, leaves = t.leaves()
    point = structmax.sparse_marginals(given, t.structure, backend=t.backend)
    got = t.rows(point)
    what, eps = "sparse_marginals", torch.finfo(t.dtype).eps
    t.wrong(what, "NaN", got.isnan())
    t.wrong(what, "not zeros where infeasible", ~truth.some & ~truth.lost & got.ne(0).any(-1))
    outside = truth.outside_hull(got.nan_to_num(), torch.full((t.count,), truth.base + 64 * eps))
    t.wrong(what, "outside the hull", outside, lambda b: f"{got[b].tolist()}")
    if truth.kernel == torch.float64:
        optimal(t, what, got.nan_to_num(), 1.0, regular(t), None)
    sure = (truth.some & ~truth.vague).unsqueeze(-1)
    want = t.rows(structmax.sparsemap(t.scores, t.structure, backend=t.backend).marginals)
    # the distance of two points is at most the root of twice the gap
    slack = (4e-9 * (1 + truth.scale)).sqrt() + truth.base + 64 * eps * (1 + truth.scale)
    t.same(f"{what} beside sparsemap", torch.where(sure, got, 0.0), torch.where(sure, want, 0.0), slack)
    total = dot(t, point, torch.randn(truth.theta.shape, dtype=torch.float64, generator=t.generator))
    finite(t, f"{what} gradient", total, leaves)


def losses(t: Trial) -> None:
    """Losses of a random target, by their definitions over the members."""
    truth = t.truth
    index, chosen, note = targets(t)
    target, counted = t.unrows(chosen), regular(t)
    y = truth.y.gather(-2, index.reshape(-1, 1, 1).expand(-1, 1, truth.y.shape[-1])).squeeze(-2)
    of_target = truth.of(truth.score, index)
    lead = truth.of(truth.lead, index)
    cost = ((0.5 - y) * counted).unsqueeze(-2) * (truth.y - y.unsqueeze(-2))
    cost = cost.sum(-1)
    margin = torch.where(truth.feasible, truth.lead + cost, -torch.inf)
    size = truth.scale + truth.of(truth.size, index).clamp_min(0.0)
    slack = truth.base * 4 + truth.unit * size
    cases = {
        "perceptron_loss": (structmax.perceptron_loss, -lead, ("argmax",)),
        "svm_loss": (structmax.svm_loss, margin.amax(-1) - lead, ("argmax",)),
        "crf_loss": (structmax.crf_loss, -truth.of(truth.log_p, index), ("log_partition",)),
        "softmax_margin_loss": (structmax.softmax_margin_loss, margin.logsumexp(-1) - lead, ("log_partition",)),
    }
    for name, (question, want, needs) in cases.items():
        if not t.answers(*needs):
            continue
        given, leaves = t.leaves()
        loss = question(given, t.structure, target, reduction="none", backend=t.backend)
        want = torch.where(of_target.isneginf(), torch.inf, want)
        name += note
        got = t.numbers(loss)
        empty = ~truth.real.any(-1)
        nothing = torch.inf if question is structmax.crf_loss else 0.0
        t.wrong(name, f"not {nothing} where there is no member", empty & (got != nothing))
        t.same(name, torch.where(empty, 0.0, got), torch.where(empty, 0.0, want), slack)
        finite(t, f"{name} gradient", loss[loss.isfinite()].sum(), leaves)
    if t.answers("argmax"):
        given, leaves = t.leaves()
        loss = structmax.sparsemap_loss(given, t.structure, target, reduction="none", backend=t.backend)
        got = t.numbers(loss)
        t.wrong(f"sparsemap_loss{note}", "NaN", got.isnan())
        t.wrong(
            f"sparsemap_loss{note}",
            "negative",
            truth.some & (got < -slack * 10 - 1e-8 * (1 + size)),
            lambda b: f"{got[b]}",
        )
        t.wrong(
            f"sparsemap_loss{note}",
            "not inf for what is forbidden",
            truth.real.any(-1) & of_target.isneginf() & (got < torch.inf),
        )
        bound = -lead + (y**2 * counted).sum(-1) / 2 + slack * 10 + 1e-8 * size + t.rounding(got)
        # what the dtype cannot hold becomes infinite; so do the terms of a difference
        held = torch.maximum(bound, size) < torch.finfo(t.dtype).max * 0.99
        above = truth.some & of_target.isfinite() & held & (got > bound)
        t.wrong(f"sparsemap_loss{note}", "above the perceptron's", above, lambda b: f"{got[b]}")
        finite(t, f"sparsemap_loss{note} gradient", loss[loss.isfinite()].sum(), leaves)
    for name, question, needs in (
        ("margin_sparsemap_loss", lambda *x, **y: structmax.margin_sparsemap_loss(*x, **y), ("argmax",)),
        (
            "fenchel_young",
            lambda *x, **y: structmax.fenchel_young(*x, structmax.omega.LocalL2(1.0), **y),
            ("smoothed",),
        ),
        (
            "perturbed_loss",
            lambda *x, **y: structmax.perturbed_loss(*x, samples=2, generator=t.generator, **y),
            ("argmax",),
        ),
    ):
        if t.answers(*needs):
            given, leaves = t.leaves()
            loss = question(given, t.structure, target, reduction="none", backend=t.backend)
            got = t.numbers(loss)
            low = slack * 10 + 1e-8 * (1 + size) + 4 * torch.finfo(t.dtype).eps * size
            t.wrong(name + note, "NaN or negative", truth.some & ~(got >= -low), lambda b, got=got: f"{got[b]}")
            finite(t, f"{name}{note} gradient", loss[loss.isfinite()].sum(), leaves)
    if t.answers("marginals"):
        given, leaves = t.leaves()
        risk = structmax.risk(given, t.structure, target, reduction="none", backend=t.backend)
        want = torch.einsum("bm,bm->b", truth.p, cost)
        sure = truth.some & ~truth.vague
        got = t.numbers(risk)
        t.wrong(f"risk{note}", "NaN", got.isnan())
        room = (truth.base + truth.delta + 16 * torch.finfo(t.dtype).eps) * (1 + y.sum(-1) + truth.most * y.shape[-1])
        t.same(f"risk{note}", torch.where(sure, got, 0.0), torch.where(sure, want, 0.0), room)
        finite(t, f"risk{note} gradient", risk.sum(), leaves)
