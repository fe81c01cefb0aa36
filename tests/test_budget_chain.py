"""Chains with a budget: against chains and counts, at sizes no list has, and what they refuse."""

import math
import re

import pytest
import torch

import structmax
from structmax import BudgetChain, LinearChain


@pytest.mark.parametrize("k", [0, 1, 3, 7, 8])
def test_counts(k):
    """As many as there are subsets of 7 positions, times the other labels of what is left."""
    scores = torch.zeros(7, 3), torch.zeros(3, 3)
    exactly = [math.comb(7, m) * 2 ** (7 - m) for m in range(8)]
    found = structmax.log_count(scores, BudgetChain(k, label=2)).exp()
    torch.testing.assert_close(found.item(), float(exactly[k]) if k < 8 else 0.0)
    found = structmax.log_count(scores, BudgetChain(at_most=k, label=2)).exp()
    torch.testing.assert_close(found.item(), float(sum(exactly[: k + 1])))


def test_budgets_that_do_not_bind():
    generator = torch.Generator().manual_seed(0)
    scores = (
        torch.randn(2, 6, 3, generator=generator, dtype=torch.float64),
        torch.randn(2, 5, 3, 3, generator=generator, dtype=torch.float64),
    )
    lengths = torch.tensor([6, 4])
    got = structmax.marginals(scores, BudgetChain(at_most=6, label=0, lengths=lengths))
    for one, other in zip(got[:2], structmax.marginals(scores, LinearChain(lengths))[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_long_chains():
    """Positions that do not know each other: the distribution of a subset of k."""
    on = torch.randn(2, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = torch.stack([torch.zeros_like(on), on], -1), on.new_zeros(2, 2)
    lengths = torch.tensor([50, 31])
    for k in (1, 12):
        subset = structmax.Subset(k, lengths=lengths)
        chain = BudgetChain(k, lengths=lengths)
        want = structmax.log_partition(on, subset)
        torch.testing.assert_close(structmax.log_partition(scores, chain), want, rtol=1e-11, atol=1e-11)
        got = structmax.marginals(scores, chain).unary[..., 1]
        torch.testing.assert_close(got, structmax.marginals(on, subset), rtol=1e-9, atol=1e-11)
        assert structmax.argmax(scores, chain).unary[..., 1].sum(-1).tolist() == [k, k]


def test_instances_without_members():
    """Fewer positions than labels that are due, also none: zeros, −inf, and no gradient."""
    unary = torch.zeros(3, 4, 2, requires_grad=True)
    scores, chain = (unary, torch.zeros(2, 2)), BudgetChain(2, lengths=torch.tensor([4, 1, 0]))
    value = structmax.log_partition(scores, chain)
    assert value[1:].tolist() == [-math.inf] * 2
    (gradient,) = torch.autograd.grad(value.sum(), unary)
    assert not gradient[1:].any()
    assert torch.allclose(gradient[0, :, 1], torch.tensor(0.5))
    best = structmax.argmax(scores, chain)
    assert not best.unary[1:].any()
    assert chain.decode(best)[1:].tolist() == [[-1] * 4] * 2
    assert torch.equal(chain.encode(chain.decode(best), scores).unary, best.unary)
    # C = 1: all labels are the one with the budget
    alone = torch.zeros(3, 1), torch.zeros(1, 1)
    assert structmax.log_partition(alone, BudgetChain(at_most=2, label=0)) == -math.inf
    assert structmax.log_partition(alone, BudgetChain(3, label=0)) == 0


scores = torch.zeros(3, 2), torch.zeros(2, 2)
REFUSED = {
    "no budget": (lambda: BudgetChain(), "either `k`, how often the label occurs, or `at_most`, but is given none"),
    "two budgets": (lambda: BudgetChain(1, at_most=2), "but is given both. Try BudgetChain(k)"),
    "half a label": (lambda: BudgetChain(0.5), "`k` should be a whole number ≥ 0, but is 0.5"),
    "a negative label": (lambda: BudgetChain(1, label=-1), "`label` should be a whole number ≥ 0, but is -1"),
    "lengths and keep": (
        lambda: BudgetChain(1, lengths=torch.tensor(2), keep=torch.ones(3, dtype=torch.bool)),
        "Either `lengths` or `keep` should be given, but both are",
    ),
    "a label there is not": (
        lambda: structmax.argmax(scores, BudgetChain(1, label=2)),
        "`label` should be one of the 2 labels of `unary` (3, 2), counted from 0, but is 2",
    ),
    "one tensor": (lambda: structmax.argmax(torch.zeros(3, 2), BudgetChain(1)), "`scores` of a BudgetChain should be"),
    "too few": (
        lambda: BudgetChain(2).encode(torch.tensor([0, 1, 0]), scores),
        "`labels` should hold label 1 exactly 2 times, but hold it 1 times",
    ),
    "too many": (
        lambda: BudgetChain(at_most=1).encode(torch.tensor([1, 1, 0]), scores),
        "`labels` should hold label 1 at most 1 times, but hold it 2 times",
    ),
    "padding": (
        lambda: BudgetChain(1).encode(torch.tensor([1, 0, -1]), scores),
        "but hold -1. Try `BudgetChain` with lengths=…",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    ask, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        ask()
