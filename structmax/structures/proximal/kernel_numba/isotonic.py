"""Which neighbours the nearest non-increasing sequence pools, on the CPU."""

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, kernel, over_rows

VISITS = 4


@compiled()
def _log_add(a, b):
    return max(a, b) + np.log1p(np.exp(-abs(a - b)))


@kernel()
def _pool_rows(start, stop, x, weights, scale, entropic, groups):
    n = x.shape[1]
    # Of each block: Σ (scale · x − weights) and its size, or log Σ exp(scale · x) and log Σ exp(weights).
    one, two, size = np.empty(n), np.empty(n), np.empty(n, np.int64)
    for row in range(start, stop):
        # Blocks on a stack: a new one swallows those before it while its level is greater.
        blocks = 0
        for k in range(n):
            a, b, s = scale * x[row, k], float(weights[row % len(weights), k]), 1
            if not entropic:
                a, b = a - b, 1.0
            while blocks > 0:
                c, d = one[blocks - 1], two[blocks - 1]
                if entropic:
                    if c - d >= a - b:
                        break
                    a, b = _log_add(a, c), _log_add(b, d)
                else:
                    if c * b >= a * d:
                        break
                    a, b = a + c, b + d
                blocks -= 1
                s += size[blocks]
            one[blocks], two[blocks], size[blocks] = a, b, s
            blocks += 1
        k = 0
        for block in range(blocks):
            end = k + size[block]
            while k < end:
                groups[row, k] = block
                k += 1


@returns("parts:int32")
def isotonic_groups(x: Tensor, weights: Tensor, scale: float, entropic: bool) -> Tensor:
    """The blocks of the projection of scale · x onto the permutahedron of the weights: (B, n) int32, from the left."""
    groups = torch.empty_like(x, dtype=torch.int32)
    arrays = (x.numpy(), weights.reshape(-1, x.shape[1]).numpy(), float(scale), entropic, groups.numpy())
    over_rows(_pool_rows, len(x), VISITS * x.numel(), *arrays)
    return groups
