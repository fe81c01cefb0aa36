"""The simplex on the CPU. Derivations: ../README.md."""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.math import exp
from structmax.structures.simplex.kernel_numba.lanes import (
    lane_powers,
    lane_scratch,
    lane_thresholds,
    lanes_fit,
)
from structmax.structures.simplex.kernel_numba.layer import layer_loss as layer_loss
from structmax.structures.simplex.kernel_numba.layer import layer_loss_pullback as layer_loss_pullback
from structmax.structures.simplex.kernel_numba.pullback import CACHED, pullback_long_rows, pullback_short_rows
from structmax.structures.simplex.kernel_numba.thresholds import (
    CHUNK,
    add_exactly,
    anchored,
    collect,
    edge,
    find_peaks,
    is_nan,
    mean_score,
    mean_score_anchored,
    powers,
    scratch,
    shift,
    threshold,
    whole,
)

# As in reference.py: the target of a value without a target term.
NOTHING = -(2**62)

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


@compiled()
def _fill_power(z, places, count, e, tau, weight, out):
    powers(z[: whole(count)], e, tau, weight)
    out[:] = out.dtype.type(0 * weight)
    for i in range(count):
        out[places[i]] = z[i]


@compiled("contract", "reassoc")
def _softmax(row, peak, out):
    """Returns Σ exp(row − peak)."""
    dtype = row.dtype.type
    total = 0.0
    for start in range(0, row.size, CHUNK):
        part, power = row[start : start + CHUNK], out[start : start + CHUNK]
        s = dtype(0)
        # Two loops: as one, arrays that lie close together would be summed in another order than others.
        for i in range(part.size):
            power[i] = exp(part[i] - peak)
        for i in range(part.size):
            s += power[i]
        total += s
    scale = dtype(1 / total)
    for i in range(out.size):
        out[i] *= scale
    return total


@compiled("contract", "reassoc")
def _covariance(p, v, out):
    """p (v − ⟨p, v⟩); v is not read where p is 0."""
    mean = 0.0
    for start in range(0, p.size, CHUNK):
        part, weight = v[start : start + CHUNK], p[start : start + CHUNK]
        s = p.dtype.type(0)
        for i in range(part.size):
            s += weight[i] * part[i] if weight[i] != 0 else p.dtype.type(0)
        mean += s
    centre = p.dtype.type(mean)
    for i in range(p.size):
        out[i] = p[i] * (v[i] - centre) if p[i] != 0 else p.dtype.type(0)


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


# --- slices of rows ------------------------------------------------------------------------------------------------


@kernel()
def _entmax_lanes(start, stop, x, e, tolerance, p):
    dtype = x.dtype.type
    tiles, lanes, peaks, taus = lane_scratch(x)
    for lead in range(start, stop, BLOCK):
        # The last tile overlaps the one before it.
        first = min(lead, stop - BLOCK)
        lane_thresholds(x, first, e, tiles, lanes, tolerance, False, peaks, taus)
        polynomial = e == 1 or e == 0.5
        if not polynomial:
            lane_powers(tiles, lanes, e, taus, p, first)
        for i in range(BLOCK):
            if not peaks[i] > -np.inf:
                p[first + i] = peaks[i] if is_nan(peaks[i]) else dtype(0)
            elif polynomial:
                _fill_polynomial(x[first + i], peaks[i], e, taus[i], dtype(1), p[first + i])


@kernel()
def _entmax_rows(start, stop, x, alpha, tolerance, p):
    dtype = x.dtype.type
    peaks, crest, z, places = scratch(x)
    y = np.empty(x.shape[1])
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        peak = find_peaks(row, peaks, z)
        if not peak > -np.inf:
            p[i] = peak if is_nan(peak) else dtype(0)
        elif e > 1:
            anchor, p_anchor = anchored(row, peak, e, y)
            _fill_anchored(row, anchor, p_anchor, e, 1.0, p[i])
        elif e == 0:
            _softmax(row, peak, p[i])
        else:
            tau, count = threshold(row, peak, e, peaks, crest, z, places, tolerance)
            if e == 1 or e == 0.5:
                _fill_polynomial(row, peak, e, tau, dtype(1), p[i])
            else:
                _fill_power(z, places, count, e, tau, 1.0, p[i])


@kernel()
def _softmax_rows(start, stop, x, value, p):
    """log Σ exp x, and softmax x."""
    peaks, _, z, _ = scratch(x)
    for i in range(start, stop):
        peak = find_peaks(x[i], peaks, z)
        if peak > -np.inf:
            value[i] = peak + np.log(_softmax(x[i], peak, p[i]))
        else:
            value[i], p[i] = peak, peak if is_nan(peak) else x.dtype.type(0)


@kernel()
def _covariance_rows(start, stop, x, v, out):
    peaks, _, z, _ = scratch(x)
    p = np.empty(x.shape[1], x.dtype)
    for i in range(start, stop):
        peak = find_peaks(x[i], peaks, z)
        if peak > -np.inf:
            _softmax(x[i], peak, p)
            _covariance(p, v[i], out[i])
        else:
            out[i] = peak if is_nan(peak) else x.dtype.type(0)


@compiled()
def _write_value(row, target, ignored, alpha, origin, t, tau, mean, state):
    """With the origin o of the state Σ p^α = Σ p (p_o^e + e (x − o)), so that Ω* − o = (τ_o + e Σ p (x − o)) / α."""
    state[0], state[1] = (0, 0) if origin == -np.inf else (origin, t)
    if target == ignored:
        return 0.0
    if origin == -np.inf:
        return -np.inf if target == NOTHING else np.inf
    value = (tau + mean) / alpha
    if target == NOTHING:
        return value + origin
    # Inside a compiled graph nobody has looked at the targets: one that is no entry costs NaN.
    return value + (origin - float(row[target])) if 0 <= target < row.size else np.nan


@compiled()
def _value_lanes(start, stop, x, target, ignored, e, tolerance, value, state):
    tiles, lanes, peaks, taus = lane_scratch(x)
    z = np.empty(x.shape[1], x.dtype)
    for lead in range(start, stop, BLOCK):
        first = min(lead, stop - BLOCK)
        lane_thresholds(x, first, e, tiles, lanes, tolerance, True, peaks, taus)
        for i in range(BLOCK):
            row, origin, tau, k = x[first + i], float(peaks[i]), taus[i], first + i
            shift(row, peaks[i], x.dtype.type(e if e == 1 or e == 0.5 else 1), z)
            mean = mean_score(z, e, tau)
            value[k] = _write_value(row, target[k], ignored, 1 + e, origin, tau, tau, mean, state[k])


@kernel()
def _value_rows(start, stop, x, target, ignored, alpha, tolerance, value, state):
    if lanes_fit(x, stop - start, alpha):
        _value_lanes(start, stop, x, target, ignored, alpha[0] - 1, tolerance, value, state)
        return
    peaks, crest, z, places = scratch(x)
    y = np.empty(x.shape[1])
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        peak = find_peaks(row, peaks, z)
        origin, t, tau, mean = float(peak), float(peak), 0.0, 0.0
        if peak > -np.inf:
            if e > 1:
                origin, t = anchored(row, peak, e, y)
                tau = (1 - t**e) / e
                mean = mean_score_anchored(row, origin, t, e)
            else:
                tau, count = threshold(row, peak, e, peaks, crest, z, places, tolerance)
                t = tau
                mean = mean_score(z[: whole(count)], e, tau) if e != 0 else 0.0
        value[i] = _write_value(row, target[i], ignored, 1 + e, origin, t, tau, mean, state[i])


@kernel()
def _gradient_rows(start, stop, x, state, target, ignored, d_value, alpha, tolerance, d_x):
    dtype = x.dtype.type
    _, _, z, places = scratch(x)
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        origin, t, weight, hit = state[i, 0], float(state[i, 1]), d_value[i % d_value.size], target[i]
        still = weight == 0 or hit == ignored
        if still or is_nan(origin):
            d_x[i] = dtype(0) if still else origin
            continue
        if e > 1:
            _fill_anchored(row, float(origin), t, e, float(weight), d_x[i])
        elif e == 1 or e == 0.5:
            _fill_polynomial(row, origin, e, t, weight, d_x[i])
        elif e == 0:
            _fill_exp(row, origin, dtype(weight * math.exp(-t)), d_x[i])
        else:
            count = collect(row, origin, dtype(edge(e, t, tolerance)), z, places)
            _fill_power(z, places, count, e, t, float(weight), d_x[i])
        if 0 <= hit < row.size and (row[hit] > -np.inf or np.max(row) > -np.inf):
            d_x[i, hit] -= weight


@compiled()
def _fill_part(row, origin, t, e, weight, out):
    """Without the correction that makes the probabilities of a whole row sum to 1."""
    for i in range(row.size):
        u = 1 + e * (float(row[i]) - origin - t)
        out[i] = weight * u ** (1 / e) if u > 0 else 0.0 * weight


@kernel()
def _part_gradient_rows(start, stop, x, state, target, ignored, d_value, alpha, d_x):
    dtype = x.dtype.type
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        origin, t, weight, hit = state[i, 0], float(state[i, 1]), d_value[i], target[i]
        still = weight == 0 or hit == ignored
        if still or is_nan(origin):
            d_x[i] = dtype(0) if still else origin
            continue
        if e > 1:
            _fill_anchored(row, float(origin), t, e, float(weight), d_x[i])
        elif e == 1 or e == 0.5:
            _fill_polynomial(row, origin, e, t, weight, d_x[i])
        elif e == 0:
            _fill_exp(row, origin, dtype(weight * math.exp(-t)), d_x[i])
        else:
            _fill_part(row, float(origin), t, e, float(weight), d_x[i])
        if 0 <= hit < row.size:
            d_x[i, hit] -= weight


@kernel()
def _support_rows(start, stop, x, state, e, count, index, p):
    most = index.shape[1]
    for i in range(start, stop):
        origin, t, found = float(state[i, 0]), float(state[i, 1]), 0
        for j in range(x.shape[1]):
            u = 1 + e * (float(x[i, j]) - origin - t)
            # not "above": a NaN counts
            if not u <= 0:
                if found < most:
                    index[i, found], p[i, found] = j, u if e == 1 else u * u if e == 0.5 else u ** (1 / e)
                found += 1
        count[i] = found


@kernel("reassoc")
def _add_up(value, target, ignored, mean, total, count):
    """The sum of all values, divided by the number of rows whose target is not ignored, or by 1."""
    s, used = 0.0, 0
    for i in range(value.size):
        s += float(value[i])
        used += target[i] != ignored
    divisor = float(used) if mean else 1.0
    total[()], count[()] = s / divisor, divisor


# J v with s = p^(2−α) on the support. A NaN in p is carried on by zero · p; v is not read where p is 0.


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
    alphas = _alphas(alpha)
    # Two kernels rather than one: only what is needed is compiled. Slices of short rows are never below BLOCK of them.
    if lanes_fit.py_func(x, len(x), alphas):
        over_rows(_entmax_lanes, len(x), x.numel(), x.numpy(), float(alphas[0]) - 1, _tolerance(x), p.numpy())
    else:
        over_rows(_entmax_rows, len(x), x.numel(), x.numpy(), alphas, _tolerance(x), p.numpy())
    return p


@returns("parts")
def entmax_pullback(p: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support, off which v is not read: (B, n)."""
    out = torch.empty_like(p)
    # Two kernels rather than one: only what is needed is compiled.
    rows = pullback_short_rows if p.shape[1] <= CACHED else pullback_long_rows
    over_rows(rows, len(p), p.numel(), p.numpy(), v.numpy(), _alphas(alpha), out.numpy())
    return out


@returns("state", "state:2")
def entmax_value(x: Tensor, target: Tensor, alpha: float | Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Ω*_α(x) − x[target] per row, as in reference.py: (B,), and the state: (B, 2)."""
    value, state = x.new_empty(len(x)), x.new_empty(len(x), 2)
    arrays = (x.numpy(), target.numpy(), ignored, _alphas(alpha), _tolerance(x), value.numpy(), state.numpy())
    over_rows(_value_rows, len(x), x.numel(), *arrays)
    return value, state


@returns("parts")
def entmax_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor, ignored: int
) -> Tensor:
    """d_value · (p − onehot(target)), with p recovered from `state`; the pullback of `entmax_value`: (B, n).

    `d_value` is (B,), or (1,) for all rows.
    """
    d_x = torch.empty_like(x)
    given = x.numpy(), state.numpy(), target.numpy(), ignored, d_value.numpy()
    over_rows(_gradient_rows, len(x), x.numel(), *given, _alphas(alpha), _tolerance(x), d_x.numpy())
    return d_x


@returns("total", "state:2", "total")
def entmax_total(x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The values of all rows added up and divided by a number, as in reference.py: (), (B, 2), ()."""
    value, state = entmax_value(x, target, alpha, ignored)
    total, count = x.new_empty(()), x.new_empty(())
    _add_up(value.numpy(), target.numpy(), ignored, mean, total.numpy(), count.numpy())
    return total, state, count


@returns("parts")
def entmax_total_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_total: Tensor, count: Tensor, alpha: float, ignored: int
) -> Tensor:
    """d_total / count · (p − onehot(target)); the pullback of `entmax_total`: (B, n)."""
    return entmax_gradient(x, state, target, (d_total / count).view(1), alpha, ignored)


@returns("total", "parts")
def entmax_total_and_gradient(
    x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool
) -> tuple[Tensor, Tensor]:
    """`entmax_total` and its gradient, as in reference.py: () and (B, n)."""
    total, state, count = entmax_total(x, target, alpha, ignored, mean)
    return total, entmax_gradient(x, state, target, count.reciprocal().view(1), alpha, ignored)


@returns("parts")
def entmax_part_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor, ignored: int
) -> Tensor:
    """`entmax_gradient` of a part of each row: its probabilities do not sum to 1, and all may be forbidden: (B, n)."""
    d_x = torch.empty_like(x)
    given = x.numpy(), state.numpy(), target.numpy(), ignored, d_value.numpy()
    over_rows(_part_gradient_rows, len(x), x.numel(), *given, _alphas(alpha), d_x.numpy())
    return d_x


@returns("value:int32", "state[most]:int32", "state[most]")
def entmax_support(x: Tensor, state: Tensor, alpha: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of a part of each row that have a probability, as in reference.py: (B,), (B, most) and (B, most)."""
    count, index = (torch.empty(size, dtype=torch.int32) for size in (len(x), (len(x), most)))
    p = state.new_empty(len(x), most)
    out = count.numpy(), index.numpy(), p.numpy()
    over_rows(_support_rows, len(x), x.numel(), x.numpy(), state.numpy(), alpha - 1, *out)
    return count, index, p


def log_partition(x: Tensor) -> Tensor:
    """log Σ exp x: (B,)."""
    return entmax_value(x, torch.full((len(x),), NOTHING), 1.0, 0)[0]


def marginals(x: Tensor) -> Tensor:
    """softmax x: (B, n)."""
    return entmax(x, 1.0)


def log_partition_and_marginals(x: Tensor) -> tuple[Tensor, Tensor]:
    """Both: (B,), (B, n)."""
    value, p = x.new_empty(len(x)), torch.empty_like(x)
    over_rows(_softmax_rows, len(x), x.numel(), x.numpy(), value.numpy(), p.numpy())
    return value, p


def marginals_jvp(x: Tensor, v: Tensor) -> Tensor:
    """p · (v − ⟨p, v⟩) with p = softmax x: (B, n)."""
    out = torch.empty_like(x)
    over_rows(_covariance_rows, len(x), x.numel(), x.numpy(), v.numpy(), out.numpy())
    return out


def project(x: Tensor) -> Tensor:
    """sparsemax x: (B, n)."""
    return entmax(x, 2.0)


def project_jvp(point: Tensor, tangent: Tensor) -> Tensor:
    """The tangent less its mean over the support: (B, n)."""
    return entmax_pullback(point, tangent, 2.0)
