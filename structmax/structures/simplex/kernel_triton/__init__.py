"""The simplex in Triton: probabilities, losses and their gradients on CUDA. Derivations: ../README.md.

Short rows are solved in registers, many to a program. A long row is streamed once, and each lane of its program keeps
its `KEPT` largest scores. Those are solved as if they were the row: where the smallest kept score of every lane has
probability 0, so has everything dropped, and the solution is the row's own; otherwise Newton's method goes on from it
over the whole row. The tile's mathematics is in tile.py.

`alpha` is a number or a (B,) tensor; which of its rows are above 2 is known on the device alone. Those are solved by
bisection, with the whole row in one program however long it is.
"""

from collections.abc import Hashable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.structures.simplex.kernel_triton.tile import (
    LOG2_E,
    MAX_STEPS,
    accumulate,
    anchored,
    levels,
    masses,
    newton,
    power,
    products,
    slopes,
    solve,
    steep,
    threshold,
)

# Longest row that is kept in registers where it could as well be streamed.
SHORT = 4096
# Longest row that fits one program at all, however slowly.
LONGEST = 131072
KEPT = tl.constexpr(4)
# Targets that are no entry, as in reference.py: a value without a target term, and a row that counts nothing.
NOTHING = tl.constexpr(-1)
IGNORED = tl.constexpr(-2)


@triton.jit
def _store_loss(p_x, p_target, p_value, p_state, n, o_row, m_row, origin, level, tau, energy, e, TARGET: tl.constexpr):
    """Stores Ω*(x) − x[target] and the state (origin, level); `origin` is −inf where nothing is feasible.

    Ω*(x) = origin + (τ + energy)/α with energy = (α−1)⟨p, x − origin⟩.
    """
    value = ((tau + energy) / (1 + e)).to(origin.dtype)
    result = origin + value
    if TARGET:
        target = tl.load(p_target + o_row, mask=m_row, other=NOTHING)
        # No host has looked at the targets: one that is no entry costs NaN.
        m_target = m_row & (target >= 0) & (target < n)
        chosen = tl.load(p_x + o_row * n + target, mask=m_target, other=float("nan")).to(origin.dtype)
        gap = tl.where(origin == float("-inf"), 0.0, origin) - chosen
        result = tl.where(target == NOTHING, result, tl.where(target == IGNORED, 0.0, gap + value))
    tl.store(p_value + o_row, result, mask=m_row)
    # A maximum may have passed over a NaN; τ has not.
    tl.store(p_state + 2 * o_row, tl.where(level == level, origin, float("nan")), mask=m_row)
    tl.store(p_state + 2 * o_row + 1, level.to(origin.dtype), mask=m_row)


@triton.jit
def _load_e(p_alpha, e, o_row, m_row, PER_ROW: tl.constexpr):
    """α − 1 of each row in float64; softmax is met within rounding by a value next to 0."""
    if PER_ROW:
        alpha = tl.load(p_alpha + o_row, mask=m_row, other=1.5).to(tl.float64)
        return tl.where(alpha == 1, 1e-18, alpha - 1)
    else:
        return tl.full(o_row.shape, e, tl.float64)


@triton.jit(do_not_specialize=["B"])
def _solve_rows(
    p_x, p_alpha, p_target, p_out, p_state, n, B, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, LOSS: tl.constexpr, TARGET: tl.constexpr,
    DOUBLE: tl.constexpr, TOLERANCE: tl.constexpr, HALVINGS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
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
    unknown = solve(b_x - peak, e_flat, KIND, WORK, TOLERANCE)
    rounded, error, factor = levels(unknown, e_flat, KIND, WORK)
    b_p, _ = masses(b_x - peak, rounded, error, factor, e_flat, KIND)
    tau = threshold(unknown, e_flat, KIND)
    level = tau
    if STEEP:
        m_steep = e > 1
        if tl.max(m_steep.to(tl.int32)) > 0:
            e_steep = tl.where(m_steep, e, 2.0).to(WORK)
            anchor, p_anchor = anchored(b_x, peak, e_steep, HALVINGS)
            # A NaN in the row has reached `unknown`, but no comparison above.
            p_anchor = tl.where(unknown == unknown, p_anchor, float("nan"))
            b_steep = steep(b_x, anchor, p_anchor, e_steep)
            b_p = tl.where(m_steep, tl.where(unknown == unknown, b_steep, float("nan")), b_p)
            tau = tl.where(m_steep, (1 - tl.exp2(e_steep * tl.log2(p_anchor))) / e_steep, tau)
            level = tl.where(m_steep, p_anchor, level)
            origin = tl.where(m_steep & (origin > float("-inf")), anchor, origin)
    if LOSS:
        b_z = b_x - tl.where(origin == float("-inf"), 0.0, origin)
        energy = e * tl.sum(products(b_p, b_z), 1, keep_dims=True)
        _store_loss(p_x, p_target, p_out, p_state, n, o_row, m_row, origin, level, tau, energy, e, TARGET)
    else:
        tl.store(p_out + o_row * n + o_column, b_p, mask=m_tile)


@triton.jit
def _solve_streamed(
    p_x, p_target, p_out, p_state, n, e: tl.float64,
    KIND: tl.constexpr, LOSS: tl.constexpr, TARGET: tl.constexpr, DOUBLE: tl.constexpr, TOLERANCE: tl.constexpr,
    LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    o_lane = tl.arange(0, LANES)[None, :]
    e = _load_e(None, e, o_row, o_row >= 0, False)
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
        rounded, error, factor = levels(unknown, e, KIND, WORK)
        tau = threshold(unknown, e, KIND)
        energy = tl.zeros_like(tau)
    else:
        b_z = tl.reshape(tl.join(tl.join(b_1, b_2), tl.join(b_3, b_4)), (1, LANES * KEPT)) - peak
        unknown = solve(b_z, e, KIND, WORK, TOLERANCE)
        rounded, error, factor = levels(unknown, e, KIND, WORK)
        tau = threshold(unknown, e, KIND)
        b_p, _ = masses(b_z, rounded, error, factor, e, KIND)
        energy = e * tl.sum(products(b_p, b_z), 1, keep_dims=True)
        # A lane that is full of support may have dropped some: step over the whole row.
        b_p, _ = masses(b_4 - peak, rounded, error, factor, e, KIND)
        going = tl.max((b_p > 0).to(tl.int32))
        steps = 0
        while going > 0:
            b_mass, b_mass_lost = tl.zeros((1, LANES), WORK), tl.zeros((1, LANES), WORK)
            b_dot, b_dot_lost = tl.zeros((1, LANES), WORK), tl.zeros((1, LANES), WORK)
            b_slope = tl.zeros((1, LANES), WORK)
            for start in tl.range(0, n, LANES, num_stages=STAGES):
                o_column = start + o_lane
                b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf")).to(WORK)
                b_p, b_s = masses(b_x - peak, rounded, error, factor, e, KIND)
                b_mass, b_mass_lost = accumulate(b_mass, b_mass_lost, b_p)
                b_dot, b_dot_lost = accumulate(b_dot, b_dot_lost, products(b_p, b_x - peak))
                b_slope += b_s
            mass, slope = tl.sum(b_mass, 1, keep_dims=True), tl.sum(b_slope, 1, keep_dims=True)
            # The value is stationary in τ: with the surplus of mass it is exact to second order in the coming step.
            tau = threshold(unknown, e, KIND)
            energy = e * tl.sum(b_dot, 1, keep_dims=True) + (mass - 1) * (1 - e * tau)
            unknown, step = newton(unknown, mass, slope, e, KIND)
            rounded, error, factor = levels(unknown, e, KIND, WORK)
            steps += 1
            going = tl.where(steps < MAX_STEPS, tl.max((step > TOLERANCE).to(tl.int32)), 0)

    if LOSS:
        level = threshold(unknown, e, KIND)
        _store_loss(p_x, p_target, p_out, p_state, n, o_row, o_row >= 0, origin, level, tau, energy, e, TARGET)
    else:
        for start in tl.range(0, n, LANES, num_stages=STAGES):
            o_column = start + o_lane
            m_column = o_column < n
            b_x = tl.load(p_row + o_column, mask=m_column, other=float("-inf"), eviction_policy="evict_first").to(WORK)
            b_p, _ = masses(b_x - peak, rounded, error, factor, e, KIND)
            tl.store(p_out + i_row * n + o_column, b_p, mask=m_column, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["B"])
def _pull_rows(
    p_p, p_v, p_alpha, p_out, n, B, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, DOUBLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = _load_e(p_alpha, e, o_row, m_row, PER_ROW)
    o_tile = o_row * n + o_column
    b_p = tl.load(p_p + o_tile, mask=m_tile, other=0.0).to(WORK)
    b_v = tl.load(p_v + o_tile, mask=m_tile, other=0.0).to(WORK)
    b_s = slopes(b_p, e, KIND)
    # Off the support v has no say, not even where it is infinite.
    b_v = tl.where(b_s == 0, 0.0, b_v)
    # For α > 2 the lowest p has by far the largest s: the mean is taken in units of that one, and its product, where
    # v − mean would cancel, is what makes the products sum to 0.
    lowest = tl.min(tl.where(b_p == 0, 2.0, b_p), 1, keep_dims=True)
    m_steep = (e > 1) & (lowest < 2)
    b_share = b_s
    if STEEP:
        b_relative = tl.exp2((1 - e).to(WORK) * tl.log2(b_p / lowest))
        b_share = tl.where(m_steep, tl.where(b_p == 0, 0.0, b_relative), b_s)
    total = tl.sum(b_share, 1, keep_dims=True)
    mean = tl.sum(b_share * b_v, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    b_out = tl.where(b_s == 0, 0.0, b_s * (b_v - mean))
    if STEEP:
        first = tl.min(tl.where(b_p == lowest, o_column, BLOCK), 1, keep_dims=True)
        m_first = m_steep & (o_column == first)
        rest = tl.sum(tl.where(m_first, 0.0, b_out), 1, keep_dims=True)
        b_out = tl.where(m_first, -rest, b_out)
    tl.store(p_out + o_tile, b_out, mask=m_tile)


@triton.jit
def _pull_streamed(
    p_p, p_v, p_out, n, e: tl.float64,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    o_lane = tl.arange(0, LANES)[None, :]
    e = _load_e(None, e, o_row, o_row >= 0, False)
    p_p += i_row * n
    p_v += i_row * n
    p_out += i_row * n
    b_total = tl.zeros((1, LANES), WORK)
    b_dot = tl.zeros((1, LANES), WORK)
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        b_p = tl.load(p_p + o_column, mask=o_column < n, other=0.0, eviction_policy="evict_last").to(WORK)
        b_s = slopes(b_p, e, KIND)
        # Sparse rows read hardly any of v; a softmax reads it whole, in wide loads.
        m_v = (o_column < n) if KIND == "softmax" else (b_s != 0)
        b_v = tl.load(p_v + o_column, mask=m_v, other=0.0).to(WORK)
        b_total += b_s
        b_dot += products(b_s, b_v)
    total = tl.sum(b_total, 1, keep_dims=True)
    mean = tl.sum(b_dot, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        m_column = o_column < n
        b_p = tl.load(p_p + o_column, mask=m_column, other=0.0, eviction_policy="evict_first").to(WORK)
        b_s = slopes(b_p, e, KIND)
        m_v = m_column if KIND == "softmax" else (b_s != 0)
        b_v = tl.load(p_v + o_column, mask=m_v, other=0.0).to(WORK)
        b_out = tl.where(b_s == 0, 0.0, b_s * (b_v - mean))
        tl.store(p_out + o_column, b_out, mask=m_column, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["B", "tiles"])
def _gradient(
    p_x, p_state, p_target, p_d_value, p_alpha, p_out, n, B, tiles, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, DOUBLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_tile = tl.program_id(0)
    o_row = (i_tile // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = (i_tile % tiles) * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = _load_e(p_alpha, e, o_row, m_row, PER_ROW).to(WORK)
    origin = tl.load(p_state + 2 * o_row, mask=m_row, other=0.0)
    level = tl.load(p_state + 2 * o_row + 1, mask=m_row, other=0.0)
    target = tl.load(p_target + o_row, mask=m_row, other=NOTHING)
    d_value = tl.load(p_d_value + o_row, mask=m_row, other=0.0).to(WORK)
    still = (d_value == 0) | (origin == float("-inf")) | (target == IGNORED)
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
        b_p, _ = power(b_t, e, tl.zeros_like(e), e)
    if STEEP:
        e_steep = tl.where(e > 1, e, 2.0)
        b_steep = tl.where(level == level, steep(b_x, origin, level, e_steep), level)
        b_p = tl.where(e > 1, b_steep, b_p)
    b_out = d_value * (b_p - tl.where(o_column == target, 1.0, 0.0))
    tl.store(p_out + o_row * n + o_column, tl.where(still, 0.0, b_out), mask=m_tile)


def refuses(name: str, tensors: list[Tensor], constants: dict[str, float]) -> str | None:
    """Why these kernels cannot answer, or None."""
    # An alpha per row is a tensor, and no constant.
    steep_possible = name.startswith("entmax") and constants.get("alpha", float("inf")) > 2
    if steep_possible and tensors[0].shape[-1] > LONGEST:
        return f"`alpha` above 2, or one per row, needs a row in one program, which ends at {LONGEST} scores"
    return None


_compiled: dict[Hashable, Any] = {}


def _launch(
    kernel: Any, programs: int, num_warps: int, tensors: tuple[Tensor | None, ...], n: int, numbers: tuple[float, ...],
    constants: tuple[Any, ...],
) -> None:  # fmt: skip
    """kernel[(programs,)](*tensors, n, *numbers, *constants), with the compiled kernel found by one look-up.

    Triton's own search takes longer than a small batch does on the GPU. The key has all that a compiled kernel depends
    on: device, dtypes, alignments, what Triton specialises of n, and the constants.
    """
    layout = tuple(t if t is None else (t.dtype, t.data_ptr() % 16 == 0) for t in tensors)
    key = (kernel.__name__, num_warps, tensors[0].get_device(), layout, n % 16 == 0, n == 1, constants)
    arguments = (*tensors, n, *numbers, *constants)
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[(programs, 1, 1)](*arguments)
        return
    compiled = kernel[(programs,)](*arguments, num_warps=num_warps)
    # The interpreter compiles nothing.
    if compiled is not None:
        _compiled[key] = compiled


def _family(alpha: float | Tensor) -> tuple[float, str, bool, bool]:
    """α − 1, the kind of kernel, whether an α above 2 is possible, and whether there is one α per row."""
    if isinstance(alpha, Tensor):
        return 0.0, "general", True, True
    kind = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}.get(alpha, "general")
    return alpha - 1.0, kind, alpha > 2, False


def _tile(n: int, per_warp: int) -> tuple[int, int, int]:
    """ROWS, BLOCK and warps: short rows share a warp, long ones take several."""
    block = 1 << (n - 1).bit_length()
    return max(1, per_warp // block), block, min(32, max(1, block // per_warp))


def _solve(x: Tensor, alpha: float | Tensor, target: Tensor | None, out: Tensor, state: Tensor | None) -> None:
    """Probabilities into `out`; or, given `state`, values into `out` and states into `state`."""
    B, n = x.shape
    if out.numel() == 0:
        return
    e, kind, steep_possible, per_row = _family(alpha)
    double = x.dtype == torch.float64
    # The last step is still taken, and Newton squares its error.
    tolerance = 2.0**-40 if double else 2.0**-20
    output = (state is not None, target is not None, double, tolerance)
    if n <= SHORT or steep_possible:
        rows, block, warps = _tile(n, 512 if n <= 2048 else 1024)
        halvings = 100 if double else 60
        _launch(
            _solve_rows, -(-B // rows), warps, (x, alpha if per_row else None, target, out, state), n, (B, e),
            (kind, steep_possible, per_row, *output, halvings, rows, block),
        )  # fmt: skip
    else:
        lanes = 1024 if n > 16384 else 512
        _launch(_solve_streamed, B, 4, (x, target, out, state), n, (e,), (kind, *output, lanes, 4))


def entmax(x: Tensor, alpha: float | Tensor) -> Tensor:
    """p = argmax over the simplex of ⟨p, x⟩ − Ω_α(p): (B, n)."""
    p = torch.empty_like(x)
    _solve(x, alpha, None, p, None)
    return p


def entmax_pullback(p: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support: (B, n). Off the support v has no say."""
    B, n = p.shape
    out = torch.empty_like(p)
    if out.numel() == 0:
        return out
    e, kind, steep_possible, per_row = _family(alpha)
    double = p.dtype == torch.float64
    tensors = (p, v, alpha if per_row else None, out)
    if n <= SHORT or steep_possible:
        rows, block, warps = _tile(n, 512)
        constants = (kind, steep_possible, per_row, double, rows, block)
        _launch(_pull_rows, -(-B // rows), warps, tensors, n, (B, e), constants)
    else:
        lanes = 4096 if n > 16384 else 2048
        _launch(_pull_streamed, B, lanes // 256, (p, v, out), n, (e,), (kind, double, lanes, 1))
    return out


def _value(x: Tensor, target: Tensor | None, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    value = torch.empty(x.shape[0], dtype=wide, device=x.device)
    state = torch.empty(x.shape[0], 2, dtype=wide, device=x.device)
    _solve(x, alpha, target, value, state)
    return value, state


def entmax_value(x: Tensor, target: Tensor, alpha: float | Tensor) -> tuple[Tensor, Tensor]:
    """Ω*_α(x) − x[target] per row, as in reference.py: (B,), and the state of the row: (B, 2).

    The state is (max x, τ), or (smallest supported score, its probability) where α > 2; −inf leads it where nothing is
    feasible.
    """
    return _value(x, target, alpha)


def entmax_gradient(x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor) -> Tensor:
    """d_value · (p − onehot(target)), with p recovered from `state`; the pullback of `entmax_value`: (B, n)."""
    B, n = x.shape
    out = torch.empty_like(x)
    if out.numel() == 0:
        return out
    e, kind, steep_possible, per_row = _family(alpha)
    rows, block, warps = _tile(min(n, SHORT), 1024)
    tiles = -(-n // block)
    _launch(
        _gradient, -(-B // rows) * tiles, warps, (x, state, target, d_value, alpha if per_row else None, out),
        n, (B, tiles, e), (kind, steep_possible, per_row, x.dtype == torch.float64, rows, block),
    )  # fmt: skip
    return out


def log_partition(x: Tensor) -> Tensor:
    """log Σ exp x per row: (B,)."""
    return _value(x, None, 1.0)[0]


def marginals(x: Tensor) -> Tensor:
    """softmax(x): (B, n)."""
    return entmax(x, 1.0)


def marginals_jvp(x: Tensor, tangent: Tensor) -> Tensor:
    """p (t − ⟨p, t⟩) with p = softmax(x): (B, n)."""
    return entmax_pullback(marginals(x), tangent, 1.0)


def project(x: Tensor) -> Tensor:
    """sparsemax(x): (B, n)."""
    return entmax(x, 2.0)


def project_jvp(point: Tensor, tangent: Tensor) -> Tensor:
    """The tangent less its mean over the support: (B, n)."""
    return entmax_pullback(point, tangent, 2.0)
