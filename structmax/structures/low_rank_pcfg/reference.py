"""Parses of a factorised grammar as a recursion, from which every question is answered. Derivation: README.md here.

Functions take terms (B, N, T), roots (B, K), heads (B, K, R), left and right (B, R, S), spans (B, N, N, K), ranks
(B, N, N, R), and lengths (B,); S = K + T.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(
    terms: Tensor,
    roots: Tensor,
    heads: Tensor,
    left: Tensor,
    right: Tensor,
    spans: Tensor,
    ranks: Tensor,
    lengths: Tensor,
) -> Recursion:
    """The goal of length n is final(n): without edges for n = 1, the empty parse for n = 0."""
    N, T = terms.shape[1:]
    edges = _edges(N, T, *heads.shape[1:])
    return Recursion(edges, len(edges.first) - 1 - (N + 1) + lengths)


@lru_cache(maxsize=8)
def _edges(N: int, T: int, K: int, R: int) -> Hyperedges:
    """Nodes by width, for every span: its ranks (i, j, r), its symbols (i, j, a), then (i, j, r) as a left child and as
    a right one; final(n). Words have no ranks and T symbols, wider spans K.
    """
    S = K + T
    at_roots = N * T
    at_heads = at_roots + K
    at_left = at_heads + K * R
    at_right = at_left + R * S
    at_spans = at_right + R * S
    at_ranks = at_spans + N * N * K
    word_size, span_size = T + 2 * R, K + 3 * R
    w, i = torch.meshgrid(torch.arange(1, max(N, 1)), torch.arange(N), indexing="ij")
    w, i = (t[w + i < N].unsqueeze(1) for t in (w, i))
    finals = N * word_size + len(w) * span_size

    def first(w: Tensor, i: Tensor) -> Tensor:
        """The first node of the words i … i + w."""
        return torch.where(w > 0, N * word_size + ((w - 1) * N - w * (w - 1) // 2 + i) * span_size, i * word_size)

    def child(w: Tensor, i: Tensor, side: int) -> Tensor:
        """The first node of the words i … i + w as a child of a rank: on the left (0) or on the right (1)."""
        return first(w, i) + torch.where(w > 0, R + K, T) + side * R

    none = torch.tensor(-1)
    columns = []

    def add(head: Tensor, tail: Tensor, other_tail: Tensor, part: Tensor, other: Tensor) -> None:
        columns.append(tuple(t.flatten() for t in torch.broadcast_tensors(head, tail, other_tail, part, other)))

    r, a, t = torch.arange(R), torch.arange(K), torch.arange(T)
    word = torch.arange(N).unsqueeze(1)
    zero = torch.zeros_like(word)
    add(first(zero, word) + t, none, none, word * T + t, none)
    # every split of every span
    cell = torch.arange(len(w)).repeat_interleave(w.flatten())
    wide, begin = w[cell], i[cell]
    before = (w.cumsum(0) - w)[cell]
    k = torch.arange(len(cell)).unsqueeze(1) - before
    rank = at_ranks + (begin * N + begin + wide) * R + r
    add(first(wide, begin) + r, child(k, begin, 0) + r, child(wide - k - 1, begin + k + 1, 1) + r, rank, none)
    head, span = first(w, i).unsqueeze(1), (at_spans + (i * N + i + w) * K).unsqueeze(1)
    a_r = at_heads + a.unsqueeze(1) * R + r
    add(head + R + a.unsqueeze(1), head + r, none, a_r, span + a.unsqueeze(1))
    for side, table in enumerate((at_left, at_right)):
        column = table + r.unsqueeze(1) * S
        top = child(zero, word, side).unsqueeze(1) + r.unsqueeze(1)
        add(top, first(zero, word).unsqueeze(1) + t, none, column + K + t, none)
        add(child(w, i, side).unsqueeze(1) + r.unsqueeze(1), head + R + a, none, column + a, none)
    n = torch.arange(2, N + 1).unsqueeze(1)
    add(finals + n, first(n - 1, torch.zeros_like(n)) + R + a, none, at_roots + a, none)
    add(torch.tensor([finals]), none, none, none, none)
    heads, tail, other_tail, part, other = (torch.cat(column) for column in zip(*columns, strict=True))
    return Hyperedges.of(heads, torch.stack([tail, other_tail], 1), torch.stack([part, other], 1), finals + N + 1)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    shapes = (1, 2, 2), (1, 1), (1, 1, 1), (1, 1, 3), (1, 1, 3), (1, 2, 2, 1), (1, 2, 2, 1)
    near = tuple(x.new_zeros(shape) for shape in shapes)
    # So far apart that log space is needed.
    far = x.new_tensor([[[0.0, -1e3], [0.0, -1e3]]]), *near[1:]
    given = {"lengths": torch.full((1,), 2, device=x.device)}
    for scores in (near, far):
        for name in ("log_partition", "log_partition_and_marginals", "argmax"):
            yield name, scores, given
