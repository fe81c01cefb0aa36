"""The log loss of a linear layer with few inputs on the CPU: its scores are made row by row and never kept.

Where a score is a sum of a few products, it takes less time to make it twice than to write and read it.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from structmax.contract import returns
from structmax.numerics.kernel_numba import kernel, over_rows
from structmax.numerics.kernel_numba.affine import affine, affine_exp, affine_pullback, sum_of_exp
from structmax.numerics.kernel_numba.llvm import BLOCK

# Gradients of the weights are added up in the dtype over so many rows, or as many as there are words, which keeps what
# is written below the size of the hidden states. Sums over these blocks are float64.
FEWEST_ROWS = 512
# A sum of exponentials waits for the largest score of its row: the scores of other rows are made in the meantime.
TOGETHER = 16


def _whole_blocks(weight, bias):
    """Weights (B, d, n) and biases (B, n) of whole blocks of words: those that are added have no probability."""
    more = 0, -weight.shape[1] % BLOCK
    return pad(weight.mT, more).contiguous(), pad(bias, more, value=-math.inf)


@kernel()
def _loss_rows(start, stop, hidden, weight, bias, target, ignored, rows, n, loss, peaks, logs):
    z = np.empty((TOGETHER, weight.shape[2]), weight.dtype)
    for first in range(start, stop, TOGETHER):
        several = range(first, min(first + TOGETHER, stop))
        for i in several:
            hit, b = target[i], i // rows
            loss[i], peaks[i], logs[i] = 0, 0, 0
            if hit != ignored:
                peaks[i] = affine(hidden[i], weight[b], bias[b], z[i - first])
                # Inside a compiled graph nobody has looked at the targets: one that is no word costs NaN.
                loss[i] = z[i - first, hit] if 0 <= hit < n else np.nan
        for i in several:
            if target[i] == ignored:
                continue
            peak, chosen = peaks[i], loss[i]
            if peak > -np.inf:
                logs[i] = math.log(sum_of_exp(z[i - first], peak))
                loss[i] = (peak - chosen) + logs[i]
            else:
                # inf, or NaN if any score is, and then probabilities are too
                peaks[i], loss[i] = 0, -z[i - first, :n].sum()
                logs[i] = loss[i] if loss[i] != np.inf else 0


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
            scale = z.dtype.type(amount * math.exp(-logs[b, i]))
            largest = affine_exp(hidden[b, i], weight[b], bias[b], z, peaks[b, i], scale)
            z[n:] = 0
            if largest > -np.inf and 0 <= hit < n:
                z[hit] -= amount
            affine_pullback(z, hidden[b, i], weight[b], d_hidden[b, i], of_weight, of_bias)


@returns("state[rows]", "state[rows]", "state[rows]")
def layer_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, ignored: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp x − x[target], max x and log Σ exp (x − max x) of the scores x = hidden weightᵀ + bias: (B, rows)."""
    n, out = weight.shape[1], hidden.new_empty(3, len(hidden), rows)
    given = hidden.flatten(0, 1), *_whole_blocks(weight, bias), target.flatten()
    arrays = *(t.numpy() for t in given), ignored, rows, n, *out.flatten(1).numpy()
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
