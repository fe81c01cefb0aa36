"""Estimators and distributions over a structure: right where they are exact, finite where they are chance."""

from typing import Any

import torch
from torch import Tensor

import structmax
from fuzzing.questions import finite
from fuzzing.trial import Trial
from fuzzing.truth import flat
from structmax.backends import Refusal

ESTIMATORS = (
    structmax.estimators.Enumerate,
    structmax.estimators.ScoreFunction,
    lambda: structmax.estimators.ScoreFunction(3, structmax.estimators.LeaveOneOut()),
    lambda: structmax.estimators.ScoreFunction(2, structmax.estimators.SelfCritical()),
    lambda: structmax.estimators.SumAndSample(3),
    lambda: structmax.estimators.SampleWithoutReplacement(3),
    lambda: structmax.estimators.SparseTopK(4),
    structmax.estimators.SparseSupport,
    structmax.estimators.StraightThrough,
    lambda: structmax.estimators.StraightThrough(structmax.omega.Entropy()),
    structmax.estimators.Spigot,
    structmax.estimators.SpigotCE,
    structmax.estimators.SpigotEG,
    structmax.estimators.BlackboxInterpolation,
    structmax.estimators.ImplicitMLE,
    lambda: structmax.estimators.Perturbed(3),
    structmax.estimators.PerturbAndMAP,
    structmax.estimators.Relaxation,
)


def estimators(t: Trial) -> None:
    """E[f(y)] of a linear f by one estimator: exact by enumeration, else of the right shape, with finite gradients."""
    truth = t.truth
    weight = torch.randn(truth.theta.shape[-1], dtype=torch.float64, generator=t.generator)
    estimator = ESTIMATORS[t.rng.integers(len(ESTIMATORS))]()
    what = f"expect {type(estimator).__name__}"
    given, leaves = t.leaves()

    def seen(parts: Any) -> Tensor:
        # what a person sees: `tensors` of the structure, with its lengths and masks, would take the whole batch
        found = (parts,) if isinstance(parts, Tensor) else tuple(part for part in parts if part is not None)
        return flat(found, t.structure).double()

    def f(parts: Any, index: Tensor) -> Tensor:
        return seen(parts) @ weight

    try:
        result = structmax.expect(f, given, t.structure, estimator, generator=t.generator, backend=t.backend)
    except Refusal:
        return
    if result.value.shape != t.batch:
        raise AssertionError(f"{what}: shape {tuple(result.value.shape)}, the batch is {t.batch}")
    got = result.value.reshape(t.count).detach().double()
    t.wrong(what, "not finite", ~got.isfinite())
    if result.value.requires_grad:
        finite(t, f"{what} gradient", result.value.sum(), leaves)
    if isinstance(estimator, structmax.estimators.Enumerate):
        sure = truth.some & ~truth.vague
        most, mean = (seen(t.unrows(x, torch.float64)).reshape(truth.mean.shape) for x in (truth.often, truth.mean))
        slack = (truth.base + truth.delta + 16 * torch.finfo(t.dtype).eps) * (1 + most @ weight.abs())
        want = mean @ weight
        t.same(what, torch.where(sure, got, 0.0), torch.where(sure, want, 0.0), slack)


def distribution(t: Trial) -> None:
    """mean, variance, mode, and the log-probability of a draw."""
    truth = t.truth
    if t.backend == "reference" or not t.answers("sample", "marginals"):
        return
    p = structmax.Distribution(t.scores, t.structure, validate_args=False)
    mean, variance = t.rows(p.mean), t.rows(p.variance)
    sure = (truth.some & ~truth.vague).unsqueeze(-1)
    slack = (truth.base + truth.delta + 16 * torch.finfo(t.dtype).eps) * (1 + truth.most) ** 2
    square = torch.einsum("bm,bmp->bp", truth.p, truth.y**2) - truth.mean**2
    t.same("Distribution mean", torch.where(sure, mean, 0.0), torch.where(sure, truth.mean, 0.0), slack)
    t.same("Distribution variance", torch.where(sure, variance, 0.0), torch.where(sure, square, 0.0), slack)
    drawn = p.sample((2,), generator=t.generator)
    index = truth.which(t.rows(drawn, 2))
    logs = t.numbers(p.log_prob(drawn), 2)
    want = truth.of(truth.log_p, index).T
    size = truth.of(truth.size, index).T.clamp_min(0.0) + truth.scale.unsqueeze(-1)
    t.same("Distribution log_prob", logs, want, truth.base + truth.unit * size)
