"""Labels of trees as a recursion, from which every question is answered. Derivation: README.md in this folder.

Functions take unary (B, N, C), pairwise (B, C, C) or (B, N, C, C), parents (B, N) and lengths (B,).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.recursion.edges import Hyperedges, Recursion

# The tree without nodes, on which the roots are put.
EMPTY = 0
# The parents make the edges: an engine that prepares tables of them would do so for each batch.
EDGES_OF_VALUES = True


def recursion(unary: Tensor, pairwise: Tensor, parents: Tensor, lengths: Tensor) -> Recursion:
    """Nodes of each different tree in the batch: own(n, c) by itself, and joined(r, c) with the r-th node below it.

    Nodes join their parents one after the other, the deepest first; the roots join one another at the end.
    """
    N, C = unary.shape[1:]
    counts = lengths.cpu().unsqueeze(1)
    padded = torch.where(torch.arange(N) < counts, parents.cpu(), N)
    trees, which = torch.cat([counts, padded], 1).unique(dim=0, return_inverse=True)
    K, count, above = len(trees), trees[:, 0], trees[:, 1:]
    rank = _order(above)
    first = EMPTY + 1 + 2 * N * C * torch.arange(K).unsqueeze(1)
    own, joined = first + C * torch.arange(N), first + N * C + C * rank
    # (K, N): where a node stands complete, after its last child, and its parent before the node joins
    last, before = _neighbours(above, rank)
    complete = torch.where(last >= 0, joined.gather(1, last.clamp_min(0)), own)
    start = torch.where(above >= 0, own.gather(1, above.clamp(0, N - 1)), EMPTY)
    base = torch.where(before >= 0, joined.gather(1, before.clamp_min(0)), start)

    labels, none = torch.arange(C), torch.tensor([-1])
    here = torch.arange(N) < count.unsqueeze(1)
    edges = [(torch.tensor([EMPTY]), none, none, none)]
    k, n = here.nonzero().T
    leaf = _each(own[k, n], labels)
    edges.append((leaf, none.expand(len(leaf)), none.expand(len(leaf)), _each(n * C, labels)))
    # joined(r, i) from the parent with label i and the node, complete, with label j
    k, n = (here & (above >= 0)).nonzero().T
    i, j = (t.flatten() for t in torch.meshgrid(labels, labels, indexing="ij"))
    matrix = n * C * C if pairwise.dim() == 4 else 0 * n
    pair = N * C + _each(matrix, i * C + j)
    edges.append((_each(joined[k, n], i), _each(base[k, n], i), _each(complete[k, n], j), pair))
    # a root has no parent whose label matters
    k, n = (here & (above < 0)).nonzero().T
    tail = _each(complete[k, n], labels)
    alone = 0 * labels
    edges.append((_each(joined[k, n], alone), _each(base[k, n], alone), tail, none.expand(len(tail))))
    head, parent, child, part = (torch.cat(column) for column in zip(*edges, strict=True))
    hyperedges = Hyperedges.of(head, torch.stack([parent, child], 1), part.unsqueeze(1), EMPTY + 1 + 2 * N * C * K)
    goal = EMPTY + 1 + (2 * which + 1) * N * C + C * (lengths.cpu() - 1)
    return Recursion(hyperedges, torch.where(lengths.cpu() > 0, goal, EMPTY))


def _each(places: Tensor, offsets: Tensor) -> Tensor:
    return (places.unsqueeze(1) + offsets).flatten()


def _order(above: Tensor) -> Tensor:
    """The place of each node (K, N) in its tree, the deepest first, and padding, whose parent is N, last."""
    N = above.shape[1]
    depth, at = torch.zeros_like(above), torch.where(above < N, above, -1)
    for _ in range(N):
        depth += at >= 0
        at = torch.where(at < 0, -1, above.gather(1, at.clamp_min(0)))
    depth = torch.where(above < N, depth, -1)
    return depth.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def _neighbours(above: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """Of each node (K, N) the child that joins last, and the sibling that joins just before it; −1 for none."""
    K, N = above.shape
    family = (above + 1) * N + rank
    order = family.argsort(dim=1)
    parent = above.gather(1, order)
    same = torch.nn.functional.pad(parent[:, 1:] == parent[:, :-1], (1, 0))
    earlier = torch.nn.functional.pad(order[:, :-1], (1, 0))
    before = torch.full_like(above, -1).scatter(1, order, torch.where(same, earlier, -1))
    # the last of a family is the one that is before nobody
    final = torch.nn.functional.pad(~same[:, 1:], (0, 1), value=True)
    place = torch.where(final & (parent >= 0), parent, N).clamp_max(N)
    last = torch.full((K, N + 1), -1).scatter(1, place, order)[:, :N]
    return last, before


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls of what the recursion answers."""
    scores = x.new_zeros(1, 2, 2), x.new_zeros(1, 2, 2)
    parents, lengths = torch.tensor([[-1, 0]], device=x.device), torch.full((1,), 2, device=x.device)
    given = {"parents": parents, "lengths": lengths}
    for name in ("log_partition", "log_partition_and_marginals", "argmax"):
        yield name, scores, given
    yield "marginals_jvp", scores + scores, given
    yield "sample", scores, {"noise": x.new_zeros(1, 1, 2), **given}
