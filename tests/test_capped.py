"""Probabilities with bounds: budget, csparsemax and csoftmax."""

import math
from fractions import Fraction
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


def exactly(x: list[float], lower: list[float], upper: list[float], total: float) -> list[float]:
    """csparsemax of one row in rational numbers: τ between the two breakpoints where the mass passes the total."""
    scores, low, high, goal = [*map(Fraction, x)], [*map(Fraction, lower)], [*map(Fraction, upper)], Fraction(total)

    def clipped(tau: Fraction) -> list[Fraction]:
        return [min(max(s - tau, a), b) for s, a, b in zip(scores, low, high, strict=True)]

    points = sorted(s - bound for s, a, b in zip(scores, low, high, strict=True) for bound in (a, b))
    masses = [sum(clipped(point)) for point in points]
    k = max(i for i, mass in enumerate(masses) if mass >= goal)
    if masses[k] == goal:
        return [*map(float, clipped(points[k]))]
    share = (masses[k] - goal) / (masses[k] - masses[k + 1])
    return [*map(float, clipped(points[k] + share * (points[k + 1] - points[k])))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_far_apart_equal_rational_arithmetic(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0.3, 1.0, 1e9, 1e20, torch.finfo(dtype).max], dtype=torch.float64)
    for n in range(1, 7):
        size = sizes[torch.randint(5, (40, n), generator=generator)]
        x = (size * torch.randint(-2, 3, (40, n), generator=generator).clamp(-1, 1)).to(dtype)
        total = torch.randint(0, 2 * n + 1, (40, 1), generator=generator) / 2
        zeros, ones = [0.0] * n, [1.0] * n
        wanted = [exactly(row, zeros, ones, t) for row, (t,) in zip(x.tolist(), total.tolist(), strict=True)]
        close(structmax.budget(x, total.to(dtype)), torch.tensor(wanted, dtype=dtype), 1e-6)
        upper = torch.randint(1, 4, (40, n), generator=generator) / 2
        upper[:, 0] = 1.0
        lower = 0.25 * torch.randint(0, 2, (40, n), generator=generator) / n
        wanted = [exactly(*row, 1.0) for row in zip(x.tolist(), lower.tolist(), upper.tolist(), strict=True)]
        close(structmax.csparsemax(x, lower.to(dtype), upper.to(dtype)), torch.tensor(wanted, dtype=dtype), 1e-6)


def test_free_entries_of_a_csoftmax_may_be_far_below_the_others() -> None:
    tail = 0.4 * torch.tensor([0.0, -1.0, -2.0], dtype=torch.float64).softmax(0)
    for top in (120.0, 1e9, 1e30):
        x = torch.tensor([top, 0.0, -1.0, -2.0])
        close(structmax.csoftmax(x, upper=0.6), torch.cat([torch.tensor([0.6]), tail.float()]), 1e-6)
        x = torch.tensor([0.0, -top, -top, -top])
        close(structmax.csoftmax(x, upper=0.6), torch.tensor([0.6, 0.4 / 3, 0.4 / 3, 0.4 / 3]), 1e-6)


def jacobian(mapping: Any, x: Tensor) -> Tensor:
    """(B, n, n) of a mapping of rows (B, n)."""
    x = x.clone().requires_grad_()
    p = mapping(x)
    return torch.stack([torch.autograd.grad(p[:, i].sum(), x, retain_graph=True)[0] for i in range(x.shape[1])], 1)


@pytest.mark.parametrize("soft", [False, True])
def test_where_the_bounds_decide_the_gradient_is_zero(soft: bool) -> None:
    def rows(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    close(
        jacobian(lambda x: structmax.budget(x, 2), rows([[1, -1, 1], [0, -2, 0], [3, 1, 3]])), torch.zeros(3, 3, 3), 0
    )
    mapping = structmax.csoftmax if soft else structmax.csparsemax
    tied = rows([[1, 1, -80, -90], [1, -80, 1, -90]])
    close(jacobian(lambda x: mapping(x, upper=0.5), tied), torch.zeros(2, 4, 4), 1e-30)
    close(jacobian(lambda x: mapping(x, 0.2, 0.3), rows([[5, 0, 5, 0]])), torch.zeros(1, 4, 4), 1e-12)


@pytest.mark.parametrize("soft", [False, True])
def test_jacobians_equal_finite_differences(soft: bool) -> None:
    """Thousands of rows, many with all entries at their bounds; rows within a step of a kink are left out."""
    generator = torch.Generator().manual_seed(1)
    step, seen = 1e-6, 0
    for n in range(2, 6):
        # scores and bounds of few values: ties and plateaus abound
        x = torch.randint(-4, 5, (1000, n), generator=generator, dtype=torch.float64)
        x[500:] += torch.rand(500, n, generator=generator, dtype=torch.float64)
        lower = torch.randint(0, 2, (1000, n), generator=generator).double() * (0.5 / n)
        upper = lower + torch.randint(1, 4, (1000, n), generator=generator).double() * (0.5 / n)
        upper = torch.where(upper.sum(-1, keepdim=True) < 1, 1.0, upper)

        def mapping(z: Tensor, lower: Tensor = lower, upper: Tensor = upper) -> Tensor:
            return (structmax.csoftmax if soft else structmax.csparsemax)(z, lower, upper)

        here = mapping(x)
        moved = step * torch.eye(n, dtype=torch.float64)
        ahead = torch.stack([(mapping(x + moved[i]) - here) / step for i in range(n)], -1)
        behind = torch.stack([(here - mapping(x - moved[i])) / step for i in range(n)], -1)
        # A kink shows in the slopes of its two sides, along an axis or along a direction of chance.
        smooth = ((ahead - behind).abs() < 1e-4).all(-1).all(-1)
        for _ in range(4):
            way = torch.randn(1000, n, generator=generator, dtype=torch.float64)
            bend = mapping(x + step * way) + mapping(x - step * way) - 2 * here
            smooth &= (bend.abs() < 1e-4 * step).all(-1)
        seen += int(smooth.sum())
        close(jacobian(mapping, x)[smooth], (ahead + behind)[smooth] / 2, 1e-4)
    assert seen > 2000


def test_a_budget_of_nothing_is_nothing() -> None:
    x = normal(3, 4).requires_grad_()
    p = structmax.budget(x, torch.tensor([[0.0], [2.0], [0.0]], dtype=torch.float64))
    close(p[[0, 2]], torch.zeros(2, 4), 0.0)
    close(structmax.budget(x, 0), torch.zeros(3, 4), 0.0)
    assert torch.autograd.grad(p.square().sum(), x)[0].isfinite().all()
