"""The log-partition of spanning trees by elimination of words, in logarithms. Derivations: README.md in this folder."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.contract import by_autograd
from structmax.numerics.arcs import as_arcs, from_arcs, usable
from structmax.structures.spanning_tree.reference_given import given
from structmax.structures.spanning_tree.reference_logs import finite, log_add, log_sum
from structmax.structures.spanning_tree.reference_prices import brought_near
from structmax.structures.spanning_tree.reference_trees import argmax as argmax
from structmax.structures.spanning_tree.reference_trees import max_marginals as max_marginals
from structmax.structures.spanning_tree.reference_trees import topk as topk
from structmax.structures.spanning_tree.reference_walk import sample as sample
from structmax.structures.spanning_tree.reference_walk import sample_without_replacement as sample_without_replacement


def log_partition(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    near, words, lost = brought_near(arc, lengths, single_root, directed)
    value = _eliminated(near, words=words, single_root=single_root)
    return value if lost is None else (value + lost).to(arc.dtype)


def marginals(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    near, words, lost = brought_near(arc, lengths, single_root, directed)
    parts = _derived["marginals"](near, words=words, single_root=single_root)[0]
    if lost is not None:
        # Rounding may leave a small number in place of 0, which matters next to a mask.
        parts = torch.where(parts.abs() > arc.shape[1] * torch.finfo(parts.dtype).eps, parts, 0.0)
    return from_arcs(parts.to(arc.dtype), directed, arc.dim() == 4)


def marginals_jvp(arc: Tensor, tangent: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    near, words, _ = brought_near(arc, lengths, single_root, directed)
    along = as_arcs(tangent, lengths, directed)[0].to(near.dtype)
    parts = _derived["marginals_jvp"](near, along, words=words, single_root=single_root)[0]
    return from_arcs(parts.to(arc.dtype), directed, arc.dim() == 4)


def _eliminated(arc: Tensor, *, words: Tensor, single_root: bool) -> Tensor:
    """log Z of arcs, differentiable."""
    arcs = arc if arc.dim() == 4 else arc.unsqueeze(-1)
    weight = log_sum(torch.where(usable(arc.shape[1], words).unsqueeze(-1), arcs, -math.inf))
    value = weight.new_zeros(len(arc))
    for k in range(arc.shape[1] - 1, 0, -1):
        weight, pivot = (_without_single_root if single_root else _without)(weight)
        # A word past the length has no heads either, and is skipped.
        value = value + torch.where((pivot == -math.inf) & (k > words), 0.0, pivot)
    # No gradient where nothing is feasible.
    return torch.where(value == -math.inf, -math.inf, value)


def _without(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The graph without its last word, and the factor its trees lack: logarithms (B, K, K) and (B,)."""
    column, row, rest = weight[:, :-1, -1], weight[:, -1, :-1], weight[:, :-1, :-1]
    pivot = log_sum(column)
    share = column - finite(pivot).unsqueeze(-1)
    return log_add(rest, share.unsqueeze(-1) + row.unsqueeze(-2)), pivot


def _without_single_root(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same where the root has one dependent: its row is a mean of its own arcs and those of the last word."""
    column, row, rest = weight[:, 1:-1, -1], weight[:, -1, :-1], weight[:, :-1, :-1]
    from_words, from_root = log_sum(column), weight[:, 0, -1]
    pivot = log_add(from_words, from_root)
    # A word without heads among the words can only hang on the root. Any head will do: word 1 has not gone yet.
    lonely = (from_words == -math.inf).unsqueeze(-1)
    first = torch.where(torch.arange(column.shape[-1], device=column.device) == 0, 0.0, -math.inf)
    share = torch.where(lonely, first, column - finite(from_words).unsqueeze(-1))
    words = log_add(rest[:, 1:], share.unsqueeze(-1) + row.unsqueeze(-2))
    stays = torch.where(pivot == -math.inf, 0.0, from_words - finite(pivot))
    hangs = from_root - finite(pivot)
    root = log_add(stays.unsqueeze(-1) + rest[:, 0], hangs.unsqueeze(-1) + row)
    return torch.cat([root.unsqueeze(1), words], 1), pivot


_derived = by_autograd(_eliminated)


def _log_partition_and_marginals(arc: Tensor, **fields: Any) -> tuple[Tensor, Tensor]:
    return log_partition(arc, **fields), marginals(arc, **fields)


given_log_partition, given_log_partition_and_marginals, given_marginals_jvp = given(
    _log_partition_and_marginals, marginals_jvp
)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    arc = x.new_zeros(2, 4, 4)
    fields = {"lengths": torch.full((2,), 3, device=x.device), "single_root": True, "directed": True}
    yield "log_partition", (arc,), fields
    yield "log_partition_and_marginals", (arc,), fields
    # a cycle that leaves to trees less than linear numbers can tell
    yield (
        "log_partition_and_marginals",
        (x.new_tensor([0.0, 0.0, 2e3, 0.0] * 4).reshape(1, 4, 4).expand(2, 4, 4),),
        fields,
    )
    yield "marginals_jvp", (arc, arc), fields
    yield "argmax", (arc,), fields
    yield "topk", (arc,), {"k": 2, **fields}
    yield "max_marginals", (arc,), fields
    yield "sample", (arc,), {"noise": x.new_zeros(2, 1, 4), **fields}
    yield "sample_without_replacement", (arc,), {"noise": x.new_zeros(2, 1, 4), **fields}
