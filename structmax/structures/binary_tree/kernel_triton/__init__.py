"""Binary trees in Triton, in log space. Derivations: ../README.md.

Scores are (B, N, N) or, labelled, (B, N, N, C). Kernels of their own take them to tables by width and back, at the
speed of memory: all between is about spans, whatever their labels. A question is a handful of launches, unless the
batch is too small to fill the machine with one program for each instance and trees are large: then each width is a
launch (`_launches`). Cells stay in the caches.
"""

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.binary_tree.kernel_triton.chart import TABLES, TABLES_ALONG, inside, outside
from structmax.structures.binary_tree.kernel_triton.spans import read_spans, value_of, write_spans
from structmax.structures.binary_tree.kernel_triton.walks import walk

# Leaves that a walk keeps an entry for, and labels that a tile has columns for.
MOST_LEAVES, MOST_LABELS = 4096, 16384
# Up to so many leaves one program is faster for an instance than a launch for each width.
FEW_LEAVES = 256
# From so many instances on, one program for each fills the machine.
MANY_INSTANCES = 128


def refuses(name: str, tensors: list[Tensor], fields: dict[str, float]) -> str | None:
    """Why these kernels cannot answer, or None."""
    _, N, C = _sizes(tensors[0])
    if N > MOST_LEAVES:
        return f"they take at most {MOST_LEAVES} leaves"
    return f"they take at most {MOST_LABELS} labels" if C > MOST_LABELS else None


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """B, N and the number of labels."""
    return x.shape[0], x.shape[1], x.shape[3] if x.dim() == 4 else 1


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def _tile(N: int) -> tuple[int, int, int]:
    """TERMS, SPANS and warps of a tile of the chart."""
    spans = min(64, max(16, _power(N)))
    terms = min(2048 // spans, max(16, _power(N)))
    return terms, spans, max(1, terms * spans // 256)


def _columns(N: int, C: int) -> tuple[int, int]:
    """COLUMNS and LABELS of a tile of scores."""
    labels = _power(C)
    return max(1, min(1024 // labels, _power(N))), labels


def _launches(B: int, N: int, spans: int, many: int = MANY_INSTANCES) -> list[tuple[int, int, int]]:
    """The widths [first, last) of each launch from narrow to wide, and how many programs share an instance."""
    if N <= FEW_LEAVES or B >= many:
        return [(1, N, 1)]
    return [(w, w + 1, -(-(N - w) // spans)) for w in range(1, N)]


def _filled(x: Tensor, tangent: Tensor | None, lengths: Tensor, best: bool) -> tuple[Tensor, Tensor]:
    """The tables after the pass from narrow to wide, and the value (B,)."""
    B, N, C = _sizes(x)
    tables = TABLES if tangent is None else TABLES_ALONG
    chart, value = x.new_empty(tables, B, N, N), x.new_empty(B)
    kind = (best, tangent is not None)
    launch(read_spans, (B, N), (x, tangent, lengths, chart, N, B * N * N, C), (*kind, *_columns(N, C)))
    terms, spans, warps = _tile(N)
    for first, last, chunks in _launches(B, N, spans):
        arguments = chart, lengths, N, B * N * N, first, last, chunks
        launch(inside, (B, chunks), arguments, (*kind, terms, spans), warps)
    launch(value_of, (B,), (chart, lengths, value, N, B * N * N), (min(1024, _power(N)),), 1)
    return chart, value


def _collect(chart: Tensor, lengths: Tensor, along: bool) -> None:
    """The pass from wide to narrow."""
    _, B, N, _ = chart.shape
    terms, spans, warps = _tile(N)
    for first, last, chunks in reversed(_launches(B, N, spans)):
        arguments = chart, lengths, N, B * N * N, first, last, chunks
        launch(outside, (B, chunks), arguments, (along, terms, spans), warps)


def _write(
    x: Tensor, tangent: Tensor | None, chart: Tensor, value: Tensor, lengths: Tensor, out: Tensor, draws: int, kind: str
) -> None:
    B, N, C = _sizes(x)
    arguments = x, tangent, chart, value, lengths, out, N, B * N * N, C, draws
    launch(write_spans, (B * draws, N), arguments, (kind, *_columns(N, C)))


def _walk(x: Tensor, noise: Tensor | None, lengths: Tensor, out: Tensor, draws: int) -> None:
    B, N, C = _sizes(x)
    chart, value = _filled(x, None, lengths, noise is None)
    _write(x, None, chart, value, lengths, out, draws, "blank")
    leaves, labels = _power(N), _power(C)
    walks = max(1, min(_power(draws), 256 // max(leaves, labels)))
    warps = max(1, min(8, leaves // 256))
    noises = 0 if noise is None else noise.shape[2]
    arguments = x, chart, value, noise, lengths, out, B * draws, draws, N, B * N * N, C, noises
    launch(walk, (-(-B * draws // walks),), arguments, (noise is not None, walks, leaves, labels), warps)


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over trees of exp(score): (B,)."""
    return _filled(x, None, lengths, False)[1]


def log_partition_and_marginals(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The value (B,), and the probability of each span, or of each label of it."""
    out = torch.empty_like(x)
    chart, value = _filled(x, None, lengths, False)
    _collect(chart, lengths, False)
    _write(x, None, chart, value, lengths, out, 1, "marginals")
    return value, out


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    """The derivative of the marginals along `tangent`."""
    out = torch.empty_like(x)
    chart, value = _filled(x, tangent, lengths, False)
    _collect(chart, lengths, True)
    _write(x, tangent, chart, value, lengths, out, 1, "tangent")
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
