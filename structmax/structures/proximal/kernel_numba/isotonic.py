"""Which neighbours the nearest non-increasing sequence pools, on the CPU."""

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import kernel, over_rows

VISITS = 4


@kernel()
def _pool_rows(start, stop, x, weights, scale, groups):
    n = x.shape[1]
    total, size = np.empty(n), np.empty(n)
    for row in range(start, stop):
        # Blocks on a stack: a new one swallows those before it while its mean is greater.
        blocks = 0
        for k in range(n):
            t, s = scale * x[row, k] - weights[row % len(weights), k], 1.0
            while blocks > 0 and total[blocks - 1] * s < t * size[blocks - 1]:
                blocks -= 1
                t += total[blocks]
                s += size[blocks]
            total[blocks], size[blocks] = t, s
            blocks += 1
        k = 0
        for block in range(blocks):
            end = k + int(size[block])
            while k < end:
                groups[row, k] = block
                k += 1


@returns("parts:int32")
def isotonic_groups(x: Tensor, weights: Tensor, scale: float) -> Tensor:
    """The blocks of the non-increasing sequence nearest to scale · x − weights: (B, n) int32, from the left."""
    groups = torch.empty_like(x, dtype=torch.int32)
    arrays = (x.numpy(), weights.reshape(-1, x.shape[1]).numpy(), float(scale), groups.numpy())
    over_rows(_pool_rows, len(x), VISITS * x.numel(), *arrays)
    return groups
