"""Newton's method for the duals of a transport problem, entropic or quadratic. Derivation: ../README.md.

A problem is a table (m, n) of scores, a line for each item of the long side m ≥ n, already divided by the temperature.
The dual function is convex in the duals u of the n items of the short side alone, because each line is solved exactly;
its gradient is 1 less the sums of the items, its Hessian the Laplacian that `laplacian` factorises.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.matching.kernel_numba.laplacian import eliminate_lines, factorise, release_items, solve
from structmax.structures.matching.kernel_numba.lines import softmax_line, sparsemax_line

# Scores are first shrunk until they spread over no more than this, then grown by GROWTH again and again: the duals of
# one stage are a good start for the next.
SPREAD, GROWTH = 8.0, 8.0
# Sums and parts below this fraction of the scores' spread are rounding.
ROUNDING = 2.0**-50
# How exactly a stage is solved that is not the last.
STAGE_TOLERANCE = 0.1
# The Hessian is lifted by this fraction of the gradient, which lets Newton's steps end where it is singular.
LIFT = 0.01
# A step is shortened while the slope at its end is steeper than this fraction of that at its start.
STEEP = 0.5
SHORTENINGS = 50
# How often a step is computed anew because it would change which sums are held.
FORESIGHT = 4


@compiled("contract", "reassoc")
def _add_line(line, sparse, sums):
    """Adds a line to the sums. Returns what its parts add to the dual function."""
    conjugate = 0.0
    if sparse:
        for i in range(len(line)):
            sums[i] += line[i]
            conjugate += 0.5 * line[i] * line[i]
    else:
        for i in range(len(line)):
            sums[i] += line[i]
            conjugate += line[i]
    return conjugate


@compiled()
def solve_lines(table, u, tight, sparse, v, p, sums):
    """Duals v and parts p of all lines, and the sums of p over the lines: (n,). Returns the dual function."""
    value = 0.0
    for i in range(len(u)):
        sums[i] = 0.0
        value += u[i]
    for j in range(len(table)):
        if sparse:
            v[j] = sparsemax_line(table[j], u, v[j], tight, p[j])
        else:
            v[j] = softmax_line(table[j], u, tight, p[j])
        value += v[j] + _add_line(p[j], sparse, sums)
    return value


@compiled()
def violation(u, sums, tight):
    """The largest violation of an item's sum, which is 1, or at most 1 where u is 0 and it is not tight."""
    worst = 0.0
    for i in range(len(u)):
        over = sums[i] - 1
        worst = max(worst, abs(over) if tight or u[i] > 0 else over)
    return worst


@compiled()
def _weigh(p, v, tight, sparse, weights, lines, excess, held):
    """The derivatives D of the parts by their scores, their sums over each line, which lines are held, and what others
    exceed 1 by."""
    for j in range(len(p)):
        total, size = 0.0, 0.0
        for i in range(p.shape[1]):
            d = (1.0 if p[j, i] > 0 else 0.0) if sparse else p[j, i]
            weights[j, i] = d
            size += d
            total += p[j, i]
        lines[j] = size
        held[j] = tight or v[j] > 0
        excess[j] = 0.0 if held[j] else total - 1


@compiled()
def _right_side(weights, lines, held_lines, v, excess, sums, out):
    """What the sums of the items should lose, once the lines follow: held ones to the sum 1, others to v = 0."""
    for i in range(len(out)):
        out[i] = sums[i] - 1
    for j in range(len(lines)):
        share = (-excess[j] / lines[j] if lines[j] > 0 else 0.0) if held_lines[j] else v[j]
        if share != 0:
            for i in range(len(out)):
                out[i] += share * weights[j, i]


@compiled()
def _foresee(weights, u, v, sums, lines, excess, direction, held, held_lines, tight, tight_lines, moves):
    """Which sums the linear model would hold after the step. Returns whether that is not as it was assumed."""
    changed = False
    for j in range(len(lines)):
        pull = 0.0
        for i in range(len(u)):
            pull += weights[j, i] * direction[i]
        if held_lines[j]:
            moves[j] = (excess[j] - pull) / lines[j] if lines[j] > 0 else 0.0
            holds = tight_lines or v[j] + moves[j] >= 0
        else:
            moves[j] = -v[j]
            holds = excess[j] - pull + v[j] * lines[j] > 0
        changed |= holds != held_lines[j]
        held_lines[j] = holds
    for i in range(len(u)):
        if held[i]:
            holds = tight or u[i] + direction[i] >= 0
        else:
            left = sums[i] - 1
            for j in range(len(lines)):
                left -= weights[j, i] * (direction[i] + moves[j])
            holds = left > 0
        changed |= holds != held[i]
        held[i] = holds
    return changed


@compiled()
def _level(table):
    """The score nearest to 0 between the least and the greatest: Newton's steps are too short for a way from far off.

    A number that all scores share counts nothing where each item has the sum 1, but single lines have 0.
    """
    low, high = np.inf, -np.inf
    for j in range(len(table)):
        for i in range(table.shape[1]):
            score = table[j, i]
            low, high = min(low, score if score > -np.inf else np.inf), max(high, score)
    return min(max(0.0, low), high)


@compiled()
def _scale(table, u, v, factor):
    for j in range(len(table)):
        v[j] *= factor
        for i in range(len(u)):
            table[j, i] *= factor
    for i in range(len(u)):
        u[i] *= factor


@compiled()
def _search(table, tight, tight_lines, sparse, value, slope, direction, trial, u, v, p, sums):
    """Moves u along the direction, and solves the lines there.

    The slope along the step rises. Where it ends too steep, an end in between is looked for. Returns the dual function,
    how often the lines were solved, and whether there is any step that rounding does not hide.
    """
    n = len(u)
    step, low, high, slope_low, slope_high = 1.0, 0.0, 0.0, -slope, 0.0
    passes = 0
    for _ in range(SHORTENINGS):
        for i in range(n):
            trial[i] = u[i] + step * direction[i]
            if not tight:
                trial[i] = max(trial[i], 0.0)
        new = solve_lines(table, trial, tight_lines, sparse, v, p, sums)
        passes += 1
        end = 0.0
        for i in range(n):
            end += (1 - sums[i]) * direction[i] if tight or trial[i] > 0 else 0.0
        if end > STEEP * slope or new > value + ROUNDING * abs(value):
            high, slope_high = step, max(end, 0.0)
        elif high > 0 and end < -STEEP * slope:
            low, slope_low = step, end
        else:
            low = step
            break
        step = low + (high - low) * min(max(slope_low / (slope_low - slope_high), 0.1), 0.5)
    for i in range(n):
        u[i] = trial[i]
    return new, passes, low > 0


@kernel()
def descend(start, stop, tables, rows, columns, partial, sparse, tol, max_iter, points, duals, reports):
    """Duals u, v and points p of a slice of the batch, for those instances whose error in `reports` is +inf.

    `tables` and `points` hold the m · n entries of an instance in the first of a row. `reports` gets the dual function,
    the error, how often the lines were solved, and, in place of the spread of the scores, below which it is rounding.
    """
    for b in range(start, stop):
        m, n = max(rows[b], columns[b]), min(rows[b], columns[b])
        report = reports[b]
        if report[1] < np.inf:
            continue
        tight, tight_lines = not partial, not partial and m == n
        table, p = tables[b, : m * n].reshape(m, n), points[b, : m * n].reshape(m, n)
        u, v = duals[b, 0, :n], duals[b, 1, :m]
        weights, matrix = np.empty((m, n)), np.empty((n, n))
        vectors, flags = np.empty((8, m)), np.empty((2, m), np.bool_)
        sums, direction, trial = vectors[0, :n], vectors[1, :n], vectors[2, :n]
        ground, pivot, held = vectors[3, :n], vectors[4, :n], flags[1, :n]
        lines, excess, moves, held_lines = vectors[5], vectors[6], vectors[7], flags[0]
        spread = report[3]
        report[3] = ROUNDING * (spread + SPREAD)
        level = _level(table) if tight and not tight_lines else 0.0
        for i in range(n):
            u[i], direction[i] = level, 0.0
        for j in range(m):
            v[j] = np.inf
        stages = max(0, math.ceil(math.log(spread / SPREAD) / math.log(GROWTH))) if spread > SPREAD else 0
        factor, value, slope, passes = GROWTH**-stages, np.inf, 0.0, 0
        while True:
            if factor != 1:
                _scale(table, u, v, factor)
                factor = 1.0
            value, used, moved = _search(
                table, tight, tight_lines, sparse, value, slope, direction, trial, u, v, p, sums
            )
            passes += used
            error = violation(u, sums, tight)
            ended = passes >= max_iter or not moved
            if stages > 0 and (error <= STAGE_TOLERANCE or ended):
                # the first step of a stage has no direction
                for i in range(n):
                    direction[i] = 0.0
                stages -= 1
                factor, value, slope = GROWTH, np.inf, 0.0
                continue
            if error <= max(tol, report[3]) or ended:
                break
            slope, rounds = 0.0, FORESIGHT
            while slope <= 0 and rounds > 0:
                _weigh(p, v, tight_lines, sparse, weights, lines, excess, held_lines)
                for i in range(n):
                    held[i] = tight or u[i] > 0 or sums[i] > 1
                for _ in range(rounds):
                    eliminate_lines(weights, lines, held_lines, matrix, ground, pivot)
                    _right_side(weights, lines, held_lines, v, excess, sums, direction)
                    if not tight:
                        release_items(held, u, matrix, ground, direction)
                    for i in range(n):
                        ground[i] += LIFT * error if held[i] else 0.0
                    factorise(matrix, ground, pivot)
                    solve(matrix, pivot, direction)
                    for i in range(n):
                        direction[i] = direction[i] if held[i] else -u[i]
                    if tight_lines or not _foresee(
                        *(weights, u, v, sums, lines, excess, direction, held, held_lines, tight, tight_lines, moves)
                    ):
                        break
                slope = 0.0
                for i in range(n):
                    slope += (sums[i] - 1) * direction[i]
                # what was foreseen may contradict itself; with the sums held as they are, the direction descends
                rounds = 1 if rounds > 1 else 0
        report[0], report[1], report[2] = value, error, passes
