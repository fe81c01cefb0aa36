"""The entropic matching of a table: one program for each instance. Derivations: ../README.md.

A table (m, n) has a line for each item of the larger side and is in memory in float64; a pass reads it once, with one
exponential for each entry, which is softmax of each line less the duals u of the n items. Then either each dual takes
what its own sum asks for (Sinkhorn's step, as cheap as the pass), or, where that has become slow, all take Newton's
step, as in kernel_numba/newton.py and with the same names.
"""

import triton
import triton.language as tl

from structmax.structures.matching.kernel_triton.laplacian import (
    GROUND,
    HELD,
    LEAST,
    NO_PIVOT,
    RIGHT,
    SHARE,
    eliminate,
)

SPREAD, GROWTH, ROUNDING = tl.constexpr(8.0), tl.constexpr(8.0), tl.constexpr(2.0**-50)
STAGE_TOLERANCE, LIFT, STEEP = tl.constexpr(0.1), tl.constexpr(0.01), tl.constexpr(0.5)
SHORTENINGS, FORESIGHT = tl.constexpr(50), tl.constexpr(4)
# Sinkhorn's steps go on while each leaves no more than this of the error, which is not asked of the first few.
RATE, PATIENCE = tl.constexpr(0.6), tl.constexpr(4)
# What an instance is: solvable, with NaN or +inf, or without a matching.
SOUND, BROKEN, INFEASIBLE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _solve_lines(p_table, u, scale, o_line, o_item, m, n, pitch, tight_lines):
    """Duals v (ROWS, 1) and parts (ROWS, BLOCK) of a tile of lines."""
    m_inside = (o_line < m) & (o_item < n)
    b_z = tl.load(p_table + o_line * pitch + o_item, mask=m_inside, other=float("-inf")) * scale - u
    peak = tl.max(b_z, 1, keep_dims=True)
    m_some = peak > float("-inf")
    peak = tl.where(m_some, peak, 0.0)
    b_part = tl.exp(b_z - peak)
    total = tl.where(m_some, tl.sum(b_part, 1, keep_dims=True), 1.0)
    v = peak + tl.log(total)
    # A sum that is only bounded stays below 1.
    m_loose = (v < 0) & (tight_lines == 0)
    factor = tl.where(m_loose, tl.exp(tl.minimum(peak, 0.0)), 1.0 / total)
    return tl.where(m_some & (m_loose == 0), v, 0.0), b_part * tl.where(m_some, factor, 0.0)


@triton.jit
def _pass(p_table, u, scale, m, n, pitch, tight_lines, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of the items (1, BLOCK), the dual function, and the size of its terms, of which it has the rounding."""
    o_item = tl.arange(0, BLOCK)[None, :]
    b_sum = tl.zeros((ROWS, BLOCK), tl.float64)
    duals, sizes = tl.zeros((ROWS, 1), tl.float64), tl.zeros((ROWS, 1), tl.float64)
    for start in range(0, m, ROWS):
        o_line = start + tl.arange(0, ROWS)[:, None]
        v, b_part = _solve_lines(p_table, u, scale, o_line, o_item, m, n, pitch, tight_lines)
        b_sum += b_part
        duals += v
        sizes += tl.abs(v)
    sums = tl.sum(b_sum, 0, keep_dims=True)
    mass = tl.sum(sums)
    return sums, tl.sum(u) + tl.sum(duals) + mass, tl.sum(tl.abs(u)) + tl.sum(sizes) + mass


@triton.jit
def _direction(
    p_table, p_points, p_couplings, p_lines, u, sums, error, scale, m, n, pitch, longest, tight_lines,
    PARTIAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Newton's step in u, with the sums held that the linear model would hold, and how steeply it descends."""
    o_item = tl.arange(0, BLOCK)[None, :]
    m_item = o_item < n
    # Lines of memory behind the shares: duals, sums, what is above 1, and whether they are held.
    p_v = p_lines + SHARE * BLOCK + longest
    p_total, p_excess, p_held = p_v + longest, p_v + 2 * longest, p_v + 3 * longest
    for start in range(0, m, ROWS):
        o_line = start + tl.arange(0, ROWS)[:, None]
        v, b_part = _solve_lines(p_table, u, scale, o_line, o_item, m, n, pitch, tight_lines)
        total = tl.sum(b_part, 1, keep_dims=True)
        m_held = (v > 0) | (tight_lines > 0)
        tl.store(p_points + o_line * pitch + o_item, b_part, mask=(o_line < m) & m_item)
        tl.store(p_v + o_line, v, mask=o_line < m)
        tl.store(p_total + o_line, total, mask=o_line < m)
        tl.store(p_excess + o_line, tl.where(m_held, 0.0, total - 1.0), mask=o_line < m)
        tl.store(p_held + o_line, tl.where(m_held, 1.0, 0.0), mask=o_line < m)
    tl.debug_barrier()
    held = tl.where(m_item, 1, 0)
    if PARTIAL:
        held = tl.where(m_item & ((u > 0) | (sums > 1)), 1, 0)
    plain, direction = tl.zeros_like(u), tl.zeros_like(u)
    rounds = n * 0
    changed = rounds + 1
    while (changed > 0) & (rounds < FORESIGHT):
        b_ground = tl.zeros((ROWS, BLOCK), tl.float64)
        b_right = tl.zeros((ROWS, BLOCK), tl.float64)
        for start in range(0, m, ROWS):
            o_line = start + tl.arange(0, ROWS)[:, None]
            m_line = o_line < m
            b_part = tl.load(p_points + o_line * pitch + o_item, mask=m_line & m_item, other=0.0)
            total = tl.load(p_total + o_line, mask=m_line, other=0.0)
            m_held = tl.load(p_held + o_line, mask=m_line, other=0.0) > 0
            m_share = m_held & (total > 0)
            share = tl.where(m_share, 1.0 / tl.where(m_share, total, 1.0), 0.0)
            tl.store(p_lines + SHARE * BLOCK + o_line, share, mask=m_line)
            excess = tl.load(p_excess + o_line, mask=m_line, other=0.0)
            v = tl.load(p_v + o_line, mask=m_line, other=0.0)
            b_ground += tl.where(m_share, 0.0, b_part)
            b_right += b_part * tl.where(m_held, -excess * share, v)
        right = tl.where(m_item, sums - 1.0 + tl.sum(b_right, 0, keep_dims=True), 0.0)
        tl.store(p_lines + GROUND * BLOCK + o_item, tl.sum(b_ground, 0, keep_dims=True))
        tl.store(p_lines + RIGHT * BLOCK + o_item, right)
        tl.store(p_lines + LEAST * BLOCK + o_item, sums * NO_PIVOT)
        tl.store(p_lines + HELD * BLOCK + o_item, held.to(tl.float64))
        tl.debug_barrier()
        a = eliminate(p_points, 1, pitch, n, m, -u, LIFT * error, p_couplings, pitch, p_lines, ROWS, BLOCK)
        direction = tl.where(held > 0, a, -u)
        plain = tl.where(rounds == 0, direction, plain)
        rounds += 1
        # What the linear model would hold after the step: no more than one round where all is held.
        changed = n * 0
        if (tight_lines == 0) & (rounds < FORESIGHT):
            b_lost = tl.zeros((ROWS, BLOCK), tl.float64)
            for start in range(0, m, ROWS):
                o_line = start + tl.arange(0, ROWS)[:, None]
                m_line = o_line < m
                b_part = tl.load(p_points + o_line * pitch + o_item, mask=m_line & m_item, other=0.0)
                total = tl.load(p_total + o_line, mask=m_line, other=0.0)
                before = tl.load(p_held + o_line, mask=m_line, other=0.0)
                v = tl.load(p_v + o_line, mask=m_line, other=0.0)
                left = tl.load(p_excess + o_line, mask=m_line, other=0.0) - tl.sum(
                    b_part * direction, 1, keep_dims=True
                )
                m_total = total > 0
                move = tl.where(before > 0, tl.where(m_total, left / tl.where(m_total, total, 1.0), 0.0), -v)
                m_after = tl.where(before > 0, v + move, left + v * total)
                after = tl.where((m_after > 0) | ((before > 0) & (m_after == 0)), 1.0, 0.0)
                changed += tl.sum(tl.where(m_line & (after != before), 1, 0))
                b_lost += b_part * (direction + move)
                tl.debug_barrier()
                tl.store(p_held + o_line, after, mask=m_line)
            if PARTIAL:
                left = sums - 1.0 - tl.sum(b_lost, 0, keep_dims=True)
                m_next = tl.where(held > 0, u + direction >= 0, left > 0)
                after = tl.where(m_item & m_next, 1, 0)
                changed += tl.sum(tl.where(after != held, 1, 0))
                held = after
            tl.debug_barrier()
    slope = tl.sum(tl.where(m_item, (sums - 1.0) * direction, 0.0))
    # What was foreseen may contradict itself; with the sums held as they are, the direction descends.
    direction = tl.where(slope > 0, direction, plain)
    return direction, tl.sum(tl.where(m_item, (sums - 1.0) * direction, 0.0))


@triton.jit
def _violation(u, sums, m_item, PARTIAL: tl.constexpr):
    """The largest violation of an item's sum, which is 1, or at most 1 where u is 0 and it is only bounded."""
    over = sums - 1.0
    worst = tl.abs(over)
    if PARTIAL:
        worst = tl.where(u > 0, worst, tl.maximum(over, 0.0))
    return tl.max(tl.where(m_item, worst, 0.0))


@triton.jit(do_not_specialize=["N", "M", "pitch", "longest", "max_iter"])
def descend(
    p_tables, p_rows, p_columns, p_kinds, p_numbers, p_points, p_couplings, p_lines, p_out, p_values, p_errors,
    p_passes, p_converged, N, M, pitch, longest, temperature: tl.float64, tol: tl.float64, max_iter,
    PARTIAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The entropic matching of each table, its value, and how well it is solved.

    `numbers` has the least and the greatest score of each table, and what is to be added to its value.
    """
    i_instance = tl.program_id(0).to(tl.int64)
    r, c = tl.load(p_rows + i_instance).to(tl.int32), tl.load(p_columns + i_instance).to(tl.int32)
    n, m = tl.minimum(r, c), tl.maximum(r, c)
    kind = tl.load(p_kinds + i_instance)
    low, high = tl.load(p_numbers + i_instance * 3), tl.load(p_numbers + i_instance * 3 + 1)
    lost = tl.load(p_numbers + i_instance * 3 + 2)
    p_tables += i_instance * longest * pitch
    p_points += i_instance * longest * pitch
    p_couplings += i_instance * pitch * pitch
    p_lines += i_instance * (SHARE * BLOCK + 5 * longest)
    o_item = tl.arange(0, BLOCK)[None, :]
    m_item = o_item < n

    going = tl.where((kind == SOUND) & (n > 0), 1, 0)
    low, high = tl.where(going > 0, low, 0.0), tl.where(going > 0, high, 0.0)
    tight_lines, spread = n * 0, tl.maximum(high - low, 0.0)
    level = spread * 0.0
    if PARTIAL:
        # beside staying single
        spread = tl.maximum(tl.maximum(high, 0.0) - tl.minimum(low, 0.0), 0.0)
    else:
        tight_lines = tl.where(m == n, 1, 0)
        # Newton's steps are too short for a way from far off: the score nearest to 0
        level = tl.where(m == n, 0.0, tl.minimum(tl.maximum(low, 0.0), high))
    rounding = (spread + SPREAD) * ROUNDING
    stages, scale, left = n * 0, spread * 0.0 + 1.0, spread
    while left > SPREAD:
        left, scale, stages = left / GROWTH, scale / GROWTH, stages + 1

    u = tl.where(m_item & (going > 0), level * scale, 0.0)
    direction = tl.zeros_like(u)
    nothing = scale * 0.0
    value, slope, step, before = nothing + float("inf"), nothing, nothing + 1.0, nothing
    near, far, slope_near, slope_far = nothing, nothing, nothing, nothing
    error = nothing
    passes, tries, newton, age = n * 0, n * 0, n * 0, n * 0
    while going > 0:
        trial = u + step * direction
        if PARTIAL:
            trial = tl.maximum(trial, 0.0)
        sums, new, size = _pass(p_tables, trial, scale, m, n, pitch, tight_lines, ROWS, BLOCK)
        passes, tries = passes + 1, tries + 1
        # The slope along Newton's step rises. Where it ends too steep, an end in between is looked for.
        m_bound = m_item
        if PARTIAL:
            m_bound &= trial > 0
        end = tl.sum(tl.where(m_bound, (1.0 - sums) * direction, 0.0))
        above = (end > STEEP * slope) | (new > value + ROUNDING * size)
        is_far = tl.where((newton > 0) & above, 1, 0)
        is_near = tl.where((newton > 0) & (is_far == 0) & (far > 0) & (end < -STEEP * slope), 1, 0)
        far, slope_far = tl.where(is_far > 0, step, far), tl.where(is_far > 0, tl.maximum(end, 0.0), slope_far)
        near, slope_near = tl.where(is_near > 0, step, near), tl.where(is_near > 0, end, slope_near)
        if (is_far + is_near > 0) & (tries < SHORTENINGS):
            share = slope_near / (slope_near - slope_far)
            step = near + (far - near) * tl.minimum(tl.maximum(share, 0.1), 0.5)
        else:
            u, value = trial, new
            before, error = error, _violation(u, sums, m_item, PARTIAL)
            ended = (passes >= max_iter) | ((is_far + is_near > 0) & (near == 0))
            if (stages > 0) & ((error <= STAGE_TOLERANCE) | ended):
                # the first pass of a stage has no direction
                u, scale, stages = u * GROWTH, scale * GROWTH, stages - 1
                direction, value = tl.zeros_like(u), nothing + float("inf")
                newton, age, slope = n * 0, n * 0, nothing
            elif (error <= tl.maximum(rounding, tol)) | ended:
                going = n * 0
            else:
                age += 1
                newton = tl.where((age > PATIENCE) & (error > RATE * before), 1, newton)
                if newton > 0:
                    direction, slope = _direction(
                        p_tables, p_points, p_couplings, p_lines, u, sums, error, scale, m, n, pitch, longest,
                        tight_lines, PARTIAL, ROWS, BLOCK,
                    )  # fmt: skip
                else:
                    direction = tl.where(m_item, tl.log(tl.maximum(sums, 1e-300)), 0.0)
            step, tries = nothing + 1.0, n * 0
            near, far, slope_near, slope_far = nothing, nothing, -slope, nothing

    # Lines are rows, or columns where these are more.
    p_out += i_instance * N * M
    of_line, of_item = tl.where(r < c, 1, M), tl.where(r < c, M, 1)
    if kind != INFEASIBLE:
        for start in range(0, m, ROWS):
            o_line = start + tl.arange(0, ROWS)[:, None]
            _, b_part = _solve_lines(p_tables, u, scale, o_line, o_item, m, n, pitch, tight_lines)
            b_part = tl.where(kind == BROKEN, float("nan"), b_part)
            m_inside = (o_line < m) & m_item
            tl.store(p_out + o_line * of_line + o_item * of_item, b_part.to(p_out.dtype.element_ty), mask=m_inside)
    value = tl.where(n > 0, temperature * value + lost, 0.0)
    value = tl.where(kind == BROKEN, float("nan"), tl.where(kind == INFEASIBLE, float("-inf"), value))
    tl.store(p_values + i_instance, value.to(p_values.dtype.element_ty))
    told = tl.where(kind == BROKEN, float("nan"), error)
    tl.store(p_errors + i_instance, told.to(p_errors.dtype.element_ty))
    tl.store(p_passes + i_instance, passes)
    tl.store(p_converged + i_instance, (kind != BROKEN) & (error <= tl.maximum(rounding, tol)))
