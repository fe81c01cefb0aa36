"""Spanning trees beyond the laws: counts, any scale and shift, kernels, conversions, what people see, messages."""

import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import SpanningTree

ROOTS = pytest.mark.parametrize("single_root", [True, False])


def log_count(n: int, single_root: bool) -> float:
    """How many trees there are over n words and a root: (n + 1)^(n − 1), of which n^(n − 1) have a single root."""
    return (n - 1) * math.log(n if single_root else n + 1)


def usable(size: int, lengths: Tensor) -> Tensor:
    """Which arcs an instance can use: (B, size, size)."""
    node = torch.arange(size)
    inside = node <= lengths[:, None]
    return inside[:, :, None] & inside[:, None, :] & (node > 0) & (node[:, None] != node)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_forbidden(scores: Tensor, share: float, seed: int = 1) -> Tensor:
    return scores.masked_fill(
        torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) < share, -math.inf
    )


# --- masks that are large numbers ----------------------------------------------------------------------------------

VARIANTS = pytest.mark.parametrize(
    "structure",
    [
        SpanningTree(single_root=True),
        SpanningTree(single_root=False),
        SpanningTree(single_root=True, labelled=True),
        SpanningTree(directed=False),
        SpanningTree(directed=False, labelled=True),
        SpanningTree(directed=False, single_root=True),
    ],
    ids=lambda structure: f"{structure.single_root}-{structure.labelled}-{structure.directed}",
)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# logarithms of shares go down to −800
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}
BACKENDS = pytest.mark.parametrize("backend", ["numba", "reference"])


def masked(structure: SpanningTree, share: float, count: int, seed: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Which parts are masked, how many of a member's parts are, (B, M), and the members (M, …)."""
    shape = (4, 4, 2) if structure.labelled else (4, 4)
    mask = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed)) < share
    members = structure.enumerate(torch.zeros(shape, dtype=torch.float64))
    return mask, mask.flatten(1).double() @ members.flatten(1).mT, members


@BACKENDS
@DTYPES
@VARIANTS
def test_where_every_tree_is_masked_those_with_the_fewest_masks_are_equally_likely(structure, dtype, backend):
    mask, masks, members = masked(structure, 0.8, 16)
    fewest = masks.amin(1, keepdim=True)
    assert (fewest > 0).any()
    best = (masks == fewest).double()
    best /= best.sum(1, keepdim=True)
    scores = torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -1e30)
    got = structmax.marginals(scores, structure, backend=backend)
    want = torch.einsum("bm,m...->b...", best, members).to(dtype)
    torch.testing.assert_close(got, want, rtol=0.0, atol=TOLERANCE[dtype])
    value = structmax.log_partition(scores, structure, backend=backend)
    assert (value - -1e30 * fewest[:, 0]).abs().max() <= 8e30 * torch.finfo(dtype).eps
    tangent = normal(*mask.shape).to(dtype)
    moved = torch.func.jvp(lambda s: structmax.marginals(s, structure, backend=backend), (scores,), (tangent,))[1]
    along = torch.einsum("b...,m...->bm", tangent.double(), members)
    along = best * (along - (best * along).sum(1, keepdim=True))
    want = torch.einsum("bm,m...->b...", along, members).to(dtype)
    torch.testing.assert_close(moved, want, rtol=0.0, atol=8 * TOLERANCE[dtype])


@BACKENDS
@DTYPES
@VARIANTS
def test_where_some_tree_is_not_masked_no_other_matters(structure, dtype, backend):
    mask, masks, _ = masked(structure, 0.6, 64)
    mask = mask[masks.amin(1) == 0]
    assert len(mask) > 4
    scores = normal(*mask.shape).to(dtype)
    large, forbidden = scores.masked_fill(mask, -1e30), scores.masked_fill(mask, -math.inf)
    for question in (structmax.marginals, structmax.log_partition, structmax.argmax, structmax.entropy):
        got, want = (question(s, structure, backend=backend) for s in (large, forbidden))
        torch.testing.assert_close(got, want, rtol=0.0, atol=TOLERANCE[dtype])
    got, want = (structmax.topk(s, structure, 3, backend=backend) for s in (large, forbidden))
    found = want.values > -math.inf
    torch.testing.assert_close(got.values[found], want.values[found], rtol=0.0, atol=TOLERANCE[dtype])
    assert got.parts[found].equal(want.parts[found])


# --- closed forms --------------------------------------------------------------------------------------------------


@ROOTS
def test_there_are_as_many_members_as_the_closed_form_says(single_root):
    structure = SpanningTree(single_root=single_root)
    for n in range(1, 5):
        count = len(structure.enumerate(torch.zeros(n + 1, n + 1)))
        assert count == round(math.exp(log_count(n, single_root)))


@ROOTS
@pytest.mark.parametrize("shift", [0.0, -20.0, 1e5])
def test_log_partition_of_equal_scores_is_the_closed_form(single_root, shift):
    lengths = torch.tensor([1, 2, 3, 17, 40, 120])
    scores = torch.full((6, 121, 121), shift, dtype=torch.float64)
    got = structmax.log_partition(scores, SpanningTree(lengths, single_root=single_root)) - shift * lengths
    want = torch.tensor([log_count(n, single_root) for n in lengths.tolist()], dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=5e-9 if shift > 0 else 1e-11)


def test_labels_and_undirected_trees_have_closed_forms():
    scores = torch.zeros(3, 31, 31, 4, dtype=torch.float64)
    labelled = SpanningTree(torch.tensor([30, 7, 1]), single_root=True, labelled=True)
    want = [log_count(n, True) + n * math.log(4) for n in (30, 7, 1)]
    torch.testing.assert_close(structmax.log_partition(scores, labelled), torch.tensor(want, dtype=torch.float64))
    undirected = SpanningTree(torch.tensor([31, 2, 1, 0]), directed=False)
    got = structmax.log_partition(scores[:1, ..., 0].expand(4, 31, 31), undirected)
    torch.testing.assert_close(got, torch.tensor([29 * math.log(31), 0.0, 0.0, 0.0], dtype=torch.float64))
    # a tree of the 30 others, and one of 30 edges to them
    one = SpanningTree(torch.tensor([31, 2, 1, 0]), directed=False, single_root=True)
    got = structmax.log_partition(scores[:1, ..., 0].expand(4, 31, 31), one)
    torch.testing.assert_close(got, torch.tensor([29 * math.log(30), 0.0, 0.0, 0.0], dtype=torch.float64))


@ROOTS
def test_equal_scores_have_symmetric_marginals(single_root):
    n = 50
    got = structmax.marginals(torch.zeros(n + 1, n + 1, dtype=torch.float64), SpanningTree(single_root=single_root))
    # A word hangs on the root in 1 of n trees with a single root, else in 2 of n + 1.
    root = 1 / n if single_root else 2 / (n + 1)
    want = torch.full_like(got, (1 - root) / (n - 1)).fill_diagonal_(0.0)
    want[0], want[:, 0] = root, 0.0
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("kind", [SpanningTree, structmax.ProjectiveTree])
@ROOTS
def test_undirected_marginals_are_those_of_both_directions(single_root, kind):
    scores = normal(2, 6, 6)
    both = scores.triu(1) + scores.triu(1).transpose(1, 2)
    arcs = structmax.marginals(both, kind(single_root=single_root))
    got = structmax.marginals(scores, kind(directed=False, single_root=single_root))
    torch.testing.assert_close(got, (arcs + arcs.transpose(1, 2)).triu(1))
    # n nodes have n − 1 edges
    torch.testing.assert_close(got.sum((1, 2)), torch.full((2,), 5.0, dtype=torch.float64))


# --- any scores ----------------------------------------------------------------------------------------------------


@ROOTS
def test_a_column_shifts_the_value_and_nothing_else(single_root):
    scores, shift = normal(2, 12, 12), 1e3 * normal(12, seed=2)
    structure = SpanningTree(single_root=single_root)
    moved = structmax.log_partition(scores + shift, structure)
    torch.testing.assert_close(moved, structmax.log_partition(scores, structure) + shift[1:].sum())
    torch.testing.assert_close(
        structmax.marginals(scores + shift, structure), structmax.marginals(scores, structure), rtol=0, atol=1e-11
    )


@ROOTS
def test_a_heavy_cycle_does_not_hide_the_trees(single_root):
    # Words 1 and 2 prefer each other: the Laplacian is singular to rounding, however its columns are shifted.
    for weight in (50.0, 1e3, 1e5):
        scores = torch.zeros(3, 3, dtype=torch.float64)
        scores[1, 2] = scores[2, 1] = weight
        leaf = scores.requires_grad_()
        value = structmax.log_partition(leaf, SpanningTree(single_root=single_root))
        value.backward()
        torch.testing.assert_close(value.item(), weight + math.log(2), rtol=1e-15, atol=0.0)
        want = torch.tensor([[0, 0.5, 0.5], [0, 0, 0.5], [0, 0.5, 0]], dtype=torch.float64)
        torch.testing.assert_close(leaf.grad, want, rtol=0.0, atol=4 * weight * torch.finfo(torch.float64).eps)


# Scores are computed in linear numbers up to about the third scale, and in logarithms above.
@ROOTS
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0, 3e3])
@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_kernels_equal_the_reference_whatever_padding_holds(single_root, scale, labels, share):
    lengths = torch.tensor([9, 12, 5, 0, 1, 12, 3])
    shape = (7, 13, 13, labels) if labels else (7, 13, 13)
    scores = some_forbidden(scale * normal(*shape, seed=3), share)
    tangent = normal(*shape, seed=4)
    used = usable(13, lengths)
    used = used[..., None].expand(shape) if labels else used
    junk = torch.where(used, scores, math.nan)
    structure = SpanningTree(lengths, single_root=single_root, labelled=labels > 0)
    answers = []
    for theta, backend in ((junk, "numba"), (scores, "reference")):
        leaf = theta.clone().requires_grad_()
        value = structmax.log_partition(leaf, structure, backend=backend)
        marginals = structmax.marginals(leaf, structure, backend=backend)
        cotangent = torch.where(used & (scores > -math.inf), tangent, 0.0)
        (pulled,) = torch.autograd.grad(marginals, leaf, cotangent)
        answers.append((value.detach(), marginals.detach(), pulled))
    for got, want in zip(*answers, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    _, marginals, pulled = answers[0]
    for parts in (marginals, pulled):
        assert not parts[~used | (scores == -math.inf)].any()
    assert bool((marginals >= 0).all())


@ROOTS
def test_words_without_other_heads_are_right_in_any_order(single_root):
    # Every pattern of forbidden arcs over three words: 512, most of which are not strongly connected.
    arcs = torch.tensor([(h, m) for h in range(4) for m in range(1, 4) if h != m])
    patterns = torch.cartesian_prod(*[torch.tensor([0, 1])] * 9).bool()
    scores = torch.full((512, 4, 4), -math.inf, dtype=torch.float64)
    scores[:, arcs[:, 0], arcs[:, 1]] = torch.where(patterns, normal(512, 9), -math.inf)
    structure = SpanningTree(single_root=single_root)
    members = structure.enumerate(scores[0])
    value = torch.where(members > 0, scores[:, None], 0.0).sum((2, 3))
    want = torch.einsum("bm,mij->bij", value.softmax(1).nan_to_num(0.0), members)
    for backend in ("numba", "reference"):
        got = structmax.log_partition(scores, structure, backend=backend)
        torch.testing.assert_close(got, value.logsumexp(1), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(structmax.marginals(scores, structure, backend=backend), want, rtol=0.0, atol=1e-13)


@ROOTS
def test_the_determinant_agrees_where_it_can(single_root):
    n = 60
    scores = normal(n + 1, n + 1)
    weight = scores.exp().fill_diagonal_(0.0)
    laplacian = torch.diag(weight[1 if single_root else 0 :, 1:].sum(0)) - weight[1:, 1:]
    if single_root:
        laplacian[0] = weight[0, 1:]
    got = structmax.log_partition(scores, SpanningTree(single_root=single_root))
    torch.testing.assert_close(got, torch.linalg.slogdet(laplacian).logabsdet, rtol=1e-13, atol=0.0)


@ROOTS
def test_float32_is_right_on_200_words(single_root):
    scores = normal(2, 201, 201).float()
    structure = SpanningTree(torch.tensor([200, 131]), single_root=single_root)
    exact, rounded = scores.double().requires_grad_(), scores.clone().requires_grad_()
    want, got = structmax.log_partition(exact, structure), structmax.log_partition(rounded, structure)
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0.0)
    want.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(rounded.grad.double(), exact.grad, rtol=1e-6, atol=1e-9)
    # one head for each word
    heads = torch.where(torch.arange(201) > 0, 1.0, 0.0) * (torch.arange(201) <= structure.lengths[:, None])
    torch.testing.assert_close(exact.grad.sum(1), heads.double(), rtol=0.0, atol=1e-12)
    roots = exact.grad[:, 0].sum(1)
    assert not single_root or bool(((roots - 1).abs() < 1e-12).all())


@ROOTS
def test_a_label_takes_its_share_of_the_arc(single_root):
    scores = normal(2, 6, 6, 4)
    labelled = SpanningTree(single_root=single_root, labelled=True)
    plain = SpanningTree(single_root=single_root)
    summed = scores.logsumexp(-1)
    torch.testing.assert_close(structmax.log_partition(scores, labelled), structmax.log_partition(summed, plain))
    want = structmax.marginals(summed, plain).unsqueeze(-1) * scores.softmax(-1)
    torch.testing.assert_close(structmax.marginals(scores, labelled), want)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_instance_breaks_no_other(broken):
    scores = torch.randn(3, 5, 5)
    structure = SpanningTree(single_root=True)
    sound = structmax.log_partition(scores, structure), structmax.marginals(scores, structure)
    scores[1, 2, 4] = broken
    got = structmax.log_partition(scores, structure), structmax.marginals(scores, structure)
    for a, b in zip(got, sound, strict=True):
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], rtol=0.0, atol=0.0)
    used = usable(5, torch.tensor([4]))[0]
    assert got[0][1].isnan()
    assert bool(got[1][1][used].isnan().all())
    assert not bool(got[1][1][~used].any())


# --- some parts are known ------------------------------------------------------------------------------------------


@ROOTS
def test_required_edges_are_contracted(single_root):
    scores = normal(5, 5)
    structure = SpanningTree(directed=False, single_root=single_root)
    members = structure.enumerate(scores)
    value = torch.where(members > 0, scores, 0.0).sum((1, 2))
    joined = [[(0, 1)], [(1, 3), (3, 4)], [(0, 2), (2, 4), (1, 3)], [(0, 2), (1, 2), (2, 3)], [(1, 2), (2, 4), (1, 4)]]
    for edges in (*joined, [(0, 1), (1, 2), (0, 2)], [(0, 1), (0, 3)]):
        required = torch.zeros(5, 5, dtype=torch.float64)
        for i, j in edges:
            required[i, j] = 1.0
        known = (members * required).sum((1, 2)) == required.sum()
        want = torch.where(known, value, -math.inf).logsumexp(0) - value.logsumexp(0)
        got = structmax.log_prob(scores, structure, required, known=required > 0)
        torch.testing.assert_close(got, want)


# --- conversions and what people see -------------------------------------------------------------------------------


def test_the_root_on_the_diagonal_and_back():
    scores = normal(2, 4, 4)
    arc = SpanningTree.from_root_on_diagonal(scores)
    assert arc.shape == (2, 5, 5)
    assert torch.equal(arc[:, 0, 1:], scores.diagonal(dim1=1, dim2=2))
    assert torch.equal(arc[:, 2, 4], scores[:, 1, 3])
    assert torch.equal(SpanningTree.to_root_on_diagonal(arc), scores)
    assert torch.equal(structmax.ProjectiveTree.to_root_on_diagonal(arc), scores)
    assert torch.equal(SpanningTree.from_dependent_first(arc)[:, 3, 1], arc[:, 1, 3])


def test_labelled_roots_on_the_diagonal_and_back():
    scores = normal(2, 4, 4, 3)
    arc = SpanningTree.from_root_on_diagonal(scores, labelled=True)
    assert arc.shape == (2, 5, 5, 3)
    for label in range(3):
        assert torch.equal(arc[..., label], SpanningTree.from_root_on_diagonal(scores[..., label]))
    assert torch.equal(SpanningTree.to_root_on_diagonal(arc, labelled=True), scores)
    # without a batch the number of dimensions does not tell labels from instances
    assert torch.equal(SpanningTree.from_root_on_diagonal(scores[0], labelled=True), arc[0])


def test_heads_and_labels_and_back():
    heads = torch.tensor([[3, 0, 2], [0, -1, -1]])
    parts = SpanningTree(torch.tensor([3, 1]), single_root=True).encode(heads)
    assert parts.shape == (2, 4, 4)
    assert parts[0, 3, 1] == parts[0, 0, 2] == parts[0, 2, 3] == parts[1, 0, 1] == 1
    assert parts.sum() == 4
    assert torch.equal(SpanningTree(single_root=True).decode(parts), heads)
    labels = torch.tensor([[1, 0, 2], [2, -1, -1]])
    labelled = SpanningTree(torch.tensor([3, 1]), single_root=True, labelled=True)
    for got, want in zip(labelled.decode(labelled.encode(heads, labels, 3)), (heads, labels), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(ValueError, match=r"`encode` of labelled trees should be given heads, labels and how many"):
        labelled.encode(heads)


def test_edges_and_labels_and_back():
    edges = torch.tensor([[[0, 2], [1, 2], [2, 3]], [[0, 1], [-1, -1], [-1, -1]]])
    plain = SpanningTree(torch.tensor([4, 2]), directed=False)
    parts = plain.encode(edges)
    assert parts.shape == (2, 4, 4)
    assert parts[0, 0, 2] == parts[0, 1, 2] == parts[0, 2, 3] == parts[1, 0, 1] == 1
    assert parts.sum() == 4
    assert torch.equal(plain.decode(parts), edges)
    assert torch.equal(plain.encode(edges.flip(-1)), parts)
    labels = torch.tensor([[1, 0, 2], [2, -1, -1]])
    labelled = SpanningTree(torch.tensor([4, 2]), directed=False, labelled=True)
    for got, want in zip(labelled.decode(labelled.encode(edges, labels, 3)), (edges, labels), strict=True):
        assert torch.equal(got, want)
    with pytest.raises(ValueError, match=r"`encode` of labelled trees should be given edges, labels and how many"):
        labelled.encode(edges)


# --- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "fields", "message"),
    [
        (
            torch.zeros(4, 4, 2),
            {"single_root": True},
            r"labelled=False should have shape \(…, N \+ 1, N \+ 1\).*\(4, 4, 2\)\. Try labelled=True",
        ),
        (
            torch.zeros(4, 4),
            {"single_root": True, "labelled": True},
            r"\(…, N \+ 1, N \+ 1, L\).*\(4, 4\)\. Try labelled=False",
        ),
        (torch.zeros(3, 4), {"single_root": True}, r"\(3, 4\)"),
        (torch.zeros(3, 4), {"directed": False}, r"should have shape \(…, N, N\), a row for each node.*\(3, 4\)"),
        (
            torch.zeros(2, 4, 4),
            {"single_root": True, "lengths": torch.tensor([3, 4])},
            r"between 0 and 3, the number of words without the root",
        ),
        (
            torch.zeros(2, 4, 4),
            {"directed": False, "lengths": torch.tensor([3, 5])},
            r"between 0 and 4, the number of nodes",
        ),
        (
            torch.zeros(2, 4, 4),
            {"single_root": True, "lengths": torch.tensor([3, 3, 3])},
            r"`lengths` should broadcast to the batch shape \(2,\)",
        ),
    ],
)
def test_messages_about_scores(scores, fields, message):
    with pytest.raises(ValueError, match=message):
        structmax.log_partition(scores, SpanningTree(**fields))


def test_messages_about_types():
    with pytest.raises(TypeError, match=r"should be one tensor .* but are a tuple"):
        structmax.log_partition((torch.zeros(4, 4), torch.zeros(4, 4)), SpanningTree(single_root=True))
    with pytest.raises(TypeError, match=r"`single_root` should be True .* but is None"):
        SpanningTree()
    with pytest.raises(TypeError, match=r"`single_root` should be True \(node 0 has one edge\) or False .* but is 1"):
        SpanningTree(single_root=1, directed=False)


def test_smoothing_is_refused_with_the_reason():
    with pytest.raises(structmax.Refusal, match=r"counted by a determinant, not by a recursion"):
        structmax.smoothed(torch.zeros(3, 3), SpanningTree(single_root=True), structmax.omega.LocalL2())
