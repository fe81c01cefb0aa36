"""The Triton kernels of semi-Markov chains against the reference: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.structures.semi_markov import kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Widths, labels, and entries of a tile of segments: in one tile, and in two of which the last is not full.
TILES = [(1, 1, 2048), (3, 3, 2048), (3, 3, 8)]


def drawn(W, C, shared, N=4):
    """Scores of four instances: some parts forbidden, a short one, one without positions, one with nothing feasible.

    What passes the lengths is NaN.
    """
    generator = torch.Generator().manual_seed(C)
    shape = (4, C, C) if shared else (4, N - 1, C, C)
    segment, pairwise = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((4, N, W, C), shape))
    lengths = torch.tensor([N, N - 1, 0, N])
    if C > 1:
        for scores in (segment[0], pairwise[0]):
            scores.masked_fill_(torch.rand(scores.shape, generator=generator) < 0.2, -math.inf)
    segment[3] = -math.inf
    last = torch.arange(N)[:, None] + torch.arange(W)
    segment[(last >= lengths[:, None, None])] = math.nan
    if not shared:
        for b, length in enumerate(lengths.tolist()):
            pairwise[b, max(0, length - 1) :] = math.nan
    return (segment, pairwise), lengths, generator


def there(*tensors):
    return tuple(t.to(DEVICE) for t in tensors)


def same(got, want, tolerance=1e-11):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.cpu(), w, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("W", "C", "tile"), TILES)
def test_values_and_derivatives(W, C, tile, shared):
    scores, lengths, generator = drawn(W, C, shared)
    structure = structmax.SemiMarkov(lengths)
    tangent = tuple(torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in scores)
    leaves = tuple(t.clone().requires_grad_() for t in scores)
    value = structmax.log_partition(leaves, structure, backend="reference").detach()
    mu = structmax.marginals(leaves, structure, backend="reference")
    changes = torch.autograd.grad(mu, leaves, grad_outputs=tangent)
    *given, L = there(*scores, lengths)
    sizes = kernel_triton._sizes(*given, tile)
    same(kernel_triton._marginals(*given, None, L, sizes), (value, *(m.detach() for m in mu)))
    same(kernel_triton._marginals(*given, there(*tangent), L, sizes)[1:], changes)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("W", "C", "tile"), TILES)
def test_paths(W, C, tile, shared):
    scores, lengths, _ = drawn(W, C, shared)
    structure = structmax.SemiMarkov(lengths)
    *given, L = there(*scores, lengths)
    sizes = kernel_triton._sizes(*given, tile)
    best = structmax.argmax(scores, structure, backend="reference")
    same([t[:, 0] for t in kernel_triton._paths(*given, None, L, sizes)], best, 0.0)
    seeded = torch.Generator().manual_seed(3)
    want = structmax.sample(scores, structure, (5,), generator=seeded, backend="reference")
    noise = torch.rand(4, 5, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    same([t.movedim(1, 0) for t in kernel_triton._paths(*given, *there(noise), L, sizes)], want, 0.0)


def test_nan_stays_in_its_instance():
    (segment, pairwise), lengths, _ = drawn(2, 2, False)
    broken = segment.clone()
    broken[0, 1, 0, 1] = math.nan
    noise = torch.rand(4, 1, 8, dtype=torch.float64)
    *given, L, u = there(broken, pairwise, lengths, noise)
    want = kernel_triton.log_partition_and_marginals(*there(segment, pairwise), lengths=L)
    got = kernel_triton.log_partition_and_marginals(*given, lengths=L)
    assert got[0][0].isnan()
    same([t[1:] for t in got], [t[1:].cpu() for t in want], 0.0)
    answers = got[1:], kernel_triton.argmax(*given, lengths=L), kernel_triton.sample(*given, noise=u, lengths=L)
    tangents = kernel_triton.marginals_jvp(*given, *there(segment, pairwise), lengths=L)
    for y_segment, y_pairwise in (*answers, tangents):
        assert y_pairwise[0].isnan().all()
        assert y_segment[0].reshape(4, 2, 2)[:3].isnan().all()
        # the segment that passes the length
        assert not y_segment[0].reshape(4, 2, 2)[3, 1].any()
        assert not y_segment[1:].isnan().any()


def test_what_is_too_large_is_refused():
    wide, many = torch.empty(1, 2, 4097, 3, device="meta"), torch.empty(1, 2, 3, 129, device="meta")
    assert kernel_triton.refuses("argmax", [wide], {}) == "4097 widths are more than 4096"
    assert kernel_triton.refuses("argmax", [many], {}) == "129 labels are more than 128"


def test_matrices_by_width_are_left_to_the_recursion():
    shapes = (2, 3, 2, 2), (2, 2, 2, 2, 2)
    scores = [torch.empty(shape, device="meta") for shape in shapes]
    assert kernel_triton.refuses("argmax", scores, {}) == "pairwise scores depend on the width"
    assert kernel_triton.refuses("argmax", [scores[0], scores[1][:, :, 0]], {}) is None
