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
from structmax.numerics.kernel_numba_math import exp, log, log1p

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
def _add_exactly(z, high, low):
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
                u = _add_exactly(part[i], high, low)
                u = u if u > zero else zero
                s += u * u
                d += u
        else:
            for i in range(part.size):
                u = _add_exactly(part[i], high, low)
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


# --- one row: the threshold ----------------------------------------------------------------------------------------
#
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
    """Raise τ to the solution; the second result is Σ u^b / u_max^b for that τ, so that p is normalised exactly."""
    total = 1.0
    for _ in range(steps):
        top = 1 - e * tau
        total, slope = _power_sums(z, e / top, 1 / e)
        log_mass = math.log(total) + math.log1p(-e * tau) / e
        if log_mass <= tolerance:
            break
        tau -= top * (total / slope) * math.expm1(-e * log_mass) / e
    return tau, total


@compiled()
def _threshold(row, peak, e, peaks, crest, z, tolerance):
    """τ, the number of candidates left in `z`, and the normaliser Σ u^b / u_max^b, for α ≤ 2."""
    dtype = row.dtype.type
    if e == 0:
        _shift(row, peak, dtype(1), z.reshape(-1)[: row.size])
        total = _exp_sum(z.reshape(-1)[: row.size])
        return math.log(total), row.size, total
    warm = WARM_STEPS if peaks.size >= WARM_BLOCKS else 0
    # Rounding must not cut off an entry on the edge.
    margin = 1 + 8 * tolerance
    if e == 1 or e == 0.5:
        scale = dtype(e)
        _shift(peaks, peak, scale, crest)
        top = _newton(crest, 1.0, e < 1, warm, tolerance)
        count = _gather(row, peak, scale, crest, dtype(-top * margin), z)
        top = _newton(z.reshape(-1)[:count], top, e < 1, STEPS, tolerance)
        return (1 - top) / e, count, 1.0
    scale = dtype(1)
    _shift(peaks, peak, scale, crest)
    tau, total = _newton_power(crest, 0.0, e, warm, tolerance)
    cut = dtype((tau - 1 / e) * margin) if e > 0 else dtype(-np.inf)
    count = _gather(row, peak, scale, crest, cut, z)
    tau, total = _newton_power(z.reshape(-1)[:count], tau, e, STEPS, tolerance)
    return tau, count, total


@compiled()
def _anchor(row, peak, e, y):
    """For α > 2: the smallest supported score a and its probability.

    p has infinite slope where it vanishes, so no threshold is fine enough; measured from a, p = [p_a^e + e (x − a)]₊^b
    loses nothing. Σ p is a sum of ‖·‖_e norms of (p_a, (e (x − a))^b): convex in p_a, and Newton's method from above
    never oversteps.
    """
    b = 1 / e
    count = 0
    for i in range(row.size):
        if row[i] > peak - b:
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
            u = _add_exactly(row[i] - peak, high, low)
            out[i] = (u if u > zero else zero) * weight
    else:
        for i in range(row.size):
            u = _add_exactly((row[i] - peak) * scale, high, low)
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
    n = x.shape[1]
    dtype = x.dtype.type
    blocks = (n + BLOCK - 1) // BLOCK
    peaks, crest = np.empty(blocks, x.dtype), np.empty(blocks, x.dtype)
    z, y = np.empty((blocks + 1, BLOCK), x.dtype), np.empty(n)
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        peak = _peaks(row, peaks)
        if not peak > -np.inf:
            p[i] = peak if _is_nan(peak) else dtype(0)
        elif e > 1:
            anchor, p_anchor = _anchor(row, peak, e, y)
            _fill(row, anchor, p_anchor, 1.0, e, 1.0, peaks, p[i])
        else:
            tau, _, total = _threshold(row, peak, e, peaks, crest, z, tolerance)
            _fill(row, float(peak), tau, total, e, 1.0, peaks, p[i])


@compiled()
def _value_rows(start, stop, x, target, alpha, tolerance, value, state):
    n = x.shape[1]
    blocks = (n + BLOCK - 1) // BLOCK
    peaks, crest = np.empty(blocks, x.dtype), np.empty(blocks, x.dtype)
    z, y = np.empty((blocks + 1, BLOCK), x.dtype), np.empty(n)
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        peak = _peaks(row, peaks)
        if _is_nan(peak):
            value[i] = state[i, 0] = state[i, 1] = np.nan
            continue
        if peak == -np.inf:
            value[i] = -np.inf if target[i] < 0 else np.inf
            state[i, 0] = state[i, 1] = 0
            continue
        # Σ p^α = Σ p (p_o^e + e (x − o)) for the origin o of the state: Ω* − o = (τ_o + e Σ p (x − o)) / α.
        if e > 1:
            origin, t = _anchor(row, peak, e, y)
            tau = (1 - t**e) / e
            mean = _mean_score_anchored(row, origin, t, e)
        else:
            origin = float(peak)
            tau, count, total = _threshold(row, peak, e, peaks, crest, z, tolerance)
            t = tau
            mean = 0.0 if e == 0 else _mean_score(z.reshape(-1)[:count], e, tau, total)
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
    n = x.shape[1]
    dtype = x.dtype.type
    peaks = np.empty((n + BLOCK - 1) // BLOCK, x.dtype)
    for i in range(start, stop):
        row = x[i]
        e = alpha[i % alpha.size] - 1
        origin, t, weight, hit = float(state[i, 0]), float(state[i, 1]), float(d_value[i]), target[i]
        if weight == 0 or _is_nan(t):
            d_x[i] = dtype(t * weight) if weight != 0 else dtype(0)
            continue
        total = 1.0
        if e == 0:
            total = math.exp(t)
        elif e < 1 and e != 0.5:
            total = math.exp(-math.log1p(-e * t) / e)
            _peaks(row, peaks)
        _fill(row, origin, t, total, e, weight, peaks, d_x[i])
        if hit >= 0 and (row[hit] > -np.inf or _feasible(row)):
            d_x[i, hit] -= dtype(weight)


@compiled()
def _live_blocks(bits, live):
    """The indices of the blocks with any nonzero entry, written to `live`; returns their number."""
    count = 0
    full = bits.size // BLOCK
    for i in range(full):
        some = bits[i * BLOCK]
        for j in range(BLOCK):
            some |= bits[i * BLOCK + j]
        live[count] = i
        count += some != 0
    if full * BLOCK < bits.size:
        live[count] = full
        count += 1
    return count


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
                s_part[i] = one if s_part[i] > zero else zero
        elif e == 0.5:
            for i in range(s_part.size):
                s_part[i] = math.sqrt(s_part[i])
        elif e != 0:
            for i in range(s_part.size):
                power = exp(exponent * log(s_part[i]))
                s_part[i] = power if s_part[i] > zero else zero
        for i in range(s_part.size):
            a += s_part[i]
            c += s_part[i] * v_part[i] if s_part[i] > zero else zero
        total += a
        moment += c
    return total, moment


@compiled()
def _pullback_steep(p, v, e, out):
    """For α > 2 s grows where p vanishes: measured in units of its largest value, only true overflow is left."""
    lowest = np.inf
    for i in range(p.size):
        lowest = min(lowest, p[i]) if p[i] > 0 else lowest
    total, moment = 0.0, 0.0
    for i in range(p.size):
        if not p[i] <= 0:
            s = (p[i] / lowest) ** (1 - e)
            total += s
            moment += s * v[i]
    mean, unit = moment / total, lowest ** (1 - e)
    for i in range(p.size):
        out[i] = 0
        if not p[i] <= 0 and v[i] != mean:
            out[i] = unit * ((p[i] / lowest) ** (1 - e) * (v[i] - mean))


@compiled("contract")
def _pullback_rows(start, stop, p, bits, v, alpha, out):
    n = p.shape[1]
    dtype = p.dtype.type
    blocks = (n + BLOCK - 1) // BLOCK
    live = np.empty(blocks + 1, np.int64)
    s, u = np.empty((blocks, BLOCK), p.dtype), np.empty((blocks, BLOCK), p.dtype)
    for i in range(start, stop):
        e = alpha[i % alpha.size] - 1
        if e > 1:
            _pullback_steep(p[i], v[i], e, out[i])
            continue
        count = _live_blocks(bits[i], live)
        for k in range(count):
            begin = live[k] * BLOCK
            if begin + BLOCK > n:
                s[k, :] = 0
                u[k, :] = 0
            p_part, v_part = p[i, begin : begin + BLOCK], v[i, begin : begin + BLOCK]
            for j in range(p_part.size):
                s[k, j] = p_part[j]
                u[k, j] = v_part[j]
        total, moment = _weights(s.reshape(-1)[: count * BLOCK], u.reshape(-1)[: count * BLOCK], e)
        mean = dtype(moment / total) if total > 0 else dtype(total)
        out[i] = 0
        for k in range(count):
            part = out[i, live[k] * BLOCK : (live[k] + 1) * BLOCK]
            for j in range(part.size):
                weight = s[k, j]
                part[j] = weight * (u[k, j] - mean) if not weight <= 0 else dtype(0)


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
    bits = p.view(torch.int32 if p.dtype == torch.float32 else torch.int64)
    over_rows(_pullback_rows, len(p), p.numel(), p.numpy(), bits.numpy(), v.numpy(), _alphas(alpha), out.numpy())
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
