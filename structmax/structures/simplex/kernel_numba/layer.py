"""The log loss of a linear layer with few inputs on the CPU: its scores are made row by row and never kept.

Where a score is a sum of a few products, it takes less time to make it twice than to write and read it.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.math import exp

# Gradients of the weights are added up in the dtype over so many rows, or as many as there are words, which keeps what
# is written below the size of the hidden states. Sums over these blocks are float64.
FEWEST_ROWS = 512


@compiled("contract")
def _scores(h, weight, bias, z):
    """z = bias + h · weight, with the weights of an input as a row: (d, n). Four of them in a pass."""
    d, n = weight.shape
    for j in range(n):
        z[j] = bias[j]
    for k in range(0, d - 3, 4):
        a, b, c, e = h[k], h[k + 1], h[k + 2], h[k + 3]
        for j in range(n):
            z[j] += a * weight[k, j] + b * weight[k + 1, j] + c * weight[k + 2, j] + e * weight[k + 3, j]
    for k in range(d // 4 * 4, d):
        _add(h[k], weight[k], z)


@compiled("contract")
def _add(scale, x, out):
    for j in range(x.size):
        out[j] += scale * x[j]


@compiled("nnan", "nsz")
def _largest(z):
    peak = z[0]
    for j in range(z.size):
        peak = z[j] if z[j] > peak else peak
    return peak


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


@compiled("contract", "reassoc")
def _dot(x, y):
    s = x.dtype.type(0)
    for j in range(x.size):
        s += x[j] * y[j]
    return s


@kernel()
def _loss_rows(start, stop, hidden, weight, bias, target, ignored, loss, peaks, logs):
    rows, n = hidden.shape[1], weight.shape[2]
    z = np.empty(n, weight.dtype)
    for place in range(start, stop):
        b, i = divmod(place, rows)
        hit = target[b, i]
        loss[b, i], peaks[b, i], logs[b, i] = 0, 0, 0
        if hit == ignored:
            continue
        _scores(hidden[b, i], weight[b], bias[b], z)
        # Inside a compiled graph nobody has looked at the targets: one that is no word costs NaN.
        chosen = z[hit] if 0 <= hit < n else z.dtype.type(np.nan)
        peak = _largest(z)
        if peak == -np.inf:
            loss[b, i] = np.inf
            continue
        _fill_exp(z, peak, z.dtype.type(1))
        peaks[b, i], logs[b, i] = peak, math.log(_sum(z))
        loss[b, i] = (peak - chosen) + logs[b, i]


@kernel()
def _pullback_blocks(
    start, stop, hidden, weight, bias, target, peaks, logs, d_loss, ignored, d_hidden, d_weight, d_bias
):
    (_, rows, _), (_, d, n), (_, blocks, _) = hidden.shape, weight.shape, d_bias.shape
    size = -(-rows // blocks)
    z = np.empty(n, weight.dtype)
    for place in range(start, stop):
        b, block = divmod(place, blocks)
        of_weight, of_bias = d_weight[b, block], d_bias[b, block]
        of_weight[:], of_bias[:] = 0, 0
        for i in range(block * size, min((block + 1) * size, rows)):
            hit, amount = target[b, i], d_loss[b, i]
            if hit == ignored or amount == 0:
                d_hidden[b, i] = 0
                continue
            _scores(hidden[b, i], weight[b], bias[b], z)
            wanted = 0 <= hit < n and (z[hit] > -np.inf or _largest(z) > -np.inf)
            _fill_exp(z, peaks[b, i], z.dtype.type(amount * math.exp(-logs[b, i])))
            if wanted:
                z[hit] -= amount
            for k in range(d):
                d_hidden[b, i, k] = _dot(z, weight[b, k])
                _add(hidden[b, i, k], z, of_weight[k])
            _add(z.dtype.type(1), z, of_bias)


@returns("state[rows]", "state[rows]", "state[rows]")
def layer_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, ignored: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp x − x[target], max x and log Σ exp (x − max x) of the scores x = hidden weightᵀ + bias: (B, rows)."""
    out = [hidden.new_empty(len(hidden), rows) for _ in range(3)]
    given = hidden.numpy(), weight.mT.contiguous().numpy(), bias.numpy(), target.numpy(), ignored
    over_rows(_loss_rows, len(hidden) * rows, rows * weight.numel(), *given, *(t.numpy() for t in out))
    return out[0], out[1], out[2]


@returns("parts")
def layer_loss_pullback(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, peak: Tensor, log_mass: Tensor, d_loss: Tensor,
    ignored: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The cotangents of hidden states, weights and biases."""
    (count, rows, d), n = hidden.shape, weight.shape[1]
    blocks = max(1, rows // max(FEWEST_ROWS, n))
    d_hidden, d_weight = torch.empty_like(hidden), hidden.new_empty(count, blocks, d, n)
    d_bias = hidden.new_empty(count, blocks, n)
    given = hidden, weight.mT.contiguous(), bias, target, peak, log_mass, d_loss
    out = d_hidden, d_weight, d_bias
    arrays = *(t.numpy() for t in given), ignored, *(t.numpy() for t in out)
    over_rows(_pullback_blocks, count * blocks, rows * weight.numel(), *arrays)
    d_weight, d_bias = (t.sum(1, dtype=torch.float64).to(hidden.dtype) for t in (d_weight, d_bias))
    return d_hidden, d_weight.mT, d_bias
