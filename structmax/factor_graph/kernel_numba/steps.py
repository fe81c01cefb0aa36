"""The solver of a factor graph on the CPU: alternating directions between factors and variables, and jumps to faces.

A copy is the literal's value: of a negated variable it is 1 − u. Arrays come in tuples:

    graph    as `layout.Arrays` lists them, and the weights of the variables in the norm (n,)
    problem  theta (B, n), phi (B, m), low (B, n), high (B, n), lowest (B, E), highest (B, E), vacuous (B, F): scores of
             variables and of factors, bounds of variables and of copies, factors that say nothing
    state    u (B, n), w (B, E), x (B, E), rho (B,), eta (B, E), tau (B, F), nu (B, m): variables, multipliers over the
             penalty, copies, penalty, what copies are projected from, multipliers of sums, the factors' own parts
    faces    mode (B, F), free (B, E), rank (B, O), place (O,), directions (B, D), slope (B, E), lift (B, E): how copies
             move, for factors of logic and for tables and structures; how a pair's part moves with them; what own
             scores are worth
    tables, members  see table.py

`rows` says which instances are meant. Derivation: ../README.md.
"""

import numpy as np

from structmax.factor_graph.kernel_numba.faces import keep_normal, meet, scatter
from structmax.factor_graph.kernel_numba.local import clipped, project_or_out, project_pair, project_slab
from structmax.factor_graph.kernel_numba.table import new_scratch, project_table
from structmax.numerics.kernel_numba import compiled, kernel, over_rows

OR_OUT, PAIR, STRUCTURE, TABLE = 1, 2, 3, 4
RUNNING, CONVERGED, INFEASIBLE = 0, 1, 2
# Over-relaxation: how much of the factors' answer counts.
RELAXED = 1.6
# The penalty is changed where one residual is this many times the other. It is looked at after each so many steps, for
# so many steps, and then more and more rarely.
UNBALANCED, PATIENCE, EARLY = 5.0, 8, 640


@compiled()
def _literal(value, sign):
    return value if sign > 0 else 1 - value


@compiled()
def _project(graph, phi, low, high, vacuous, rho, eta, tau, nu, x, mode, free, slope):
    """The copies of every factor of logic nearest to eta."""
    weight, start = graph[2], graph[3]
    kind, least, most, part = graph[6:10]
    for f in range(len(kind)):
        if kind[f] == STRUCTURE or kind[f] == TABLE:
            continue
        here = slice(start[f], start[f + 1])
        point = eta[here], low[here], high[here]
        if vacuous[f]:
            mode[f], _ = project_slab(*point, weight[here], -np.inf, np.inf, 0.0, x[here], free[here])
        elif kind[f] == PAIR:
            mode[f], nu[part[f]] = project_pair(*point, phi[part[f]] / rho, x[here], free[here], slope[here])
        elif kind[f] == OR_OUT:
            mode[f], tau[f] = project_or_out(*point, weight[here], tau[f], x[here], free[here])
        else:
            mode[f], tau[f] = project_slab(*point, weight[here], least[f], most[f], tau[f], x[here], free[here])


@compiled()
def _project_tables(b, graph, tables, members, problem, rho, scratch, eta, nu, x, free):
    """The copies of every table nearest to eta; whether there are any."""
    start, number = graph[3], tables[0]
    _, phi, _, _, low, high, vacuous = problem
    lists, sizes, factor, columns, facts, counts = members
    possible = True
    for t in range(len(number)):
        f = number[t]
        here = slice(start[f], start[f + 1])
        if not vacuous[b, f]:
            support = lists[b, t], sizes[b, t], factor[b, t], columns[b, t], facts[b, t], scratch[3], counts[b, t]
            point = eta[here], low[b, here], high[b, here]
            possible &= project_table(t, tables, support, point, phi[b], rho, scratch, x[here], nu, free[here])
    return possible


@compiled()
def _average(graph, theta, low, high, u, w, x, rho, sums):
    """Variables and multipliers from the copies; how far these are apart, and how far the variables moved."""
    variable, sign, degree, norm = graph[0], graph[1], graph[5], graph[10]
    sums[:] = 0.0
    for e in range(len(x)):
        i = variable[e]
        w[e] += RELAXED * x[e] + (1 - RELAXED) * _literal(u[i], sign[e])
        sums[i] += _literal(w[e], sign[e])
    moved = 0.0
    for i in range(len(u)):
        if low[i] == high[i]:
            new = low[i]
        elif degree[i] > 0:
            new = (theta[i] + rho * sums[i]) / (norm[i] + rho * degree[i])
        else:
            new = clipped(theta[i] / norm[i], low[i], high[i])
        moved = max(moved, abs(new - u[i]))
        u[i] = new
    apart = 0.0
    for e in range(len(x)):
        here = _literal(u[variable[e]], sign[e])
        w[e] -= here
        apart = max(apart, abs(x[e] - here))
    return apart, moved


@compiled()
def _penalty_change(done, residuals, tolerance):
    """By what to multiply the penalty after so many steps."""
    if done == 0 or done % PATIENCE != 0 or (done > EARLY and done & (done - 1) != 0):
        return 1.0
    # in units of what is asked for
    primal, dual = residuals[0] / tolerance[0], residuals[1] / tolerance[1]
    return 2.0 if primal > UNBALANCED * dual else 0.5 if dual > UNBALANCED * primal else 1.0


@kernel()
def _descend(
    first, last, rows, graph, tables, members, problem, state, faces, tolerance, count, iterations, residuals, status
):
    variable, sign = graph[:2]
    theta, phi, low, high, lowest, highest, vacuous = problem
    u, w, x, rho, eta, tau, nu = state
    mode, free, slope = faces[0], faces[1], faces[5]
    sums, scratch = np.empty(u.shape[1]), new_scratch(tables)
    for k in range(first, last):
        b = rows[k]
        for _ in range(count):
            change = _penalty_change(iterations[b], residuals[b], tolerance[b])
            rho[b] *= change
            for e in range(len(variable)):
                w[b, e] /= change
                eta[b, e] = _literal(u[b, variable[e]], sign[e]) - w[b, e]
            _project(
                graph, phi[b], lowest[b], highest[b], vacuous[b], rho[b], eta[b], tau[b], nu[b], x[b],
                mode[b], free[b], slope[b],
            )  # fmt: skip
            if not _project_tables(b, graph, tables, members, problem, rho[b], scratch, eta[b], nu[b], x[b], free[b]):
                status[b] = INFEASIBLE
                break
            apart, moved = _average(graph, theta[b], low[b], high[b], u[b], w[b], x[b], rho[b], sums)
            iterations[b] += 1
            residuals[b, 0], residuals[b, 1] = apart, rho[b] * moved
            status[b] = CONVERGED if apart <= tolerance[b, 0] and rho[b] * moved <= tolerance[b, 1] else RUNNING
            if status[b] == CONVERGED:
                break


@kernel()
def _jump(first, last, rows, graph, problem, state, faces, steps):
    variable, sign, start, degree, kind, part = graph[0], graph[1], graph[3], graph[5], graph[6], graph[9]
    theta, phi, low, high = problem[:4]
    u, w, x, rho = state[:4]
    mode, free, rank, place, directions, slope, lift = faces
    E, n = len(variable), len(degree)
    scratch, normal, shift = np.empty((4, E)), np.empty(E), np.empty(E)
    goal, point = np.empty(n), np.empty(n)
    for k in range(first, last):
        b = rows[k]
        face = mode[b], free[b], rank[b], place, directions[b]
        held = low[b] == high[b]
        for f in range(len(kind)):
            if kind[f] == PAIR:
                for e in range(start[f], start[f + 1]):
                    lift[b, e] = slope[b, e] * phi[b, part[f]]
        scatter(variable, sign, lift[b], goal)
        for i in range(n):
            goal[i] += theta[b, i]
        for e in range(E):
            # a literal's constant, and a held variable's value, are no unknowns
            known = _literal(low[b, variable[e]] if held[variable[e]] else 0.0, sign[e])
            scratch[0, e] = x[b, e] - known
            scratch[1, e] = lift[b, e] - rho[b] * w[b, e]
        keep_normal(graph, face, scratch[0], shift)
        keep_normal(graph, face, scratch[1], normal)
        meet(graph, face, held, goal, shift, normal, point, scratch, steps)
        if not np.isfinite(point).all():
            continue
        for i in range(n):
            if not held[i] and degree[i] > 0:
                u[b, i] = point[i]
        for e in range(E):
            w[b, e] = (lift[b, e] - normal[e]) / rho[b]


@kernel()
def _along_faces(first, last, graph, held, faces, goal, out, steps):
    mode, free, rank, place, directions = faces[:5]
    E = len(graph[0])
    scratch, normal, shift = np.empty((4, E)), np.empty(E), np.zeros(E)
    for b in range(first, last):
        face = mode[b], free[b], rank[b], place, directions[b]
        normal[:] = 0.0
        meet(graph, face, held[b], goal[b], shift, normal, out[b], scratch, steps)


# What an entry of a copy costs in a step, and how many steps of conjugate gradients a jump takes, about.
VISITS, CONJUGATE = 16, 20


def descend(rows, graph, tables, members, problem, state, faces, tolerance, count, iterations, residuals, status):
    """`count` steps of alternating directions, fewer where an instance converges to its tolerance (B, 2)."""
    work = VISITS * len(rows) * len(graph[0]) * count
    arguments = graph, tables, members, problem, state, faces, tolerance, count, iterations, residuals, status
    over_rows(_descend, len(rows), work, rows, *arguments)


def jump(rows, graph, problem, state, faces, steps):
    """To the point where all copies meet on the affine hulls of the faces they lie on, and its multipliers."""
    work = VISITS * len(rows) * len(graph[0]) * CONJUGATE
    over_rows(_jump, len(rows), work, rows, graph, problem, state, faces, steps)


def along_faces(graph, held, faces, goal, steps):
    """The point nearest to goal / norm (B, n), in that norm, among the directions that all faces share."""
    out = np.empty_like(goal)
    work = VISITS * len(goal) * len(graph[0]) * CONJUGATE
    over_rows(_along_faces, len(goal), work, graph, held, faces, goal, out, steps)
    return out
