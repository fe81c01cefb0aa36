"""The active-set method of sparse maps, one instance at a time. Derivation: structures/sparse_support/README.md.

    max over p in the simplex of ⟨a, p⟩ − ½ pᵀ G p        a_i = ⟨θ, y_i⟩,  G_ij = ⟨y_i, y_j⟩ over the regularised parts

for the structures y_i of the support, which is offered one structure after the other, each the best of g = θ − μ. A
structure is the list of its parts, the regularised ones first; a part that counts twice is listed twice. A room's loop
is: find the best structure of g, `offer` it, and go on while it says so.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.triangular import dot, rotate, shift, solve, solve_transposed

# What belongs together travels as a tuple, without a name: Numba's cache on disk could not be read again once a named
# one had changed. `support` is
#   lists    (K, L) int32    the parts of each structure
#   sizes    (2, K) int64    how many of them are regularised, and how many there are
#   factor   (K, K)          R, upper triangular, with RᵀR = G + 1
#   columns  (7, K)          see below
#   facts    (4,)            see below
#   mark     (P,)            zeros
#   number   (1,) int64      how many structures there are
# and `problem` is
#   theta, g (P,)            scores, and scores less the mean of the support where they are regularised
#   ranges   (T, 2) int64    where they are: from, to
#   aligned                  whether a part is at the same place in all lists that have it
WEIGHT, TARGET, SCORE, Z_SCORE, Z_ONE, OVERLAP, WORK = range(7)
BASE, LEVEL, SCALE, GAP = range(4)
# What is said of an instance: go on; done; there is no room for another structure; rounding stops all progress.
OPEN, CONVERGED, OVERFULL, STUCK = 0, 1, 2, 3
# Part of its own length below which a structure counts as affinely dependent on the support.
DEPENDENT = 1e-9
# Weights below are rounding.
NOTHING = 1e-14
# Of the gap, for each part of a structure.
ROUNDING = 1e-14


@compiled()
def new_support(capacity, longest, parts):
    lists, sizes = np.empty((capacity, longest), np.int32), np.empty((2, capacity), np.int64)
    factor, columns, facts = np.empty((capacity, capacity)), np.empty((7, capacity)), np.empty(4)
    return lists, sizes, factor, columns, facts, np.zeros(parts), np.zeros(1, np.int64)


# --- weights --------------------------------------------------------------------------------------------------------


@compiled()
def _drop(support, k):
    """Takes structure k out of the support. What stood below row k of R is updated by it."""
    lists, sizes, factor, columns, _, _, number = support
    x, count = columns[WORK], number[0]
    last = count - 1
    for i in range(k):
        shift(factor[i], k, last)
    for j in range(k + 1, count):
        x[j] = factor[k, j]
    x_score, x_one = columns[Z_SCORE, k], columns[Z_ONE, k]
    for i in range(k + 1, count):
        row = factor[i]
        length = math.hypot(row[i], x[i])
        c, s = row[i] / length, x[i] / length
        row[i - 1] = length
        rotate(c, s, row, x, i + 1, count)
        for j in range(i - 1, last):
            factor[i - 1, j] = row[j]
        z_score, z_one = columns[Z_SCORE, i], columns[Z_ONE, i]
        columns[Z_SCORE, i - 1], x_score = c * z_score + s * x_score, c * x_score - s * z_score
        columns[Z_ONE, i - 1], x_one = c * z_one + s * x_one, c * x_one - s * z_one
    for which in (WEIGHT, SCORE, OVERLAP):
        shift(columns[which], k, last)
    for i in range(k, last):
        sizes[0, i], sizes[1, i] = sizes[0, i + 1], sizes[1, i + 1]
        for q in range(sizes[1, i]):
            lists[i, q] = lists[i + 1, q]
    number[0] = last


@compiled("reassoc")
def _common(a, b, count):
    same = 0
    for q in range(count):
        same += a[q] == b[q]
    return same


@compiled()
def _overlaps(support, new, inner, aligned):
    """G + 1 between the newcomer and the support, into column OVERLAP, and of the newcomer with itself, returned."""
    lists, sizes, _, columns, _, mark, number = support
    out, count = columns[OVERLAP], number[0]
    if aligned:
        for i in range(count):
            out[i] = 1.0 + _common(lists[i], new, min(inner, sizes[0, i]))
        return 1.0 + inner
    for q in range(inner):
        mark[new[q]] += 1.0
    for i in range(count):
        total = 1.0
        for q in range(sizes[0, i]):
            total += mark[lists[i, q]]
        out[i] = total
    own = 1.0
    for q in range(inner):
        own += mark[new[q]]
    for q in range(inner):
        mark[new[q]] = 0.0
    return own


@compiled()
def _make_room(support, own):
    """While the newcomer is an affine combination of others, its regularised parts at least, they give it their weight.

    That leaves μ as it is and gains in the free parts alone, until one of them has nothing left and is dropped. Returns
    the weight of the newcomer, and what is left of it without their span; column WORK has R⁻ᵀ of its overlaps.
    """
    _, _, factor, columns, _, _, number = support
    weight, overlap, x = columns[WEIGHT], columns[OVERLAP], columns[WORK]
    given = 0.0
    while True:
        count = number[0]
        for i in range(count):
            x[i] = overlap[i]
        solve_transposed(factor, count, x)
        rest = own - dot(x, x, count)
        if rest > DEPENDENT * own:
            return given, rest
        solve(factor, count, x)
        step, k = np.inf, count
        for i in range(count):
            if x[i] > 0 and weight[i] < step * x[i]:
                step, k = weight[i] / x[i], i
        for i in range(count):
            weight[i] = max(0.0, weight[i] - step * x[i])
        given += step
        _drop(support, k)


@compiled()
def _settle(support):
    """Moves to the best weights of the support, dropping what comes to nothing; how far it came."""
    _, _, factor, columns, facts, _, number = support
    weight, target, z_score, z_one = columns[WEIGHT], columns[TARGET], columns[Z_SCORE], columns[Z_ONE]
    way = 0.0
    while True:
        count = number[0]
        level = (dot(z_one, z_score, count) - 1) / dot(z_one, z_one, count)
        for i in range(count):
            target[i] = z_score[i] - level * z_one[i]
        solve(factor, count, target)
        step, k = 1.0, count
        for i in range(count):
            if target[i] <= NOTHING:
                share = weight[i] / (weight[i] - target[i]) if weight[i] > target[i] else 0.0
                if k == count or share < step:
                    step, k = min(share, 1.0), i
        way += step
        if k == count or count == 1:
            for i in range(count):
                weight[i] = target[i]
            facts[LEVEL] = level + 1
            return way
        for i in range(count):
            weight[i] += step * (target[i] - weight[i])
        _drop(support, k)


@compiled()
def _refresh(support, theta, g, ranges):
    """g = θ − μ where parts are regularised."""
    lists, sizes, _, columns, _, _, number = support
    for r in range(len(ranges)):
        for part in range(ranges[r, 0], ranges[r, 1]):
            g[part] = theta[part]
    for i in range(number[0]):
        weight = columns[WEIGHT, i]
        for q in range(sizes[0, i]):
            g[lists[i, q]] -= weight


@compiled()
def _gap(support, problem, new, inner, score):
    """How much better than the support a structure is under g; infinitely, if there is none."""
    facts, number = support[4], support[6]
    theta, g, _, _ = problem
    if number[0] == 0:
        return np.inf
    mean = 0.0
    for q in range(inner):
        mean += theta[new[q]] - g[new[q]]
    return score - mean - facts[LEVEL]


@compiled()
def _append(support, new, inner, size, score, aligned):
    """Takes a structure into the support, with the weight others give it; returns that."""
    lists, sizes, factor, columns, _, _, number = support
    given, rest = _make_room(support, _overlaps(support, new, inner, aligned))
    count = number[0]
    z, length = columns[WORK], math.sqrt(rest)
    for i in range(count):
        factor[i, count] = z[i]
    factor[count, count] = length
    columns[Z_SCORE, count] = (score - dot(z, columns[Z_SCORE], count)) / length
    columns[Z_ONE, count] = (1.0 - dot(z, columns[Z_ONE], count)) / length
    columns[SCORE, count], columns[WEIGHT, count] = score, given if count > 0 else 1.0
    sizes[0, count], sizes[1, count] = inner, size
    for q in range(size):
        lists[count, q] = new[q]
    number[0] = count + 1
    return given


@compiled()
def offer(support, problem, new, inner, size, tol):
    """Offers a structure, `size` parts of which `inner` are regularised; whether to go on.

    It is refused, and all is done, if its gap is within `tol` of the scale of scores; a forbidden one is passed over.
    One that scores more than its size above the first structure shows that this is in no best support, and that all
    differences of scores would be lost in the rounding of theirs to the first: the support begins anew.
    """
    columns, facts, number = support[3], support[4], support[6]
    theta, g, ranges, aligned = problem
    score, scale = 0.0, 1.0
    for q in range(size):
        score += theta[new[q]]
        scale = max(scale, abs(theta[new[q]]))
    if not score > -np.inf:
        return OPEN
    if number[0] > 0 and score - facts[BASE] > inner + 1:
        number[0] = 0
    if number[0] == 0:
        facts[BASE], facts[SCALE] = score, scale
    score -= facts[BASE]
    # the best structure of all is rounded as its own scores are, whatever those of the first one
    scale = max(scale, facts[SCALE])
    facts[GAP] = _gap(support, problem, new, inner, score)
    if facts[GAP] <= max(tol, ROUNDING * size) * scale:
        return CONVERGED
    if number[0] == columns.shape[1]:
        return OVERFULL
    facts[SCALE] = scale
    way = _append(support, new, inner, size, score, aligned)
    way += _settle(support)
    _refresh(support, theta, g, ranges)
    return OPEN if way > 0 else STUCK


@compiled()
def begin(support, problem, starts, new, tol):
    """Empties the support, and offers it structures (S, L) to start from."""
    number = support[6]
    number[0] = 0
    for k in range(len(starts)):
        inner, size = read(starts[k], problem[2], len(problem[0]), new)
        if size >= 0:
            offer(support, problem, new, inner, size, tol)


@compiled()
def resume(support, problem):
    """Goes on with the structures of a support at other scores: to their best weights, from the former ones."""
    lists, sizes, factor, columns, facts, _, number = support
    theta, g, ranges, _ = problem
    facts[SCALE] = 1.0
    for i in range(number[0]):
        score = 0.0
        for q in range(sizes[1, i]):
            score += theta[lists[i, q]]
            if i == 0:
                facts[SCALE] = max(facts[SCALE], abs(theta[lists[i, q]]))
        if i == 0:
            facts[BASE] = score
        columns[SCORE, i] = columns[Z_SCORE, i] = score - facts[BASE]
    solve_transposed(factor, number[0], columns[Z_SCORE])
    _settle(support)
    _refresh(support, theta, g, ranges)


@compiled()
def read(start, ranges, parts, new):
    """One structure from a list, in order, regularised parts first: how many, and how many in all; −1 if it is none."""
    if len(start) > 0 and start[0] < 0:
        return 0, -1
    inner = _pick(start, ranges, parts, True, 0, new)
    return inner, _pick(start, ranges, parts, False, inner, new)


@compiled()
def _pick(start, ranges, parts, wanted, first, new):
    """Writes the parts that are regularised, or are not, in order behind the `first`; how many there are then."""
    size = first
    for q in range(len(start)):
        part = start[q]
        if part < parts and _is_within(part, ranges) == wanted:
            place = size
            while place > first and new[place - 1] > part:
                new[place] = new[place - 1]
                place -= 1
            new[place] = part
            size += 1
    return size


@compiled()
def _is_within(part, ranges):
    inside = False
    for r in range(len(ranges)):
        inside |= ranges[r, 0] <= part < ranges[r, 1]
    return inside


@compiled()
def copy(values, out):
    """Without the checks of a slice assignment, which are slow to compile."""
    for i in range(values.size):
        out[i] = values[i]
