"""The Triton kernels of linear chains against the reference in float64: on a GPU, or under Triton's interpreter."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.numerics.kernel_triton import active_set
from structmax.structures.linear_chain import kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Labels, and entries of the largest tile: matrices in one tile, and in two strips of which the last is not full.
TILES = [(1, 16384), (3, 16384), (3, 8)]
BIG = 2.0**20


def drawn(C, shared, N=4):
    """Scores of four instances: some parts forbidden, a short one, one without positions, one with nothing feasible.

    What stands behind the lengths is NaN.
    """
    generator = torch.Generator().manual_seed(C)
    shape = (4, C, C) if shared else (4, N - 1, C, C)
    unary, pairwise = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((4, N, C), shape))
    lengths = torch.tensor([N, N - 1, 0, N])
    if C > 1:
        unary[0, 1, 0] = -math.inf
        pairwise[0] = pairwise[0].masked_fill(torch.rand(pairwise[0].shape, generator=generator) < 0.2, -math.inf)
    unary[3, 1] = -math.inf
    for b, length in enumerate(lengths.tolist()):
        unary[b, length:] = math.nan
        if not shared:
            pairwise[b, max(0, length - 1) :] = math.nan
    return (unary, pairwise), lengths, generator


def there(*tensors):
    return tuple(t.to(DEVICE) for t in tensors)


def same(got, want, tolerance=1e-11):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, atol=tolerance, rtol=tolerance, equal_nan=True)


def wanted(question, scores, lengths):
    return question(scores, structmax.LinearChain(lengths), backend="reference")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("C", "walked"), TILES)
def test_values_and_marginals(C, walked, shared):
    scores, lengths, _ = drawn(C, shared)
    want = wanted(structmax.log_partition, scores, lengths), *wanted(structmax.marginals, scores, lengths)[:2]
    *given, L = there(*scores, lengths)
    sizes = kernel_triton._sizes(*given, walked)
    same([kernel_triton._log_partition(*given, L, sizes)], want[:1])
    # labels by both walks, and by what each label shares out
    for limit in (math.inf, -1.0):
        same(kernel_triton._marginals(*given, L, sizes, {torch.float64: limit}), want)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("C", "walked"), TILES)
def test_second_derivatives(C, walked, shared):
    scores, lengths, generator = drawn(C, shared)
    tangent = tuple(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in scores)
    leaves = tuple(t.clone().requires_grad_() for t in scores)
    mu = wanted(structmax.marginals, leaves, lengths)[:2]
    total = sum((torch.where(t == 0, 0.0, m * t)).sum() for m, t in zip(mu, tangent, strict=True))
    want = torch.autograd.grad(total, leaves)
    *given, L = there(*scores, *tangent, lengths)
    same(kernel_triton._tangents(*given, L, kernel_triton._sizes(*given[:2], walked)), want)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("C", "walked"), TILES)
def test_paths(C, walked, shared):
    scores, lengths, _ = drawn(C, shared)
    *given, L = there(*scores, lengths)
    sizes = kernel_triton._sizes(*given, walked)
    best = wanted(structmax.argmax, scores, lengths)[:2]
    same([t[:, 0] for t in kernel_triton._paths(*given, None, L, sizes)], best)
    # in one launch, where a matrix is one tile
    same(kernel_triton._best(*given, L, sizes), best)
    structure, seeded = structmax.LinearChain(lengths), torch.Generator().manual_seed(3)
    want = structmax.sample(scores, structure, (5,), generator=seeded, backend="reference")[:2]
    noise = torch.rand(4, 5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn_by = kernel_triton._paths(*given, *there(noise), L, sizes)
    same([t.movedim(1, 0) for t in drawn_by], want, 0.0)


def test_the_first_of_equals_wins():
    unary, pairwise = torch.zeros(1, 3, 4, dtype=torch.float64), torch.zeros(1, 4, 4, dtype=torch.float64)
    lengths = torch.tensor([3])
    y, _ = kernel_triton.argmax(*there(unary, pairwise), lengths=lengths.to(DEVICE))
    assert y.argmax(-1).tolist() == [[0, 0, 0]]


def test_nan_stays_in_its_instance():
    (unary, pairwise), lengths, _ = drawn(3, False)
    broken_unary, broken_pairwise = unary.clone(), pairwise.clone()
    broken_unary[0, 2, 1] = math.nan
    broken_pairwise[1, 0, 2, 2] = math.inf
    noise = torch.rand(4, 1, 4, dtype=torch.float64)
    *given, L, u = there(broken_unary, broken_pairwise, lengths, noise)
    want = kernel_triton.log_partition_and_marginals(*there(unary, pairwise), lengths=L)
    got = kernel_triton.log_partition_and_marginals(*given, lengths=L)
    answers = got[1:], kernel_triton.argmax(*given, lengths=L), kernel_triton.sample(*given, noise=u, lengths=L)
    tangents = kernel_triton.marginals_jvp(*given, *there(unary, pairwise), lengths=L)
    assert got[0][:2].isnan().all()
    same([t[2:] for t in got], [t[2:].cpu() for t in want], 0.0)
    for y_unary, y_pairwise in (*answers, tangents):
        for b, length in ((0, 4), (1, 3)):
            rows, matrices = y_unary[b].reshape(-1, 4, 3)[0], y_pairwise[b].reshape(-1, 3, 3, 3)[0]
            assert rows[:length].isnan().all()
            assert matrices[: length - 1].isnan().all()
            assert not rows[length:].any()
            assert not matrices[length - 1 :].any()
        assert not y_unary[2:].isnan().any()


@pytest.mark.parametrize("offset", [0.0, BIG])
def test_marginals_are_those_of_a_distribution_however_large_the_scores(offset):
    """In float32, where the digits of small scores are lost beside large ones."""
    (unary, pairwise), lengths, _ = drawn(3, False)
    unary, pairwise = (t.float() + offset for t in (unary, 1e4 * pairwise))
    pairwise[1, 1] -= 1e9
    L = lengths.to(DEVICE)
    _, mu, nu = (t.cpu() for t in kernel_triton.log_partition_and_marginals(*there(unary, pairwise), lengths=L))
    for b in (0, 1):
        for t in range(int(lengths[b]) - 1):
            torch.testing.assert_close(nu[b, t].sum(1), mu[b, t], atol=1e-4, rtol=0)
            torch.testing.assert_close(nu[b, t].sum(0), mu[b, t + 1], atol=1e-4, rtol=0)
            torch.testing.assert_close(mu[b, t].sum(), torch.tensor(1.0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    scores, lengths, _ = drawn(3, True)
    narrow = tuple(t.to(dtype) for t in scores)
    L = lengths.to(DEVICE)
    got = kernel_triton.log_partition_and_marginals(*there(*narrow), lengths=L)
    want = kernel_triton.log_partition_and_marginals(*there(*(t.float() for t in narrow)), lengths=L)
    assert [t.dtype for t in got] == [torch.float32, dtype, dtype]
    # Triton's interpreter cuts bfloat16 off instead of rounding.
    tolerance = 2.0**-7 if DEVICE == "cpu" and dtype == torch.bfloat16 else 0.0
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w.to(g.dtype), atol=0.0, rtol=tolerance)


def test_too_many_labels_are_refused():
    scores = torch.empty(1, 2, 8193, device="meta"), torch.empty(1, 8193, 8193, device="meta")
    assert kernel_triton.refuses("argmax", list(scores), {}) == "8193 labels are more than 8192"


def test_one_matrix_is_summed_in_parts():
    generator = torch.Generator().manual_seed(0)
    unary, pairwise = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((1, 70, 2), (1, 2, 2)))
    lengths = torch.tensor([68])
    want = wanted(structmax.marginals, (unary, pairwise), lengths)[:2]
    same(kernel_triton.log_partition_and_marginals(*there(unary, pairwise), lengths=lengths.to(DEVICE))[1:], want)


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_are_made_with_what_comes_back(shared):
    scores, lengths, generator = drawn(3, shared)
    d_value = torch.randn(4, generator=generator, dtype=torch.float64)
    chain, leaves = structmax.LinearChain(lengths), [s.requires_grad_() for s in scores]
    want = torch.autograd.grad(structmax.log_partition(tuple(leaves), chain, backend="reference"), leaves, d_value)
    own = [s.detach().to(DEVICE).requires_grad_() for s in scores]
    value = structmax.log_partition(tuple(own), structmax.LinearChain(lengths.to(DEVICE)), backend="triton")
    assert "KeptValue" in type(value.grad_fn).__name__
    for _ in range(2):
        same(torch.autograd.grad(value, own, d_value.to(DEVICE), retain_graph=True), want)
    again = torch.autograd.grad(value, own, d_value.to(DEVICE), create_graph=True)
    same([t.detach() for t in again], want)
    assert again[0].requires_grad


def test_one_matrix_whose_products_underflow_is_walked_in_logarithms():
    """What matters later may be nothing beside its neighbours now."""
    unary = torch.zeros(2, 4, 3, dtype=torch.float32)
    # the first instance can leave its best labels for another one only by way of the worst
    unary[0, 0] = torch.tensor([0.0, 0.0, -200.0])
    matrix = torch.tensor([[0.0, 0.0, -300.0], [0.0, 0.0, -300.0], [-300.0, -300.0, 0.0]])
    unary[0, 3] = torch.tensor([-900.0, -900.0, 0.0])
    scores = unary, matrix.expand(2, 3, 3).contiguous()
    lengths = torch.tensor([4, 4])
    want = wanted(structmax.marginals, tuple(s.double() for s in scores), lengths)[:2]
    given = there(*scores)
    got = kernel_triton.log_partition_and_marginals(*given, lengths=lengths.to(DEVICE))[1:]
    same([g.double() for g in got], want, 1e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length", [7, 6, 1, 0])
def test_segments_are_walked_side_by_side(shared, length):
    generator = torch.Generator().manual_seed(1)
    shape = (2, 3, 3) if shared else (2, 6, 3, 3)
    scores = tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in ((2, 7, 3), shape))
    scores[0][1, 2, 1] = -math.inf
    lengths = torch.tensor([7, length])
    want = wanted(structmax.log_partition, scores, lengths), *wanted(structmax.marginals, scores, lengths)[:2]
    *given, L = there(*scores, lengths)
    sizes = kernel_triton._sizes(*given)._replace(segment=2)
    same([kernel_triton._log_partition(*given, L, sizes)], want[:1])
    same(kernel_triton._marginals(*given, L, sizes, {torch.float64: math.inf}), want)
    best = wanted(structmax.argmax, scores, lengths)[:2]
    same([t[:, 0] for t in kernel_triton._paths(*given, None, L, sizes)], best)


def test_long_chains_of_few_instances_have_segments():
    def sizes(B, N, C):
        return kernel_triton._sizes(torch.empty(B, N, C, device="meta"), torch.empty(B, C, C, device="meta"))

    assert sizes(8, 1024, 20).segment == 32
    assert sizes(64, 128, 64).segment is None
    assert sizes(1, 3, 2).segment is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transitions_that_a_mask_leaves_sum_to_their_labels(dtype):
    unary = torch.tensor([[[1.0, 2.0], [-math.inf, 0.0]]], dtype=dtype)
    pairwise = torch.full((1, 2, 2), torch.finfo(dtype).min, dtype=dtype)
    given = there(unary, pairwise, torch.tensor([2]))
    _, labels, transitions = kernel_triton.log_partition_and_marginals(*given[:2], lengths=given[2])
    # nothing is left of the scores of labels beside such a mask
    assert labels.tolist() == [[[0.5, 0.5], [0.0, 1.0]]]
    assert transitions.tolist() == [[[0.0, 0.5], [0.0, 0.5]]]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("turns", [64, 1])
def test_sparse_maps(shared, turns, monkeypatch):
    """In one launch, and in many, between which room is made."""
    if turns == 1:
        monkeypatch.setattr(kernel_triton, "TURNS", 1)
        monkeypatch.setattr(active_set, "STRUCTURES", 1)
        monkeypatch.setattr(active_set, "PARTS", 1)
    scores, lengths, _ = drawn(3, shared)
    both = [
        structmax.sparsemap(
            there(*scores) if backend == "triton" else scores,
            structmax.LinearChain(lengths),
            temperature=3.0,
            backend=backend,
        )
        for backend in ("triton", "reference")
    ]
    same(*((result.value, *result.marginals[:2], result.converged) for result in both), 1e-9)
    assert int(both[0].counts.max()) > 2
    assert both[0].counts.cpu().tolist()[2:] == [1, 0]


def test_a_search_among_nothing_feasible_reads_its_own_pointers(monkeypatch):
    """A lane past the last label may win a tie on a GPU; in Triton's interpreter the last lane is made to here."""

    def last(x, axis, keepdims):
        return x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis=axis, keepdims=keepdims)

    monkeypatch.setattr(np, "nanargmax", last)
    run, labels = active_set.Supports.run, []

    def noting(supports, kernel, parts, more, *rest, **named):
        run(supports, kernel, parts, more, *rest, **named)
        labels.append(more[2].clone())

    monkeypatch.setattr(active_set.Supports, "run", noting)
    unary, pairwise = torch.zeros(2, 4, 3), torch.zeros(2, 3, 3, 3)
    unary[0, 2] = -math.inf
    result = structmax.sparsemap(there(unary, pairwise), structmax.LinearChain(), backend="triton")
    assert result.value[0] == -math.inf
    assert result.counts[0] == 0 < result.counts[1]
    assert all(((label >= 0) & (label < 3)).all() for label in labels)


def test_a_search_of_sequences_that_ends_early(monkeypatch):
    monkeypatch.setattr(kernel_triton, "TURNS", 2)
    scores = tuple(t[:2] for t in drawn(3, False)[0])
    with pytest.warns(UserWarning, match="did not converge in . of 2 instances after max_iter=3"):
        result = structmax.sparsemap(
            there(*(0.01 * t for t in scores)),
            structmax.LinearChain(torch.tensor([4, 3])),
            max_iter=3,
            backend="triton",
        )
    assert int(result.iterations.max()) == 3


@pytest.mark.parametrize("shared", [232_448, 166_912, 101_376, 65_536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [3, 32, 64, 128, 500])
def test_matrices_that_are_loaded_ahead_fit_the_shared_memory(monkeypatch, labels, dtype, shared):
    monkeypatch.setattr(kernel_triton, "shared_memory", lambda _: shared)
    unary = torch.empty(2, 5, labels, dtype=dtype)
    sizes = kernel_triton._sizes(unary, unary.new_empty(2, 4, labels, labels))
    for matrices in (1, 2):
        (_, span, strip, stages), _ = sizes.walk(matrices)
        assert 1 <= stages <= 4
        assert (stages - 1) * span * strip * matrices * dtype.itemsize + kernel_triton.SPARE <= shared
