"""The sparse map of matchings: the assignment problem inside the active-set method, all of it compiled."""

import numpy as np
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.active_set import OPEN, begin, new_support, offer
from structmax.numerics.kernel_numba.active_set_batch import solve_rows, write, write_none
from structmax.structures.matching.kernel_numba.assignment import NONE, assign, workspace


@compiled()
def _load(scores, r, c, theta, g):
    """Scores of r rows and c columns, 0 elsewhere, into both; whether all are numbers below inf."""
    sound = True
    width = scores.shape[1]
    for i in range(scores.shape[0]):
        for j in range(width):
            part = i * width + j
            theta[part] = g[part] = scores[i, j] if i < r and j < c else 0.0
            sound &= theta[part] < np.inf
    return sound


@compiled()
def _turn(table, r, c, out):
    for i in range(r):
        for j in range(c):
            out[j, i] = table[i, j]


@compiled()
def _list_parts(column, n, width, is_turned, new):
    """The pairs of a matching, by the smaller side; how many there are."""
    size = 0
    for i in range(n):
        j = column[i]
        if j != NONE:
            new[size] = j * width + i if is_turned else i * width + j
            size += 1
    return size


@kernel()
def _sparsemap(first, stop, scores, rows, columns, partial, ranges, start, longest, max_iter, tol, out):
    N, M = scores.shape[1:]
    parts, capacity = N * M, out[1].shape[1]
    work, turned = workspace(min(N, M), max(N, M)), np.empty((M, N))
    theta, g, new = np.empty(parts), np.empty(parts), np.empty(longest, np.int32)
    table = g.reshape(N, M)
    support = new_support(capacity, longest, parts)
    for b in range(first, stop):
        r, c = rows[b], columns[b]
        if not _load(scores[b], r, c, theta, g):
            write_none(np.nan, b, out)
            continue
        is_turned = r > c
        problem = theta, g, ranges, not partial and not is_turned
        begin(support, problem, start[b], new, tol)
        calls, state = 0, OPEN
        while calls < max_iter and state == OPEN:
            if is_turned:
                _turn(table, r, c, turned)
            if not assign(turned if is_turned else table, min(r, c), max(r, c), partial, work):
                break
            size = _list_parts(work[2], min(r, c), M, is_turned, new)
            calls += 1
            state = offer(support, problem, new, size, size, tol)
        write(support, calls, state, b, out)


def sparsemap(
    scores: Tensor,
    *,
    rows: Tensor,
    columns: Tensor,
    partial: bool,
    regularised: Tensor,
    start: Tensor,
    max_iter: int,
    tol: float,
) -> tuple[Tensor, ...]:
    smaller = min(scores.shape[1:])
    arrays = scores.numpy(), rows.numpy(), columns.numpy(), bool(partial)
    work = scores.numel() * smaller
    return solve_rows(_sparsemap, arrays, smaller, work, regularised, start, max_iter, tol)
