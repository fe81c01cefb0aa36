"""Laws of what is measured at a target: padding counts nothing, and half precision is rounded once."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from structmax.half import cast
from structmax.losses import (
    crf_loss,
    fenchel_young,
    margin_sparsemap_loss,
    perceptron_loss,
    perturbed_loss,
    risk,
    softmax_margin_loss,
    sparsemap_loss,
    svm_loss,
)
from structmax.omega import Entropy
from structmax.questions.entropy import cross_entropy, entropy, kl_divergence, log_prob
from structmax.questions.smoothed import smoothed_log_prob
from structmax.testing.case import NEAREST, Case, same

Tensors = tuple[Tensor, ...]

_SUMS = "log_partition", "marginals"
# Each loss of a target, and the functions it needs; those that take a cost as well.
PLAIN: dict[Callable[..., Tensor], tuple[str, ...]] = {
    crf_loss: _SUMS,
    perceptron_loss: ("argmax",),
    perturbed_loss: ("argmax",),
    sparsemap_loss: (NEAREST,),
    fenchel_young: ("smoothed", "smoothed_and_marginals"),
}
WITH_COST: dict[Callable[..., Tensor], tuple[str, ...]] = {
    svm_loss: ("argmax",),
    softmax_margin_loss: _SUMS,
    margin_sparsemap_loss: (NEAREST,),
    risk: _SUMS,
}


def _measures(case: Case, backend: str) -> Iterator[tuple[str, Callable[[Any, Any, Any], Tensor]]]:
    """Name and function (scores, target, cost) of all that is measured at a target and that the structure answers."""

    def ask(question: Callable[..., Tensor], scores: Any, target: Any, cost: Any) -> Tensor:
        more = {"cost": cost} if question in WITH_COST else {}
        if question is fenchel_young:
            more = {"omega": Entropy(1.0)}
        if question is perturbed_loss:
            more = {"generator": torch.Generator().manual_seed(0), "samples": 2}
        return question(scores, case.structure, target, reduction="none", backend=backend, **more)

    for question, names in (PLAIN | WITH_COST).items():
        if all(case.answers(name, backend) for name in names):
            yield question.__name__, partial(ask, question)
    if all(case.answers(name, backend) for name in _SUMS):
        yield "log_prob", lambda scores, target, _: log_prob(scores, case.structure, target, backend=backend)
    if case.answers("smoothed_log_prob", backend) and case.answers("smoothed_log_prob_pullback", backend):
        omega = Entropy(1.0)
        yield (
            "smoothed_log_prob",
            lambda scores, target, _: smoothed_log_prob(scores, case.structure, target, omega, backend=backend),
        )


def _problem(case: Case) -> tuple[Tensors, Tensor, Tensor]:
    """Scores, a member of each instance as vectors, zeros where it has none, and costs."""
    scores = case.scores()
    members = case.members(scores)
    target = members[..., members.shape[-2] // 2, :]
    target = torch.where((target < 0).any(-1, keepdim=True), members[..., 0, :], target).clamp_min(0.0)
    return scores, target, case.vector(case.scores(3))


def law_target_padding(case: Case, backend: str) -> None:
    """Whatever targets and costs hold where no member has a part: no loss, log-probability or gradient changes."""
    scores, target, cost = _problem(case)
    used = (case.members(scores) > 0).any(-2)
    feasible = (case.members(scores) >= 0).all(-1).any(-1)
    hint = " (`exists` of the structure should say what is padding)" if case.structure.exists(scores) is None else ""

    def asked(measure: Callable[..., Tensor], junk: float) -> tuple[Tensor, Tensor]:
        leaves = tuple(t.clone().requires_grad_() for t in scores)
        given = (case.unflat(vector.masked_fill(~used, junk), scores) for vector in (target, cost))
        value = measure(case.parts(leaves), *given)[feasible]
        return value.detach(), case.vector(torch.autograd.grad(value.sum(), leaves))

    for name, measure in _measures(case, backend):
        want, slope = asked(measure, 0.0)
        for junk in (math.nan, -math.inf, 3.0):
            got, gradient = asked(measure, junk)
            what = f"{name} with {junk} in the padding of the target{hint}"
            same(what, got, want, 0.0)
            same(f"gradient of {what}", gradient, slope, 0.0)
        assert not bool(slope[~used].any()), f"gradient of {name}: not 0 for padding{hint}"


def law_rounded_once(case: Case, backend: str) -> None:
    """In half precision what is composed of several answers is that of float32, rounded; and no loss is negative."""
    scores, target, cost = _problem(case)
    for dtype, factor in ((torch.bfloat16, 1.0), (torch.float16, 40.0)):
        narrow = [tuple((factor * t).to(dtype) for t in tensors) for tensors in (scores, case.scores(5))]
        wide = [tuple(t.float() for t in tensors) for tensors in narrow]
        y, c = (case.structure.tensors(case.unflat(vector.to(dtype), scores)) for vector in (target, cost))
        y_wide, c_wide = (tuple(t.float() for t in tensors) for tensors in (y, c))
        for name, measure in _measures(case, backend):
            got = measure(case.parts(narrow[0]), case.parts(y), case.parts(c))
            want = measure(case.parts(wide[0]), case.parts(y_wide), case.parts(c_wide))
            _rounded(f"{name} in {dtype}", got, want, dtype)
            if name.endswith("_loss"):
                slack = 1e-6 * sum(float(t.abs().sum()) for t in wide[0])
                assert bool((want >= -slack).all()), f"{name} in {dtype}: below 0"
        if not all(case.answers(question, backend) for question in _SUMS):
            continue
        for name, question in _of_two(case, backend):
            got, want = (question(*map(case.parts, tensors)) for tensors in (narrow, wide))
            _rounded(f"{name} in {dtype}", got, want, dtype)


def _of_two(case: Case, backend: str) -> Iterator[tuple[str, Callable[[Any, Any], Tensor]]]:
    """Name and function (p, q) of what is asked of one distribution, or of two."""
    yield "entropy", lambda p, _: entropy(p, case.structure, backend=backend)
    yield "cross_entropy", lambda p, q: cross_entropy(p, q, case.structure, backend=backend)
    yield "kl_divergence", lambda p, q: kl_divergence(p, q, case.structure, backend=backend)


def _rounded(what: str, got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype, f"{what}: {got.dtype}"
    assert not bool(want.isnan().any()), f"{what}: NaN"
    assert torch.equal(got, cast(want, dtype)), f"{what}: {got} should be {cast(want, dtype)}"
