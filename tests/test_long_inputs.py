"""Long inputs in float32: finite, and within 1e-4 of float64."""

import pytest
import torch

import structmax

# long inputs
pytestmark = pytest.mark.thorough


def check(structure, *shapes):
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    def ask(dtype):
        leaves = [t.to(dtype).requires_grad_() for t in exact]
        value = structmax.log_partition(structure.Parts(*leaves) if structure.Parts else leaves[0], structure)
        return value, torch.autograd.grad(value.sum(), leaves)

    value, marginals = ask(torch.float32)
    want, want_marginals = ask(torch.float64)
    assert bool(value.isfinite().all())
    torch.testing.assert_close(value.double(), want, rtol=1e-4, atol=0)
    for got, right in zip(marginals, want_marginals, strict=True):
        largest = right.abs().max()
        assert float((got.double() - right).abs().max() / largest) < 1e-4
    return structmax.argmax(structure.Parts(*exact) if structure.Parts else exact[0], structure)


def test_a_chain_of_a_hundred_thousand():
    best = check(structmax.LinearChain(), (100_000, 8), (8, 8))
    assert best.unary.sum() == 100_000


def test_an_alignment_of_four_thousand_by_four_thousand():
    best = check(structmax.MonotoneAlignment(), (4096, 4096))
    assert 4096 <= best.sum() <= 8191


@pytest.mark.parametrize("single_root", [True, False])
def test_a_tree_over_three_hundred_words(single_root):
    best = check(structmax.ProjectiveTree(single_root=single_root), (301, 301))
    assert best.sum() == 300


def test_a_bracketing_of_three_hundred_leaves():
    best = check(structmax.BinaryTree(), (300, 300))
    assert best.sum() == 599
