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


def entropic(scores, rows, columns, partial, close=1e-9, **how):
    fields = {"rows": torch.tensor(rows), "columns": torch.tensor(columns), "partial": partial}
    there = {key: field.to(DEVICE) if isinstance(field, torch.Tensor) else field for key, field in fields.items()}
    how = {"temperature": 1.0, "tol": 1e-12, "max_iter": 1000, **how}
    got = [t.cpu() for t in kernel_triton.sinkhorn(scores.to(DEVICE), **there, **how)]
    want = reference.sinkhorn(scores, **fields, **how)
    for one, other in zip(got[:2], want[:2], strict=True):
        torch.testing.assert_close(one, other, atol=close, rtol=close, equal_nan=True)
    assert torch.equal(got[4], want[4])
    assert [t.dtype for t in got] == [t.dtype for t in want]
    return got


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("shape", [(5, 5), (3, 6), (6, 3)])
def test_entropic_matchings(monkeypatch, shape, partial):
    """Plain, with −inf, smaller than its table, whose padding is NaN, empty, and with NaN: four lines to a tile."""
    monkeypatch.setattr(kernel_triton, "LINES", 64)
    generator = torch.Generator().manual_seed(sum(shape))
    scores = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    # one row has a single column, so that nobody else has it in a matching of all
    scores[1, 0, 1:], scores[1, 2, 1] = -math.inf, -math.inf
    scores[2, -1], scores[2, :, -1] = math.nan, math.nan
    scores[4, 0, 0] = math.nan
    rows, columns = ([size, size, size - 1, size * spare, size] for size, spare in zip(shape, (0, 1), strict=True))
    got = entropic(scores, rows, columns, partial)
    assert got[4].tolist() == [True, True, True, True, False]
    assert got[3][3] == 0


@pytest.mark.parametrize("partial", [False, True])
def test_entropic_matchings_at_low_temperatures(partial):
    """Where Sinkhorn's steps are slow, Newton's are taken: after a few dozen passes nothing is left of the error."""
    scores = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for temperature in (0.1, 1e-3):
        passes = entropic(scores, [4, 4], [5, 4], partial, temperature=temperature)[3]
        assert passes.max() < 100


@pytest.mark.parametrize("partial", [False, True])
def test_entropic_matchings_of_masks(partial):
    """Scores far from 0: one pair, a row, all of a table in float32, whose sums are −inf there, and a large offset."""
    scores = torch.randn(5, 3, 3, generator=torch.Generator().manual_seed(2)).round(decimals=2)
    scores[0, 0, 0], scores[1, 1] = -1e30, -1e12
    scores[2] = torch.finfo(torch.float32).min
    scores[3, :, 1:] = -1e20
    scores[4, 1, 1] = 1e30
    got = entropic(scores, [3] * 5, [3] * 5, partial, tol=1e-9, close=1e-5)
    assert got[4].all()
    assert partial or got[1][2] == -math.inf


def test_an_entropic_matching_says_that_it_has_not_converged():
    scores = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(DEVICE)
    size = torch.tensor([4], device=DEVICE)
    out = kernel_triton.sinkhorn(scores, rows=size, columns=size, partial=False, temperature=0.1, tol=1e-9, max_iter=3)
    assert not out[4].any()
    assert out[2].item() > 1e-9
