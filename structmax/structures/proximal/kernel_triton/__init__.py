"""The proximal maps on CUDA: a program for each row merges its runs in rounds. Derivations: ../README.md.

Total variation takes one launch; OSCAR sorts by torch before. `prox_owl` is left to the CPU.
"""

from typing import Any

import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_triton import launch
from structmax.structures.proximal.kernel_triton.means import average
from structmax.structures.proximal.kernel_triton.pools import pool
from structmax.structures.proximal.kernel_triton.runs import cluster, fuse

# Longest row that a program has lanes for.
LARGEST = 4096
PER_WARP = 256
# Groups that are averaged at once.
GROUPS = 16


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    return f"a program has lanes for {LARGEST} entries" if tensors[0].shape[1] > LARGEST else None


def _lanes(n: int) -> int:
    """A power of two."""
    return max(32, 1 << max(n - 1, 0).bit_length())


def _outputs(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """y, groups, a strength for each row, lines of memory, and how many lanes a row has."""
    B, n = x.shape
    block = _lanes(n)
    exact = {"dtype": torch.float64, "device": x.device}
    if isinstance(lam, Tensor):
        strengths = lam.to(torch.float64).expand(B).contiguous()
    else:
        strengths = torch.full((B,), lam, **exact)  # type: ignore[call-overload]
    lines = torch.empty(B, 6, block, **exact)  # type: ignore[call-overload]
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.int32), strengths, lines, block


def _tv(x: Tensor, lam: float | Tensor, shifted: bool) -> tuple[Tensor, Tensor]:
    y, groups, strengths, lines, block = _outputs(x, lam)
    if x.numel():
        arguments = x, strengths, lines, y, groups, x.shape[1]
        launch(fuse, (len(x),), arguments, (shifted, block), max(1, block // PER_WARP))
    return y, groups


@returns("parts", "parts:int32")
def prox_tv(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """y = argmin ½‖y − x‖² + λ Σ|yᵢ₊₁ − yᵢ|: (B, n), and the number of the fused run of each entry: (B, n) int32."""
    return _tv(x, lam, shifted=False)


@returns("parts", "parts:int32")
def prox_tv_shifted(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """What `sparsemax` turns into the fusedmax, as in reference.py: y (B, n), and groups (B, n) int32."""
    return _tv(x, lam, shifted=True)


@returns("parts", "parts:int32")
def prox_oscar(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """What `sparsemax` turns into the oscarmax, as in reference.py: y (B, n), and groups (B, n) int32."""
    y, groups, strengths, lines, block = _outputs(x, lam)
    if x.numel():
        # NaN sorts first
        ranked, order = x.sort(dim=-1, descending=True, stable=True)
        arguments = ranked, order, strengths, lines, y, groups, x.shape[1]
        launch(cluster, (len(x),), arguments, (block,), max(1, block // PER_WARP))
    return y, groups


@returns("parts:int32")
def isotonic_groups(x: Tensor, weights: Tensor, scale: float, entropic: bool) -> Tensor:
    """The blocks of the projection of scale · x onto the permutahedron of the weights: (B, n) int32, from the left."""
    groups = torch.empty_like(x, dtype=torch.int32)
    if x.numel():
        n = x.shape[1]
        rows, block = weights.reshape(-1, n), _lanes(n)
        lines = torch.empty(len(x), 3, block, dtype=torch.float64, device=x.device)
        factor = torch.full((1,), scale, dtype=torch.float64, device=x.device)
        arguments = x, rows, factor, lines, groups, n, len(rows)
        launch(pool, (len(x),), arguments, (entropic, block), max(1, block // PER_WARP))
    return groups


@returns("parts")
def group_mean(v: Tensor, groups: Tensor, signs: Tensor | None = None) -> Tensor:
    """sᵢ · mean of sⱼ vⱼ over the group of i, 0 outside every group: (B, n). Symmetric: pullback and pushforward."""
    out = torch.empty_like(v)
    if v.numel():
        n = v.shape[1]
        block = _lanes(n)
        arguments = v, groups, signs, out, n
        launch(average, (len(v),), arguments, (signs is not None, GROUPS, block), max(1, min(16, block // 64)))
    return out
