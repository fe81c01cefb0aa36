"""Relaxed matchings on the CPU: the entropic one, the nearest one, and their derivatives. Derivation: ../README.md.

Instances are turned so that the lines of a table (m, n), m ≥ n, are items of the larger side. All is computed in
float64.
"""

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.structures.matching.kernel_numba.laplacian import eliminate_lines, factorise, release_items, solve
from structmax.structures.matching.kernel_numba.newton import descend
from structmax.structures.matching.kernel_numba.support import keep_usable

# How often the lines may be solved for a projection: a few dozen are usual.
MOST_PASSES = 2000
# How often the support of a projection is looked at anew.
POLISHINGS = 6
# A sum is held at 1 if it is nearer to 1 than this many units of its dtype, or this many times the tolerance.
UNITS_FROM_ONE, TOLERANCES_FROM_ONE = 1024, 4

# What the scores of an instance are: some −inf, NaN or +inf among them, or so many −inf that there is no matching.
SOUND, FORBIDDEN, BROKEN, INFEASIBLE = 0, 1, 2, 3


@compiled()
def _load(scores, r, c, temperature, table):
    """Lines of the larger side, over the temperature. Returns what they are, the least that is finite, the greatest."""
    broken, forbidden, low, high = 0, 0, np.inf, -np.inf
    for i in range(r):
        for j in range(c):
            s = np.float64(scores[i, j])
            broken += not s < np.inf
            forbidden += s == -np.inf
            high = max(high, s)
            low = min(low, s if s > -np.inf else np.inf)
            if r <= c:
                table[j, i] = s / temperature
            else:
                table[i, j] = s / temperature
    return BROKEN if broken else FORBIDDEN if forbidden else SOUND, low / temperature, high / temperature


@compiled()
def _store(p, r, c, out):
    for i in range(r):
        for j in range(c):
            out[i, j] = p[j, i] if r <= c else p[i, j]


@compiled()
def _fill(out, r, c, value):
    """`value` for each pair, 0 outside."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = value if i < r and j < c else 0.0


@compiled()
def _solve_sums(weights, lines, held_lines, held, zeros, line_sums, matrix, ground, pivot, a, b):
    """a (n), given as the sums of items, and b (m): what D ∘ (a ⊕ b) should be to have these sums where held."""
    m, n = weights.shape
    eliminate_lines(weights, lines, held_lines, matrix, ground, pivot)
    for j in range(m):
        b[j] = line_sums[j] / lines[j] if held_lines[j] and lines[j] > 0 else 0.0
        for i in range(n):
            a[i] -= weights[j, i] * b[j]
    release_items(held, zeros, matrix, ground, a)
    factorise(matrix, ground, pivot)
    solve(matrix, pivot, a)
    for j in range(m):
        if held_lines[j] and lines[j] > 0:
            pull = 0.0
            for i in range(n):
                pull += weights[j, i] * a[i]
            b[j] -= pull / lines[j]


# --- slices of the batch -------------------------------------------------------------------------------------------
# `tables` and `points` hold the (m, n) entries of an instance in the first m n of a row.


@kernel()
def _read(start, stop, scores, rows, columns, partial, temperature, tables, kinds, reports):
    for b in range(start, stop):
        r, c = rows[b], columns[b]
        m, n = max(r, c), min(r, c)
        kinds[b], low, high = _load(scores[b], r, c, temperature, tables[b, : m * n].reshape(m, n))
        if partial:
            # beside staying single
            low, high = min(low, 0.0), max(high, 0.0)
        reports[b, 3] = max(high - low, 0.0)


@kernel()
def _keep_usable(start, stop, rows, columns, tables, kinds):
    for b in range(start, stop):
        m, n = max(rows[b], columns[b]), min(rows[b], columns[b])
        if kinds[b] == FORBIDDEN and not keep_usable(tables[b, : m * n].reshape(m, n)):
            kinds[b] = INFEASIBLE


@kernel()
def _polish(start, stop, kinds, rows, columns, partial, points, duals, reports):
    """The exact projection, once its support is known: p + a ⊕ b on the support, where sums that are held become 1.

    What is as small as rounding leaves the support.
    """
    for index in range(start, stop):
        r, c = rows[index], columns[index]
        m, n = max(r, c), min(r, c)
        if n == 0 or kinds[index] == BROKEN or kinds[index] == INFEASIBLE:
            continue
        p, u, v = points[index, : m * n].reshape(m, n), duals[index, 0], duals[index, 1]
        rounding = reports[index, 3]
        weights, matrix, vectors, flags = (
            np.empty((m, n)),
            np.empty((n, n)),
            np.empty((7, m)),
            np.empty((2, m), np.bool_),
        )
        lines, missing, b, a = vectors[0], vectors[1], vectors[2], vectors[3, :n]
        ground, pivot, zeros = vectors[4, :n], vectors[5, :n], vectors[6, :n]
        held_lines, held = flags[0], flags[1, :n]
        for j in range(m):
            held_lines[j] = (not partial and r == c) or v[j] > 0
        for i in range(n):
            held[i] = not partial or u[i] > 0
            zeros[i] = 0.0
        for polishing in range(POLISHINGS):
            left = 0
            for i in range(n):
                a[i] = 1.0
            for j in range(m):
                lines[j], missing[j] = 0.0, 1.0
                for i in range(n):
                    inside = p[j, i] > rounding
                    left += p[j, i] != 0 and not inside
                    p[j, i] = p[j, i] if inside else 0.0
                    weights[j, i] = 1.0 if inside else 0.0
                    lines[j] += weights[j, i]
                    missing[j] -= p[j, i]
                    a[i] -= p[j, i]
            if polishing >= 2 and left == 0:
                break
            _solve_sums(weights, lines, held_lines, held, zeros, missing, matrix, ground, pivot, a, b)
            for j in range(m):
                for i in range(n):
                    p[j, i] += a[i] + b[j] if weights[j, i] > 0 else 0.0


@kernel()
def _write(start, stop, kinds, rows, columns, points, out):
    for b in range(start, stop):
        r, c = rows[b], columns[b]
        m, n = max(r, c), min(r, c)
        _fill(out[b], r, c, np.nan if kinds[b] == BROKEN else 0.0)
        if kinds[b] == SOUND or kinds[b] == FORBIDDEN:
            _store(points[b, : m * n].reshape(m, n), r, c, out[b])


@kernel()
def _derivatives(start, stop, parts, x, rows, columns, partial, sparse, near_one, out):
    """K x for the entropic points, J x for the nearest ones."""
    for index in range(start, stop):
        r, c = rows[index], columns[index]
        m, n = max(r, c), min(r, c)
        weights, right, matrix = np.empty((m, n)), np.empty((m, n)), np.empty((n, n))
        kind, _, _ = _load(parts[index], r, c, 1.0, weights)
        _load(x[index], r, c, 1.0, right)
        _fill(out[index], r, c, np.nan if kind == BROKEN else 0.0)
        if n == 0 or kind == BROKEN:
            continue
        vectors, flags = np.zeros((8, m)), np.empty((2, m), np.bool_)
        sums, line_sums, lines, a, b = vectors[0, :n], vectors[1], vectors[2], vectors[3, :n], vectors[4]
        ground, pivot, zeros = vectors[5, :n], vectors[6, :n], vectors[7, :n]
        held_lines, held = flags[0], flags[1, :n]
        for j in range(m):
            total = 0.0
            for i in range(n):
                p = weights[j, i]
                total += p
                sums[i] += p
                if sparse:
                    weights[j, i] = 1.0 if p > 0 else 0.0
                    right[j, i] = right[j, i] if p > 0 else 0.0
                lines[j] += weights[j, i]
                line_sums[j] += right[j, i]
                a[i] += right[j, i]
            held_lines[j] = (not partial and r == c) or total > 1 - near_one
        for i in range(n):
            held[i] = not partial or sums[i] > 1 - near_one
        _solve_sums(weights, lines, held_lines, held, zeros, line_sums, matrix, ground, pivot, a, b)
        for j in range(m):
            for i in range(n):
                shift = a[i] + b[j]
                weights[j, i] = (right[j, i] - shift if weights[j, i] > 0 else 0.0) if sparse else shift
        _store(weights, r, c, out[index])


# --- the questions -------------------------------------------------------------------------------------------------


class _Points:
    """Points of a batch, all but polished: what the two questions share."""

    def __init__(self, scores: Tensor, rows: Tensor, columns: Tensor, partial: bool, sparse: bool, *numbers: float):
        temperature, tol, max_iter = numbers
        B, N, M = scores.shape
        self.scores, self.sizes, self.partial = scores, (rows.numpy(), columns.numpy()), bool(partial)
        self.points, self.duals, self.reports = np.empty((B, N * M)), np.empty((B, 2, max(N, M))), np.zeros((B, 4))
        self.kinds = np.empty(B, np.int8)
        tables = np.empty((B, N * M))
        over_rows(
            _read,
            B,
            scores.numel(),
            scores.numpy(),
            *self.sizes,
            self.partial,
            float(temperature),
            tables,
            self.kinds,
            self.reports,
        )
        if not partial and (self.kinds == FORBIDDEN).any():
            over_rows(_keep_usable, B, _work(scores), *self.sizes, tables, self.kinds)
        how = (self.partial, sparse, float(tol), int(max_iter))
        solvable = (np.minimum(*self.sizes) > 0) & (self.kinds != BROKEN) & (self.kinds != INFEASIBLE)
        self.reports[solvable, 1] = np.inf
        state = (self.points, self.duals, self.reports)
        over_rows(descend, B, _work(scores), tables, *self.sizes, *how, *state)

    def polish(self) -> None:
        state = (self.points, self.duals, self.reports)
        over_rows(_polish, len(self.kinds), _work(self.scores) // 8, self.kinds, *self.sizes, self.partial, *state)

    def parts(self) -> Tensor:
        out = torch.empty_like(self.scores)
        over_rows(_write, len(self.kinds), out.numel(), self.kinds, *self.sizes, self.points, out.numpy())
        return out


def _work(scores: Tensor) -> int:
    """Element visits: some dozen passes, and as many factorisations."""
    return 16 * scores.numel() * (1 + min(scores.shape[1:]) // 4)


def _derivative(
    parts: Tensor, x: Tensor, rows: Tensor, columns: Tensor, partial: bool, sparse: bool, tol: float
) -> Tensor:
    out = torch.empty_like(x)
    near_one = max(UNITS_FROM_ONE * torch.finfo(parts.dtype).eps, TOLERANCES_FROM_ONE * tol)
    tensors = (parts.numpy(), x.numpy(), rows.numpy(), columns.numpy(), bool(partial), sparse, near_one, out.numpy())
    over_rows(_derivatives, len(x), _work(x) // 8, *tensors)
    return out


def project(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    found = _Points(scores, rows, columns, partial, True, 1.0, 0.0, MOST_PASSES)
    found.polish()
    return found.parts()


def project_jvp(parts: Tensor, tangent: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    return _derivative(parts, tangent, rows, columns, partial, True, 0.0)


@returns("parts", "value", "value", "value:int32", "value:bool")
def sinkhorn(
    scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, temperature: float, tol: float, max_iter: int
) -> tuple[Tensor, ...]:
    found = _Points(scores, rows, columns, partial, False, temperature, tol, max_iter)
    value, error, passes, rounding = found.reports.T
    broken, infeasible = found.kinds == BROKEN, found.kinds == INFEASIBLE
    value = np.where(broken, np.nan, np.where(infeasible, -np.inf, temperature * value))
    converged = ~broken & (error <= np.maximum(tol, rounding))
    numbers = (torch.as_tensor(t).to(scores.dtype) for t in (value, np.where(broken, np.nan, error)))
    return found.parts(), *numbers, torch.as_tensor(passes).int(), torch.as_tensor(converged)


@returns("parts")
def potentials(parts: Tensor, x: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, tol: float) -> Tensor:
    return _derivative(parts, x, rows, columns, partial, False, tol)
