"""Python's floats: their correctly rounded sum, and what they are in a narrower dtype."""

import math

import torch


def exact_sum(numbers: list[float]) -> float:
    """`math.fsum`, and ±inf where that raises an error: where finite numbers overflow."""
    total = sum(numbers)
    return math.fsum(numbers) if math.isfinite(total) else total


def in_dtype(number: float, dtype: torch.dtype) -> float:
    """The number as one of that dtype, ±inf where it is too large for it."""
    return torch.tensor(number, dtype=torch.float64).to(dtype).item()
