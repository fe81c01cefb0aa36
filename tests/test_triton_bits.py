"""The Triton kernels of independent bits against the reference: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.structures.bits import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def scores(n, dtype):
    """An instance with forbidden and far-away scores, one without items, a broken one, and one with padding of NaN."""
    x = 4 * draw(4, n, dtype=dtype)
    x[0, 0], x[0, n - 1], x[2, 0], x[3, -1] = -math.inf, -1e30, math.nan, math.nan
    return x, torch.tensor([n, 0, n - 1, n - 1])


@pytest.mark.parametrize(("n", "tile", "dtype"), [(3, 1024, "float64"), (6, 4, "float64"), (6, 16, "float32")])
def test_every_question_agrees_with_the_reference(n, tile, dtype, monkeypatch):
    # rows in one tile and in several, and several rows in a tile
    monkeypatch.setattr(kernel_triton, "TILE", tile)
    monkeypatch.setattr(kernel_triton, "PER_WARP", tile)
    dtype, tolerance = getattr(torch, dtype), 1e-13 if dtype == "float64" else 2e-6
    x, lengths = scores(n, dtype)
    tangent = draw(4, n, seed=1, dtype=dtype).masked_fill(x == -math.inf, math.nan)
    noise = torch.rand(4, 3, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    calls = {
        "log_partition": (),
        "log_partition_and_marginals": (),
        "marginals_jvp": (tangent,),
        "argmax": (),
        "max_marginals": (),
        "sample": (noise,),
        "project": (),
    }
    for name, more in calls.items():
        given = [t.to(DEVICE) for t in (x, *more)]
        out = getattr(kernel_triton, name)(*given, lengths=lengths.to(DEVICE))
        wide = [t.double() for t in (x, *more)]
        function = structmax.backends.function(structmax.Bits.room, name, "reference")
        wanted = function(*wide, lengths=lengths)
        for got, want in zip(*((t,) if isinstance(t, torch.Tensor) else t for t in (out, wanted)), strict=True):
            torch.testing.assert_close(got.cpu().double(), want, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_no_instances():
    x, lengths = torch.zeros(0, 3, device=DEVICE), torch.zeros(0, dtype=torch.int64, device=DEVICE)
    assert kernel_triton.log_partition(x, lengths).shape == (0,)
    assert kernel_triton.sample(x, torch.zeros(0, 2, 3, device=DEVICE), lengths).shape == (0, 2, 3)


def test_masks_and_large_scores():
    lowest = torch.finfo(torch.float32).min
    x, lengths = torch.tensor([[lowest, -1e30, 3e38, 200.0]]), torch.tensor([4])
    value, mu = kernel_triton.log_partition_and_marginals(x.to(DEVICE), lengths.to(DEVICE))
    assert mu.cpu().tolist() == [[0, 0, 1, 1]]
    torch.testing.assert_close(value.cpu(), reference.log_partition(x, lengths))
