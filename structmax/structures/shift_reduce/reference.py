"""Transition sequences as a recursion, from which every question is answered. Derivation: README.md in this folder."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(scores: Tensor, lengths: Tensor) -> Recursion:
    """For scores (B, 2N − 1, 2): the goal has shifted all leaves, and reduced once less; without leaves, nothing."""
    N = (scores.shape[1] + 1) // 2
    return Recursion(_edges(N), lengths * N + (lengths - 1).clamp_min(0))


@lru_cache(maxsize=8)
def _edges(N: int) -> Hyperedges:
    """Node s · N + r has shifted s leaves and reduced r times; r < s but at the start."""
    s, r = (t.flatten() for t in torch.meshgrid(torch.arange(1, N + 1), torch.arange(N), indexing="ij"))
    node, step = s * N + r, s + r - 1
    shifts, reduces = (r < s - 1) | (step == 0), (r < s) & (r > 0)
    start = torch.tensor([0]), torch.tensor([-1]), torch.tensor([-1])
    by_shift = node[shifts], node[shifts] - N, 2 * step[shifts]
    by_reduce = node[reduces], node[reduces] - 1, 2 * step[reduces] + 1
    head, tail, part = (torch.cat(column) for column in zip(start, by_shift, by_reduce, strict=True))
    return Hyperedges.of(head, tail.unsqueeze(1), part.unsqueeze(1), (N + 1) * N)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls of what the recursion answers."""
    scores, given = x.new_zeros(1, 5, 2), {"lengths": torch.full((1,), 3, device=x.device)}
    for name in ("log_partition", "log_partition_and_marginals", "argmax"):
        yield name, (scores,), given
    yield "marginals_jvp", (scores, scores), given
    yield "sample", (scores,), {"noise": x.new_zeros(1, 1, 1), **given}
