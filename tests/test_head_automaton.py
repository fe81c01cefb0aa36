"""Head automata: against other structures, at sizes no list has, and what they refuse."""

import re

import pytest
import torch

import structmax
from structmax import HeadAutomaton


def test_without_siblings_candidates_are_independent():
    arc = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sibling = arc.new_zeros(3, 6, 6)
    lengths = torch.tensor([5, 2, 0])
    found = structmax.marginals((arc, sibling), HeadAutomaton(lengths))
    torch.testing.assert_close(found.arc, structmax.marginals(arc, structmax.Bits(lengths)))
    # a path has one step more than dependents, the last of them to the stop
    torch.testing.assert_close(found.sibling.sum((-1, -2)), found.arc.sum(-1) + 1)
    torch.testing.assert_close(found.sibling[..., -1].sum(-1), torch.ones(3, dtype=torch.float64))


def test_long_automata():
    """Against a recursion in torch, and its gradient."""
    n = 40
    generator = torch.Generator().manual_seed(1)
    arc = torch.randn(n, generator=generator, dtype=torch.float64, requires_grad=True)
    sibling = torch.randn(n + 1, n + 1, generator=generator, dtype=torch.float64, requires_grad=True)
    rows = [torch.zeros((), dtype=torch.float64)]
    for m in range(n):
        rows.append(arc[m] + torch.logsumexp(torch.stack(rows) + sibling[: m + 1, m], 0))
    wanted = torch.logsumexp(torch.stack(rows) + sibling[:, n], 0)
    scores = arc.detach(), sibling.detach()
    torch.testing.assert_close(structmax.log_partition(scores, HeadAutomaton()), wanted, rtol=1e-12, atol=1e-12)
    found = structmax.marginals(scores, HeadAutomaton())
    for got, want in zip(found, torch.autograd.grad(wanted, (arc, sibling)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_scores_in_the_order_of_others():
    """Pairs s < m row by row, with 0 for the head and n + 1 for the stop, are the upper triangle."""
    n = 3
    pairs = [(s, m) for s in range(n + 1) for m in range(s + 1, n + 2)]
    rows, columns = torch.triu_indices(n + 1, n + 1)
    assert pairs == list(zip(rows.tolist(), (columns + 1).tolist(), strict=True))


def test_nothing_feasible():
    """No way to the stop: zeros, which decode to −1 alone, and a length of 0 without one."""
    arc, sibling = torch.zeros(2, 2), torch.zeros(2, 3, 3)
    sibling[..., 2] = -torch.inf
    structure = HeadAutomaton(torch.tensor([2, 0]))
    best = structmax.argmax((arc, sibling), structure)
    assert structure.decode(best).tolist() == [[-1] * 3] * 2
    assert not best.sibling.any()
    assert structmax.log_partition((arc, sibling), structure).tolist() == [-torch.inf] * 2


def test_padding_after_the_stop_may_hold_anything():
    structure = HeadAutomaton(torch.tensor([3, 1]))
    got = structure.encode(torch.tensor([[0, 2, 3, 7], [3, -9, 0, 0]]), 3)
    assert got.arc.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert structure.decode(got).tolist() == [[0, 2, 3, -1], [3, -1, -1, -1]]


REFUSED = {
    "one tensor": (
        lambda: structmax.argmax(torch.zeros(3), HeadAutomaton()),
        "two tensors (arc, sibling), but are one",
    ),
    "no candidates": (
        lambda: structmax.argmax((torch.zeros(2, 0), torch.zeros(2, 1, 1)), HeadAutomaton()),
        "`arc` should have shape (…, n) with n ≥ 1, one for each candidate, but has (2, 0)",
    ),
    "no stop": (
        lambda: structmax.argmax((torch.zeros(2, 3), torch.zeros(2, 3, 3)), HeadAutomaton()),
        "`sibling` should have shape (2, 4, 4), a row for the head and a column for the stop",
    ),
    "another dtype": (
        lambda: structmax.argmax((torch.zeros(3), torch.zeros(4, 4).double()), HeadAutomaton()),
        "`sibling` should have the dtype of `arc`, torch.float32, but has torch.float64",
    ),
    "lengths": (
        lambda: structmax.argmax((torch.zeros(3), torch.zeros(4, 4)), HeadAutomaton(torch.tensor(4))),
        "the number of candidates",
    ),
    "backwards": (lambda: HeadAutomaton().encode(torch.tensor([1, 0, 3]), 3), "be candidates from 0 to 2, ascending"),
    "no end": (lambda: HeadAutomaton().encode(torch.tensor([0, 1]), 3), "and then 3, the stop, but hold 0"),
    "past the length": (
        lambda: HeadAutomaton(torch.tensor(1)).encode(torch.tensor([1, 3]), 3),
        "ascending and below the lengths, and then 3, the stop, but hold 1. Try a row such as [0, 3]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    ask, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        ask()
