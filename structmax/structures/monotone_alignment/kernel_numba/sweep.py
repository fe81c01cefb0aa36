"""Over the anti-diagonals of a strip, and over the strips of an instance: forward, and backward."""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.inner import stay_apart
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.structures.monotone_alignment.kernel_numba.magnitude import LARGEST, NOTHING
from structmax.structures.monotone_alignment.kernel_numba.step import (
    CONTINUED,
    DIAGONAL,
    ENDED,
    EXPONENT,
    GOAL_EXPONENT,
    GOAL_INVERSE,
    GOAL_TANGENT,
    MANTISSA,
    TANGENT,
    VERTICAL,
    backward_local,
    backward_local_slopes,
    backward_moves,
    backward_moves_slopes,
    best_cells,
    best_local,
    best_moves,
    forward_cells,
    forward_local,
    forward_moves,
    tangent_cells,
    tangent_local,
    tangent_moves,
)
from structmax.structures.monotone_alignment.kernel_numba.strip import STATE, read, strip_at

FOUND, NOTHING_TO_DO, BROKEN, WIDE = range(4)
# The largest sums of scores, up to sign, that float32 can do: those with exact exponents, and those that are finite.
LARGEST_SUM, LARGEST_FINITE = 5e6, 3e38
NOTHING_32, NOTHING_64 = NOTHING[32], NOTHING[64]
LOG_2 = math.log(2)


@compiled()
def _nothing(tape, best):
    """What the plane of exponents has where no path comes."""
    if best:
        return -np.inf
    return NOTHING_32 if tape.itemsize == 4 else NOTHING_64


@compiled()
def _clear(array, first, plane, nothing):
    """A state without paths, in planes of an array from `first` on."""
    array[first + MANTISSA * plane : first + (MANTISSA + 1) * plane] = 0
    array[first + EXPONENT * plane : first + (EXPONENT + 1) * plane] = nothing
    array[first + TANGENT * plane : first + (TANGENT + 1) * plane] = 0


@compiled()
def _set_goal(grid, scratch, plane, number):
    first = scratch.goal + plane * grid.plane
    scratch.tape[first : first + grid.plane] = number


@compiled()
def start(grid, best, scratch):
    """The row above the first, where only the place before (0, 0) is reached; and a goal not yet known."""
    tape, goal = scratch.tape, scratch.goal
    nothing = _nothing(tape, best)
    _clear(scratch.above[0], 0, scratch.columns, nothing)
    if grid.shares == 3:
        scratch.above[0, MANTISSA * scratch.columns], scratch.above[0, EXPONENT * scratch.columns] = 1, 0
    _clear(tape, goal, grid.plane, nothing)
    # the empty path
    tape[goal + MANTISSA * grid.plane], tape[goal + EXPONENT * grid.plane] = 1, 0
    _set_goal(grid, scratch, GOAL_EXPONENT, -nothing)
    _set_goal(grid, scratch, GOAL_INVERSE, 0.0)
    _set_goal(grid, scratch, GOAL_TANGENT, 0.0)


@compiled()
def forward(grid, strip, best, keep, tangents, scratch):
    """All anti-diagonals of a strip, whose shares are kept if wanted, and whose last row goes to the next strip.

    Returns where the state of the last anti-diagonal is.
    """
    stay_apart()
    tape, plane = scratch.tape, grid.plane
    above, below = scratch.above[strip.number], scratch.above[strip.number + 1]
    nothing = _nothing(tape, best)
    columns = scratch.columns
    _clear(below, 0, columns, nothing)
    for d in range(3):
        _clear(tape, scratch.state + d * STATE * plane, plane, nothing)
    before, last, now = scratch.state, scratch.state + STATE * plane, scratch.state + 2 * STATE * plane
    for p in range(STATE):
        tape[before + p * plane] = above[p * columns + strip.left]
        tape[last + p * plane] = above[p * columns + strip.left + 1]
    for t in range(strip.diagonals):
        kept = t * grid.shares * plane if keep else 0
        moved = t * grid.tensors * plane
        for r in range(0, grid.lanes, BLOCK):
            scores, shares = scratch.scores + moved + r, scratch.shares + kept + r
            places = plane, scores, now + r, last + r, before + r, shares
            goal = scratch.goal + r
            if grid.tensors == 1:
                if best:
                    best_cells(tape, places)
                else:
                    forward_cells(tape, places)
            elif grid.shares == 3:
                if best:
                    best_moves(tape, places)
                else:
                    forward_moves(tape, places)
            elif best:
                best_local(tape, (*places, goal))
            else:
                forward_local(tape, (*places, goal))
            if tangents:
                directions, slopes = scratch.directions + moved + r, scratch.slopes + kept + r
                places = plane, directions, now + r, last + r, before + r, shares
                if grid.tensors == 1:
                    tangent_cells(tape, (*places, slopes))
                elif grid.shares == 3:
                    tangent_moves(tape, (*places, slopes))
                else:
                    tangent_local(tape, (*places, slopes, goal))
        for p in range(STATE):
            tape[now + p * plane] = above[p * columns + strip.left + t + 2]
        if t >= grid.lanes - 1:
            for p in range(STATE):
                below[p * columns + strip.left + t + 2 - grid.lanes] = tape[now + p * plane + grid.lanes]
        before, last, now = last, now, before
    return last


@compiled()
def inside(sources, n, m, grid, best, scratch):
    """Forward over all strips, which leaves the shares of the last: the value, and what has come of it.

    FOUND; NOTHING_TO_DO, where it is known without a path; BROKEN, if a score is NaN or +inf; WIDE, if the scores are
    too large for float32, or all paths too bad for float64.
    """
    if grid.tensors == 1 and (n == 0 or m == 0):
        return (0.0 if n == m else -np.inf), NOTHING_TO_DO
    if grid.shares == 3 and abs(n - m) > grid.band:
        return -np.inf, NOTHING_TO_DO
    tape = scratch.tape
    limit = np.inf
    if tape.itemsize == 4:
        limit = (LARGEST_FINITE if best else LARGEST_SUM) / (n + m + 1)
    wild, broken, last = 0, 0, 0
    start(grid, best, scratch)
    for s in range(grid.strips):
        strip = strip_at(grid, s)
        more = read(sources, grid, strip, tape.dtype.type(limit), scratch)
        wild, broken = wild + more[0], broken + more[1]
        last = forward(grid, strip, best, s == grid.strips - 1, False, scratch)
    if broken > 0:
        return np.nan, BROKEN
    if wild > 0:
        return np.nan, WIDE
    if grid.shares == 5:
        mantissa, exponent = _reach_goal(grid, best, scratch)
    else:
        lane = last + (grid.height - 1) % grid.lanes + 1
        mantissa, exponent = float(tape[lane + MANTISSA * grid.plane]), float(tape[lane + EXPONENT * grid.plane])
    value = exponent
    if not best:
        value = math.log(mantissa) + exponent * LOG_2 if mantissa > 0 else -np.inf
        if -np.inf < value < -LARGEST / 2:
            return np.nan, WIDE
    return value, FOUND if value > -np.inf else NOTHING_TO_DO


@compiled()
def _reach_goal(grid, best, scratch):
    """Z of local alignments, from what the lanes have found: the sum, or the best."""
    mantissas, exponents = scratch.goal + MANTISSA * grid.plane, scratch.goal + EXPONENT * grid.plane
    peak, total = -np.inf, 0.0
    for lane in range(grid.lanes):
        peak = max(peak, float(scratch.tape[exponents + lane]))
    for lane in range(grid.lanes):
        total += float(scratch.tape[mantissas + lane]) * 2.0 ** (float(scratch.tape[exponents + lane]) - peak)
    _set_goal(grid, scratch, GOAL_EXPONENT, np.inf if best and peak <= 0 else peak)
    _set_goal(grid, scratch, GOAL_INVERSE, 1 / total)
    return total, peak


@compiled()
def set_goal_tangent(grid, scratch):
    """The derivative of log Z of local alignments, from what the lanes have found."""
    total = 0.0
    for lane in range(grid.lanes):
        total += scratch.tape[scratch.goal + TANGENT * grid.plane + lane]
    _set_goal(grid, scratch, GOAL_TANGENT, total)


@compiled()
def backward(grid, strip, tangents, scratch):
    """Probabilities of all moves of a strip in place of their shares, and what flows on to the strip above.

    Those of cells go where their scores were. With tangents, the derivatives of all these go in place of the slopes.
    """
    stay_apart()
    tape, plane = scratch.tape, grid.plane
    step = grid.shares * plane
    diagonal = CONTINUED if grid.shares == 5 else DIAGONAL
    final = strip.top + strip.rows == grid.height
    for side in range(2 if tangents else 1):
        planes = scratch.slopes if side else scratch.shares
        tape[planes + strip.diagonals * step : planes + (strip.diagonals + 2) * step] = 0
        for t in range(strip.diagonals + 2):
            j = strip.left + t - grid.lanes
            for p in range(2):
                lane = planes + t * step + (VERTICAL if p else diagonal) * plane + grid.lanes
                tape[lane] = scratch.below[2 * side + p, j] if 0 <= j < grid.width and not final else 0
    if final and grid.shares == 3:
        tape[scratch.shares + (strip.diagonals + 1) * step + strip.rows] = 1
    for t in range(strip.diagonals - 1, -1, -1):
        for r in range(0, grid.lanes, BLOCK):
            shares = scratch.shares + t * step + r
            visits = scratch.scores + t * grid.tensors * plane + r
            places = plane, shares, shares + step, shares + 2 * step
            if tangents:
                slopes = scratch.slopes + t * step + r
                all_places = (*places, slopes, slopes + step, slopes + 2 * step)
                if grid.shares == 3:
                    backward_moves_slopes(tape, (*all_places, visits))
                else:
                    backward_local_slopes(tape, all_places)
            elif grid.shares == 3:
                backward_moves(tape, (*places, visits))
            else:
                backward_local(tape, places)
    for side in range(2 if tangents else 1):
        planes = scratch.slopes if side else scratch.shares
        for p in range(2):
            scratch.below[2 * side + p] = 0
            for j in range(strip.columns):
                lane = planes + j * step + (VERTICAL if p else diagonal) * plane
                scratch.below[2 * side + p, strip.left + j] = tape[lane]


@compiled()
def end_once(grid, strip, ended, scratch):
    """Of the matches that may end a best path, keeps one at most, and none if one is kept already."""
    for t in range(strip.diagonals):
        plane = scratch.shares + (t * grid.shares + ENDED) * grid.plane
        for lane in range(plane, plane + grid.lanes):
            if scratch.tape[lane] > 0:
                scratch.tape[lane] = 0 if ended else 1
                ended = True
    return ended
