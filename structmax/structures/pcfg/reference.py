"""Parses of a grammar as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take terms (B, N, T), rules (B, K, S, S), roots (B, K), spans (B, N, N, K), and lengths (B,); S = K + T.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(terms: Tensor, rules: Tensor, roots: Tensor, spans: Tensor, lengths: Tensor) -> Recursion:
    """The goal of length n is final(n): without edges for n = 1, the empty parse for n = 0."""
    N, T = terms.shape[1:]
    edges = _edges(N, rules.shape[1], T)
    return Recursion(edges, len(edges.first) - 1 - (N + 1) + lengths)


@lru_cache(maxsize=8)
def _edges(N: int, K: int, T: int) -> Hyperedges:
    """Nodes: the preterminals (i, t); by width, for every span, its pairs (i, j, b, c) and then (i, j, a); final(n)."""
    S = K + T
    block = S * S + K
    at_rules = N * T
    at_roots = at_rules + K * S * S
    at_spans = at_roots + K
    w, i = torch.meshgrid(torch.arange(1, max(N, 1)), torch.arange(N), indexing="ij")
    w, i = (t[w + i < N] for t in (w, i))
    finals = N * T + len(w) * block

    def span(w: Tensor, i: Tensor) -> Tensor:
        """The first node of the span [i, i + w], w ≥ 1."""
        return N * T + ((w - 1) * N - w * (w - 1) // 2 + i) * block

    def node(w: Tensor, i: Tensor, symbol: Tensor) -> Tensor:
        return torch.where(symbol < K, span(w, i) + S * S + symbol, i * T + symbol - K)

    none = torch.tensor(-1)
    columns = []

    def add(head: Tensor, left: Tensor, right: Tensor, part: Tensor, other: Tensor) -> None:
        columns.append(tuple(t.flatten() for t in torch.broadcast_tensors(head, left, right, part, other)))

    leaf = torch.arange(N * T)
    add(leaf, none, none, leaf, none)
    # Preterminals have one word, nonterminals more: the widths that remain decide which symbols can stand where.
    cell, b, c = torch.meshgrid(torch.arange(len(w)), torch.arange(S), torch.arange(S), indexing="ij")
    cell, b, c = (t.flatten() for t in (cell, b, c))
    width, begin = w[cell], i[cell]
    low = (b < K).long()
    high = torch.where(b < K, width, 1).minimum(torch.where(c < K, width - 1, width))
    low = torch.where(c < K, low, width - 1).maximum(low)
    count = (high - low).clamp_min(0)
    used = count.repeat_interleave(count)
    index = torch.arange(len(count)).repeat_interleave(count)
    t = low[index] + torch.arange(len(used)) - (count.cumsum(0) - count)[index]
    pair = span(width, begin) + b * S + c
    left = node(t, begin[index], b[index])
    right = node(width[index] - t - 1, begin[index] + t + 1, c[index])
    add(pair[index], left, right, none, none)
    possible = count > 0
    pair, width, begin, b, c = (t[possible].unsqueeze(1) for t in (pair, width, begin, b, c))
    a = torch.arange(K)
    rule = at_rules + (a * S + b) * S + c
    add(span(width, begin) + S * S + a, pair, none, rule, at_spans + (begin * N + begin + width) * K + a)
    n = torch.arange(2, N + 1).unsqueeze(1)
    add(finals + n, span(n - 1, torch.zeros_like(n)) + S * S + a, none, at_roots + a, none)
    add(torch.tensor([finals]), none, none, none, none)
    head, left, right, part, other = (torch.cat(column) for column in zip(*columns, strict=True))
    return Hyperedges.of(head, torch.stack([left, right], 1), torch.stack([part, other], 1), finals + N + 1)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    near = x.new_zeros(1, 2, 2), x.new_zeros(1, 1, 3, 3), x.new_zeros(1, 1), x.new_zeros(1, 2, 2, 1)
    # So far apart that log space is needed.
    far = x.new_tensor([[[0.0, -1e3], [0.0, -1e3]]]), *near[1:]
    given = {"lengths": torch.full((1,), 2, device=x.device)}
    for scores in (near, far):
        for name in ("log_partition", "log_partition_and_marginals", "argmax"):
            yield name, scores, given
