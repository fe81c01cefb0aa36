"""The table of mappings: what is called, with which settings, on which backends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import structmax

KERNELS = ("numba", "reference")


@dataclass(frozen=True)
class Case:
    """`case(scores, dim, mask=…, lengths=…, backend=…)` is the mapping with its settings."""

    name: str
    function: Callable[..., Tensor]
    settings: dict[str, Any] = field(default_factory=dict)
    backends: tuple[str, ...] = KERNELS
    total: float | None = 1.0
    smallest: int = 1

    def __call__(self, scores: Tensor, dim: int = -1, **options: Any) -> Tensor:
        return self.function(scores, dim=dim, **self.settings, **options)


def _prox_owl(scores: Tensor, dim: int, **options: Any) -> Tensor:
    weights = torch.linspace(0.4, 0.0, scores.shape[dim], dtype=torch.float64)
    return structmax.prox_owl(scores, weights, dim, **options)


CASES = [
    Case("softmax", structmax.softmax),
    Case("sparsemax", structmax.sparsemax),
    Case("entmax15", structmax.entmax15),
    Case("entmax_0.5", structmax.entmax, {"alpha": 0.5}),
    Case("entmax_1.3", structmax.entmax, {"alpha": 1.3}),
    Case("entmax_2.5", structmax.entmax, {"alpha": 2.5}),
    Case("normmax", structmax.normmax, backends=("reference",)),
    Case("normmax_3", structmax.normmax, {"alpha": 3.0}, backends=("reference",)),
    Case("topk_sparsemax", structmax.topk_sparsemax, {"k": 2}),
    Case("budget", structmax.budget, {"budget": 1.5}, ("reference",), 1.5, 2),
    Case("csparsemax", structmax.csparsemax, {"lower": 0.05, "upper": 0.6}, ("reference",), 1.0, 2),
    Case("csoftmax", structmax.csoftmax, {"lower": 0.05, "upper": 0.6}, ("reference",), 1.0, 2),
    Case("fusedmax", structmax.fusedmax, {"lam": 0.2}),
    Case("oscarmax", structmax.oscarmax, {"lam": 0.05}),
    Case("prox_tv", structmax.prox_tv, {"lam": 0.3}, total=None),
    Case("prox_owl", _prox_owl, total=None),
]

EVERY = [pytest.param(case, backend, id=f"{case.name}-{backend}") for case in CASES for backend in case.backends]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close(actual: Tensor, expected: Any, tolerance: float) -> None:
    """Equal within an absolute `tolerance`, in float64; shapes too."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), wanted, rtol=0.0, atol=tolerance)
