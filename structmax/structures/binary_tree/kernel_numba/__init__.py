"""Binary trees on the CPU, compiled by Numba; derivations: ../README.md.

Instances are independent and run on several threads. Charts are float64 whatever the dtype of the scores, so that
products and sums do where they can (`linear`); log space (`log`) does where they cannot.
Scores are (B, N, N) or, labelled, (B, N, N, C): without labels C is 1.
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.llvm import LANES
from structmax.structures.binary_tree.kernel_numba import linear
from structmax.structures.binary_tree.kernel_numba import log as log_space
from structmax.structures.binary_tree.kernel_numba.chart import (
    chart_size,
    new_chart,
    read,
    read_tangent,
    write,
    write_tangent,
)
from structmax.structures.binary_tree.kernel_numba.walks import draw, follow_best

inside_linear, outside_linear = linear.inside, linear.outside
inside_linear_tangent, outside_linear_tangent = linear.inside_tangent, linear.outside_tangent
inside_log, outside_log = log_space.inside, log_space.outside
inside_log_tangent, outside_log_tangent = log_space.inside_tangent, log_space.outside_tangent


@compiled()
def _value(scores, n, rate, chart):
    """log Z from the chart of either space; `rate` is NaN in log space."""
    leaves = 0.0
    for place in range(LANES, LANES + n):
        leaves += scores[place]
    root = chart[chart_size(n) - n - LANES]
    return leaves + (root if np.isnan(rate) else np.log(root) + rate * (n - 1))


@compiled()
def _inside(scores, n, weights, share, chart):
    """The rate of a linear chart, NaN where the chart is in log space; then `weights` and `share` are about splits."""
    rate = inside_linear(scores, n, weights, chart)
    if np.isnan(rate):
        inside_log(scores, n, weights, share, chart)
    return rate


@kernel()
def _value_rows(begin, stop, x, lengths, value):
    N = x.shape[1]
    scores, weights, share, chart = new_chart(N), new_chart(N), new_chart(N), new_chart(N)
    for b in range(begin, stop):
        n = lengths[b]
        if n == 0:
            value[b] = 0.0
        elif read(x[b], n, True, scores):
            rate = _inside(scores, n, weights, share, chart)
            value[b] = _value(scores, n, rate, chart)
        else:
            value[b] = np.nan


@compiled()
def _spoil(n, out):
    """NaN for every span of an instance whose scores hold NaN or +inf."""
    for i in range(n):
        out[i, i:n] = np.nan


@kernel()
def _marginal_rows(begin, stop, x, lengths, value, out):
    N = x.shape[1]
    scores, weights, share, chart, ratio = new_chart(N), new_chart(N), new_chart(N), new_chart(N), new_chart(N)
    for b in range(begin, stop):
        n = lengths[b]
        value[b] = 0.0
        if n > 0 and not read(x[b], n, True, scores):
            value[b] = np.nan
            _spoil(n, out[b])
        elif n > 0:
            rate = _inside(scores, n, weights, share, chart)
            value[b] = _value(scores, n, rate, chart)
            if value[b] == -np.inf:
                continue
            if np.isnan(rate):
                outside_log(n, weights, share, chart, ratio)
                mu = ratio
            else:
                outside_linear(n, weights, chart, ratio)
                mu = weights
            mu[LANES : LANES + n] = 1.0
            write(x[b], mu, n, out[b])


@kernel()
def _tangent_rows(begin, stop, x, tangent, lengths, out):
    N = x.shape[1]
    scores, weights, share, chart, ratio = new_chart(N), new_chart(N), new_chart(N), new_chart(N), new_chart(N)
    mean, d_chart, d_ratio, d_mu = new_chart(N), new_chart(N), new_chart(N), new_chart(N)
    for b in range(begin, stop):
        n = lengths[b]
        if n == 0:
            continue
        if not read(x[b], n, True, scores):
            _spoil(n, out[b])
            continue
        rate = _inside(scores, n, weights, share, chart)
        # as a number of the scores' dtype
        if x.dtype.type(_value(scores, n, rate, chart)) == -np.inf:
            continue
        read_tangent(x[b], tangent[b], n, mean)
        if np.isnan(rate):
            inside_log_tangent(mean, n, weights, share, chart, d_ratio, d_chart)
            outside_log_tangent(n, weights, share, chart, d_ratio, d_chart, ratio, d_mu)
            mu = ratio
        else:
            inside_linear_tangent(mean, n, weights, chart, d_chart)
            outside_linear_tangent(mean, n, weights, chart, d_chart, ratio, d_ratio, d_mu)
            mu = weights
        mu[LANES : LANES + n], d_mu[LANES : LANES + n] = 1.0, 0.0
        write_tangent(x[b], mu, tangent[b], d_mu, n, out[b])


@kernel()
def _argmax_rows(begin, stop, x, lengths, out):
    N = x.shape[1]
    scores, chart = new_chart(N), new_chart(N)
    pending = np.empty((N + 1, 2), np.int64)
    for b in range(begin, stop):
        n = lengths[b]
        if n > 0 and read(x[b], n, False, scores):
            follow_best(x[b], scores, n, chart, pending, out[b])
        else:
            _spoil(n, out[b])


@kernel()
def _sample_rows(begin, stop, x, noise, lengths, out):
    N = x.shape[1]
    scores, weights, share, chart = new_chart(N), new_chart(N), new_chart(N), new_chart(N)
    pending = np.empty((N + 1, 2), np.int64)
    mass = np.empty(max(N, x.shape[3]))
    for b in range(begin, stop):
        n = lengths[b]
        if n > 0 and read(x[b], n, True, scores):
            rate = _inside(scores, n, weights, share, chart)
            if x.dtype.type(_value(scores, n, rate, chart)) > -np.inf:
                for s in range(noise.shape[1]):
                    draw(x[b], noise[b, s], n, np.isnan(rate), chart, pending, mass, out[b, s])
        else:
            for s in range(noise.shape[1]):
                _spoil(n, out[b, s])


# --- the questions -------------------------------------------------------------------------------------------------


def _work(x: Tensor) -> int:
    """Element visits: a few for each score, and a product for each split, LANES at a time."""
    return x.numel() * (4 + x.shape[1] // LANES)


def _labelled(x: Tensor) -> np.ndarray:
    return (x if x.dim() == 4 else x.unsqueeze(-1)).numpy()


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    """log Σ over trees of exp(score): (B,)."""
    value = x.new_empty(len(x))
    over_rows(_value_rows, len(x), _work(x), _labelled(x), lengths.numpy(), value.numpy())
    return value


def log_partition_and_marginals(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The value (B,), and the probability of each span, or of each label of it."""
    value, out = x.new_empty(len(x)), torch.zeros_like(x)
    over_rows(_marginal_rows, len(x), 2 * _work(x), _labelled(x), lengths.numpy(), value.numpy(), _labelled(out))
    return value, out


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    """The derivative of the marginals along `tangent`."""
    out = torch.zeros_like(x)
    arrays = _labelled(x), _labelled(tangent), lengths.numpy(), _labelled(out)
    over_rows(_tangent_rows, len(x), 6 * _work(x), *arrays)
    return out


def argmax(x: Tensor, lengths: Tensor) -> Tensor:
    """The parts of a best tree; among equals the first split, the first label."""
    out = torch.zeros_like(x)
    over_rows(_argmax_rows, len(x), _work(x), _labelled(x), lengths.numpy(), _labelled(out))
    return out


def sample(x: Tensor, noise: Tensor, lengths: Tensor) -> Tensor:
    """The parts of S trees: (B, S, …)."""
    out = x.new_zeros(len(x), noise.shape[1], *x.shape[1:])
    parts = (out if x.dim() == 4 else out.unsqueeze(-1)).numpy()
    work = _work(x) + out.numel()
    over_rows(_sample_rows, len(x), work, _labelled(x), noise.numpy(), lengths.numpy(), parts)
    return out
