"""The linear chain as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take unary (B, N, C), pairwise (B, C, C) or (B, N − 1, C, C), and lengths (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Recursion:
    """The goal of length n + 1 is end(n); that of length 0 is node 0, the empty sequence."""
    N, C = unary.shape[1:]
    return Recursion(_edges(N, C, pairwise.dim() == 4), torch.where(lengths > 0, N * C + lengths, 0))


@lru_cache(maxsize=8)
def _edges(positions: int, labels: int, per_position: bool) -> Hyperedges:
    """Node 0, then label(n, c) = 1 + n · C + c for all positions and labels, then end(n) = 1 + N · C + n."""
    N, C = positions, labels
    every, none = torch.arange(C), torch.tensor([-1])
    empty = torch.tensor([0]), none, none, none
    first = 1 + every, none.expand(C), every, none.expand(C)
    # label(n, c) from label(n − 1, i)
    n, c, i = (t.flatten() for t in torch.meshgrid(torch.arange(1, N), every, every, indexing="ij"))
    matrix = (n - 1) * C * C if per_position else 0
    later = 1 + n * C + c, 1 + (n - 1) * C + i, n * C + c, N * C + matrix + i * C + c
    # end(n) from label(n, c)
    pair = torch.arange(N * C)
    ends = 1 + N * C + pair // C, 1 + pair, none.expand(N * C), none.expand(N * C)
    head, tail, unary, pairwise = (torch.cat(column) for column in zip(empty, first, later, ends, strict=True))
    return Hyperedges.of(head, tail.unsqueeze(1), torch.stack([unary, pairwise], 1), 1 + N * C + N)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    unary, given = x.new_zeros(1, 2, 2), {"lengths": torch.full((1,), 2, device=x.device)}
    # Scores of moderate and of large range.
    for pairwise in (unary, 1e3 * torch.eye(2, dtype=x.dtype, device=x.device).unsqueeze(0)):
        scores = unary, pairwise
        for name in ("log_partition", "log_partition_and_marginals", "argmax"):
            yield name, scores, given
        yield "marginals_jvp", scores + scores, given
        yield "sample", scores, {"noise": x.new_zeros(1, 1, 2), **given}
