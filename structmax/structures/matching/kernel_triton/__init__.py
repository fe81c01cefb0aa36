"""Best matchings and potentials on CUDA, in one launch each: a program for each instance. Derivations: ../README.md."""

from typing import Any

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.matching.kernel_triton.assignment import best_matchings
from structmax.structures.matching.kernel_triton.laplacian import solve_sums
from structmax.structures.matching.range import ROOM
from structmax.structures.matching.transport import TOLERANCES_FROM_ONE, UNITS_FROM_ONE

# Most rows or columns that a program has lanes for.
LARGEST = 2048
# Most numbers of a tile in registers.
TILE = 4096


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    if max(tensors[0].shape[1:]) > LARGEST:
        return f"a program has lanes for {LARGEST} rows or columns"
    return None


def _block(N: int, M: int) -> int:
    return max(16, 1 << (max(N, M) - 1).bit_length())


def argmax(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    B, N, M = scores.shape
    best = torch.empty_like(scores)
    if best.numel() == 0:
        return best
    block = _block(N, M)
    # Lanes of one warp talk to each other without waiting for others.
    warps = max(1, block // 256)
    limit = torch.finfo(scores.dtype).max / ROOM
    arguments = scores, rows, columns, best, N, M, limit
    launch(best_matchings, (B,), arguments, (bool(partial), max(1, 512 * warps // block), block), warps)
    return best


def potentials(parts: Tensor, x: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, tol: float) -> Tensor:
    """K x = a ⊕ b, such that μ ∘ (a ⊕ b) has the sums of x where those of μ are held at 1: (B, N, M)."""
    near = max(UNITS_FROM_ONE * torch.finfo(parts.dtype).eps, TOLERANCES_FROM_ONE * tol)
    B, N, M = parts.shape
    out = torch.empty_like(x)
    if out.numel() == 0:
        return out
    number = {"dtype": torch.float64, "device": x.device}
    block = _block(N, M)
    couplings, lines = torch.empty(B, N, N, **number), torch.empty(B, 5, block, **number)
    height = min(block, max(1, TILE // block))
    arguments = parts, x, rows, columns, couplings, lines, out, N, M, 1.0 - near
    launch(solve_sums, (B,), arguments, (bool(partial), height, block), max(1, height * block // 256))
    return out
