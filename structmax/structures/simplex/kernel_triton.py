"""The simplex in Triton: probabilities, losses and their gradients on CUDA. Derivations: README.md in this folder.

A row is shifted by its maximum, z = x − max x ≤ 0, and solved by Newton's method on ‖u₊‖ = 1 with the 1/(α−1)-norm and
u = 1 + (α−1)(z − τ). From below the method is monotone, and every subset of a row gives a lower bound of its τ. So a short
row is solved in registers by `_solve_rows`, and a long one is streamed once by `_solve_streamed`, which keeps the largest
`KEPT` scores of each of its lanes and solves those: where each lane's smallest kept score has probability 0, so has
everything dropped, and the solution is the row's own; otherwise it is the start for steps over the whole row.

What Newton moves is not τ, whose rounding would swamp small probabilities, but a measure of the largest probability p̂:
`unknown` = p̂^(α−1) for sparsemax and entmax15, log p̂ for other α. It is float64, one number per row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.contract import returns

# Longest row that `_solve_rows` and `_pull_rows` take where `_solve_streamed` and `_pull_streamed` could as well.
SHORT = 4096
# Longest row that fits one program at all, however slowly.
LONGEST = 131072
# Steps never come near this; it bounds a launch whatever the rounding does.
MAX_STEPS = tl.constexpr(64)
KEPT = tl.constexpr(4)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _power(z, slope, slope_error, e):
    """(1 + (slope + slope_error) z)₊^(1/e), and its base. −inf maps to 0 for either sign of e; NaN stays."""
    dead = z == float("-inf")
    z = tl.where(dead, 0.0, z)
    base = (1 + z * slope) + z * slope_error
    dead |= base <= 0
    base = tl.where(dead, 1.0, base)
    # Close to 1 a base loses the digits of a small slope: put back to first order what rounding took.
    lost = tl.where(base < 0.5, 0.0, (z * slope - (base - 1)) + z * slope_error)
    log = tl.log(base) + lost / base
    return tl.where(dead, 0.0, tl.exp2(log * (LOG2_E / e))), base


@triton.jit
def _levels(unknown, e, KIND: tl.constexpr, WORK: tl.constexpr):
    """What `_mass` needs of a row's unknown: a number, its rounding error, a factor."""
    level = unknown
    factor = unknown.to(WORK)
    if KIND == "general":
        level = e * tl.exp(-e * unknown)
        factor = tl.exp(unknown).to(WORK)
    rounded = level.to(WORK)
    return rounded, (level - rounded).to(WORK), factor


@triton.jit
def _mass(z, level, error, factor, e, KIND: tl.constexpr):
    """Probabilities p and p^(2−α), the latter times the row's p̂^(α−1) where α is general."""
    # `where(u <= 0, 0, u)` instead of a maximum, because a NaN must stay one.
    if KIND == "softmax":
        p = tl.exp2(z * LOG2_E) * factor
        return p, p
    elif KIND == "entmax15":
        u = (level + 0.5 * z) + error
        u = tl.where(u <= 0, 0.0, u)
        return u * u, u
    elif KIND == "sparsemax":
        u = (level + z) + error
        return tl.where(u <= 0, 0.0, u), tl.where(u <= 0, 0.0, 1.0)
    else:
        power, base = _power(z, level, error, e.to(z.dtype))
        return factor * power, factor * power / base


@triton.jit
def _decay(y):
    """(1 − exp(−y)) / y, also close to 0."""
    small = tl.abs(y) < 0.02
    safe = tl.where(small, 1.0, y)
    series = 1 - y / 2 * (1 - y / 3 * (1 - y / 4 * (1 - y / 5 * (1 - y / 6))))
    return tl.where(small, series, (1 - tl.exp(-safe)) / safe)


@triton.jit
def _growth(y):
    """log(1 + y) / y, also close to 0."""
    small = tl.abs(y) < 1e-4
    safe = tl.where(small, 1.0, y)
    return tl.where(small, 1 - y * (0.5 - y / 3), tl.log(1 + safe) / safe)


@triton.jit
def _newton(unknown, mass, slope, e, KIND: tl.constexpr):
    """The next unknown, and the step relative to p̂. A row without a feasible entry stands still."""
    slope = tl.where(mass == 0, 1.0, slope)
    mass = tl.where(mass == 0, 1.0, mass)
    if KIND == "general":
        log_mass = tl.log(mass.to(tl.float64))
        # Newton's step is (mass/slope) log_mass _decay(…) times −(α−1) p̂^(α−1), in p̂^(α−1): take it to the logarithm.
        step = (mass / slope).to(tl.float64) * log_mass * _decay(e * log_mass)
        step *= _growth(-e * step)
        return unknown - step, step.to(mass.dtype)
    else:
        step = (mass - 1) / slope
        if KIND == "entmax15":
            root = tl.sqrt(mass)
            step = step * root / (1 + root)
        return unknown - step.to(tl.float64), step / unknown.to(mass.dtype)


@triton.jit
def _solve(z, e, KIND: tl.constexpr, WORK: tl.constexpr, TOLERANCE: tl.constexpr):
    """The unknown of each row of a tile (ROWS, BLOCK): (ROWS, 1) in float64. Rows do not influence one another."""
    if KIND == "softmax":
        mass = tl.sum(tl.exp2(z * LOG2_E), 1, keep_dims=True)
        return 1.0 / tl.where(mass == 0, 1.0, mass).to(tl.float64)
    else:
        # p̂ = 1: the lowest τ.
        unknown = tl.full((z.shape[0], 1), 0.0 if KIND == "general" else 1.0, tl.float64)
        moving = unknown == unknown
        steps = 0
        going = 1
        while going > 0:
            level, error, factor = _levels(unknown, e, KIND, WORK)
            p, s = _mass(z, level, error, factor, e, KIND)
            mass, slope = tl.sum(p, 1, keep_dims=True), tl.sum(s, 1, keep_dims=True)
            moved, step = _newton(unknown, mass, slope, e, KIND)
            unknown = tl.where(moving, moved, unknown)
            moving = moving & (step > TOLERANCE)
            steps += 1
            going = tl.where(steps < MAX_STEPS, tl.max(moving.to(tl.int32)), 0)
        return unknown


@triton.jit
def _threshold(unknown, e, KIND: tl.constexpr):
    """τ of a row: (ROWS, 1) in float64."""
    if KIND == "softmax":
        return -tl.log(unknown)
    elif KIND == "general":
        return -unknown * _decay(-e * unknown)
    else:
        return (1 - unknown) / e


@triton.jit
def _steep(x, anchor, p_anchor, e):
    """For α > 2, p measured from the smallest supported score: see `_anchored` of the reference."""
    u = tl.exp2(e * tl.log2(p_anchor)) + e * (x - anchor)
    p = tl.exp2(tl.log2(tl.where(u > 0, u, 1.0)) / e)
    return tl.where(x == anchor, p_anchor, tl.where((x > anchor) & (u > 0), p, 0.0))


@triton.jit
def _anchor(x, peak, e, HALVINGS: tl.constexpr):
    """For α > 2, the smallest supported score of each row and its probability: (ROWS, 1) both."""
    low, high = peak - 1 / e, peak
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = tl.sum(_steep(x, middle, tl.zeros_like(middle), e), 1, keep_dims=True) < 1
        low, high = tl.where(fits, low, middle), tl.where(fits, middle, high)
    anchor = tl.min(tl.where(x >= high, x, float("inf")), 1, keep_dims=True)
    low, high = tl.zeros_like(peak), tl.zeros_like(peak) + 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = tl.sum(_steep(x, anchor, middle, e), 1, keep_dims=True) >= 1
        low, high = tl.where(above, low, middle), tl.where(above, middle, high)
    return anchor, (low + high) / 2


@triton.jit
def _products(p, z):
    return tl.where(p == 0, 0.0, p * z)


@triton.jit
def _store_loss(p_x, p_target, p_value, p_state, n, o_row, m_row, origin, level, tau, energy, e, TARGET: tl.constexpr):
    """Ω*(x) − x[target] with Ω*(x) = origin + (τ + energy)/α, energy = (α−1)⟨p, x − origin⟩; and the state (origin, level).

    `origin` is −inf where nothing is feasible.
    """
    value = ((tau + energy) / (1 + e)).to(origin.dtype)
    result = origin + value
    if TARGET:
        target = tl.load(p_target + o_row, mask=m_row, other=-1)
        chosen = tl.load(p_x + o_row * n + tl.maximum(target, 0), mask=m_row, other=0.0).to(origin.dtype)
        gap = tl.where(origin == float("-inf"), 0.0, origin) - chosen
        result = tl.where(target < 0, result, gap + value)
    tl.store(p_value + o_row, result, mask=m_row)
    tl.store(p_state + 2 * o_row, origin, mask=m_row)
    tl.store(p_state + 2 * o_row + 1, level.to(origin.dtype), mask=m_row)


@triton.jit
def _load_e(p_alpha, e, o_row, m_row, PER_ROW: tl.constexpr):
    """α − 1 of each row in float64; softmax is met within rounding by a value next to 0."""
    if PER_ROW:
        alpha = tl.load(p_alpha + o_row, mask=m_row, other=1.5).to(tl.float64)
        return tl.where(alpha == 1, 1e-18, alpha - 1)
    else:
        return tl.full(o_row.shape, e, tl.float64)


@triton.jit
def _solve_rows(
    p_x, p_alpha, p_target, p_out, p_state, B, n, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, LOSS: tl.constexpr, TARGET: tl.constexpr,
    WORK: tl.constexpr, TOLERANCE: tl.constexpr, HALVINGS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = _load_e(p_alpha, e, o_row, m_row, PER_ROW)
    # α > 2 is solved as if it were 2, then replaced below.
    e_flat = tl.minimum(e, 1.0) if STEEP else e

    b_x = tl.load(p_x + o_row * n + o_column, mask=m_tile, other=float("-inf")).to(WORK)
    origin = tl.max(b_x, 1, keep_dims=True)
    peak = tl.where(origin == float("-inf"), 0.0, origin)
    unknown = _solve(b_x - peak, e_flat, KIND, WORK, TOLERANCE)
    rounded, error, factor = _levels(unknown, e_flat, KIND, WORK)
    b_p, _ = _mass(b_x - peak, rounded, error, factor, e_flat, KIND)
    tau = _threshold(unknown, e_flat, KIND)
    level = tau
    if STEEP:
        steep = e > 1
        if tl.max(steep.to(tl.int32)) > 0:
            e_steep = tl.where(steep, e, 2.0).to(WORK)
            anchor, p_anchor = _anchor(b_x, peak, e_steep, HALVINGS)
            # A NaN in the row has reached `unknown`, but no comparison above.
            p_anchor = tl.where(unknown == unknown, p_anchor, float("nan"))
            b_steep = _steep(b_x, anchor, p_anchor, e_steep)
            b_p = tl.where(steep, tl.where(unknown == unknown, b_steep, float("nan")), b_p)
            tau = tl.where(steep, (1 - tl.exp2(e_steep * tl.log2(p_anchor))) / e_steep, tau)
            level = tl.where(steep, p_anchor, level)
            origin = tl.where(steep & (origin > float("-inf")), anchor, origin)
    if LOSS:
        b_z = b_x - tl.where(origin == float("-inf"), 0.0, origin)
        energy = e * tl.sum(_products(b_p, b_z), 1, keep_dims=True)
        _store_loss(p_x, p_target, p_out, p_state, n, o_row, m_row, origin, level, tau, energy, e, TARGET)
    else:
        tl.store(p_out + o_row * n + o_column, b_p, mask=m_tile)


@triton.jit
def _solve_streamed(
    p_x, p_target, p_out, p_state, n, e: tl.float64,
    KIND: tl.constexpr, LOSS: tl.constexpr, TARGET: tl.constexpr, WORK: tl.constexpr, TOLERANCE: tl.constexpr,
    LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    o_lane = tl.arange(0, LANES)[None, :]
    e = _load_e(p_x, e, o_row, o_row >= 0, False)
    p_row = p_x + i_row * n

    # One pass over the row. The largest score of a lane keeps a NaN; b_2 is the lane's sum where KIND is softmax.
    b_1 = tl.full((1, LANES), float("-inf"), WORK)
    b_2 = tl.zeros_like(b_1) if KIND == "softmax" else b_1
    b_3 = b_1
    b_4 = b_1
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf"), eviction_policy="evict_last").to(WORK)
        b_top = tl.maximum(b_1, b_x, propagate_nan=tl.PropagateNan.ALL)
        if KIND == "softmax":
            b_base = tl.where(b_top == float("-inf"), 0.0, b_top)
            b_2 = b_2 * tl.exp2((b_1 - b_base) * LOG2_E) + tl.exp2((b_x - b_base) * LOG2_E)
        else:
            # Insert: what a place does not keep falls to the next one.
            b_x = tl.minimum(b_1, b_x)
            b_fallen = tl.minimum(b_2, b_x)
            b_2 = tl.maximum(b_2, b_x)
            b_4 = tl.maximum(b_4, tl.minimum(b_3, b_fallen))
            b_3 = tl.maximum(b_3, b_fallen)
        b_1 = b_top
    origin = tl.max(b_1, 1, keep_dims=True)
    peak = tl.where(origin == float("-inf"), 0.0, origin)

    if KIND == "softmax":
        mass = tl.sum(tl.where(b_2 == 0, 0.0, b_2 * tl.exp2((b_1 - peak) * LOG2_E)), 1, keep_dims=True)
        unknown = 1.0 / tl.where(mass == 0, 1.0, mass).to(tl.float64)
        rounded, error, factor = _levels(unknown, e, KIND, WORK)
        tau = _threshold(unknown, e, KIND)
        energy = tl.zeros_like(tau)
    else:
        b_z = tl.reshape(tl.join(tl.join(b_1, b_2), tl.join(b_3, b_4)), (1, LANES * KEPT)) - peak
        unknown = _solve(b_z, e, KIND, WORK, TOLERANCE)
        rounded, error, factor = _levels(unknown, e, KIND, WORK)
        tau = _threshold(unknown, e, KIND)
        b_p, _ = _mass(b_z, rounded, error, factor, e, KIND)
        energy = e * tl.sum(_products(b_p, b_z), 1, keep_dims=True)
        # A lane that is full of support may have dropped some: step over the whole row.
        b_p, _ = _mass(b_4 - peak, rounded, error, factor, e, KIND)
        going = tl.max((b_p > 0).to(tl.int32))
        steps = 0
        while going > 0:
            b_mass = tl.zeros((1, LANES), WORK)
            b_slope = tl.zeros((1, LANES), WORK)
            b_dot = tl.zeros((1, LANES), WORK)
            for start in tl.range(0, n, LANES, num_stages=STAGES):
                o_column = start + o_lane
                b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf")).to(WORK)
                b_p, b_s = _mass(b_x - peak, rounded, error, factor, e, KIND)
                b_mass += b_p
                b_slope += b_s
                b_dot += _products(b_p, b_x - peak)
            mass, slope = tl.sum(b_mass, 1, keep_dims=True), tl.sum(b_slope, 1, keep_dims=True)
            # The value is stationary in τ: with the surplus of mass it is exact to second order in the step that follows.
            tau = _threshold(unknown, e, KIND)
            energy = e * tl.sum(b_dot, 1, keep_dims=True) + (mass - 1) * (1 - e * tau)
            unknown, step = _newton(unknown, mass, slope, e, KIND)
            rounded, error, factor = _levels(unknown, e, KIND, WORK)
            steps += 1
            going = tl.where(steps < MAX_STEPS, tl.max((step > TOLERANCE).to(tl.int32)), 0)

    if LOSS:
        level = _threshold(unknown, e, KIND)
        _store_loss(p_x, p_target, p_out, p_state, n, o_row, o_row >= 0, origin, level, tau, energy, e, TARGET)
    else:
        for start in tl.range(0, n, LANES, num_stages=STAGES):
            o_column = start + o_lane
            m_column = o_column < n
            b_x = tl.load(p_row + o_column, mask=m_column, other=float("-inf"), eviction_policy="evict_first").to(WORK)
            b_p, _ = _mass(b_x - peak, rounded, error, factor, e, KIND)
            tl.store(p_out + i_row * n + o_column, b_p, mask=m_column, eviction_policy="evict_first")


@triton.jit
def _slopes(p, e, KIND: tl.constexpr):
    """p^(2−α) on the support, 0 off it; a NaN stays."""
    if KIND == "softmax":
        return p
    elif KIND == "entmax15":
        return tl.sqrt(p)
    elif KIND == "sparsemax":
        return tl.where(p <= 0, 0.0, tl.where(p > 0, 1.0, p))
    else:
        return tl.where(p <= 0, 0.0, tl.exp2((1 - e).to(p.dtype) * tl.log2(tl.where(p <= 0, 1.0, p))))


@triton.jit
def _pull_rows(
    p_p, p_v, p_alpha, p_out, B, n, e: tl.float64,
    KIND: tl.constexpr, PER_ROW: tl.constexpr, WORK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = _load_e(p_alpha, e, o_row, m_row, PER_ROW)
    o_tile = o_row * n + o_column
    b_p = tl.load(p_p + o_tile, mask=m_tile, other=0.0).to(WORK)
    b_v = tl.load(p_v + o_tile, mask=m_tile, other=0.0).to(WORK)
    b_s = _slopes(b_p, e, KIND)
    # Off the support v has no say, not even where it is infinite.
    b_v = tl.where(b_s == 0, 0.0, b_v)
    total = tl.sum(b_s, 1, keep_dims=True)
    mean = tl.sum(b_s * b_v, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    tl.store(p_out + o_tile, tl.where(b_s == 0, 0.0, b_s * (b_v - mean)), mask=m_tile)


@triton.jit
def _pull_streamed(
    p_p, p_v, p_alpha, p_out, n, e: tl.float64,
    KIND: tl.constexpr, PER_ROW: tl.constexpr, WORK: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    o_lane = tl.arange(0, LANES)[None, :]
    e = _load_e(p_alpha, e, o_row, o_row >= 0, PER_ROW)
    p_p += i_row * n
    p_v += i_row * n
    p_out += i_row * n
    b_total = tl.zeros((1, LANES), WORK)
    b_dot = tl.zeros((1, LANES), WORK)
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        b_p = tl.load(p_p + o_column, mask=o_column < n, other=0.0, eviction_policy="evict_last").to(WORK)
        b_s = _slopes(b_p, e, KIND)
        # Sparse rows read hardly any of v; a softmax reads it whole, in wide loads.
        m_v = (o_column < n) if KIND == "softmax" else (b_s != 0)
        b_v = tl.load(p_v + o_column, mask=m_v, other=0.0).to(WORK)
        b_total += b_s
        b_dot += _products(b_s, b_v)
    total = tl.sum(b_total, 1, keep_dims=True)
    mean = tl.sum(b_dot, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        m_column = o_column < n
        b_p = tl.load(p_p + o_column, mask=m_column, other=0.0, eviction_policy="evict_first").to(WORK)
        b_s = _slopes(b_p, e, KIND)
        m_v = m_column if KIND == "softmax" else (b_s != 0)
        b_v = tl.load(p_v + o_column, mask=m_v, other=0.0).to(WORK)
        b_out = tl.where(b_s == 0, 0.0, b_s * (b_v - mean))
        tl.store(p_out + o_column, b_out, mask=m_column, eviction_policy="evict_first")


@triton.jit
def _gradient(
    p_x, p_state, p_target, p_d_value, p_alpha, p_out, B, n, tiles, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, WORK: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i_tile = tl.program_id(0)
    o_row = (i_tile // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = (i_tile % tiles) * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = _load_e(p_alpha, e, o_row, m_row, PER_ROW).to(WORK)
    origin = tl.load(p_state + 2 * o_row, mask=m_row, other=0.0)
    level = tl.load(p_state + 2 * o_row + 1, mask=m_row, other=0.0)
    target = tl.load(p_target + o_row, mask=m_row, other=-1)
    d_value = tl.load(p_d_value + o_row, mask=m_row, other=0.0).to(WORK)
    still = (d_value == 0) | (origin == float("-inf"))
    b_x = tl.load(p_x + o_row * n + o_column, mask=m_tile & ~still, other=0.0).to(WORK)
    b_t = b_x - origin - level
    if KIND == "softmax":
        b_p = tl.exp2(b_t * LOG2_E)
    elif KIND == "entmax15":
        b_u = 1 + 0.5 * b_t
        b_p = tl.where(b_u <= 0, 0.0, b_u * b_u)
    elif KIND == "sparsemax":
        b_p = tl.where(b_t <= -1, 0.0, 1 + b_t)
    else:
        b_p, _ = _power(b_t, e, tl.zeros_like(e), e)
    if STEEP:
        e_steep = tl.where(e > 1, e, 2.0)
        b_steep = tl.where(level == level, _steep(b_x, origin, level, e_steep), level)
        b_p = tl.where(e > 1, b_steep, b_p)
    b_out = d_value * (b_p - tl.where(o_column == target, 1.0, 0.0))
    tl.store(p_out + o_row * n + o_column, tl.where(still, 0.0, b_out), mask=m_tile)


def refuses(name: str, tensors: tuple[Tensor, ...], constants: tuple[float | Tensor, ...]) -> str | None:
    """Why this backend cannot answer, or None."""
    x = tensors[0]
    if any(_steep_possible(alpha) for alpha in constants) and x.shape[-1] > LONGEST:
        return f"alpha above 2, or given per row, needs the whole row in one program: at most {LONGEST} scores."
    return None


def _steep_possible(alpha: float | Tensor) -> bool:
    return isinstance(alpha, Tensor) or alpha > 2


def _family(x: Tensor, alpha: float | Tensor) -> dict[str, object]:
    """The compile-time constants that follow from α and the dtype."""
    named = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
    double = x.dtype == torch.float64
    return {
        "e": 0.5 if isinstance(alpha, Tensor) else alpha - 1,
        "KIND": "general" if isinstance(alpha, Tensor) else named.get(alpha, "general"),
        "WORK": tl.float64 if double else tl.float32,
    }


def _solver(x: Tensor, alpha: float | Tensor) -> dict[str, object]:
    """What the two solvers need on top: when to stop."""
    double = x.dtype == torch.float64
    # The last step is still taken, and Newton squares its error.
    return _family(x, alpha) | {"TOLERANCE": 2.0**-40 if double else 2.0**-20}


def _tile(n: int) -> dict[str, int]:
    """Rows packed so that a warp has about a thousand scores in registers; longer rows take more warps."""
    block = triton.next_power_of_2(n)
    return {"ROWS": max(1, 1024 // block), "BLOCK": block, "num_warps": min(32, max(1, block // 1024))}


def _lanes(n: int) -> dict[str, int]:
    return {"LANES": 2048, "STAGES": 2, "num_warps": 8}


def _run_solver(x: Tensor, alpha: float | Tensor, target: Tensor | None, out: Tensor, state: Tensor | None) -> None:
    B, n = x.shape
    loss = {"LOSS": state is not None, "TARGET": target is not None}
    if out.numel() == 0:
        return
    if n <= SHORT or _steep_possible(alpha):
        per_row, tile = isinstance(alpha, Tensor), _tile(n)
        halvings = 100 if x.dtype == torch.float64 else 60
        _solve_rows[(triton.cdiv(B, tile["ROWS"]),)](
            x, alpha if per_row else x, target, out, state, B, n, **_solver(x, alpha), **loss, **tile,
            STEEP=_steep_possible(alpha), PER_ROW=per_row, HALVINGS=halvings,
        )  # fmt: skip
    else:
        _solve_streamed[(B,)](x, target, out, state, n, **_solver(x, alpha), **loss, **_lanes(n))


def _value(x: Tensor, target: Tensor | None, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    value = torch.empty(x.shape[0], dtype=work, device=x.device)
    state = torch.empty(x.shape[0], 2, dtype=work, device=x.device)
    _run_solver(x, alpha, target, value, state)
    return value, state


@returns("parts")
def entmax(x: Tensor, alpha: float | Tensor) -> Tensor:
    """p = argmax over the simplex of ⟨p, x⟩ − Ω_α(p): (B, n)."""
    p = torch.empty_like(x)
    _run_solver(x, alpha, None, p, None)
    return p


@returns("parts")
def entmax_pullback(p: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support: (B, n)."""
    B, n = p.shape
    out = torch.empty_like(p)
    if out.numel() == 0:
        return out
    per_row = isinstance(alpha, Tensor)
    rule = _family(p, alpha) | {"PER_ROW": per_row}
    if n <= SHORT:
        tile = _tile(n)
        grid = (triton.cdiv(B, tile["ROWS"]),)
        _pull_rows[grid](p, v, alpha if per_row else p, out, B, n, **rule, **tile)
    else:
        _pull_streamed[(B,)](p, v, alpha if per_row else p, out, n, **rule, **_lanes(n))
    return out


@returns("value", "state")
def entmax_value(x: Tensor, target: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Ω*_α(x) − x[target] per row (without the second term where target < 0): (B,), and the state of a solved row: (B, 2)."""
    return _value(x, target, alpha)


@returns("parts")
def entmax_gradient(x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor) -> Tensor:
    """d_value · (p − onehot(target)), with p recovered from `state`; the pullback of `entmax_value`: (B, n)."""
    B, n = x.shape
    out = torch.empty_like(x)
    if out.numel() == 0:
        return out
    per_row, tile = isinstance(alpha, Tensor), _tile(min(n, SHORT))
    tiles = triton.cdiv(n, tile["BLOCK"])
    _gradient[(triton.cdiv(B, tile["ROWS"]) * tiles,)](
        x, state, target, d_value, alpha if per_row else x, out, B, n, tiles, **_family(x, alpha),
        STEEP=_steep_possible(alpha), PER_ROW=per_row, **tile,
    )  # fmt: skip
    return out


@returns("value")
def log_partition(x: Tensor) -> Tensor:
    """log Σ exp x per row: (B,)."""
    return _value(x, None, 1.0)[0]


@returns("parts")
def marginals(x: Tensor) -> Tensor:
    """softmax(x): (B, n)."""
    return entmax(x, 1.0)


@returns("parts")
def marginals_jvp(x: Tensor, v: Tensor) -> Tensor:
    """p (v − ⟨p, v⟩) with p = softmax(x): (B, n)."""
    return entmax_pullback(marginals(x), v, 1.0)
