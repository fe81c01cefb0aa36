"""How sure a mean over a few seeds is: Student's intervals, and whether two means can be told apart."""

import functools
import math
import statistics
from collections.abc import Sequence


@functools.cache
def critical(freedom: int) -> float:
    """What Student's t exceeds, upwards or downwards, in 5 % of all samples.

    The share of samples with |t| ≤ √ν tan φ is a finite sum of powers of cos φ for whole degrees of freedom ν
    (Abramowitz and Stegun 26.7.3 and 26.7.4); φ is found by bisection.

    Examples:
        >>> [round(critical(freedom), 3) for freedom in (1, 2, 10)]
        [12.706, 4.303, 2.228]
    """
    low, high = 0.0, math.pi / 2
    # as often as halves a double
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < 0.95 else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """The share of samples with |t| ≤ √freedom · tan(angle)."""
    term = total = 1.0 if freedom % 2 == 0 else math.cos(angle) if freedom > 1 else 0.0
    for k in range(2 + freedom % 2, freedom, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return total * math.sin(angle) if freedom % 2 == 0 else (angle + total * math.sin(angle)) * 2 / math.pi


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean; None for fewer than two values, NaN if one is not finite.

    Examples:
        >>> round(half_width([0.7, 0.8, 0.9]), 3), half_width([0.7])
        (0.248, None)
    """
    if len(values) < 2:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    return critical(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def differ(first: Sequence[float], second: Sequence[float]) -> bool | None:
    """Whether two means differ by Welch's t test at the level of 5 %; None where the values cannot say.

    Degrees of freedom are rounded down.

    Examples:
        >>> differ([0.7, 0.8, 0.9], [0.75, 0.8]), differ([0.70, 0.71, 0.72], [0.90, 0.91, 0.92])
        (False, True)
    """
    if min(len(first), len(second)) < 2 or not all(map(math.isfinite, (*first, *second))):
        return None
    errors = [statistics.variance(values) / len(values) for values in (first, second)]
    apart = abs(statistics.mean(first) - statistics.mean(second))
    if not (error := sum(errors)):
        return apart > 0
    shares = ((part / error) ** 2 / (len(values) - 1) for part, values in zip(errors, (first, second), strict=True))
    return apart > critical(max(1, math.floor(1 / sum(shares)))) * math.sqrt(error)
