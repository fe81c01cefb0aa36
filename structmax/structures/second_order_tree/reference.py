"""The hyperedges of projective trees with siblings and grandparents. Derivations: README.md in this folder.

Functions take arc (B, N + 1, N + 1), sibling and grandparent (B, N + 1, N + 1, N + 1), either of which may be empty
(B, 0, 0, 0), and lengths (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion

# The one node every empty half-tree shares.
EMPTY = 0


def recursion(arc: Tensor, sibling: Tensor, grandparent: Tensor, *, lengths: Tensor, single_root: bool) -> Recursion:
    form = arc.shape[1] - 1, sibling.shape[1] > 0, grandparent.shape[1] > 0, bool(single_root)
    return Recursion(_topology(*form)[0], _goals(*form, lengths.device)[lengths])


@lru_cache(maxsize=8)
def _goals(words: int, siblings: bool, grandparents: bool, single_root: bool, device: torch.device) -> Tensor:
    """The goal for each length, where the lengths are: nothing is copied from call to call."""
    return _topology(words, siblings, grandparents, single_root)[1].long().to(device)


@lru_cache(maxsize=8)
def _topology(words: int, siblings: bool, grandparents: bool, single_root: bool) -> tuple[Hyperedges, Tensor]:
    """The edges, and the goal for each length 0 … words.

    Nodes in order: the empty half-tree; then by width gap[g, s, m], link[g, h, m] and tree[g, h, e], where g is the
    head of s and m, or of h. Without scores for grandparents there is one g, 0, for all; the root's is always 0.
    """
    size = words + 1
    g, h, e = np.ogrid[: size if grandparents else 1, :size, :size]
    low, high = np.minimum(h, e), np.maximum(h, e)
    outside = (g < low) | (g > high) | (not grandparents)
    half = np.where(h == 0, (g == 0) & (e > 0), outside & (low > 0) & (low < high))
    between = outside & (h > 0) & (h < e) & siblings
    gap, link, tree = _numbered(between, half, half)
    # the g of what hangs on h
    above = np.arange(size) * grandparents
    arc = np.arange(size**2).reshape(size, size)
    pair = arc.size + np.arange(size**3).reshape(size, size, size)
    grandparent = (pair + siblings * pair.size) if grandparents else np.full_like(pair, -1)
    grandparent[:, 0] = -1

    g, h, e, m = _with_each(half, lambda h, e, m: (h < m) & (m <= e) | (e <= m) & (m < h))
    edges = [
        # head, two tails, and the parts: an arc, a pair of siblings, a grandparent
        _edges(EMPTY, -1, -1, -1, -1, -1),
        _edges(tree[g, h, e], link[g, h, m], tree[above[h], m, e], -1, -1, -1),
    ]
    if siblings:
        g, h, m = np.nonzero(half)
        nearest = np.where(h < m, h + 1, h - 1)
        edges.append(_edges(link[g, h, m], tree[above[h], m, nearest], -1, arc[h, m], -1, grandparent[g, h, m]))
        many = half & (np.arange(size)[:, None] > 0) if single_root else half
        g, h, m, s = _with_each(many, lambda h, m, s: (h < s) & (s < m) | (m < s) & (s < h))
        apart = gap[above[h], np.minimum(s, m), np.maximum(s, m)]
        edges.append(_edges(link[g, h, m], link[g, h, s], apart, arc[h, m], pair[h, s, m], grandparent[g, h, m]))
        g, s, m, k = _with_each(between, lambda s, m, k: (s <= k) & (k < m))
        edges.append(_edges(gap[g, s, m], tree[g, s, k], tree[g, m, k + 1], -1, -1, -1))
    else:
        g, h, m, k = _with_each(half, lambda h, m, k: (h <= k) & (k < m) | (m < k) & (k <= h))
        own, rest = tree[g, h, k], tree[above[h], m, np.where(h < m, k + 1, k - 1)]
        inner = _edges(link[g, h, m], own, rest, arc[h, m], -1, grandparent[g, h, m])
        edges.append(inner[(h > 0) | (k == 0) | (not single_root)])
    columns = torch.from_numpy(np.concatenate(edges))
    used = [3] + [4] * siblings + [5] * grandparents
    nodes = int(tree.max()) + 1
    return Hyperedges.of(columns[:, 0], columns[:, 1:3], columns[:, used], nodes), torch.from_numpy(tree[0, 0])


def _numbered(*kinds: np.ndarray) -> list[np.ndarray]:
    """The number of each cell that is there, by width, and within a width by kind; EMPTY elsewhere."""
    cells = [np.nonzero(kind) for kind in kinds]
    width = np.concatenate([np.abs(y - x) for _, x, y in cells])
    rank = np.concatenate([np.full(len(x), kind) for kind, (_, x, _) in enumerate(cells)])
    number = np.empty(len(width), np.int64)
    number[np.lexsort((rank, width))] = np.arange(1, len(width) + 1)
    out = [np.full(kind.shape, EMPTY, np.int64) for kind in kinds]
    for kind, (table, at) in enumerate(zip(out, cells, strict=True)):
        table[at] = number[rank == kind]
    return out


def _with_each(cells: np.ndarray, holds: Any) -> tuple[np.ndarray, ...]:
    """All (g, x, y, z) of cells [g, x, y] and nodes z for which `holds(x, y, z)`, z ascending for each cell."""
    size = cells.shape[1]
    return np.nonzero(cells[..., None] & holds(*np.ogrid[:size, :size, :size]))


def _edges(*columns: np.ndarray | int) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*np.atleast_1d(*columns)), 1).astype(np.int32)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    near = x.new_zeros(2, 4, 4), x.new_zeros(2, 4, 4, 4), x.new_zeros(2, 0, 0, 0)
    # With grandparents the recursion answers.
    with_grandparents = near[0], near[1], near[1]
    fields = {"lengths": torch.full((2,), 3, device=x.device), "single_root": True}
    for scores in (near, with_grandparents):
        yield "log_partition", scores, fields
        yield "log_partition_and_marginals", scores, fields
        yield "marginals_jvp", scores + scores, fields
        yield "argmax", scores, fields
        yield "sample", scores, {"noise": x.new_zeros(2, 1, 9), **fields}
