"""Soft dynamic time warping against all its paths, one by one."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax.omega import Entropy, LocalL2, LocalTsallis


def series(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def paths(n, m):
    """All paths of cells from (0, 0) to (n − 1, m − 1)."""
    if n == 1 and m == 1:
        return [[(0, 0)]]
    steps = [(n - 1, m - 1), (n - 1, m), (n, m - 1)]
    return [[*path, (n - 1, m - 1)] for i, j in steps if i and j for path in paths(i, j)]


def path_costs(x, y, band=None):
    costs = ((x[:, None] - y[None]) ** 2).sum(-1)
    kept = [path for path in paths(len(x), len(y)) if band is None or all(abs(i - j) <= band for i, j in path)]
    return torch.stack([sum(costs[cell] for cell in path) for path in kept])


@pytest.mark.parametrize("temperature", [1e-6, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("band", [None, 1])
def test_soft_dtw_is_the_soft_minimum_over_all_paths(temperature, band):
    x, y = series(4, 2), series(5, 2, seed=1)
    want = -temperature * (-path_costs(x, y, band) / temperature).logsumexp(0)
    got = structmax.soft_dtw(x, y, temperature, band=band)
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    rounded = structmax.soft_dtw(x.float(), y.float(), temperature, band=band)
    assert rounded.item() == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize("omega", [Entropy(1e-8), LocalL2(1e-8), LocalTsallis(1.5, 1e-8)])
def test_every_regulariser_tends_to_dynamic_time_warping(omega):
    x, y = series(4, 2), series(5, 2, seed=1)
    assert structmax.soft_dtw(x, y, omega=omega).item() == pytest.approx(path_costs(x, y).min().item(), rel=1e-6)


def test_the_alignment_is_the_gradient_in_the_costs():
    x, y = series(2, 4, 3), series(2, 5, 3, seed=1)
    costs = structmax.squared_distance(x, y).requires_grad_()
    for omega in (Entropy(0.5), LocalL2(2.0)):
        value = structmax.soft_dtw(x, y, omega=omega, cost=lambda a, b: costs)
        (gradient,) = torch.autograd.grad(value.sum(), costs)
        alignment = structmax.soft_dtw_alignment(x, y, omega=omega)
        torch.testing.assert_close(alignment, gradient)
        assert alignment.sum((1, 2)).min() >= 5
    assert (structmax.soft_dtw_alignment(x, y, omega=LocalL2(0.5)) == 0).any()


@pytest.mark.parametrize(
    "ask", [structmax.soft_dtw, structmax.soft_dtw_alignment, structmax.soft_dtw_divergence, structmax.squared_distance]
)
def test_gradients(ask):
    x, y = series(2, 3, 2).requires_grad_(), series(2, 4, 2, seed=1).requires_grad_()
    keywords = {} if ask is structmax.squared_distance else {"temperature": 0.7}
    assert gradcheck(lambda a, b: ask(a, b, **keywords), (x, y), check_forward_ad=True)
    assert gradgradcheck(lambda a, b: ask(a, b, **keywords), (x, y))


def test_torch_func_agrees_with_autograd():
    x, y = series(3, 4, 2), series(3, 5, 2, seed=1)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(structmax.soft_dtw(leaf, y).sum(), leaf)
    got = torch.func.vmap(torch.func.grad(structmax.soft_dtw))(x, y)
    torch.testing.assert_close(got, want)


def test_lengths_cut_off_the_rest_whatever_it_is():
    x, y = series(3, 5, 2), series(3, 6, 2, seed=1)
    x_lengths, y_lengths = torch.tensor([5, 2, 3]), torch.tensor([1, 6, 4])
    want = [structmax.soft_dtw(x[k, :n], y[k, :m]) for k, (n, m) in enumerate(zip(x_lengths, y_lengths, strict=True))]
    for k in range(3):
        x[k, x_lengths[k] :] = math.nan
        y[k, y_lengths[k] :] = math.inf
    x.requires_grad_()
    y.requires_grad_()
    got = structmax.soft_dtw(x, y, x_lengths=x_lengths, y_lengths=y_lengths)
    torch.testing.assert_close(got, torch.stack(want))
    got.sum().backward()
    for leaf, lengths in ((x, x_lengths), (y, y_lengths)):
        assert leaf.grad.isfinite().all()
        for k in range(3):
            assert not leaf.grad[k, lengths[k] :].any()


def test_a_band_too_narrow_is_infinitely_costly():
    x, y = series(2, 1), series(5, 1).requires_grad_()
    value = structmax.soft_dtw(x, y, band=2)
    assert value == math.inf
    value.backward()
    assert not y.grad.any()


def test_any_cost_will_do():
    x, y = series(3, 2), series(4, 5, seed=1)
    seen = []

    def cost(a, b):
        seen.append((a.shape, b.shape))
        return (a[:, None, 0] - b[None, :, 4]).abs()

    value = structmax.soft_dtw(x, y, cost=cost)
    assert seen == [((3, 2), (4, 5))]
    want = structmax.soft_dtw(x[:, :1], y[:, 4:], cost=lambda a, b: torch.cdist(a, b))
    torch.testing.assert_close(value, want)


def test_leading_dimensions_broadcast():
    x, y = series(4, 2), series(3, 2, 5, 2, seed=1)
    got = structmax.soft_dtw(x, y)
    assert got.shape == (3, 2)
    torch.testing.assert_close(got[2, 1], structmax.soft_dtw(x, y[2, 1]))


# ---------------------------------------------------------------- the divergence


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 100.0])
def test_the_divergence_is_not_negative_and_zero_at_equality(temperature):
    x, y = series(20, 6, 2), series(20, 7, 2, seed=1)
    assert structmax.soft_dtw_divergence(x, y, temperature).min() > 0
    for same in (x, x.float() * 100 + 1000):
        leaf = same.clone().requires_grad_()
        value = structmax.soft_dtw_divergence(leaf, same, temperature)
        assert not value.any()
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        scale = (
            torch.autograd.grad(structmax.soft_dtw(leaf, y[:, :, :2].to(leaf), temperature).sum(), leaf)[0].abs().max()
        )
        assert gradient.abs().max() < 1e-5 * scale


def test_the_divergence_respects_lengths():
    x, y = series(2, 5, 2), series(2, 6, 2, seed=1)
    x_lengths, y_lengths = torch.tensor([5, 2]), torch.tensor([3, 6])
    got = structmax.soft_dtw_divergence(x, y, x_lengths=x_lengths, y_lengths=y_lengths)
    want = [
        structmax.soft_dtw_divergence(x[k, :n], y[k, :m])
        for k, (n, m) in enumerate(zip(x_lengths, y_lengths, strict=True))
    ]
    torch.testing.assert_close(got, torch.stack(want))


def test_equal_points_are_at_distance_zero_wherever_they_are():
    x = series(50, 3, dtype=torch.float32) + 1e4
    assert not structmax.squared_distance(x, x).diagonal().any()
    assert structmax.squared_distance(x.half(), x.half()).dtype == torch.float16


# ---------------------------------------------------------------- the barycentre


def test_the_barycentre_of_one_series_is_that_series():
    one = series(12, 2)
    found = structmax.soft_dtw_barycentre(one.expand(3, 12, 2), temperature=1e-3, init=one + 0.1, max_iter=500)
    assert found.converged
    assert (found.series - one).abs().max() < 0.02


def test_the_barycentre_is_a_minimum_and_says_when_it_is_not():
    many, lengths = series(4, 9, 2), torch.tensor([9, 5, 7, 3])
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    many[1, 5:] = math.nan
    found = structmax.soft_dtw_barycentre(many, weights, max_iter=1000, lengths=lengths)
    assert found.converged
    assert found.series.shape == (9, 2)
    z = found.series.clone().requires_grad_()
    total = (weights * structmax.soft_dtw(z, many, y_lengths=lengths)).sum()
    torch.testing.assert_close(total, found.value)
    (gradient,) = torch.autograd.grad(total, z)
    assert gradient.abs().max() < 1e-4
    hasty = structmax.soft_dtw_barycentre(many, weights, max_iter=2, lengths=lengths)
    assert hasty.iterations == 2
    assert not hasty.converged
    assert hasty.value > found.value


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_series_does_not_matter(unit):
    many = series(3, 6, 2)
    want = structmax.soft_dtw_barycentre(many, max_iter=1000)
    found = structmax.soft_dtw_barycentre(unit * many, temperature=unit**2, max_iter=1000)
    assert found.converged
    assert found.value.item() == pytest.approx(unit**2 * want.value.item(), rel=1e-6)


def test_a_barycentre_that_aligns_with_nothing_is_not_found():
    found = structmax.soft_dtw_barycentre(series(2, 9, 1), init=series(3, 1), band=2)
    assert found.value == math.inf
    assert not found.converged


def test_the_barycentre_is_as_long_as_its_start():
    found = structmax.soft_dtw_barycentre(series(3, 6, 1), init=torch.zeros(4, 1, dtype=torch.float64), max_iter=5)
    assert found.series.shape == (4, 1)


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: structmax.soft_dtw(series(3), series(3)), r"`x` should have shape \(…, N, D\).*unsqueeze"),
        (
            lambda: structmax.soft_dtw(series(3, 1), series(3, 2)),
            r"points of the same size, but have \(3, 1\) and \(3, 2\)",
        ),
        (
            lambda: structmax.soft_dtw(series(3, 1), series(3, 1), 0.5, omega=LocalL2(1.0)),
            r"Either `temperature` or `omega`",
        ),
        (lambda: structmax.soft_dtw(series(3, 1), series(3, 1), -1.0), r"`temperature` should be > 0"),
        (
            lambda: structmax.soft_dtw(series(3, 1), series(4, 1), cost=lambda a, b: torch.zeros(3, 3)),
            r"`cost\(x, y\)` should have shape \(…, N, M\) = \(…, 3, 4\), but has \(3, 3\)",
        ),
        (lambda: structmax.soft_dtw_barycentre(series(3, 1)), r"`series` should have shape \(S, M, D\)"),
        (lambda: structmax.soft_dtw_barycentre(series(3, 4, 1), series(2)), r"`weights` should have shape \(3,\)"),
        (
            lambda: structmax.soft_dtw_barycentre(series(2, 4, 1), lengths=torch.tensor([4, 0])),
            r"`lengths` should be at least 1",
        ),
    ],
)
def test_what_does_not_fit_is_said(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_distances_of_points_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match=r"points of the same size, but have \(5, 3\) and \(4, 2\)"):
        structmax.squared_distance(torch.zeros(5, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"`y`.*meta"):
        structmax.squared_distance(torch.zeros(5, 3), torch.zeros(4, 3, device="meta"))


def test_series_of_two_dtypes_are_compared_in_the_wider():
    x, y = series(4, 2, dtype=torch.float32).requires_grad_(), series(5, 2, seed=1).requires_grad_()
    value = structmax.soft_dtw(x, y)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, structmax.soft_dtw(x.double(), y))
    value.backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(y.grad, torch.autograd.grad(structmax.soft_dtw(x.detach().double(), y), y)[0])
