"""The proximal maps on the CPU, compiled by Numba. Same functions as reference.py; derivations: README.md.

Rows are independent and run on several threads. All arithmetic on scores is float64, whatever their dtype.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, over_rows

# Up to this many entries, counting the greater ones for each entry (vectorised) sorts faster than distributing digits.
COUNTING_ENTRIES = 128
DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
# As in reference.py: where rounding cannot tell whether two values meet, they meet.
SLACK = 2.0**-43
# Element visits per entry, as `over_rows` counts them.
PROX_VISITS, MEAN_VISITS = 8, 2


def _per_row(lam: float | Tensor, rows: int) -> np.ndarray:
    return torch.as_tensor(lam, dtype=torch.float64).expand(rows).contiguous().numpy()


@compiled()
def _extent(x):
    """Least and greatest kept entry of a row, and the number of kept entries: −1 if one is NaN or +inf."""
    low, high, kept, unsound = np.inf, -np.inf, 0, 0
    for i in range(len(x)):
        t = np.float64(x[i])
        unsound += not t < np.inf
        kept += t > -np.inf
        low = min(low, t if t > -np.inf else np.inf)
        high = max(high, t)
    return low, high, -1 if unsound else kept


@compiled()
def _tv_bounds(x, origin, lam, lower, upper, knot, tilt, lift):
    """Right to left: the interval each value is clipped to, given the value on its left. Returns the leftmost value.

    The derivative of the least cost of the entries from i on, as a function of yᵢ, is nondecreasing and piecewise
    linear: slope·y + offset, changed by (tilt, lift) at each knot. Between i and i − 1 it is clipped to [−λ, λ]; where
    it meets −λ and λ are the bounds. The knots outside them go, two new ones come: O(n) in all.
    """
    # The knots grow from the middle outwards.
    middle = len(x)
    first, last = middle, middle - 1
    low, high, before = -np.inf, np.inf, 0.0
    # What the derivative tends to on either side: ±λ, or 0 while nothing stands to the right.
    end = 0.0
    for i in range(len(x) - 1, -1, -1):
        if x[i] == -np.inf:
            continue
        t = x[i] - origin
        if max(t - high, low - t) > 2 * lam:
            # So far off that between the new bounds the clipped derivative is constant: no old knot survives. `before`
            # lies between the old bounds and tells the side as well as they do, without waiting for them.
            low = t - (2 * lam if t > before else 0.0)
            high = low + 2 * lam
            left_slope, left_lift = 1.0, -low
            right_slope, right_lift = 1.0, high
            first, last = middle, middle - 1
        else:
            left_slope, left_offset = 1.0, -end - t
            while first <= last and left_slope * knot[first] + left_offset < -lam:
                left_slope += tilt[first]
                left_offset += lift[first]
                first += 1
            right_slope, right_offset = 1.0, end - t
            while first <= last and right_slope * knot[last] + right_offset > lam:
                right_slope -= tilt[last]
                right_offset -= lift[last]
                last -= 1
            left_lift, right_lift = left_offset + lam, lam - right_offset
            low, high = -left_lift / left_slope, right_lift / right_slope
        first -= 1
        knot[first], tilt[first], lift[first] = low, left_slope, left_lift
        last += 1
        knot[last], tilt[last], lift[last] = high, -right_slope, right_lift
        lower[i], upper[i] = low, high
        before, end = t, lam
    # The leftmost value is free: the root of the derivative.
    slope, offset = tilt[first], lift[first] - lam
    while first + 1 < last and slope * knot[first + 1] + offset < 0:
        first += 1
        slope += tilt[first]
        offset += lift[first]
    return -offset / slope


@compiled()
def _tv_row(x, origin, lam, slack, scratch, y, groups):
    lower, upper, knot, tilt, lift = scratch
    value = _tv_bounds(x, origin, lam, lower, upper, knot, tilt, lift)
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
        y[i], groups[i] = shown + origin, run


@compiled()
def _tv_rows(start, stop, x, lam, y, groups):
    n = x.shape[1]
    scratch = np.empty(n), np.empty(n), np.empty(2 * n + 1), np.empty(2 * n + 1), np.empty(2 * n + 1)
    for row in range(start, stop):
        low, high, kept = _extent(x[row])
        if kept < 0 or not lam[row] >= 0:
            y[row], groups[row] = np.nan, 0
        elif kept > 0 and lam[row] > 0:
            extent = high - low
            # From a quarter of kept · extent on, all is one run; a greater λ would only drown the scores.
            _tv_row(x[row], high, min(lam[row], kept * extent), SLACK * extent, scratch, y[row], groups[row])
        else:
            run = 0
            for i in range(n):
                inside = x[row, i] > -np.inf
                y[row, i], groups[row, i] = x[row, i], run if inside else -1
                run += inside


@returns("parts", "parts:int32")
def prox_tv(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """y = argmin ½‖y − x‖² + λ Σ|yᵢ₊₁ − yᵢ|: (B, n), and the number of the fused run of each entry: (B, n) int32."""
    y, groups = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    lam = _per_row(lam, len(x))
    over_rows(_tv_rows, len(x), PROX_VISITS * x.numel(), x.numpy(), lam, y.numpy(), groups.numpy())
    return y, groups


@compiled()
def _count(x):
    """How many entries are kept: −1 if one is NaN or +inf."""
    kept, unsound = 0, 0
    for i in range(len(x)):
        kept += x[i] > -np.inf
        unsound += not x[i] < np.inf
    return -1 if unsound else kept


@compiled()
def _sort_by_counting(keys, order):
    """order[k] = index of the k-th greatest key; equal keys keep their order."""
    order[:] = -1
    for i in range(len(keys)):
        rank = 0
        for j in range(len(keys)):
            rank += keys[j] > keys[i]
        # Equal keys have the same rank and take the next free places.
        while order[rank] >= 0:
            rank += 1
        order[rank] = i


@compiled()
def _sort_by_digits(keys, order, spare, places):
    """order[k] = index of the k-th greatest key ≥ 0, digit by digit from the lowest; equal keys keep their order."""
    for i in range(len(keys)):
        order[i] = i
    source, target = order, spare
    # The number of digits is even, so the last target is `order`.
    for shift in range(0, 8 * keys.itemsize, DIGIT_BITS):
        places[:] = 0
        for i in range(len(keys)):
            places[(keys[i] >> shift) & (DIGITS - 1)] += 1
        place = 0
        for digit in range(DIGITS - 1, -1, -1):
            count = places[digit]
            places[digit] = place
            place += count
        for k in range(len(keys)):
            i = source[k]
            digit = (keys[i] >> shift) & (DIGITS - 1)
            target[places[digit]] = i
            places[digit] += 1
        source, target = target, source


@compiled()
def _owl_scratch(patterns):
    n = patterns.shape[1]
    index, order, spare = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    return np.empty(n, patterns.dtype), index, order, spare, np.empty(DIGITS, np.int32), np.empty(n), np.empty(n)


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
    keys, index, order, spare, places, total, size = scratch
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
    if m <= COUNTING_ENTRIES:
        _sort_by_counting(keys[:m], order[:m])
    else:
        _sort_by_digits(keys[:m], order[:m], spare[:m], places)
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


@compiled()
def _owl_rows(start, stop, x, patterns, weights, y, groups):
    scratch = _owl_scratch(patterns)
    for row in range(start, stop):
        kept = _count(x[row])
        if kept < 0:
            y[row], groups[row] = np.nan, 0
        else:
            _owl_row(x[row], patterns[row], weights[row % len(weights)], scratch, y[row], groups[row])


@compiled()
def _one_cluster(low, high, mean, spread, lam, m):
    """Surely all m candidates pool: for each k, the k greatest do not stand out enough from the rest.

    They exceed the mean together by at most k (high − mean), (m − k)(mean − low) and the sum of positive deviations.
    """
    for k in range(1, m):
        excess = min(min(k * (high - mean), (m - k) * (mean - low)), spread)
        if not 2 * excess < lam * k * (m - k):
            return False
    return lam > 0


@compiled()
def _oscar_row(x, patterns, lam, floor, peak, scratch, y, groups):
    """Sort the candidates, add λ for each rank, pool what ascends."""
    keys, index, order, spare, places, total, size = scratch
    bits = patterns.dtype.type(8 * patterns.itemsize - 1)
    magnitude_bits = np.iinfo(patterns.dtype).max
    m, low, sum_of_all = 0, peak, 0.0
    for i in range(len(x)):
        y[i], groups[i] = -np.inf, -1
        if x[i] > floor:
            # With the magnitude of negative numbers reversed, bit patterns are ordered as the floats are.
            keys[m], index[m] = patterns[i] ^ ((patterns[i] >> bits) & magnitude_bits), i
            m += 1
            low = min(low, np.float64(x[i]))
            sum_of_all += x[i] - peak
    mean = sum_of_all / m
    spread = 0.0
    for i in range(m):
        spread += max(x[index[i]] - peak - mean, 0.0)
    if _one_cluster(low - peak, 0.0, mean, spread, lam, m):
        for i in range(m):
            y[index[i]], groups[index[i]] = peak, 0
        return
    if m <= COUNTING_ENTRIES:
        _sort_by_counting(keys[:m], order[:m])
    else:
        for i in range(m):
            # As digits, negative keys come first.
            keys[i] ^= np.iinfo(patterns.dtype).min
        _sort_by_digits(keys[:m], order[:m], spare[:m], places)
    slack = SLACK * (peak - low + lam * m)
    blocks = 0
    for k in range(m):
        order[k] = index[order[k]]
        t, s = x[order[k]] - peak + lam * k, 1.0
        while blocks > 0 and lam > 0 and total[blocks - 1] * s <= (t + slack * s) * size[blocks - 1]:
            blocks -= 1
            t += total[blocks]
            s += size[blocks]
        total[blocks], size[blocks] = t, s
        blocks += 1
    k = 0
    for block in range(blocks):
        shown = peak + total[block] / size[block]
        for _ in range(int(size[block])):
            y[order[k]], groups[order[k]] = shown, block
            k += 1


@compiled()
def _oscar_rows(start, stop, x, patterns, lam, y, groups):
    scratch = _owl_scratch(patterns)
    for row in range(start, stop):
        _, peak, kept = _extent(x[row])
        if kept < 0 or not lam[row] >= 0:
            y[row], groups[row] = np.nan, 0
        elif kept == 0:
            y[row], groups[row] = -np.inf, -1
        else:
            floor = peak - 1 - lam[row] * (kept - 1)
            _oscar_row(x[row], patterns[row], lam[row], floor, peak, scratch, y[row], groups[row])


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
    over_rows(_oscar_rows, len(x), work, x.numpy(), _patterns(x), lam, y.numpy(), groups.numpy())
    return y, groups


@compiled()
def _mean_rows(start, stop, v, groups, signs, out):
    n = v.shape[1]
    # Group −1 counts itself into the last slot, which is emptied.
    mean, size = np.empty(n + 1), np.empty(n + 1)
    for row in range(start, stop):
        if signs is not None and np.isnan(signs[row, 0]):
            out[row] = np.nan
            continue
        mean[:], size[:] = 0.0, 0.0
        for i in range(n):
            group = groups[row, i]
            mean[group] += v[row, i] if signs is None else math.copysign(1.0, signs[row, i]) * v[row, i]
            size[group] += 1.0
        for group in range(n):
            mean[group] /= size[group]
        mean[n] = 0.0
        for i in range(n):
            t = mean[groups[row, i]]
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
