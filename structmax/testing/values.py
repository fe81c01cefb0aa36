"""Laws of values: sums and maxima over members."""

import math

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax.questions.argmax import argmax
from structmax.questions.entropy import cross_entropy, entropy, kl_divergence, log_count, log_prob
from structmax.questions.log_partition import log_partition, marginals
from structmax.questions.max_marginals import max_marginals
from structmax.questions.topk import topk
from structmax.testing.case import Case, same, variants
from structmax.testing.derivatives import fast


def law_log_partition(case: Case, backend: str) -> None:
    """log Z is the logsumexp over members."""
    for name, scores in variants(case).items():
        got = log_partition(case.parts(scores), case.structure, backend=backend)
        same(f"log_partition, {name}", got, case.scores_of_members(scores).logsumexp(-1))


def law_marginals(case: Case, backend: str) -> None:
    """Marginals are the expected parts."""
    for name, scores in variants(case).items():
        got = case.flat(marginals(case.parts(scores), case.structure, backend=backend))
        same(f"marginals, {name}", got, case.mean(case.probabilities(scores), scores))


def law_argmax(case: Case, backend: str) -> None:
    """argmax is a member, has the best score, and is the same each time; all zeros where nothing is feasible."""
    for name, scores in variants(case).items():
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
    for name, scores in variants(case).items():
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
    for name, scores in variants(case).items():
        got = case.flat(max_marginals(case.parts(scores), case.structure, backend=backend))
        every, members = case.scores_of_members(scores), case.members(scores)
        want = every.unsqueeze(-1).masked_fill(members == 0, -math.inf).amax(-2)
        same(f"max_marginals, {name}", got, want)


def law_entropies(case: Case, backend: str) -> None:
    """Entropy, cross-entropy, divergence and log-probability are sums over members, and finite with their gradients."""
    q = case.scores(5)
    for name, p in variants(case).items():
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


def law_given(case: Case, backend: str) -> None:
    """log P of a partial structure is the sum over the members that agree with it."""
    scores = case.scores()
    members = case.members(scores)
    log_p = case.scores_of_members(scores).log_softmax(-1)
    for share in (0.1, 0.3, 0.6):
        y, known = _partial(members, share)
        agree = ((members == y.unsqueeze(-2)) | ~known.unsqueeze(-2)).all(-1) & (members >= 0).all(-1)
        want = log_p.masked_fill(~agree, -math.inf).logsumexp(-1)
        mask, parts = case.unflat(known, scores), case.unflat(y, scores)
        got = log_prob(case.parts(scores), case.structure, parts, known=mask, backend=backend)
        same(f"log_prob of a partial structure, {share} known", got, want)


def _partial(members: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The first member of each instance, and which of its parts are known."""
    y = members[..., 0, :].clamp_min(0.0)
    return y, torch.rand(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) < share


def law_given_gradients(case: Case, backend: str) -> None:
    """gradcheck and gradgradcheck of the log P of a partial structure."""
    scores = case.scores()
    y, known = _partial(case.members(scores), 0.3)
    mask, parts = case.unflat(known, scores), case.unflat(y, scores)
    leaves = tuple(t.clone().requires_grad_() for t in scores)

    def ask(*tensors: Tensor) -> Tensor:
        return log_prob(case.parts(tensors), case.structure, parts, known=mask, backend=backend)

    assert gradcheck(ask, leaves, **fast(backend)), "log_prob of a partial structure"
    assert gradgradcheck(ask, leaves, **fast(backend)), "log_prob of a partial structure"


def law_given_padding(case: Case, backend: str) -> None:
    """What is said of parts that no member has, such as those past a length, changes nothing.

    It applies to structures with `exists`.
    """
    scores = case.scores()
    members = case.members(scores)
    used = (members > 0).any(-2)
    y = members[..., 0, :].clamp_min(0.0)

    def answer(said: float, known: Tensor) -> Tensor:
        parts, mask = case.unflat(y.masked_fill(~used, said), scores), case.unflat(known, scores)
        return log_prob(case.parts(scores), case.structure, parts, known=mask, backend=backend)

    want = answer(0.0, used)
    for said in (0.0, 1.0):
        same(f"log_prob with {said:g} known of parts no structure has", answer(said, torch.ones_like(used)), want)


def law_counts(case: Case, backend: str) -> None:
    """log_count is the logarithm of the number of feasible members."""
    for name, scores in variants(case).items():
        got = log_count(case.parts(scores), case.structure, backend=backend)
        want = (case.scores_of_members(scores) > -math.inf).sum(-1).double().log()
        same(f"log_count, {name}", got, want)
