"""The proximal maps on the CPU, compiled by Numba. Same functions as reference.py; derivations: ../README.md.

Rows are independent and run on several threads. All arithmetic on scores is float64, whatever their dtype.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.structures.proximal.kernel_numba.isotonic import isotonic_groups as isotonic_groups
from structmax.structures.proximal.kernel_numba.oscar import oscar_rows
from structmax.structures.proximal.kernel_numba.row import SLACK, count, extent, sort_descending, sort_scratch

# Element visits per entry, as `over_rows` counts them.
PROX_VISITS, MEAN_VISITS = 8, 2


def _per_row(lam: float | Tensor, rows: int) -> np.ndarray:
    return torch.as_tensor(lam, dtype=torch.float64).expand(rows).contiguous().numpy()


# A span of scores that leaves half of the digits of float64.
FAR = 2.0**26


@compiled("contract")
def _tv_bounds(x, origin, floor, lam, lower, upper, knots):
    """Right to left: the interval each value is clipped to, given the value on its left. Returns the leftmost value.

    The derivative of the least cost of the entries from i on, as a function of yᵢ, is increasing and piecewise linear:
    slope·y + offset, changed by (tilt, lift) at each knot. Between i and i − 1 it is clipped to [−λ, λ]; where it meets
    −λ and λ are the bounds. The knots outside them go; the old bounds become knots if they lie between the new: O(n).
    """
    # Knots between the bounds, as (place, tilt, lift), grow from the middle outwards; most often there are none.
    middle = len(x)
    first, last = middle, middle - 1
    rightmost = len(x) - 1
    while x[rightmost] == -np.inf:
        rightmost -= 1
    before = max(x[rightmost] - origin, floor)
    left_slope, left_offset = 1.0, -before
    right_slope, right_offset = 1.0, -before
    low, high = before - lam, before + lam
    lower[rightmost], upper[rightmost] = low, high
    for i in range(rightmost - 1, -1, -1):
        if x[i] == -np.inf:
            continue
        t = max(x[i] - origin, floor)
        # Neither this test nor the next two wait for the divisions that give the bounds.
        if max(right_slope * (t - 2 * lam) + right_offset, -left_slope * (t + 2 * lam) - left_offset) > lam:
            # So far outside the bounds that between the new ones the clipped derivative is constant. `before` lies
            # between the old bounds and tells the side as well as they do.
            low = t - (2 * lam if t > before else 0.0)
            high = low + 2 * lam
            left_slope, left_offset = 1.0, -low - lam
            right_slope, right_offset = 1.0, -low - lam
            first, last = middle, middle - 1
        else:
            below = left_slope * t + left_offset <= -lam
            above = right_slope * t + right_offset >= lam
            # Written down in any case, the old bounds become knots by moving `first` and `last`: no branch to guess.
            knots[first - 1, 0], knots[first - 1, 1], knots[first - 1, 2] = low, left_slope, left_offset + lam
            knots[last + 1, 0], knots[last + 1, 1], knots[last + 1, 2] = high, -right_slope, lam - right_offset
            left_slope, left_offset = 1 + (0.0 if below else left_slope), (-lam if below else left_offset) - t
            right_slope, right_offset = 1 + (0.0 if above else right_slope), (lam if above else right_offset) - t
            if first <= last:
                while not below and first <= last and left_slope * knots[first, 0] + left_offset < -lam:
                    left_slope += knots[first, 1]
                    left_offset += knots[first, 2]
                    first += 1
                while not above and first <= last and right_slope * knots[last, 0] + right_offset > lam:
                    right_slope -= knots[last, 1]
                    right_offset -= knots[last, 2]
                    last -= 1
            first -= below
            last += above
            low, high = (-lam - left_offset) / left_slope, (lam - right_offset) / right_slope
        lower[i], upper[i] = low, high
        before = t
    # The leftmost value is free: the root of the derivative.
    while first <= last and left_slope * knots[first, 0] + left_offset < 0:
        left_slope += knots[first, 1]
        left_offset += knots[first, 2]
        first += 1
    return -left_offset / left_slope


@compiled("nnan", "nsz")
def _tv_row(x, origin, floor, shown_origin, lam, slack, scratch, y, groups):
    lower, upper, knots = scratch
    value = _tv_bounds(x, origin, floor, lam, lower, upper, knots)
    # The value shown of a run is its first: rounding shall not tell its entries apart.
    run, shown = 0, value
    for i in range(len(x)):
        if x[i] == -np.inf:
            y[i], groups[i] = -np.inf, -1
            continue
        clipped = min(max(value, lower[i]), upper[i])
        apart = abs(clipped - value) > slack
        shown = clipped if apart else shown
        run += apart
        value = clipped
        y[i], groups[i] = shown + shown_origin, run


@kernel()
def _tv_rows(start, stop, x, lam, shifted, y, groups):
    n = x.shape[1]
    scratch = np.empty(n), np.empty(n), np.empty((2 * n, 3))
    for row in range(start, stop):
        kept = count(x[row])
        if kept < 0 or not lam[row] >= 0:
            y[row], groups[row] = np.nan, 0
            continue
        low, high = extent(x[row])
        origin = high if shifted else 0.0
        if kept > 0 and lam[row] > 0:
            # Nothing below the floor has probability; it is in the way of digits only where scores are far apart.
            floor = -1 - 4 * lam[row] if shifted and high - low > FAR else -np.inf
            span = min(high - low, -floor)
            # From a quarter of kept · (high − low) on, all is one run; a greater λ would only drown the scores.
            strength = min(lam[row], kept * span)
            _tv_row(x[row], high, floor, high - origin, strength, SLACK * span, scratch, y[row], groups[row])
            continue
        run = 0
        for i in range(n):
            inside = x[row, i] > -np.inf
            y[row, i], groups[row, i] = x[row, i] - origin if inside else -np.inf, run if inside else -1
            run += inside


def _tv(x: Tensor, lam: float | Tensor, shifted: bool) -> tuple[Tensor, Tensor]:
    y, groups = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    lam = _per_row(lam, len(x))
    over_rows(_tv_rows, len(x), PROX_VISITS * x.numel(), x.numpy(), lam, shifted, y.numpy(), groups.numpy())
    return y, groups


@returns("parts", "parts:int32")
def prox_tv(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """y = argmin ½‖y − x‖² + λ Σ|yᵢ₊₁ − yᵢ|: (B, n), and the number of the fused run of each entry: (B, n) int32."""
    return _tv(x, lam, shifted=False)


@returns("parts", "parts:int32")
def prox_tv_shifted(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """What `sparsemax` turns into the fusedmax, as in reference.py: y (B, n), and groups (B, n) int32."""
    return _tv(x, lam, shifted=True)


@compiled()
def _all_clipped(weights, peak, total):
    """Surely nothing rises above the weights: the k greatest magnitudes sum to at most k·peak, and to at most total."""
    weight = 0.0
    for k in range(len(weights)):
        weight += weights[k]
        if not weight >= min((k + 1) * peak, total):
            return False
    return weight > 0


@compiled()
def _owl_row(x, patterns, weights, scratch, y, groups):
    """Sort the magnitudes, pool what ascends after subtracting the weights, clip at zero."""
    keys, index, sorting, total, size = scratch
    magnitude_bits = np.iinfo(patterns.dtype).max
    m, peak, sum_of_all = 0, 0.0, 0.0
    for i in range(len(x)):
        y[i], groups[i] = -np.inf, -1
        if x[i] > -np.inf:
            # Without its sign, the bit pattern of a float is ordered as the float is.
            keys[m], index[m] = patterns[i] & magnitude_bits, i
            m += 1
            t = abs(np.float64(x[i]))
            peak = max(peak, t)
            sum_of_all += t
    if _all_clipped(weights[:m], peak, sum_of_all):
        for i in range(m):
            y[index[i]] = 0.0
        return
    order = sort_descending(keys[:m], sorting)
    # Blocks on a stack: a new one swallows those before it while its mean is not less, unless all weights are equal.
    slack = SLACK * peak
    blocks = 0
    for k in range(m):
        order[k] = index[order[k]]
        t, s = abs(np.float64(x[order[k]])) - weights[k], 1.0
        if np.isnan(t):
            y[:], groups[:] = np.nan, 0
            return
        while blocks > 0 and total[blocks - 1] * s <= (t + slack * s) * size[blocks - 1]:
            if weights[k + 1 - int(s + size[blocks - 1])] == weights[k]:
                break
            blocks -= 1
            t += total[blocks]
            s += size[blocks]
        total[blocks], size[blocks] = t, s
        blocks += 1
    k = 0
    for block in range(blocks):
        mean = total[block] / size[block]
        clipped = mean <= slack and weights[k] > 0
        shown, group = (0.0, -1) if clipped else (mean, block)
        stop = k + int(size[block])
        while k < stop:
            i = order[k]
            y[i], groups[i] = math.copysign(shown, x[i]), group
            k += 1


@kernel()
def _owl_rows(start, stop, x, patterns, weights, y, groups):
    n = x.shape[1]
    scratch = np.empty(n, patterns.dtype), np.empty(n, np.int32), sort_scratch(n), np.empty(n), np.empty(n)
    for row in range(start, stop):
        kept = count(x[row])
        if kept < 0:
            y[row], groups[row] = np.nan, 0
        else:
            _owl_row(x[row], patterns[row], weights[row % len(weights)], scratch, y[row], groups[row])


def _patterns(x: Tensor) -> np.ndarray:
    return x.numpy().view(np.int32 if x.dtype == torch.float32 else np.int64)


@returns("parts", "parts:int32")
def prox_owl(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """y = argmin ½‖y − x‖² + Σ wᵢ |y|₍ᵢ₎ for w₁ ≥ w₂ ≥ … ≥ 0, (n,) or (B, n): y (B, n), and groups (B, n) int32."""
    y, groups = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    weights = weights.reshape(-1, x.shape[1]).numpy()
    work = PROX_VISITS * x.numel()
    over_rows(_owl_rows, len(x), work, x.numpy(), _patterns(x), weights, y.numpy(), groups.numpy())
    return y, groups


@returns("parts", "parts:int32")
def prox_oscar(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """What `sparsemax` turns into the oscarmax, as in reference.py: y (B, n), and groups (B, n) int32."""
    y, groups = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    lam = _per_row(lam, len(x))
    work = PROX_VISITS * x.numel()
    over_rows(oscar_rows, len(x), work, x.numpy(), _patterns(x), lam, y.numpy(), groups.numpy())
    return y, groups


@kernel()
def _mean_rows(start, stop, v, groups, signs, out):
    n = v.shape[1]
    # Neighbours often share a group: even and odd entries are summed apart, so that no sum waits for the one before.
    total, size, mean = np.empty((n + 1, 2)), np.empty((n + 1, 2)), np.empty(n + 1)
    for row in range(start, stop):
        if signs is not None and np.isnan(signs[row, 0]):
            out[row] = np.nan
            continue
        last = -1
        for i in range(n):
            last = max(last, groups[row, i])
        for group in range(last + 2):
            total[group, 0], total[group, 1], size[group, 0], size[group, 1] = 0.0, 0.0, 0.0, 0.0
        # Group −1 has the first place, which is emptied.
        for i in range(n):
            group, parity = groups[row, i] + 1, i % 2
            total[group, parity] += v[row, i] if signs is None else math.copysign(1.0, signs[row, i]) * v[row, i]
            size[group, parity] += 1.0
        for group in range(last + 2):
            mean[group] = (total[group, 0] + total[group, 1]) / (size[group, 0] + size[group, 1])
        mean[0] = 0.0
        for i in range(n):
            t = mean[groups[row, i] + 1]
            out[row, i] = t if signs is None else math.copysign(1.0, signs[row, i]) * t


@returns("parts")
def group_mean(v: Tensor, groups: Tensor, signs: Tensor | None = None) -> Tensor:
    """sᵢ · mean of sⱼ vⱼ over the group of i, 0 outside every group: (B, n). Symmetric: pullback and pushforward.

    s is +1 for total variation (`signs` None), the sign of y for OWL (`signs` = y).
    """
    out = torch.empty_like(v)
    signs = None if signs is None else signs.numpy()
    over_rows(_mean_rows, len(v), MEAN_VISITS * v.numel(), v.numpy(), groups.numpy(), signs, out.numpy())
    return out
