"""Trees that have all required parts: the same questions about a graph whose trees all have them.

A required arc forbids all other arcs into its dependent. A required edge forbids no other edge: it is contracted. The
scores of either graph have the same shape and are a differentiable function of the given ones, and gradients come back
through it by the chain rule.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax.numerics.arcs import usable
from structmax.structures.spanning_tree.reference_logs import finite, log_of, log_sum


def requiring(scores: Tensor, required: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    """Scores whose trees stand for those of `scores` that have all required parts, and weigh as much."""
    wanted = required > 0
    if directed:
        into = tuple(d for d in range(1, scores.dim()) if d != 2)
        return _without_rivals(scores, wanted, into)
    if not single_root:
        return _contracted(scores, wanted, lengths)
    # The only edge of node 0 forbids its others, as an arc does. It is not contracted: what it leads to is no root.
    root = torch.arange(scores.shape[1], device=scores.device) == 0
    root = root.reshape(-1, 1, *(1,) * (scores.dim() - 3))
    use = usable(scores.shape[1], lengths - 1).reshape(*scores.shape[:3], *(1,) * (scores.dim() - 3))
    alone = _without_rivals(scores, wanted & use, tuple(range(2, scores.dim())))
    return _contracted(torch.where(root, alone, scores), wanted & ~root, lengths)


def _without_rivals(scores: Tensor, wanted: Tensor, among: tuple[int, ...]) -> Tensor:
    """−inf for all but the wanted one along these dimensions, where one is wanted; for all, where there are two."""
    count = wanted.sum(among, keepdim=True)
    return scores.masked_fill((count > 0) & ~(wanted & (count == 1)), -math.inf)


def _contracted(scores: Tensor, wanted: Tensor, lengths: Tensor) -> Tensor:
    """Parallel edges between two sets of nodes that required edges join become one, between the sets' first nodes.

    The other nodes of a set hang on its first one by their only edge, and these edges share the required scores.
    """
    labelled = scores.dim() == 4
    edges, wanted = (scores, wanted) if labelled else (scores.unsqueeze(-1), wanted.unsqueeze(-1))
    nodes = scores.shape[1]
    use = usable(nodes, lengths - 1).triu().unsqueeze(-1)
    wanted = wanted & use
    edge = log_sum(torch.where(use, edges, -math.inf))
    first = _first_of_set(wanted.any(-1))
    ends = torch.stack(torch.broadcast_tensors(first.unsqueeze(2), first.unsqueeze(1)))
    # Where edge {i, j} goes
    place = (ends.amin(0) * nodes + ends.amax(0)).flatten(1)
    across = torch.where(ends[0] == ends[1], -math.inf, edge).flatten(1)
    peak = finite(torch.full_like(across, -math.inf).scatter_reduce(1, place, across.detach(), "amax"))
    total = torch.zeros_like(across).scatter_add(1, place, (across - peak.gather(1, place)).exp())
    merged = log_of(total, peak).view_as(edge)
    node = torch.arange(nodes, device=scores.device)
    leaf = first != node
    count = wanted.flatten(1).sum(1)
    share = torch.where(wanted, edges, 0.0).flatten(1).sum(1) / count.clamp_min(1)
    # Where required edges close a cycle, there are fewer nodes to hang than edges.
    share = torch.where(leaf.sum(1) == count, share, -math.inf)
    hung = leaf.unsqueeze(1) & (node.unsqueeze(-1) == first.unsqueeze(1))
    merged = torch.where(hung, share[:, None, None], merged)
    if not labelled:
        return merged
    return torch.nn.functional.pad(merged.unsqueeze(-1), (0, scores.shape[3] - 1), value=-math.inf)


def _first_of_set(joined: Tensor) -> Tensor:
    """The first node of the set that each node belongs to, where `joined` (B, N, N) holds some edges: (B, N)."""
    reach = (
        joined | joined.transpose(1, 2) | torch.eye(joined.shape[1], dtype=torch.bool, device=joined.device)
    ).float()
    for _ in range(joined.shape[1].bit_length()):
        reach = (reach @ reach).clamp_max(1.0)
    return (reach > 0).to(torch.int8).argmax(2)


def given(
    both: Callable[..., Any], marginals_jvp: Callable[..., Any]
) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]:
    """`given_log_partition`, `given_log_partition_and_marginals` and `given_marginals_jvp`, from the ones not given."""

    def given_log_partition(scores: Tensor, required: Tensor, **fields: Any) -> Tensor:
        return both(requiring(scores, required, **fields).contiguous(), **fields)[0]

    def given_log_partition_and_marginals(scores: Tensor, required: Tensor, **fields: Any) -> tuple[Tensor, Tensor]:
        graph, pullback = torch.func.vjp(lambda s: requiring(s, required, **fields), scores)  # type: ignore[misc]
        value, marginals = both(graph.contiguous(), **fields)
        return value, pullback(marginals)[0]

    def given_marginals_jvp(scores: Tensor, required: Tensor, tangent: Tensor, **fields: Any) -> Tensor:
        def graph(s: Tensor) -> Tensor:
            return requiring(s, required, **fields)

        def pulled(s: Tensor, marginals: Tensor) -> Tensor:
            return torch.func.vjp(graph, s)[1](marginals)[0]

        there, d_there = torch.func.jvp(graph, (scores,), (tangent,))  # type: ignore[misc]
        there, d_there = there.contiguous(), torch.where(there == -math.inf, 0.0, d_there).contiguous()
        marginals, d_marginals = both(there, **fields)[1], marginals_jvp(there, d_there, **fields)
        return torch.func.jvp(pulled, (scores, marginals), (tangent, d_marginals))[1]

    return given_log_partition, given_log_partition_and_marginals, given_marginals_jvp
