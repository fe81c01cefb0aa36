"""The semi-Markov chain as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take segment (B, N, W, C), pairwise (B, C, C), (B, N − 1, C, C) or (B, N − 1, W, C, C), and lengths (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> Recursion:
    """The goal of length p is final(p); that of length 0 is node 0, the empty segmentation."""
    N, W, C = segment.shape[1:]
    if pairwise.dim() == 5:
        return Recursion(_joint_edges(N, W, C), lengths * (C + 1))
    return Recursion(_edges(N, W, C, pairwise.dim() == 4), lengths * (2 * C + 1))


@lru_cache(maxsize=8)
def _edges(N: int, W: int, C: int, per_position: bool) -> Hyperedges:
    """For p = 1 … N in turn: start(p − 1, c) and end(p, c) for all labels, and final(p)."""
    block = 2 * C + 1

    def start(n: Tensor, c: Tensor) -> Tensor:
        return 1 + n * block + c

    def end(p: Tensor, c: Tensor) -> Tensor:
        return 1 + (p - 1) * block + C + c

    labels, none = torch.arange(C), torch.tensor([-1])
    edges = [(torch.tensor([0]), none, none)]
    edges.append((start(torch.tensor(0), labels), none.expand(C), none.expand(C)))
    # start(n, c) from end(n, i)
    n, c, i = (t.flatten() for t in torch.meshgrid(torch.arange(1, N), labels, labels, indexing="ij"))
    matrix = (n - 1) * C * C if per_position else 0
    edges.append((start(n, c), end(n, i), N * W * C + matrix + i * C + c))
    # end(p, c) from start(p − w, c)
    p, c, w = torch.meshgrid(torch.arange(1, N + 1), labels, torch.arange(1, W + 1), indexing="ij")
    p, c, w = (t[w <= p] for t in (p, c, w))
    edges.append((end(p, c), start(p - w, c), ((p - w) * W + w - 1) * C + c))
    # final(p) from end(p, c)
    p, c = (t.flatten() for t in torch.meshgrid(torch.arange(1, N + 1), labels, indexing="ij"))
    edges.append((p * block, end(p, c), none.expand(N * C)))
    head, tail, part = (torch.cat(column) for column in zip(*edges, strict=True))
    return Hyperedges.of(head, tail.unsqueeze(1), part.unsqueeze(1), 1 + N * block)


@lru_cache(maxsize=8)
def _joint_edges(N: int, W: int, C: int) -> Hyperedges:
    """For p = 1 … N in turn: end(p, c) for all labels, and final(p). A segment and its transition are one edge."""

    def end(p: Tensor, c: Tensor) -> Tensor:
        return 1 + (p - 1) * (C + 1) + c

    labels, positions, widths = torch.arange(C), torch.arange(1, N + 1), torch.arange(1, W + 1)
    edges = [(torch.tensor([0]), torch.tensor([-1]), torch.tensor([[-1, -1]]))]
    # end(p, c) from node 0: the first segment
    p, c = (t.flatten() for t in torch.meshgrid(positions[:W], labels, indexing="ij"))
    edges.append((end(p, c), torch.zeros_like(p), torch.stack([(p - 1) * C + c, torch.full_like(p, -1)], 1)))
    # end(p, c) from end(p − w, i)
    p, c, w, i = torch.meshgrid(positions, labels, widths, labels, indexing="ij")
    p, c, w, i = (t[w < p] for t in (p, c, w, i))
    cell = (p - w) * W + w - 1
    matrix = cell - W
    edges.append((end(p, c), end(p - w, i), torch.stack([cell * C + c, N * W * C + (matrix * C + i) * C + c], 1)))
    # final(p) from end(p, c)
    p, c = (t.flatten() for t in torch.meshgrid(positions, labels, indexing="ij"))
    edges.append((p * (C + 1), end(p, c), p.new_full((N * C, 2), -1)))
    head, tail, parts = (torch.cat(column) for column in zip(*edges, strict=True))
    return Hyperedges.of(head, tail, parts, 1 + N * (C + 1))


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    segment, lengths = x.new_zeros(1, 2, 2, 2), torch.full((1,), 2, device=x.device)
    for pairwise in (x.new_zeros(1, 2, 2), x.new_zeros(1, 1, 2, 2), x.new_zeros(1, 1, 2, 2, 2)):
        scores, given = (segment, pairwise), {"lengths": lengths}
        for name in ("log_partition", "log_partition_and_marginals", "argmax"):
            yield name, scores, given
        yield "marginals_jvp", scores + scores, given
        yield "sample", scores, {"noise": x.new_zeros(1, 1, 4), **given}
