"""Monotone alignments as hypergraphs: the recursions of README.md. Places outside the band have no edges."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion

# Down and right, in the order in which edges are listed.
MOVES = ((1, 1), (1, 0), (0, 1))
# Nodes of time warping before its cells: the alignment of nothing with nothing, and one that does not exist.
EMPTY, NEVER = 0, 1
# The nodes of a boundary in a local alignment, in this order: paths that end here with a match; paths that end here;
# those that end with a match in this row, up to here; and those that do in this row or above, up to here.
MATCHED, REACHED, IN_ROW, ABOVE = range(4)


def recursion(*scores: Tensor, rows: Tensor, columns: Tensor, local: bool, band: int) -> Recursion:
    """The hypergraph for scores (B, N, M), or match (B, N, M), delete (B, N, M + 1) and insert (B, N + 1, M)."""
    N, M = scores[0].shape[1:]
    if len(scores) == 1:
        cell = 2 + (rows - 1) * M + (columns - 1)
        without = torch.where((rows == 0) & (columns == 0), EMPTY, NEVER)
        return Recursion(_warping(N, M, band), torch.where((rows > 0) & (columns > 0), cell, without))
    boundary = rows * (M + 1) + columns
    if local:
        return Recursion(_local(N, M, band), 4 * boundary + ABOVE)
    return Recursion(_global(N, M, band), boundary)


class _Edges:
    """Collects edges of at most one tail and one part."""

    def __init__(self) -> None:
        self.head: list[Tensor] = []
        self.tail: list[Tensor] = []
        self.part: list[Tensor] = []

    def add(self, head: Tensor, tail: Tensor | int = -1, part: Tensor | int = -1) -> None:
        self.head.append(head)
        self.tail.append(torch.as_tensor(tail).expand_as(head))
        self.part.append(torch.as_tensor(part).expand_as(head))

    def of(self, nodes: int) -> Hyperedges:
        head, tail, part = (torch.cat(column) for column in (self.head, self.tail, self.part))
        return Hyperedges.of(head, tail.unsqueeze(-1), part.unsqueeze(-1), nodes)


def _moves(height: int, width: int, band: int) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """For each move over a grid of places: where in the band it can start, rows and columns, and where it leads."""
    i, j = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    for down, right in MOVES:
        ahead = (i + down, j + right)
        inside = ((i - j).abs() <= band) & ((ahead[0] - ahead[1]).abs() <= band)
        inside &= (ahead[0] < height) & (ahead[1] < width)
        yield i[inside], j[inside], down, right


@functools.lru_cache(maxsize=8)
def _warping(N: int, M: int, band: int) -> Hyperedges:
    """A cell is reached from its neighbours above and to the left, and adds its own score."""
    edges = _Edges()
    edges.add(torch.tensor([EMPTY]))
    if N and M:
        edges.add(torch.tensor([2]), part=0)
    for i, j, down, right in _moves(N, M, band):
        cell = (i + down) * M + j + right
        edges.add(2 + cell, 2 + i * M + j, cell)
    return edges.of(2 + N * M)


def _offset(move: tuple[int, int], N: int, M: int) -> int:
    """Where the tensor of a move starts in the flat part vector."""
    return {(1, 1): 0, (1, 0): N * M, (0, 1): N * M + N * (M + 1)}[move]


@functools.lru_cache(maxsize=8)
def _global(N: int, M: int, band: int) -> Hyperedges:
    """A boundary is reached from the boundaries before it, by a match, a deletion or an insertion."""
    edges = _Edges()
    edges.add(torch.tensor([0]))
    for i, j, down, right in _moves(N + 1, M + 1, band):
        part = _offset((down, right), N, M) + i * (M + 1 - right) + j
        edges.add((i + down) * (M + 1) + j + right, i * (M + 1) + j, part)
    return edges.of((N + 1) * (M + 1))


@functools.lru_cache(maxsize=8)
def _local(N: int, M: int, band: int) -> Hyperedges:
    """A match may also start the path, and any match may end it.

    Where it ends is sought by rows among the boundaries up to the goal, and in a row by columns.
    """
    edges = _Edges()

    def node(i: Tensor, j: Tensor, kind: int) -> Tensor:
        return 4 * (i * (M + 1) + j) + kind

    for i, j, down, right in _moves(N + 1, M + 1, band):
        part = _offset((down, right), N, M) + i * (M + 1 - right) + j
        # No path reaches a boundary of the first row or column.
        within = (i > 0) & (j > 0)
        head = (i + down, j + right, MATCHED if down and right else REACHED)
        if down and right:
            edges.add(node(*head), part=part)
            edges.add(node(i + 1, j + 1, REACHED), node(*head))
        edges.add(node(*head)[within], node(i, j, REACHED)[within], part[within])
    i, j = torch.meshgrid(torch.arange(N + 1), torch.arange(M + 1), indexing="ij")
    here = (i > 0) & (j > 0) & ((i - j).abs() <= band)
    # Whether a row has a match before, or up to, this place.
    before, up_to = (here.int().cumsum(1) - here.int()) > 0, here.int().cumsum(1) > 0
    edges.add(node(i, j, IN_ROW)[before], node(i, j - 1, IN_ROW)[before])
    edges.add(node(i, j, IN_ROW)[here], node(i, j, MATCHED)[here])
    edges.add(node(i, j, ABOVE)[0])
    edges.add(node(i, j, ABOVE)[1:].flatten(), node(i, j, ABOVE)[:-1].flatten())
    edges.add(node(i, j, ABOVE)[up_to], node(i, j, IN_ROW)[up_to])
    return edges.of(4 * (N + 1) * (M + 1))


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    count = torch.ones(len(x), dtype=torch.int64, device=x.device)
    cells = x.new_zeros(len(x), 1, 1)
    moves = cells, x.new_zeros(len(x), 1, 2), x.new_zeros(len(x), 2, 1)
    for scores, local in (((cells,), False), (moves, False), (moves, True)):
        fields = {"rows": count, "columns": count, "local": local, "band": 2}
        for name in ("log_partition", "log_partition_and_marginals", "argmax"):
            yield name, scores, fields
        yield "marginals_jvp", (*scores, *scores), fields
        yield "sample", scores, {"noise": x.new_zeros(len(x), 1, 3), **fields}
