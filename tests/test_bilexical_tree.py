"""Bilexical trees: counts, another recursion, what decode and encode say, what is ignored, and messages."""

import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import BilexicalTree


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some(N: int, *batch: int) -> BilexicalTree.Parts:
    sizes = (N + 1, N + 1), (N, N), (N, N, N)
    return BilexicalTree.Parts(*(normal(*batch, *size, seed=seed) for seed, size in enumerate(sizes)))


def plain_log_partition(arc: Tensor, span: Tensor, head: Tensor, n: int) -> Tensor:
    """The recursion that chooses split, head and dependent at once, differentiable: O(n⁵)."""
    inside = {(i, i, i): span[i, i] + head[i, i, i] for i in range(n)}
    for w in range(1, n):
        for i in range(n - w):
            j = i + w
            for h in range(i, j + 1):
                terms = [
                    inside[i, k, a] + inside[k + 1, j, b] + arc[h + 1, (a + b - h) + 1]
                    for k in range(i, j)
                    for a in range(i, k + 1)
                    for b in range(k + 1, j + 1)
                    if h in (a, b)
                ]
                inside[i, j, h] = span[i, j] + head[i, j, h] + torch.stack(terms).logsumexp(0)
    return torch.stack([arc[0, h + 1] + inside[0, n - 1, h] for h in range(n)]).logsumexp(0)


def test_there_are_as_many_members_as_heads_of_bracketings():
    lengths = torch.arange(1, 9)
    scores = torch.zeros(8, 9, 9, dtype=torch.float64), torch.zeros(8, 8, 8, dtype=torch.float64)
    want = [2**n * math.comb(2 * n, n) // (n + 1) for n in range(8)]
    got = structmax.log_partition(scores, BilexicalTree(lengths))
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64).log())


def test_arcs_and_spans_tell_members_apart():
    arc, span, _ = BilexicalTree().enumerate(some(5))
    both = torch.cat([arc.flatten(1), span.flatten(1)], 1)
    assert len(both.unique(dim=0)) == len(both) == 2**4 * 14


def test_members_are_bracketings_and_projective_trees():
    """Of each member alone, and all of either."""
    arc, span, head = BilexicalTree().enumerate(some(4))
    trees = structmax.ProjectiveTree(single_root=True).enumerate(torch.zeros(5, 5, dtype=torch.float64))
    assert torch.equal(arc.unique(dim=0), trees.unique(dim=0))
    brackets = structmax.BinaryTree().enumerate(torch.zeros(4, 4, dtype=torch.float64))
    assert torch.equal(span.unique(dim=0), brackets.unique(dim=0))
    assert torch.equal(head.sum(-1), span)


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_hook_trick_changes_nothing(scale: float, backend: str):
    lengths, scores = torch.tensor([6, 4]), BilexicalTree.Parts(*(scale * t for t in some(6, 2)))
    structure = BilexicalTree(lengths)
    leaves = tuple(t.clone().requires_grad_() for t in scores)
    value = structmax.log_partition(leaves, structure, backend=backend)
    want = torch.stack([plain_log_partition(*(t[b] for t in leaves), n) for b, n in enumerate(lengths.tolist())])
    torch.testing.assert_close(value, want, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(want.sum(), leaves)
    for mu, gradient in zip(structmax.marginals(scores, structure, backend=backend), gradients, strict=True):
        torch.testing.assert_close(mu, gradient, rtol=1e-9, atol=1e-11)


def test_four_words_are_as_enumerated():
    scores, structure = some(4), BilexicalTree()
    members = structure.enumerate(scores)
    values = sum((y * s).flatten(1).sum(1) for y, s in zip(members, scores, strict=True))
    best = structmax.topk(scores, structure, 45)
    torch.testing.assert_close(best.values[:40], values.sort(descending=True).values)
    assert (best.values[40:] == -math.inf).all()
    mode = structmax.argmax(scores, structure)
    for part, member in zip(mode, members, strict=True):
        assert torch.equal(part, member[values.argmax()])
    torch.testing.assert_close(structmax.log_partition(scores, structure), values.logsumexp(0))


def test_without_heads_they_count_nothing():
    arc, span, _ = some(4, 3)
    got = structmax.marginals((arc, span), BilexicalTree())
    want = structmax.marginals((arc, span, torch.zeros(3, 4, 4, 4, dtype=torch.float64)), BilexicalTree())
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("junk", [math.nan, 1e30, -math.inf])
def test_what_is_ignored_may_hold_anything(junk: float):
    structure, scores = BilexicalTree(torch.tensor([4, 2])), some(4, 2)
    exists = structure.exists(scores)
    filled = tuple(torch.where(there, t, junk) for there, t in zip(exists, scores, strict=True))
    assert torch.equal(structmax.log_partition(filled, structure), structmax.log_partition(scores, structure))
    for got, want, there in zip(
        structmax.marginals(filled, structure), structmax.marginals(scores, structure), exists, strict=True
    ):
        assert torch.equal(got, want)
        assert not got.masked_fill(there, 0.0).any()


def test_decode_and_encode_are_inverse():
    structure, scores = BilexicalTree(torch.tensor([4, 1, 0])), some(4, 3)
    drawn = structmax.sample(scores, structure, (20,), generator=torch.Generator().manual_seed(0))
    heads, spans = structure.decode(drawn)
    assert heads.shape == (20, 3, 4)
    assert spans.shape == (20, 3, 7, 2)
    assert (heads[:, 1, 1:] == -1).all()
    for got, want in zip(structure.encode(heads, spans, scores), drawn, strict=True):
        assert torch.equal(got, want)
    # padding may hold anything
    heads[:, 1, 1:] = 9
    for got, want in zip(structure.encode(heads, spans.flip(-2), scores), drawn, strict=True):
        assert torch.equal(got, want)


def test_a_tree_and_its_parts():
    """((the cat) (saw (a bird))): every word governs what it says."""
    structure, scores = BilexicalTree(), some(5)
    spans = torch.tensor([[0, 4], [0, 1], [2, 4], [3, 4], *([i, i] for i in range(5))])
    parts = structure.encode(torch.tensor([2, 3, 0, 5, 3]), spans, scores)
    assert parts.head.nonzero().tolist() == [
        [0, 0, 0],
        [0, 1, 1],
        [0, 4, 2],
        [1, 1, 1],
        [2, 2, 2],
        [2, 4, 2],
        [3, 3, 3],
        [3, 4, 4],
        [4, 4, 4],
    ]
    members = structure.enumerate(scores)
    same = [(y == part).flatten(1).all(1) for y, part in zip(members, parts, strict=True)]
    assert int(torch.stack(same).all(0).sum()) == 1


def test_nothing_is_decoded_where_nothing_is_feasible():
    structure = BilexicalTree()
    parts = structmax.argmax((torch.full((3, 3), -math.inf), torch.zeros(2, 2)), structure)
    heads, spans = structure.decode(parts)
    assert (heads == -1).all()
    assert (spans == -1).all()
    assert not any(part.any() for part in structure.encode(heads, spans, parts))


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        (torch.zeros(3, 3), TypeError, r"should be \(arc, span\) or \(arc, span, head\), but are one tensor"),
        ((torch.zeros(3, 3),), TypeError, "but are 1 tensors"),
        (
            (torch.zeros(3, 4), torch.zeros(2, 2)),
            ValueError,
            r"`arc` should have shape \(…, N \+ 1, N \+ 1\).*\(3, 4\)",
        ),
        ((torch.zeros(1, 1), torch.zeros(0, 0)), ValueError, r"N ≥ 1 words, but has \(1, 1\)"),
        (
            (torch.zeros(3, 3), torch.zeros(3, 3)),
            ValueError,
            r"`span` should have shape \(2, 2\) to match `arc` \(3, 3\)",
        ),
        (
            (torch.zeros(3, 3), torch.zeros(2, 2), torch.zeros(2, 2)),
            ValueError,
            r"`head` should have shape \(2, 2, 2\).* but has \(2, 2\)",
        ),
        ((torch.zeros(3, 3), torch.zeros(2, 2).double()), TypeError, r"`span` should have the dtype of `arc`"),
    ],
)
def test_messages_about_scores(scores, error, message):
    with pytest.raises(error, match=message):
        structmax.argmax(scores, BilexicalTree())


def test_messages_about_lengths_and_trees():
    scores = torch.zeros(2, 3, 3), torch.zeros(2, 2, 2)
    with pytest.raises(ValueError, match="between 0 and 2, the number of words without the root"):
        structmax.argmax(scores, BilexicalTree(torch.tensor([2, 3])))
    spans = torch.tensor([[0, 2], [0, 1], [0, 0], [1, 1], [2, 2]])
    one = torch.zeros(4, 4), torch.zeros(3, 3)
    with pytest.raises(
        ValueError, match=r"each span has one word whose head is not in it, but the span \[0, 1\] has 2"
    ):
        BilexicalTree().encode(torch.tensor([3, 3, 0]), spans, one)
    with pytest.raises(ValueError, match=r"`heads` should have shape \(…, 3\).* but have \(2,\)"):
        BilexicalTree().encode(torch.tensor([0, 1]), spans, one)
    padded = torch.cat([spans[:3], torch.full((2, 2), -1)])
    with pytest.raises(ValueError, match=r"but are 3 for 3 leaves\. Try BilexicalTree\(lengths\)"):
        BilexicalTree().encode(torch.tensor([2, 0, 2]), padded, one)
