"""Laws of recursions with a smoothed maximum."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax.omega import Entropy, LocalL2, LocalTsallis
from structmax.questions.argmax import argmax
from structmax.questions.smoothed import (
    smoothed,
    smoothed_log_prob,
    smoothed_marginals,
    smoothed_sample,
    smoothed_topk,
)
from structmax.testing.case import Case, forbid, same, tied
from structmax.testing.chance import chi_squared, which_member
from structmax.testing.derivatives import fast


def law_smoothed(case: Case, backend: str) -> None:
    """The walk's probabilities sum to 1, its mean is the gradient of the value, and the value tends to the maximum."""
    for name, scores in (("random", case.scores()), ("forbidden", forbid(case.scores(), 1)), ("tied", tied(case))):
        every, members, parts = case.scores_of_members(scores), case.members(scores), case.parts(scores)
        feasible = (every > -math.inf).any(-1)
        for omega in (Entropy(0.7), LocalL2(1.0), LocalTsallis(1.5, 0.5), LocalTsallis(1.3)):
            what = f"{omega}, {name}"
            each = members.clamp_min(0.0).movedim(-2, 0)
            logs = smoothed_log_prob(parts, case.structure, case.unflat(each, scores), omega, backend=backend)
            prob = torch.where((members < 0).any(-1), 0.0, logs.movedim(0, -1).exp())
            same(f"probabilities of the walk of {what}", prob.sum(-1), feasible.to(prob.dtype))
            mean = case.flat(smoothed_marginals(parts, case.structure, omega, backend=backend))
            same(f"smoothed_marginals of {what}", mean, case.mean(prob, scores))
            got = smoothed(parts, case.structure, omega, backend=backend)
            assert bool((got >= every.amax(-1) - 1e-12).all()), f"smoothed of {what}: below the maximum"
            if omega.alpha == 1:
                want = omega.temperature * (every / omega.temperature).logsumexp(-1)
                same(f"smoothed of {what}", got, want)
            else:
                # Zero mass where the maximiser is alone by far: the value is then the maximum itself.
                sharp = replace(omega, temperature=1e-9)
                got = smoothed(parts, case.structure, sharp, backend=backend)
                same(f"smoothed of {what} as the temperature goes to 0", got, every.amax(-1), 1e-6)
        drawn = smoothed_sample(
            parts, case.structure, LocalL2(2.0), (3000,), generator=torch.Generator().manual_seed(1), backend=backend
        )
        logs = smoothed_log_prob(parts, case.structure, case.unflat(each, scores), LocalL2(2.0), backend=backend)
        prob = torch.where((members < 0).any(-1), 0.0, logs.movedim(0, -1).exp())
        chi_squared("smoothed_sample", which_member(case, "smoothed_sample", case.flat(drawn), scores), prob)


def law_smoothed_topk(case: Case, backend: str) -> None:
    """The k most probable members of the walk, best first, all distinct; −inf and zeros when there are fewer."""
    for name, scores in (("random", case.scores()), ("forbidden", forbid(case.scores(), 1)), ("tied", tied(case))):
        members, parts = case.members(scores), case.parts(scores)
        each = case.unflat(members.clamp_min(0.0).movedim(-2, 0), scores)
        for omega in (Entropy(0.7), LocalL2(1.0), LocalTsallis(1.5, 2.0)):
            logs = smoothed_log_prob(parts, case.structure, each, omega, backend=backend).movedim(0, -1)
            logs = logs.masked_fill((members < 0).any(-1), -math.inf)
            for k in (1, 3, members.shape[-2] + 2):
                what = f"smoothed_topk({k}) of {omega}, {name}"
                best = smoothed_topk(parts, case.structure, omega, k, backend=backend)
                kept = min(k, logs.shape[-1])
                want = torch.full((*logs.shape[:-1], k), -math.inf, dtype=logs.dtype)
                want[..., :kept] = logs.topk(kept, -1).values
                same(f"log_probs of {what}", best.log_probs, want.movedim(-1, 0))
                found, flat = best.log_probs > -math.inf, case.flat(best.parts)
                index = (flat.unsqueeze(-2) == members).all(-1) & found.unsqueeze(-1)
                assert bool((index.sum(-1) == found).all()), f"{what}: not members"
                assert not bool(flat[~found].any()), f"{what}: not zeros past the last"
                assert bool((index.sum(0) <= 1).all()), f"{what}: not distinct"
                same(f"parts of {what}", (index * logs.nan_to_num(neginf=0.0)).sum(-1)[found], best.log_probs[found])


def law_smoothed_gradients(case: Case, backend: str) -> None:
    """gradcheck and gradgradcheck of the value, gradcheck of the expected structure and of a walk's probability."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    best, count = argmax(case.parts(case.scores()), case.structure), case.members(case.scores()).shape[-2]
    for omega in (LocalL2(1.5), LocalTsallis(1.5, 2.0)):

        def of_value(*tensors: Tensor, omega: Any = omega) -> Tensor:
            return smoothed(case.parts(tensors), case.structure, omega, backend=backend)

        def of_walk(*tensors: Tensor, omega: Any = omega) -> Tensor:
            return smoothed_log_prob(case.parts(tensors), case.structure, best, omega, backend=backend)

        def of_best_walks(*tensors: Tensor, omega: Any = omega) -> Tensor:
            # of all of them, and the same in any order: some may be equally probable
            logs = smoothed_topk(case.parts(tensors), case.structure, omega, count, backend=backend).log_probs
            return (logs.exp() ** 2).sum(0)

        assert gradcheck(of_value, leaves, check_forward_ad=True, **fast(backend)), f"smoothed, {omega}"
        assert gradgradcheck(of_value, leaves, **fast(backend)), f"smoothed, {omega}"
        assert gradcheck(of_walk, leaves, **fast(backend)), f"smoothed_log_prob, {omega}"
        assert gradcheck(of_best_walks, leaves, **fast(backend)), f"smoothed_topk, {omega}"
