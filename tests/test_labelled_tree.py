"""Labels of trees: against chains and messages in torch, at sizes no list has, and what they refuse."""

import re

import pytest
import torch

import structmax
from structmax import LabelledTree, LinearChain


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_chain_is_a_tree(backwards):
    """With the first node as its root, or the last one, in which case matrices are transposed."""
    N, C = 9, 3
    unary, pairwise, lengths = random(2, N, C), random(2, N, C, C), torch.tensor([N, 5])
    want = structmax.marginals((unary, pairwise[:, 1:]), LinearChain(lengths))
    if backwards:
        last = torch.arange(N) + 1
        parents = torch.where(last < lengths.unsqueeze(-1), last, -1)
        scores = unary, pairwise.roll(-1, 1).mT
    else:
        parents, scores = torch.arange(N) - 1, (unary, pairwise)
    got = structmax.marginals(scores, LabelledTree(parents, lengths))
    torch.testing.assert_close(got.unary, want.unary, rtol=1e-10, atol=1e-12)
    pairs = got.pairwise.mT[:, :-1] if backwards else got.pairwise[:, 1:]
    torch.testing.assert_close(pairs, want.pairwise, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", ["random", "star", "two roots"])
def test_large_trees(shape):
    """Against messages from the leaves up, one node at a time, and the gradient of that."""
    N, C = 30, 3
    before = torch.randint(0, 10**6, (N,), generator=torch.Generator().manual_seed(0)) % torch.arange(1, N + 1)
    parents = {"random": before - 1, "star": torch.zeros(N, dtype=torch.int64), "two roots": before - 1}[shape]
    parents = torch.where(torch.arange(N) == 0, -1, parents.clamp_min(0))
    if shape == "two roots":
        parents[7] = -1
    # nodes in any order: node n is called names[n]
    names = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    unary, pairwise = random(N, C).requires_grad_(), random(C, C).requires_grad_()
    values = [unary[names[n]] for n in range(N)]
    total = torch.zeros((), dtype=torch.float64)
    for n in range(N - 1, -1, -1):
        if parents[n] < 0:
            total = total + values[n].logsumexp(0)
        else:
            values[parents[n]] = values[parents[n]] + (pairwise + values[n]).logsumexp(1)
    called = torch.empty(N, dtype=torch.int64)
    called[names] = torch.where(parents < 0, -1, names[parents.clamp_min(0)])
    scores = unary.detach(), pairwise.detach()
    torch.testing.assert_close(structmax.log_partition(scores, LabelledTree(called)), total, rtol=1e-12, atol=1e-12)
    got = structmax.marginals(scores, LabelledTree(called))
    for one, other in zip(got, torch.autograd.grad(total, (unary, pairwise)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_heads_of_a_parser():
    """Trees that differ, in two batch dimensions, as a spanning tree decodes them; labels there and back."""
    lengths = torch.tensor([[4, 2], [0, 3]])
    parser = structmax.SpanningTree(lengths, single_root=False)
    heads = parser.decode(structmax.argmax(random(2, 2, 5, 5), parser))
    tree = LabelledTree(heads - 1, lengths)
    scores = random(2, 2, 4, 3), random(3, 3)
    best = structmax.argmax(scores, tree)
    labels = tree.decode(best)
    assert ((labels >= 0).sum(-1) == lengths).all()
    again = tree.encode(labels.masked_fill(labels < 0, -100), scores)
    assert torch.equal(again.unary, best.unary)
    assert torch.equal(again.pairwise, best.pairwise)


scores = torch.zeros(3, 2), torch.zeros(2, 2)
REFUSED = {
    "one tensor": (lambda: structmax.argmax(torch.zeros(3, 2), LabelledTree(torch.tensor([-1, 0, 0]))), "two tensors"),
    "no labels": (
        lambda: structmax.argmax((torch.zeros(3, 0), torch.zeros(0, 0)), LabelledTree(torch.tensor([-1, 0, 0]))),
        "`unary` should have shape (…, N, C) with N, C ≥ 1",
    ),
    "a matrix too few": (
        lambda: structmax.argmax((torch.zeros(3, 2), torch.zeros(2, 2, 2)), LabelledTree(torch.tensor([-1, 0, 0]))),
        "`pairwise` should have shape (2, 2) or (3, 2, 2) to match `unary` (3, 2), but has (2, 2, 2). Roots have",
    ),
    "another dtype": (
        lambda: structmax.argmax((scores[0], scores[1].double()), LabelledTree(torch.tensor([-1, 0, 0]))),
        "`pairwise` should have the dtype of `unary`, torch.float32",
    ),
    "parents as numbers": (
        lambda: structmax.argmax(scores, LabelledTree(torch.tensor([-1.0, 0.0, 0.0]))),
        "`parents` should be an integer tensor",
    ),
    "a parent too few": (
        lambda: structmax.argmax(scores, LabelledTree(torch.tensor([-1, 0]))),
        "`parents` should have shape (…, 3), one for each node, where … broadcasts to the batch shape ()",
    ),
    "a parent there is not": (
        lambda: structmax.argmax(scores, LabelledTree(torch.tensor([-1, 0, 3]))),
        "or −1 for a root, but hold 3. Try `lengths`",
    ),
    "a parent past the length": (
        lambda: structmax.argmax(scores, LabelledTree(torch.tensor([-1, 2, 0]), torch.tensor(2))),
        "or −1 for a root, but hold 2",
    ),
    "a cycle": (
        lambda: structmax.argmax(scores, LabelledTree(torch.tensor([1, 0, -1]))),
        "`parents` should form no cycle, but node",
    ),
    "lengths": (
        lambda: structmax.argmax(scores, LabelledTree(torch.tensor([-1, 0, 0]), torch.tensor(4))),
        "the number of nodes",
    ),
    "a label": (
        lambda: LabelledTree(torch.tensor([-1, 0, 0])).encode(torch.tensor([0, 1, 2]), scores),
        "`labels` should lie between 0 and 1 at every node that counts, but hold 2. Try LabelledTree(parents, lengths)",
    ),
    "labels of another size": (
        lambda: LabelledTree(torch.tensor([-1, 0, 0])).encode(torch.tensor([0, 1]), scores),
        "`labels` should have shape (…, 3), one for each node, not (2,)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    ask, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        ask()


def test_parents_of_any_integers():
    scores = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 2)
    parents = torch.tensor([-1, 0, 0])
    for dtype in (torch.int8, torch.int16, torch.int32):
        tree, wide = structmax.LabelledTree(parents.to(dtype)), structmax.LabelledTree(parents)
        best = structmax.argmax(scores, tree)
        assert torch.equal(best.unary, structmax.argmax(scores, wide).unary)
        assert torch.equal(tree.encode(tree.decode(best), scores).pairwise, best.pairwise)
