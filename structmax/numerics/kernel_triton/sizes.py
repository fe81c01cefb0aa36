"""Tiles, warps and launches of the kernels about spans, chosen from sizes alone. To be tuned here."""

import torch
import triton.language as tl
from torch import Tensor

# Up to so many positions one program is faster for an instance than a launch for each width.
FEW_POSITIONS = 256
# From so many instances on, one program for each fills the machine.
MANY_INSTANCES = 128
# The largest tile of a chart.
MOST_SPANS, MOST_TERMS = 64, 128


def work_dtype(scores: Tensor) -> tl.dtype:
    """WORK, the dtype of exponentials: that of the scores."""
    return tl.float64 if scores.dtype == torch.float64 else tl.float32


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def tile_of_spans(N: int) -> tuple[int, int, int]:
    """TERMS, SPANS and warps of a tile of a chart."""
    side = max(16, power_of_two(N))
    spans = min(MOST_SPANS, side)
    terms = min(MOST_TERMS, 2048 // spans, side)
    return terms, spans, max(1, terms * spans // 256)


def tile_of_labels(N: int, C: int) -> tuple[int, int]:
    """COLUMNS and LABELS of a tile of a row of scores (N, C)."""
    labels = power_of_two(C)
    return max(1, min(1024 // labels, power_of_two(N))), labels


def tile_of_walks(draws: int, N: int, C: int) -> tuple[int, int, int, int]:
    """WALKS, the columns of a walk, LABELS and warps of a tile of walks."""
    columns, labels = power_of_two(N), power_of_two(C)
    walks = max(1, min(power_of_two(draws), 256 // max(columns, labels)))
    return walks, columns, labels, max(1, min(8, columns // 256))


def launches_by_width(B: int, N: int, spans: int) -> list[tuple[int, int, int]]:
    """The widths [first, last) of each launch from narrow to wide, and how many programs share an instance."""
    if N <= FEW_POSITIONS or B >= MANY_INSTANCES:
        return [(1, N, 1)]
    return [(w, w + 1, -(-(N - w) // spans)) for w in range(1, N)]
