"""Relaxed and hard samples by Gumbel noise."""

import math
from typing import Any

import pytest
import scipy.stats
import torch
from mapping_cases import KERNELS, close, normal
from torch import Tensor

import structmax

MAPPINGS = (structmax.gumbel_softmax, structmax.gumbel_sparsemax, structmax.gumbel_entmax)
on_each = pytest.mark.parametrize("mapping", MAPPINGS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_drawn_from(samples: Tensor, p: Tensor) -> None:
    """A χ² test at level 10⁻³ with a fixed seed."""
    counts = samples.sum(0)
    possible = p > 0
    assert not counts[~possible].any()
    result = scipy.stats.chisquare(counts[possible].numpy(), (len(samples) * p[possible]).numpy())
    assert result.pvalue > 1e-3


@on_each
@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_hard_samples_follow_the_softmax(mapping: Any, temperature: float) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 0.5, -math.inf], dtype=torch.float64)
    samples = mapping(x.expand(20000, 5), temperature=temperature, hard=True, generator=seeded(), backend="numba")
    close(samples.sum(-1), torch.ones(20000), 1e-12)
    assert_drawn_from(samples.round(), x.softmax(-1))


@on_each
def test_hard_samples_are_exact_one_hots_with_relaxed_gradients(mapping: Any) -> None:
    x = normal(50, 6).requires_grad_()
    hard = mapping(x, hard=True, generator=seeded(1))
    soft = mapping(x, generator=seeded(1))
    assert torch.equal(hard.detach().sort(-1).values, torch.eye(6, dtype=x.dtype)[-1].expand(50, 6))
    assert torch.equal(hard.argmax(-1), soft.argmax(-1))
    weights = normal(50, 6, seed=2)
    (from_hard,) = torch.autograd.grad((hard * weights).sum(), x)
    (from_soft,) = torch.autograd.grad((soft * weights).sum(), x)
    close(from_hard, from_soft, 0.0)
    assert from_soft.any()


@on_each
def test_the_generator_decides(mapping: Any) -> None:
    x = normal(4, 6)
    assert torch.equal(mapping(x, generator=seeded(3)), mapping(x, generator=seeded(3)))
    assert not torch.equal(mapping(x, generator=seeded(3)), mapping(x, generator=seeded(4)))
    torch.manual_seed(5)
    first = mapping(x)
    torch.manual_seed(5)
    assert torch.equal(first, mapping(x))


@on_each
@pytest.mark.parametrize("hard", [False, True])
def test_masks_lengths_and_dims(mapping: Any, hard: bool) -> None:
    x = normal(3, 4, 5)
    mask = torch.tensor([True, False, True, True])[:, None].expand(4, 5).clone()
    mask[:, 4] = False
    p = mapping(x, hard=hard, dim=1, mask=mask, generator=seeded())
    assert p.shape == x.shape
    close(p.sum(1)[:, :4], torch.ones(3, 4), 1e-12)
    assert not p[:, 1].any()
    # no entry may be used
    assert not p[..., 4].any()
    short = mapping(x, hard=hard, lengths=torch.tensor([[0], [2], [5]]), generator=seeded())
    assert not short[0].any()
    assert not short[1, :, 2:].any()
    close(short[1:].sum(-1), torch.ones(2, 4), 1e-12)


@on_each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("hard", [False, True])
def test_half_precision_is_finite(mapping: Any, dtype: torch.dtype, hard: bool) -> None:
    x = normal(2000, 50, dtype=dtype).requires_grad_()
    p = mapping(x, temperature=0.1, hard=hard, generator=seeded(), backend="numba")
    assert p.dtype == dtype
    (gradient,) = torch.autograd.grad((p * normal(2000, 50, seed=1, dtype=dtype)).sum(), x)
    assert gradient.dtype == dtype
    assert p.isfinite().all()
    assert gradient.isfinite().all()
    close(p.double().sum(-1), torch.ones(2000), 1e-2)


@pytest.mark.parametrize("backend", KERNELS)
def test_a_relaxed_sample_is_the_mapping_of_perturbed_scores(backend: str) -> None:
    x = normal(6, 5)
    noise = -torch.empty(6, 5, dtype=torch.float64).exponential_(generator=seeded(7)).log()
    for alpha, temperature in ((1.0, 0.5), (1.5, 1.0), (2.0, 3.0)):
        p = structmax.gumbel_entmax(x, alpha, temperature, generator=seeded(7), backend=backend)
        close(p, structmax.entmax((x + noise) / temperature, alpha, backend=backend), 1e-12)
    low = structmax.gumbel_entmax(x, 1.5, 1e-3, generator=seeded(7), backend=backend)
    close(low, torch.nn.functional.one_hot((x + noise).argmax(-1), 5), 1e-12)


def test_alpha_receives_a_gradient() -> None:
    alpha = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    p = structmax.gumbel_entmax(normal(4, 5), alpha, 3.0, generator=seeded())
    (gradient,) = torch.autograd.grad((p**2).sum(), alpha)
    assert gradient.isfinite()
    assert gradient != 0
