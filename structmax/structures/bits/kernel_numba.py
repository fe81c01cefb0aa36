"""Independent bits on the CPU. Derivations: README.md in this folder."""

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.numerics.kernel_numba.exp import exp as exp_float64
from structmax.numerics.kernel_numba.heap import pop, push
from structmax.numerics.kernel_numba.math import exp as exp_float32
from structmax.numerics.kernel_numba.select import keep_best

# One pass over the items, or without arithmetic to speak of: torch is as fast.
from structmax.structures.bits.reference import (  # noqa: F401
    argmax,
    given_log_partition,
    given_log_partition_and_marginals,
    given_marginals_jvp,
    max_marginals,
    project,
    project_jvp,
    sample,
)

# A product of that many factors between 1 and 2 does not overflow.
FACTORS = 512
# Visits per item, as `over_rows` counts them: an exponential and a division.
VISITS = 4


@compiled()
def _broken(row):
    """Whether there is NaN or +inf."""
    bad = 0
    for i in range(row.size):
        bad += not row[i] < np.inf
    return bad > 0


def _exp(x):
    """exp x for x ≤ 0, vectorised in either dtype."""


@overload(_exp)
def _exp_of(x):
    return (lambda x: exp_float32(x)) if x == types.float32 else (lambda x: exp_float64(x))


@compiled("contract", "reassoc", "nsz")
def _log_normaliser(row):
    """Σ log(1 + exp x) = Σ max(x, 0) + log Π (1 + exp −|x|): one logarithm for many factors."""
    total = 0.0
    for start in range(0, row.size, FACTORS):
        part = row[start : start + FACTORS]
        product, positive = 1.0, 0.0
        for i in range(part.size):
            product *= 1 + float(_exp(-abs(part[i])))
            positive += part[i] if part[i] > 0 else 0.0
        total += positive + np.log(product)
    return total


@compiled("contract")
def _sigmoid(row, out):
    one = row.dtype.type(1)
    for i in range(row.size):
        e = _exp(-abs(row[i]))
        share = one / (one + e)
        out[i] = share if row[i] > 0 else e * share


@compiled("contract")
def _variance_times(row, tangent, out):
    zero, one = row.dtype.type(0), row.dtype.type(1)
    for i in range(row.size):
        e = _exp(-abs(row[i]))
        share = one / (one + e)
        variance = e * share * share
        out[i] = variance * tangent[i] if variance > zero else zero


@kernel()
def _value_rows(first, last, x, lengths, value):
    for b in range(first, last):
        row = x[b, : lengths[b]]
        value[b] = np.nan if _broken(row) else _log_normaliser(row)


@kernel()
def _marginal_rows(first, last, x, lengths, value, mu):
    for b in range(first, last):
        row = x[b, : lengths[b]]
        if _broken(row):
            value[b] = mu[b, : row.size] = np.nan
        else:
            value[b] = _log_normaliser(row)
            _sigmoid(row, mu[b])
        mu[b, row.size :] = 0


@kernel()
def _tangent_rows(first, last, x, tangent, lengths, out):
    for b in range(first, last):
        row = x[b, : lengths[b]]
        if _broken(row):
            out[b, : row.size] = np.nan
        else:
            _variance_times(row, tangent[b], out[b])
        out[b, row.size :] = 0


@kernel()
def _topk_rows(first, last, x, lengths, values, parts):
    """The cheapest sets of flips away from the best subset, cheapest first.

    Costs ascend. A set whose dearest flip is j has two children: j + 1 joins, or takes the place of j. So each set but
    the empty one and {0} has one parent, which is not dearer.
    """
    n, k = x.shape[1], values.shape[1]
    # what a flip is worth: minus its cost
    place, worth, work = np.empty(n, np.int64), np.empty(n), np.empty(n)
    # Candidates: what is lost, the dearest flip, and the candidate with the others; 0 is the empty set.
    lost, flip, others = np.empty(2 * k + 2), np.empty(2 * k + 2, np.int64), np.empty(2 * k + 2, np.int64)
    heap = np.empty(2 * k + 2, np.int64)
    for b in range(first, last):
        row = x[b, : lengths[b]]
        values[b], parts[b] = -np.inf, 0
        if _broken(row):
            values[b], parts[b, :, : row.size] = np.nan, np.nan
            continue
        m, best = 0, 0.0
        for i in range(row.size):
            if row[i] > -np.inf:
                place[m], worth[m] = i, -abs(row[i])
                best += max(float(row[i]), 0.0)
                m += 1
        # k subsets differ from the best by the cheapest k − 1 flips at most
        m = keep_best(worth, place, m, k - 1, work)
        order = np.argsort(-worth[:m])
        lost[0], others[0], count = 0.0, -1, 1
        held = push(lost, heap, 0, 0)
        for rank in range(k):
            if held == 0:
                break
            found, held = pop(lost, heap, held)
            values[b, rank] = best + lost[found]
            # A sum of finite scores may be −inf in their dtype.
            if values[b, rank] == -np.inf:
                break
            for i in range(row.size):
                parts[b, rank, i] = row[i] > 0
            link = found
            while link > 0:
                i = place[order[flip[link]]]
                parts[b, rank, i] = 1 - parts[b, rank, i]
                link = others[link]
            j = flip[found] + 1 if found > 0 else 0
            if j == m:
                continue
            # What joins or replaces is added to the rest, never subtracted: nothing cancels.
            for rest in (found, others[found]):
                if rest >= 0:
                    lost[count], flip[count], others[count] = lost[rest] + worth[order[j]], j, rest
                    held = push(lost, heap, held, count)
                    count += 1


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    value = x.new_empty(len(x))
    over_rows(_value_rows, len(x), VISITS * x.numel(), x.numpy(), lengths.numpy(), value.numpy())
    return value


def log_partition_and_marginals(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    value, mu = x.new_empty(len(x)), torch.empty_like(x)
    arrays = (x.numpy(), lengths.numpy(), value.numpy(), mu.numpy())
    over_rows(_marginal_rows, len(x), VISITS * x.numel(), *arrays)
    return value, mu


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    out = torch.empty_like(x)
    arrays = (x.numpy(), tangent.numpy(), lengths.numpy(), out.numpy())
    over_rows(_tangent_rows, len(x), VISITS * x.numel(), *arrays)
    return out


def topk(x: Tensor, k: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    values, parts = x.new_empty(len(x), k), x.new_empty(len(x), k, x.shape[1])
    arrays = (x.numpy(), lengths.numpy(), values.numpy(), parts.numpy())
    over_rows(_topk_rows, len(x), VISITS * x.numel() * k, *arrays)
    return values, parts
