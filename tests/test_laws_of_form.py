"""`sinkhorn`, `FactorGraph`, beliefs and `Distribution` obey the laws of form that test_laws.py holds structures to."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax.testing import same


@dataclass(frozen=True)
class Subject:
    """A function of scores (batch, *event). Its first answers are shaped like the scores, the others like the batch."""

    ask: Callable[[Tensor], tuple[Tensor, ...]]
    event: tuple[int, ...]
    shaped_like_scores: int = 1
    # entries that no answer may depend on
    padding: tuple[tuple[int, ...], ...] = ()

    def scores(self, *batch: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*batch, *self.event, generator=generator, dtype=torch.float64).to(dtype)

    def is_padding(self) -> Tensor:
        mask = torch.zeros(self.event, dtype=torch.bool)
        for index in self.padding:
            mask[index] = True
        return mask


def of_sinkhorn(matching: structmax.Matching) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda scores: structmax.sinkhorn(scores, matching, temperature=0.7, tol=1e-12)[:2]


def of_distribution(structure: structmax.AbstractStructure) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def ask(scores: Tensor) -> tuple[Tensor, ...]:
        p = structmax.Distribution(scores, structure, validate_args=False)
        return p.mean, p.variance, p.entropy()

    return ask


def of_graph(graph: structmax.FactorGraph, mask: Tensor | None = None) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def ask(scores: Tensor) -> tuple[Tensor, ...]:
        found = structmax.sparsemap({"x": scores}, graph if mask is None else graph.masked({"x": mask}), tol=1e-10)
        return found.marginals["x"], found.value

    return ask


def of_beliefs(graph: structmax.FactorGraph, mask: Tensor | None = None) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def ask(scores: Tensor) -> tuple[Tensor, ...]:
        masked = graph if mask is None else graph.masked({"x": mask})
        found = structmax.belief_propagation({"x": scores}, masked)
        return found.marginals["x"], found.log_partition

    return ask


def of_mean_field(graph: structmax.FactorGraph, mask: Tensor | None = None) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Of a graph with one pair, whose score is 1."""

    def ask(scores: Tensor) -> tuple[Tensor, ...]:
        masked = graph if mask is None else graph.masked({"x": mask})
        found = structmax.mean_field({"x": scores, "bond": scores.new_ones(scores.shape[:-1])}, masked)
        return found.marginals["x"], found.log_partition

    return ask


SQUARE = structmax.factors.Variables("x", (3, 3))
LINES = structmax.FactorGraph(*(structmax.factors.Xor(line) for i in range(3) for line in (SQUARE[i], SQUARE[:, i])))
ROW = structmax.factors.Variables("x", (4,))
LOGIC = structmax.FactorGraph(structmax.factors.Budget(ROW, at_most=2), structmax.factors.OrOut(ROW[0], ROW[1], ROW[2]))
CHOICE = structmax.FactorGraph(structmax.factors.Xor(ROW[:3]), structmax.factors.Imply(ROW[1], ROW[3]))
BOND = structmax.factors.Variables("bond", (), free=True)
PAIR = structmax.FactorGraph(structmax.factors.Xor(ROW[:3]), structmax.factors.Pair(ROW[1], ROW[3], score=BOND))
LAST = ((2, 0), (2, 1), (2, 2), (0, 2), (1, 2))
SUBJECTS = {
    "sinkhorn": Subject(of_sinkhorn(structmax.Matching()), (3, 3)),
    "sinkhorn, wide": Subject(of_sinkhorn(structmax.Matching()), (2, 4)),
    "sinkhorn, partial": Subject(of_sinkhorn(structmax.Matching(partial=True)), (3, 3)),
    "sinkhorn with lengths": Subject(
        of_sinkhorn(structmax.Matching(torch.tensor(2), torch.tensor(2))), (3, 3), padding=LAST
    ),
    "factor graph of lines": Subject(of_graph(LINES), (3, 3)),
    "factor graph of logic": Subject(of_graph(LOGIC), (4,)),
    "factor graph with a mask": Subject(
        of_graph(LOGIC, torch.tensor([True, True, True, False])), (4,), padding=((3,),)
    ),
    "beliefs": Subject(of_beliefs(CHOICE), (4,)),
    "beliefs with a cycle": Subject(of_beliefs(LOGIC), (4,)),
    "beliefs with a mask": Subject(of_beliefs(LOGIC, torch.tensor([True, True, True, False])), (4,), padding=((3,),)),
    "mean field": Subject(of_mean_field(PAIR), (4,)),
    "mean field with a mask": Subject(
        of_mean_field(PAIR, torch.tensor([True, True, False, True])), (4,), padding=((2,),)
    ),
    "distribution over one of n": Subject(of_distribution(structmax.Simplex()), (4,), 2),
    "distribution over trees": Subject(
        of_distribution(structmax.SpanningTree(torch.tensor(2), single_root=True)),
        (4, 4),
        2,
        padding=tuple((h, m) for h in range(4) for m in range(4) if h == m or m in (0, 3) or h == 3),
    ),
    "distribution over subsets": Subject(of_distribution(structmax.Subset(2)), (4,), 2),
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


def test_shapes(subject: Subject) -> None:
    """No batch, an empty batch, more batch dimensions and strided scores give the answers of the plain batch."""
    scores = subject.scores(3)
    want = subject.ask(scores)
    strided = scores.transpose(0, -1).contiguous().transpose(0, -1)
    for answer, right in zip(subject.ask(strided), want, strict=True):
        same("strided", answer, right)
    for answer, right in zip(subject.ask(scores[1]), want, strict=True):
        same("without batch", answer, right[1])
    for answer, right in zip(subject.ask(scores[:0]), want, strict=True):
        same("empty batch", answer, right[:0])
    for answer, right in zip(subject.ask(scores[:, None]), want, strict=True):
        same("two batch dimensions", answer, right[:, None])


def test_dtypes(subject: Subject) -> None:
    """float32 agrees with float64; half precision goes in and comes out."""
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)):
        rounded = subject.scores(3, dtype=dtype)
        for answer, right in zip(subject.ask(rounded), subject.ask(rounded.double()), strict=True):
            assert answer.dtype == dtype
            same(f"in {dtype}", answer.double(), right, tolerance)


def test_gradients(subject: Subject) -> None:
    scores = subject.scores(2, seed=1).requires_grad_()
    assert gradcheck(subject.ask, (scores,))
    assert gradgradcheck(subject.ask, (scores,), fast_mode=True)


def test_transforms(subject: Subject) -> None:
    """vmap gives the answers of the batch, torch.func.grad the gradients of autograd."""
    scores = subject.scores(3)

    def total(one: Tensor) -> Tensor:
        return sum(((answer**2).sum() for answer in subject.ask(one)), torch.zeros(()))

    leaf = scores.clone().requires_grad_()
    (want,) = torch.autograd.grad(total(leaf), leaf)
    same("grad", torch.func.grad(total)(scores), want)
    same("vmap of grad", torch.func.vmap(torch.func.grad(total))(scores), want, 1e-8)


def test_extreme_scores(subject: Subject) -> None:
    """Ties, large scores and an infeasible instance: parts between 0 and 1, no NaN, also in gradients."""
    scores = subject.scores(2)
    for name, given in {
        "tied": torch.zeros_like(scores),
        "large": 1e3 * scores,
        "shifted": scores + 1e6,
        "infeasible": torch.full_like(scores, -math.inf),
    }.items():
        leaf = given.clone().requires_grad_()
        answers = subject.ask(leaf)
        for answer in answers[: subject.shaped_like_scores]:
            assert bool(((answer >= -1e-9) & (answer <= 1 + 1e-9)).all()), name
        assert not any(bool(answer.isnan().any()) for answer in answers), name
        finite = sum(((a.masked_fill(a.isinf(), 0.0) ** 2).sum() for a in answers), torch.zeros(()))
        (gradient,) = torch.autograd.grad(finite, leaf)
        assert bool(gradient.isfinite().all()), name


@pytest.mark.parametrize("mask", [-1e9, -1e15, -1e30, torch.finfo(torch.float64).min])
def test_masks(subject: Subject, mask: float) -> None:
    """A large negative score forbids an entry as −inf does, where something else is left."""
    scores = subject.scores(2)
    barred = scores.clone()
    first = next(index for index in torch.ones(subject.event).nonzero().tolist() if tuple(index) not in subject.padding)
    barred[(..., *first)] = -math.inf
    scores[(..., *first)] = mask
    for answer, right in zip(subject.ask(scores), subject.ask(barred), strict=True):
        same(f"masked by {mask}", answer, right, 1e-8)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_padding(subject: Subject, junk: float) -> None:
    """What no answer depends on may hold anything, and receives exactly 0."""
    scores, mask = subject.scores(2), subject.is_padding()
    leaf = scores.masked_fill(mask, junk).requires_grad_()
    answers = subject.ask(leaf)
    for answer, right in zip(answers, subject.ask(scores), strict=True):
        same(f"padding of {junk}", answer, right)
    for answer in answers[: subject.shaped_like_scores]:
        assert not bool(answer[:, mask].any())
    (gradient,) = torch.autograd.grad(sum(((a**2).sum() for a in answers), torch.zeros(())), leaf)
    assert not bool(gradient.isnan().any())
    assert not bool(gradient[:, mask].any())
