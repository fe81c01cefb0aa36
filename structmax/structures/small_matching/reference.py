"""The hyperedges of matchings with a small side: a program over subsets. Derivations: README.md in this folder.

The *items* of the larger side come one after the other; each takes one of the *places* of the smaller side. Sets of
places are bit patterns.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Recursion:
    """Scores (B, N, M)."""
    N, M = scores.shape[1:]
    rows, columns = rows.cpu(), columns.cpu()
    items, places = (columns, rows) if N < M else (rows, columns)
    may_skip = bool(partial) or bool((items > places).any())
    edges, goals = _topology(N, M, may_skip, bool(partial))
    return Recursion(edges, goals[items, places])


@lru_cache(maxsize=8)
def _topology(N: int, M: int, may_skip: bool, partial: bool) -> tuple[Hyperedges, Tensor]:
    """The edges, and the goal for each number of items and places: (items + 1, places + 1).

    Nodes in order: the sets of places, each taken entirely by as many items; where items may be skipped, for each
    number of items the sets of places taken by some of them; then goals that unite sets.
    """
    items, places = max(N, M), min(N, M)
    every = np.arange(1 << places)
    size = _size(every)
    # a place j, and a set that has it
    taken, j = np.nonzero(every[:, None] >> np.arange(places) & 1)
    rest = taken ^ 1 << j

    def part(item: np.ndarray, place: np.ndarray) -> np.ndarray:
        return place * M + item if N < M else item * M + place

    edges = [_edges(0, -1, -1), _edges(taken, rest, part(size[rest], j))]
    nodes = len(every)
    if may_skip:
        first, nodes = nodes, nodes + (items + 1) * len(every)
        node = first + np.arange(items + 1)[:, None] * len(every) + every
        possible = size <= np.arange(items + 1)[:, None]
        item = np.arange(items)[:, None]
        takes = _edges(node[1:, taken], node[:-1, rest], part(item, j)).reshape(items, len(taken), 3)
        skips = _edges(node[1:], node[:-1], -1).reshape(items, len(every), 3)
        edges += [_edges(node[0, 0], -1, -1), takes[possible[:-1, rest]], skips[possible[:-1]]]

    # which sets a goal unites: all places of the instance, or any of them, or as many as there are items
    goals = np.zeros((items + 1, places + 1), dtype=np.int64)
    for n in range(items + 1):
        for m in range(places + 1):
            if not partial and n > m:
                goals[n, m] = node[n, (1 << m) - 1] if may_skip else 0
                continue
            among = every[: 1 << m]
            among = among[size[among] <= n] if partial else among[size[among] == n]
            edges.append(_edges(nodes, node[n, among] if partial else among, -1))
            goals[n, m] = nodes
            nodes += 1
    columns = torch.from_numpy(np.concatenate(edges))
    return Hyperedges.of(columns[:, 0], columns[:, 1:2], columns[:, 2:], nodes), torch.from_numpy(goals)


def _size(sets: np.ndarray) -> np.ndarray:
    """How many members a set has."""
    return (sets[:, None] >> np.arange(16) & 1).sum(1)


def _edges(head: np.ndarray | int, tail: np.ndarray | int, part: np.ndarray | int) -> np.ndarray:
    return np.stack([column.ravel() for column in np.broadcast_arrays(head, tail, part)], 1).astype(np.int32)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    scores, size = x.new_zeros(2, 2, 2), torch.full((2,), 2, device=x.device)
    fields = {"rows": size, "columns": size, "partial": False}
    yield "log_partition", (scores,), fields
    yield "log_partition_and_marginals", (scores,), fields
    yield "marginals_jvp", (scores, scores), fields
    yield "argmax", (scores,), fields
    yield "sample", (scores,), {"noise": x.new_zeros(2, 1, 3), **fields}
