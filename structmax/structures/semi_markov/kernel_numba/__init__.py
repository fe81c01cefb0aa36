"""The semi-Markov chain on the CPU. Derivations: ../README.md.

Functions take segment (B, N, W, C), pairwise (B, C, C) or (B, N − 1, C, C), and lengths (B,). Kernels see pairwise as
(B, K, C, C): one matrix for all positions, K = 1, or one for each.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import over_rows
from structmax.structures.semi_markov.kernel_numba.inside import value_rows
from structmax.structures.semi_markov.kernel_numba.outside import marginal_rows
from structmax.structures.semi_markov.kernel_numba.tangent import tangent_rows
from structmax.structures.semi_markov.kernel_numba.walks import argmax_rows, sample_rows

# Visits per edge, as `over_rows` counts them.
VISITS = 4


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    return "pairwise scores depend on the width" if tensors[1].dim() == 5 else None


def _run(kernel, segment: Tensor, pairwise: Tensor, lengths: Tensor, *arrays: np.ndarray) -> None:
    rows, n, w, c = segment.shape
    work = VISITS * rows * n * c * (w + c)
    over_rows(kernel, rows, work, segment.numpy(), _positions(pairwise), lengths.numpy(), *arrays)


def _positions(pairwise: Tensor) -> np.ndarray:
    return (pairwise.unsqueeze(1) if pairwise.dim() == 3 else pairwise).numpy()


def log_partition(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    value = segment.new_empty(len(segment))
    _run(value_rows, segment, pairwise, lengths, value.numpy())
    return value


def log_partition_and_marginals(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    value, mu = segment.new_empty(len(segment)), (torch.empty_like(segment), torch.empty_like(pairwise))
    _run(marginal_rows, segment, pairwise, lengths, value.numpy(), mu[0].numpy(), _positions(mu[1]))
    return value, *mu


def marginals_jvp(
    segment: Tensor, pairwise: Tensor, d_segment: Tensor, d_pairwise: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(segment), torch.zeros_like(pairwise)
    tangent = d_segment.numpy(), _positions(d_pairwise)
    _run(tangent_rows, segment, pairwise, lengths, *tangent, out[0].numpy(), _positions(out[1]))
    return out


def argmax(segment: Tensor, pairwise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros_like(segment), torch.zeros_like(pairwise)
    _run(argmax_rows, segment, pairwise, lengths, y[0].numpy(), _positions(y[1]))
    return y


def sample(segment: Tensor, pairwise: Tensor, noise: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    rows, draws = noise.shape[:2]
    y = tuple(x.new_zeros(rows, draws, *x.shape[1:]) for x in (segment, pairwise))
    many = y[1].unsqueeze(2) if pairwise.dim() == 3 else y[1]
    _run(sample_rows, segment, pairwise, lengths, noise.numpy(), y[0].numpy(), many.numpy())
    return y
