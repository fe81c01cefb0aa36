"""The Triton kernels of monotone alignments against plain recursions: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.structures.monotone_alignment import MonotoneAlignment, kernel_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = pytest.mark.parametrize("kind", ["warping", "gaps", "local"])


def structure_of(kind, rows=None, columns=None, band=None):
    return MonotoneAlignment(rows, columns, gaps=kind != "warping", local=kind == "local", band=band)


def draw(kind, B, N, M, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(N, M)] if kind == "warping" else [(N, M), (N, M + 1), (N + 1, M)]
    return tuple(torch.randn(B, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)


def asked(name, tensors, structure, **extras):
    """The kernel's outputs, and the reference's in float64."""
    count = 1 if not structure.gaps else 3
    there = tuple(t.to(DEVICE) for t in tensors)
    extras_there = {key: value.to(DEVICE) for key, value in extras.items()}
    got = getattr(kernel_triton, name)(*there, **extras_there, **structure.fields(there[:count]))
    wide = tuple(t.double() for t in tensors)
    function = structmax.backends.function(structure.room, name, "reference")
    want = function(*wide, **extras, **structure.fields(wide[:count]))
    listed = [(out,) if isinstance(out, torch.Tensor) else out for out in (got, want)]
    return [(g.cpu(), w) for g, w in zip(*listed, strict=True)]


@KINDS
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_every_question_agrees_with_the_reference(kind, dtype, atol, monkeypatch):
    # several tiles and several strips; padding, forbidden parts, nothing at all
    monkeypatch.setattr(kernel_triton, "TILE", (4, 4))
    monkeypatch.setattr(kernel_triton, "LANES", 4)
    N, M = 6, 3
    structure = structure_of(kind, torch.tensor([6, 2, 0]), torch.tensor([3, 3, 2]), band=4)
    scores, tangent = (draw(kind, 3, N, M, seed, dtype) for seed in (0, 1))
    scores[0][0, 3, 1] = scores[0][1, 1, 1] = -math.inf
    scores[0][2] = math.nan
    values = asked("log_partition", scores, structure) + asked("log_partition_and_marginals", scores, structure)
    for got, want in values:
        torch.testing.assert_close(got.double(), want, atol=atol, rtol=atol)
    for got, want in asked("marginals_jvp", (*scores, *tangent), structure):
        torch.testing.assert_close(got.double(), want, atol=4 * atol, rtol=0)
    noise = torch.rand(3, 2, N + M + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for got, want in asked("argmax", scores, structure) + asked("sample", scores, structure, noise=noise):
        assert torch.equal(got.double(), want)


@KINDS
def test_sizes_as_they_are_on_a_gpu(kind):
    structure = structure_of(kind)
    scores = draw(kind, 1, 3, 35)
    for name in ("log_partition_and_marginals", "argmax"):
        for got, want in asked(name, scores, structure):
            torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)


@KINDS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_stays_with_its_instance(kind, bad):
    structure = structure_of(kind)
    scores = draw(kind, 3, 3, 2)
    clean = asked("log_partition_and_marginals", scores, structure)
    scores[0][1, 1, 1] = bad
    there = tuple(t.to(DEVICE) for t in scores)
    fields = structure.fields(there)
    value, *parts = kernel_triton.log_partition_and_marginals(*there, **fields)
    assert value.isnan().tolist() == [False, True, False]
    for part, best, (_, want) in zip(parts, kernel_triton.argmax(*there, **fields), clean[1:], strict=True):
        assert part[1].isnan().cpu().equal(want[1] > 0)
        assert best[1].isnan().cpu().equal(want[1] > 0)
        assert not best[::2].isnan().any()
        torch.testing.assert_close(part[::2].cpu(), want[::2])


@KINDS
@pytest.mark.parametrize("low", [-1e30, torch.finfo(torch.float32).min])
def test_low_numbers_forbid_what_can_be_avoided(kind, low):
    structure = structure_of(kind)
    scores = draw(kind, 2, 3, 3, dtype=torch.float32)
    masks = tuple(torch.rand(t.shape, generator=torch.Generator().manual_seed(5)) < 0.2 for t in scores)
    finite, infinite = (
        tuple(t.masked_fill(m, number) for t, m in zip(scores, masks, strict=True)) for number in (low, -math.inf)
    )
    for name in ("log_partition_and_marginals", "argmax"):
        for (got, _), (_, want) in zip(asked(name, finite, structure), asked(name, infinite, structure), strict=True):
            torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-6)


def test_long_sums_keep_the_digits_of_float32():
    # −log Z is about 3000, of which float32 has no fourth digit behind the point
    walk = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    costs = (-(torch.cdist(walk[:1], walk[1:]) ** 2) - 200).float()
    (_, _), (got, want) = asked("log_partition_and_marginals", (costs,), MonotoneAlignment())
    torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=0)


def test_ties_go_to_the_first_move():
    zeros = draw("gaps", 1, 3, 3)
    zeros = tuple(torch.zeros_like(t) for t in zeros)
    for kind in ("warping", "gaps", "local"):
        tensors = zeros[: 1 if kind == "warping" else 3]
        for got, want in asked("argmax", tensors, structure_of(kind)):
            assert torch.equal(got, want)


def test_soft_dtw_and_its_gradient():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, n, 2, generator=generator, dtype=torch.float64, requires_grad=True) for n in (5, 4))
    values, gradients = [], []
    for backend in ("triton", "reference"):
        device = DEVICE if backend == "triton" else "cpu"
        value = structmax.soft_dtw(x.to(device), y.to(device), 0.3, band=3, backend=backend)
        values.append(value.detach().cpu())
        gradients.append(torch.autograd.grad(value.square().sum(), (x, y)))
    torch.testing.assert_close(*values)
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want)
