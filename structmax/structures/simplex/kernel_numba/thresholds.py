"""One row of the simplex: where its probabilities end. Derivations: ../README.md.

With e = α − 1, b = 1/e and z = x − max x, the probabilities are p = [1 + e (z − τ)]₊^b. Only scores within 1/e of the
maximum can have any, so a row is read once in blocks; blocks that cannot reach the support are never looked at again,
and Newton's method for τ runs on the entries of the others.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.math import exp, log1p
from structmax.numerics.kernel_numba.vector import (
    block_above,
    block_peak,
    block_shift,
    lowest_bit,
)

# Sums are kept in the dtype of the scores over this many entries, and in float64 beyond.
CHUNK = 1024
# With fewer blocks than this, finding a start for Newton's method costs more than it saves.
WARM_BLOCKS = 8
WARM_STEPS = 3
# Far more than Newton's method takes.
STEPS = 100


@compiled()
def is_nan(value):
    return value != value


@compiled()
def scratch(x):
    """For one row of x: block maxima, the same shifted, candidates (with room for one more block), their places."""
    blocks = (x.shape[1] + BLOCK - 1) // BLOCK
    size = (blocks + 1) * BLOCK
    return np.empty(blocks, x.dtype), np.empty(blocks, x.dtype), np.empty(size, x.dtype), np.empty(size, np.int32)


@compiled()
def copy(values, out):
    """The slice assignment, without its checks, which are slow to compile."""
    for i in range(values.size):
        out[i] = values[i]


@compiled("nnan", "nsz")
def _largest(values):
    largest = values.dtype.type(-np.inf)
    for i in range(values.size):
        largest = values[i] if values[i] > largest else largest
    return largest


@compiled()
def find_peaks(row, peaks, z):
    """The maximum of every block, written to `peaks`, and that of the row: NaN if any score is NaN or +inf."""
    full = row.size // BLOCK
    for i in range(full):
        peaks[i] = block_peak(row, i * BLOCK)
    if full < peaks.size:
        z[:BLOCK] = -np.inf
        copy(row[full * BLOCK :], z)
        peaks[full] = block_peak(z, 0)
    invalid = False
    for i in range(peaks.size):
        invalid |= is_nan(peaks[i])
    peak = _largest(peaks)
    return row.dtype.type(np.nan) if invalid or peak == np.inf else peak


@compiled()
def shift(scores, peak, scale, out):
    for i in range(scores.size):
        out[i] = (scores[i] - peak) * scale


@compiled()
def _gather(row, peak, scale, crest, cut, z):
    """(x − peak) · scale for the blocks whose crest is above `cut`, written to `z` without gaps; returns their size.

    Every block is copied, and the next one overwrites it if it was not wanted: no branch to predict.
    """
    size = 0
    full = row.size // BLOCK
    for i in range(full):
        block_shift(row, i * BLOCK, peak, scale, z, size)
        size += BLOCK if crest[i] > cut else 0
    if full < crest.size and crest[full] > cut:
        z[size : size + BLOCK] = -np.inf
        shift(row[full * BLOCK :], peak, scale, z[size:])
        size += BLOCK
    return size


@compiled()
def whole(count):
    """The size of the blocks that hold `count` entries."""
    return (count + BLOCK - 1) // BLOCK * BLOCK


@compiled()
def collect(row, peak, cut, z, places):
    """x − peak for the scores where it is above `cut`, written to `z`, and where they stand; returns their number.

    Where each entry costs a power, it pays to choose entries rather than blocks. −inf fills up the last block.
    """
    count = 0
    full = row.size // BLOCK * BLOCK
    for start in range(0, full, BLOCK):
        mask = block_above(row, start, peak, cut)
        while mask != 0:
            place = start + lowest_bit(mask)
            z[count] = row[place] - peak
            places[count] = place
            count += 1
            mask &= mask - 1
    for place in range(full, row.size):
        z[count] = row[place] - peak
        places[count] = place
        count += z[count] > cut
    z[count : whole(count)] = -np.inf
    return count


@compiled()
def add_exactly(z, high, low):
    # high + low is a number of twice the precision; the first sum is exact where z and high cancel.
    return (z + high) + low


@compiled("contract", "reassoc")
def _sums(z, top, quadratic):
    """Σ u^b and Σ u^(b−1) for u = [z + top]₊ and b = 2 or 1."""
    mass, slope = 0.0, 0.0
    high = z.dtype.type(top)
    low = z.dtype.type(top - high)
    zero, one = z.dtype.type(0), z.dtype.type(1)
    for start in range(0, z.size, CHUNK):
        part = z[start : start + CHUNK]
        s, d = zero, zero
        if quadratic:
            for i in range(part.size):
                u = add_exactly(part[i], high, low)
                u = u if u > zero else zero
                s += u * u
                d += u
        else:
            for i in range(part.size):
                u = add_exactly(part[i], high, low)
                s += u if u > zero else zero
                d += one if u > zero else zero
        mass += s
        slope += d
    return mass, slope


@compiled("contract", "reassoc")
def _power_sums(z, k, b):
    """Σ u^b and Σ u^(b−1) for u = [1 + k z]₊."""
    mass, slope = 0.0, 0.0
    k, b = z.dtype.type(k), z.dtype.type(b)
    zero, one = z.dtype.type(0), z.dtype.type(1)
    for start in range(0, z.size, CHUNK):
        part = z[start : start + CHUNK]
        s, d = zero, zero
        for i in range(part.size):
            w = k * part[i]
            power = exp(b * log1p(w))
            s += power if w > -one else zero
            d += power / (one + w) if w > -one else zero
        mass += s
        slope += d
    return mass, slope


@compiled("contract", "reassoc")
def _exp_sum(z):
    mass = 0.0
    for start in range(0, z.size, CHUNK):
        part = z[start : start + CHUNK]
        s = z.dtype.type(0)
        for i in range(part.size):
            s += exp(part[i])
        mass += s
    return mass


# The equation Σ u^b = 1 is solved as ‖u‖_b = 1: a norm is convex, so Newton's method from τ = 0 never oversteps, and
# where u is constant on its support, or α near 1, one step is enough. Leaving entries out lowers τ: the block maxima
# alone give a start that is still from below.


@compiled()
def _newton(z, top, quadratic, steps, tolerance):
    """Lower `top` = 1 − e τ to the solution of Σ [z + top]₊^b = 1."""
    for _ in range(steps):
        mass, slope = _sums(z, top, quadratic)
        top -= (mass - (math.sqrt(mass) if quadratic else 1.0)) / slope
        if mass - 1 <= tolerance:
            break
    return top


@compiled()
def _newton_power(z, tau, e, steps, tolerance):
    """Raise τ to the solution of Σ u^b = 1.

    With R = Σ (u / u_max)^b, and log_α R = (1 − R^−e) / e, the equation reads log_α R = τ; the error of a step is of
    the order of its square.
    """
    for _ in range(steps):
        top = 1 - e * tau
        total, slope = _power_sums(z, e / top, 1 / e)
        gap = -math.expm1(-e * math.log(total)) / e - tau
        tau += gap * total / slope
        if gap <= tolerance * top:
            break
    return tau


@compiled()
def edge(e, tau, tolerance):
    """The z below which p = 0; a little lower, since rounding must not cut off an entry."""
    return (tau - 1 / e) * (1 + 8 * tolerance) if e > 0 else -np.inf


@compiled()
def threshold(row, peak, e, peaks, crest, z, places, tolerance):
    """τ, and the number of candidates left in `z` (for α other than 1, 1.5 and 2, in `places` too), for α ≤ 2."""
    dtype = row.dtype.type
    if e == 0:
        shift(row, peak, dtype(1), z[: row.size])
        return math.log(_exp_sum(z[: row.size])), row.size
    warm = WARM_STEPS if peaks.size >= WARM_BLOCKS else 0
    if e == 1 or e == 0.5:
        shift(peaks, peak, dtype(e), crest)
        top = _newton(crest, 1.0, e < 1, warm, tolerance)
        count = _gather(row, peak, dtype(e), crest, dtype(-top * (1 + 8 * tolerance)), z)
        top = _newton(z[:count], top, e < 1, STEPS, tolerance)
        return (1 - top) / e, count
    shift(peaks, peak, dtype(1), crest)
    tau = _newton_power(crest, 0.0, e, warm, tolerance)
    count = collect(row, peak, dtype(edge(e, tau, tolerance)), z, places)
    # One step more squares an error that is already this small.
    return _newton_power(z[: whole(count)], tau, e, STEPS, math.sqrt(tolerance) / 4), count


@compiled()
def anchored(row, peak, e, y):
    """For α > 2: the smallest supported score a and its probability.

    p has infinite slope where it vanishes, so no threshold is fine enough; measured from a, p = [p_a^e + e (x − a)]₊^b
    loses nothing. Σ p is a sum of ‖·‖_e norms of (p_a, (e (x − a))^b): convex in p_a, and Newton's method from above
    never oversteps.
    """
    b = 1 / e
    count = 0
    for i in range(row.size):
        # Beside a large maximum b would be lost: scores are measured from it.
        if float(row[i]) - peak > -b:
            y[count] = row[i]
            count += 1
    # Search for the lowest score which, put at probability 0, leaves mass for itself.
    outside, anchor, mass = -np.inf, float(peak), 0.0
    while True:
        between = 0
        for i in range(count):
            between += outside < y[i] < anchor
        if between == 0:
            break
        skip = between // 2
        pivot = anchor
        for i in range(count):
            if outside < y[i] < anchor:
                if skip == 0:
                    pivot = y[i]
                    break
                skip -= 1
        total = 0.0
        for i in range(count):
            if y[i] > pivot:
                total += (e * (y[i] - pivot)) ** b
        if total < 1:
            anchor, mass = pivot, total
        else:
            outside = pivot
    ties = 0
    for i in range(count):
        ties += y[i] == anchor
    p_anchor = (1 - mass) / ties
    for _ in range(STEPS):
        root = p_anchor**e
        excess, slope = ties * p_anchor - 1, float(ties)
        for i in range(count):
            if y[i] > anchor:
                u = root + e * (y[i] - anchor)
                p = u**b
                excess += p
                slope += p / p_anchor * (root / u)
        step = excess / slope
        if not step > 1e-16 * p_anchor:
            break
        p_anchor -= step
    return anchor, p_anchor


@compiled("contract", "reassoc")
def powers(z, e, tau, weight):
    """Turn the candidates in `z` into weight · p, which sum to `weight` as well as the dtype allows."""
    dtype = z.dtype.type
    zero, one, k, b = dtype(0), dtype(1), dtype(e / (1 - e * tau)), dtype(1 / e)
    total = 0.0
    for start in range(0, z.size, CHUNK):
        part = z[start : start + CHUNK]
        s = zero
        for i in range(part.size):
            w = k * part[i]
            power = exp(b * log1p(w))
            power = power if w > -one else zero
            part[i] = power
            s += power
        total += s
    scale = dtype(weight / total)
    for i in range(z.size):
        z[i] *= scale


@compiled("contract", "reassoc")
def mean_score(z, e, tau):
    """e Σ p z over the candidates, as `threshold` leaves them in `z`."""
    dtype = z.dtype.type
    zero, one, infinity = dtype(0), dtype(1), dtype(np.inf)
    top, k, b = 1 - e * tau, dtype(e / (1 - e * tau)), dtype(1 / e)
    high = dtype(top)
    low = dtype(top - high)
    mean, total = 0.0, 0.0
    for start in range(0, z.size, CHUNK):
        part = z[start : start + CHUNK]
        m, s = zero, zero
        if e == 1 or e == 0.5:
            for i in range(part.size):
                u = add_exactly(part[i], high, low)
                m += part[i] * (u if e == 1 else u * u) if u > zero else zero
            mean += m
        else:
            for i in range(part.size):
                w = k * part[i]
                power = exp(b * log1p(w))
                inside = w > -one and part[i] > -infinity
                s += power if inside else zero
                m += part[i] * power if inside else zero
            mean += m
            total += s
    return mean if e == 1 or e == 0.5 else e * mean / total


@compiled()
def mean_score_anchored(row, anchor, p_anchor, e):
    root, b, mean = p_anchor**e, 1 / e, 0.0
    for i in range(row.size):
        d = float(row[i]) - anchor
        if d > 0:
            mean += d * (root + e * d) ** b
    return e * mean
