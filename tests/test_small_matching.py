"""Small matchings beyond the laws: counts, permanents by another formula, and their size."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import SmallMatching


def count(n: int, m: int, partial: bool) -> int:
    """How many matchings there are: choose k of each side, in any order."""
    sizes = range(min(n, m) + 1) if partial else [min(n, m)]
    return sum(math.comb(n, k) * math.comb(m, k) * math.factorial(k) for k in sizes)


def permanent(a: Tensor) -> float:
    """Ryser: (−1)^n Σ over sets S of columns of (−1)^|S| Π over rows of their sums over S."""
    n = len(a)
    sets = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)), dtype=a.dtype)
    sign = (-1.0) ** (n - sets.sum(1))
    return float((sign * (a @ sets.T).prod(0)).sum())


@pytest.mark.parametrize("partial", [False, True])
def test_log_partition_of_equal_scores_counts(partial):
    for n, m in ((1, 1), (4, 4), (6, 6), (3, 9), (9, 3), (2, 30), (12, 5)):
        rows = torch.arange(n + 1)
        got = structmax.log_partition(
            torch.zeros(n + 1, n, m, dtype=torch.float64), SmallMatching(rows, partial=partial)
        )
        want = torch.tensor([math.log(count(r, m, partial)) for r in range(n + 1)], dtype=torch.float64)
        torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


def test_twelve_by_twelve():
    scores = torch.zeros(12, 12, dtype=torch.float64, requires_grad=True)
    value = structmax.log_partition(scores, SmallMatching())
    assert value.item() == pytest.approx(math.log(math.factorial(12)), rel=1e-14)
    value.backward()
    torch.testing.assert_close(scores.grad, torch.full_like(scores, 1 / 12))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_permanent_by_ryser(n):
    weights = torch.rand(3, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    got = structmax.log_partition(weights.log(), SmallMatching()).exp()
    want = torch.tensor([permanent(a) for a in weights], dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=0.0)


def test_rows_and_columns_are_alike():
    scores = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for partial in (False, True):
        structure = SmallMatching(torch.tensor([3, 2]), torch.tensor([6, 1]), partial=partial)
        turned = SmallMatching(structure.columns, structure.rows, partial=partial)
        got = structmax.marginals(scores, structure)
        torch.testing.assert_close(got, structmax.marginals(scores.mT.contiguous(), turned).mT)


def test_draws_need_no_more_noise_than_they_get():
    structure = SmallMatching(torch.tensor([3, 3]), torch.tensor([3, 2]), partial=True)
    drawn = structmax.sample(torch.zeros(2, 3, 3), structure, (3000,), generator=torch.Generator().manual_seed(0))
    assert len(drawn[:, 0].flatten(1).unique(dim=0)) == count(3, 3, True)
    assert len(drawn[:, 1].flatten(1).unique(dim=0)) == count(3, 2, True)


def test_a_large_one_is_refused():
    with pytest.raises(ValueError, match=r"at most 12 rows or at most 12 columns.*13 rows and 14 columns.*`Matching`"):
        structmax.log_partition(torch.zeros(13, 14), SmallMatching())
