"""The Triton kernels of the proximal maps against the reference: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

from structmax.structures.proximal import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rows(n):
    """Spread, far apart, whole numbers with ties, a slope, some forbidden, all, padding in front, and no number."""
    x = torch.randn(9, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    x[1] = 1e6 * x[1].cumsum(0)
    x[2] = (2 * x[2]).round()
    x[3] = torch.arange(n).double() ** 2 / 10
    x[4, ::3] = -math.inf
    x[5] = -math.inf
    x[6, : n // 2] = -math.inf
    x[7, n // 2] = math.nan
    x[8, -1] = math.inf
    return x


@pytest.mark.parametrize("name", ["prox_tv", "prox_tv_shifted", "prox_oscar"])
@pytest.mark.parametrize("n", [40, 1, 2, 5, 33])
def test_equals_the_reference(name, n):
    x = rows(n)
    for lam in (0.3, 0.0, 5.0, torch.linspace(0, 1, 9)):
        there = lam.to(DEVICE) if isinstance(lam, torch.Tensor) else lam
        got = [t.cpu() for t in getattr(kernel_triton, name)(x.to(DEVICE), there)]
        want = getattr(reference, name)(x, lam)
        assert torch.equal(got[1], want[1])
        torch.testing.assert_close(got[0], want[0], atol=1e-11, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["prox_tv", "prox_oscar"])
def test_long_rows_whose_runs_merge_many_times(name):
    """A gap may be closed by what happens to a run further away, before it would have closed by itself."""
    x = torch.randn(4, 150, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[2:] = x[2:].cumsum(-1)
    got = [t.cpu() for t in getattr(kernel_triton, name)(x.to(DEVICE), 1.0 if name == "prox_tv" else 0.02)]
    want = getattr(reference, name)(x, 1.0 if name == "prox_tv" else 0.02)
    assert torch.equal(got[1], want[1])
    torch.testing.assert_close(got[0], want[0], atol=1e-11, rtol=1e-12)


@pytest.mark.parametrize("n", [40, 1, 5])
def test_means_of_groups(n):
    """Of runs and of clusters anywhere, some entries in none, with signs and without; more groups than a tile has."""
    generator = torch.Generator().manual_seed(n)
    v, y = torch.randn(2, 4, n, generator=generator, dtype=torch.float64)
    y[3] = math.nan
    groups = torch.randint(-1, n, (4, n), generator=generator, dtype=torch.int32)
    groups[1], groups[2] = groups[1].sort().values, -1
    groups[3, 0] = -1
    for signs in (None, y):
        there = None if signs is None else signs.to(DEVICE)
        got = kernel_triton.group_mean(v.to(DEVICE), groups.to(DEVICE), there).cpu()
        torch.testing.assert_close(got, reference.group_mean(v, groups, signs), equal_nan=True)


def test_float32_and_no_rows():
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for name in ("prox_tv", "prox_tv_shifted", "prox_oscar"):
        kernel, plain = getattr(kernel_triton, name), getattr(reference, name)
        y, groups = kernel(x, 0.2)
        assert y.dtype == torch.float32
        assert torch.equal(groups.cpu(), plain(x.cpu(), 0.2)[1])
        assert kernel(x[:0], 0.2)[0].shape == (0, 20)


def test_long_rows_are_refused():
    x = torch.empty(1, kernel_triton.LARGEST + 1)
    assert kernel_triton.refuses("prox_tv", [x], {}) == f"a program has lanes for {kernel_triton.LARGEST} entries"
    assert kernel_triton.refuses("prox_tv", [x[:, 1:]], {}) is None


@pytest.mark.parametrize("entropic", [False, True])
@pytest.mark.parametrize("n", [40, 1, 2, 33])
def test_blocks_of_permutahedra(n, entropic):
    """Spread, whole numbers, near each other, weights for each row and for all."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(4, n, generator=generator, dtype=torch.float64).sort(dim=-1, descending=True).values
    x[1] *= 30
    x[2] = x[2].cumsum(0).sort(descending=True).values
    weights = torch.randn(4, n, generator=generator, dtype=torch.float64).sort(dim=-1, descending=True).values
    for scale in (0.1, 1.0, 20.0):
        for w in (weights, weights[:1]):
            got = kernel_triton.isotonic_groups(x.to(DEVICE), w.to(DEVICE), scale, entropic).cpu()
            assert torch.equal(got, reference.isotonic_groups(x, w, scale, entropic))
