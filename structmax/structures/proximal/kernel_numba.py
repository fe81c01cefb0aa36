"""The proximal maps on the CPU, compiled by Numba. Same functions as reference.py; derivations: README.md.

Rows are independent and run on several threads. All arithmetic on scores is float64, whatever their dtype.
"""

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, over_rows

# Up to this many entries, counting the greater ones for each entry (vectorised) sorts faster than distributing digits.
COUNTING_ENTRIES = 128
# Element visits per entry, as `over_rows` counts them.
TV_VISITS, SORT_VISITS, MEAN_VISITS = 16, 16, 4


def _per_row(lam: float | Tensor, rows: int) -> np.ndarray:
    return torch.as_tensor(lam, dtype=torch.float64).expand(rows).contiguous().numpy()


@compiled()
def _extent(x):
    """Least and greatest kept entry of a row, and how many are kept; −1 of them if one is NaN or +inf."""
    low, high, kept, unsound = np.inf, -np.inf, 0, 0
    for i in range(len(x)):
        t = np.float64(x[i])
        unsound += not t < np.inf
        if t > -np.inf:
            kept += 1
            low = min(low, t)
            high = max(high, t)
    return low, high, -1 if unsound else kept


@compiled()
def _tv_bounds(x, origin, strength, lower, upper, knot, tilt, lift):
    """For each entry the interval its value is free in, given its left neighbour's; returns the leftmost value.

    Right to left, the derivative of the least cost of entries i… as a function of yᵢ is nondecreasing and piecewise
    linear: slope·y + offset, changed by (tilt, lift) at each knot. Strength λ clips it to [−λ, λ] on its way to i − 1;
    where it meets −λ and λ are the bounds. Both ends are only ever eaten up and regrown: O(n) in all.
    """
    first = len(x)
    last = first - 1
    # What the derivative tends to at either end: ±λ, or 0 while nothing stands to the right.
    end = 0.0
    for i in range(len(x) - 1, -1, -1):
        if x[i] == -np.inf:
            continue
        t = x[i] - origin
        slope, offset = 1.0, -end - t
        while first <= last and slope * knot[first] + offset < -strength:
            slope += tilt[first]
            offset += lift[first]
            first += 1
        right_slope, right_offset = 1.0, end - t
        while first <= last and right_slope * knot[last] + right_offset > strength:
            right_slope -= tilt[last]
            right_offset -= lift[last]
            last -= 1
        lower[i] = (-strength - offset) / slope
        upper[i] = (strength - right_offset) / right_slope
        first -= 1
        knot[first], tilt[first], lift[first] = lower[i], slope, offset + strength
        last += 1
        knot[last], tilt[last], lift[last] = upper[i], -right_slope, strength - right_offset
        end = strength
    # The leftmost entry is free: the derivative's root.
    slope, offset = tilt[first], lift[first] - strength
    while slope * knot[first + 1] + offset < 0:
        first += 1
        slope += tilt[first]
        offset += lift[first]
    return -offset / slope


@compiled()
def _close_run(x, start, stop, pull, y):
    """Give the kept entries of [start, stop) their mean plus `pull` shared among them; the first is kept."""
    # Measured from the first entry, equal entries have exactly their own value as mean.
    origin = np.float64(x[start])
    total, size = pull, 0
    for i in range(start, stop):
        if x[i] > -np.inf:
            total += x[i] - origin
            size += 1
    mean = origin + total / size
    for i in range(start, stop):
        y[i] = mean if x[i] > -np.inf else -np.inf


@compiled()
def _tv_row(x, strength, kept, origin, lower, upper, knot, tilt, lift, y, groups):
    value = _tv_bounds(x, origin, strength, lower, upper, knot, tilt, lift)
    start, run, rise_before = -1, 0, 0.0
    for i in range(len(x)):
        if x[i] == -np.inf:
            y[i], groups[i] = -np.inf, -1
            continue
        if start < 0:
            start = i
        elif value < lower[i]:
            _close_run(x, start, i, strength * (1.0 - rise_before), y)
            value, start, run, rise_before = lower[i], i, run + 1, 1.0
        elif value > upper[i]:
            _close_run(x, start, i, strength * (-1.0 - rise_before), y)
            value, start, run, rise_before = upper[i], i, run + 1, -1.0
        groups[i] = run
    _close_run(x, start, len(x), strength * -rise_before, y)


@compiled()
def _tv_rows(start, stop, x, lam, y, groups):
    n = x.shape[1]
    lower, upper = np.empty(n), np.empty(n)
    knot, tilt, lift = np.empty(2 * n + 1), np.empty(2 * n + 1), np.empty(2 * n + 1)
    for row in range(start, stop):
        low, high, kept = _extent(x[row])
        if kept < 0 or not lam[row] >= 0:
            y[row], groups[row] = np.nan, 0
        elif kept == 0 or lam[row] == 0:
            run = 0
            for i in range(n):
                inside = x[row, i] > -np.inf
                y[row, i] = x[row, i]
                groups[row, i] = run if inside else -1
                run += inside
        else:
            # From a quarter of kept · extent on, all is one run; a greater λ would only drown the scores.
            strength = min(lam[row], kept * (high - low))
            _tv_row(x[row], strength, kept, high, lower, upper, knot, tilt, lift, y[row], groups[row])


@returns("parts", "state")
def prox_tv(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    y, groups = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    lam = _per_row(lam, len(x))
    over_rows(_tv_rows, len(x), TV_VISITS * x.numel(), x.numpy(), lam, y.numpy(), groups.numpy())
    return y, groups
