"""Mixtures of listed structures on the CPU; see reference.py."""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.triangular import dot, solve, solve_transposed


@compiled()
def _mix(lists, weights, count, sums, out):
    """out = Σ weights[k] y_k for the first `count`; `sums` is scratch, one longer than out."""
    sums[:] = 0.0
    for k in range(count):
        weight = weights[k]
        for q in range(lists.shape[1]):
            sums[lists[k, q]] += weight
    for part in range(out.size):
        out[part] = sums[part]


@kernel()
def _mixtures(start, stop, lists, weights, out):
    sums = np.empty(out.shape[1] + 1)
    for b in range(start, stop):
        _mix(lists[b], weights[b], lists.shape[1], sums, out[b])


@kernel()
def _responses(start, stop, flat, change, lists, factor, ranks, d_weights, out):
    K, L = lists.shape[1:]
    scores, v, z_one = np.empty(flat.shape[1] + 1), np.empty(K), np.empty(K)
    for b in range(start, stop):
        count = ranks[b]
        for part in range(flat.shape[1]):
            scores[part] = flat[b, part]
        scores[-1] = 0.0
        for k in range(count):
            total = np.float64(change[b, k])
            for q in range(L):
                total += scores[lists[b, k, q]]
            v[k], z_one[k] = total, 1.0
        solve_transposed(factor[b], count, v)
        solve_transposed(factor[b], count, z_one)
        if count > 0:
            share = dot(v, z_one, count) / dot(z_one, z_one, count)
            for k in range(count):
                v[k] -= share * z_one[k]
        solve(factor[b], count, v)
        for k in range(K):
            d_weights[b, k] = v[k] if k < count else 0.0
        _mix(lists[b], v, count, scores, out[b])


def mixture(flat: Tensor, lists: Tensor, weights: Tensor) -> Tensor:
    out = torch.empty_like(flat)
    over_rows(_mixtures, len(flat), flat.numel() + lists.numel(), lists.numpy(), weights.numpy(), out.numpy())
    return out


def response(flat: Tensor, change: Tensor, lists: Tensor, factor: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    d_weights, out = torch.empty_like(change), torch.empty_like(flat)
    arrays = flat, change, lists, factor, ranks, d_weights, out
    over_rows(_responses, len(flat), flat.numel() + 4 * lists.numel(), *(array.numpy() for array in arrays))
    return d_weights, out
