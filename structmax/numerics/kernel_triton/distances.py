"""Squared distances between the points of two series, in one pass: torch.cdist takes a block of threads for each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch

TILE = 64


@triton.jit(do_not_specialize=["N", "M", "D", "down", "across"])
def _distances(p_x, p_y, p_out, N, M, D, down, across, DOUBLE: tl.constexpr, TILE: tl.constexpr):
    """Grid (B · down · across tiles). Differences are squared, so equal points are exactly 0 apart."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_tile = tl.program_id(0)
    i_b = (i_tile // (down * across)).to(tl.int64)
    o_x = ((i_tile // across % down) * TILE + tl.arange(0, TILE)).to(tl.int64)
    o_y = ((i_tile % across) * TILE + tl.arange(0, TILE)).to(tl.int64)
    p_x += i_b * N * D
    p_y += i_b * M * D
    b_sum = tl.zeros((TILE, TILE), WORK)
    for d in range(0, D):
        b_x = tl.load(p_x + o_x * D + d, mask=o_x < N, other=0.0).to(WORK)
        b_y = tl.load(p_y + o_y * D + d, mask=o_y < M, other=0.0).to(WORK)
        b_difference = b_x[:, None] - b_y[None, :]
        b_sum += b_difference * b_difference
    o_out = o_x[:, None] * M + o_y[None, :]
    tl.store(p_out + i_b * N * M + o_out, b_sum, mask=(o_x < N)[:, None] & (o_y < M)[None, :])


def squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """‖x_i − y_j‖²: (…, N, D) and (…, M, D) to (…, N, M), in the dtype of x."""
    *batch, N, D = x.shape
    M = y.shape[-2]
    out = torch.empty(*batch, N, M, dtype=x.dtype, device=x.device)
    if out.numel():
        down, across = -(-N // TILE), -(-M // TILE)
        grid = (out.numel() // (N * M) * down * across,)
        arguments = x.contiguous(), y.contiguous(), out, N, M, D, down, across
        with torch.cuda.device_of(x):
            launch(_distances, grid, arguments, (x.dtype == torch.float64, TILE))
    return out
