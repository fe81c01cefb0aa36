"""Fenchel-Young losses: cross-entropy at α = 1, zero at the target, gradient point − target."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import oracles
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from mapping_cases import KERNELS, close, normal
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax

on_each_backend = pytest.mark.parametrize("backend", KERNELS)
ALPHAS = (0.7, 1.0, 1.3, 1.5, 2.0, 2.5)

# name, loss, mapping, Ω(y) of rows y, backends
LOSSES = [
    ("sparsemax", structmax.sparsemax_loss, structmax.sparsemax, lambda y: (y**2 - y).sum(-1) / 2, KERNELS),
    ("entmax15", structmax.entmax15_loss, structmax.entmax15, lambda y: (y**1.5 - y).sum(-1) / 0.75, KERNELS),
    *(
        (
            f"entmax_{alpha}",
            functools.partial(structmax.entmax_loss, alpha=alpha),
            functools.partial(structmax.entmax, alpha=alpha),
            lambda y, a=alpha: torch.xlogy(y, y).sum(-1) if a == 1 else (y**a - y).sum(-1) / (a * (a - 1)),
            KERNELS,
        )
        for alpha in ALPHAS
    ),
    *(
        (
            f"normmax_{alpha}",
            functools.partial(structmax.normmax_loss, alpha=alpha),
            functools.partial(structmax.normmax, alpha=alpha),
            lambda y, a=alpha: torch.linalg.vector_norm(y, a, -1),
            ("reference",),
        )
        for alpha in (2.0, 3.0)
    ),
]
on_each_loss = pytest.mark.parametrize(
    ("loss", "mapping", "omega", "backend"),
    [
        pytest.param(loss, mapping, omega, backend, id=f"{name}-{backend}")
        for name, loss, mapping, omega, backends in LOSSES
        for backend in backends
    ],
)
Function = Callable[..., Tensor]


def classes(*shape: int, n: int) -> Tensor:
    return torch.randint(n, shape, generator=torch.Generator().manual_seed(1))


def distributions(rows: int, n: int) -> Tensor:
    """(rows, n): spread, sparse and one-hot."""
    y = torch.cat([normal(rows - 4, n, seed=5).softmax(-1), structmax.sparsemax(normal(2, n, seed=6))])
    return torch.cat([y, torch.eye(n, dtype=torch.float64)[:2]])


# ---------------------------------------------------------------- cross-entropy


@on_each_backend
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_alpha_one_is_cross_entropy(backend: str, reduction: str) -> None:
    x, target = normal(8, 5).requires_grad_(), classes(8, n=5)
    weight = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.float64)
    some_ignored = target.clone()
    some_ignored[[1, 4]] = -100
    for weights, smoothing, (given, ignored) in itertools.product(
        (None, weight), (0.0, 0.1, 1.0), ((target, -100), (some_ignored, -100), (target, int(target[0])))
    ):
        options: dict[str, Any] = {
            "weight": weights,
            "ignore_index": ignored,
            "reduction": reduction,
            "label_smoothing": smoothing,
        }
        ours = structmax.entmax_loss(x, given, 1.0, **options, backend=backend)
        theirs = F.cross_entropy(x, given, **options)
        close(ours, theirs.detach(), 1e-12)
        v = torch.linspace(0.5, 2.0, ours.numel(), dtype=torch.float64).reshape(ours.shape)
        (gradient,) = torch.autograd.grad((ours * v).sum(), x)
        close(gradient, torch.autograd.grad((theirs * v).sum(), x)[0], 1e-12)


@on_each_backend
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_alpha_one_with_soft_targets_is_cross_entropy_minus_the_entropy(backend: str, reduction: str) -> None:
    x, y = normal(8, 5), distributions(8, 5)
    entropy = -torch.xlogy(y, y).sum(-1)
    theirs = F.cross_entropy(x, y, reduction="none") - entropy
    wanted = {"mean": theirs.mean(), "sum": theirs.sum(), "none": theirs}[reduction]
    close(structmax.entmax_loss(x, y, 1.0, reduction=reduction, backend=backend), wanted, 1e-12)


def test_all_targets_ignored_is_nan_for_the_mean_as_in_torch() -> None:
    x, target = normal(3, 4).requires_grad_(), torch.full((3,), -100)
    assert F.cross_entropy(x, target).isnan()
    assert structmax.entmax15_loss(x, target).isnan()
    close(structmax.entmax15_loss(x, target, reduction="sum"), 0.0, 0.0)
    loss = structmax.entmax15_loss(x, target, reduction="none")
    close(loss, torch.zeros(3), 0.0)
    close(torch.autograd.grad(loss.sum(), x)[0], torch.zeros(3, 4), 0.0)


# ---------------------------------------------------------------- Fenchel-Young


@on_each_loss
def test_value_is_its_definition(loss: Function, mapping: Function, omega: Function, backend: str) -> None:
    x, y = normal(8, 5), distributions(8, 5)
    p = mapping(x, backend=backend)
    wanted = ((p - y) * x).sum(-1) - omega(p) + omega(y)
    close(loss(x, y, reduction="none", backend=backend), wanted, 1e-12)
    target = classes(8, n=5)
    one_hot = F.one_hot(target, 5).double()
    hard = loss(x, target, reduction="none", backend=backend)
    close(hard, loss(x, one_hot, reduction="none", backend=backend), 1e-12)
    close(hard, ((p - one_hot) * x).sum(-1) - omega(p) + omega(one_hot), 1e-12)


@on_each_loss
def test_zero_exactly_at_the_target(loss: Function, mapping: Function, omega: Function, backend: str) -> None:
    x = torch.cat([normal(200, 4), 5 * normal(200, 4, seed=1), normal(100, 4, seed=2).round()])
    p = mapping(x, backend=backend)
    close(loss(x, p, reduction="none", backend=backend), torch.zeros(500), 1e-12)
    y = distributions(500, 4)
    values = loss(x, y, reduction="none", backend=backend)
    apart = (p - y).abs().amax(-1) > 1e-3
    assert (values >= -1e-12).all()
    assert (values[apart] > 1e-9).all()
    hard = loss(x, classes(500, n=4), reduction="none", backend=backend)
    assert (hard >= 0).all()


@on_each_loss
def test_gradient_is_the_point_minus_the_target(
    loss: Function, mapping: Function, omega: Function, backend: str
) -> None:
    x = torch.cat([normal(10, 5), normal(5, 5, seed=1).round()]).requires_grad_()
    p = mapping(x, backend=backend).detach()
    target, y = classes(15, n=5), distributions(15, 5)
    (hard,) = torch.autograd.grad(loss(x, target, reduction="sum", backend=backend), x)
    close(hard, p - F.one_hot(target, 5), 1e-12)
    (soft,) = torch.autograd.grad(loss(x, y, reduction="sum", backend=backend), x)
    close(soft, p - y, 1e-12)
    weight = torch.arange(1.0, 6.0, dtype=torch.float64)
    (weighted,) = torch.autograd.grad(loss(x, target, weight=weight, reduction="sum", backend=backend), x)
    close(weighted, weight[target, None] * (p - F.one_hot(target, 5)), 1e-12)


@on_each_loss
def test_derivatives(loss: Function, mapping: Function, omega: Function, backend: str) -> None:
    x = normal(3, 4, seed=4).requires_grad_()
    fast = backend == "reference" and "normmax" not in str(mapping)
    target, y = torch.tensor([0, 3, -100]), distributions(7, 4)[:3].clone().requires_grad_()
    for options in ({}, {"reduction": "none", "label_smoothing": 0.2}):
        hard = functools.partial(loss, target=target, backend=backend, **options)
        assert gradcheck(hard, (x,), fast_mode=fast, check_forward_ad=True)
        assert gradgradcheck(hard, (x,), fast_mode=fast)
    # a target that is learnt, too
    soft = functools.partial(loss, backend=backend)
    assert gradcheck(soft, (x, y), fast_mode=fast)
    assert gradgradcheck(soft, (x, y), fast_mode=fast)


@on_each_backend
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 3.0])
def test_the_margin(backend: str, alpha: float) -> None:
    lead = 1 / (alpha - 1)
    x = torch.tensor([[lead, 0.0, -1.0], [lead + 3, 0.0, 0.0], [lead - 0.1, 0.0, 0.0]], dtype=torch.float64)
    x = (x + 2).requires_grad_()
    loss = structmax.entmax_loss(x, torch.zeros(3, dtype=torch.int64), alpha, reduction="none", backend=backend)
    close(loss[:2], torch.zeros(2), 1e-14)
    assert loss[2] > 1e-9
    # an inner slope may be infinite at the margin itself: look behind it
    (gradient,) = torch.autograd.grad(loss[1], x)
    close(gradient[1], torch.zeros(3), 0.0)


# ---------------------------------------------------------------- forbidden classes, precision, shapes


@on_each_loss
def test_forbidden_classes(loss: Function, mapping: Function, omega: Function, backend: str) -> None:
    x = normal(3, 4)
    x[:, 1] = -math.inf
    x.requires_grad_()
    target = torch.tensor([0, 1, 3])
    values = loss(x, target, reduction="none", backend=backend)
    allowed = [0, 2]
    kept = x.detach()[allowed][:, [0, 2, 3]]
    close(values[allowed], loss(kept, torch.tensor([0, 2]), reduction="none", backend=backend), 1e-12)
    assert values[1] == math.inf
    (gradient,) = torch.autograd.grad(values.sum(), x)
    assert gradient.isfinite().all()
    p = mapping(x.detach(), backend=backend)
    close(gradient, p - F.one_hot(target, 4), 1e-12)
    # a soft target without mass on the forbidden class
    y = torch.tensor([[0.5, 0.0, 0.5, 0.0]], dtype=torch.float64)
    soft = loss(x[:1], y, backend=backend)
    close(soft, loss(x.detach()[:1, [0, 2, 3]], y[:, [0, 2, 3]], backend=backend), 1e-12)
    assert torch.autograd.grad(soft, x)[0].isfinite().all()


@on_each_loss
def test_nan_stays_in_its_row(loss: Function, mapping: Function, omega: Function, backend: str) -> None:
    x = normal(3, 4)
    x[1, 2] = math.nan
    values = loss(x, torch.tensor([0, 1, 2]), reduction="none", backend=backend)
    assert values.isnan().tolist() == [False, True, False]


@on_each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision(loss: Function, mapping: Function, omega: Function, backend: str, dtype: torch.dtype) -> None:
    x, target = normal(6, 200, dtype=dtype).requires_grad_(), classes(6, n=200)
    values = loss(x, target, reduction="none", backend=backend)
    assert values.dtype == dtype
    wanted = loss(x.double(), target, reduction="none", backend="reference")
    error = ((values.double() - wanted).abs() / (1 + wanted.abs())).max()
    assert error < 2 * torch.finfo(dtype).eps * (20 if dtype == torch.float32 else 1)
    (gradient,) = torch.autograd.grad(values.sum(), x)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@on_each_backend
def test_scores_far_from_zero_lose_no_digits(backend: str) -> None:
    x, target = (normal(6, 50) * 64).round() / 64, classes(6, n=50)
    for alpha in ALPHAS:
        near = structmax.entmax_loss(x.float(), target, alpha, reduction="none", backend=backend)
        far = structmax.entmax_loss(x.float() + 4096, target, alpha, reduction="none", backend=backend)
        close(far, near.double(), 1e-5)


@on_each_loss
def test_classes_along_any_dim(loss: Function, mapping: Function, omega: Function, backend: str) -> None:
    x = normal(2, 5, 3)
    wanted = loss(x.movedim(1, -1), classes(2, 3, n=5), reduction="none", backend=backend)
    for dim in (1, -2):
        close(loss(x, classes(2, 3, n=5), dim=dim, reduction="none", backend=backend), wanted, 0.0)
    y = x.softmax(1)
    soft = loss(x, y, dim=1, reduction="none", backend=backend)
    close(soft, loss(x.movedim(1, -1), y.movedim(1, -1), reduction="none", backend=backend), 0.0)
    close(loss(x, classes(2, 3, n=5), dim=1, backend=backend), wanted.mean(), 1e-12)
    one = normal(5)
    assert loss(one, torch.tensor(2), reduction="none", backend=backend).shape == ()
    assert loss(normal(0, 5), classes(0, n=5), reduction="none", backend=backend).shape == (0,)
    close(loss(normal(3, 1), torch.zeros(3, dtype=torch.int64), backend=backend), 0.0, 1e-14)


@on_each_backend
def test_values_in_high_precision(backend: str) -> None:
    x, target = normal(5, 6), classes(5, n=6)
    for alpha in (1.5, 2.0, 2.5, 4.0):
        p = torch.as_tensor(oracles.entmax_precise(x.numpy(), alpha))
        one_hot = F.one_hot(target, 6)
        wanted = ((p - one_hot) * x).sum(-1) - (p**alpha - p).sum(-1) / (alpha * (alpha - 1))
        close(structmax.entmax_loss(x, target, alpha, reduction="none", backend=backend), wanted, 1e-12)


@on_each_backend
def test_a_loss_trains(backend: str) -> None:
    x = torch.zeros(4, 6, requires_grad=True)
    target = torch.tensor([0, 2, 4, 5])
    optimiser = torch.optim.SGD([x], lr=3.0)
    for _ in range(20):
        optimiser.zero_grad()
        loss = structmax.entmax15_loss(x, target, reduction="sum", backend=backend)
        loss.backward()
        optimiser.step()
    # unlike cross-entropy it gets there
    assert loss == 0
    assert torch.equal(x.argmax(-1), target)


@pytest.mark.parametrize("loss", [structmax.entmax_loss, structmax.sparsemax_loss, structmax.normmax_loss])
@pytest.mark.parametrize("more", [{}, {"label_smoothing": 0.1}, {"weight": torch.tensor([math.inf, 1.0, 2.0])}])
def test_ignored_rows_may_hold_anything(loss, more):
    """Neither their scores nor the weight of a class that nobody has counts."""
    if "weight" in more:
        more = {"weight": more["weight"].double()}
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target, kept = torch.tensor([1, -100, 2, -100]), [0, 2]
    x[1], x[3] = math.nan, math.inf
    leaf, alone = x.clone().requires_grad_(), x[kept].clone().requires_grad_()
    got, want = loss(leaf, target, **more), loss(alone, target[kept], **more)
    close(got, want.detach(), 1e-12)
    got.backward()
    want.backward()
    close(leaf.grad[kept], alone.grad, 1e-12)
    assert not leaf.grad[[1, 3]].any()


@pytest.mark.parametrize(
    "loss", [structmax.normmax_loss, structmax.entmax_loss, structmax.entmax15_loss, structmax.sparsemax_loss]
)
def test_a_row_without_a_class_costs_everything(loss: Any) -> None:
    x = torch.tensor([[-torch.inf] * 3, [0.0, 1.0, 2.0]], requires_grad=True)
    losses = loss(x, torch.tensor([1, 1]), reduction="none")
    assert losses[0] == torch.inf
    assert losses[1].isfinite()
    (slope,) = torch.autograd.grad(losses.sum(), x)
    assert slope.isfinite().all()
    assert (slope[0] == 0).all()


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (4,)])
def test_a_reduced_loss_under_transforms_is_that_of_its_rows(alpha: float, reduction: str, shape: tuple) -> None:
    x, t, target = normal(2, *shape), normal(2, *shape, seed=3), classes(2, *shape[:-1], n=4)
    target[..., :1] = 255

    def ours(x: Tensor, target: Tensor) -> Tensor:
        return structmax.entmax_loss(x, target, alpha, ignore_index=255, reduction=reduction)

    def plain(x: Tensor, target: Tensor) -> Tensor:
        losses = structmax.entmax_loss(x, target, alpha, ignore_index=255, reduction="none")
        return losses.sum() if reduction == "sum" else losses.sum() / (target != 255).sum()

    for transform in (
        lambda f: f(x, target),
        lambda f: torch.func.vmap(f)(x, target),
        lambda f: torch.func.vmap(torch.func.grad(f))(x, target),
        lambda f: torch.func.jvp(lambda x: f(x, target), (x,), (t,))[1],
        lambda f: torch.func.vmap(lambda x, t, y: torch.func.jvp(lambda x: f(x, y), (x,), (t,))[1])(x, t, target),
        lambda f: torch.func.hessian(f)(x, target),
    ):
        torch.testing.assert_close(transform(ours), transform(plain), equal_nan=True)


@on_each_backend
@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_and_its_gradient_are_those_of_the_rows(alpha: float, reduction: str, backend: str) -> None:
    """In any shape and layout, also of no rows; whether or not the gradient is differentiated once more."""
    forbidden = normal(5, 4).index_put((torch.tensor([0, 3]), torch.tensor([1, 2])), torch.tensor(-math.inf).double())
    for x in (normal(4), normal(5, 4), normal(2, 3, 4), normal(4, 5).mT, normal(9, 4)[::2], normal(0, 4), forbidden):
        x = x.detach().requires_grad_()
        target = classes(*x.shape[:-1], n=4)
        if x.dim() > 1:
            target[..., -1:] = -100
        options: dict[str, Any] = {"alpha": alpha, "backend": backend}
        losses = structmax.entmax_loss(x, target, **options, reduction="none")
        plain = losses.sum() if reduction == "sum" else losses.sum() / (target != -100).sum()
        ours = structmax.entmax_loss(x, target, **options, reduction=reduction)
        # the mean of no rows is NaN, as in torch
        torch.testing.assert_close(ours, plain, atol=1e-13, rtol=0, equal_nan=True)
        (want,) = torch.autograd.grad(-0.7 * plain, x)
        for again in (False, True):
            (got,) = torch.autograd.grad(-0.7 * ours, x, create_graph=again, retain_graph=True)
            close(got, want, 1e-13)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_compiles_with_its_gradient(reduction: str) -> None:
    x, target = normal(5, 4).requires_grad_(), classes(5, n=4)
    loss = functools.partial(structmax.entmax15_loss, reduction=reduction)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    close(compiled(x, target), loss(x, target).detach(), 0.0)
    (want,), (got,) = (torch.autograd.grad(f(x, target), x) for f in (loss, compiled))
    close(got, want, 1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_is_one_node(reduction: str) -> None:
    """On a GPU each node of a small batch costs the host as much as several launches."""
    x = normal(3, 4).requires_grad_()
    node = structmax.sparsemax_loss(x, classes(3, n=4), reduction=reduction).grad_fn
    assert [after.name() for after, _ in node.next_functions if after] == ["torch::autograd::AccumulateGrad"]


@pytest.mark.parametrize("loss", [structmax.entmax15_loss, structmax.normmax_loss])
def test_targets_may_be_of_any_integer_type(loss: Any) -> None:
    x, target = normal(3, 4), torch.tensor([3, 255, 0])
    for dtype in (torch.uint8, torch.int16, torch.int32):
        close(loss(x, target.to(dtype), ignore_index=255), loss(x, target, ignore_index=255), 0.0)
    close(loss(x[::2], target[::2].byte()), loss(x[::2], target[::2]), 0.0)
