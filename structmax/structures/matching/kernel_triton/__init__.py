"""Best matchings on CUDA, in one launch: a program for each instance. Derivations: ../README.md."""

from typing import Any

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch, widened
from structmax.structures.matching.kernel_triton.assignment import best_matchings
from structmax.structures.matching.range import ROOM

# Most rows or columns that a program has lanes for.
LARGEST = 2048


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    if max(tensors[0].shape[1:]) > LARGEST:
        return f"a program has lanes for {LARGEST} rows or columns"
    return None


def argmax(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    scores = widened(scores)
    B, N, M = scores.shape
    best = torch.empty_like(scores)
    if best.numel() == 0:
        return best
    block = max(16, 1 << (max(N, M) - 1).bit_length())
    # Lanes of one warp talk to each other without waiting for others.
    warps = max(1, block // 256)
    limit = torch.finfo(scores.dtype).max / ROOM
    arguments = scores, rows, columns, best, N, M, limit
    launch(best_matchings, (B,), arguments, (bool(partial), max(1, 512 * warps // block), block), warps)
    return best
