"""The law of masks: parts may be forbidden by large negative numbers, in every question.

The score of a structure is the sum of its parts in their dtype; a sum that overflows to −inf makes it infeasible. Where
some structure has no masked part, answers are those with −inf in place of the mask. Where each has one, the digits of
small differences are lost with the sums: then answers are a structure, or means of structures, among those that are
best up to this rounding.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from structmax.omega import LocalL2
from structmax.questions.argmax import argmax
from structmax.questions.entropy import entropy, kl_divergence, log_count, log_prob
from structmax.questions.log_partition import log_partition, marginals
from structmax.questions.max_marginals import max_marginals
from structmax.questions.sample import sample, sample_without_replacement
from structmax.questions.smoothed import (
    smoothed,
    smoothed_log_prob,
    smoothed_marginals,
    smoothed_sample,
    smoothed_topk,
)
from structmax.questions.sparse_marginals import sparse_marginals
from structmax.questions.sparsemap import sparsemap
from structmax.questions.topk import topk
from structmax.testing.case import Case, forbid, same
from structmax.testing.projection import nearest

MASKS = (-1e9, -1e15, -1e30)
# A score below this is a mask.
LOWEST = -1e8


@dataclass(frozen=True)
class Masked:
    """Scores with masks, and what brute force says about them."""

    case: Case
    backend: str
    name: str
    scores: tuple[Tensor, ...]

    @property
    def parts(self) -> Any:
        return self.case.parts(self.scores)

    @cached_property
    def members(self) -> Tensor:
        return self.case.members(self.scores)

    @cached_property
    def every(self) -> Tensor:
        return self.case.scores_of_members(self.scores)

    @cached_property
    def feasible(self) -> Tensor:
        return (self.every > -math.inf).any(-1)

    @cached_property
    def rounding(self) -> Tensor:
        """Of the best score: (batch,)."""
        best = self.every.amax(-1)
        return torch.where(self.feasible, 64 * torch.finfo(best.dtype).eps * best.abs(), 0.0)

    @cached_property
    def clear(self) -> Tensor:
        """Where some structure has no masked part, or there is none."""
        return (self.every.amax(-1) > LOWEST) | ~self.feasible

    @cached_property
    def near(self) -> Tensor:
        """The members that are best up to rounding, and may have probability: (batch, M)."""
        slack = (self.rounding + 100).unsqueeze(-1)
        return (self.every >= self.every.amax(-1, keepdim=True) - slack) & (self.every > -math.inf)

    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(t.clone().requires_grad_() for t in self.scores)

    def which(self, what: str, vectors: Tensor, found: Tensor, among: Tensor) -> Tensor:
        """Which of the members each of the vectors (…, batch, d) is, one-hot; zeros where none is to be found."""
        index = (vectors.unsqueeze(-2) == self.members).all(-1) & found.unsqueeze(-1) & among
        assert bool((index.sum(-1) == found).all()), f"{what}, {self.name}: not such a member"
        assert not bool(vectors[~found.expand(vectors.shape[:-1])].any()), f"{what}, {self.name}: not zeros"
        return index

    def is_mean(self, what: str, mean: Tensor) -> None:
        """The vectors (batch, d) are means of near members, and zeros where nothing is feasible."""
        assert not bool(mean[~self.feasible].any()), f"{what}, {self.name}: not zeros where nothing is feasible"
        self.is_near(what, mean, self.feasible)

    def is_near(self, what: str, mean: Tensor, where: Tensor) -> None:
        """The vectors (batch, d) are finite, and in the instances `where` (batch,) means of near members."""
        assert bool(mean.isfinite().all()), f"{what}, {self.name}: not finite"
        near = self.near & where.unsqueeze(-1)
        rows = zip(mean.flatten(0, -2), self.members.flatten(0, -3), near.flatten(0, -2), strict=True)
        tolerance = 1e5 * torch.finfo(mean.dtype).eps
        for row, members, near in rows:
            if not bool(near.any()):
                continue
            gap = (nearest(members[near].double(), row.double()) - row).abs().max().item()
            assert gap <= tolerance, f"{what}, {self.name}: {gap:.1e} from any mean of the best structures"

    def is_finite(self, what: str, gradient: tuple[Tensor, ...]) -> None:
        for t in gradient:
            assert bool((t.abs() < 1e3).all()), f"gradient of {what}, {self.name}: not finite, or far too large"


def _log_partition(m: Masked) -> None:
    got = log_partition(m.parts, m.case.structure, backend=m.backend)
    same(f"log_partition, {m.name}", got, m.every.logsumexp(-1), 1e5 * torch.finfo(got.dtype).eps)


def _marginals(m: Masked) -> None:
    leaves = m.leaves()
    mu = m.case.flat(marginals(m.case.parts(leaves), m.case.structure, backend=m.backend))
    m.is_mean("marginals", mu.detach())
    want = m.case.mean(m.case.probabilities(m.scores), m.scores)
    tolerance = 1e4 * torch.finfo(mu.dtype).eps
    same(f"marginals, {m.name}", mu[m.clear].detach(), want[m.clear], tolerance)
    known = m.rounding < 1e-3
    same(f"marginals, {m.name}", mu[known].detach(), want[known], 1e-3)
    m.is_finite("marginals", torch.autograd.grad((mu**2).sum(), leaves))


def _entropy(m: Masked) -> None:
    leaves = m.leaves()
    got = entropy(m.case.parts(leaves), m.case.structure, backend=m.backend)
    level = m.case.parts(tuple(torch.zeros_like(t) for t in m.scores))
    away = kl_divergence(m.case.parts(leaves), level, m.case.structure, backend=m.backend)
    p = m.case.probabilities(m.scores)
    want = -torch.where(p > 0, p * p.log(), 0.0).sum(-1)
    most = log_count(m.parts, m.case.structure, backend=m.backend).clamp_min(0.0)
    clear = m.clear & m.feasible
    same(f"entropy, {m.name}", got[m.clear].detach(), want[m.clear])
    same(f"kl_divergence, {m.name}", away[clear].detach(), (most - want)[clear])
    for what, found in (("entropy", got), ("kl_divergence", away)):
        assert bool(((found >= 0) & (found <= most + 1e-3)).all()), f"{what}, {m.name}: outside of [0, log_count]"
        m.is_finite(what, torch.autograd.grad(found.sum(), leaves, retain_graph=True))


def _argmax(m: Masked) -> None:
    got = m.case.flat(argmax(m.parts, m.case.structure, backend=m.backend))
    slack = m.rounding.unsqueeze(-1)
    best = (m.every >= m.every.amax(-1, keepdim=True) - slack) & (m.every > -math.inf)
    m.which("argmax", got, m.feasible, best)


def _topk(m: Masked) -> None:
    count = m.every.shape[-1]
    for k in (2, count + 1):
        best = topk(m.parts, m.case.structure, k, backend=m.backend)
        want = torch.nn.functional.pad(m.every, (0, 1), value=-math.inf).topk(min(k, count + 1), -1).values
        same(f"values of topk({k}), {m.name}", best.values[: count + 1], want.movedim(-1, 0))
        index = m.which(f"topk({k})", m.case.flat(best.parts), best.values > -math.inf, m.every > -math.inf)
        assert bool((index.sum(0) <= 1).all()), f"topk({k}), {m.name}: not distinct"
        slack = 64 * torch.finfo(want.dtype).eps * best.values[:-1].abs().nan_to_num(posinf=0.0)
        assert bool((best.values[1:] <= best.values[:-1] + slack).all()), f"topk({k}), {m.name}: not in order"


def _max_marginals(m: Masked) -> None:
    got = m.case.flat(max_marginals(m.parts, m.case.structure, backend=m.backend))
    want = m.every.unsqueeze(-1).masked_fill(m.members == 0, -math.inf).amax(-2)
    same(f"max_marginals, {m.name}", got, want)


def _sample(m: Masked) -> None:
    generator = torch.Generator().manual_seed(1)
    drawn = sample(m.parts, m.case.structure, (20,), generator=generator, backend=m.backend)
    m.which("sample", m.case.flat(drawn), m.feasible, m.near)


def _sample_without_replacement(m: Masked) -> None:
    generator = torch.Generator().manual_seed(1)
    count = m.every.shape[-1] + 1
    out = sample_without_replacement(m.parts, m.case.structure, count, generator=generator, backend=m.backend)
    assert not bool(out.log_probs.isnan().any()), f"sample_without_replacement, {m.name}: NaN"
    found = out.log_probs > -math.inf
    index = m.which("sample_without_replacement", m.case.flat(out.parts), found, m.every > -math.inf)
    times = index.sum(0)
    assert bool((times <= 1).all()), f"sample_without_replacement, {m.name}: not distinct"
    assert bool((times[m.near] == 1).all()), f"sample_without_replacement, {m.name}: a likely member is missing"
    want = (index * m.every.log_softmax(-1).nan_to_num(neginf=0.0)).sum(-1)
    known = found & m.clear
    same(f"log_probs, {m.name}", out.log_probs[known], want[known])


def _given(m: Masked) -> None:
    y = m.members[..., 0, :].clamp_min(0.0)
    known = torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    agree = ((m.members == y.unsqueeze(-2)) | ~known.unsqueeze(-2)).all(-1) & (m.members >= 0).all(-1)
    want = m.every.log_softmax(-1).masked_fill(~agree, -math.inf).logsumexp(-1)
    leaves = m.leaves()
    mask, parts = m.case.unflat(known, m.scores), m.case.unflat(y, m.scores)
    got = log_prob(m.case.parts(leaves), m.case.structure, parts, known=mask, backend=m.backend)
    assert not bool(got[m.feasible].isnan().any()), f"log_prob of a partial structure, {m.name}: NaN"
    clear = m.clear & m.feasible
    same(f"log_prob of a partial structure, {m.name}", got[clear].detach(), want[clear])
    m.is_finite("log_prob of a partial structure", torch.autograd.grad(got[got.isfinite()].sum(), leaves))


def _smoothed(m: Masked) -> None:
    omega = LocalL2(1.0)
    leaves = m.leaves()
    value = smoothed(m.case.parts(leaves), m.case.structure, omega, backend=m.backend)
    assert torch.equal(value > -math.inf, m.feasible), f"smoothed, {m.name}: −inf where it should not, or not where"
    above = (value - m.every.amax(-1))[m.feasible]
    assert bool((above >= -m.rounding[m.feasible] - 1e-12).all()), f"smoothed, {m.name}: below the maximum"
    mean = m.case.flat(smoothed_marginals(m.case.parts(leaves), m.case.structure, omega, backend=m.backend))
    m.is_mean("smoothed_marginals", mean.detach())
    m.is_finite("smoothed_marginals", torch.autograd.grad((mean**2).sum(), leaves))
    each = m.case.unflat(m.members.clamp_min(0.0).movedim(-2, 0), m.scores)
    logs = smoothed_log_prob(m.parts, m.case.structure, each, omega, backend=m.backend).movedim(0, -1)
    p = logs.exp().masked_fill((m.members < 0).any(-1), 0.0)
    same(f"probabilities of the walk, {m.name}", p.sum(-1), m.feasible.to(p.dtype))
    count = p.shape[-1]
    best = smoothed_topk(m.parts, m.case.structure, omega, count, backend=m.backend)
    same(
        f"log_probs of smoothed_topk, {m.name}", best.log_probs.exp(), p.sort(-1, descending=True).values.movedim(-1, 0)
    )
    index = m.which("smoothed_topk", m.case.flat(best.parts), best.log_probs > -math.inf, p > 0)
    assert bool((index.sum(0) <= 1).all()), f"smoothed_topk, {m.name}: not distinct"
    generator = torch.Generator().manual_seed(1)
    drawn = smoothed_sample(m.parts, m.case.structure, omega, (20,), generator=generator, backend=m.backend)
    m.which("smoothed_sample", m.case.flat(drawn), m.feasible, m.near)


def _sparse_marginals(m: Masked) -> None:
    leaves = m.leaves()
    got = m.case.flat(sparse_marginals(m.case.parts(leaves), m.case.structure, backend=m.backend))
    # μ is compared with scores: where their digits end above 1, nothing is nearest.
    m.is_near("sparse_marginals", got.detach(), m.rounding < 1e-3)
    m.is_finite("sparse_marginals", torch.autograd.grad((got**2).sum(), leaves))
    want = m.case.flat(sparse_marginals(m.case.parts(_banned(m.scores)), m.case.structure, backend=m.backend))
    clear = m.clear & m.feasible
    same(f"sparse_marginals, {m.name}", got[clear].detach(), want[clear], 1e-9)


def _sparsemap(m: Masked) -> None:
    leaves = m.leaves()
    got = sparsemap(m.case.parts(leaves), m.case.structure, backend=m.backend)
    mean = m.case.flat(got.marginals)
    m.is_near("sparsemap", mean.detach(), m.feasible)
    total = got.probabilities.sum(0)[m.feasible].detach()
    same(f"sum of probabilities, {m.name}", total, torch.ones_like(total), 1e-12)
    m.is_finite("sparsemap", torch.autograd.grad((mean**2).sum(), leaves))
    want = sparsemap(m.case.parts(_banned(m.scores)), m.case.structure, backend=m.backend)
    clear = m.clear & m.feasible
    same(f"sparsemap, {m.name}", mean[clear].detach(), m.case.flat(want.marginals)[clear], 1e-6)
    same(f"value of sparsemap, {m.name}", got.value[clear].detach(), want.value[clear], 1e-6)


def _banned(scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.masked_fill(t < LOWEST, -math.inf) for t in scores)


# Each question, and the functions it needs.
QUESTIONS: dict[Callable[[Masked], None], tuple[str, ...]] = {
    _log_partition: ("log_partition",),
    _marginals: ("marginals", "marginals_jvp"),
    _entropy: ("log_partition", "marginals", "marginals_jvp"),
    _argmax: ("argmax",),
    _topk: ("topk",),
    _max_marginals: ("max_marginals",),
    _sample: ("sample",),
    _sample_without_replacement: ("sample_without_replacement",),
    _given: ("given_log_partition", "given_marginals_jvp"),
    _smoothed: ("smoothed", "smoothed_marginals_jvp", "smoothed_sample", "smoothed_log_prob", "smoothed_topk"),
    _sparse_marginals: ("project", "project_jvp"),
    _sparsemap: ("sparsemap",),
}


def masked(case: Case, backend: str, dtype: torch.dtype) -> Iterator[Masked]:
    """For each mask, scores of which few are masked, and scores of which most are."""
    for seed, mask in enumerate((*MASKS, torch.finfo(dtype).min)):
        for share in (0.3, 0.8):
            drawn = forbid(case.scores(seed, dtype), seed + 1, share)
            scores = tuple(t.masked_fill(t == -math.inf, mask) for t in drawn)
            yield Masked(case, backend, f"{share:.0%} masked by {mask:.1e} in {dtype}", scores)


def law_masks(case: Case, backend: str) -> None:
    """Parts may be masked by −1e9, −1e15, −1e30 or the lowest number of their dtype, in every question."""
    asked = [question for question, names in QUESTIONS.items() if all(case.answers(name, backend) for name in names)]
    silent = {_given} if case.repeats_parts() else set()
    for instance in masked(case, backend, torch.float64):
        for question in asked:
            if question not in silent:
                question(instance)


def law_masks_in_float32(case: Case, backend: str) -> None:
    """So may they in float32."""
    asked = [q for q in (_log_partition, _marginals, _argmax) if all(case.answers(n, backend) for n in QUESTIONS[q])]
    for instance in masked(case, backend, torch.float32):
        for question in asked:
            question(instance)
