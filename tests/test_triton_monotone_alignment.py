"""The Triton kernels of monotone alignments against plain recursions: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.numerics.kernel_triton.distances import squared_distance
from structmax.structures.monotone_alignment import MonotoneAlignment, kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = pytest.mark.parametrize("kind", ["warping", "gaps", "local"])


def structure_of(kind, rows=None, columns=None, band=None):
    return MonotoneAlignment(rows, columns, gaps=kind != "warping", local=kind == "local", band=band)


def draw(kind, B, N, M, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(N, M)] if kind == "warping" else [(N, M), (N, M + 1), (N + 1, M)]
    return tuple(torch.randn(B, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


def computed(name, tensors, structure, **extras):
    """The kernel's outputs."""
    there = tuple(t.to(DEVICE) for t in tensors)
    extras = {key: value.to(DEVICE) for key, value in extras.items()}
    out = getattr(kernel_triton, name)(*there, **extras, **structure.fields(there[: 3 if structure.gaps else 1]))
    return [t.cpu() for t in ((out,) if isinstance(out, torch.Tensor) else out)]


def wanted(name, tensors, structure, **extras):
    """The reference's outputs in float64."""
    wide = tuple(t.double() for t in tensors)
    function = structmax.backends.function(structure.room, name, "reference")
    out = function(*wide, **extras, **structure.fields(wide[: 3 if structure.gaps else 1]))
    return list((out,) if isinstance(out, torch.Tensor) else out)


def both(name, tensors, structure, **extras):
    outs = computed(name, tensors, structure, **extras), wanted(name, tensors, structure, **extras)
    return list(zip(*outs, strict=True))


@KINDS
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_every_question_agrees_with_the_reference(kind, dtype, atol, monkeypatch):
    # several tiles and several strips; padding, forbidden parts, nothing at all
    for name, value in {"TILE": (4, 4), "LANES": 4, "AHEAD": (2, 2)}.items():
        monkeypatch.setattr(kernel_triton, name, value)
    N, M = 5, 2
    structure = structure_of(kind, torch.tensor([5, 2, 0]), torch.tensor([2, 1, 2]), band=4)
    scores, tangent = (draw(kind, 3, N, M, seed, dtype) for seed in (0, 1))
    scores[0][0, 3, 1] = -math.inf
    scores[0][2] = math.nan
    for got, want in both("log_partition_and_marginals", scores, structure):
        torch.testing.assert_close(got.double(), want, atol=atol, rtol=atol)
    for got, want in both("marginals_jvp", (*scores, *tangent), structure):
        torch.testing.assert_close(got.double(), want, atol=4 * atol, rtol=0)
    noise = torch.rand(3, 2, N + M + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for got, want in both("argmax", scores, structure) + both("sample", scores, structure, noise=noise):
        assert torch.equal(got.double(), want)


@KINDS
@pytest.mark.parametrize(("N", "M"), [(2, 33), (33, 2)])
def test_sizes_as_they_are_on_a_gpu(kind, N, M):
    scores = draw(kind, 1, N, M)
    (value,) = computed("log_partition", scores, structure_of(kind))
    both_values, *parts = both("log_partition_and_marginals", scores, structure_of(kind))
    for got, want in ((value, both_values[1]), both_values, *parts):
        torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_stays_with_its_instance(kind, bad):
    structure = structure_of(kind)
    scores = draw(kind, 3, 2, 2)
    clean = wanted("log_partition_and_marginals", scores, structure)
    scores[0][1, 1, 1] = bad
    value, *parts = computed("log_partition_and_marginals", scores, structure)
    assert value.isnan().tolist() == [False, True, False]
    for part, best, want in zip(parts, computed("argmax", scores, structure), clean[1:], strict=True):
        assert part[1].isnan().equal(want[1] > 0)
        assert best[1].isnan().equal(want[1] > 0)
        assert not best[::2].isnan().any()
        torch.testing.assert_close(part[::2], want[::2])


@KINDS
def test_low_numbers_forbid_what_can_be_avoided(kind):
    structure, scores = structure_of(kind), draw(kind, 1, 3, 3, dtype=torch.float32)
    masks = tuple(torch.zeros_like(t, dtype=torch.bool) for t in scores)
    for mask in masks:
        # the diagonal stays
        mask[:, 0, 1] = mask[:, 2, 0] = True
    lowest = torch.finfo(torch.float32).min
    finite, infinite = (
        tuple(t.masked_fill(m, low) for t, m in zip(scores, masks, strict=True)) for low in (lowest, -math.inf)
    )
    for name in ("log_partition_and_marginals", "argmax"):
        for got, want in zip(computed(name, finite, structure), wanted(name, infinite, structure), strict=True):
            torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-6)


@KINDS
def test_where_all_is_masked_the_marginals_are_those_of_some_paths(kind):
    scores = tuple(torch.full_like(t, -1e15) + t for t in draw(kind, 1, 3, 3, dtype=torch.float32))
    _, *parts = computed("log_partition_and_marginals", scores, structure_of(kind))
    crossings = parts[0].sum(2) + (parts[1].sum(2) if kind != "warping" else 0)
    if kind == "local":
        assert not crossings.any()
    else:
        assert (crossings >= 1 - 1e-6).all()


def test_long_sums_keep_the_digits_of_float32():
    # −log Z is about 3000, of which float32 has no fourth digit behind the point
    walk = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    costs = (-(torch.cdist(walk[:1], walk[1:]) ** 2) - 200).float()
    (_, _), (got, want) = both("log_partition_and_marginals", (costs,), MonotoneAlignment())
    torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=0)


@KINDS
def test_ties_go_to_the_first_move(kind):
    ones = tuple(torch.ones_like(t) for t in draw(kind, 1, 2, 3))
    for got, want in both("argmax", ones, structure_of(kind)):
        assert torch.equal(got, want)


@KINDS
def test_paths_longer_than_the_moves_of_an_integer(kind):
    # as many moves as are kept with a place, one more, and about twice as many
    for N, M in ((1, 16), (2, 15), (14, 17)):
        scores = draw(kind, 2, N, M)
        for got, want in both("argmax", scores, structure_of(kind)):
            assert torch.equal(got, want)


@pytest.mark.parametrize("matches", [15, 16, 17])
def test_a_local_path_starts_where_the_moves_of_an_integer_end(matches):
    # a diagonal, behind a cell that is not worth a match
    N = matches + 1
    scores = tuple(torch.full_like(t, -10) for t in draw("local", 1, N, N))
    scores[0][0].diagonal()[1:] = 1.0
    for got, want in both("argmax", scores, structure_of("local")):
        assert torch.equal(got, want)


def test_an_instance_of_too_many_places_is_refused():
    scores = torch.empty(1, 2**16, 2**15, device="meta")
    assert "at most 2147483647 places" in kernel_triton.refuses("argmax", [scores], {})
    assert kernel_triton.refuses("argmax", [scores[:, :, :-2]], {}) is None


def test_soft_dtw_and_its_gradient():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, n, 2, generator=generator, dtype=torch.float64, requires_grad=True) for n in (4, 3))
    values, gradients = [], []
    for backend in ("triton", "reference"):
        device = DEVICE if backend == "triton" else "cpu"
        value = structmax.soft_dtw(x.to(device), y.to(device), 0.3, band=2, backend=backend)
        values.append(value.detach().cpu())
        gradients.append(torch.autograd.grad(value.square().sum(), (x, y)))
    torch.testing.assert_close(*values)
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 5, 70, 1), (1, 2, 66, 4, 3), (2, 0, 3, 3, 2), (1, 1, 3, 2, 0)])
def test_squared_distances(shape, dtype):
    *batch, N, M, D = shape
    x, y = (torch.randn(*batch, n, D, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (N, M))
    want = (x.unsqueeze(-2).double() - y.unsqueeze(-3).double()).square().sum(-1).to(dtype)
    got = squared_distance(x.to(DEVICE), y.to(DEVICE)).cpu()
    torch.testing.assert_close(got, want)
    assert not squared_distance(x.to(DEVICE), x.to(DEVICE)).diagonal(dim1=-2, dim2=-1).any()
