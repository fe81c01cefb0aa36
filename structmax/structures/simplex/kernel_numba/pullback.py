"""The pullback of the simplex on the CPU: J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support."""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.math import exp, log
from structmax.numerics.kernel_numba.vector import block_copy, block_some
from structmax.structures.simplex.kernel_numba.thresholds import CHUNK, copy, is_nan

# Rows up to this length stay in the first-level cache while they are read twice.
CACHED = 4096


@compiled("contract", "reassoc")
def _pullback_short(start, stop, p, v, e, out):
    """For rows so short that they stay in the cache, and their sums in the dtype: every entry is visited twice.

    α is looked at outside the innermost loops, and those are all in one function: both count where n is small.
    """
    n = p.shape[1]
    dtype = p.dtype.type
    zero, one, exponent = dtype(0), dtype(1), dtype(1 - e)
    for k in range(start, stop):
        q, u, d = p[k], v[k], out[k]
        total, moment = zero, zero
        if e == 1:
            for i in range(n):
                s = zero if q[i] <= zero else one + zero * q[i]
                total += s
                moment += zero if q[i] <= zero else s * u[i]
            mean = moment / total if total != zero else zero
            for i in range(n):
                d[i] = zero if q[i] <= zero else u[i] - mean
        elif e == 0.5:
            for i in range(n):
                s = math.sqrt(q[i])
                total += s
                moment += zero if q[i] <= zero else s * u[i]
            mean = moment / total if total != zero else zero
            for i in range(n):
                d[i] = zero if q[i] <= zero else math.sqrt(q[i]) * (u[i] - mean)
        elif e == 0:
            for i in range(n):
                total += q[i]
                moment += zero if q[i] <= zero else q[i] * u[i]
            mean = moment / total if total != zero else zero
            for i in range(n):
                d[i] = zero if q[i] <= zero else q[i] * (u[i] - mean)
        else:
            for i in range(n):
                power = exp(exponent * log(q[i]))
                s = zero if q[i] <= zero else power + zero * q[i]
                d[i] = s
                total += s
                moment += zero if q[i] <= zero else s * u[i]
            mean = moment / total if total != zero else zero
            for i in range(n):
                d[i] = zero if d[i] <= zero else d[i] * (u[i] - mean)


@compiled("contract", "reassoc")
def _weigh(p, v, e, s):
    """s = p^(2−α) on the support, and the mean of v under it."""
    dtype = p.dtype.type
    zero, one, exponent = dtype(0), dtype(1), dtype(1 - e)
    total, moment = 0.0, 0.0
    for start in range(0, p.size, CHUNK):
        p_part, v_part, s_part = p[start : start + CHUNK], v[start : start + CHUNK], s[start : start + CHUNK]
        a, c = zero, zero
        if e == 1:
            for i in range(p_part.size):
                weight = zero if p_part[i] <= zero else one + zero * p_part[i]
                s_part[i] = weight
                a += weight
                c += zero if p_part[i] <= zero else weight * v_part[i]
        elif e == 0.5:
            for i in range(p_part.size):
                weight = math.sqrt(p_part[i])
                s_part[i] = weight
                a += weight
                c += zero if p_part[i] <= zero else weight * v_part[i]
        elif e == 0:
            for i in range(p_part.size):
                s_part[i] = p_part[i]
                a += p_part[i]
                c += zero if p_part[i] <= zero else p_part[i] * v_part[i]
        else:
            for i in range(p_part.size):
                power = exp(exponent * log(p_part[i]))
                weight = zero if p_part[i] <= zero else power + zero * p_part[i]
                s_part[i] = weight
                a += weight
                c += zero if p_part[i] <= zero else weight * v_part[i]
        total += a
        moment += c
    return dtype(moment / total if total != 0 else 0.0)


@compiled("contract")
def _center(s, v, mean, out):
    """s (v − mean) on the support."""
    zero = s.dtype.type(0)
    for i in range(s.size):
        out[i] = zero if s[i] <= zero else s[i] * (v[i] - mean)


@compiled()
def _pullback_steep(p, v, e, out):
    """For α > 2, where s is by far the largest at the lowest p: v is measured from there, and the mean in units of s
    there. That entry's own product, where v − mean would cancel, is what makes the products sum to 0."""
    lowest = 0
    for i in range(p.size):
        if p[lowest] <= 0 or 0 < p[i] < p[lowest] or is_nan(p[i]):
            lowest = i
    if p[lowest] <= 0:
        out[:] = 0
        return
    p_lowest, v_lowest = float(p[lowest]), float(v[lowest])
    total, moment = 0.0, 0.0
    for i in range(p.size):
        if not p[i] <= 0:
            share = (p[i] / p_lowest) ** (1 - e)
            total += share
            moment += share * (v[i] - v_lowest)
    mean, rest = moment / total, 0.0
    for i in range(p.size):
        out[i] = 0
        if not p[i] <= 0 and i != lowest:
            s = min(float(p[i]) ** (1 - e), float(np.finfo(p.dtype).max))
            product = s * ((v[i] - v_lowest) - mean)
            out[i] = product
            rest += product
    # zero · mean carries a NaN on.
    out[lowest] = 0 * mean - rest


@compiled()
def _pullback_long(start, stop, p, v, e, out):
    """Blocks without support are left out; the entries after the last full block always take part."""
    n = p.shape[1]
    full = n // BLOCK
    live = np.empty(full + 1, np.int64)
    q, u, s = np.empty(n, p.dtype), np.empty(n, p.dtype), np.empty(n, p.dtype)
    for i in range(start, stop):
        p_row, v_row, out_row = p[i], v[i], out[i]
        if e == 0:
            _center(p_row, v_row, _weigh(p_row, v_row, e, out_row), out_row)
            continue
        count = 0
        for k in range(full):
            live[count] = k * BLOCK
            count += block_some(p_row, k * BLOCK)
        for k in range(count):
            block_copy(p_row, live[k], q, k * BLOCK)
            block_copy(v_row, live[k], u, k * BLOCK)
        size = count * BLOCK + n - full * BLOCK
        copy(p_row[full * BLOCK :], q[count * BLOCK :])
        copy(v_row[full * BLOCK :], u[count * BLOCK :])
        mean = _weigh(q[:size], u, e, s)
        _center(s[:size], u, mean, q)
        out_row[: full * BLOCK] = 0
        for k in range(count):
            block_copy(q, k * BLOCK, out_row, live[k])
        copy(q[count * BLOCK : size], out_row[full * BLOCK :])


@kernel()
def pullback_short_rows(start, stop, p, v, alpha, out):
    # All rows that share their α at once.
    step = 1 if alpha.size > 1 else max(stop - start, 1)
    for first in range(start, stop, step):
        e = alpha[first % alpha.size] - 1
        if e <= 1:
            _pullback_short(first, first + step, p, v, e, out)
        else:
            for i in range(first, first + step):
                _pullback_steep(p[i], v[i], e, out[i])


@kernel()
def pullback_long_rows(start, stop, p, v, alpha, out):
    for i in range(start, stop):
        e = alpha[i % alpha.size] - 1
        if e <= 1:
            _pullback_long(i, i + 1, p, v, e, out)
        else:
            _pullback_steep(p[i], v[i], e, out[i])
