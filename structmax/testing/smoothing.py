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


def law_smoothed_gradients(case: Case, backend: str) -> None:
    """gradcheck and gradgradcheck of the value, gradcheck of the expected structure and of a walk's probability."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    best = argmax(case.parts(case.scores()), case.structure)
    for omega in (LocalL2(1.5), LocalTsallis(1.5, 2.0)):

        def of_value(*tensors: Tensor, omega: Any = omega) -> Tensor:
            return smoothed(case.parts(tensors), case.structure, omega, backend=backend)

        def of_walk(*tensors: Tensor, omega: Any = omega) -> Tensor:
            return smoothed_log_prob(case.parts(tensors), case.structure, best, omega, backend=backend)

        assert gradcheck(of_value, leaves, check_forward_ad=True, **fast(backend)), f"smoothed, {omega}"
        assert gradgradcheck(of_value, leaves, **fast(backend)), f"smoothed, {omega}"
        assert gradcheck(of_walk, leaves, **fast(backend)), f"smoothed_log_prob, {omega}"
