"""The correctly rounded sum of Python's floats."""

import math


def exact_sum(numbers: list[float]) -> float:
    """`math.fsum`, and ±inf where that raises an error: where finite numbers overflow."""
    total = sum(numbers)
    return math.fsum(numbers) if math.isfinite(total) else total
