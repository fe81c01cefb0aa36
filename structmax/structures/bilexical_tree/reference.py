"""Bilexical trees as a recursion (Eisner and Satta), from which every question is answered. Derivation: README.md here.

Functions take arc (B, N + 1, N + 1), span (B, N, N), head (B, N, N, N), and lengths (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(arc: Tensor, span: Tensor, head: Tensor, lengths: Tensor) -> Recursion:
    """The goal of length n is final(n), the empty tree for n = 0."""
    N = span.shape[1]
    edges = _edges(N)
    return Recursion(edges, len(edges.first) - 1 - (N + 1) + lengths)


@lru_cache(maxsize=8)
def _edges(N: int) -> Hyperedges:
    """Nodes (i, j, x) by width, then final(n): x in [i, j] is the head of this span, any other x its head's head."""
    leaf = np.arange(N)
    i, j, x = np.nonzero(np.broadcast_to((leaf[:, None] <= leaf)[:, :, None], (N, N, N)))
    outside = (x < i) | (x > j)
    # a span comes before those who take it as a dependent
    order = np.lexsort((outside, j - i))
    node = np.full((N, N, N), -1)
    node[i[order], j[order], x[order]] = np.arange(len(order))
    finals = len(order)

    at_span = (N + 1) ** 2
    at_head = at_span + N * N
    arc = np.arange(at_span).reshape(N + 1, N + 1)
    span = np.stack([at_span + i * N + j, at_head + (i * N + j) * N + x], 1)
    heads, tails, parts = [], [], []

    def add(
        head: np.ndarray, left: np.ndarray, right: np.ndarray | int, part: np.ndarray, other: np.ndarray | int
    ) -> None:
        heads.append(head)
        tails.append(np.stack(np.broadcast_arrays(left, right), 1))
        parts.append(np.stack(np.broadcast_arrays(part, other), 1))

    # a leaf, and a span from its two children: the head is in one of them, and is the other one's head's head
    one = i == j
    own = one & ~outside
    add(node[i, j, x][own], np.full(N, -1), -1, *span[own].T)
    index, t = _spread(np.where(outside, 0, j - i))
    begin, end, h, middle = i[index], j[index], x[index], i[index] + t
    add(node[begin, end, h], node[begin, middle, h], node[middle + 1, end, h], *span[index].T)
    # a head's head, by an arc to whichever head the span has
    index, t = _spread(np.where(outside, j - i + 1, 0))
    begin, end, h, dependent = i[index], j[index], x[index], i[index] + t
    add(node[begin, end, h], node[begin, end, dependent], -1, arc[h + 1, dependent + 1], -1)
    # the root is the head's head of all
    n, h = np.nonzero(leaf[:, None] >= leaf)
    add(finals + 1 + n, node[0, n, h], -1, arc[0, h + 1], -1)
    add(np.array([finals]), np.array([-1]), -1, np.array([-1]), -1)
    head, tail, part = (torch.from_numpy(np.concatenate(rows)) for rows in (heads, tails, parts))
    return Hyperedges.of(head, tail, part, finals + N + 1)


def _spread(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each index as often as it counts, and which time it is, from 0."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls of what the recursion answers."""
    scores = x.new_zeros(1, 3, 3), x.new_zeros(1, 2, 2), x.new_zeros(1, 2, 2, 2)
    given = {"lengths": torch.full((1,), 2, device=x.device)}
    for name in ("log_partition", "log_partition_and_marginals", "argmax"):
        yield name, scores, given
    yield "marginals_jvp", (*scores, *scores), given
    yield "sample", scores, {"noise": x.new_zeros(1, 1, 3), **given}
