"""Relaxations that are no question to a structure: sinkhorn, soft-DTW, soft sorting, and graphs of one factor."""

import itertools

import numpy as np
import test_factors
import torch
from torch import Tensor

import structmax
from fuzzing import scores
from fuzzing.structures import lengths
from fuzzing.trial import Report
from fuzzing.truth import Truth
from structmax.testing.projection import nearest


class Relaxations(Report):
    """Random scores and series of one batch."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        super().__init__(name, rng)
        self.base, self.mask = rng.choice(scores.BASES), rng.choice(scores.MASKS)
        self.n, self.m = (int(size) for size in rng.integers(1, 5, 2))
        self.count = int(np.prod(self.batch))
        self.eps = torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).eps

    def draw(self, *event: int, base: str | None = None, mask: str = "none") -> Tensor:
        x = scores.values(self.rng, (*self.batch, *event), base or self.base, self.dtype)
        return scores.masked(self.rng, x, mask, self.dtype, len(self.batch)).to(self.dtype)

    def finite(self, what: str, total: Tensor, *leaves: Tensor) -> None:
        if total.requires_grad:
            for g in torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True):
                self.wrong(what, "not finite", ~g.isfinite().flatten()[None])

    def __str__(self) -> str:
        return f"{self.batch} n={self.n} m={self.m} {self.dtype} {self.base}/{self.mask} backend={self.backend}"


def sinkhorn(r: Relaxations) -> None:
    """Sums of rows and columns, log μ = θ/τ + a ⊕ b inside, and zeros where no matching exists."""
    # Temperatures far below the scores are for argmax: thousands of steps.
    base = "normal" if r.base in ("large", "offset") else r.base
    x = r.draw(r.n, r.m, base=base, mask=r.mask).requires_grad_()
    partial = bool(r.rng.random() < 0.3)
    temperature = float(r.rng.choice([0.5, 1.0, 3.0]))
    matching = structmax.Matching(partial=partial)
    out = structmax.sinkhorn(x, matching, temperature=temperature, backend=r.backend)
    mu = out.marginals.reshape(r.count, r.n, r.m).detach().double()
    feasible = Truth(matching, (x.detach(),)).some
    r.wrong("sinkhorn", "NaN", mu.isnan())
    r.wrong("sinkhorn", "not zeros where infeasible", ~feasible & mu.ne(0).flatten(1).any(-1))
    rows, columns = mu.sum(-1), mu.sum(-2)
    slack = 1e-6 + 64 * torch.finfo(r.dtype).eps
    wrong = (rows > 1 + slack).any(-1) | (columns > 1 + slack).any(-1)
    if not partial:
        smaller = rows if r.n <= r.m else columns
        wrong = wrong | ((smaller - 1).abs() > slack).any(-1)
    sure = feasible & out.converged.reshape(r.count)
    r.wrong("sinkhorn", "sums", sure & wrong, lambda b: f"{x.reshape(r.count, r.n, r.m)[b].tolist()}: {mu[b].tolist()}")
    if r.mask in ("none", "forbidden"):
        r.wrong("sinkhorn", "not converged", feasible & ~sure)
    r.finite("sinkhorn gradient", out.marginals.square().sum() + out.value[out.value.isfinite()].sum(), x)


def warping(r: Relaxations) -> None:
    """soft_dtw: −γ log Σ exp(−cost/γ) over the alignments, with anything in the padding of the series."""
    base = "normal" if r.base in ("large", "offset") else r.base
    x, y = r.draw(r.n, 2, base=base), r.draw(r.m, 2, base=base)
    temperature = float(r.rng.choice([0.1, 1.0, 5.0]))
    given = [lengths(r.rng, r.batch, r.n, 1), lengths(r.rng, r.batch, r.m, 1)]
    leaves = []
    for series, size in ((x, given[0]), (y, given[1])):
        keep = torch.ones(()) if size is None else torch.arange(series.shape[-2]) < size.unsqueeze(-1)
        padded = torch.where(keep.unsqueeze(-1).bool() if keep.dim() else keep.bool(), series, torch.nan)
        leaves.append(padded.detach().requires_grad_())
    got = structmax.soft_dtw(*leaves, temperature, x_lengths=given[0], y_lengths=given[1], backend=r.backend)
    a, b = (s.double() for s in (x, y))
    cost = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
    truth = Truth(structmax.MonotoneAlignment(*given), (-cost / temperature,))
    want = -temperature * truth.log_z
    # squared distances are computed in the dtype of the kernel
    slack = 1e-9 + 256 * r.eps * (1 + temperature * truth.scale) * (1 + cost.flatten(-2).amax(-1).reshape(r.count))
    if r.dtype in (torch.float64, torch.float32):
        r.same("soft_dtw", got.reshape(r.count).detach().double(), want, slack)
    r.wrong("soft_dtw", "not finite", ~got.reshape(r.count).isfinite())
    r.finite("soft_dtw gradient", got.sum(), *leaves)
    path = structmax.soft_dtw_alignment(
        *(s.detach() for s in leaves), temperature, x_lengths=given[0], y_lengths=given[1]
    )
    p = path.reshape(r.count, r.n, r.m).double()
    r.wrong("soft_dtw_alignment", "not in the unit box", ~((p >= -1e-2) & (p <= 1.01)))


def sorting(r: Relaxations) -> None:
    """soft_rank and soft_sort with L2: points of the permutahedron that no permutation improves."""
    values = r.draw(r.n).requires_grad_()
    temperature = float(r.rng.choice([0.1, 1.0, 10.0]))
    descending = bool(r.rng.random() < 0.5)
    flip = -1.0 if descending else 1.0
    rank = structmax.soft_rank(
        values, structmax.omega.SquaredNorm(temperature), descending=descending, backend=r.backend
    )
    order = structmax.soft_sort(
        values, structmax.omega.SquaredNorm(temperature), descending=descending, backend=r.backend
    )
    x = values.detach().reshape(r.count, r.n).double()
    ladder = torch.arange(1, r.n + 1, dtype=torch.float64).expand(r.count, -1)
    permutahedron(r, "soft_rank", rank, flip * x / temperature, ladder)
    permutahedron(r, "soft_sort", order, flip * ladder / temperature, x)
    r.finite("soft_rank gradient", rank.sum() + (order * order.detach()).sum(), values)


def permutahedron(r: Relaxations, what: str, answer: Tensor, z: Tensor, w: Tensor) -> None:
    """The point nearest to z in the hull of all permutations of w: majorised by w, and none improves on it."""
    if answer.dtype != r.dtype:
        raise AssertionError(f"{what}: dtype {answer.dtype} for {r.dtype}")
    y = answer.detach().reshape(r.count, r.n).double()
    size = 1 + w.abs().amax(-1) + y.abs().amax(-1).nan_to_num()
    # means of blocks are as exact as the scores are large
    slack = (256 * r.eps + 4 * torch.finfo(r.dtype).eps) * r.n * size + 64 * r.eps * z.abs().amax(-1)
    r.wrong(what, "not finite", ~y.isfinite())
    most = w.sort(-1, descending=True).values.cumsum(-1)
    sums = y.sort(-1, descending=True).values.cumsum(-1)
    r.wrong(
        what,
        "outside the permutahedron",
        (sums > most + slack.unsqueeze(-1)).any(-1) | ((sums - most)[:, -1].abs() > slack),
    )
    g = z - y
    permutations = torch.tensor(list(itertools.permutations(range(r.n))))
    best = (w[:, permutations] * g.unsqueeze(1)).sum(-1).amax(-1)
    short = best - (g * y).sum(-1) > slack * (1 + g.abs().sum(-1)) * 4
    r.wrong(what, "a permutation improves it", short, lambda b: f"{z[b].tolist()}, {w[b].tolist()}: {y[b].tolist()}")


def factors(r: Relaxations) -> None:
    """sparsemap of a graph of one factor of logic: the nearest point of its listed corners."""
    if r.dtype != torch.float64 or r.base == "offset":
        return
    name = str(r.rng.choice(list(test_factors.LOGIC)))
    negated = test_factors.NEGATIONS[r.rng.integers(len(test_factors.NEGATIONS))]
    x = r.draw(test_factors.N).requires_grad_()
    out = structmax.sparsemap({"x": x}, test_factors.graph_of(name, negated), tol=1e-10)
    got = out.marginals["x"]
    corners = test_factors.members(name, negated)
    rows = x.detach().reshape(r.count, test_factors.N)
    want = [nearest(corners, row) for row in rows]
    wide = torch.stack(want) if want else torch.zeros_like(rows)
    slack = 1e-7 * (1 + rows.abs().amax(-1))
    r.wrong(f"FactorGraph {name}", "not converged", ~out.converged.reshape(r.count))
    r.same(f"FactorGraph {name}", got.detach().reshape(rows.shape), wide, slack)
    r.finite(f"FactorGraph {name} gradient", got.square().sum(), x)
