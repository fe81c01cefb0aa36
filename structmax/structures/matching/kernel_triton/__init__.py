"""Best and entropic matchings and potentials on CUDA: a program for each instance. Derivations: ../README.md."""

from typing import Any

import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.searches import few_searches
from structmax.structures.matching.kernel_triton.assignment import best_matchings
from structmax.structures.matching.kernel_triton.laplacian import solve_sums
from structmax.structures.matching.kernel_triton.newton import descend
from structmax.structures.matching.kernel_triton.reach import prepare, survey
from structmax.structures.matching.range import FAR, ROOM
from structmax.structures.matching.transport import TOLERANCES_FROM_ONE, UNITS_FROM_ONE

# Most rows or columns that a program has lanes for.
LARGEST = 2048
# Most numbers of a tile in registers.
TILE = 4096
# The same for the entropic matching, and how many of them a warp has.
LINES, LINES_PER_WARP = 2048, 256


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    if max(tensors[0].shape[1:]) > LARGEST:
        return f"a program has lanes for {LARGEST} rows or columns"
    return None


# a row is a position, and its columns are the choices
YIELDS = {"sparsemap": lambda name, tensors, fields: few_searches(len(tensors[0]), tensors[0].shape[-1])}


def _block(N: int, M: int) -> int:
    return max(16, 1 << (max(N, M) - 1).bit_length())


def _lines(short: int, long: int) -> tuple[int, int, int]:
    """Lines and items of a tile of the entropic matching, and warps."""
    block = max(16, 1 << (short - 1).bit_length())
    height = max(1, min(LINES // block, 1 << (long - 1).bit_length()))
    return height, block, max(1, height * block // LINES_PER_WARP)


def argmax(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    best = torch.empty_like(scores)
    if best.numel() > 0:
        _match(scores, rows, columns, partial, best)
    return best


def _match(scores: Tensor, rows: Tensor, columns: Tensor, partial: bool, best: Tensor) -> None:
    B, N, M = scores.shape
    block = _block(N, M)
    # Lanes of one warp talk to each other without waiting for others.
    warps = max(1, block // 256)
    limit = torch.finfo(scores.dtype).max / ROOM
    arguments = scores, rows, columns, best, N, M, limit
    launch(best_matchings, (B,), arguments, (bool(partial), max(1, 512 * warps // block), block), warps)


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


@returns("parts", "value", "value", "value:int32", "value:bool")
def sinkhorn(
    scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, temperature: float, tol: float, max_iter: int
) -> tuple[Tensor, ...]:
    """The entropic matching, its value, its error, passes, and whether it is converged: four launches."""
    B, N, M = scores.shape
    number, device = torch.finfo(scores.dtype), scores.device
    out = torch.zeros_like(scores)
    value, error = scores.new_zeros(B), scores.new_zeros(B)
    passes = torch.zeros(B, dtype=torch.int32, device=device)
    if out.numel() == 0:
        return out, value, error, passes, torch.ones(B, dtype=torch.bool, device=device)
    short, long = min(N, M), max(N, M)
    height, block, warps = _lines(short, long)
    constants = bool(partial), height, block
    exact = {"dtype": torch.float64, "device": device}
    shared, best = torch.empty(B, N, M, **exact), torch.empty(B, N, M, **exact)
    tables, couplings = torch.empty(B, long, short, **exact), torch.empty(B, short, short, **exact)
    lines, numbers = torch.empty(B, 4 * block + 5 * long, **exact), torch.empty(B, 3, **exact)
    needs, kinds = torch.empty_like(passes), torch.empty_like(passes)
    needy = torch.empty_like(rows), torch.empty_like(columns)
    converged = torch.empty(B, dtype=torch.bool, device=device)

    arguments = scores, rows, columns, shared, needs, kinds, *needy, N, M, FAR * temperature
    launch(survey, (B,), arguments, constants, warps)
    _match(shared, *needy, partial, best)
    arguments = scores, rows, columns, shared, best, needs, kinds, tables, numbers, couplings, lines, N, M, short, long
    numbers_of = temperature, 800.0 * short * temperature, number.max
    launch(prepare, (B,), (*arguments, *numbers_of), constants, warps)
    # the matching is not needed any more
    arguments = tables, rows, columns, kinds, numbers, best, couplings, lines, out, value, error, passes, converged
    launch(descend, (B,), (*arguments, N, M, short, long, temperature, tol, max_iter), constants, warps)
    return out, value, error, passes, converged
