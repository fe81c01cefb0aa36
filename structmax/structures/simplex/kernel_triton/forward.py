"""Probabilities and losses of rows: in registers where they are short, streamed where they are long."""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.steep import anchored, anchored_streamed, steep, steep_energy
from structmax.structures.simplex.kernel_triton.tile import (
    LOG2_E,
    MAX_STEPS,
    accumulate,
    last_step,
    levels,
    load_e,
    masses,
    newton,
    products,
    rough_levels,
    solve,
    threshold,
)

KEPT = tl.constexpr(4)
# As in reference.py: the target of a value without a target term.
NOTHING = tl.constexpr(-(2**62))


@triton.jit
def loss(p_x, p_target, ignored, n, o_row, m_row, origin, tau, energy, e, TARGET: tl.constexpr):
    """Ω*(x) − x[target] of each row; `origin` is −inf where nothing is feasible.

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
        result = tl.where(target == NOTHING, result, tl.where(target == ignored, 0.0, gap + value))
    return result


@triton.jit
def _store_loss(
    p_x, p_target, ignored, p_value, p_state, n, o_row, m_row, origin, level, tau, energy, e, TARGET: tl.constexpr
):
    """Stores the loss and the state (origin, level)."""
    result = loss(p_x, p_target, ignored, n, o_row, m_row, origin, tau, energy, e, TARGET)
    tl.store(p_value + o_row, result, mask=m_row)
    # A maximum may have passed over a NaN; τ has not.
    tl.store(p_state + 2 * o_row, tl.where(level == level, origin, float("nan")), mask=m_row)
    tl.store(p_state + 2 * o_row + 1, level.to(origin.dtype), mask=m_row)


@triton.jit
def solve_tile(b_x, e, KIND: tl.constexpr, WORK: tl.constexpr, DIGITS: tl.constexpr, DOUBLE: tl.constexpr):
    """Of rows of scores the maxima, −inf where nothing is feasible, the unknowns that `solve` finds, and p; α ≤ 2."""
    origin = tl.max(b_x, 1, keep_dims=True)
    peak = tl.where(origin == float("-inf"), 0.0, origin)
    unknown = solve(b_x - peak, e, KIND, WORK, DIGITS)
    if DOUBLE:
        rounded, error, factor = levels(unknown, e, KIND, WORK)
    else:
        rounded, error, factor = rough_levels(unknown, e, KIND, WORK)
    b_p, _ = masses(b_x - peak, rounded, error, factor, e, KIND, DOUBLE)
    return origin, peak, unknown, b_p


@triton.jit
def _solve_steep_rows(
    p_x, p_target, ignored, p_out, p_state, n, o_row, o_column, m_row, m_tile, sound, e,
    LOSS: tl.constexpr, TARGET: tl.constexpr, HALVINGS: tl.constexpr,
):  # fmt: skip
    """The rows of a tile with α > 2, of which those that are not `sound` become NaN."""
    b_x = tl.load(p_x + o_row * n + o_column, mask=m_tile, other=float("-inf")).to(e.dtype)
    origin = tl.max(b_x, 1, keep_dims=True)
    anchor, p_anchor = anchored(b_x, tl.where(origin == float("-inf"), 0.0, origin), e, HALVINGS)
    p_anchor = tl.where(sound, p_anchor, float("nan"))
    b_p = tl.where(sound, steep(b_x, anchor, p_anchor, e), float("nan"))
    if LOSS:
        tau = (1 - tl.exp2(e * tl.log2(p_anchor))) / e
        origin = tl.where(origin > float("-inf"), anchor, origin)
        b_z = b_x - tl.where(origin == float("-inf"), 0.0, origin)
        energy = e * tl.sum(products(b_p, b_z), 1, keep_dims=True)
        _store_loss(p_x, p_target, ignored, p_out, p_state, n, o_row, m_row, origin, p_anchor, tau, energy, e, TARGET)
    else:
        tl.store(p_out + o_row * n + o_column, b_p, mask=m_tile)


@triton.jit(do_not_specialize=["B", "ignored"])
def solve_rows(
    p_x, p_alpha, p_target, p_out, p_state, ignored, n, B, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, LOSS: tl.constexpr, TARGET: tl.constexpr,
    DOUBLE: tl.constexpr, DIGITS: tl.constexpr, HALVINGS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = load_e(p_alpha, e, o_row, m_row, PER_ROW)
    # α > 2 is solved as if it were 2, and then by bisection.
    e_flat = tl.minimum(e, 1.0) if STEEP else e

    b_x = tl.load(p_x + o_row * n + o_column, mask=m_tile, other=float("-inf")).to(WORK)
    origin, peak, unknown, b_p = solve_tile(b_x, e_flat, KIND, WORK, DIGITS, DOUBLE)
    m_steep = m_row & (e > 1) if STEEP else o_row < 0
    if LOSS:
        tau = threshold(unknown, e_flat, KIND)
        energy = e * tl.sum(products(b_p, b_x - peak), 1, keep_dims=True)
        m_flat = m_row & ~m_steep
        _store_loss(p_x, p_target, ignored, p_out, p_state, n, o_row, m_flat, origin, tau, tau, energy, e, TARGET)
    else:
        tl.store(p_out + o_row * n + o_column, b_p, mask=m_tile & ~m_steep)
    if STEEP:
        # Read once more: what a rare branch keeps in registers, every row would have to.
        if tl.max(m_steep.to(tl.int32)) > 0:
            # A NaN in the row has reached `unknown`, but reaches no comparison of the bisection.
            _solve_steep_rows(
                p_x, p_target, ignored, p_out, p_state, n, o_row, o_column, m_steep, m_tile & m_steep,
                unknown == unknown, tl.where(m_steep, e, 2.0).to(WORK), LOSS, TARGET, HALVINGS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["ignored"])
def solve_streamed(
    p_x, p_alpha, p_target, p_out, p_state, ignored, n, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, LOSS: tl.constexpr, TARGET: tl.constexpr,
    DOUBLE: tl.constexpr, DIGITS: tl.constexpr, HALVINGS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    o_lane = tl.arange(0, LANES)[None, :]
    e_row = load_e(p_alpha, e, o_row, o_row >= 0, PER_ROW)
    # α > 2 is solved as if it were 2, then replaced below.
    e = tl.minimum(e_row, 1.0) if STEEP else e_row
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
        unknown = solve(b_z, e, KIND, WORK, DIGITS)
        rounded, error, factor = levels(unknown, e, KIND, WORK)
        tau = threshold(unknown, e, KIND)
        b_p, _ = masses(b_z, rounded, error, factor, e, KIND, True)
        energy = e * tl.sum(products(b_p, b_z), 1, keep_dims=True)
        # A lane that is full of support may have dropped some: step over the whole row.
        b_p, _ = masses(b_4 - peak, rounded, error, factor, e, KIND, True)
        going = tl.max((b_p > 0).to(tl.int32))
        small = last_step(e, DIGITS, WORK)
        steps = 0
        while going > 0:
            b_mass, b_mass_lost = tl.zeros((1, LANES), WORK), tl.zeros((1, LANES), WORK)
            b_dot, b_dot_lost = tl.zeros((1, LANES), WORK), tl.zeros((1, LANES), WORK)
            b_slope = tl.zeros((1, LANES), WORK)
            for start in tl.range(0, n, LANES, num_stages=STAGES):
                o_column = start + o_lane
                b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf")).to(WORK)
                b_p, b_s = masses(b_x - peak, rounded, error, factor, e, KIND, True)
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
            going = tl.where(steps < MAX_STEPS, tl.max((step > small).to(tl.int32)), 0)

    level = threshold(unknown, e, KIND)
    anchor, p_anchor = peak, peak
    e_steep = tl.where(e_row > 1, e_row, 2.0).to(WORK)
    if STEEP:
        if tl.max(tl.where(e_row > 1, 1, 0)) > 0:
            anchor, p_anchor = anchored_streamed(p_row, n, peak, e_steep, HALVINGS, LANES)
            # A NaN in the row has reached `unknown`, but no comparison above.
            p_anchor = tl.where(unknown == unknown, p_anchor, float("nan"))
            if LOSS:
                origin = tl.where(origin > float("-inf"), anchor, origin)
                dot = steep_energy(p_row, n, tl.where(origin == float("-inf"), 0.0, anchor), p_anchor, e_steep, LANES)
                energy = (e_steep * dot).to(energy.dtype)
                tau = ((1 - tl.exp2(e_steep * tl.log2(p_anchor))) / e_steep).to(tau.dtype)
                level = p_anchor.to(level.dtype)
    if LOSS:
        _store_loss(
            p_x, p_target, ignored, p_out, p_state, n, o_row, o_row >= 0, origin, level, tau, energy, e_row, TARGET
        )
    else:
        for start in tl.range(0, n, LANES, num_stages=STAGES):
            o_column = start + o_lane
            m_column = o_column < n
            b_x = tl.load(p_row + o_column, mask=m_column, other=float("-inf"), eviction_policy="evict_first").to(WORK)
            b_p, _ = masses(b_x - peak, rounded, error, factor, e, KIND, True)
            if STEEP:
                b_steep = tl.where(unknown == unknown, steep(b_x, anchor, p_anchor, e_steep), float("nan"))
                b_p = tl.where(e_row > 1, b_steep, b_p)
            tl.store(p_out + i_row * n + o_column, b_p, mask=m_column, eviction_policy="evict_first")
