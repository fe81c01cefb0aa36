"""The hypergraph as the passes read it: rows by level, each with a list of edges. Made once, on the device.

Nodes are numbered anew, by level: a node's tails lie in levels before its own, and nodes of one level do not depend on
each other. Going up, a row is a node with its own edges. Going down, it is a node with the edges that build on it, and
at last a part with the edges that use it: what a row collects it collects itself, in one order, without atomics.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from structmax.contract import outside_transforms
from structmax.recursion.edges import Hyperedges

# Cells of a tile, rows × edges × instances, and how many of them a warp has.
TILE, PER_WARP = 2048, 256
# As many programs fill the machine.
PROGRAMS = 132
# Instances a tile has at most: of a level that is a launch of its own, and where one program walks many levels.
WIDE, NARROW = 32, 8
# A level of no more tiles than this takes one program no longer than a launch does.
THIN = 4
# Lists of the best: how many times as much a tile holds, which stays in registers while they are taken out; and so many
# tiles of a level take one program no longer than a launch does.
LISTS, THIN_LISTS = 4, 1
# Choices of a derivation that are counted, far more than a draw can have numbers.
MANY = 2**40


class Launch(NamedTuple):
    """Levels that one launch fills: one by all its programs, or several by one program for each group of instances."""

    start: int
    stop: int
    # for each group of instances
    programs: int
    groups: int
    # of a tile
    rows: int
    edges: int
    instances: int
    warps: int
    # whether the longest list of a row fits in a tile
    whole: bool


@dataclass
class Rows:
    """Rows that are filled level by level, each from its list of edges."""

    # (R + 1,): the list of row r is first[r] … first[r + 1] − 1
    first: Tensor
    # (U,): the edges listed, and their heads; None where the list of a row is its own edges
    edge: Tensor | None
    head: Tensor | None
    # (L, 2): the rows of each level, from and to, in the order in which levels are filled
    levels: Tensor
    # of each level, how many rows it has, and how long the longest list is
    sizes: list[tuple[int, int]]
    known: dict[tuple[int, int, int], list[Launch]] = field(default_factory=dict)

    def launches(self, batch: int, times: int = 1, best: int = 0) -> list[Launch]:
        """For lists in which each edge stands so many times, and of which so many of the best are taken out."""
        key = batch, times, best
        if key not in self.known:
            self.known[key] = launches([(rows, longest * times) for rows, longest in self.sizes], batch, best)
        return self.known[key]

    def longest(self) -> int:
        return max((length for _, length in self.sizes), default=0)


@dataclass
class Tables:
    """The edges in level order, and the three kinds of rows."""

    # (V,): the new number of each node
    place: Tensor
    # (E, T) and (E, Q), −1 for none
    tails: Tensor
    parts: Tensor
    up: Rows
    down: Rows
    by_part: Rows
    nodes: int
    # (V,), by the old numbers: how many choices a derivation of the node has at most
    decisions: np.ndarray

    def stack(self) -> int:
        """Nodes that a depth-first walk leaves for later: T − 1 in each level on its way down, and T at its end."""
        tails = self.tails.shape[1]
        return max(tails - 1, 0) * len(self.up.sizes) + tails + 1


def launches(sizes: list[tuple[int, int]], batch: int, best: int = 0) -> list[Launch]:
    """Thin levels in a row are filled by one launch, every other level by one of its own.

    Where the `best` of a list are taken out, a tile has room for as many others.
    """
    limits = _Limits(TILE * LISTS, 2 * power(best), THIN_LISTS) if best else _Limits(TILE, 1, THIN)
    least = min(NARROW, power(-(-batch // PROGRAMS)))
    found: list[Launch] = []
    start = 0
    while start < len(sizes):
        stop, (rows, longest) = _thin(sizes, start, least, limits)
        alone = stop == start + 1
        # one program has as many instances as fit its tile beside a level, or so few that there is work for each
        room = least if best else min(NARROW, limits.cells // (power(rows) * power(longest)))
        fitting = WIDE if alone else max(least, room)
        tile = _tile(rows, longest, min(fitting, power(batch)), limits)
        programs = -(-rows // tile[0]) if alone else 1
        warps = min(8, max(1, tile[0] * tile[1] * tile[2] // PER_WARP))
        found.append(Launch(start, stop, programs, -(-batch // tile[2]), *tile, warps, longest <= tile[1]))
        start = stop
    return found


class _Limits(NamedTuple):
    """Cells of a tile, edges it has at least, and tiles of a level that is thin."""

    cells: int
    edges: int
    thin: int


def _thin(sizes: list[tuple[int, int]], start: int, instances: int, limits: _Limits) -> tuple[int, tuple[int, int]]:
    """Where the levels from `start` on end that have few tiles of one shape each, or the next one; and their most."""
    most, stop, shape = sizes[start], start + 1, (0, 0, 0)
    while stop < len(sizes):
        more = max(most[0], sizes[stop][0]), max(most[1], sizes[stop][1])
        tile = _tile(*more, instances, limits)
        # another shape is another number of tiles for all
        for rows, longest in sizes[start if tile != shape else stop : stop + 1]:
            if -(-rows // tile[0]) * -(-longest // tile[1]) > limits.thin:
                return stop, most
        most, stop, shape = more, stop + 1, tile
    return stop, most


def _tile(rows: int, longest: int, instances: int, limits: _Limits) -> tuple[int, int, int]:
    """Rows, edges and instances of a tile: powers of two, as few as there are and no more than it holds."""
    edges = min(power(longest), max(limits.edges, limits.cells // instances))
    return max(1, min(power(rows), limits.cells // (instances * edges))), edges, instances


def power(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << (max(1, count) - 1).bit_length()


# As long as the edges live: by size of the part vector and device.
_known = WeakTensorKeyDictionary()


def tables_of(edges: Hyperedges, size: int, device: torch.device) -> Tables:
    known = _known.setdefault(edges.first, {})
    if (size, device) not in known:
        with outside_transforms():
            known[size, device] = _tables(edges, size, device)
    return known[size, device]


def _tables(edges: Hyperedges, size: int, device: torch.device) -> Tables:
    first, tails, parts = (t.numpy().astype(np.int64) for t in edges)
    nodes, count = len(first) - 1, len(tails)
    degree = np.diff(first)
    depth = _depths(np.repeat(np.arange(nodes), degree), tails, nodes)
    ranked = np.argsort(depth, kind="stable")
    place = np.empty(nodes, dtype=np.int64)
    place[ranked] = np.arange(nodes)
    # the edges in the order of their heads' places, those of one head in their own
    degree = degree[ranked]
    new_first = _sums(degree)
    order = np.repeat(first[:-1][ranked] - new_first[:-1], degree) + np.arange(count)
    head = np.repeat(np.arange(nodes), degree)
    tails, parts = tails[order], parts[order]
    tails = np.where(tails < 0, -1, place[tails])
    bounds = _sums(np.bincount(depth)) if nodes else np.zeros(1, dtype=np.int64)
    levels = np.stack([bounds[:-1], bounds[1:]], 1)

    def there(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)

    def rows(first: np.ndarray, levels: np.ndarray, listed: np.ndarray | None) -> Rows:
        lengths = np.diff(first)
        sizes = [(int(b - a), int(lengths[a:b].max(initial=0))) for a, b in levels]
        lists = (None, None) if listed is None else (there(listed), there(head[listed]))
        return Rows(there(first), *lists, there(levels), sizes)

    down, by_part = _users(tails, nodes), _users(parts, size)
    whole = np.array([[0, size]])
    return Tables(
        there(place).long(),
        there(tails),
        there(parts),
        rows(new_first, levels, None),
        rows(down[0], levels[::-1], down[1]),
        rows(by_part[0], whole, by_part[1]),
        nodes,
        _decisions(new_first, tails, levels)[place],
    )


def _sums(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])


def _users(columns: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of `size` nodes or parts the edges that name it, as often as they do: where lists begin, the lists."""
    edge, _ = np.nonzero(columns >= 0)
    named = columns[columns >= 0]
    return _sums(np.bincount(named, minlength=size)), edge[np.argsort(named, kind="stable")]


def _depths(head: np.ndarray, tails: np.ndarray, nodes: int) -> np.ndarray:
    """The level of each node: one more than that of its deepest tail, 0 without any."""
    first, listed = _users(tails, nodes)
    waiting = np.bincount(head[listed], minlength=nodes)
    depth = np.zeros(nodes, dtype=np.int64)
    ready, level = np.flatnonzero(waiting == 0), 0
    while ready.size:
        depth[ready] = level
        lengths = first[ready + 1] - first[ready]
        places = np.repeat(first[ready] - _sums(lengths)[:-1], lengths) + np.arange(lengths.sum())
        done, times = np.unique(head[listed[places]], return_counts=True)
        waiting[done] -= times
        ready, level = done[waiting[done] == 0], level + 1
    return depth


def _decisions(first: np.ndarray, tails: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """For each node how many nodes with more than one edge a derivation of it has at most, and no more than MANY."""
    degree = np.diff(first)
    # one cell more, for tails that are none
    most = np.zeros(len(degree) + 1, dtype=np.int64)
    for start, stop in levels:
        below = np.minimum(most[tails[first[start] : first[stop]]].sum(1), MANY)
        derived = start + np.flatnonzero(degree[start:stop])
        if derived.size:
            most[derived] = np.maximum.reduceat(below, first[derived] - first[start])
        most[start:stop] += degree[start:stop] > 1
    return most[:-1]


@functools.lru_cache(maxsize=32)
def combinations(k: int, tails: int, device: torch.device) -> Tensor:
    """The ranks (C, T) that a derivation among the k best can have at its tails: Π (1 + rank) ≤ k."""
    found: list[tuple[int, ...]] = [()]
    for _ in range(tails):
        found = [(*ranks, rank) for ranks in found for rank in range(k // math.prod(1 + r for r in ranks))]
    with outside_transforms():
        return torch.tensor(found, dtype=torch.int32, device=device).reshape(len(found), tails)
