"""The sparse map of a chain: Viterbi's algorithm inside the active-set method, all of it compiled."""

import numpy as np
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.active_set import OPEN, begin, new_support, offer
from structmax.numerics.kernel_numba.active_set_batch import solve_rows, write, write_none
from structmax.numerics.kernel_numba.llvm import whole
from structmax.numerics.kernel_numba.matrix import best_row
from structmax.numerics.kernel_numba.row import climb
from structmax.structures.linear_chain.kernel_numba.log import transitions
from structmax.structures.linear_chain.kernel_numba.scaled import BROKEN, FINE, copy, flat_of, rows_of
from structmax.structures.linear_chain.kernel_numba.walks import best_inside


@compiled()
def _ascend(unary, pairwise, length, best, reach, matrix):
    """As `best_inside`, for scores that are known to be sound."""
    size = unary.shape[1]
    reach[:] = 0.0
    peak = 0.0
    for t in range(length):
        if t > 0:
            if t == len(pairwise):
                # Memory may end behind the last matrix, and reading goes on for a block.
                copy(pairwise[t - 1], matrix)
            best_row(best[t - 1], 1, size, pairwise[t - 1] if t < len(pairwise) else matrix, size, reach)
        peak = climb(reach, unary[t], peak, best[t])


@compiled()
def _follow(pairwise, length, size, best, labels):
    """The labels of the best sequence, from the last back, the first of equals."""
    after = -1
    for t in range(length - 1, -1, -1):
        label, peak = 0, -np.inf
        for c in range(size):
            value = best[t, c] if after < 0 else best[t, c] + transitions(pairwise, t + 1)[c * size + after]
            if value > peak:
                label, peak = c, value
        labels[t] = after = label


@compiled()
def _list_parts(labels, length, positions, size, shared, transitions_first, new):
    """Writes labels and transitions as parts of the flat vector; how many there are."""
    first = length - 1 if transitions_first else 0
    for t in range(length):
        new[first + t] = t * size + labels[t]
    first = 0 if transitions_first else length
    for t in range(length - 1):
        matrix = 0 if shared else t
        new[first + t] = positions * size + (matrix * size + labels[t]) * size + labels[t + 1]
    return max(0, 2 * length - 1)


@kernel()
def _sparsemap(first, stop, unary, pairwise, lengths, C, ranges, start, longest, max_iter, tol, out):
    """Over unary (B, N · C) and pairwise (B, W · C²), where W is 1 or N − 1."""
    N, W = unary.shape[1] // C, pairwise.shape[1] // (C * C)
    parts, capacity = (N + W * C) * C, out[1].shape[1]
    theta, like = np.empty(parts), np.empty(1)
    g, matrix = flat_of(parts, like), flat_of(C * C, like)
    g_unary, g_pairwise = g[: N * C].reshape(N, C), g[N * C : parts].reshape(W, C * C)
    best, reach = rows_of(N, whole(C), like), rows_of(1, whole(C), like)[0]
    labels, new = np.empty(N, np.int64), np.empty(longest, np.int32)
    of_labels, of_transitions = ranges[0, 0] == 0, ranges[-1, 1] > N * C
    support = new_support(capacity, longest, parts)
    problem = theta, g, ranges, not (of_transitions and W == 1)
    for b in range(first, stop):
        length = lengths[b]
        copy(unary[b], theta[: N * C])
        copy(pairwise[b], theta[N * C :])
        copy(theta, g[:parts])
        state = best_inside(g_unary, g_pairwise, length, best, reach, matrix)
        if state != FINE:
            write_none(np.nan if state == BROKEN else -np.inf, b, out)
            continue
        begin(support, problem, start[b], new, tol)
        calls, state = 0, OPEN
        while calls < max_iter and state == OPEN:
            _ascend(g_unary, g_pairwise, length, best, reach, matrix)
            _follow(g_pairwise, length, C, best, labels)
            size = _list_parts(labels, length, N, C, W == 1, not of_labels, new)
            inner = (length if of_labels else 0) + (max(0, length - 1) if of_transitions else 0)
            calls += 1
            state = offer(support, problem, new, inner, size, tol)
        write(support, calls, state, b, out)


def sparsemap(
    unary: Tensor,
    pairwise: Tensor,
    *,
    lengths: Tensor,
    regularised: Tensor,
    start: Tensor,
    max_iter: int,
    tol: float,
) -> tuple[Tensor, ...]:
    arrays = unary.flatten(1).numpy(), pairwise.flatten(1).numpy(), lengths.numpy(), unary.shape[2]
    work = unary.numel() * unary.shape[2]
    return solve_rows(_sparsemap, arrays, 2 * unary.shape[1], work, regularised, start, max_iter, tol)
