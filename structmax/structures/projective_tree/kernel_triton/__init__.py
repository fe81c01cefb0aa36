"""Projective trees in Triton, in log space with charts of float64. Derivations: ../README.md.

Scores are (B, P, P) or, labelled, (B, P, P, C), with P = N + 1 nodes. Kernels of their own take them to tables by width
and back, at the speed of memory: all between is about arcs, whatever their labels. A question is a handful of launches,
unless the batch is too small to fill the machine with one program for each instance and sentences are long: then each
width is a launch. Cells stay in the caches.
"""

from typing import Any

import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.sizes import (
    launches_by_width,
    power_of_two,
    tile_of_labels,
    tile_of_spans,
    tile_of_walks,
    work_dtype,
)
from structmax.structures.projective_tree.kernel_triton.arcs import read_arcs, value_of, write_arcs
from structmax.structures.projective_tree.kernel_triton.chart import TABLES, TABLES_ALONG, inside, outside
from structmax.structures.projective_tree.kernel_triton.walks import walk

# Nodes that a walk keeps an entry for, and labels that a tile has columns for.
MOST_NODES, MOST_LABELS = 4096, 16384


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    _, P, C = _sizes(tensors[0])
    if P > MOST_NODES:
        return f"a program ends at {MOST_NODES - 1} words"
    return f"a program ends at {MOST_LABELS} labels" if C > MOST_LABELS else None


def _sizes(arc: Tensor) -> tuple[int, int, int]:
    """B, P and the number of labels."""
    return arc.shape[0], arc.shape[1], arc.shape[3] if arc.dim() == 4 else 1


def _fill(arc: Tensor, tangent: Tensor | None, lengths: Tensor, single_root: bool, best: bool) -> tuple[Tensor, Tensor]:
    """The tables after the pass from narrow to wide, and the value (B,)."""
    B, P, C = _sizes(arc)
    tables = TABLES if tangent is None else TABLES_ALONG
    chart, value = arc.new_empty(tables, B, P, P, dtype=torch.float64), arc.new_empty(B)
    kind = (best, tangent is not None)
    launch(read_arcs, (B, P), (arc, tangent, lengths, chart, P, B * P * P, C), (*kind, *tile_of_labels(P, C)))
    terms, spans, warps = tile_of_spans(P)
    for first, last, chunks in launches_by_width(B, P, spans):
        arguments = chart, lengths, P, B * P * P, first, last, chunks
        launch(inside, (B, chunks), arguments, (bool(single_root), work_dtype(arc), *kind, terms, spans), warps)
    launch(value_of, (B,), (chart, lengths, value, P, B * P * P), (min(1024, power_of_two(P)),), 1)
    return chart, value


def _marginals(arc: Tensor, tangent: Tensor | None, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
    """The value, and the parts' marginals or, along a tangent, their derivative."""
    B, P, C = _sizes(arc)
    chart, value = _fill(arc, tangent, lengths, single_root, False)
    along = tangent is not None
    terms, spans, warps = tile_of_spans(P)
    for first, last, chunks in reversed(launches_by_width(B, P, spans)):
        arguments = chart, lengths, P, B * P * P, first, last, chunks
        launch(outside, (B, chunks), arguments, (work_dtype(arc), along, terms, spans), warps)
    out = torch.empty_like(arc)
    arguments = arc, tangent, chart, value, lengths, out, P, B * P * P, C
    launch(write_arcs, (B, P), arguments, (along, *tile_of_labels(P, C)))
    return value, out


def _walk(arc: Tensor, noise: Tensor | None, lengths: Tensor, single_root: bool, draws: int) -> Tensor:
    """Trees (B, draws, …), the best where there is no noise."""
    B, P, C = _sizes(arc)
    chart, value = _fill(arc, None, lengths, single_root, noise is None)
    out = arc.new_zeros(B, draws, *arc.shape[1:])
    walks, nodes, labels, warps = tile_of_walks(draws, P, C)
    numbers = 0 if noise is None else noise.shape[2]
    arguments = arc, chart, value, noise, lengths, out, B * draws, draws, P, B * P * P, C, numbers
    constants = bool(single_root), noise is not None, walks, nodes, labels
    launch(walk, (-(-B * draws // walks),), arguments, constants, warps)
    return out


def log_partition(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    return _fill(arc, None, words, single_root, False)[1]


def log_partition_and_marginals(
    arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor]:
    arc, words = as_arcs(arc, lengths, directed)
    value, marginals = _marginals(arc, None, words, single_root)
    return value, from_arcs(marginals, directed, arc.dim() == 4)


def marginals_jvp(arc: Tensor, tangent: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    tangent, _ = as_arcs(tangent, lengths, directed)
    arc, words = as_arcs(arc, lengths, directed)
    return from_arcs(_marginals(arc, tangent, words, single_root)[1], directed, arc.dim() == 4)


def argmax(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    return from_arcs(_walk(arc, None, words, single_root, 1).squeeze(1), directed, arc.dim() == 4)


def sample(arc: Tensor, *, noise: Tensor, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    return from_arcs(_walk(arc, noise, words, single_root, noise.shape[1]), directed, arc.dim() == 4)
