"""The proximal maps and their attention mappings: optimal among all fusion patterns, invariant where they should be."""

import math
from collections.abc import Callable

import numpy as np
import oracles
import pytest
import torch
from mapping_cases import KERNELS, close, normal
from torch import Tensor

import structmax

on_each_backend = pytest.mark.parametrize("backend", KERNELS)
strengths = pytest.mark.parametrize("lam", [0.0, 0.05, 0.3, 2.0])


def vectors(n: int) -> Tensor:
    """(60, n): spread, whole numbers with ties, all negative."""
    return torch.cat([normal(30, n, seed=n), normal(20, n, seed=n + 10).round(), normal(10, n, seed=n + 20) - 4])


def total_variation(lam: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda y: lam * np.abs(np.diff(y, axis=-1)).sum(-1)


def ordered_norm(weights: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda y: (weights * -np.sort(-np.abs(y), -1)).sum(-1)


@on_each_backend
@strengths
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_total_variation_is_optimal(backend: str, lam: float, n: int) -> None:
    x = vectors(n)
    for function, domain in ((structmax.prox_tv, "all"), (structmax.fusedmax, "simplex")):
        wanted = oracles.minimise(x.numpy(), total_variation(lam), oracles.total_variation_cells(n, lam), domain)
        close(function(x, lam, backend=backend), wanted, 1e-12)


@on_each_backend
@pytest.mark.parametrize("lam", [0.01, 0.3, 3.0])
def test_long_total_variation_meets_its_optimality_conditions(backend: str, lam: float) -> None:
    x = torch.cat([normal(20, 300), normal(5, 300, seed=1).round(), normal(5, 300, seed=2).cumsum(-1)])
    y = structmax.prox_tv(x, lam, backend=backend)
    # the cumulative residual is lam times a subgradient of |y_{k+1} − y_k|
    subgradient = (y - x).cumsum(-1) / lam
    close(subgradient[:, -1], torch.zeros(30), 1e-11 / lam)
    step = y.diff(dim=-1)
    assert (subgradient.abs() <= 1 + 1e-11 / lam).all()
    moved = step.abs() > 1e-9
    close(subgradient[:, :-1][moved], step.sign()[moved], 1e-11 / lam)


@on_each_backend
@pytest.mark.parametrize("n", [1, 2, 4])
def test_ordered_weighted_norms_are_optimal(backend: str, n: int) -> None:
    x = vectors(n)
    for weights in (np.linspace(0.5, 0.0, n), np.full(n, 0.4), np.zeros(n), np.linspace(1.0, 0.5, n).round()):
        magnitudes = np.abs(x.numpy())
        cells = oracles.ordered_cells(weights)
        wanted = np.sign(x.numpy()) * oracles.minimise(magnitudes, ordered_norm(weights), cells, "orthant")
        close(structmax.prox_owl(x, torch.as_tensor(weights), backend=backend), wanted, 1e-12)


@on_each_backend
@pytest.mark.parametrize("lam", [0.05, 0.3])
@pytest.mark.parametrize("n", [3, 4])
def test_oscarmax_is_optimal(backend: str, lam: float, n: int) -> None:
    x = vectors(n)
    weights = lam * np.arange(n - 1, -1, -1.0)
    cells = oracles.ordered_cells(weights)
    wanted = oracles.minimise(x.numpy(), ordered_norm(weights), cells, "simplex")
    close(structmax.oscarmax(x, lam, backend=backend), wanted, 1e-12)


@pytest.mark.parametrize(("mapping", "lam"), [(structmax.fusedmax, 0.2), (structmax.oscarmax, 0.05)])
@on_each_backend
def test_an_offset_changes_nothing(mapping: Callable[..., Tensor], lam: float, backend: str) -> None:
    x = normal(30, 8)
    for offset in (-7.0, 7.0):
        close(mapping(x + offset, lam, backend=backend), mapping(x, lam, backend=backend), 1e-12)


@on_each_backend
def test_symmetries(backend: str) -> None:
    x = normal(30, 8)
    shuffled = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    fused = structmax.fusedmax(x, 0.2, backend=backend)
    close(structmax.fusedmax(x.flip(-1), 0.2, backend=backend), fused.flip(-1), 1e-12)
    clustered = structmax.oscarmax(x, 0.05, backend=backend)
    close(structmax.oscarmax(x[:, shuffled], 0.05, backend=backend), clustered[:, shuffled], 1e-12)
    weights = torch.linspace(0.4, 0.0, 8, dtype=torch.float64)
    shrunk = structmax.prox_owl(x, weights, backend=backend)
    close(structmax.prox_owl(-x[:, shuffled], weights, backend=backend), -shrunk[:, shuffled], 1e-12)
    variation = structmax.prox_tv(x, 0.3, backend=backend)
    close(structmax.prox_tv(-x, 0.3, backend=backend), -variation, 1e-12)
    close(structmax.prox_tv(x + 5, 0.3, backend=backend), variation + 5, 1e-12)
    close(variation.mean(-1), x.mean(-1), 1e-12)


@on_each_backend
def test_limits_of_the_strength(backend: str) -> None:
    x = normal(30, 8)
    for mapping in (structmax.fusedmax, structmax.oscarmax):
        close(mapping(x, 0.0, backend=backend), structmax.sparsemax(x, backend=backend), 1e-12)
        close(mapping(x, 1e3, backend=backend), torch.full((30, 8), 1 / 8), 1e-12)
    close(structmax.prox_tv(x, 0.0, backend=backend), x, 0.0)
    close(structmax.prox_tv(x, 1e3, backend=backend), x.mean(-1, keepdim=True).expand(30, 8), 1e-12)
    flat = torch.full((8,), 0.5, dtype=torch.float64)
    close(structmax.prox_owl(x, flat, backend=backend), torch.nn.functional.softshrink(x, 0.5), 1e-12)


@on_each_backend
def test_gradients_average_within_groups(backend: str) -> None:
    x = torch.tensor([1.1, 1.0, 5.05, 5.0, 9.0], dtype=torch.float64, requires_grad=True)
    v = torch.arange(1.0, 6.0, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((structmax.prox_tv(x, 0.5, backend=backend) * v).sum(), x)
    close(gradient, [1.5, 1.5, 3.5, 3.5, 5.0], 1e-12)
    signed = torch.tensor([2.0, -2.1, 0.1], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 0.5, 0.4], dtype=torch.float64)
    y = structmax.prox_owl(signed, weights, backend=backend)
    close(y, [1.3, -1.3, 0.0], 1e-12)
    (gradient,) = torch.autograd.grad((y * v[:3]).sum(), signed)
    close(gradient, [-0.5, 0.5, 0.0], 1e-12)


@on_each_backend
def test_a_removed_entry_makes_its_neighbours_neighbours(backend: str) -> None:
    x = torch.tensor([0.0, -math.inf, 1.0, 4.0], dtype=torch.float64)
    kept = torch.tensor([0, 2, 3])
    for mapping in (structmax.prox_tv, structmax.fusedmax, structmax.oscarmax):
        wanted = torch.zeros(4, dtype=torch.float64).scatter(0, kept, mapping(x[kept], 0.6, backend=backend))
        close(mapping(x, 0.6, backend=backend), wanted, 1e-12)


@on_each_backend
def test_scores_without_probability_cost_the_others_no_digits(backend: str) -> None:
    x = vectors(4)
    for far in (-1e9, -1e20, -1e30):
        wide = torch.cat([x, torch.full((60, 2), far, dtype=torch.float64)], -1)
        for mapping in (structmax.fusedmax, structmax.oscarmax):
            near = mapping(wide.clamp_min(-100.0), 0.3, backend=backend)
            close(mapping(wide, 0.3, backend=backend), near, 1e-12)
    # a large offset is exact in the scores, and so in the answer
    whole = vectors(5).round()
    for mapping in (structmax.fusedmax, structmax.oscarmax):
        close(mapping((whole + 2.0**22).float(), 0.3, backend=backend), mapping(whole, 0.3), 1e-6)
