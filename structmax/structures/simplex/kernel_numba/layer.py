"""The log loss of a linear layer with few inputs on the CPU: its scores are made row by row and never kept.

Where a score is a sum of a few products, it takes less time to make it twice than to write and read it.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.affine import affine, affine_pullback
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.math import exp

# Gradients of the weights are added up in the dtype over so many rows, or as many as there are words, which keeps what
# is written below the size of the hidden states. Sums over these blocks are float64.
FEWEST_ROWS = 512


def _whole_blocks(weight, bias):
    """Weights (B, d, n) and biases (B, n) of whole blocks of words: those that are added have no probability."""
    more = 0, -weight.shape[1] % BLOCK
    return pad(weight.mT, more).contiguous(), pad(bias, more, value=-math.inf)


@compiled("contract")
def _fill_exp(z, peak, scale):
    for j in range(z.size):
        z[j] = exp(z[j] - peak) * scale


@compiled("contract", "reassoc")
def _sum(z):
    s = z.dtype.type(0)
    for j in range(z.size):
        s += z[j]
    return s


@kernel()
def _loss_rows(start, stop, hidden, weight, bias, target, ignored, n, loss, peaks, logs):
    rows = hidden.shape[1]
    z = np.empty(weight.shape[2], weight.dtype)
    for place in range(start, stop):
        b, i = divmod(place, rows)
        hit = target[b, i]
        loss[b, i], peaks[b, i], logs[b, i] = 0, 0, 0
        if hit == ignored:
            continue
        peak = affine(hidden[b, i], weight[b], bias[b], z)
        # Inside a compiled graph nobody has looked at the targets: one that is no word costs NaN.
        chosen = z[hit] if 0 <= hit < n else z.dtype.type(np.nan)
        if peak == -np.inf:
            # inf, or NaN if any score is, and then probabilities are too
            loss[b, i] = -_sum(z[:n])
            logs[b, i] = loss[b, i] if loss[b, i] != np.inf else 0
            continue
        _fill_exp(z[:n], peak, z.dtype.type(1))
        peaks[b, i], logs[b, i] = peak, math.log(_sum(z[:n]))
        loss[b, i] = (peak - chosen) + logs[b, i]


@kernel()
def _pullback_blocks(
    start, stop, hidden, weight, bias, target, peaks, logs, d_loss, ignored, n, d_hidden, d_weight, d_bias
):
    rows, blocks = hidden.shape[1], d_bias.shape[1]
    size = -(-rows // blocks)
    z = np.empty(weight.shape[2], weight.dtype)
    for place in range(start, stop):
        b, block = divmod(place, blocks)
        of_weight, of_bias = d_weight[b, block], d_bias[b, block]
        of_weight[:], of_bias[:] = 0, 0
        for i in range(block * size, min((block + 1) * size, rows)):
            hit, amount = target[b, i], d_loss[b, i]
            if hit == ignored or amount == 0:
                d_hidden[b, i] = 0
                continue
            wanted = affine(hidden[b, i], weight[b], bias[b], z) > -np.inf and 0 <= hit < n
            _fill_exp(z[:n], peaks[b, i], z.dtype.type(amount * math.exp(-logs[b, i])))
            z[n:] = 0
            if wanted:
                z[hit] -= amount
            affine_pullback(z, hidden[b, i], weight[b], d_hidden[b, i], of_weight, of_bias)


@returns("state[rows]", "state[rows]", "state[rows]")
def layer_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, ignored: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp x − x[target], max x and log Σ exp (x − max x) of the scores x = hidden weightᵀ + bias: (B, rows)."""
    n, out = weight.shape[1], [hidden.new_empty(len(hidden), rows) for _ in range(3)]
    given = hidden, *_whole_blocks(weight, bias), target
    arrays = *(t.numpy() for t in given), ignored, n, *(t.numpy() for t in out)
    over_rows(_loss_rows, len(hidden) * rows, rows * weight.numel(), *arrays)
    return out[0], out[1], out[2]


@returns("parts")
def layer_loss_pullback(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, peak: Tensor, log_mass: Tensor, d_loss: Tensor,
    ignored: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The cotangents of hidden states, weights and biases."""
    (count, rows, _), n = hidden.shape, weight.shape[1]
    blocks = max(1, rows // max(FEWEST_ROWS, n))
    weight, bias = _whole_blocks(weight, bias)
    d_hidden = torch.empty_like(hidden)
    d_weight, d_bias = (t.new_empty(count, blocks, *t.shape[1:]) for t in (weight, bias))
    given = hidden, weight, bias, target, peak, log_mass, d_loss
    out = d_hidden, d_weight, d_bias
    arrays = *(t.numpy() for t in given), ignored, n, *(t.numpy() for t in out)
    over_rows(_pullback_blocks, count * blocks, rows * weight.numel(), *arrays)
    d_weight, d_bias = (t[..., :n].sum(1, dtype=torch.float64).to(hidden.dtype) for t in (d_weight, d_bias))
    return d_hidden, d_weight.mT, d_bias
