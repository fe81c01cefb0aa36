"""Mixtures of listed structures on CUDA; see reference.py. A program is an instance, and each function one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.inverse import entry
from structmax.numerics.kernel_triton.lists import add_listed


@triton.jit(do_not_specialize=["K"])
def _mixtures(p_lists, p_weights, p_out, P, K, L):
    i_row = tl.program_id(0).to(tl.int64)
    add_listed(p_out + i_row * P, p_out, P, p_lists + i_row * K * L, p_weights + i_row * K, 1.0, K, L, P, L)


@triton.jit(do_not_specialize=["K"])
def _responses(
    p_flat, p_change, p_lists, p_factor, p_ranks, p_q, p_out, P, K, L,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i_row = tl.program_id(0).to(tl.int64)
    p_flat += i_row * P
    p_lists += i_row * K * L
    p_factor += i_row * K * K
    count = tl.load(p_ranks + i_row).to(tl.int32)
    o_k = tl.arange(0, ROWS)
    m_k = o_k < count
    b_sum = tl.zeros((ROWS, BLOCK), tl.float64)
    for first in range(0, L, BLOCK):
        o_list = first + tl.arange(0, BLOCK)
        m_list = m_k[:, None] & (o_list < L)[None, :]
        b_part = tl.load(p_lists + o_k[:, None] * L + o_list[None, :], mask=m_list, other=P)
        b_sum += tl.load(p_flat + b_part, mask=b_part < P, other=0.0).to(tl.float64)
    b_v = tl.load(p_change + i_row * K + o_k, mask=m_k, other=0.0).to(tl.float64)
    b_v = tl.where(m_k, b_v + tl.sum(b_sum, 1), 0.0)
    b_one = m_k.to(tl.float64)

    # R⁻ᵀ of both by the rows of R, then R⁻¹ by its columns.
    for j in range(0, count):
        b_row = tl.load(p_factor + j * K + o_k, mask=m_k & (o_k >= j), other=0.0)
        own = entry(b_row, j, ROWS)
        v, one = entry(b_v, j, ROWS) / own, entry(b_one, j, ROWS) / own
        b_v = tl.where(o_k == j, v, b_v - b_row * v)
        b_one = tl.where(o_k == j, one, b_one - b_row * one)
    length = tl.sum(b_one * b_one, 0)
    b_v -= b_one * (tl.sum(b_v * b_one, 0) / tl.where(length > 0, length, 1.0))
    for turn in range(0, count):
        j = count - 1 - turn
        b_column = tl.load(p_factor + o_k * K + j, mask=o_k <= j, other=0.0)
        v = entry(b_v, j, ROWS) / entry(b_column, j, ROWS)
        b_v = tl.where(o_k == j, v, b_v - b_column * v)
    tl.store(p_q + i_row * K + o_k, b_v, mask=o_k < K)
    tl.debug_barrier()
    add_listed(p_out + i_row * P, p_out, P, p_lists, p_q + i_row * K, 1.0, count, L, P, L)


def _zeros(flat: Tensor) -> Tensor:
    return torch.zeros(flat.shape, dtype=torch.float64, device=flat.device)


def mixture(flat: Tensor, lists: Tensor, weights: Tensor) -> Tensor:
    out, (_, K, L) = _zeros(flat), lists.shape
    launch(_mixtures, (len(flat),), (lists, weights, out, flat.shape[1], K, L), ())
    return out.to(flat.dtype)


def response(flat: Tensor, change: Tensor, lists: Tensor, factor: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    out, (B, K, L) = _zeros(flat), lists.shape
    q = torch.empty((B, K), dtype=torch.float64, device=flat.device)
    rows = 1 << max(0, K - 1).bit_length()
    tile = rows, max(1, 512 // rows)
    arguments = flat, change, lists, factor, ranks, q, out, flat.shape[1], K, L
    launch(_responses, (B,), arguments, tile, 1 if rows <= 64 else 4)
    return q.to(flat.dtype), out.to(flat.dtype)
