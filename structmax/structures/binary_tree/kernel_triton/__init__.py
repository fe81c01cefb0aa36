"""Binary trees in Triton, in log space. Derivations: ../README.md.

Scores are (B, N, N) or, labelled, (B, N, N, C). Kernels of their own take them to tables by width and back, at the
speed of memory: all between is about spans, whatever their labels. A question is a handful of launches, unless the
batch is too small to fill the machine with one program for each instance and trees are large: then each width is a
launch. Cells stay in the caches.
"""

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.sizes import (
    launches_by_width,
    power_of_two,
    tile_of_labels,
    tile_of_spans,
    tile_of_walks,
)
from structmax.structures.binary_tree.kernel_triton.chart import TABLES, TABLES_ALONG, inside, outside
from structmax.structures.binary_tree.kernel_triton.spans import read_spans, value_of, write_spans
from structmax.structures.binary_tree.kernel_triton.walks import walk

# Leaves that a walk keeps an entry for, and labels that a tile has columns for.
MOST_LEAVES, MOST_LABELS = 4096, 16384


def refuses(name: str, tensors: list[Tensor], fields: dict[str, float]) -> str | None:
    """Why these kernels cannot answer, or None."""
    _, N, C = _sizes(tensors[0])
    if N > MOST_LEAVES:
        return f"a program ends at {MOST_LEAVES} leaves"
    return f"a program ends at {MOST_LABELS} labels" if C > MOST_LABELS else None


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """B, N and the number of labels."""
    return x.shape[0], x.shape[1], x.shape[3] if x.dim() == 4 else 1


def _fill(x: Tensor, tangent: Tensor | None, lengths: Tensor, best: bool) -> tuple[Tensor, Tensor]:
    """The tables after the pass from narrow to wide, and the value (B,)."""
    B, N, C = _sizes(x)
    chart, value = x.new_empty(TABLES if tangent is None else TABLES_ALONG, B, N, N), x.new_empty(B)
    kind = (best, tangent is not None)
    launch(read_spans, (B, N), (x, tangent, lengths, chart, N, B * N * N, C), (*kind, *tile_of_labels(N, C)))
    terms, spans, warps = tile_of_spans(N)
    for first, last, chunks in launches_by_width(B, N, spans):
        arguments = chart, lengths, N, B * N * N, first, last, chunks
        launch(inside, (B, chunks), arguments, (*kind, terms, spans), warps)
    launch(value_of, (B,), (chart, lengths, value, N, B * N * N), (min(1024, power_of_two(N)),), 1)
    return chart, value


def _collect(chart: Tensor, lengths: Tensor, along: bool) -> None:
    """The pass from wide to narrow."""
    _, B, N, _ = chart.shape
    terms, spans, warps = tile_of_spans(N)
    for first, last, chunks in reversed(launches_by_width(B, N, spans)):
        arguments = chart, lengths, N, B * N * N, first, last, chunks
        launch(outside, (B, chunks), arguments, (along, terms, spans), warps)


def _write(
    kind: str, x: Tensor, tangent: Tensor | None, chart: Tensor, value: Tensor, lengths: Tensor, out: Tensor, draws: int
) -> None:
    B, N, C = _sizes(x)
    arguments = x, tangent, chart, value, lengths, out, N, B * N * N, C, draws
    launch(write_spans, (B * draws, N), arguments, (kind, *tile_of_labels(N, C)))


def _walk(x: Tensor, noise: Tensor | None, lengths: Tensor, out: Tensor, draws: int) -> None:
    """The best tree where there is no noise."""
    B, N, C = _sizes(x)
    chart, value = _fill(x, None, lengths, noise is None)
    _write("blank", x, None, chart, value, lengths, out, draws)
    walks, leaves, labels, warps = tile_of_walks(draws, N, C)
    numbers = 0 if noise is None else noise.shape[2]
    arguments = x, chart, value, noise, lengths, out, B * draws, draws, N, B * N * N, C, numbers
    launch(walk, (-(-B * draws // walks),), arguments, (noise is not None, walks, leaves, labels), warps)


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over trees of exp(score): (B,)."""
    return _fill(x, None, lengths, False)[1]


def log_partition_and_marginals(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The value (B,), and the probability of each span, or of each label of it."""
    out = torch.empty_like(x)
    chart, value = _fill(x, None, lengths, False)
    _collect(chart, lengths, False)
    _write("marginals", x, None, chart, value, lengths, out, 1)
    return value, out


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    """The derivative of the marginals along `tangent`."""
    out = torch.empty_like(x)
    chart, value = _fill(x, tangent, lengths, False)
    _collect(chart, lengths, True)
    _write("tangent", x, tangent, chart, value, lengths, out, 1)
    return out


def argmax(x: Tensor, lengths: Tensor) -> Tensor:
    """The parts of a best tree; among equals the first split, the first label."""
    out = torch.empty_like(x)
    _walk(x, None, lengths, out, 1)
    return out


def sample(x: Tensor, noise: Tensor, lengths: Tensor) -> Tensor:
    """The parts of S trees: (B, S, …)."""
    out = x.new_empty(len(x), noise.shape[1], *x.shape[1:])
    _walk(x, noise, lengths, out, noise.shape[1])
    return out
