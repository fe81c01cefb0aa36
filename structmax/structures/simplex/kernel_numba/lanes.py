"""Short rows of the simplex, BLOCK at a time, each in its own lane of a vector. Derivations: ../README.md.

A row that has come close enough to its threshold stands still, so that none depends on its neighbours.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.math import exp, log, log1p
from structmax.numerics.kernel_numba.vector import (
    block_copy,
    block_transpose,
    lane_moments,
    lane_peaks,
    lane_scale,
    lane_shift,
    lane_step,
    lane_sums,
)

# Up to this length two tiles stay in the cache.
SHORT = 256
# Entries of float32 in a page of memory.
PAGE = 1024
# A start for Newton's method may be off by this much mass.
NEAR = 0.1


@compiled()
def lanes_fit(x, rows, alpha):
    """Whether lanes can serve: short rows, enough of them, and one α for all, 1 < α ≤ 2."""
    return 0 < x.shape[1] <= SHORT and rows >= BLOCK and alpha.size == 1 and 1 < alpha[0] <= 2


@compiled()
def lane_scratch(x):
    """Room for two tiles of BLOCK transposed rows; for `top`, another number, and the two sums of each; and for the
    results, peaks and τ."""
    size = x.shape[1] * BLOCK
    # Half a page apart: a load waits for an earlier store to the same place in another page.
    begin = (size // PAGE + 1) * PAGE + PAGE // 2
    room = np.empty(begin + size, x.dtype)
    lanes = np.empty(BLOCK, x.dtype), np.empty(BLOCK, x.dtype), np.empty(2 * BLOCK, x.dtype)
    return (room[:size], room[begin:]), lanes, np.empty(BLOCK, x.dtype), np.empty(BLOCK)


@compiled()
def _unit(e):
    """The e nearest from above for which p is a polynomial, and in which tiles are measured."""
    return 1.0 if e > 0.5 else 0.5


# Long strides through memory are slow: rows are copied as they lie, and transposed in the cache.


@compiled()
def _read(x, first, rows, tile):
    n = x.shape[1]
    full = n // BLOCK * BLOCK
    scores = x.reshape(-1)
    for j in range(0, n * BLOCK, BLOCK):
        block_copy(scores, first * n + j, rows, j)
    for j in range(0, full, BLOCK):
        block_transpose(rows, j, n, tile, j * BLOCK, BLOCK)
    for j in range(full, n):
        for i in range(BLOCK):
            tile[j * BLOCK + i] = rows[i * n + j]


@compiled()
def _write(tile, rows, p, first):
    n = p.shape[1]
    full = n // BLOCK * BLOCK
    for j in range(0, full, BLOCK):
        block_transpose(tile, j * BLOCK, BLOCK, rows, j, n)
    for j in range(full, n):
        for i in range(BLOCK):
            rows[i * n + j] = tile[j * BLOCK + i]
    out = p.reshape(-1)
    for j in range(0, n * BLOCK, BLOCK):
        block_copy(rows, j, out, first * n + j)


@compiled("contract")
def _power(w, exponent):
    """Turn w into (1 + w)^exponent; 0 where w = −1."""
    zero, one = w.dtype.type(0), w.dtype.type(1)
    for i in range(w.size):
        power = exp(exponent * log1p(w[i]))
        w[i] = power if w[i] > -one else zero


@compiled()
def _newton(tile, n, quadratic, top, sums, tolerance):
    """Lower `top` = 1 − e τ to the solution of Σ [z + top]₊^b = 1; leaves in `sums` what belongs to it."""
    for i in range(BLOCK):
        top[i] = 1
    lane_sums(tile, n, top, quadratic, sums)
    while lane_step(sums, quadratic, tile.dtype.type(tolerance), top):
        lane_sums(tile, n, top, quadratic, sums)


@compiled()
def _newton_power(tiles, n, e, lanes, tolerance):
    """Lower `top` = 1 − e τ to the solution of R^−e = `top`, with R = Σ (u / u_max)^b; leaves in `sums` what belongs
    to it. The start is the solution for the unit: [1 + e t]₊^b falls with e where t < 0, and so does τ.
    """
    tile, power = tiles
    top, slope, sums = lanes
    dtype = tile.dtype.type
    unit = _unit(e)
    scale, minus_e, enough = dtype(e / unit), dtype(-e), dtype(e * math.sqrt(tolerance) / 4 + tolerance)
    _newton(tile, n, unit < 1, top, sums, NEAR)
    for i in range(BLOCK):
        top[i] = 1 - (1 - top[i]) * scale
    moving = True
    while moving:
        for i in range(BLOCK):
            slope[i] = scale / top[i]
        lane_scale(tile, n, slope, dtype(-1), power)
        _power(power, dtype(1 / e - 1))
        lane_moments(power, tile, n, slope, sums)
        gap = slope
        for i in range(BLOCK):
            gap[i] = top[i] - exp(minus_e * log(sums[i]))
        moving = False
        for i in range(BLOCK):
            if gap[i] > enough * top[i]:
                top[i] -= gap[i] * sums[i] / sums[BLOCK + i]
                moving = True


@compiled()
def lane_thresholds(x, first, e, tiles, lanes, tolerance, exact, peaks, taus):
    """The maxima and τ of the rows first … first + BLOCK − 1, and (x − max x) · unit in the first tile.

    If `exact`, the last step is taken in float64: what rounding has left of the mass leads beyond the precision of the
    dtype. `lane_powers`, which makes p sum to 1, does without.
    """
    tile, rows = tiles
    top, _, sums = lanes
    n = x.shape[1]
    unit = _unit(e)
    _read(x, first, rows, tile)
    lane_peaks(tile, n, peaks)
    lane_shift(tile, n, peaks, x.dtype.type(unit))
    if e == unit:
        _newton(tile, n, e < 1, top, sums, tolerance)
    else:
        _newton_power(tiles, n, e, lanes, tolerance)
    for i in range(BLOCK):
        mass, tau = float(sums[i]), (1 - float(top[i])) / e
        if e == unit:
            gap = (mass - (math.sqrt(mass) if e < 1 else 1.0)) / e
        elif not exact:
            gap = (top[i] - exp(x.dtype.type(-e) * log(sums[i]))) / e * mass
        else:
            gap = (-math.expm1(-e * math.log(mass)) / e - tau) * mass
        taus[i] = tau + gap / sums[BLOCK + i]
        # As everywhere, +inf is no number to compare with.
        if peaks[i] == np.inf:
            peaks[i] = np.nan


@compiled()
def lane_powers(tiles, lanes, e, taus, p, first):
    """p of the rows whose thresholds `lane_thresholds` has found, for α other than 1.5 and 2."""
    tile, power = tiles
    _, scale, sums = lanes
    n = p.shape[1]
    dtype = p.dtype.type
    for i in range(BLOCK):
        scale[i] = e / _unit(e) / (1 - e * taus[i])
    lane_scale(tile, n, scale, dtype(-1), power)
    _power(power, dtype(1 / e))
    lane_moments(power, tile, n, scale, sums)
    for i in range(BLOCK):
        scale[i] = 1 / sums[BLOCK + i]
    lane_scale(power, n, scale, dtype(0), power)
    _write(power, tile, p, first)
