"""Transition sequences: trees and back, policies of one's own, and the recursion at sizes no list has."""

import math

import pytest
import torch

import structmax


@pytest.mark.parametrize("n", range(6))
def test_sequences_are_trees(n):
    """Each tree has one sequence and each sequence one tree, in room for 5 leaves."""
    lengths = torch.tensor(n)
    trees = structmax.BinaryTree(lengths).enumerate(torch.zeros(5, 5))
    structure = structmax.ShiftReduce(lengths)
    sequences = structure.enumerate(torch.zeros(9, 2))
    assert len(sequences) == len(trees) == (math.comb(2 * n - 2, n - 1) // n if n else 1)
    from_trees = structure.from_spans(trees)
    assert torch.equal(structure.to_spans(from_trees), trees)
    assert {tuple(s.flatten().tolist()) for s in sequences} == {tuple(s.flatten().tolist()) for s in from_trees}


def test_trees_of_a_batch():
    """Leading dimensions and lengths that differ; the best tree by its spans is found again by its actions."""
    lengths = torch.tensor([[6, 1, 3], [0, 2, 5]])
    spans = structmax.argmax(
        torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0)), structmax.BinaryTree(lengths)
    )
    structure = structmax.ShiftReduce(lengths)
    parts = structure.from_spans(spans)
    assert torch.equal(structure.to_spans(parts), spans)
    assert torch.equal(structmax.argmax(parts, structure), parts)
    assert torch.equal(structure.encode(structure.decode(parts)), parts)
    assert (structure.decode(parts) >= 0).sum(-1).tolist() == [[11, 1, 5], [0, 3, 9]]


def test_a_policy_of_ones_own():
    """Whatever is chosen among the allowed actions, it is a tree."""
    g = torch.Generator().manual_seed(0)
    leaves = torch.randint(1, 9, (200,), generator=g)
    structure = structmax.ShiftReduce(leaves)
    actions = torch.zeros(200, 0, dtype=torch.int64)
    for _ in range(15):
        allowed = structure.allowed(actions, leaves)
        chosen = (torch.rand(200, 2, generator=g) * allowed).argmax(-1)
        actions = torch.cat([actions, torch.where(allowed.any(-1), chosen, -1).unsqueeze(-1)], -1)
    assert not structure.allowed(actions, leaves).any()
    parts = structure.encode(actions)
    assert torch.equal(structmax.argmax(parts, structure), parts)
    spans = structure.to_spans(parts)
    assert torch.equal(structmax.argmax(spans, structmax.BinaryTree(leaves)), spans)


def test_long_sequences():
    """Against the height of the stack as a state, step by step."""
    n = 60
    scores = torch.randn(2 * n - 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = scores.requires_grad_()
    # low enough to count for nothing, and without the NaN of −inf − −inf in gradients
    height = torch.full((n + 2,), -1e6, dtype=torch.float64)
    height[0] = 0.0
    never = height.new_full((1,), -1e6)
    for step in range(2 * n - 1):
        pushed = torch.cat([never, height[:-1]]) + scores[step, 0]
        popped = torch.cat([never, height[2:], never]) + scores[step, 1]
        height = torch.logaddexp(pushed, popped)
    # With 2n − 1 steps and height 1 there were n shifts, so that running out of leaves needs no state.
    wanted = height[1]
    found = structmax.log_partition(scores, structmax.ShiftReduce())
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    marginals = structmax.marginals(scores.detach(), structmax.ShiftReduce())
    torch.testing.assert_close(marginals, torch.autograd.grad(wanted, scores)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(2,), (4, 2), (5, 3)])
def test_shapes(shape):
    with pytest.raises(ValueError, match=r"should have shape \(…, 2N − 1, 2\), for shift and reduce at each step"):
        structmax.argmax(torch.zeros(shape), structmax.ShiftReduce())


def test_lengths():
    with pytest.raises(ValueError, match="leaves"):
        structmax.argmax(torch.zeros(1, 5, 2), structmax.ShiftReduce(torch.tensor([4])))
