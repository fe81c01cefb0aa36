"""The laws every structure obeys, with brute-force enumeration as the judge.

`check_structure` holds a structure to all of them; ours are held to them in the same way. A law asserts inside itself
and names what broke. A law that asks what the structure refuses to answer is left out of the report.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax import backends
from structmax.contract import AbstractStructure, Scores
from structmax.inference.argmax import argmax
from structmax.inference.entropy import cross_entropy, entropy, kl_divergence, log_count, log_prob
from structmax.inference.log_partition import log_partition, marginals
from structmax.inference.max_marginals import max_marginals
from structmax.inference.question import per_instance
from structmax.inference.sample import sample, sample_without_replacement
from structmax.inference.smoothed import (
    L2,
    Entropy,
    Tsallis,
    smoothed,
    smoothed_log_prob,
    smoothed_marginals,
    smoothed_sample,
)
from structmax.inference.topk import topk

MakeScores = Callable[[torch.Generator, torch.dtype], Scores]


@dataclass(frozen=True)
class Case:
    """A structure, and how to draw float scores for a small batch of it: `make_scores(generator, dtype)`."""

    structure: AbstractStructure
    make_scores: MakeScores

    def scores(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        drawn = self.structure.tensors(self.make_scores(torch.Generator().manual_seed(seed), dtype))
        return tuple(t.contiguous() for t in drawn)

    def parts(self, tensors: tuple[Tensor, ...]) -> Any:
        return self.structure.parts(tensors)

    def answers(self, name: str, backend: str) -> bool:
        return backends.explain(self.structure.room, name, "cpu")[backend] is None

    def flat(self, answer: Scores) -> Tensor:
        """Parts of each instance in one vector: (batch, d)."""
        return self.vector(self.structure.tensors(answer))

    def outputs(self, out: Any) -> tuple[Tensor, ...]:
        """The tensors of an answer: a value, or parts."""
        return (out,) if isinstance(out, Tensor) else self.structure.tensors(out)

    def vector(self, tensors: tuple[Tensor, ...]) -> Tensor:
        return torch.cat(per_instance(tensors, self.structure), -1)

    def unflat(self, vectors: Tensor, scores: tuple[Tensor, ...]) -> Any:
        """The way back: vectors (…, batch, d) to parts shaped like the scores."""
        rank = scores[0].dim() - self.structure.event_dim
        events = [t.shape[rank:] for t in scores]
        pieces = vectors.split([math.prod(event) for event in events], -1)
        return self.parts(tuple(p.reshape(*p.shape[:-1], *e) for p, e in zip(pieces, events, strict=True)))

    def members(self, scores: tuple[Tensor, ...]) -> Tensor:
        """All structures of each instance as vectors: (batch, M, d), rows of −1 where an instance has fewer."""
        batch = scores[0].shape[: scores[0].dim() - self.structure.event_dim]
        every = []
        for index in itertools.product(*map(range, batch)):
            one = self.structure.at(index, batch)
            members = one.enumerate(one.parts(tuple(t[index] for t in scores)))
            every.append(torch.cat([m.flatten(1) for m in one.tensors(members)], -1))
        most = max(len(rows) for rows in every)
        padded = [torch.nn.functional.pad(rows, (0, 0, 0, most - len(rows)), value=-1.0) for rows in every]
        return torch.stack(padded).reshape(*batch, most, -1)

    def scores_of_members(self, scores: tuple[Tensor, ...]) -> Tensor:
        """⟨θ, y⟩ of every structure, −inf if it has a forbidden part or is none: (batch, M)."""
        theta, y = self.vector(scores).unsqueeze(-2), self.members(scores)
        value = torch.where(y > 0, theta * y, 0.0).sum(-1)
        return value.masked_fill((y < 0).any(-1), -math.inf)

    def probabilities(self, scores: tuple[Tensor, ...]) -> Tensor:
        """p(y) of every structure, zeros where nothing is feasible: (batch, M)."""
        return self.scores_of_members(scores).softmax(-1).nan_to_num(0.0)

    def mean(self, probabilities: Tensor, scores: tuple[Tensor, ...]) -> Tensor:
        """Σ p(y) y: (batch, d)."""
        return (probabilities.unsqueeze(-1) * self.members(scores)).sum(-2)


def same(what: str, got: Tensor, want: Tensor, tolerance: float = 1e-10) -> None:
    """Equal shapes, infinities at the same places, finite values within `tolerance` (relative above 1)."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} should be {tuple(want.shape)}"
    assert not got.isnan().any(), f"{what}: holds NaN"
    assert torch.equal(got.isinf(), want.isinf()), f"{what}: infinities differ"
    finite = want.isfinite()
    if finite.any():
        gap = ((got - want).abs() / want.abs().clamp_min(1))[finite].max().item()
        assert gap <= tolerance, f"{what}: differs by {gap:.2e} > {tolerance:.0e}"


def forbid(scores: tuple[Tensor, ...], seed: int, share: float = 0.3) -> tuple[Tensor, ...]:
    """A random share of the parts set to −inf."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(t.masked_fill(torch.rand(t.shape, generator=generator) < share, -math.inf) for t in scores)


# ---------------------------------------------------------------- laws of value


def _variants(case: Case) -> dict[str, tuple[Tensor, ...]]:
    """Scores as drawn, with forbidden parts, all forbidden, all tied, and large."""
    scores = case.scores()
    return {
        "random": scores,
        "forbidden": forbid(scores, 1),
        "infeasible": tuple(torch.full_like(t, -math.inf) for t in scores),
        "tied": tuple(torch.zeros_like(t) for t in scores),
        "large": tuple(1e3 * t for t in scores),
    }


def law_log_partition(case: Case, backend: str) -> None:
    """log Z is the logsumexp over members."""
    for name, scores in _variants(case).items():
        got = log_partition(case.parts(scores), case.structure, backend=backend)
        same(f"log_partition, {name}", got, case.scores_of_members(scores).logsumexp(-1))


def law_marginals(case: Case, backend: str) -> None:
    """Marginals are the expected parts."""
    for name, scores in _variants(case).items():
        got = case.flat(marginals(case.parts(scores), case.structure, backend=backend))
        same(f"marginals, {name}", got, case.mean(case.probabilities(scores), scores))


def law_argmax(case: Case, backend: str) -> None:
    """argmax is a member, has the best score, and is the same each time; all zeros where nothing is feasible."""
    for name, scores in _variants(case).items():
        got = case.flat(argmax(case.parts(scores), case.structure, backend=backend))
        again = case.flat(argmax(case.parts(scores), case.structure, backend=backend))
        same(f"argmax again, {name}", again, got, 0.0)
        every = case.scores_of_members(scores)
        feasible = (every > -math.inf).any(-1)
        same(f"argmax where infeasible, {name}", got[~feasible], torch.zeros_like(got[~feasible]), 0.0)
        is_member = (got[feasible].unsqueeze(-2) == case.members(scores)[feasible]).all(-1)
        assert bool((is_member.sum(-1) == 1).all()), f"argmax, {name}: not a member"
        chosen = (every[feasible].masked_fill(~is_member, -math.inf)).amax(-1)
        same(f"value of argmax, {name}", chosen, every[feasible].amax(-1))


def law_topk(case: Case, backend: str) -> None:
    """topk gives the k best values, best first, with distinct members; −inf and zeros when there are fewer."""
    for name, scores in _variants(case).items():
        every, members = case.scores_of_members(scores), case.members(scores)
        for k in (1, 3, members.shape[-2] + 2):
            best = topk(case.parts(scores), case.structure, k, backend=backend)
            want = torch.full((*every.shape[:-1], k), -math.inf, dtype=every.dtype)
            kept = min(k, every.shape[-1])
            want[..., :kept] = every.topk(kept, -1).values
            same(f"values of topk({k}), {name}", best.values, want.movedim(-1, 0))
            parts = case.flat(best.parts)
            found = best.values > -math.inf
            index = (parts.unsqueeze(-2) == members).all(-1) & found.unsqueeze(-1)
            assert bool((index.sum(-1) == found).all()), f"topk({k}), {name}: not members"
            assert not bool(parts[~found].any()), f"topk({k}), {name}: not zeros past the last"
            assert bool((index.sum(0) <= 1).all()), f"topk({k}), {name}: not distinct"


def law_max_marginals(case: Case, backend: str) -> None:
    """A part's max-marginal is the best score of a member that has it."""
    for name, scores in _variants(case).items():
        got = case.flat(max_marginals(case.parts(scores), case.structure, backend=backend))
        every, members = case.scores_of_members(scores), case.members(scores)
        want = every.unsqueeze(-1).masked_fill(members == 0, -math.inf).amax(-2)
        same(f"max_marginals, {name}", got, want)


def law_entropies(case: Case, backend: str) -> None:
    """Entropy, cross-entropy, divergence and log-probability are sums over members, and finite with their gradients."""
    q = case.scores(5)
    for name, p in _variants(case).items():
        prob = case.probabilities(p)
        log_p = case.scores_of_members(p).log_softmax(-1)
        log_q = case.scores_of_members(q).log_softmax(-1)
        plogp = torch.where(prob > 0, prob * log_p, 0.0).sum(-1)
        feasible = prob.sum(-1) > 0
        p_parts, q_parts = case.parts(p), case.parts(q)
        same(f"entropy, {name}", entropy(p_parts, case.structure, backend=backend), -plogp)
        cross = -torch.where(prob > 0, prob * log_q, 0.0).sum(-1)
        got = cross_entropy(p_parts, q_parts, case.structure, backend=backend)
        same(f"cross_entropy, {name}", got[feasible], cross[feasible])
        got = kl_divergence(p_parts, q_parts, case.structure, backend=backend)
        same(f"kl_divergence, {name}", got[feasible], (cross + plogp)[feasible])
        got = log_prob(p_parts, case.structure, case.unflat(case.members(p)[..., 0, :], p), backend=backend)
        want = torch.where(feasible, log_p[..., 0], -math.inf)
        same(f"log_prob, {name}", got, want)
        _finite_gradients(case, name, p, q, backend)


def _finite_gradients(case: Case, name: str, p: tuple[Tensor, ...], q: tuple[Tensor, ...], backend: str) -> None:
    leaves = [t.clone().requires_grad_() for t in (*p, *q)]
    p_leaf, q_leaf = case.parts(tuple(leaves[: len(p)])), case.parts(tuple(leaves[len(p) :]))
    total = entropy(p_leaf, case.structure, backend=backend).sum()
    total = total + kl_divergence(p_leaf, q_leaf, case.structure, backend=backend).nan_to_num(posinf=0.0).sum()
    first = torch.autograd.grad(total, leaves, create_graph=True)
    second = torch.autograd.grad(sum(((g**2).sum() for g in first), torch.zeros(())), leaves)
    for gradient in (*first, *second):
        assert bool(gradient.isfinite().all()), f"gradient of entropy and KL, {name}: not finite"


def law_sample(case: Case, backend: str, draws: int = 4000) -> None:
    """Seeded draws are members and pass a χ² test against exact probabilities; the same seed gives the same draws."""
    scores = forbid(case.scores(), 1, 0.2)
    parts = case.parts(scores)
    drawn = [
        case.flat(sample(parts, case.structure, (draws,), generator=torch.Generator().manual_seed(11), backend=backend))
        for _ in range(2)
    ]
    same("sample, same seed", drawn[0], drawn[1], 0.0)
    _chi_squared("sample", _which(case, "sample", drawn[0], scores), case.probabilities(scores))


def _which(case: Case, what: str, drawn: Tensor, scores: tuple[Tensor, ...]) -> Tensor:
    """Which member each draw is, one-hot: (draws, batch, M); all zeros where nothing is feasible."""
    index = (drawn.unsqueeze(-2) == case.members(scores)).all(-1)
    feasible = (case.scores_of_members(scores) > -math.inf).any(-1)
    assert bool((index.sum(-1) == feasible).all()), f"{what}: not a member"
    return index


def _chi_squared(what: str, index: Tensor, prob: Tensor) -> None:
    """Draws, as one-hot rows (draws, batch, M), pass a χ² test against probabilities (batch, M)."""
    feasible = prob.sum(-1) > 0
    draws = index.shape[0]
    counts = index.sum(0).to(prob.dtype)
    assert not bool(counts[prob == 0].any()), f"{what}: drew what has probability 0"
    expected = draws * prob
    # Rare members are pooled, as the χ² approximation needs about five expected draws in each bin.
    common = expected >= 5
    statistic = torch.where(common, (counts - expected) ** 2 / expected.clamp_min(1), 0.0).sum(-1)
    rare, rare_expected = torch.where(common, 0.0, counts).sum(-1), torch.where(common, 0.0, expected).sum(-1)
    statistic = statistic + torch.where(
        rare_expected >= 5, (rare - rare_expected) ** 2 / rare_expected.clamp_min(1), 0.0
    )
    freedom = (common.sum(-1) + (rare_expected >= 5).long() - 1).clamp_min(1).to(prob.dtype)
    # Wilson-Hilferty: the cube root of χ²/k is nearly normal; 4.5 standard deviations.
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)).sqrt()
    assert bool((z[feasible] < 4.5).all()), f"{what}: χ² is {z[feasible].max():.1f} standard deviations too large"


def law_sample_without_replacement(case: Case, backend: str, draws: int = 3000) -> None:
    """Draws are distinct members with their log-probabilities; the first two are distributed as they should."""
    scores = forbid(case.scores(), 1, 0.2)
    every = case.scores_of_members(scores)
    count = every.shape[-1]

    def drawn(n: int, tensors: tuple[Tensor, ...], seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        parts = case.parts(tensors)
        out = sample_without_replacement(parts, case.structure, n, generator=generator, backend=backend)
        return case.flat(out.parts), out.log_probs

    vectors, logs = drawn(count + 1, scores, 3)
    index = (vectors.unsqueeze(-2) == case.members(scores)).all(-1) & (logs > -math.inf).unsqueeze(-1)
    times = index.sum(0)
    assert torch.equal(times, (every > -math.inf).long()), "sample_without_replacement: each feasible member once"
    assert not bool(vectors[logs == -math.inf].any()), "sample_without_replacement: zeros past the last"
    want = (index * every.log_softmax(-1).nan_to_num(neginf=0.0)).sum(-1)
    same("log_probs", logs[logs > -math.inf], want[logs > -math.inf])
    # One instance many times over, so that each draws its own pair.
    for instance in list(itertools.product(*map(range, every.shape[:-1])))[:2]:
        one = Case(case.structure.at(instance, every.shape[:-1]), case.make_scores)
        single = tuple(t[instance] for t in scores)
        many = tuple(t.expand(draws, *t.shape).contiguous() for t in single)
        prob = case.probabilities(scores)[instance]
        if int((prob > 0).sum()) < 2:
            continue
        out = sample_without_replacement(
            one.parts(many), one.structure, 2, generator=torch.Generator().manual_seed(5), backend=backend
        )
        members = case.members(scores)[instance]
        first, second = (one.flat(out.parts).unsqueeze(-2) == members).all(-1)
        _chi_squared("the first without replacement", first.unsqueeze(1), prob.unsqueeze(0))
        pairs = prob[:, None] * prob / (1 - prob[:, None]).clamp_min(1e-300)
        pairs = pairs.fill_diagonal_(0.0).flatten()
        joint = (first.unsqueeze(-1) & second.unsqueeze(-2)).flatten(1)
        _chi_squared("the second without replacement", joint.unsqueeze(1), pairs.unsqueeze(0))


def law_given(case: Case, backend: str) -> None:
    """log P of a partial structure is the sum over the members that agree with it; so are its gradients."""
    scores = case.scores()
    members = case.members(scores)
    if bool((members > 1).any()):
        # a part that is used several times is not simply there or absent
        return
    generator = torch.Generator().manual_seed(2)
    log_p = case.scores_of_members(scores).log_softmax(-1)
    for share in (0.1, 0.3, 0.6):
        y = members[..., 0, :].clamp_min(0.0)
        known = torch.rand(y.shape, generator=generator, dtype=torch.float64) < share
        agree = ((members == y.unsqueeze(-2)) | ~known.unsqueeze(-2)).all(-1) & (members >= 0).all(-1)
        want = log_p.masked_fill(~agree, -math.inf).logsumexp(-1)
        mask, parts = case.unflat(known, scores), case.unflat(y, scores)
        got = log_prob(case.parts(scores), case.structure, parts, known=mask, backend=backend)
        same(f"log_prob of a partial structure, {share} known", got, want)
    leaves = tuple(t.clone().requires_grad_() for t in scores)

    def ask(*tensors: Tensor) -> Tensor:
        return log_prob(case.parts(tensors), case.structure, parts, known=mask, backend=backend)

    assert gradcheck(ask, leaves, **_fast(backend)), "log_prob of a partial structure"
    assert gradgradcheck(ask, leaves, **_fast(backend)), "log_prob of a partial structure"


def law_smoothed(case: Case, backend: str) -> None:
    """The walk's probabilities sum to 1, its mean is the gradient of the value, and the value tends to the maximum."""
    for name, scores in (("random", case.scores()), ("forbidden", forbid(case.scores(), 1)), ("tied", _tied(case))):
        every, members, parts = case.scores_of_members(scores), case.members(scores), case.parts(scores)
        feasible = (every > -math.inf).any(-1)
        for omega in (Entropy(0.7), L2(1.0), Tsallis(1.5, 0.5), Tsallis(1.3)):
            what = f"{omega}, {name}"
            each = members.clamp_min(0.0).movedim(-2, 0)
            logs = smoothed_log_prob(parts, case.structure, omega, case.unflat(each, scores), backend=backend)
            prob = torch.where((members < 0).any(-1), 0.0, logs.movedim(0, -1).exp())
            same(f"probabilities of the walk of {what}", prob.sum(-1), feasible.to(prob.dtype))
            mean = case.flat(smoothed_marginals(parts, case.structure, omega, backend=backend))
            same(f"smoothed_marginals of {what}", mean, case.mean(prob, scores))
            got = smoothed(parts, case.structure, omega, backend=backend)
            assert bool((got >= every.amax(-1) - 1e-12).all()), f"smoothed of {what}: below the maximum"
            if omega.alpha == 1:
                want = omega.gamma * (every / omega.gamma).logsumexp(-1)
                same(f"smoothed of {what}", got, want)
            else:
                # Zero mass where the maximiser is alone by far: the value is then the maximum itself.
                sharp = type(omega)(**{**vars(omega), "gamma": 1e-9})
                got = smoothed(parts, case.structure, sharp, backend=backend)
                same(f"smoothed of {what} as gamma goes to 0", got, every.amax(-1), 1e-6)
        drawn = smoothed_sample(
            parts, case.structure, L2(2.0), (3000,), generator=torch.Generator().manual_seed(1), backend=backend
        )
        logs = smoothed_log_prob(parts, case.structure, L2(2.0), case.unflat(each, scores), backend=backend)
        prob = torch.where((members < 0).any(-1), 0.0, logs.movedim(0, -1).exp())
        _chi_squared("smoothed_sample", _which(case, "smoothed_sample", case.flat(drawn), scores), prob)


def _tied(case: Case) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) for t in case.scores())


def law_smoothed_gradients(case: Case, backend: str) -> None:
    """gradcheck and gradgradcheck of the value, gradcheck of the expected structure and of a walk's probability."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    best = argmax(case.parts(case.scores()), case.structure)
    for omega in (L2(1.5), Tsallis(1.5, 2.0)):

        def of_value(*tensors: Tensor, omega: Any = omega) -> Tensor:
            return smoothed(case.parts(tensors), case.structure, omega, backend=backend)

        def of_walk(*tensors: Tensor, omega: Any = omega) -> Tensor:
            return smoothed_log_prob(case.parts(tensors), case.structure, omega, best, backend=backend)

        assert gradcheck(of_value, leaves, check_forward_ad=True, **_fast(backend)), f"smoothed, {omega}"
        assert gradgradcheck(of_value, leaves, **_fast(backend)), f"smoothed, {omega}"
        assert gradcheck(of_walk, leaves, **_fast(backend)), f"smoothed_log_prob, {omega}"


def law_counts(case: Case, backend: str) -> None:
    """log_count is the logarithm of the number of feasible members."""
    for name, scores in _variants(case).items():
        got = log_count(case.parts(scores), case.structure, backend=backend)
        want = (case.scores_of_members(scores) > -math.inf).sum(-1).double().log()
        same(f"log_count, {name}", got, want)


def law_padding(case: Case, backend: str) -> None:
    """What no member uses may hold anything: it changes nothing and receives exactly 0."""
    scores = case.scores()
    used = (case.members(scores) > 0).any(-2)
    for junk in (math.nan, math.inf, -math.inf, 1e30):
        filled = case.structure.tensors(case.unflat(case.vector(scores).masked_fill(~used, junk), scores))
        leaves = tuple(t.clone().requires_grad_() for t in filled)
        value = log_partition(case.parts(leaves), case.structure, backend=backend)
        same(f"log_partition with padding {junk}", value, case.scores_of_members(scores).logsumexp(-1))
        mu = case.structure.tensors(marginals(case.parts(leaves), case.structure, backend=backend))
        total = value.sum() + sum(((m**2).sum() for m in mu), torch.zeros(()))
        gradient = case.vector(torch.autograd.grad(total, leaves))
        best = case.flat(argmax(case.parts(filled), case.structure, backend=backend))
        for what, got in (("marginals", case.vector(mu)), ("gradient", gradient), ("argmax", best)):
            assert not bool(got.isnan().any()), f"{what} with padding {junk}: NaN"
            assert not bool(got[~used].any()), f"{what} with padding {junk}: not 0 there"


# ---------------------------------------------------------------- laws of gradient, shape and dtype


def _fast(backend: str) -> dict[str, Any]:
    """The gradients of the reference are autograd's own: a random projection of the Jacobian tells enough of them."""
    return {"fast_mode": backend == "reference"}


def law_gradients(case: Case, backend: str) -> None:
    """gradcheck with forward mode, and gradgradcheck, for every smooth question."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    for question in (log_partition, marginals, entropy):

        def ask(*tensors: Tensor, question: Callable[..., Any] = question) -> Any:
            return case.outputs(question(case.parts(tensors), case.structure, backend=backend))

        assert gradcheck(ask, leaves, check_forward_ad=True, **_fast(backend)), question.__name__
        assert gradgradcheck(ask, leaves, **_fast(backend)), question.__name__


def law_shapes(case: Case, backend: str) -> None:
    """No batch, an empty batch, more batch dimensions and strided tensors give the answers of the plain batch."""
    scores = case.scores()
    rank = len(case.structure.batch_shape(scores))
    plain = [log_partition, marginals, argmax]

    def rows(
        question: Callable[..., Any], tensors: tuple[Tensor, ...], structure: AbstractStructure = case.structure
    ) -> tuple[Tensor, ...]:
        out = question(structure.parts(tensors), structure, backend=backend)
        return (out,) if question is log_partition else structure.tensors(out)

    for question in plain:
        want = rows(question, scores)
        if rank:
            zero, batch = (0,) * rank, scores[0].shape[:rank]
            alone = case.structure.at(zero, batch)
            for got, full in zip(rows(question, tuple(t[zero] for t in scores), alone), want, strict=True):
                same(f"{question.__name__} without batch", got, full[zero])
            for got, full in zip(rows(question, tuple(t[:0] for t in scores), alone), want, strict=True):
                same(f"{question.__name__} of an empty batch", got, full[:0])
        for got, full in zip(rows(question, tuple(t[None, None] for t in scores)), want, strict=True):
            same(f"{question.__name__} with more dimensions", got, full[None, None])
        strided = tuple(t.transpose(0, -1).contiguous().transpose(0, -1) for t in scores)
        for got, full in zip(rows(question, strided), want, strict=True):
            same(f"{question.__name__} of strided scores", got, full)


def law_dtypes(case: Case, backend: str) -> None:
    """float32 agrees with float64; half precision goes in and comes out, computed in float32."""
    exact = case.scores()
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)):
        rounded = tuple(t.to(dtype) for t in exact)
        wide = tuple(t.double() for t in rounded)
        for question in (log_partition, marginals, argmax, entropy):
            got = question(case.parts(rounded), case.structure, backend=backend)
            want = question(case.parts(wide), case.structure, backend=backend)
            for a, b in zip(case.outputs(got), case.outputs(want), strict=True):
                assert a.dtype == dtype, f"{question.__name__}: {a.dtype} should be {dtype}"
                same(f"{question.__name__} in {dtype}", a.double(), b, tolerance)


def law_agrees_with_reference(case: Case, backend: str) -> None:
    """Every kernel equals the reference: outputs, and each gradient by name."""
    for name, scores in _variants(case).items():
        for question in (log_partition, marginals, entropy):
            answers = []
            for engine in (backend, "reference"):
                leaves = tuple(t.clone().requires_grad_() for t in scores)
                out = question(case.parts(leaves), case.structure, backend=engine)
                tensors = case.outputs(out)
                finite = sum(((t.masked_fill(t.isinf(), 0.0) ** 2).sum() for t in tensors), torch.zeros(()))
                answers.append((tensors, torch.autograd.grad(finite, leaves)))
            for a, b in zip(answers[0][0], answers[1][0], strict=True):
                same(f"{question.__name__} against reference, {name}", a, b)
            for part, (a, b) in enumerate(zip(answers[0][1], answers[1][1], strict=True)):
                field = case.structure.Parts._fields[part] if case.structure.Parts else "scores"
                same(f"gradient of {question.__name__} for `{field}` against reference, {name}", a, b)


def law_transforms(case: Case, backend: str) -> None:
    """vmap, grad, jvp, jacrev and hessian of torch.func agree with plain autograd."""
    scores, tangent = case.scores(), case.scores(9)
    batch = case.structure.batch_shape(case.parts(scores))
    every = tuple(range(len(scores)))

    def total(*tensors: Tensor, structure: AbstractStructure = case.structure) -> Tensor:
        parts = structure.parts(tensors)
        mu = structure.tensors(marginals(parts, structure, backend=backend))
        squares = sum(((m**2).sum() for m in mu), torch.zeros((), dtype=tensors[0].dtype))
        return log_partition(parts, structure, backend=backend).sum() + squares

    def gradient(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        leaves = tuple(t.clone().requires_grad_() for t in tensors)
        return torch.autograd.grad(total(*leaves), leaves)

    stacked = tuple(torch.stack(pair, 1) for pair in zip(scores, tangent, strict=True))
    got = torch.func.vmap(torch.func.grad(total, argnums=every), in_dims=1, out_dims=1)(*stacked)
    want = gradient(scores)
    for out, a, b in zip(got, want, gradient(tangent), strict=True):
        same("vmap of grad", out, torch.stack([a, b], 1))
    pushed = torch.func.jvp(total, scores, tangent)[1]
    pulled = sum(((w * t).sum() for w, t in zip(want, tangent, strict=True)), torch.zeros(()))
    same("jvp", pushed, pulled)
    zero = (0,) * len(batch)
    alone = partial(total, structure=case.structure.at(zero, batch))
    one = tuple(t[zero] for t in scores)
    forward_over_reverse = torch.func.hessian(alone, argnums=0)(*one)
    reverse_over_reverse = torch.func.jacrev(torch.func.jacrev(alone, argnums=0), argnums=0)(*one)
    same("hessian", forward_over_reverse, reverse_over_reverse)


def law_codec(case: Case, backend: str) -> None:
    """Every member is distinct and made of zeros and ones, or of counts where a score is shared."""
    members = case.members(case.scores())
    for rows in members.flatten(0, -3):
        real = rows[(rows >= 0).all(-1)]
        assert bool((real == real.round()).all()), "enumerate: parts should be zeros and ones, or counts"
        assert real.unique(dim=0).shape == real.shape, "enumerate: members should be distinct"


LAWS: dict[Callable[[Case, str], None], tuple[str, ...]] = {
    law_log_partition: ("log_partition",),
    law_marginals: ("marginals",),
    law_argmax: ("argmax",),
    law_topk: ("topk",),
    law_max_marginals: ("max_marginals",),
    law_entropies: ("log_partition", "marginals", "marginals_jvp"),
    law_sample: ("sample",),
    law_sample_without_replacement: ("sample_without_replacement",),
    law_given: ("given_log_partition", "given_marginals_jvp"),
    law_smoothed: ("smoothed", "smoothed_and_marginals", "smoothed_sample", "smoothed_log_prob"),
    law_smoothed_gradients: ("smoothed", "smoothed_marginals_jvp", "smoothed_log_prob_pullback"),
    law_counts: ("log_partition",),
    law_padding: ("log_partition", "marginals", "marginals_jvp", "argmax"),
    law_gradients: ("log_partition", "marginals", "marginals_jvp"),
    law_shapes: ("log_partition", "marginals", "argmax"),
    law_dtypes: ("log_partition", "marginals", "argmax"),
    law_agrees_with_reference: ("log_partition", "marginals", "marginals_jvp"),
    law_transforms: ("log_partition", "marginals", "marginals_jvp"),
    law_codec: (),
}
"""Each law, and the questions it asks."""


def applicable(case: Case) -> list[tuple[Callable[[Case, str], None], str]]:
    """The laws this structure can be held to, with each backend that answers all the law asks."""
    pairs = itertools.product(LAWS, backends.BACKENDS)
    return [
        (law, engine)
        for law, engine in pairs
        if all(case.answers(name, engine) for name in LAWS[law]) and (LAWS[law] or engine == "reference")
    ]


def check_structure(structure: AbstractStructure, make_scores: MakeScores) -> list[str]:
    """Holds a structure, yours or ours, to every law it can answer for; raises an AssertionError that says what broke.

    Args:
        structure: an instance, small enough to enumerate (some hundred members).
        make_scores: `make_scores(generator, dtype)` draws scores with at least one batch dimension.

    Returns:
        The laws that held, as "law on backend". What the structure refuses to answer is not among them.

    Example:
        >>> import torch, structmax
        >>> from structmax.testing import check_structure
        >>> held = check_structure(
        ...     structmax.Simplex(), lambda generator, dtype: torch.randn(3, 4, generator=generator, dtype=dtype)
        ... )
        >>> "law_argmax on reference" in held
        True
    """
    case = Case(structure, make_scores)
    held = []
    for law, backend in applicable(case):
        try:
            law(case, backend)
        except AssertionError as error:
            raise AssertionError(f"{type(structure).__name__} breaks {law.__name__} on {backend}: {error}") from error
        held.append(f"{law.__name__} on {backend}")
    return held
