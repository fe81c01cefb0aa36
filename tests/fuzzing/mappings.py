"""Mappings of a dimension of scores to the simplex and its relatives, and their losses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import structmax
from fuzzing import scores, simplex
from fuzzing.trial import Report


class Rows(Report):
    """Scores with a dimension that is mapped, a mask or lengths, and rows of what is used of them in float64."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        super().__init__(name, rng)
        n = int(rng.integers(1, 7))
        self.dim = int(rng.integers(-1, len(self.batch) + 1))
        shape = list(self.batch)
        shape.insert(len(shape) if self.dim == -1 else self.dim, n)
        self.base, self.mask = rng.choice(scores.BASES), rng.choice(scores.MASKS)
        rows = scores.masked(
            rng, scores.values(rng, (*self.batch, n), self.base, self.dtype), self.mask, self.dtype, len(self.batch)
        )
        x = rows.to(self.dtype)
        self.options: dict[str, Any] = {}
        keep = torch.ones(x.shape, dtype=torch.bool)
        if rng.random() < 0.3:
            lengths = torch.as_tensor(rng.integers(0, n + 1, self.batch), dtype=torch.int64)
            keep = torch.arange(n) < lengths.unsqueeze(-1)
            self.options = {"lengths": lengths}
        elif rng.random() < 0.3:
            keep = torch.as_tensor(rng.random((*self.batch, n)) < 0.7)
            self.options = {"mask": keep.movedim(-1, self.dim)}
        if self.options and rng.random() < 0.5:
            x = scores.junk(rng, x, keep)
        self.x = scores.odd(rng, x.movedim(-1, self.dim))
        self.used = torch.where(keep, x, -torch.inf).reshape(-1, n).double()
        self.count, self.n = len(self.used), n
        # A kernel works at the distance of scores to the best of their row, which subtraction gives exactly.
        self.eps = torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).eps

    def rows(self, answer: Tensor) -> Tensor:
        """Answers shaped as the scores, as rows in float64."""
        if answer.dtype != self.dtype or answer.shape != self.x.shape:
            raise AssertionError(f"{answer.dtype} {tuple(answer.shape)} for {self.dtype} {tuple(self.x.shape)}")
        return answer.movedim(self.dim, -1).reshape(self.count, self.n).detach().double()

    def __str__(self) -> str:
        given = ", ".join(f"{key}" for key in self.options)
        return (
            f"{tuple(self.x.shape)} dim={self.dim} {given} {self.dtype} {self.base}/{self.mask} backend={self.backend}"
        )


def _alphas(r: Rows) -> float:
    return float(r.rng.choice([0.5, 1.0, 1.3, 1.5, 2.0, 2.5]))


def _wide(want: np.ndarray) -> Tensor:
    return torch.as_tensor(np.asarray(want, dtype=np.float64))


def mapped(
    r: Rows, what: str, call: Callable[[Tensor], Tensor], want: Tensor | None, slack: Tensor, total: Any = 1.0
) -> None:
    """A mapping has the values `want`, zeros for rows that have nothing, and a gradient that ignores shifts."""
    x = r.x.detach().requires_grad_()
    answer = call(x)
    got = r.rows(answer)
    empty = r.used.isneginf().all(-1)
    r.wrong(what, "NaN", got.isnan(), lambda b: f"{r.used[b].tolist()}")
    r.wrong(what, "not zeros without scores", empty & got.ne(0).any(-1))
    r.wrong(what, "mass on what is forbidden", r.used.isneginf() & (got > 0) & ~empty.unsqueeze(-1))
    if want is not None:
        full = torch.where(empty.unsqueeze(-1), 0.0, want)
        good = (got - full).abs() <= slack.unsqueeze(-1) + r.rounding(full) + 4 * torch.finfo(r.dtype).eps
        r.wrong(
            what,
            "wrong",
            ~good & ~got.isnan(),
            lambda b: f"{r.used[b].tolist()}: {got[b].tolist()}, want {full[b].tolist()}",
        )
    elif total is not None:
        sums = torch.where(empty, 0.0, torch.as_tensor(total, dtype=torch.float64))
        off = (got.sum(-1) - sums).abs() > slack + 8 * torch.finfo(r.dtype).eps * (1 + sums)
        r.wrong(
            what,
            "does not sum to its total",
            off & ~got.isnan().any(-1),
            lambda b: f"{r.used[b].tolist()}: {got[b].tolist()}",
        )
    v = torch.randn(r.x.shape, dtype=torch.float64, generator=r.generator).to(r.dtype)
    (gradient,) = torch.autograd.grad((answer * v).sum(), x)
    g = r.rows(gradient)
    r.wrong(f"{what} gradient", "not finite", ~g.isfinite(), lambda b: f"{r.used[b].tolist()}")
    if total is not None:
        shifted = g.sum(-1).abs() > (slack + 16 * torch.finfo(r.dtype).eps) * (1 + g.abs().sum(-1)) * 4
        r.wrong(
            f"{what} gradient",
            "is not 0 along shifts",
            shifted & g.isfinite().all(-1),
            lambda b: f"{r.used[b].tolist()}: {g[b].tolist()}",
        )


def softmaxes(r: Rows) -> None:
    """softmax, sparsemax, entmax15, entmax, topk_sparsemax, normmax, smoothed_max."""
    given = {**r.options, "backend": r.backend}
    alpha = _alphas(r)
    x = r.used.numpy()
    for name, a, call in (
        ("softmax", 1.0, lambda z: structmax.softmax(z, r.dim, **given)),
        ("sparsemax", 2.0, lambda z: structmax.sparsemax(z, r.dim, **given)),
        ("entmax15", 1.5, lambda z: structmax.entmax15(z, r.dim, **given)),
        (f"entmax {alpha}", alpha, lambda z: structmax.entmax(z, alpha, r.dim, **given)),
    ):
        # p = (1 + (α − 1)(x − τ))^(1/(α − 1)) is steeper than its threshold is exact for α > 2
        slack = torch.full((r.count,), (64 * r.eps) ** min(1.0, 1 / max(a - 1, 1e-9)))
        mapped(r, name, call, _wide(simplex.entmax(x, a)), slack)
    slack = torch.full((r.count,), 64 * r.eps)
    k = int(r.rng.integers(1, r.n + 2))
    if r.count:
        kth = np.sort(x, -1)[:, ::-1][:, min(k, r.n) - 1 : min(k, r.n)]
        chosen = np.where(x >= kth, x, -np.inf)
        unique = (chosen > -np.inf).sum(-1) <= k
        got = r.rows(structmax.topk_sparsemax(r.x, k, r.dim, **given))
        want = torch.as_tensor(np.asarray(simplex.entmax(chosen, 2.0), dtype=np.float64))
        bad = torch.as_tensor(unique).unsqueeze(-1) & ~((got - want).abs() <= 64 * r.eps + 4 * torch.finfo(r.dtype).eps)
        r.wrong("topk_sparsemax", "wrong", bad, lambda b: f"k={k} {x[b].tolist()}: {got[b].tolist()}")
    order = float(r.rng.choice([1.5, 2.0, 3.0, 5.0]))
    # the weights are powers 1/(α − 1) of what the threshold leaves
    loose = torch.full((r.count,), 4 * (64 * r.eps) ** min(1.0, 1 / (order - 1)))
    want = _wide(simplex.normmax(x, order))
    backend = {**r.options}
    mapped(r, f"normmax {order}", lambda z: structmax.normmax(z, order, r.dim, **backend), want, loose)
    values(r, alpha)


def values(r: Rows, alpha: float) -> None:
    """smoothed_max, entmax_loss and normmax_loss of a class that is allowed: ⟨p, x⟩ − Ω(p), less the target's score."""
    x = r.used
    best = x.amax(-1) if r.n else x.sum(-1)
    empty = best.isneginf()
    led = (x - torch.where(empty, 0.0, best).unsqueeze(-1)).numpy().astype(np.longdouble)
    p = simplex.entmax(led, alpha)
    ahead = _wide(np.where(p > 0, p * np.where(np.isneginf(led), 0, led), 0).sum(-1) - simplex.omega(p, alpha))
    got = structmax.smoothed_max(r.x, alpha, r.dim, **r.options, backend=r.backend).reshape(r.count).double()
    want = torch.where(empty, -torch.inf, best + ahead)
    slack = torch.full((r.count,), 64 * r.eps) + 4 * r.eps * best.abs().nan_to_num(posinf=0.0, neginf=0.0)
    r.same(f"smoothed_max {alpha}", got, want, slack)
    if r.options or not r.count:
        return
    target = torch.as_tensor(r.rng.integers(0, r.n, r.batch))
    lead = torch.as_tensor(led.astype(np.float64)).gather(-1, target.reshape(-1, 1)).squeeze(-1)
    z = r.x.detach().requires_grad_()
    loss = structmax.entmax_loss(z, target, alpha, r.dim, reduction="none", backend=r.backend)
    got = loss.reshape(r.count).detach().double()
    want = torch.where(lead.isneginf(), torch.inf, ahead - lead)
    slack = slack + 8 * r.eps * lead.abs().nan_to_num(posinf=0.0, neginf=0.0)
    good = ~empty
    r.wrong("entmax_loss", "NaN", got.isnan())
    r.same(f"entmax_loss {alpha}", torch.where(good, got, 0.0), torch.where(good, want, 0.0), slack)
    (g,) = torch.autograd.grad(loss[loss.isfinite()].sum(), z)
    r.wrong("entmax_loss gradient", "not finite", ~r.rows(g).isfinite())
    loss = structmax.normmax_loss(z, target, 2.0, r.dim, reduction="none")
    got = loss.reshape(r.count).detach().double()
    r.wrong(
        "normmax_loss",
        "NaN or negative",
        ~(got >= -slack - 1e-3 * (r.dtype != torch.float64)) & good,
        lambda b: f"{x[b].tolist()}: {got[b]}",
    )
    r.wrong("normmax_loss", "NaN without scores", got.isnan() & empty)


def bounded(r: Rows) -> None:
    """budget, csparsemax and csoftmax, with bounds that can be met."""
    usable = (~r.used.isneginf()).sum(-1)
    if not r.count or int(usable.min()) == 0:
        return
    x = r.used.numpy()
    sizes = (r.used - r.used.amax(-1, keepdim=True)).abs().nan_to_num(posinf=0.0, neginf=0.0)
    most = int(usable.min())
    sum_to = float(r.rng.choice([most, r.rng.random() * most, min(most, 2), min(most, 1)]))
    upper = max(1.0 / most, float(r.rng.choice([0.6, 1.0, 0.35])))
    lower = float(r.rng.choice([0.0, 0.0, 0.05])) * (most == r.n)
    ones = np.ones(r.count)
    allowed = ~np.isneginf(x)
    cases = (
        ("budget", lambda z: structmax.budget(z, sum_to, r.dim, **r.options), 0.0, 1.0, sum_to, False),
        ("csparsemax", lambda z: structmax.csparsemax(z, lower, upper, r.dim, **r.options), lower, upper, 1.0, False),
        ("csoftmax", lambda z: structmax.csoftmax(z, lower, upper, r.dim, **r.options), lower, upper, 1.0, True),
    )
    for name, call, low, high, total, soft in cases:
        want = simplex.capped(x, np.where(allowed, low, 0.0), np.where(allowed, high, 0.0), total * ones, soft)
        # thresholds lie among the scores that stay free: those with a share strictly between the bounds
        inside = _wide(want)
        free = (inside > low) & (inside < high)
        scale = torch.where(free, sizes, 0.0).amax(-1)
        slack = 64 * r.eps * (1 + scale)
        # so large a mask on all that is free that no precision tells the bounds apart
        vague = (slack > 0.05) | ((inside.sum(-1) - total).abs() > 1e-12)
        mapped(r, name, call, None if bool(vague.any()) else inside, slack.clamp_max(1.0), total)


def fused(r: Rows) -> None:
    """fusedmax and oscarmax: points of the simplex."""
    lam = float(r.rng.choice([0.0, 0.1, 1.0]))
    slack = torch.full((r.count,), 256 * r.eps)
    for name, question in (("fusedmax", structmax.fusedmax), ("oscarmax", structmax.oscarmax)):
        call = lambda z, question=question: question(z, lam, r.dim, **r.options, backend=r.backend)  # noqa: E731
        mapped(r, name, call, _wide(simplex.entmax(r.used.numpy(), 2.0)) if lam == 0 else None, slack)
