"""The simplex on the CPU. Derivations: README.md in this folder.

With e = α − 1, b = 1/e and z = x − max x, the probabilities are p = [1 + e (z − τ)]₊^b. Only scores within 1/e of the
maximum can have any, so a row is read once in blocks; blocks that cannot reach the support are never looked at again,
and Newton's method for τ runs on the entries of the others.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, over_rows
from structmax.numerics.kernel_numba_math import exp, log1p

# One cache line, and one vector register, of float32.
BLOCK = 16
# Sums are kept in the dtype of the scores over this many entries, and in float64 beyond.
CHUNK = 1024
# With fewer blocks than this, finding a start for Newton's method costs more than it saves.
WARM_BLOCKS = 8
WARM_STEPS = 3
# Far more than Newton's method takes.
STEPS = 100


# --- one row: maxima, candidates, sums -----------------------------------------------------------------------------


@compiled()
def _is_nan(value):
    return value != value


@compiled("nnan", "nsz")
def _peaks(row, peaks):
    """The maximum of every block, written to `peaks`, and that of the row: NaN if any score is NaN or +inf."""
    invalid = False
    full = row.size // BLOCK
    for i in range(full):
        peak = row[i * BLOCK]
        for j in range(BLOCK):
            value = row[i * BLOCK + j]
            peak = value if value > peak else peak
            invalid |= _is_nan(value)
        peaks[i] = peak
    if full < peaks.size:
        peak = row[full * BLOCK]
        for j in range(full * BLOCK, row.size):
            value = row[j]
            peak = value if value > peak else peak
            invalid |= _is_nan(value)
        peaks[full] = peak
    peak = row.dtype.type(-np.inf)
    for i in range(peaks.size):
        peak = peaks[i] if peaks[i] > peak else peak
    return row.dtype.type(np.nan) if invalid or peak == np.inf else peak


@compiled()
def _shift(scores, peak, scale, out):
    for i in range(scores.size):
        out[i] = (scores[i] - peak) * scale


@compiled()
def _gather(row, peak, scale, crest, cut, z):
    """(x − peak) · scale for the blocks whose crest is above `cut`, written to `z` without gaps; returns their number.

    Every block is copied and the next one overwrites it if it was not wanted: no branch to predict.
    """
    count = 0
    full = row.size // BLOCK
    for i in range(full):
        for j in range(BLOCK):
            z[count, j] = (row[i * BLOCK + j] - peak) * scale
        count += crest[i] > cut
    if full < crest.size and crest[full] > cut:
        for j in range(BLOCK):
            z[count, j] = -np.inf
        for j in range(full * BLOCK, row.size):
            z[count, j - full * BLOCK] = (row[j] - peak) * scale
        count += 1
    return count * BLOCK


@compiled()
def _base(z, high, low):
    # `high` + `low` is a threshold of twice the precision; z + high is exact where the two cancel.
    u = (z + high) + low
    return u if u > 0 else u * 0


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
                u = _base(part[i], high, low)
                s += u * u
                d += u
        else:
            for i in range(part.size):
                u = _base(part[i], high, low)
                s += u
                d += one if u > zero else zero
        mass += s
        slope += d
    return mass, slope


@compiled()
def _power(w, b):
    """[1 + w]₊^b, accurate also where w is small and b large."""
    power = exp(b * log1p(w))
    return power if w > -1 else power * 0


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
            inside = w > -one
            s += power if inside else zero
            d += power / (one + w) if inside else zero
        mass += s
        slope += d
    return mass, slope
