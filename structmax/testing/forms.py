"""Laws of form: shapes, dtypes, padding, and what a member is."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax.contract import AbstractStructure
from structmax.questions.argmax import argmax
from structmax.questions.entropy import entropy
from structmax.questions.log_partition import log_partition, marginals
from structmax.questions.sparse_marginals import sparse_marginals
from structmax.testing.case import NEAREST, Case, same

# Each question, and the functions it needs.
QUESTIONS: dict[Callable[..., Any], tuple[str, ...]] = {
    log_partition: ("log_partition",),
    marginals: ("marginals",),
    argmax: ("argmax",),
    entropy: ("log_partition", "marginals"),
    sparse_marginals: (NEAREST,),
}


def _answered(case: Case, backend: str) -> list[Callable[..., Any]]:
    return [question for question, names in QUESTIONS.items() if all(case.answers(name, backend) for name in names)]


def law_padding(case: Case, backend: str) -> None:
    """What no member uses may hold anything: it changes nothing and receives exactly 0."""
    scores = case.scores()
    used = (case.members(scores) > 0).any(-2)
    for junk in (math.nan, math.inf, -math.inf, 1e30):
        filled = case.structure.tensors(case.unflat(case.vector(scores).masked_fill(~used, junk), scores))
        for question in _answered(case, backend):
            what = f"{question.__name__} with padding {junk}"
            leaves = tuple(t.clone().requires_grad_() for t in filled)
            out = case.outputs(question(case.parts(leaves), case.structure, backend=backend))
            plain = case.outputs(question(case.parts(scores), case.structure, backend=backend))
            for got, want in zip(out, plain, strict=True):
                same(what, got, want)
            if question not in (log_partition, entropy):
                assert not bool(case.vector(out)[~used].any()), f"{what}: not 0 there"
            if out[0].requires_grad:
                total = sum(((t**2).sum() for t in out), torch.zeros(()))
                gradient = case.vector(torch.autograd.grad(total, leaves))
                assert not bool(gradient.isnan().any()), f"gradient of {what}: NaN"
                assert not bool(gradient[~used].any()), f"gradient of {what}: not 0 there"


def law_shapes(case: Case, backend: str) -> None:
    """No batch, an empty batch, more batch dimensions and strided tensors give the answers of the plain batch."""
    scores = case.scores()
    rank = len(case.structure.batch_shape(scores))

    def rows(
        question: Callable[..., Any], tensors: tuple[Tensor, ...], structure: AbstractStructure = case.structure
    ) -> tuple[Tensor, ...]:
        out = question(structure.parts(tensors), structure, backend=backend)
        return (out,) if question in (log_partition, entropy) else structure.tensors(out)

    for question in _answered(case, backend):
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
        for question in _answered(case, backend):
            got = question(case.parts(rounded), case.structure, backend=backend)
            want = question(case.parts(wide), case.structure, backend=backend)
            for a, b in zip(case.outputs(got), case.outputs(want), strict=True):
                assert a.dtype == dtype, f"{question.__name__}: {a.dtype} should be {dtype}"
                same(f"{question.__name__} in {dtype}", a.double(), b, tolerance)


def law_codec(case: Case, backend: str) -> None:
    """Every member is distinct and made of zeros and ones, or of counts where the structure says so.

    `exists`, where the structure has it, is exactly what its members have.
    """
    scores, structure = case.scores(), case.structure
    members = case.members(scores)
    counts = zip(structure.counts(scores), scores, strict=True)
    counted = case.vector(tuple(torch.full_like(t, c, dtype=torch.bool) for c, t in counts))
    more = (members > 1).any(-2)
    assert not bool((more & ~counted).any()), "enumerate: parts should be zeros and ones where `counts` is False"
    exists = structure.exists(scores)
    if exists is not None:
        whole = case.vector(tuple(e.expand(t.shape) for e, t in zip(exists, scores, strict=True)))
        assert torch.equal(whole, (members > 0).any(-2)), "exists: should be True for what some member has, no more"
    for rows in members.flatten(0, -3):
        real = rows[(rows >= 0).all(-1)]
        assert bool((real == real.round()).all()), "enumerate: parts should be zeros and ones, or counts"
        assert real.unique(dim=0).shape == real.shape, "enumerate: members should be distinct"
