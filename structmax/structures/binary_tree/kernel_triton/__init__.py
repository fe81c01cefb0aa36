"""Binary trees in Triton, in log space with charts of float64. Derivations: ../README.md.

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
    work_dtype,
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
    tables = TABLES if tangent is None else TABLES_ALONG
    chart, value = x.new_empty(tables, B, N, N, dtype=torch.float64), x.new_empty(B)
    kind = (best, tangent is not None)
    launch(read_spans, (B, N), (x, tangent, lengths, chart, N, B * N * N, C), (*kind, *tile_of_labels(N, C)))
    terms, spans, warps = tile_of_spans(N)
    for first, last, chunks in launches_by_width(B, N, spans):
        arguments = chart, lengths, N, B * N * N, first, last, chunks
        launch(inside, (B, chunks), arguments, (work_dtype(x), *kind, terms, spans), warps)
    launch(value_of, (B,), (chart, lengths, value, N, B * N * N), (min(1024, power_of_two(N)),), 1)
    return chart, value


def _marginals(x: Tensor, tangent: Tensor | None, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The value, and the parts' marginals or, along a tangent, their derivative."""
    B, N, C = _sizes(x)
    chart, value = _fill(x, tangent, lengths, False)
    along = tangent is not None
    terms, spans, warps = tile_of_spans(N)
    for first, last, chunks in reversed(launches_by_width(B, N, spans)):
        arguments = chart, lengths, N, B * N * N, first, last, chunks
        launch(outside, (B, chunks), arguments, (work_dtype(x), along, terms, spans), warps)
    out = torch.empty_like(x)
    arguments = x, tangent, chart, value, lengths, out, N, B * N * N, C
    launch(write_spans, (B, N), arguments, (along, *tile_of_labels(N, C)))
    return value, out


def _walk(x: Tensor, noise: Tensor | None, lengths: Tensor, draws: int) -> Tensor:
    """Trees (B, draws, …), the best where there is no noise."""
    B, N, C = _sizes(x)
    chart, value = _fill(x, None, lengths, noise is None)
    out = x.new_zeros(B, draws, *x.shape[1:])
    walks, leaves, labels, warps = tile_of_walks(draws, N, C)
    numbers = 0 if noise is None else noise.shape[2]
    arguments = x, chart, value, noise, lengths, out, B * draws, draws, N, B * N * N, C, numbers
    launch(walk, (-(-B * draws // walks),), arguments, (noise is not None, walks, leaves, labels), warps)
    return out


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over trees of exp(score): (B,)."""
    return _fill(x, None, lengths, False)[1]


def log_partition_and_marginals(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The value (B,), and the probability of each span, or of each label of it."""
    return _marginals(x, None, lengths)


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    """The derivative of the marginals along `tangent`."""
    return _marginals(x, tangent, lengths)[1]


def argmax(x: Tensor, lengths: Tensor) -> Tensor:
    """The parts of a best tree; among equals the first split, the first label."""
    return _walk(x, None, lengths, 1).squeeze(1)


def sample(x: Tensor, noise: Tensor, lengths: Tensor) -> Tensor:
    """The parts of S trees: (B, S, …)."""
    return _walk(x, noise, lengths, noise.shape[1])
