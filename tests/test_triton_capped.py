"""The Triton kernel of bounded probabilities against the reference: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

from structmax.structures.capped_simplex import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def same(name, *tensors):
    got = [t.cpu() for t in getattr(kernel_triton, name)(*(t.to(DEVICE) for t in tensors))]
    want = getattr(reference, name)(*tensors)
    # what is free is arbitrary where there is no number
    sound = ~want[0].isnan()
    assert torch.equal(got[1][sound], want[1][sound])
    torch.testing.assert_close(got[0], want[0], atol=1e-12, rtol=1e-12, equal_nan=True)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    return got


@pytest.mark.parametrize("name", ["csparsemax", "csoftmax"])
@pytest.mark.parametrize("n", [40, 1, 2, 5, 33])
def test_equals_the_reference(name, n):
    """Spread, far apart, ties, a score that swallows its bounds, forbidden entries, and no number."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(7, n, generator=generator, dtype=torch.float64)
    x[1], x[2] = 1e3 * x[1], x[2].round()
    x[3, 0], x[4, -1] = -1e20, 1e20
    x[6, n // 2] = math.nan
    lower = torch.rand(7, n, generator=generator, dtype=torch.float64) * 0.3 / n
    upper = lower + 0.1 + 2 * torch.rand(7, n, generator=generator, dtype=torch.float64) / n
    total = 0.5 * (lower + upper).sum(-1)
    same(name, x, lower, upper, total)
    # without bounds above, and with none below
    same(name, x, torch.zeros_like(x), torch.full_like(x, math.inf), torch.ones(7, dtype=torch.float64))
    x[5, 1:], lower[5, 1:], upper[5, 1:] = -math.inf, 0.0, 0.0
    same(name, x, lower, upper, 0.5 * (lower + upper).sum(-1))


@pytest.mark.parametrize("name", ["csparsemax", "csoftmax"])
def test_plateaus_and_kinks(name):
    """Where the bounds alone sum to the total, nothing is free; where an entry touches its bound, it is held."""
    x = torch.tensor([[1.0, -1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [2.0, 1.0, 0.5]], dtype=torch.float64)
    zeros, ones = torch.zeros_like(x), torch.ones_like(x)
    for total in (2.0, 1.0, 0.0, 3.0):
        same(name, x, zeros, ones, torch.full((4,), total, dtype=torch.float64))


def test_float32_and_no_rows():
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    zeros, half = torch.zeros_like(x), torch.full_like(x, 0.2)
    p, bound = kernel_triton.csparsemax(*(t.to(DEVICE) for t in (x, zeros, half, torch.ones(3))))
    want = reference.csparsemax(x, zeros, half, torch.ones(3))
    assert torch.equal(bound.cpu(), want[1])
    torch.testing.assert_close(p.cpu(), want[0])
    assert kernel_triton.csoftmax(x[:0], zeros[:0], half[:0], torch.ones(0))[0].shape == (0, 20)


def test_long_rows_are_refused():
    x = torch.empty(1, kernel_triton.LARGEST + 1)
    assert kernel_triton.refuses("csoftmax", [x], {}) == f"a program has lanes for {kernel_triton.LARGEST} entries"
    assert kernel_triton.refuses("csoftmax", [x[:, 1:]], {}) is None
