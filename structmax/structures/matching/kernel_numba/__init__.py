"""Best matchings on the CPU, and of scores on a GPU too. Derivations: ../README.md."""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.structures.matching.kernel_numba.assignment import NONE, assign, workspace
from structmax.structures.matching.kernel_numba.cycles import best_with_each_pair
from structmax.structures.matching.kernel_numba.ranked import branches, rank
from structmax.structures.matching.kernel_numba.sparse import sparsemap as sparsemap
from structmax.structures.matching.kernel_numba.transport import potentials as potentials
from structmax.structures.matching.kernel_numba.transport import project as _project
from structmax.structures.matching.kernel_numba.transport import project_jvp as project_jvp
from structmax.structures.matching.kernel_numba.transport import sinkhorn as _sinkhorn
from structmax.structures.matching.range import (
    best_with_room,
    projected_within_reach,
    ranked_with_room,
    sinkhorn_within_reach,
    with_room,
)


@compiled("reassoc")
def _is_broken(scores, r, c):
    """Whether NaN or +inf is among the scores of r rows and c columns."""
    broken = 0
    for i in range(r):
        for j in range(c):
            broken += not scores[i, j] < np.inf
    return broken > 0


@compiled()
def _break(r, c, out):
    for i in range(r):
        for j in range(c):
            out[i, j] = np.nan


@compiled()
def _turn(table, r, c, out):
    for i in range(r):
        for j in range(c):
            out[j, i] = table[i, j]


@compiled()
def _scratch(scores):
    """A workspace for every size up to N × M in either orientation, and room for a transposed instance."""
    N, M = scores.shape[1:]
    return workspace(min(N, M), max(N, M)), np.empty((M, N), scores.dtype)


@compiled()
def _oriented(scores, r, c, turned):
    """The scores with the smaller side as rows, how many rows and columns they have, and whether they are turned."""
    if r <= c:
        return scores, r, c, False
    _turn(scores, r, c, turned)
    return turned, c, r, True


@compiled()
def _write(n, column, is_turned, out):
    for i in range(n):
        j = column[i]
        if j != NONE and is_turned:
            out[j, i] = 1
        elif j != NONE:
            out[i, j] = 1


# --- slices of the batch -------------------------------------------------------------------------------------------


@kernel()
def _best(start, stop, scores, rows, columns, partial, out):
    work, turned = _scratch(scores)
    for b in range(start, stop):
        r, c = rows[b], columns[b]
        out[b] = 0
        if _is_broken(scores[b], r, c):
            _break(r, c, out[b])
            continue
        table, n, m, is_turned = _oriented(scores[b], r, c, turned)
        if assign(table, n, m, partial, work):
            _write(n, work[2], is_turned, out[b])


@kernel()
def _ranked(start, stop, scores, rows, columns, partial, values, out):
    work, turned = _scratch(scores)
    k, most = values.shape[1], min(scores.shape[1:])
    branch, ranked = branches(k, most, max(scores.shape[1:])), np.empty((k, most), np.int64)
    for b in range(start, stop):
        r, c = rows[b], columns[b]
        out[b] = 0
        values[b] = -np.inf
        if _is_broken(scores[b], r, c):
            for q in range(k):
                values[b, q] = np.nan
                _break(r, c, out[b, q])
            continue
        table, n, m, is_turned = _oriented(scores[b], r, c, turned)
        for q in range(rank(table, n, m, partial, k, work, branch, values[b], ranked)):
            _write(n, ranked[q], is_turned, out[b, q])


@kernel()
def _best_with_each(start, stop, scores, rows, columns, partial, out):
    work, turned = _scratch(scores)
    n = min(scores.shape[1:])
    loss, turned_out = np.empty((n + 1, n + 1)), np.empty_like(turned)
    for b in range(start, stop):
        r, c = rows[b], columns[b]
        out[b] = -np.inf
        if _is_broken(scores[b], r, c):
            _break(r, c, out[b])
            continue
        table, n, m, is_turned = _oriented(scores[b], r, c, turned)
        if assign(table, n, m, partial, work):
            _, price, column, owner, _, _ = work
            if is_turned:
                best_with_each_pair(table, n, m, partial, price, column, owner, loss, turned_out)
                _turn(turned_out, n, m, out[b])
            else:
                best_with_each_pair(table, n, m, partial, price, column, owner, loss, out[b])


# --- the questions -------------------------------------------------------------------------------------------------


def _work(scores: Tensor) -> int:
    """About how many scores are looked at: rows bid a few times each."""
    return 4 * scores.numel()


@best_with_room
def argmax(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    best = torch.empty_like(scores)
    arrays = (scores.numpy(), rows.numpy(), columns.numpy(), bool(partial), best.numpy())
    over_rows(_best, len(scores), _work(scores), *arrays)
    return best


@ranked_with_room
def topk(scores: Tensor, *, k: int, rows: Tensor, columns: Tensor, partial: bool) -> tuple[Tensor, Tensor]:
    values, parts = scores.new_empty(len(scores), k), scores.new_empty(len(scores), k, *scores.shape[1:])
    arrays = (scores.numpy(), rows.numpy(), columns.numpy(), bool(partial), values.numpy(), parts.numpy())
    over_rows(_ranked, len(scores), k * scores.shape[1] * _work(scores), *arrays)
    return values, parts


@with_room
def max_marginals(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    best = torch.empty_like(scores)
    arrays = (scores.numpy(), rows.numpy(), columns.numpy(), bool(partial), best.numpy())
    over_rows(_best_with_each, len(scores), scores.shape[1] * _work(scores), *arrays)
    return best


project = projected_within_reach(_project, argmax)
sinkhorn = sinkhorn_within_reach(_sinkhorn, argmax)
