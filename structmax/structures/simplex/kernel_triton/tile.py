"""The mathematics of a tile of rows in Triton: probabilities, Newton's method for them, their slopes.

A row is shifted by its maximum, z = x − max x ≤ 0. Newton's method solves ‖u₊‖ = 1 with the 1/(α−1)-norm and
u = 1 + (α−1)(z − τ); from below it is monotone, and every subset of a row gives a lower bound of the row's τ.

What Newton moves is not τ, whose rounding would swamp small probabilities, but a measure of the largest probability p̂:
`unknown` = p̂^(α−1) for sparsemax and entmax15, log p̂ for other α, 1/Σ exp z for softmax. It is float64, (ROWS, 1), as
everything that is one number per row and decides about it; tiles (ROWS, BLOCK) have the working precision. So has a
step of Newton's method, which the next one corrects: an exponential in float64 for each row would take longer than all
of the tile.
"""

import triton
import triton.language as tl

# Newton's method never comes near this; it bounds a launch whatever the rounding does.
MAX_STEPS = tl.constexpr(64)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def log2(x):
    """The binary logarithm of a positive number, without what tl.log2 does for other numbers. A NaN does not stay."""
    if x.dtype == tl.float64:
        return tl.log2(x)
    else:
        # x = 2^k (1 + t) with √½ ≤ 1 + t < √2, and a polynomial of log2(1 + t)/t, good to 3e-8.
        bits = x.to(tl.int32, bitcast=True)
        k = (bits - 0x3F3504F3) & -0x800000
        t = (bits - k).to(tl.float32, bitcast=True) - 1
        b_high = 0.2879183244598032 + t * (
            -0.23892033981075175 + t * (0.2156698590865643 + t * (-0.20742103513211418 + t * 0.1261484660247121))
        )
        b_low = 1.4426950037647235 + t * (
            -0.7213473333598972 + t * (0.4809106099457127 + t * (-0.3607048280967766 + t * b_high))
        )
        return k.to(tl.float32) * 1.1920928955078125e-07 + t * b_low


@triton.jit
def power(z, slope, slope_error, e, EXACT: tl.constexpr):
    """u₊^(1/e) and u₊^(1/e − 1) of u = 1 + slope z. −inf maps to 0 for either sign of e; a NaN stays in the first.

    `slope_error` is what rounding took from the slope, if EXACT. A step of Newton's method is made of this, once for
    each number: there is no division in it.
    """
    dead = z == float("-inf")
    z = tl.where(dead, 0.0, z)
    base = 1 + z * slope
    if EXACT:
        base += z * slope_error
    dead |= base <= 0
    base = tl.where(dead, 1.0, base)
    # Close to 1 a base loses the digits of a small slope: put back to first order what rounding took. There 2 − u is
    # 1/u. Below ½ and above 2, where α < 1 leads, no digits of the slope are lost.
    lost = z * slope - (base - 1)
    if EXACT:
        lost += z * slope_error
    lost = tl.where(base < 0.5, 0.0, lost) * tl.maximum(2 - base, 0.0)
    less = tl.where(dead, 0.0, tl.exp2((log2(base) + lost * LOG2_E) * (1 / e - 1)))
    return less * base, less


@triton.jit
def rough_exp(x, WORK: tl.constexpr):
    """exp of a float64 to the working precision, which a large x does not cost digits."""
    rounded = x.to(WORK)
    return tl.exp(rounded) * (1 + (x - rounded).to(WORK))


@triton.jit
def rough_levels(unknown, e, KIND: tl.constexpr, WORK: tl.constexpr):
    """`levels` to the working precision."""
    if KIND == "general":
        level = e.to(WORK) * rough_exp(-e * unknown, WORK)
        return level, tl.zeros_like(level), rough_exp(unknown, WORK)
    else:
        return levels(unknown, e, KIND, WORK)


@triton.jit
def levels(unknown, e, KIND: tl.constexpr, WORK: tl.constexpr):
    """What `masses` needs of a row's unknown: a number, its rounding error, a factor."""
    level = unknown
    factor = unknown.to(WORK)
    if KIND == "general":
        level = e * tl.exp(-e * unknown)
        factor = tl.exp(unknown).to(WORK)
    rounded = level.to(WORK)
    return rounded, (level - rounded).to(WORK), factor


@triton.jit
def masses(z, level, error, factor, e, KIND: tl.constexpr, EXACT: tl.constexpr):
    """Probabilities p and p^(2−α), the latter times the row's p̂^(α−1) where α is general.

    There `error` counts only if EXACT.
    """
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
        p, s = power(z, level, error, e.to(z.dtype), EXACT)
        return factor * p, factor * s


@triton.jit
def decay(x, e):
    """(1 − exp(−e x)) / e, also for e close to 0."""
    y = e * x
    series = 1 - y * (1 / 2 - y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y * (1 / 720)))))
    return tl.where(tl.abs(y) < 0.02, x * series, (1 - tl.exp(-y)) * (1 / e))


@triton.jit
def growth(x, e):
    """−log(1 − e x) / e, the inverse, also for e close to 0."""
    y = e * x
    small = tl.abs(y) < 0.02
    series = 1 + y * (1 / 2 + y * (1 / 3 + y * (1 / 4 + y * (1 / 5 + y * (1 / 6 + y * (1 / 7))))))
    return tl.where(small, x * series, tl.log(tl.where(small, 1.0, 1 - y)) * (-1 / e))


@triton.jit
def newton(unknown, mass, slope, e, KIND: tl.constexpr):
    """The next unknown, and the step relative to p̂. A row without a feasible entry stands still."""
    slope = tl.where(mass == 0, 1.0, slope)
    mass = tl.where(mass == 0, 1.0, mass)
    if KIND == "general":
        e = e.to(mass.dtype)
        # Newton's step is this times −(α−1) p̂^(α−1), in p̂^(α−1): take it to the logarithm. A NaN stays in the ratio.
        step = growth((mass / slope) * decay(log2(mass) * LN_2, e), e)
        return unknown - step.to(tl.float64), step
    else:
        step = (mass - 1) / slope
        if KIND == "entmax15":
            root = tl.sqrt(mass)
            step = step * root / (1 + root)
        return unknown - step.to(tl.float64), step / unknown.to(mass.dtype)


@triton.jit
def last_step(e, DIGITS: tl.constexpr, WORK: tl.constexpr):
    """How small a step is the last one. It is still taken, and leaves its power of 1/(α−1), or its square."""
    return tl.exp2(-DIGITS * tl.minimum(1.25 * tl.maximum(e.to(WORK), 0.5), 1.0))


@triton.jit
def solve(z, e, KIND: tl.constexpr, WORK: tl.constexpr, DIGITS: tl.constexpr):
    """The unknown of each row of a tile (ROWS, BLOCK): (ROWS, 1) in float64. Rows do not influence one another."""
    if KIND == "softmax":
        mass = tl.sum(tl.exp2(z * LOG2_E), 1, keep_dims=True)
        return 1.0 / tl.where(mass == 0, 1.0, mass).to(tl.float64)
    else:
        # p̂ = 1: the lowest τ.
        unknown = tl.full((z.shape[0], 1), 0.0 if KIND == "general" else 1.0, tl.float64)
        moving = unknown == unknown
        small = last_step(e, DIGITS, WORK)
        steps = 0
        going = 1
        while going > 0:
            level, error, factor = rough_levels(unknown, e, KIND, WORK)
            p, s = masses(z, level, error, 1.0, e, KIND, False)
            mass, slope = tl.sum(p, 1, keep_dims=True), tl.sum(s, 1, keep_dims=True)
            if KIND == "general":
                mass, slope = factor * mass, factor * slope
            moved, step = newton(unknown, mass, slope, e, KIND)
            unknown = tl.where(moving, moved, unknown)
            moving = moving & (step > small)
            steps += 1
            going = tl.where(steps < MAX_STEPS, tl.max(moving.to(tl.int32)), 0)
        return unknown


@triton.jit
def threshold(unknown, e, KIND: tl.constexpr):
    """τ of a row: (ROWS, 1) in float64."""
    if KIND == "softmax":
        return -tl.log(unknown)
    elif KIND == "general":
        return decay(-unknown, e)
    else:
        return (1 - unknown) / e


@triton.jit
def accumulate(total, lost, term):
    """total + term, and what rounding took from the total so far: a lane of a long row sums a hundred small terms."""
    term -= lost
    moved = total + term
    return moved, (moved - total) - term


@triton.jit
def products(p, z):
    return tl.where(p == 0, 0.0, p * z)


@triton.jit
def slopes(p, e, KIND: tl.constexpr):
    """p^(2−α) on the support, 0 off it; a NaN stays."""
    if KIND == "softmax":
        return p
    elif KIND == "entmax15":
        return tl.sqrt(p)
    elif KIND == "sparsemax":
        return tl.where(p <= 0, 0.0, tl.where(p > 0, 1.0, p))
    else:
        # Finite for α > 2 too, where 0 · inf would be NaN.
        largest: tl.constexpr = 1.7e308 if p.dtype == tl.float64 else 3.4e38
        raised = tl.exp2((1 - e).to(p.dtype) * tl.log2(tl.where(p <= 0, 1.0, p)))
        return tl.where(p <= 0, 0.0, tl.where(raised > largest, largest, raised))


@triton.jit
def quotient(a, b):
    """a / b, correctly rounded, which a division of float32 is not by itself."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def load_e(p_alpha, e, o_row, m_row, PER_ROW: tl.constexpr):
    """α − 1 of each row in float64; softmax is met within rounding by a value next to 0."""
    if PER_ROW:
        alpha = tl.load(p_alpha + o_row, mask=m_row, other=1.5).to(tl.float64)
        return tl.where(alpha == 1, 1e-18, alpha - 1)
    else:
        return tl.full(o_row.shape, e, tl.float64)
