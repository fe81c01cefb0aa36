"""The hyperedges of projective trees (Eisner's algorithm). Derivations: README.md in this folder."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.arcs import words_of
from structmax.recursion.edges import Hyperedges, Recursion

# The one node every empty tree shares.
EMPTY = 0


def recursion(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Recursion:
    """Scores (B, N + 1, N + 1) or (B, N + 1, N + 1, labels)."""
    labels = arc.shape[3] if arc.dim() == 4 else 0
    sizes = arc.shape[1] - 1, labels, bool(single_root), bool(directed)
    return Recursion(_topology(*sizes)[0], _goals(*sizes, lengths.device)[words_of(lengths, directed)])


@lru_cache(maxsize=8)
def _goals(words: int, labels: int, single_root: bool, directed: bool, device: torch.device) -> Tensor:
    """The goal for each length, where the lengths are: nothing is copied from call to call."""
    return _topology(words, labels, single_root, directed)[1].long().to(device)


@lru_cache(maxsize=8)
def _topology(words: int, labels: int, single_root: bool, directed: bool) -> tuple[Hyperedges, Tensor]:
    """The edges, and the goal for each length 0 … words.

    Nodes in order: the empty tree; with labels, the arcs; then by width gap(i, j), right(i, j), the tree of i as far
    as j, and left(i, j), the tree of j as far as i.
    """
    size = words + 1
    node = np.arange(size, dtype=np.int32)
    is_arc = (node[:, None] != node) & (node > 0)
    # the part of an arc; or, with labels, the node that chooses among its parts
    part = np.arange(size * size, dtype=np.int32).reshape(size, size)
    if not directed:
        # both directions of an edge are one part
        part = np.minimum(part, part.T)
    no_arc = np.full_like(part, -1)
    named = np.where(is_arc, is_arc.cumsum(dtype=np.int32).reshape(size, size), -1) if labels else no_arc
    arc = no_arc if labels else part
    gap, right, left = (np.full_like(part, EMPTY) for _ in range(3))
    width, i = np.nonzero(node[:, None] + node < size)
    i, j = i[width > 0], (i + width)[width > 0]
    for rank, kind in enumerate((gap, right, left)):
        kind[i, j] = 1 + named.max(initial=0) + 3 * np.arange(len(i)) + rank

    # every span with every place to split it: i ≤ k < j
    i, j, k = np.nonzero((node[:, None, None] <= node) & (node < node[:, None]))
    inner = i > 0
    edges = [
        # head, the choice of a label, the nodes on the left and on the right, and a part
        _edges(EMPTY, -1, -1, -1, -1),
        _edges(gap[i, j], -1, right[i, k], left[k + 1, j], -1)[inner | (k == 0) | (not single_root)],
        _edges(right[i, j], named[i, k + 1], gap[i, k + 1], right[k + 1, j], arc[i, k + 1]),
        _edges(left[i, j], named[j, k], left[i, k], gap[k, j], arc[j, k])[inner],
    ]
    if labels:
        choices = part[is_arc][:, None] * labels + np.arange(labels)
        edges.append(_edges(np.repeat(named[is_arc], labels), -1, -1, -1, choices.ravel()))
    columns = torch.from_numpy(np.concatenate(edges))
    tails = columns[:, 1:4] if labels else columns[:, 2:4]
    return Hyperedges.of(columns[:, 0], tails, columns[:, 4:], nodes=int(left.max()) + 1), torch.from_numpy(right[0])


def _edges(*columns: np.ndarray | int) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*np.atleast_1d(*columns)), 1).astype(np.int32)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    arc = x.new_zeros(2, 4, 4)
    fields = {"lengths": torch.full((2,), 3, device=x.device), "single_root": True, "directed": True}
    yield "log_partition", (arc,), fields
    yield "log_partition_and_marginals", (arc,), fields
    yield "marginals_jvp", (arc, arc), fields
    yield "argmax", (arc,), fields
    yield "sample", (arc,), {"noise": x.new_zeros(2, 1, 6), **fields}
