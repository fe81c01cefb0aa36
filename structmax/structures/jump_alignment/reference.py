"""Alignments with jumps as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take cell (B, N, M), step (B, K, N, M), down (B, N, M) if there is one, rows (B,) and columns (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion

# Nodes before the cells: the alignment of nothing with nothing, and one that does not exist.
EMPTY, NEVER = 0, 1


def recursion(cell: Tensor, step: Tensor, *down: Tensor, rows: Tensor, columns: Tensor) -> Recursion:
    """The goal is the last cell of an instance; cells are numbered by columns."""
    N, M = cell.shape[1:]
    last = 2 + (columns - 1) * N + rows - 1
    without = torch.where((rows == 0) & (columns == 0), EMPTY, NEVER)
    return Recursion(_edges(N, M, step.shape[1], bool(down)), torch.where((rows > 0) & (columns > 0), last, without))


@lru_cache(maxsize=8)
def _edges(N: int, M: int, K: int, down: bool) -> Hyperedges:
    """A cell is reached by a jump from the column before, or from the cell above it; the first is given."""
    start = torch.tensor([[EMPTY, -1, -1, -1], [2, -1, 0, -1]])
    j, i, k = torch.meshgrid(torch.arange(1, M), torch.arange(N), torch.arange(K), indexing="ij")
    # only from cells that a path leads to
    reached = (k <= i) & (down | (i - k <= (K - 1) * (j - 1)))
    j, i, k = (t[reached] for t in (j, i, k))
    cell = i * M + j
    jumps = torch.stack([2 + j * N + i, 2 + (j - 1) * N + i - k, cell, (1 + k) * N * M + cell], 1)
    j, i = (t.flatten() for t in torch.meshgrid(torch.arange(M), torch.arange(1, N), indexing="ij"))
    cell = i * M + j
    descents = torch.stack([2 + j * N + i, 1 + j * N + i, cell, (1 + K) * N * M + cell], 1)
    edges = torch.cat([start, jumps, descents] if down else [start, jumps])
    return Hyperedges.of(edges[:, 0], edges[:, 1], edges[:, 2:], 2 + N * M)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls of what the recursion answers."""
    scores = x.new_zeros(1, 2, 2), x.new_zeros(1, 2, 2, 2)
    two = torch.full((1,), 2, device=x.device)
    given = {"rows": two, "columns": two}
    for name in ("log_partition", "log_partition_and_marginals", "argmax"):
        yield name, scores, given
    yield "marginals_jvp", scores + scores, given
    yield "sample", scores, {"noise": x.new_zeros(1, 1, 4), **given}
