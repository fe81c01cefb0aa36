"""Binary trees as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take scores (B, N, N) or, labelled, (B, N, N, C), and lengths (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(x: Tensor, lengths: Tensor) -> Recursion:
    """The goal of length n is the span [0, n − 1]; that of length 0 is node 0, the empty tree."""
    N, labels = x.shape[1], x.shape[3] if x.dim() == 4 else 0
    # Node 0 and, if there are labels, the labels of all spans come before the spans.
    before = 1 + (N * (N + 1) // 2 if labels else 0)
    edges = _edges(N, labels)
    return Recursion(edges, torch.where(lengths > 0, before + _rank(lengths - 1, 0, N), 0))


def _rank(w: Tensor, i: Tensor | int, N: int) -> Tensor:
    """The place of the span [i, i + w] among all spans, by width and then by where they begin."""
    return w * N - w * (w - 1) // 2 + i


@lru_cache(maxsize=8)
def _edges(N: int, labels: int) -> Hyperedges:
    """A span [i, j] from its label, [i, k] and [k + 1, j], for k = i … j − 1 in turn; a leaf from its label alone."""
    w, i = torch.meshgrid(torch.arange(N), torch.arange(N), indexing="ij")
    w, i = (t[w + i < N] for t in (w, i))
    count = len(w)
    before = 1 + (count if labels else 0)
    part = i * N + i + w
    # One split for each t < w, and one edge for a leaf.
    splits = w.clamp_min(1)
    index = torch.arange(count).repeat_interleave(splits)
    t = torch.arange(len(index)) - (splits.cumsum(0) - splits)[index]
    width, begin, leaf = w[index], i[index], w[index] == 0
    left = before + _rank(t, begin, N)
    right = before + _rank((width - t - 1).clamp_min(0), begin + t + 1, N)
    tails = torch.stack([left, right], 1).masked_fill(leaf.unsqueeze(1), -1)
    heads, parts = before + index, part[index]
    empty = torch.tensor([0])
    if not labels:
        tails = torch.cat([torch.full((1, 2), -1), tails])
        return Hyperedges.of(torch.cat([empty, heads]), tails, torch.cat([empty - 1, parts]).unsqueeze(1), 1 + count)
    # Node 1 + r has the labels of the span of rank r.
    of_label = (1 + torch.arange(count)).repeat_interleave(labels)
    label_parts = (part.unsqueeze(1) * labels + torch.arange(labels)).flatten()
    tails = torch.cat([(1 + index).unsqueeze(1), tails], 1)
    tails = torch.cat([torch.full((1 + len(of_label), 3), -1), tails])
    parts = torch.cat([empty - 1, label_parts, torch.full_like(heads, -1)]).unsqueeze(1)
    return Hyperedges.of(torch.cat([empty, of_label, heads]), tails, parts, before + count)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    given = {"lengths": torch.full((1,), 2, device=x.device)}
    for scores in (x.new_zeros(1, 2, 2), x.new_zeros(1, 2, 2, 2)):
        for name in ("log_partition", "log_partition_and_marginals", "argmax"):
            yield name, (scores,), given
        yield "marginals_jvp", (scores, scores), given
        yield "sample", (scores,), {"noise": x.new_zeros(1, 1, 3), **given}
