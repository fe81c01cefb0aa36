"""Gradients of the mappings: first and second derivatives, Jacobians of small vectors with ties, gradient of alpha."""

import functools
import math
from collections.abc import Callable

import oracles
import pytest
import torch
from mapping_cases import CASES, EVERY, KERNELS, Case, close, normal
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax

on_each_backend = pytest.mark.parametrize("backend", KERNELS)
on_each_mapping = pytest.mark.parametrize(("case", "backend"), EVERY)


# ---------------------------------------------------------------- first and second derivatives


def check_twice(function: Callable[..., Tensor], *inputs: Tensor, fast: bool) -> None:
    """First and second derivatives, forward and reverse: entry by entry, or along random directions if `fast`."""
    assert gradcheck(function, inputs, check_forward_ad=True, fast_mode=fast)
    assert gradgradcheck(function, inputs, fast_mode=fast)


@on_each_mapping
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradients_along_every_dim(case: Case, backend: str, dim: int) -> None:
    x = normal(2, 3, 2, seed=3).requires_grad_()
    check_twice(functools.partial(case, dim=dim, backend=backend), x, fast=backend != case.backends[0])


@on_each_mapping
def test_gradients_with_mask_and_lengths(case: Case, backend: str) -> None:
    x = normal(3, 5, seed=4).requires_grad_()
    mask = torch.tensor([[True, True, False, True, True], [True, True, True, True, True], [False] * 5])
    check_twice(functools.partial(case, mask=mask, backend=backend), x, fast=backend != case.backends[0])
    lengths = torch.tensor([3, 5, 0])
    check_twice(functools.partial(case, lengths=lengths, backend=backend), x, fast=backend != case.backends[0])


@on_each_backend
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 2.5])
def test_gradients_of_smoothed_max(backend: str, alpha: float) -> None:
    x = normal(2, 3, 2, seed=3).requires_grad_()
    for dim in range(3):
        check_twice(
            lambda t, d=dim: structmax.smoothed_max(t, alpha, d, backend=backend), x, fast=backend == "reference"
        )
    mask = torch.tensor([[[True, False]], [[False, False]]])
    # a row without an entry is −inf, which no finite difference likes: look at the others, and at its zero gradient
    check_twice(
        lambda t: structmax.smoothed_max(t, alpha, mask=mask, backend=backend)[0], x, fast=backend == "reference"
    )
    value = structmax.smoothed_max(x, alpha, mask=mask, backend=backend)
    (gradient,) = torch.autograd.grad(value[0].sum() + value[1].sum(), x)
    assert value[1].isneginf().all()
    close(gradient[1], torch.zeros(3, 2), 0.0)
    (gradient,) = torch.autograd.grad(structmax.smoothed_max(x, alpha, backend=backend).sum(), x)
    close(gradient, structmax.entmax(x, alpha, backend=backend).detach(), 1e-12)


@on_each_backend
def test_gradients_with_a_tensor_of_alphas(backend: str) -> None:
    x = normal(3, 1, 4, seed=5).requires_grad_()
    alpha = torch.tensor([1.2, 1.7, 2.4], dtype=torch.float64, requires_grad=True)
    check_twice(lambda t, a: structmax.entmax(t, a, backend=backend), x, alpha, fast=backend == "reference")
    check_twice(lambda t, a: structmax.smoothed_max(t, a, backend=backend), x, alpha, fast=backend == "reference")


# ---------------------------------------------------------------- Jacobians of many small vectors


def small_vectors(n: int) -> Tensor:
    """(2500, n): smooth points, one-hot solutions, whole numbers and multiples of 1/4 with ties."""
    return torch.cat(
        [
            normal(1000, n, seed=n),
            5 * normal(500, n, seed=n + 10),
            (1.2 * normal(500, n, seed=n + 20)).round(),
            (2 * normal(500, n, seed=n + 30)).round() / 4,
        ]
    )


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(B, n, n): ∂p_i / ∂x_j of each row."""
    x = x.clone().requires_grad_()
    p = function(x)
    rows = [torch.autograd.grad(p[:, i].sum(), x, retain_graph=True)[0] for i in range(x.shape[-1])]
    return torch.stack(rows, 1)


@on_each_backend
@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
def test_jacobian_is_its_formula_on_the_exact_support(backend: str, n: int, alpha: float) -> None:
    x = small_vectors(n)
    exact = {1.5: oracles.entmax15, 2.0: oracles.sparsemax}.get(alpha, lambda v: oracles.entmax(v, alpha))
    p = torch.as_tensor(exact(x.numpy()))
    s = torch.where(p > 0, p ** (2 - alpha), 0.0)
    wanted = torch.diag_embed(s) - s[:, :, None] * s[:, None, :] / s.sum(-1)[:, None, None]
    close(jacobian(lambda t: structmax.entmax(t, alpha, backend=backend), x), wanted, 1e-10)


OTHERS = [
    pytest.param(case, backend, id=f"{case.name}-{backend}")
    for case in CASES
    for backend in case.backends
    if case.name not in ("softmax", "sparsemax", "entmax15", "entmax_1.3")
]


@pytest.mark.parametrize(("case", "backend"), OTHERS)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_jacobian_equals_finite_differences_away_from_kinks(case: Case, backend: str, n: int) -> None:
    x = small_vectors(n)
    function = functools.partial(case, backend=backend)
    step = 1e-6
    with torch.no_grad():
        here = function(x)
        ahead = torch.stack([function(x + step * e) for e in torch.eye(n, dtype=x.dtype)], -1)
        behind = torch.stack([function(x - step * e) for e in torch.eye(n, dtype=x.dtype)], -1)
    up, down = (ahead - here[..., None]) / step, (here[..., None] - behind) / step
    size = 1 + up.abs().amax((1, 2)).maximum(down.abs().amax((1, 2)))
    smooth = (up - down).abs().amax((1, 2)) < 1e-4 * size
    # random points are smooth; ties need not be
    assert smooth[:1500].double().mean() > 0.98
    difference = (jacobian(function, x) - (up + down) / 2).abs().amax((1, 2))
    assert (difference[smooth] < 1e-4 * size[smooth]).all(), x[smooth][(difference / size)[smooth].argmax()]


# ---------------------------------------------------------------- the gradient of alpha

STENCIL = ((-2, 1 / 12), (-1, -8 / 12), (1, 8 / 12), (2, -1 / 12))


@on_each_backend
@pytest.mark.parametrize(
    "alpha", [0.5, 1 - 1e-3, 1 - 1e-6, 1.0, 1 + 1e-6, 1 + 1e-4, 1 + 1e-3, 1.3, 1.5, 1.9, 2.0, 2.5, 4.0]
)
def test_gradient_of_alpha_equals_finite_differences(backend: str, alpha: float) -> None:
    x, weights = normal(6, 5, seed=8), normal(6, 5, seed=9)
    step = 1e-4
    exact = oracles.entmax_precise if alpha > 1.99 else oracles.entmax
    wanted = sum(w / step * torch.as_tensor(exact(x.numpy(), alpha + k * step)) for k, w in STENCIL)
    a = torch.full((6, 1), alpha, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad((structmax.entmax(x, a, backend=backend) * weights).sum(), a)
    close(gradient[:, 0], (weights * wanted).sum(-1), 1e-8)


@on_each_backend
@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-6, 1.0001, 1.01, 1.5, 2.0, 3.0])
def test_gradient_of_alpha_in_float32(backend: str, alpha: float) -> None:
    x, weights = normal(4, 30, seed=10), normal(4, 30, seed=11)

    def gradient(dtype: torch.dtype) -> Tensor:
        a = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        p = structmax.entmax(x.float().to(dtype), a, backend=backend)
        return torch.autograd.grad((p * weights.float().to(dtype)).sum(), a)[0]

    wanted = gradient(torch.float64)
    assert (gradient(torch.float32) - wanted).abs() < 1e-4 * (1 + wanted.abs())


@on_each_backend
def test_gradient_of_alpha_is_finite_at_the_limits(backend: str) -> None:
    x = torch.tensor([[3.0, 0.0, -1.0], [0.0, 0.0, 0.0], [0.1, 0.0, -math.inf]], dtype=torch.float64)
    x = torch.cat([x, torch.full((1, 3), -math.inf, dtype=torch.float64)])
    for alpha in (0.1, 1.0, 2.0, 20.0, 200.0):
        a = torch.full((4,), alpha, dtype=torch.float64, requires_grad=True)
        scores = x.clone().requires_grad_()
        p = structmax.entmax(scores, a, backend=backend)
        d_x, d_a = torch.autograd.grad((p * torch.arange(3.0)).sum(), (scores, a))
        assert p.isfinite().all()
        assert d_x.isfinite().all()
        assert d_a.isfinite().all()
        # one alpha has no say where symmetry or the mask has decided
        close(d_a[[1, 3]], torch.zeros(2), 1e-12)


@on_each_backend
def test_gradient_of_alpha_has_its_shape(backend: str) -> None:
    x = normal(2, 3, 4, 5)
    for shape in ((), (1,), (3,), (3, 1, 1), (2, 1, 1, 1), (2, 3, 4, 1)):
        a = torch.full(shape, 1.4, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(structmax.entmax(x, a, backend=backend)[..., 0].sum(), a)
        assert gradient.shape == a.shape
        total = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
        (wanted,) = torch.autograd.grad(structmax.entmax(x, total, backend=backend)[..., 0].sum(), total)
        close(gradient.sum(), wanted, 1e-12)
