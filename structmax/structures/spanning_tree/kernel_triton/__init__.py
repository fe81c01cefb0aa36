"""Spanning trees on CUDA: one program for each instance. Derivations: ../README.md.

Sums take two launches: in linear numbers, and in logarithms for the instances whose trees do not fit into them, if any.
Words are eliminated, and come back; a step of either reads the tables of the words that count once, from the nearest
cache. All is computed in float64, whatever the scores are. Labels are summed before, or compared, by torch.
"""

import math
from typing import Any

import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs, usable
from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.searches import few_instances
from structmax.structures.spanning_tree.kernel_triton.elimination import log_sums
from structmax.structures.spanning_tree.kernel_triton.linear import linear_sums
from structmax.structures.spanning_tree.kernel_triton.search import best_trees
from structmax.structures.spanning_tree.reference_given import given

# Most words and the root that a line in registers has lanes for.
LARGEST = 1024
# Most rows of a table that a lane reads at once, in linear numbers.
ROWS = 16
# Most numbers of a tile in registers where exponentials have derivatives; others bear twice as many.
TILE = 2048


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    if tensors[0].shape[1] > LARGEST:
        return f"a program has lanes for {LARGEST} nodes"
    return None


def _few(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    return few_instances(len(tensors[0]))


YIELDS = {"sparsemap": _few}


def _block(size: int) -> int:
    """A line has a lane for each node."""
    return max(16, 1 << (size - 1).bit_length())


def _labels(arc: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Scores of arcs by their best label, what the others add to it in float64, and the share of each label."""
    if arc.dim() == 3:
        return arc, None, None
    peak = arc.amax(-1)
    base = torch.where(peak == -torch.inf, 0.0, peak)
    weight = (arc - base.unsqueeze(-1)).double().exp()
    mass = weight.sum(-1)
    share = weight / torch.where(mass == 0, 1.0, mass).unsqueeze(-1)
    return peak, torch.where(mass == 0, 1.0, mass).log(), share


def _solve(
    arc: Tensor,
    extra: Tensor | None,
    labels: int,
    tangent: Tensor | None,
    words: Tensor,
    single_root: bool,
    parts: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log Z in the dtype of the scores, marginals of arcs if wanted, and their derivatives along a tangent, if any."""
    B, size = arc.shape[:2]
    along = tangent is not None
    number = {"dtype": torch.float64, "device": arc.device}
    tables, lines = torch.empty(9 if along else 5, B, size, size, **number), torch.empty(3, B, size, **number)
    value, left = arc.new_empty(B), torch.empty(B, dtype=torch.int32, device=arc.device)
    mu = d_mu = None
    if parts:
        mu = torch.empty(B, size, size, dtype=torch.float64 if labels > 1 else arc.dtype, device=arc.device)
        d_mu = torch.empty_like(mu) if along else None
    arguments = arc, extra, tangent, words, tables, lines, value, left, mu, d_mu, size, B * size * size, B * size
    flags = bool(single_root), parts, along
    block = _block(size)
    # As many threads as lanes: they wait for each other only where a line is summed up.
    rows = min(ROWS, 2 * TILE // block)
    launch(linear_sums, (B,), arguments, (*flags, rows, block), min(16, max(1, block // 32)))
    rows = min(block, (TILE if along else 2 * TILE) // block)
    launch(log_sums, (B,), (*arguments, labels), (*flags, rows, block), max(1, rows * block // 256))
    return value, mu, d_mu


def log_partition(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    best, extra, _ = _labels(arc)
    return _solve(best.contiguous(), extra, math.prod(arc.shape[3:]), None, words, single_root, False)[0]


def log_partition_and_marginals(
    arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor]:
    arc, words = as_arcs(arc, lengths, directed)
    best, extra, share = _labels(arc)
    value, marginals, _ = _solve(best.contiguous(), extra, math.prod(arc.shape[3:]), None, words, single_root, True)
    assert marginals is not None
    if share is not None:
        used = usable(arc.shape[1], words).unsqueeze(-1)
        marginals = torch.where(used, marginals.unsqueeze(-1) * share, 0.0).to(arc.dtype)
    return value, from_arcs(marginals, directed, arc.dim() == 4)


def marginals_jvp(arc: Tensor, tangent: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    tangent, _ = as_arcs(tangent, lengths, directed)
    arc, words = as_arcs(arc, lengths, directed)
    best, extra, share = _labels(arc)
    along = tangent.double()
    mean, labels = along, math.prod(arc.shape[3:])
    if share is not None:
        # A label that cannot be has no say.
        along = torch.where(share == 0, 0.0, along)
        mean = (share * along).sum(-1)
    _, mu, moved = _solve(best.contiguous(), extra, labels, mean.contiguous(), words, single_root, True)
    assert mu is not None
    assert moved is not None
    if share is not None:
        apart = moved.unsqueeze(-1) + mu.unsqueeze(-1) * (along - mean.unsqueeze(-1))
        used = usable(arc.shape[1], words).unsqueeze(-1)
        moved = torch.where(used, share * apart, 0.0).to(arc.dtype)
    return from_arcs(moved, directed, arc.dim() == 4)


given_log_partition, given_log_partition_and_marginals, given_marginals_jvp = given(
    log_partition_and_marginals, marginals_jvp
)


def argmax(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    labelled = arc.dim() == 4
    score, label = arc.max(-1) if labelled else (arc, None)
    B, size = arc.shape[:2]
    block = _block(size)
    column = torch.empty(B, size, size, dtype=torch.float64, device=arc.device)
    ends = torch.empty(B, size, size, dtype=torch.int32, device=arc.device)
    best = torch.empty(B, size, size, dtype=arc.dtype, device=arc.device)
    arguments = score.contiguous(), words, column, ends, best, size
    # One warp searches as long as registers last: its lanes talk to each other without waiting.
    warps = max(1, block // 128)
    launch(best_trees, (B,), arguments, (bool(single_root), max(1, 1024 * warps // block), block), warps)
    if label is not None:
        chosen = label.unsqueeze(-1) == torch.arange(arc.shape[-1], device=arc.device)
        best = best.unsqueeze(-1) * chosen.to(best.dtype)
    return from_arcs(best, directed, labelled)
