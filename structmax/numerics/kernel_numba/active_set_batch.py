"""The active-set method over a batch: a room's loop is run, with as much room as the supports turn out to need.

What a loop writes, `out`: value (B,), lists (B, K, L) int32, weights (B, K), factor (B, K, K), counts (B,), and
facts (B, 3): the gap, the number of best structures that were found, and the state.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, over_rows
from structmax.numerics.kernel_numba.active_set import BASE, CONVERGED, GAP, LEVEL, OPEN, OVERFULL, SCORE, WEIGHT
from structmax.numerics.kernel_numba.triangular import dot


@compiled()
def write(support, calls, state, b, out):
    """The outcome of instance b. The value is ⟨a, p⟩ − ½ pᵀ G p, where G p = a − level."""
    lists, sizes, factor, columns, facts, mark, number = support
    values, all_lists, all_weights, all_factors, counts, all_facts = out
    parts, count = mark.size, number[0]
    if count == 0:
        write_none(-np.inf, b, out)
        return
    values[b] = facts[BASE] + 0.5 * (dot(columns[WEIGHT], columns[SCORE], count) + facts[LEVEL])
    counts[b] = count
    all_facts[b, 0], all_facts[b, 1], all_facts[b, 2] = max(0.0, facts[GAP]), calls, state
    for i in range(count):
        all_weights[b, i] = columns[WEIGHT, i]
        for j in range(i, count):
            all_factors[b, i, j] = factor[i, j]
        for q in range(lists.shape[1]):
            all_lists[b, i, q] = lists[i, q] if q < sizes[1, i] else parts


@compiled()
def write_none(value, b, out):
    """An instance without a structure: −inf where nothing is feasible, NaN where a score is none."""
    values, _, _, _, counts, facts = out
    values[b], counts[b] = value, 0
    facts[b, 0], facts[b, 1], facts[b, 2] = (
        0.0 if value == -np.inf else np.nan,
        0,
        CONVERGED if value == -np.inf else OPEN,
    )


def _ranges(regularised: Tensor) -> np.ndarray:
    """From where to where a mask (B, P), the same for all instances, is True: (T, 2)."""
    mask = np.zeros(regularised.shape[1] + 2, np.int8)
    if len(regularised):
        mask[1:-1] = regularised[0].numpy()
    return np.flatnonzero(np.diff(mask)).reshape(-1, 2)


def solve_rows(
    kernel: Callable[..., None],
    arrays: tuple[Any, ...],
    longest: int,
    work: int,
    regularised: Tensor,
    start: Tensor,
    max_iter: int,
    tol: float,
) -> tuple[Tensor, ...]:
    """Runs `kernel(from, to, *arrays, ranges, start, longest, max_iter, tol, out)` over the batch.

    `longest` is the most parts a structure has and `work` about the number of visits to find a best one. There is room
    for supports as large as they mostly are, and more if need be; an affinely independent one has an end.
    """
    rows, parts = regularised.shape
    ranges = _ranges(regularised)
    most = int((ranges[:, 1] - ranges[:, 0]).sum()) + 2
    capacity = min(most, 4 * longest + 16)
    longest = max(longest, start.shape[2], 1)
    while True:
        out = (
            np.empty(rows),
            np.empty((rows, capacity, longest), np.int32),
            np.empty((rows, capacity)),
            np.empty((rows, capacity, capacity)),
            np.empty(rows, np.int64),
            np.empty((rows, 3)),
        )
        over_rows(kernel, rows, 32 * work, *arrays, ranges, start.numpy(), longest, max_iter, tol, out)
        if not (out[5][:, 2] == OVERFULL).any():
            break
        capacity = min(most, 4 * capacity)
    value, lists, weights, factor, counts, facts = map(torch.from_numpy, out)
    used = int(counts.max()) if rows else 0
    unused = torch.arange(used) >= counts.unsqueeze(1)
    lists, weights = lists[:, :used].contiguous(), weights[:, :used].contiguous()
    lists.masked_fill_(unused.unsqueeze(2), parts)
    weights.masked_fill_(unused, 0.0)
    gap, calls, state = facts.unbind(1)
    return value, lists, weights, factor[:, :used, :used].contiguous(), counts, calls.long(), gap, state == CONVERGED
