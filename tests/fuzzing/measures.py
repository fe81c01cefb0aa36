"""Entropies, log-probabilities and smoothed recursions, judged by the members."""

import dataclasses

import torch
from torch import Tensor

import structmax
from fuzzing.questions import drawn, finite
from fuzzing.trial import Trial
from fuzzing.truth import Truth
from structmax.half import widened


def _reach(truth: Truth) -> Tensor:
    """How large scores of parts are that an expectation multiplies with a marginal near 0: (B,)."""
    usable = (truth.y * truth.feasible.unsqueeze(-1)).amax(-2) > 0
    return torch.where(usable, truth.theta.abs().nan_to_num(), 0.0).clamp_max(1e4).sum(-1)


def entropies(t: Trial) -> None:
    """entropy, cross_entropy and kl_divergence, finite gradients; with a second distribution of its own masks."""
    truth, keep = t.truth, ~(t.truth.vague | t.truth.lost)
    given, leaves = t.leaves()
    entropy = structmax.entropy(given, t.structure, backend=t.backend)
    own = torch.where(truth.p > 0, truth.p * truth.log_p, 0.0).sum(-1)
    slack = 4 * (truth.base + truth.delta) * (1 + truth.y.shape[1]) ** 0.5 + truth.unit * _reach(truth)
    got = t.numbers(entropy)
    most = truth.log_count
    t.wrong(
        "entropy",
        "outside [0, log_count]",
        ~((got >= 0) & (got <= most + 0.01 + t.rounding(most))),
        lambda b: f"got {got[b]}, log_count {most[b]}",
    )
    t.same("entropy", torch.where(keep, got, 0.0), torch.where(keep, -own, 0.0), slack)
    finite(t, "entropy gradient", entropy.sum(), leaves)
    mask = str(t.rng.choice(["none", "none", "forbidden", "1e4"]))
    other = t.draw(tuple(None if x is None else tuple(x.shape) for x in t.raw), "normal", mask)
    q = Truth(t.structure, t.structure.tensors(widened(t.parts_of(other))))
    lost = torch.where(q.feasible, 0.0, truth.p).sum(-1)
    # Between is what a kernel may or may not see.
    clear = keep & ~q.vague & truth.some & ((lost == 0) | (lost > 1e-6))
    log_q = torch.where(q.feasible, q.log_p, 0.0)
    cross = torch.where(lost > 0, torch.inf, -(truth.p * log_q).sum(-1))
    slack = slack + q.base + q.delta + (truth.base + truth.delta) * _reach(q) + q.unit / 4 * q.scale * truth.scale
    wide = t.parts_of(other)
    for name, question, want in (
        ("cross_entropy", structmax.cross_entropy, cross),
        ("kl_divergence", structmax.kl_divergence, cross + own),
    ):
        given, leaves = t.leaves()
        answer = question(given, wide, t.structure, backend=t.backend)
        got = t.numbers(answer)
        t.wrong(name, "NaN or negative", ~(got >= 0))
        t.same(name, torch.where(clear, got, 0.0), torch.where(clear, want, 0.0), slack)
        finite(t, f"{name} gradient", answer[answer.isfinite()].sum(), leaves)


def log_probabilities(t: Trial) -> None:
    """log_prob of random members, with anything in the padding; log_count."""
    truth = t.truth
    count = structmax.log_count(t.scores, t.structure, backend=t.backend).reshape(t.count)
    want = torch.where(truth.forbidden.all(-1), -torch.inf, truth.log_count)
    t.wrong(
        "log_count",
        "wrong",
        ~((count == want) | ((count - want).abs() <= 1e-9)),
        lambda b: f"{count[b]}, want {want[b]}",
    )
    index, chosen, note = targets(t)
    given, leaves = t.leaves()
    answer = structmax.log_prob(given, t.structure, t.unrows(chosen), backend=t.backend)
    want = truth.of(truth.log_p, index)
    size = truth.of(truth.size, index).clamp_min(0.0) + truth.scale
    t.same(f"log_prob{note}", t.numbers(answer), want, truth.base + truth.unit * size)
    finite(t, f"log_prob{note} gradient", answer[answer.isfinite()].sum(), leaves)


def targets(t: Trial) -> tuple[Tensor, Tensor, str]:
    """A random member of each instance and its parts, at times with ones in the padding, and a note that says so."""
    truth = t.truth
    counts = truth.real.sum(-1)
    index = (torch.rand(t.count, generator=t.generator) * counts).long().clamp_max(truth.members.shape[-2] - 1)
    chosen = truth.y.gather(-2, index.reshape(-1, 1, 1).expand(-1, 1, truth.y.shape[-1])).squeeze(-2)
    if t.rng.random() < 0.3:
        junk = torch.randint(2, chosen.shape, generator=t.generator).double()
        return index, torch.where(padding(t), junk, chosen), " (padded target)"
    return index, chosen, ""


def padding(t: Trial) -> Tensor:
    """The parts that an instance lacks because it is shorter than the scores: (B, P)."""
    sizes = {field.name for field in dataclasses.fields(t.structure)} & {"lengths", "rows", "columns", "keep"}
    full = dataclasses.replace(t.structure, **dict.fromkeys(sizes))
    return Truth(full, t.structure.tensors(t.scores)).used & ~t.truth.used


def partial(t: Trial) -> None:
    """log_prob with `known`: the members that agree with the target where it is known."""
    truth = t.truth
    if bool((truth.y > 1).any()):
        return
    _, chosen, note = targets(t)
    share = float(t.rng.choice([0.0, 0.1, 0.3, 0.6, 1.0]))
    known = torch.rand(chosen.shape, generator=t.generator) < share
    # A shared or broadcast tensor has its own mask; parts are those of the answer, one for each instance.
    agree = ((truth.members == chosen.unsqueeze(-2)) | ~(known & truth.used).unsqueeze(-2)).all(-1) & truth.feasible
    mask = t.unrows(known.double())
    mask = mask > 0 if isinstance(mask, Tensor) else type(mask)(*(None if m is None else m > 0 for m in mask))
    given, leaves = t.leaves()
    answer = structmax.log_prob(given, t.structure, t.unrows(chosen), known=mask, backend=t.backend)
    rest = torch.where(agree, truth.log_p, -torch.inf)
    want = rest.logsumexp(-1)
    top = torch.where(agree, truth.lead, -torch.inf).amax(-1, keepdim=True)
    size = (
        torch.where(agree & (truth.lead > top - 60 - truth.unit * truth.size), truth.size, 0.0).amax(-1) + truth.scale
    )
    t.same(f"log_prob(known=){note}", t.numbers(answer), want, truth.base + truth.unit * size)
    finite(t, f"log_prob(known=){note} gradient", answer[answer.isfinite()].sum(), leaves)


def smooth(t: Trial) -> None:
    """smoothed, its gradient, walks and their probabilities: a distribution, its mean, and above the maximum."""
    truth = t.truth
    M = truth.members.shape[-2]
    temperature = float(t.rng.choice([0.3, 1.0, 4.0]))
    omega = [
        structmax.omega.Entropy(temperature),
        structmax.omega.LocalL2(temperature),
        structmax.omega.LocalTsallis(1.5, temperature),
        structmax.omega.LocalTsallis(1.3, temperature),
    ][t.rng.integers(4)]
    if bool((truth.best / temperature < -torch.finfo(truth.kernel).max).any()):
        # best scores that overflow when they are divided
        return
    name = type(omega).__name__
    given, leaves = t.leaves()
    value = structmax.smoothed(given, t.structure, omega, backend=t.backend)
    got = t.numbers(value)
    delta = truth.base * (1 + temperature) + truth.delta
    t.wrong(
        f"smoothed {name}",
        "NaN or infinite",
        truth.some & ~got.isfinite() & (truth.best.abs() < torch.finfo(t.dtype).max / 4),
    )
    t.wrong(f"smoothed {name}", "not −inf where infeasible", ~truth.some & (got > -torch.inf))
    slack = delta + t.rounding(truth.best)
    # what the dtype cannot hold becomes infinite
    held = truth.some & (truth.best.abs() + slack < torch.finfo(t.dtype).max * 0.99)
    t.wrong(
        f"smoothed {name}",
        "below the maximum",
        held & (got < truth.best - slack),
        lambda b: f"{got[b]} < {truth.best[b]}",
    )
    # γ log M bounds every Ω of the family, as a walk with entropy log M does
    high = truth.best + temperature * max(M, 1) ** 0.5 * 4
    t.wrong(
        f"smoothed {name}",
        "far above the maximum",
        truth.some & (got > high + slack),
        lambda b: f"{got[b]} > {high[b]}",
    )
    mu = structmax.smoothed_marginals(given, t.structure, omega, backend=t.backend)
    rows = t.rows(mu)
    first = torch.autograd.grad(value[value.isfinite()].sum(), leaves, allow_unused=True, materialize_grads=True)
    alive = torch.where(value.reshape(-1, 1).isfinite(), rows, 0.0)
    eps = torch.finfo(t.dtype).eps
    for g, w in zip(first, t.pulled(alive), strict=True):
        bad = ~((g.double() - w).abs() <= 8 * eps * t.count * (1 + w.abs()) + 10 * truth.base)
        t.wrong(f"smoothed {name} gradient", "is not smoothed_marginals", bad.flatten()[None])
    finite(
        t,
        f"smoothed_marginals {name} gradient",
        sum((x.sum() for x in t.structure.tensors(mu)), torch.zeros(())),
        leaves,
    )
    each = t.unrows(truth.y.movedim(1, 0))
    given, leaves = t.leaves()
    logs = structmax.smoothed_log_prob(given, t.structure, each, omega, backend=t.backend)
    log_q = t.numbers(logs, M).masked_fill(~truth.real, -torch.inf)
    finite(t, f"smoothed_log_prob {name} gradient", logs[logs.isfinite()].sum(), leaves, steep=True)
    q = log_q.exp()
    t.wrong(f"smoothed_log_prob {name}", "NaN or above 0", log_q.isnan() | (log_q > 1e-2))
    t.wrong(f"smoothed_log_prob {name}", "an infeasible member", ~truth.feasible & (q > 0))
    if name == "Entropy":
        log_want = truth.lead / temperature - (truth.lead / temperature).logsumexp(-1, keepdim=True)
        want = torch.where(truth.feasible & ~truth.vague.unsqueeze(-1), log_want.exp(), 0.0)
        slack = (truth.base + truth.delta / temperature + 64 * eps).unsqueeze(-1)
        t.wrong(f"smoothed_log_prob {name}", "wrong", ~truth.vague.unsqueeze(-1) & ((q - want).abs() > slack))
    sure = ~truth.vague
    # logarithms of probabilities are rounded to the dtype: relative errors of |log q| eps
    loose = truth.base * 10 + 64 * eps + truth.delta / temperature
    t.wrong(
        f"smoothed_log_prob {name}",
        "do not sum to 1",
        sure & ((q.sum(-1) - truth.some.double()).abs() > loose),
        lambda b: f"{q[b].sum()}",
    )
    off = (truth.average(q) - rows).abs() > (loose * (1 + truth.most)).unsqueeze(-1)
    t.wrong(f"smoothed_marginals {name}", "are not the mean of the walk", sure.unsqueeze(-1) & off)
    if t.answers("smoothed_sample"):
        n = 48
        got = structmax.smoothed_sample(t.scores, t.structure, omega, (n,), generator=t.generator, backend=t.backend)
        drawn(t, f"smoothed_sample {name}", t.rows(got, n), log_q, truth.average(q))
