"""The Triton kernel of matchings against the reference: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

from structmax.structures.matching import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def best(scores, rows, columns, partial):
    fields = {"rows": torch.tensor(rows), "columns": torch.tensor(columns), "partial": partial}
    there = {key: field.to(DEVICE) if isinstance(field, torch.Tensor) else field for key, field in fields.items()}
    got = kernel_triton.argmax(scores.to(DEVICE), **there).cpu()
    want = reference.argmax(scores, **fields)
    assert torch.equal(got.isnan(), want.isnan())
    got, want = got.nan_to_num(), want.nan_to_num()
    assert (got.sum(1) <= 1).all()
    assert (got.sum(2) <= 1).all()
    assert torch.equal(got.sum((1, 2)) > 0, want.sum((1, 2)) > 0)
    for one, other, given in zip(got, want, scores, strict=True):
        torch.testing.assert_close(given[one > 0].double().sum(), given[other > 0].double().sum(), atol=1e-9, rtol=1e-6)
    return got


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (6, 2)])
def test_random_scores(shape, partial):
    """Plain, with −inf, with ties, and smaller than its table, whose padding is NaN."""
    generator = torch.Generator().manual_seed(sum(shape))
    scores = torch.randn(4, *shape, generator=generator)
    scores[1] = scores[1].masked_fill(torch.rand(shape, generator=generator) < 0.4, -math.inf)
    scores[2] = scores[2].round()
    rows, columns = [shape[0]] * 3 + [shape[0] - 1], [shape[1]] * 3 + [shape[1] - 1]
    scores[3, -1], scores[3, :, -1] = math.nan, math.nan
    got = best(scores, rows, columns, partial)
    assert partial or got[0].sum() == min(shape)


def test_rows_that_war_over_one_column():
    """All prefer the same columns, so that bids end and paths are long."""
    value = torch.arange(6, 0, -1.0)
    best((value[:, None] * value[None]).unsqueeze(0), [6], [6], False)


def test_what_is_not_feasible_and_what_is_no_number():
    scores = torch.zeros(4, 2, 2)
    scores[0, 0] = -math.inf
    scores[1, 1, 1] = math.nan
    scores[2, 0, 1] = math.inf
    scores[3] = torch.finfo(torch.float32).min
    got = best(scores, [2] * 4, [2] * 4, False)
    # the sum of two is −inf in float32
    assert (got[[0, 3]] == 0).all()


def test_scores_at_the_end_of_their_range():
    greatest = torch.finfo(torch.float64).max
    scores = torch.tensor([[[greatest, -greatest], [-greatest, 0.0]]], dtype=torch.float64)
    assert torch.equal(best(scores, [2], [2], False)[0], torch.eye(2, dtype=torch.float64))


def test_large_tables_are_refused():
    wide = torch.empty(1, 1, kernel_triton.LARGEST + 1)
    want = f"a program has lanes for {kernel_triton.LARGEST} rows or columns"
    assert kernel_triton.refuses("argmax", [wide], {}) == want
    assert kernel_triton.refuses("argmax", [wide[..., 1:]], {}) is None


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 2)])
def test_potentials(monkeypatch, shape, partial):
    """Sums held at 1 and others, two parts that nothing couples, a smaller instance in NaN, and one with NaN."""
    # two rows to a tile
    monkeypatch.setattr(kernel_triton, "TILE", 32)
    generator = torch.Generator().manual_seed(sum(shape))
    scores = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    scores[1, :2, 1:], scores[1, 2:, :1] = -math.inf, -math.inf
    fields = {
        "rows": torch.tensor([shape[0]] * 2 + [shape[0] - 1, shape[0]]),
        "columns": torch.tensor([shape[1]] * 2 + [shape[1] - 1, shape[1]]),
        "partial": partial,
    }
    scores[2, -1], scores[2, :, -1] = math.nan, math.nan
    mu = reference.sinkhorn(scores, **fields, temperature=1.0, tol=1e-12, max_iter=1000)[0]
    mu[3, 0, 0] = math.nan
    x = torch.randn(mu.shape, generator=generator, dtype=torch.float64) * mu.nan_to_num()
    there = {key: field.to(DEVICE) if isinstance(field, torch.Tensor) else field for key, field in fields.items()}
    got = kernel_triton.potentials(mu.to(DEVICE), x.to(DEVICE), **there, tol=1e-12).cpu()
    want = reference.potentials(mu, x, **fields, tol=1e-12)
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9, equal_nan=True)
