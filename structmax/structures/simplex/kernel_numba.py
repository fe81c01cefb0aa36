"""The simplex on the CPU. Derivations: README.md in this folder."""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, over_rows
from structmax.numerics.kernel_numba_math import exp, log, log1p
from structmax.numerics.kernel_numba_vector import BLOCK, block_copy, block_some
from structmax.structures.simplex.kernel_numba_threshold import (
    CHUNK,
    add_exactly,
    anchored,
    find_peaks,
    is_nan,
    scratch,
    threshold,
)

# --- one row: probabilities from the threshold, times a weight -----------------------------------------------------


@compiled("contract")
def _fill_polynomial(row, peak, e, tau, weight, out):
    dtype = row.dtype.type
    top = 1 - e * tau
    high = dtype(top)
    low = dtype(top - high)
    zero, scale = dtype(0), dtype(e)
    if e == 1:
        for i in range(row.size):
            u = add_exactly(row[i] - peak, high, low)
            out[i] = (u if u > zero else zero) * weight
    else:
        for i in range(row.size):
            u = add_exactly((row[i] - peak) * scale, high, low)
            u = u if u > zero else zero
            out[i] = u * u * weight


@compiled("contract")
def _fill_power(row, peak, e, tau, scale, peaks, out):
    dtype = row.dtype.type
    k, b = dtype(e / (1 - e * tau)), dtype(1 / e)
    zero, one = dtype(0), dtype(1)
    for i in range(peaks.size):
        part = row[i * BLOCK : (i + 1) * BLOCK]
        p = out[i * BLOCK : (i + 1) * BLOCK]
        if k * (peaks[i] - peak) > -one:
            for j in range(part.size):
                w = k * (part[j] - peak)
                power = exp(b * log1p(w))
                p[j] = (power if w > -one else zero) * scale
        else:
            p[:] = zero * scale


@compiled("contract")
def _fill_exp(row, peak, scale, out):
    for i in range(row.size):
        out[i] = exp(row[i] - peak) * scale


@compiled()
def _fill_anchored(row, anchor, p_anchor, e, weight, out):
    root, b = p_anchor**e, 1 / e
    for i in range(row.size):
        x = float(row[i])
        p = (root + e * (x - anchor)) ** b if x > anchor else (p_anchor if x == anchor else 0.0)
        out[i] = p * weight


@compiled()
def _fill(row, origin, t, total, e, weight, peaks, out):
    """weight · p from (maximum, τ) where α ≤ 2, from (smallest supported score, its probability) where α > 2."""
    dtype = row.dtype.type
    if e > 1:
        _fill_anchored(row, origin, t, e, weight, out)
    elif e == 1 or e == 0.5:
        _fill_polynomial(row, dtype(origin), e, t, dtype(weight), out)
    elif e == 0:
        _fill_exp(row, dtype(origin), dtype(weight / total), out)
    else:
        _fill_power(row, dtype(origin), e, t, dtype(weight / total), peaks, out)


@compiled("contract", "reassoc")
def _mean_score(z, e, tau, total):
    """e Σ p z over the candidates, as `_threshold` left them in `z`."""
    dtype = z.dtype.type
    zero, one = dtype(0), dtype(1)
    mean = 0.0
    if e == 1 or e == 0.5:
        top = dtype(1 - e * tau)
        for i in range(z.size):
            u = z[i] + top
            if u > zero:
                mean += z[i] * (u if e == 1 else u * u)
        return mean
    k, b = dtype(e / (1 - e * tau)), dtype(1 / e)
    for i in range(z.size):
        w = k * z[i]
        if w > -one and z[i] > -np.inf:
            mean += z[i] * exp(b * log1p(w))
    return e * mean / total


@compiled()
def _mean_score_anchored(row, anchor, p_anchor, e):
    root, b, mean = p_anchor**e, 1 / e, 0.0
    for i in range(row.size):
        d = float(row[i]) - anchor
        if d > 0:
            mean += d * (root + e * d) ** b
    return e * mean


# --- slices of rows ------------------------------------------------------------------------------------------------


@compiled()
def _entmax_rows(start, stop, x, alpha, tolerance, p):
    dtype = x.dtype.type
    peaks, crest, z = scratch(x)
    y = np.empty(x.shape[1])
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        peak = find_peaks(row, peaks, z)
        if not peak > -np.inf:
            p[i] = peak if is_nan(peak) else dtype(0)
        elif e > 1:
            anchor, p_anchor = anchored(row, peak, e, y)
            _fill(row, anchor, p_anchor, 1.0, e, 1.0, peaks, p[i])
        else:
            tau, _, total = threshold(row, peak, e, peaks, crest, z, tolerance)
            _fill(row, float(peak), tau, total, e, 1.0, peaks, p[i])


@compiled()
def _value_rows(start, stop, x, target, alpha, tolerance, value, state):
    peaks, crest, z = scratch(x)
    y = np.empty(x.shape[1])
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        peak = find_peaks(row, peaks, z)
        if is_nan(peak):
            value[i] = state[i, 0] = state[i, 1] = np.nan
            continue
        if peak == -np.inf:
            value[i] = -np.inf if target[i] < 0 else np.inf
            state[i, 0] = state[i, 1] = 0
            continue
        # Σ p^α = Σ p (p_o^e + e (x − o)) for the origin o of the state: Ω* − o = (τ_o + e Σ p (x − o)) / α.
        if e > 1:
            origin, t = anchored(row, peak, e, y)
            tau = (1 - t**e) / e
            mean = _mean_score_anchored(row, origin, t, e)
        else:
            origin = float(peak)
            tau, count, total = threshold(row, peak, e, peaks, crest, z, tolerance)
            t = tau
            mean = 0.0 if e == 0 else _mean_score(z[:count], e, tau, total)
        state[i, 0], state[i, 1] = origin, t
        value[i] = (tau + mean) / (1 + e) + (origin if target[i] < 0 else origin - float(row[target[i]]))


@compiled()
def _feasible(row):
    for i in range(row.size):
        if row[i] > -np.inf:
            return True
    return False


@compiled()
def _gradient_rows(start, stop, x, state, target, d_value, alpha, d_x):
    dtype = x.dtype.type
    peaks, _, z = scratch(x)
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        origin, t, weight, hit = float(state[i, 0]), float(state[i, 1]), float(d_value[i]), target[i]
        if weight == 0 or is_nan(t):
            d_x[i] = dtype(t * weight) if weight != 0 else dtype(0)
            continue
        total = 1.0
        if e == 0:
            total = math.exp(t)
        elif e < 1 and e != 0.5:
            total = math.exp(-math.log1p(-e * t) / e)
            find_peaks(row, peaks, z)
        _fill(row, origin, t, total, e, weight, peaks, d_x[i])
        if hit >= 0 and (row[hit] > -np.inf or _feasible(row)):
            d_x[i, hit] -= dtype(weight)


@compiled("contract", "reassoc")
def _weights(s, v, e):
    """Turn the probabilities in `s` into s = p^(2−α) on the support; Σ s and Σ s v."""
    dtype = s.dtype.type
    zero, one, exponent = dtype(0), dtype(1), dtype(1 - e)
    total, moment = 0.0, 0.0
    for start in range(0, s.size, CHUNK):
        s_part, v_part = s[start : start + CHUNK], v[start : start + CHUNK]
        a, c = zero, zero
        if e == 1:
            for i in range(s_part.size):
                # zero · p carries a NaN on.
                s_part[i] = zero if s_part[i] <= zero else one + zero * s_part[i]
        elif e == 0.5:
            for i in range(s_part.size):
                s_part[i] = math.sqrt(s_part[i])
        elif e != 0:
            for i in range(s_part.size):
                power = exp(exponent * log(s_part[i]))
                s_part[i] = zero if s_part[i] <= zero else power
        for i in range(s_part.size):
            a += s_part[i]
            c += zero if s_part[i] <= zero else s_part[i] * v_part[i]
        total += a
        moment += c
    return total, moment


@compiled()
def _pullback_steep(p, v, e, out):
    """For α > 2 s is largest where p is lowest; in units of that, and relative to v there, nothing cancels."""
    lowest = 0
    for i in range(p.size):
        if p[lowest] <= 0 or 0 < p[i] < p[lowest] or p[i] != p[i]:
            lowest = i
    p_lowest, v_lowest = float(p[lowest]), float(v[lowest])
    total, moment = 0.0, 0.0
    for i in range(p.size):
        if not p[i] <= 0:
            s = (p[i] / p_lowest) ** (1 - e)
            total += s
            moment += s * (v[i] - v_lowest)
    mean, unit = moment / total, p_lowest ** (1 - e)
    for i in range(p.size):
        rise = (v[i] - v_lowest) - mean
        if p[i] <= 0 or rise == 0:
            out[i] = 0
        else:
            out[i] = unit * ((p[i] / p_lowest) ** (1 - e) * rise)


@compiled("contract")
def _center(s, v, mean):
    """s (v − mean) on the support, in the place of `s`."""
    zero = s.dtype.type(0)
    for i in range(s.size):
        s[i] = zero if s[i] <= zero else s[i] * (v[i] - mean)


@compiled()
def _pullback_rows(start, stop, p, v, alpha, out):
    n = p.shape[1]
    full = n // BLOCK
    live = np.empty(full + 1, np.int64)
    s, u = np.empty((full + 1) * BLOCK, p.dtype), np.empty((full + 1) * BLOCK, p.dtype)
    for i in range(start, stop):
        p_row, v_row, out_row = p[i], v[i], out[i]
        e = alpha[i % alpha.size] - 1
        if e > 1:
            _pullback_steep(p_row, v_row, e, out_row)
            continue
        count = 0
        for k in range(full):
            live[count] = k * BLOCK
            count += block_some(p_row, k * BLOCK)
        for k in range(count):
            block_copy(p_row, live[k], s, k * BLOCK)
            block_copy(v_row, live[k], u, k * BLOCK)
        # The entries after the last full block always take part.
        size = count * BLOCK + n - full * BLOCK
        s[count * BLOCK : size] = p_row[full * BLOCK :]
        u[count * BLOCK : size] = v_row[full * BLOCK :]
        total, moment = _weights(s[:size], u[:size], e)
        _center(s[:size], u[:size], p.dtype.type(moment / total if total != 0 else 0.0))
        out_row[: full * BLOCK] = 0
        for k in range(count):
            block_copy(s, k * BLOCK, out_row, live[k])
        out_row[full * BLOCK :] = s[count * BLOCK : size]


# --- the questions -------------------------------------------------------------------------------------------------


def _alphas(alpha: float | Tensor) -> np.ndarray:
    """One exponent for all rows, or one for each."""
    return alpha.double().numpy() if isinstance(alpha, Tensor) else np.array([alpha], np.float64)


def _tolerance(x: Tensor) -> float:
    return 4 * torch.finfo(x.dtype).eps


@returns("parts")
def entmax(x: Tensor, alpha: float | Tensor) -> Tensor:
    """p = argmax over the simplex of ⟨p, x⟩ − Ω_α(p): (B, n)."""
    p = torch.empty_like(x)
    over_rows(_entmax_rows, len(x), x.numel(), x.numpy(), _alphas(alpha), _tolerance(x), p.numpy())
    return p


@returns("parts")
def entmax_pullback(p: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support, off which v is not read: (B, n)."""
    out = torch.empty_like(p)
    over_rows(_pullback_rows, len(p), p.numel(), p.numpy(), v.numpy(), _alphas(alpha), out.numpy())
    return out


@returns("value", "state")
def entmax_value(x: Tensor, target: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Ω*_α(x) − x[target] per row (without the second term where target < 0): (B,), and the state: (B, 2)."""
    value, state = x.new_empty(len(x)), x.new_empty(len(x), 2)
    arrays = (x.numpy(), target.numpy(), _alphas(alpha), _tolerance(x), value.numpy(), state.numpy())
    over_rows(_value_rows, len(x), x.numel(), *arrays)
    return value, state


@returns("parts")
def entmax_gradient(x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor) -> Tensor:
    """d_value · (p − onehot(target)), with p recovered from `state`; the pullback of `entmax_value`: (B, n)."""
    d_x = torch.empty_like(x)
    arrays = (x.numpy(), state.numpy(), target.numpy(), d_value.numpy(), _alphas(alpha), d_x.numpy())
    over_rows(_gradient_rows, len(x), x.numel(), *arrays)
    return d_x


@returns("value")
def log_partition(x: Tensor) -> Tensor:
    """log Σ exp x: (B,)."""
    return entmax_value(x, torch.full((len(x),), -1), 1.0)[0]


@returns("parts")
def marginals(x: Tensor) -> Tensor:
    """softmax x: (B, n)."""
    return entmax(x, 1.0)


@returns("parts")
def marginals_jvp(x: Tensor, v: Tensor) -> Tensor:
    """p · (v − ⟨p, v⟩) with p = softmax x: (B, n)."""
    return entmax_pullback(entmax(x, 1.0), v, 1.0)
