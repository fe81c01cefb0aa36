"""Binary trees: counts, what decode and encode say, what is ignored, and the kernels on sizes beyond enumeration."""

import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax.structures.binary_tree import kernel_numba


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain_log_partition(scores: Tensor, n: int) -> Tensor:
    """The recursion over spans, one at a time, differentiable: scores (N, N) or (N, N, C)."""
    s = scores.logsumexp(-1) if scores.dim() == 3 else scores
    inside = {(i, i): s[i, i] for i in range(n)}
    for w in range(1, n):
        for i in range(n - w):
            splits = [inside[i, k] + inside[k + 1, i + w] for k in range(i, i + w)]
            inside[i, i + w] = s[i, i + w] + torch.stack(splits).logsumexp(0)
    return inside[0, n - 1]


def below_diagonal(N: int) -> Tensor:
    return torch.ones(N, N).tril(-1).bool()


def test_there_are_catalan_many_trees():
    lengths = torch.arange(1, 13)
    value = structmax.log_partition(torch.zeros(12, 12, 12, dtype=torch.float64), structmax.BinaryTree(lengths))
    catalan = [math.comb(2 * n, n) // (n + 1) for n in range(12)]
    torch.testing.assert_close(value, torch.tensor(catalan, dtype=torch.float64).log())


def test_labels_multiply_the_count():
    value = structmax.log_partition(torch.zeros(4, 4, 3, dtype=torch.float64), structmax.BinaryTree(labelled=True))
    torch.testing.assert_close(value, torch.tensor(5.0 * 3**7, dtype=torch.float64).log())


@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_kernels_agree_with_the_plain_recursion(labels: int, scale: float):
    """Products at the first scale, log space at the others."""
    N, lengths = 17, torch.tensor([17, 12, 9])
    scores = scale * normal(3, N, N, *([labels] if labels else []))
    tangent = normal(*scores.shape, seed=1)
    value, marginals = kernel_numba.log_partition_and_marginals(scores, lengths=lengths)
    torch.testing.assert_close(kernel_numba.log_partition(scores, lengths=lengths), value, rtol=0, atol=0)
    curved = kernel_numba.marginals_jvp(scores, tangent, lengths=lengths)
    for b, n in enumerate(lengths.tolist()):
        leaf = scores[b].clone().requires_grad_()
        want = plain_log_partition(leaf, n)
        (gradient,) = torch.autograd.grad(want, leaf, create_graph=True)
        (hessian,) = torch.autograd.grad(gradient, leaf, tangent[b])
        torch.testing.assert_close(value[b], want, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(marginals[b], gradient, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(curved[b], hessian, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shift", [-700.0, 0.0, 1e4])
def test_a_shift_of_all_spans_moves_the_value_and_nothing_else(shift: float):
    scores, structure = normal(2, 150, 150), structmax.BinaryTree()
    moved = scores + shift
    gap = structmax.log_partition(moved, structure) - structmax.log_partition(scores, structure)
    torch.testing.assert_close(gap, torch.full_like(gap, 299 * shift), rtol=1e-11, atol=1e-9)
    got, want = structmax.marginals(moved, structure), structmax.marginals(scores, structure)
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


def test_long_inputs_in_float32_are_as_in_float64():
    scores, structure = 3 * normal(2, 120, 120), structmax.BinaryTree(torch.tensor([120, 77]))
    narrow = scores.float()
    want = structmax.log_partition(narrow.double(), structure)
    torch.testing.assert_close(structmax.log_partition(narrow, structure).double(), want, rtol=1e-6, atol=0)
    want = structmax.marginals(narrow.double(), structure)
    torch.testing.assert_close(structmax.marginals(narrow, structure).double(), want, rtol=1e-5, atol=1e-6)
    spans = structmax.marginals(narrow, structure).sum((-1, -2))
    torch.testing.assert_close(spans, torch.tensor([239.0, 153.0]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("labels", [0, 2])
def test_what_is_ignored_may_hold_anything(junk: float, labels: int):
    lengths = torch.tensor([5, 3, 0, 1])
    scores = normal(4, 6, 6, *([labels] if labels else []))
    past = torch.arange(6) >= lengths.unsqueeze(-1)
    ignored = below_diagonal(6) | past.unsqueeze(-1) | past.unsqueeze(-2)
    dirty = scores.clone()
    dirty[ignored] = junk
    structure = structmax.BinaryTree(lengths, labelled=bool(labels))
    for question in (structmax.log_partition, structmax.marginals, structmax.argmax):
        got, want = question(dirty, structure), question(scores, structure)
        assert torch.equal(got, want), question.__name__
    assert not structmax.marginals(dirty, structure)[ignored].any()
    tangent = normal(*scores.shape, seed=2)
    tangent[ignored] = junk
    got = kernel_numba.marginals_jvp(dirty, tangent, lengths=lengths)
    assert got.isfinite().all()
    assert not got[ignored].any()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_score_breaks_its_instance_alone(broken: float):
    scores, lengths = normal(2, 4, 4), torch.tensor([4, 4])
    scores[1, 1, 2] = broken
    value, marginals = kernel_numba.log_partition_and_marginals(scores, lengths=lengths)
    curved = kernel_numba.marginals_jvp(scores, scores, lengths=lengths)
    assert value[0].isfinite()
    assert value[1].isnan()
    for parts in (marginals, curved):
        assert parts[0].isfinite().all()
        assert parts[1].triu().isnan().sum() == 10


def test_a_forbidden_leaf_leaves_nothing():
    scores = normal(5, 5)
    scores[2, 2] = -math.inf
    structure = structmax.BinaryTree()
    assert structmax.log_partition(scores, structure) == -math.inf
    for question in (structmax.marginals, structmax.argmax, structmax.sample):
        assert not question(scores, structure).any()


def test_only_one_tree_left_by_forbidding():
    """Spans that do not begin at 0 are forbidden: the left-branching tree remains, also far from scores near 0."""
    N = 60
    for scale in (1.0, 100.0):
        scores = scale * normal(N, N)
        only = torch.eye(N, dtype=torch.bool)
        only[0] = True
        scores[~only] = -math.inf
        structure = structmax.BinaryTree()
        torch.testing.assert_close(structmax.log_partition(scores, structure), scores[only].sum())
        torch.testing.assert_close(structmax.marginals(scores, structure), only.double())
        assert torch.equal(structmax.argmax(scores, structure), only.double())
        assert torch.equal(structmax.sample(scores, structure), only.double())


@pytest.mark.parametrize("labels", [0, 3])
def test_decode_and_encode_are_inverse(labels: int):
    structure = structmax.BinaryTree(torch.tensor([6, 4, 1, 0]), labelled=bool(labels))
    scores = normal(4, 6, 6, *([labels] if labels else []))
    drawn = structmax.sample(scores, structure, (5,), generator=torch.Generator().manual_seed(0))
    spans = structure.decode(drawn)
    assert spans.shape == (5, 4, 11, 3 if labels else 2)
    assert torch.equal((spans[..., 0] >= 0).sum(-1), torch.tensor([11, 7, 1, 0]).expand(5, 4))
    assert torch.equal(structure.encode(spans, scores), drawn)
    assert torch.equal(structure.encode(spans.flip(-2), scores), drawn)


def test_decode_lists_parents_first_and_left_before_right():
    structure = structmax.BinaryTree()
    parts = structure.enumerate(torch.zeros(4, 4))
    assert structure.decode(parts)[1].tolist() == [[0, 3], [0, 0], [1, 3], [1, 2], [1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("labels", [0, 1, 3])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_backends_draw_the_same_from_the_same_noise(labels: int, scale: float):
    lengths = torch.tensor([7, 5, 2, 1, 0])
    scores = scale * normal(5, 7, 7, *([labels] if labels else []))
    structure = structmax.BinaryTree(lengths, labelled=bool(labels))
    draws = [
        structmax.sample(scores, structure, (50,), generator=torch.Generator().manual_seed(3), backend=backend)
        for backend in ("numba", "reference")
    ]
    assert torch.equal(*draws)


@pytest.mark.parametrize(
    ("structure", "shape", "message"),
    [
        (structmax.BinaryTree(), (4, 5), r"`scores` of a BinaryTree should have shape \(…, N, N\).*\(4, 5\)\.$"),
        (structmax.BinaryTree(), (4, 4, 3), r"should have shape \(…, N, N\).*Try BinaryTree\(..., labelled=True\)"),
        (structmax.BinaryTree(labelled=True), (2, 4, 4), r"labelled BinaryTree.*Try BinaryTree\(..., labelled=False\)"),
        (
            structmax.BinaryTree(torch.tensor([5])),
            (1, 4, 4),
            r"`lengths` should be between 0 and 4, the number of leaves",
        ),
        (
            structmax.BinaryTree(torch.tensor([1, 2])),
            (3, 4, 4),
            r"`lengths` should broadcast to the batch shape \(3,\)",
        ),
    ],
)
def test_messages(structure: structmax.BinaryTree, shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        structmax.log_partition(torch.zeros(shape), structure)
