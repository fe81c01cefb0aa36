"""On the faces where the factors' copies lie: the nearest point that all of them share, by conjugate gradients.

The directions of a factor's face are the range of an orthogonal projector J_f; its normals are that of I − J_f. The
point u nearest to goal / norm, in the weighted norm and with every copy on the affine hull of its face, is
u = (goal − Σ normals) / norm, where the normals solve a linear system with a symmetric positive operator. Derivation:
../README.md.
"""

from structmax.factor_graph.kernel_numba.local import BALANCED, HELD, ROPED, TIED
from structmax.numerics.kernel_numba import compiled

# Of the first residual, in norm: what rounding leaves.
EXACT = 1e-15
# A direction of less curvature than this has none: hulls that do not meet pull along it for ever.
FLAT = 1e-13


@compiled("contract", "reassoc")
def _along(directions, v, out):
    """Q Qᵀ v, for orthonormal rows of directions (r, k)."""
    out[:] = 0.0
    for r in range(len(directions)):
        row = directions[r]
        dot = 0.0
        for i in range(len(v)):
            dot += row[i] * v[i]
        for i in range(len(v)):
            out[i] += dot * row[i]


@compiled()
def move_along(mode, free, weight, v, out):
    """J_f v for one factor of logic."""
    for i in range(len(v)):
        out[i] = v[i] if free[i] != HELD else 0.0
    if mode == BALANCED:
        dot, norm = 0.0, 0.0
        for i in range(len(v)):
            if free[i] != HELD:
                dot += weight[i] * v[i]
                norm += weight[i] * weight[i]
        if norm > 0:
            for i in range(len(v)):
                if free[i] != HELD:
                    out[i] -= weight[i] * (dot / norm)
    elif mode == TIED:
        total, count = 0.0, 0
        for i in range(len(v)):
            if free[i] == ROPED:
                total += v[i]
                count += 1
        if count > 0:
            for i in range(len(v)):
                if free[i] == ROPED:
                    out[i] = total / count


@compiled()
def keep_normal(graph, face, v, out):
    """(I − J_f) v for every factor f."""
    weight, start, spanned = graph[2:5]
    mode, free, rank, place, directions = face
    for f in range(len(spanned)):
        here = slice(start[f], start[f + 1])
        o = spanned[f]
        if o < 0:
            move_along(mode[f], free[here], weight[here], v[here], out[here])
        else:
            size = start[f + 1] - start[f]
            block = directions[place[o] : place[o] + rank[o] * size].reshape(rank[o], size)
            _along(block, v[here], out[here])
        for e in range(start[f], start[f + 1]):
            out[e] = v[e] - out[e]


@compiled()
def gather(variable, sign, held, per_variable, per_copy):
    """Each copy's entry, with the literal's sign; 0 for a variable that is held."""
    for e in range(len(variable)):
        i = variable[e]
        per_copy[e] = 0.0 if held[i] else sign[e] * per_variable[i]


@compiled()
def scatter(variable, sign, per_copy, per_variable):
    """The sum over copies, with the literal's sign."""
    per_variable[:] = 0.0
    for e in range(len(variable)):
        per_variable[variable[e]] += sign[e] * per_copy[e]


@compiled("contract", "reassoc")
def _dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compiled()
def meet(graph, face, held, goal, shift, normal, u, scratch, most):
    """Solves for `normal` (E,), given as a guess, and u (n,): norm u = goal − Σ normal with (I − J_f) u_f = shift_f.

    `shift` (E,) lies among the normals. `held` (n,) are variables that do not move.
    """
    variable, sign, norm = graph[0], graph[1], graph[10]
    residual, search, image, spread = scratch
    scatter(variable, sign, normal, u)
    for i in range(len(goal)):
        u[i] = (goal[i] - u[i]) / norm[i]
    gather(variable, sign, held, u, spread)
    keep_normal(graph, face, spread, residual)
    for e in range(len(residual)):
        residual[e] -= shift[e]
        search[e] = residual[e]
    size = _dot(residual, residual)
    # what cannot be told from rounding: the goal itself has no more digits
    enough = EXACT * EXACT * (_dot(goal, goal) + _dot(shift, shift) + size)
    for _ in range(most):
        if size <= enough:
            break
        scatter(variable, sign, search, u)
        for i in range(len(goal)):
            u[i] /= norm[i]
        gather(variable, sign, held, u, spread)
        keep_normal(graph, face, spread, image)
        curvature = _dot(search, image)
        if not curvature > FLAT * _dot(search, search):
            break
        step = size / curvature
        for e in range(len(search)):
            normal[e] += step * search[e]
            residual[e] -= step * image[e]
        before, size = size, _dot(residual, residual)
        for e in range(len(search)):
            search[e] = residual[e] + size / before * search[e]
    scatter(variable, sign, normal, u)
    for i in range(len(goal)):
        u[i] = (goal[i] - u[i]) / norm[i]
