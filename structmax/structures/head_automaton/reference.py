"""The head automaton as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take arc (B, n), sibling (B, n + 1, n + 1) and lengths (B,).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion


def recursion(arc: Tensor, sibling: Tensor, lengths: Tensor) -> Recursion:
    """The goal of l candidates is stop(l)."""
    n = arc.shape[1]
    return Recursion(_edges(n), n + 1 + lengths)


@lru_cache(maxsize=8)
def _edges(n: int) -> Hyperedges:
    """Node 0 is the head, m + 1 says that candidate m is the last one so far, n + 1 + l is stop(l)."""
    size, none = n + 1, torch.tensor([-1])
    start = torch.tensor([0]), none, none, none
    # candidate m after row s, the head or a candidate before it: of the square, what lies on the diagonal or above
    s, m = torch.triu_indices(n, n)
    takes = m + 1, s, m, n + s * size + m
    # stop(l) after row l, or as stop(l − 1)
    row = torch.arange(size)
    stops = size + row, row, none.expand(size), n + row * size + n
    earlier = size + row[1:], size + row[:-1], none.expand(n), none.expand(n)
    head, tail, arc, sibling = (torch.cat(column) for column in zip(start, takes, stops, earlier, strict=True))
    return Hyperedges.of(head, tail.unsqueeze(1), torch.stack([arc, sibling], 1), 2 * size)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls of what the recursion answers."""
    scores, given = (x.new_zeros(1, 2), x.new_zeros(1, 3, 3)), {"lengths": torch.full((1,), 2, device=x.device)}
    for name in ("log_partition", "log_partition_and_marginals", "argmax"):
        yield name, scores, given
    yield "marginals_jvp", scores + scores, given
    yield "sample", scores, {"noise": x.new_zeros(1, 1, 4), **given}
