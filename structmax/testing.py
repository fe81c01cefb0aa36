"""The laws every structure obeys, with brute-force enumeration as the judge.

`check_structure` holds a structure to all of them; ours are held to them in the same way. A law asserts inside itself
and names what broke. A law that asks what the structure refuses to answer is left out of the report.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax import backends
from structmax.contract import AbstractStructure, Scores
from structmax.inference.argmax import argmax
from structmax.inference.entropy import cross_entropy, entropy, kl_divergence, log_prob
from structmax.inference.log_partition import log_partition, marginals
from structmax.inference.max_marginals import max_marginals
from structmax.inference.sample import sample
from structmax.inference.topk import topk

MakeScores = Callable[[torch.Generator, torch.dtype], Scores]


@dataclass(frozen=True)
class Case:
    """A structure, and how to draw float scores for a small batch of it: `make_scores(generator, dtype)`."""

    structure: AbstractStructure
    make_scores: MakeScores

    def scores(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        return self.structure.tensors(self.make_scores(torch.Generator().manual_seed(seed), dtype))

    def parts(self, tensors: tuple[Tensor, ...]) -> Any:
        return self.structure.parts(tensors)

    def answers(self, name: str, backend: str) -> bool:
        return backends.explain(self.structure.room, name, "cpu")[backend] is None

    def flat(self, scores: Scores) -> Tensor:
        """Parts of each instance in one vector: (batch, d)."""
        tensors, dims = self.structure.tensors(scores), self.structure.event_dims
        return torch.cat([t.flatten(t.dim() - d) for t, d in zip(tensors, dims, strict=True)], -1)

    def members(self, scores: tuple[Tensor, ...]) -> Tensor:
        """All structures as vectors: (M, d)."""
        batch = len(self.structure.batch_shape(scores))
        return self.flat(self.structure.enumerate(self.parts(tuple(t[(0,) * batch] for t in scores))))

    def scores_of_members(self, scores: tuple[Tensor, ...]) -> Tensor:
        """⟨θ, y⟩ of every structure, −inf if it has a forbidden part: (batch, M)."""
        theta, y = self.flat(scores), self.members(scores)
        value = theta.masked_fill(theta.isneginf(), 0.0) @ y.T
        forbidden = theta.isneginf().to(y.dtype) @ y.T > 0
        return value.masked_fill(forbidden, -math.inf)

    def probabilities(self, scores: tuple[Tensor, ...]) -> Tensor:
        """p(y) of every structure, zeros where nothing is feasible: (batch, M)."""
        return self.scores_of_members(scores).softmax(-1).nan_to_num(0.0)


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
        same(f"marginals, {name}", got, case.probabilities(scores) @ case.members(scores))


def law_argmax(case: Case, backend: str) -> None:
    """argmax is a member, has the best score, and is the same each time; all zeros where nothing is feasible."""
    for name, scores in _variants(case).items():
        got = case.flat(argmax(case.parts(scores), case.structure, backend=backend))
        again = case.flat(argmax(case.parts(scores), case.structure, backend=backend))
        same(f"argmax again, {name}", again, got, 0.0)
        every = case.scores_of_members(scores)
        feasible = (every > -math.inf).any(-1)
        same(f"argmax where infeasible, {name}", got[~feasible], torch.zeros_like(got[~feasible]), 0.0)
        is_member = (got[feasible].unsqueeze(-2) == case.members(scores)).all(-1)
        assert bool((is_member.sum(-1) == 1).all()), f"argmax, {name}: not a member"
        chosen = (every[feasible].masked_fill(~is_member, -math.inf)).amax(-1)
        same(f"value of argmax, {name}", chosen, every[feasible].amax(-1))


def law_topk(case: Case, backend: str) -> None:
    """topk gives the k best values, best first, with distinct members; −inf and zeros when there are fewer."""
    for name, scores in _variants(case).items():
        every, members = case.scores_of_members(scores), case.members(scores)
        for k in (1, 3, members.shape[0] + 2):
            best = topk(case.parts(scores), case.structure, k, backend=backend)
            want = torch.full((*every.shape[:-1], k), -math.inf, dtype=every.dtype)
            kept = min(k, every.shape[-1])
            want[..., :kept] = every.topk(kept, -1).values
            same(f"values of topk({k}), {name}", best.values, want.movedim(-1, 0))
            parts = case.flat(best.parts)
            index = (parts.unsqueeze(-2) == members).all(-1)
            found = best.values > -math.inf
            assert bool((index.sum(-1) == found).all()), f"topk({k}), {name}: not members, or not zeros past the last"
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
        cross = -(prob * log_q).sum(-1)
        got = cross_entropy(p_parts, q_parts, case.structure, backend=backend)
        same(f"cross_entropy, {name}", got[feasible], cross[feasible])
        got = kl_divergence(p_parts, q_parts, case.structure, backend=backend)
        same(f"kl_divergence, {name}", got[feasible], (cross + plogp)[feasible])
        first = case.structure.tensors(_member(case, p, 0))
        got = log_prob(p_parts, case.structure, case.parts(first), backend=backend)
        want = torch.where(feasible, log_p[..., 0], -math.inf)
        same(f"log_prob, {name}", got, want)
        _finite_gradients(case, name, p, q, backend)


def _member(case: Case, scores: tuple[Tensor, ...], index: int) -> Any:
    """The parts of one member, broadcast over the batch."""
    batch = case.structure.batch_shape(scores)
    one = case.structure.enumerate(case.parts(tuple(t[(0,) * len(batch)] for t in scores)))
    return case.parts(tuple(t[index].expand(*batch, *t.shape[1:]) for t in case.structure.tensors(one)))


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
    prob = case.probabilities(scores)
    feasible = prob.sum(-1) > 0
    index = (drawn[0].unsqueeze(-2) == case.members(scores)).all(-1)
    assert bool((index.sum(-1) == feasible).all()), "sample: not a member"
    counts = index.sum(0).to(prob.dtype)
    assert not bool(counts[prob == 0].any()), "sample: drew what is forbidden"
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
    assert bool((z[feasible] < 4.5).all()), f"sample: χ² is {z[feasible].max():.1f} standard deviations too large"


# ---------------------------------------------------------------- laws of gradient, shape and dtype


def law_gradients(case: Case, backend: str) -> None:
    """gradcheck with forward mode, and gradgradcheck, for every smooth question."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    for question in (log_partition, marginals, entropy):

        def ask(*tensors: Tensor, question: Callable[..., Any] = question) -> Any:
            return question(case.parts(tensors), case.structure, backend=backend)

        assert gradcheck(ask, leaves, check_forward_ad=True), question.__name__
        assert gradgradcheck(ask, leaves), question.__name__


def law_shapes(case: Case, backend: str) -> None:
    """No batch, an empty batch, more batch dimensions and strided tensors give the answers of the plain batch."""
    scores = case.scores()
    rank = len(case.structure.batch_shape(scores))
    plain = [log_partition, marginals, argmax]

    def rows(question: Callable[..., Any], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        out = question(case.parts(tensors), case.structure, backend=backend)
        return (out,) if isinstance(out, Tensor) else tuple(out)

    for question in plain:
        want = rows(question, scores)
        if rank:
            for got, full in zip(rows(question, tuple(t[(0,) * rank] for t in scores)), want, strict=True):
                same(f"{question.__name__} without batch", got, full[(0,) * rank])
            for got, full in zip(rows(question, tuple(t[:0] for t in scores)), want, strict=True):
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
            for a, b in zip(case.structure.tensors(got), case.structure.tensors(want), strict=True):
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
                tensors = case.structure.tensors(out)
                finite = sum(((t.masked_fill(t.isinf(), 0.0) ** 2).sum() for t in tensors), torch.zeros(()))
                answers.append((tensors, torch.autograd.grad(finite, leaves)))
            for a, b in zip(answers[0][0], answers[1][0], strict=True):
                same(f"{question.__name__} against reference, {name}", a, b)
            for part, (a, b) in enumerate(zip(answers[0][1], answers[1][1], strict=True)):
                field = case.structure.Parts._fields[part] if case.structure.Parts else "scores"
                same(f"gradient of {question.__name__} for `{field}` against reference, {name}", a, b)


def law_transforms(case: Case, backend: str) -> None:
    """vmap, grad, jvp, jacrev and hessian of torch.func agree with plain autograd."""
    scores = case.scores()
    if not case.structure.batch_shape(scores):
        return

    def total(*tensors: Tensor) -> Tensor:
        parts = case.parts(tensors)
        mu = case.structure.tensors(marginals(parts, case.structure, backend=backend))
        squares = sum(((m**2).sum() for m in mu), torch.zeros((), dtype=tensors[0].dtype))
        return log_partition(parts, case.structure, backend=backend).sum() + squares

    leaves = tuple(t.clone().requires_grad_() for t in scores)
    want = torch.autograd.grad(total(*leaves), leaves)
    every = tuple(range(len(scores)))
    got = torch.func.vmap(torch.func.grad(total, argnums=every))(*scores)
    for a, b in zip(got, want, strict=True):
        same("vmap of grad", a, b)
    tangent = case.scores(9)
    pushed = torch.func.jvp(total, scores, tangent)[1]
    pulled = sum(((w * t).sum() for w, t in zip(want, tangent, strict=True)), torch.zeros(()))
    same("jvp", pushed, pulled)
    one = tuple(t[0] for t in scores)
    forward_over_reverse = torch.func.hessian(total, argnums=0)(*one)
    reverse_over_reverse = torch.func.jacrev(torch.func.jacrev(total, argnums=0), argnums=0)(*one)
    same("hessian", forward_over_reverse, reverse_over_reverse)


def law_codec(case: Case, backend: str) -> None:
    """Every member is distinct and made of zeros and ones."""
    members = case.members(case.scores())
    assert bool(((members == 0) | (members == 1)).all()), "enumerate: parts should be zeros and ones"
    assert members.unique(dim=0).shape == members.shape, "enumerate: members should be distinct"


LAWS: dict[Callable[[Case, str], None], tuple[str, ...]] = {
    law_log_partition: ("log_partition",),
    law_marginals: ("marginals",),
    law_argmax: ("argmax",),
    law_topk: ("topk",),
    law_max_marginals: ("max_marginals",),
    law_entropies: ("log_partition", "marginals", "marginals_jvp"),
    law_sample: ("sample",),
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
