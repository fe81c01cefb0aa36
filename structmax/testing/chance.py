"""Laws of samples: seeded draws against exact probabilities."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax.questions.sample import Drawn, sample, sample_without_replacement
from structmax.testing.case import Case, forbid, same, variants


def law_sample(case: Case, backend: str, draws: int = 4000) -> None:
    """Seeded draws are members and pass a χ² test against exact probabilities; the same seed gives the same draws."""
    scores = forbid(case.scores(), 1, 0.2)
    parts = case.parts(scores)
    drawn = [
        case.flat(sample(parts, case.structure, (draws,), generator=torch.Generator().manual_seed(11), backend=backend))
        for _ in range(2)
    ]
    same("sample, same seed", drawn[0], drawn[1], 0.0)
    draw_alike(case, "sample", sample, (20,), backend)
    chi_squared("sample", which_member(case, "sample", drawn[0], scores), case.probabilities(scores))


def draw_alike(case: Case, what: str, ask: Callable[..., Any], count: Any, backend: str) -> None:
    """The same seed gives the same draws as on the reference, however probable they are."""
    if backend == "reference" or not case.answers(what, "reference"):
        return
    for kind in ("random", "forbidden", "large"):
        parts = case.parts(variants(case)[kind])
        answers = [
            ask(parts, case.structure, count, generator=torch.Generator().manual_seed(7), backend=engine)
            for engine in (backend, "reference")
        ]
        drawn, wanted = (case.flat(answer.parts if isinstance(answer, Drawn) else answer) for answer in answers)
        same(f"{what} with {kind} scores, against the reference", drawn, wanted, 0.0)


def which_member(case: Case, what: str, drawn: Tensor, scores: tuple[Tensor, ...]) -> Tensor:
    """Which member each draw is, one-hot: (draws, batch, M); all zeros where nothing is feasible."""
    index = (drawn.unsqueeze(-2) == case.members(scores)).all(-1)
    feasible = (case.scores_of_members(scores) > -math.inf).any(-1)
    assert bool((index.sum(-1) == feasible).all()), f"{what}: not a member"
    return index


def chi_squared(what: str, index: Tensor, prob: Tensor) -> None:
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

    draw_alike(case, "sample_without_replacement", sample_without_replacement, min(count, 6), backend)
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
        chi_squared("the first without replacement", first.unsqueeze(1), prob.unsqueeze(0))
        pairs = prob[:, None] * prob / (1 - prob[:, None]).clamp_min(1e-300)
        pairs = pairs.fill_diagonal_(0.0).flatten()
        joint = (first.unsqueeze(-1) & second.unsqueeze(-2)).flatten(1)
        chi_squared("the second without replacement", joint.unsqueeze(1), pairs.unsqueeze(0))
