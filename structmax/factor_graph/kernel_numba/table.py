"""Tables: the nearest mean of joint choices, by an active set that is kept from step to step; and the face it lies on.

A joint choice has a state of each group, which are copies of variables, and one part of the factor's own. Arrays come
in tuples:

    tables   as `layout.Tables` lists them
    members  lists (B, T, K, L + 1), sizes (B, T, 2, K), factor (B, T, K, K), columns (B, T, 7, K), facts (B, T, 4),
             number (B, T, 1): the support of each table, as numerics/kernel_numba/active_set.py has it
    moves    inverse (B, D), how the weights of a support move with the copies, in rows as long as the directions; and
             chosen (B, T, K), which of all free scores belongs to each choice of a support

Derivation: ../README.md.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.active_set import OPEN, WEIGHT, offer, resume
from structmax.numerics.kernel_numba.triangular import dot

# Stands for −inf among the factors' own scores, as the solver knows it.
FORBIDDEN = -1e15
# Of the projections, relative to the largest score of a choice.
TOLERANCE = 1e-11
# More choices than an active set ever looks at.
OFFERS = 10000


@compiled()
def new_scratch(tables):
    """For one table at a time: scores and their gradient, a choice, what is regularised, and marks nobody uses."""
    states, own = tables[3:]
    length = len(own) + (states.max() + 1 if states.size > 0 else 0)
    return np.empty((2, length)), np.empty(states.shape[1] + 1, np.int32), np.zeros((1, 2), np.int64), np.zeros(1)


@compiled()
def _scores(states, own, groups, point, phi, rho, theta):
    """Of states, and of joint choices behind them; −inf where a state is off, or a choice lacks a state that is on."""
    eta, low, high = point
    size, needed = len(eta), 0
    for i in range(size):
        theta[i] = eta[i] if high[i] > 0 else -np.inf
        needed += low[i] > 0
    for j in range(len(own)):
        score = phi[own[j]]
        there = 0
        for q in range(groups):
            there += low[states[j, q]] > 0
        theta[size + j] = score / rho if score > FORBIDDEN and there == needed else -np.inf


@compiled()
def _best(states, groups, size, g):
    best, most = -1, -np.inf
    for j in range(len(states)):
        score = g[size + j]
        for q in range(groups):
            score += g[states[j, q]]
        if score > most:
            best, most = j, score
    return best


@compiled()
def project_table(t, tables, support, point, phi, rho, scratch, x, nu, free):
    """The mean of choices nearest to eta, point[0], in its states and best in its own scores; whether there is one."""
    _, groups, begin, states, own = tables
    here = slice(begin[t], begin[t + 1])
    states, own, groups, size = states[here], own[here], groups[t], len(x)
    both, new, ranges, _ = scratch
    theta, g = both[0], both[1]
    ranges[0, 1] = size
    problem = theta, g, ranges, True
    lists, columns, number = support[0], support[3], support[6]
    _scores(states, own, groups, point, phi, rho, theta)
    for p in range(size + len(own)):
        g[p] = theta[p]
    if number[0] > 0:
        resume(support, problem)
    for _ in range(OFFERS):
        best = _best(states, groups, size, g)
        if best < 0:
            break
        for q in range(groups):
            new[q] = states[best, q]
        new[groups] = size + best
        if offer(support, problem, new, groups, groups + 1, TOLERANCE) != OPEN:
            break
    x[:] = 0.0
    for j in range(len(own)):
        nu[own[j]] = 0.0
    for i in range(number[0]):
        weight = columns[WEIGHT, i]
        for q in range(groups):
            x[lists[i, q]] += weight
        nu[own[lists[i, groups] - size]] += weight
    for e in range(size):
        free[e] = x[e] > 0
    return number[0] > 0


# --- faces ----------------------------------------------------------------------------------------------------------


@compiled()
def _orthonormal(lists, count, groups, rows, triangle):
    """Differences of the first choice to the others, as orthonormal rows; triangle (r, r) has them as sums of those."""
    for i in range(count - 1):
        row = rows[i]
        row[:] = 0.0
        for q in range(groups):
            row[lists[i + 1, q]] += 1.0
            row[lists[0, q]] -= 1.0
        triangle[i, : i + 1] = 0.0
        # twice is enough
        for _ in range(2):
            for j in range(i):
                along = dot(rows[j], row, len(row))
                triangle[i, j] += along
                for e in range(len(row)):
                    row[e] -= along * rows[j, e]
        length = np.sqrt(dot(row, row, len(row)))
        triangle[i, i] = length
        for e in range(len(row)):
            row[e] /= length


@compiled()
def _invert(rows, triangle, inverse):
    """Weights from a move along the face: with D = L Q, rows of differences, the rows of inverse are L⁻ᵀ Q."""
    rank, size = rows.shape
    for i in range(rank - 1, -1, -1):
        for e in range(size):
            inverse[i, e] = rows[i, e]
        for j in range(i + 1, rank):
            for e in range(size):
                inverse[i, e] -= triangle[j, i] * inverse[j, e]
        for e in range(size):
            inverse[i, e] /= triangle[i, i]


@kernel()
def _find_faces(first, last, rows, start, tables, members, rank, place, directions, moves):
    number, groups = tables[:2]
    lists, _, _, _, _, counts = members
    inverse, chosen = moves
    begin, own = tables[2], tables[4]
    triangle = np.empty((lists.shape[2], lists.shape[2]))
    for k in range(first, last):
        b = rows[k]
        for t in range(len(number)):
            size = start[number[t] + 1] - start[number[t]]
            rank[b, t] = max(counts[b, t, 0] - 1, 0)
            here = slice(place[t], place[t] + rank[b, t] * size)
            across = directions[b, here].reshape(rank[b, t], size)
            _orthonormal(lists[b, t], rank[b, t] + 1, groups[t], across, triangle)
            _invert(across, triangle, inverse[b, here].reshape(rank[b, t], size))
            for i in range(counts[b, t, 0]):
                chosen[b, t, i] = own[begin[t] + lists[b, t, i, groups[t]] - size]


@kernel()
def _pull(first, last, start, number, rank, place, moves, free, out):
    inverse, chosen = moves
    for b in range(first, last):
        for t in range(len(number)):
            copies = out[b, start[number[t]] : start[number[t] + 1]]
            size = len(copies)
            copies[:] = 0.0
            for i in range(rank[b, t]):
                gain = free[b, chosen[b, t, i + 1]] - free[b, chosen[b, t, 0]]
                for e in range(size):
                    copies[e] += gain * inverse[b, place[t] + i * size + e]


@kernel()
def _push(first, last, start, number, rank, place, moves, moved, out):
    inverse, chosen = moves
    for b in range(first, last):
        for t in range(len(number)):
            copies = moved[b, start[number[t]] : start[number[t] + 1]]
            size = len(copies)
            for i in range(rank[b, t]):
                weight = 0.0
                for e in range(size):
                    weight += copies[e] * inverse[b, place[t] + i * size + e]
                out[b, chosen[b, t, i + 1]] += weight
                out[b, chosen[b, t, 0]] -= weight


def find_faces(rows, start, tables, members, rank, place, directions, moves):
    """Ranks (B, T), directions (B, D) from place (T,) on, and moves, for the supports of these rows."""
    # every row of a face is compared with every other
    work = len(rows) * directions.shape[1] * members[0].shape[2]
    over_rows(_find_faces, len(rows), work, rows, start, tables, members, rank, place, directions, moves)


def pull(start, number, rank, place, moves, free, out):
    """What scores (B, m) of the choices are worth as scores of the copies, along the faces: into out (B, E)."""
    over_rows(_pull, len(out), moves[0].size, start, number, rank, place, moves, free, out)


def push(start, number, rank, place, moves, moved, out):
    """How the choices move with copies (B, E) that move along the faces: added to out (B, m)."""
    over_rows(_push, len(out), moves[0].size, start, number, rank, place, moves, moved, out)
