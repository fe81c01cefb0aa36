"""Against entmax 1.3: the same values, losses and gradients; where it errs, the right answer by independent means."""

import math
from collections.abc import Callable
from typing import Any

import oracles
import pytest
import torch
from mapping_cases import close, normal
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

import structmax

entmax = pytest.importorskip("entmax")
Function = Callable[..., Tensor]

SHAPES = [((7,), -1), ((4, 9), -1), ((4, 9), 0), ((2, 5, 3), 1), ((2, 3, 4, 6), -1), ((2, 3, 4, 6), 2)]

# ours, theirs, tolerance: their bisection stops after 50 halvings
MAPPINGS = [
    ("sparsemax", structmax.sparsemax, entmax.sparsemax, 1e-12),
    ("sparsemax_bisect", structmax.sparsemax, entmax.sparsemax_bisect, 1e-12),
    ("entmax15", structmax.entmax15, entmax.entmax15, 1e-12),
    *(
        (
            f"entmax_bisect_{a}",
            lambda x, dim, a=a: structmax.entmax(x, a, dim),
            lambda x, dim, a=a: entmax.entmax_bisect(x, a, dim),
            1e-12,
        )
        for a in (0.75, 1.1, 1.3, 1.7, 2.0, 2.2)
    ),
    *(
        (
            f"normmax_bisect_{a}",
            lambda x, dim, a=a: structmax.normmax(x, a, dim),
            lambda x, dim, a=a: entmax.normmax_bisect(x, a, dim),
            1e-11,
        )
        for a in (1.5, 2.0, 4.0)
    ),
    (
        "budget_bisect",
        lambda x, dim: structmax.budget(x, 1.5, dim),
        lambda x, dim: entmax.budget_bisect(x, 1.5, dim),
        1e-12,
    ),
]
on_each_mapping = pytest.mark.parametrize(
    ("ours", "theirs", "tolerance"), [pytest.param(*row[1:], id=row[0]) for row in MAPPINGS]
)


def both(ours: Function, theirs: Function, x: Tensor, tolerance: float, gradient_tolerance: float) -> None:
    """Values and gradients agree."""
    p, q = ours(x), theirs(x)
    close(p, q.detach(), tolerance)
    v = normal(*p.shape, seed=9) if p.dim() else torch.tensor(1.0)
    (d_p,) = torch.autograd.grad((p * v).sum(), x)
    (d_q,) = torch.autograd.grad((q * v).sum(), x)
    close(d_p, d_q, gradient_tolerance)


@on_each_mapping
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_mapping(ours: Function, theirs: Function, tolerance: float, shape: tuple[int, ...], dim: int) -> None:
    x = normal(*shape, seed=3).requires_grad_()
    both(lambda t: ours(t, dim=dim), lambda t: theirs(t, dim=dim), x, tolerance, 1e-9)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(structmax.sparsemax, entmax.sparsemax), (structmax.entmax15, entmax.entmax15)]
)
@pytest.mark.parametrize("k", [1, 5, 100])
def test_partial_sort_is_an_implementation_detail(ours: Function, theirs: Function, k: int) -> None:
    x = normal(20, 50).requires_grad_()
    both(ours, lambda t: theirs(t, k=k), x, 1e-12, 1e-12)


@on_each_mapping
def test_forbidden_entries(ours: Function, theirs: Function, tolerance: float) -> None:
    x = normal(6, 8)
    x[:, 3] = -math.inf
    x[2:, 6] = -math.inf
    kept = [0, 1, 2, 4, 5, 7]
    close(ours(x, dim=-1)[2:, kept], theirs(x[2:, kept], dim=-1), tolerance)
    assert not ours(x, dim=-1)[:, 3].any()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (structmax.sparsemax_loss, entmax.SparsemaxLoss, {}),
        (structmax.sparsemax_loss, entmax.SparsemaxBisectLoss, {}),
        (structmax.entmax15_loss, entmax.Entmax15Loss, {}),
        (structmax.entmax_loss, entmax.EntmaxBisectLoss, {"alpha": 1.3}),
        (structmax.entmax_loss, entmax.EntmaxBisectLoss, {"alpha": 2.2}),
        (structmax.normmax_loss, entmax.NormmaxBisectLoss, {"alpha": 2.0}),
        (structmax.normmax_loss, entmax.NormmaxBisectLoss, {"alpha": 4.0}),
    ],
)
def test_loss(ours: Function, theirs: Any, settings: dict[str, float], reduction: str) -> None:
    x = (2 * normal(12, 7)).requires_grad_()
    target = torch.arange(12) % 7
    name = {"mean": "elementwise_mean"}.get(reduction, reduction)
    for ignored in (-100, 3):
        peer = theirs(**settings, ignore_index=ignored, reduction=name)
        both(
            lambda t, i=ignored: ours(t, target, **settings, ignore_index=i, reduction=reduction),
            lambda t, p=peer: p(t, target),
            x,
            1e-11,
            1e-11,
        )


def test_gradient_of_alpha() -> None:
    x = normal(5, 8)
    for alpha in (1.2, 1.5, 1.9):
        a = torch.full((5, 1), alpha, dtype=torch.float64, requires_grad=True)
        grads = [
            torch.autograd.grad((function(x, a) * normal(5, 8, seed=1)).sum(), a)[0]
            for function in (structmax.entmax, entmax.entmax_bisect)
        ]
        close(grads[0], grads[1], 1e-9)


# ---------------------------------------------------------------- where the peer errs


def test_alpha_one_is_softmax() -> None:
    x = normal(3, 5)
    close(structmax.entmax(x, 1.0), x.softmax(-1), 1e-14)
    # there: uniform, in silence
    close(entmax.entmax_bisect(x, 1.0), torch.full((3, 5), 0.2), 1e-6)


def test_gradient_of_alpha_near_one_in_float32() -> None:
    x, v = normal(4, 30, seed=10), normal(4, 30, seed=11)
    step = 1e-4
    ahead, behind = (torch.as_tensor(oracles.entmax(x.float().double().numpy(), 1.001 + s * step)) for s in (1, -1))
    wanted = (v * (ahead - behind)).sum() / (2 * step)
    a = torch.tensor(1.001, requires_grad=True)
    (gradient,) = torch.autograd.grad((structmax.entmax(x.float(), a) * v.float()).sum(), a)
    assert (gradient - wanted).abs() < 1e-3 * wanted.abs()


def test_bfloat16_over_a_vocabulary() -> None:
    x = normal(4, 32000, dtype=torch.bfloat16)
    for mapping in (structmax.entmax15, structmax.sparsemax):
        wanted = mapping(x.double())
        p = mapping(x).double()
        assert ((p - wanted).abs() <= torch.finfo(torch.bfloat16).eps * wanted).all()
    sums = entmax.entmax15(x, dim=-1).double().sum(-1)
    assert (sums - 1).abs().max() > 1e-2


def test_rows_without_an_entry_and_forbidden_classes() -> None:
    x = torch.full((2, 3), -math.inf)
    x[1] = torch.tensor([0.0, 1.0, -math.inf])
    for mapping in (structmax.sparsemax, structmax.entmax15):
        close(mapping(x)[0], torch.zeros(3), 0.0)
    target = torch.tensor([1])
    value = structmax.sparsemax_loss(x[1:], target)
    close(value, structmax.sparsemax_loss(x[1:, :2], target), 0.0)
    assert entmax.sparsemax_loss(x[1:], target).isnan().all()


def test_alpha_above_two_is_exact() -> None:
    # the second entry is about to vanish, at infinite slope
    x = torch.stack([torch.zeros(40), -torch.linspace(0.11, 0.1111, 40)], -1)
    wanted = torch.as_tensor(oracles.entmax_precise(x.double().numpy(), 10.0))
    close(structmax.entmax(x, 10.0), wanted, 1e-6)
    close(structmax.entmax(x.double(), 10.0), wanted, 1e-12)
    assert (entmax.entmax_bisect(x, 10.0) - wanted).abs().max() > 1e-3


def test_one_alpha_for_each_head() -> None:
    x, heads = normal(2, 3, 4, 5), torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64)
    p = structmax.entmax(x, heads)
    for i, alpha in enumerate(heads.tolist()):
        close(p[:, i], entmax.entmax_bisect(x[:, i], alpha), 1e-12)
    with pytest.raises(RuntimeError):
        entmax.entmax_bisect(x, heads)


def test_budget_gradient_along_a_middle_dimension() -> None:
    x = normal(3, 6, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: structmax.budget(t, 2, 1), (x,))
    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(lambda t: entmax.budget_bisect(t, 2, 1), (x,))


def test_negative_dims_and_default_ignored_targets() -> None:
    x = normal(2, 5, 3)
    close(structmax.sparsemax(x, -2), entmax.sparsemax(x, 1), 1e-12)
    target = torch.tensor([1, -100])
    flat = x[:, :, 0]
    close(structmax.sparsemax_loss(flat, target), structmax.sparsemax_loss(flat[:1], target[:1]), 1e-14)
    with pytest.raises((RuntimeError, IndexError)):
        entmax.SparsemaxLoss()(flat, target)
