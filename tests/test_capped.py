"""Probabilities with bounds: budget, csparsemax and csoftmax."""

import math
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from mapping_cases import close, normal
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax

MAPPINGS = [
    pytest.param(structmax.csparsemax, False, id="csparsemax"),
    pytest.param(structmax.csoftmax, True, id="csoftmax"),
]
on_both = pytest.mark.parametrize(("mapping", "soft"), MAPPINGS)


def bounds(rows: int, n: int) -> tuple[Tensor, Tensor]:
    """Random bounds that leave room: lower sums to about 0.3, upper to about n/3 or more than 1.2."""
    generator = torch.Generator().manual_seed(3)
    low = torch.rand(rows, n, generator=generator, dtype=torch.float64)
    low = 0.3 * low / low.sum(-1, keepdim=True)
    high = torch.rand(rows, n, generator=generator, dtype=torch.float64)
    return low, low + 0.1 + 2 * high / high.sum(-1, keepdim=True)


@on_both
@pytest.mark.parametrize("n", [2, 5, 40])
def test_equals_bisection(mapping: Any, soft: bool, n: int) -> None:
    x = torch.cat([normal(30, n), 8 * normal(30, n, seed=1), normal(10, n, seed=2).round()])
    lower, upper = bounds(70, n)
    p = mapping(x, lower, upper)
    wanted = oracles.capped(x.numpy(), lower.numpy(), upper.numpy(), np.ones(70), soft)
    close(p, wanted, 1e-12)
    close(p.sum(-1), torch.ones(70), 1e-12)
    # each bound is met exactly, never passed by a rounding
    assert ((p >= lower) & (p <= upper)).all()


@on_both
def test_loose_bounds_change_nothing(mapping: Any, soft: bool) -> None:
    x = normal(20, 6)
    plain = structmax.softmax(x) if soft else structmax.sparsemax(x)
    close(mapping(x), plain, 1e-12)
    close(mapping(x, upper=math.inf), plain, 1e-12)
    close(mapping(x.float()), plain.float(), 1e-6)


@on_both
def test_gradients_of_the_bounds(mapping: Any, soft: bool) -> None:
    x = (2 * normal(4, 5, seed=5)).requires_grad_()
    lower, upper = (bound.requires_grad_() for bound in bounds(4, 5))
    p = mapping(x, lower, upper)
    assert (p == lower).any()
    assert (p == upper).any()
    assert gradcheck(mapping, (x, lower, upper), check_forward_ad=True)
    assert gradgradcheck(mapping, (x, lower, upper))
    one_upper = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t, u: mapping(t, upper=u), (x, one_upper))
    along_columns = torch.full((5,), 0.35, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t, u: mapping(t, upper=u), (x, along_columns))
    # along another dim the bounds still have the scores' layout
    close(mapping(x.t(), lower.t(), upper.t(), 0).t(), p.detach(), 0.0)


@on_both
def test_bounds_that_leave_no_choice(mapping: Any, soft: bool) -> None:
    tight = torch.tensor([[0.2, 0.3, 0.5], [0.25, 0.25, 0.5]], dtype=torch.float64, requires_grad=True)
    x = normal(2, 3).requires_grad_()
    for p in (mapping(x, lower=tight), mapping(x, upper=tight), mapping(x, tight, tight)):
        close(p, tight.detach(), 1e-12)
        for gradient in torch.autograd.grad((p * normal(2, 3, seed=1)).sum(), (x, tight)):
            assert gradient.isfinite().all()
    close(mapping(torch.zeros(1, 1, dtype=torch.float64)), [[1.0]], 0.0)


@on_both
def test_masks_take_entries_and_their_bounds_away(mapping: Any, soft: bool) -> None:
    x = normal(3, 5)
    mask = torch.tensor([[True, False, True, True, True], [False] * 5, [True] * 5])
    p = mapping(x, 0.1, 0.5, mask=mask)
    close(p[0, [0, 2, 3, 4]], mapping(x[0, [0, 2, 3, 4]], 0.1, 0.5), 1e-12)
    close(p[1], torch.zeros(5), 0.0)
    close(mapping(x, 0.1, 0.5, lengths=torch.tensor([4, 0, 5]))[0, :4], mapping(x[0, :4], 0.1, 0.5), 1e-12)


@pytest.mark.parametrize("total", [0.3, 1.0, 2.0, 3.7, 5.0, 6.0])
def test_budget_equals_bisection(total: float) -> None:
    x = torch.cat([normal(30, 6), 5 * normal(20, 6, seed=1), normal(20, 6, seed=2).round()])
    zeros, ones = np.zeros((70, 6)), np.ones((70, 6))
    p = structmax.budget(x, total)
    close(p, oracles.capped(x.numpy(), zeros, ones, total * ones[:, 0], soft=False), 1e-12)
    assert ((p >= 0) & (p <= 1)).all()


def test_budget_of_one_is_sparsemax_and_of_n_is_everything() -> None:
    x = normal(20, 6)
    close(structmax.budget(x, 1), structmax.sparsemax(x), 1e-12)
    close(structmax.budget(x, 6), torch.ones(20, 6), 0.0)
    # many clear winners: exactly them
    far = torch.tensor([9.0, -9.0, 8.0, -8.0, 7.0], dtype=torch.float64)
    close(structmax.budget(far, 3), [1.0, 0.0, 1.0, 0.0, 1.0], 0.0)


def test_budget_gradients_and_shapes() -> None:
    x = normal(2, 3, 5, seed=4).requires_grad_()
    for shape in ((), (2,), (2, 3, 1), (2, 1, 1)):
        total = torch.full(shape, 1.7, dtype=torch.float64, requires_grad=True)
        assert gradcheck(structmax.budget, (x, total), check_forward_ad=True)
    assert gradgradcheck(structmax.budget, (x, torch.tensor(1.7, dtype=torch.float64, requires_grad=True)))
    assert gradcheck(lambda t: structmax.budget(t, 2, dim=1), (x.detach()[..., :1].requires_grad_(),))
