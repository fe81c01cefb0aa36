"""What the laws do not say about semi-Markov chains: counts, long inputs, wide ranges, seeing and writing segments."""

import math

import pytest
import torch

import structmax
from structmax import SemiMarkov
from structmax.structures.semi_markov import kernel_numba
from structmax.testing import same


def draw(rows, n, w, c, *, positions=False, widths=False, dtype=torch.float64, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    before = (n - 1, w) if widths else (n - 1,) if positions else ()
    shapes = (rows, n, w, c), (rows, *before, c, c)
    return SemiMarkov.Parts(*(scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes))


def answers(scores, structure, backend):
    """Value, marginals, and the gradient of a function of the marginals."""
    leaves = tuple(t.clone().requires_grad_() for t in scores)
    value = structmax.log_partition(leaves, structure, backend=backend)
    mu = structmax.marginals(leaves, structure, backend=backend)
    weighted = sum((m * torch.linspace(-1, 1, m.numel(), dtype=m.dtype).reshape(m.shape)).sum() for m in mu)
    return value.detach(), *(m.detach() for m in mu), *torch.autograd.grad(weighted, leaves)


def test_counts_compositions_times_labels():
    n, w, c = 9, 3, 2
    count = [1]
    for p in range(1, n + 1):
        count.append(c * sum(count[max(0, p - w) : p]))
    scores = torch.zeros(n, n, w, c, dtype=torch.float64), torch.zeros(c, c, dtype=torch.float64)
    lengths = torch.arange(1, n + 1)
    got = structmax.log_partition(scores, SemiMarkov(lengths))
    same("log of the number of segmentations", got, torch.tensor(count[1:], dtype=torch.float64).log())


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_kernels_equal_the_reference_at_larger_sizes(positions, scale):
    scores = draw(3, 12, 5, 7, positions=positions, scale=scale)
    structure = SemiMarkov(torch.tensor([12, 1, 9]))
    pairs = zip(answers(scores, structure, "numba"), answers(scores, structure, "reference"), strict=True)
    for got, want in pairs:
        same("numba", got, want, 1e-9)


@pytest.mark.parametrize("positions", [False, True])
def test_draws_are_those_of_the_reference(positions):
    scores = draw(2, 7, 3, 3, positions=positions)
    structure = SemiMarkov(torch.tensor([7, 4]))
    got, want = (
        structmax.sample(scores, structure, (50,), generator=torch.Generator().manual_seed(3), backend=backend)
        for backend in ("numba", "reference")
    )
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.thorough
def test_float32_is_accurate_on_long_inputs():
    exact = draw(1, 3000, 4, 5)
    rounded = tuple(t.float() for t in exact)
    exact = tuple(t.double() for t in rounded)
    for got, want in zip(answers(rounded, SemiMarkov(), "numba"), answers(exact, SemiMarkov(), "numba"), strict=True):
        same("float32", got.double(), want, 1e-4)


def test_transitions_that_underflow_beside_others_still_count():
    # The label that most mass is on leads nowhere: a product of float32 numbers would lose the other.
    segment = torch.tensor([[[0.0, -300.0]], [[0.0, 0.0]]])
    pairwise = torch.tensor([[-math.inf, -math.inf], [-math.inf, 0.0]])
    value = structmax.log_partition((segment, pairwise), SemiMarkov())
    assert value.item() == -300.0
    mu = structmax.marginals((segment, pairwise), SemiMarkov())
    assert torch.equal(mu.pairwise, torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize("positions", [False, True])
def test_nan_stays_in_its_instance(positions):
    scores = draw(3, 5, 2, 3, positions=positions)
    clean = answers(scores, SemiMarkov(), "numba")
    for tensor in scores:
        tensor[1].view(-1)[1] = math.nan
    spoilt = answers(scores, SemiMarkov(), "numba")
    for got, want in zip(spoilt, clean, strict=True):
        assert torch.equal(got[::2], want[::2])
        assert got[1][want[1] != 0].isnan().all()


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_matrices_for_each_width_that_are_the_same_are_matrices_for_each_position(scale):
    scores = draw(3, 7, 3, 4, positions=True, scale=scale)
    structure = SemiMarkov(torch.tensor([7, 1, 5]))
    segment, pairwise = (t.requires_grad_() for t in scores)
    by_width = pairwise.unsqueeze(2).expand(3, 6, 3, 4, 4)
    got, want = ((segment, by_width), structure), (scores, structure)
    same("log_partition", structmax.log_partition(*got), structmax.log_partition(*want), 1e-9)
    same("entropy", structmax.entropy(*got), structmax.entropy(*want), 1e-9)
    mu, marginals = structmax.marginals(*got), structmax.marginals(*want)
    same("segments", mu.segment, marginals.segment, 1e-9)
    same("transitions", mu.pairwise.sum(2), marginals.pairwise, 1e-9)
    best, expected = structmax.argmax(*got), structmax.argmax(*want)
    assert torch.equal(best.segment, expected.segment)
    assert torch.equal(best.pairwise.sum(2), expected.pairwise)
    assert torch.equal(best.pairwise.sum(3), best.segment[:, 1:])
    weight = torch.linspace(-1, 1, segment.numel(), dtype=segment.dtype).reshape(segment.shape)
    for one, other in zip(
        torch.autograd.grad((mu.segment * weight).sum(), (segment, pairwise)),
        torch.autograd.grad((marginals.segment * weight).sum(), (segment, pairwise)),
        strict=True,
    ):
        same("gradient of the marginals", one, other, 1e-9)


def test_width_and_label_before_can_matter_together():
    # After label 0 a segment of label 1 is worth having if it is 2 wide, after label 1 if it is 1 wide.
    pairwise = torch.zeros(2, 2, 2, 2)
    pairwise[0, 1, 0, 1] = pairwise[0, 0, 1, 1] = 1.0
    segment = torch.zeros(3, 2, 2)
    segment[:, :, 0] = -5.0
    segment[0, 0, 0] = 1.0
    structure = SemiMarkov()
    assert structure.decode(structmax.argmax((segment, pairwise), structure))[:2].tolist() == [[0, 1, 0], [1, 2, 1]]
    segment[0, 0, 0] = -5.0
    best = structure.decode(structmax.argmax((segment, pairwise), structure))
    assert best.tolist() == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]


def test_kernels_leave_matrices_for_each_width_to_the_recursion():
    scores = draw(2, 3, 2, 2, widths=True)
    assert kernel_numba.refuses("argmax", list(scores), {}) == "pairwise scores depend on the width"
    assert kernel_numba.refuses("argmax", list(draw(2, 3, 2, 2)), {}) is None
    structure = SemiMarkov(torch.tensor([3, 2]))
    for got, want in zip(answers(scores, structure, "numba"), answers(scores, structure, "reference"), strict=True):
        same("numba", got, want)


def test_segments_go_there_and_back():
    for choice in ({}, {"positions": True}, {"widths": True}):
        scores = draw(2, 6, 3, 4, **choice, dtype=torch.float32)
        structure = SemiMarkov(torch.tensor([6, 0]))
        parts = structmax.sample(scores, structure, (20,), generator=torch.Generator().manual_seed(0))
        segments = structure.decode(parts)
        assert segments.shape == (20, 2, 6, 3)
        assert segments.dtype == torch.int64
        assert bool((segments[:, 1] == -1).all())
        back = structure.encode(segments, scores)
        assert all(torch.equal(a, b) for a, b in zip(back, parts, strict=True))
        labels = structure.labels_per_position(parts)
        for rows, per_position in zip(segments[:, 0].tolist(), labels[:, 0].tolist(), strict=True):
            written = [label for _, width, label in rows if width > 0 for _ in range(width)]
            assert per_position == written
        assert bool((labels[:, 1] == -1).all())


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        (torch.zeros(3, 2, 2), TypeError, r"should be two tensors \(segment, pairwise\), but are one tensor"),
        ((torch.zeros(3, 2), torch.zeros(2, 2)), ValueError, r"\(…, N, W, C\).*but has \(3, 2\)"),
        ((torch.zeros(3, 2, 2), torch.zeros(3, 3)), ValueError, r"\(2, 2\), \(2, 2, 2\) or \(2, 2, 2, 2\) to match"),
        ((torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 2, 2)), ValueError, r"Did you include a start transition"),
        ((torch.zeros(3, 2, 2), torch.zeros(3, 2, 2, 2)), ValueError, r"Did you include a start transition"),
        ((torch.zeros(3, 2, 2), torch.zeros(2, 2).double()), TypeError, r"dtype of `segment`, torch.float32"),
        ((torch.zeros(2, 2, 2), torch.zeros(2, 2)), ValueError, r"between 0 and 2, the number of positions"),
    ],
)
def test_messages(scores, error, message):
    with pytest.raises(error, match=message):
        structmax.log_partition(scores, SemiMarkov(torch.tensor(3)))
