"""Subsets on the CPU. Derivations: ../README.md.

Functions take x (B, n), lengths (B,), and subsets have `size` items if `exact`, else up to `size`. Kernels take one
size for each instance: where items are required, fewer are left to choose.
"""

import math

import torch
from torch import Tensor

from structmax.numerics.kernel_numba import over_rows
from structmax.structures.subset.kernel_numba.best import argmax_rows, max_marginal_rows, topk_rows
from structmax.structures.subset.kernel_numba.marginal import marginal_rows, value_rows
from structmax.structures.subset.kernel_numba.projection import project_rows, project_tangent_rows
from structmax.structures.subset.kernel_numba.tangent import tangent_rows
from structmax.structures.subset.kernel_numba.walks import sample_rows

# Visits per item, as `over_rows` counts them.
VISITS = 16


def _run(kernel, x: Tensor, lengths: Tensor, size: int | Tensor, exact: bool, *arguments: Tensor | float) -> None:
    sizes = size if isinstance(size, Tensor) else torch.full((len(x),), size)
    arrays = (a.numpy() if isinstance(a, Tensor) else a for a in (x, lengths, sizes, bool(exact), *arguments))
    over_rows(kernel, len(x), VISITS * x.numel(), *arrays)


def log_partition(x: Tensor, lengths: Tensor, size: int | Tensor, exact: bool) -> Tensor:
    value = x.new_empty(len(x))
    _run(value_rows, x, lengths, size, exact, value)
    return value


def log_partition_and_marginals(x: Tensor, lengths: Tensor, size: int | Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    value, mu = x.new_empty(len(x)), torch.empty_like(x)
    _run(marginal_rows, x, lengths, size, exact, value, mu)
    return value, mu


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor, size: int | Tensor, exact: bool) -> Tensor:
    out = torch.empty_like(x)
    _run(tangent_rows, x, lengths, size, exact, tangent, out)
    return out


def sample(x: Tensor, noise: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    y = x.new_empty(*noise.shape[:2], x.shape[1])
    _run(sample_rows, x, lengths, size, exact, noise, y)
    return y


def argmax(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    y = torch.empty_like(x)
    _run(argmax_rows, x, lengths, size, exact, y)
    return y


def topk(x: Tensor, k: int, lengths: Tensor, size: int, exact: bool) -> tuple[Tensor, Tensor]:
    values, parts = x.new_empty(len(x), k), x.new_empty(len(x), k, x.shape[1])
    _run(topk_rows, x, lengths, size, exact, values, parts)
    return values, parts


def max_marginals(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    out = torch.empty_like(x)
    _run(max_marginal_rows, x, lengths, size, exact, out)
    return out


def project(x: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    point = torch.empty_like(x)
    _run(project_rows, x, lengths, size, exact, point)
    return point


def project_jvp(point: Tensor, tangent: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    out = torch.empty_like(point)
    slack = 8 * torch.finfo(point.dtype).eps
    _run(project_tangent_rows, point, lengths, size, exact, tangent, slack, out)
    return out


# --- given that some items are in: they are taken out of the choice, and of the size -------------------------------


def _split(x: Tensor, required: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores of the others, the required items (B, n), their score (B,), −inf where impossible, and the size left."""
    fixed = required > 0
    inside = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
    score = torch.where(fixed, torch.where(inside, x, -math.inf), 0.0).sum(-1)
    return x.masked_fill(fixed, -math.inf), fixed, score, size - fixed.sum(-1)


def given_log_partition(x: Tensor, required: Tensor, lengths: Tensor, size: int, exact: bool) -> Tensor:
    rest, _, score, left = _split(x, required, lengths, size)
    return score + log_partition(rest, lengths, left, exact)


def given_log_partition_and_marginals(
    x: Tensor, required: Tensor, lengths: Tensor, size: int, exact: bool
) -> tuple[Tensor, Tensor]:
    rest, fixed, score, left = _split(x, required, lengths, size)
    value, mu = log_partition_and_marginals(rest, lengths, left, exact)
    value = value + score
    return value, torch.where(fixed, 1.0, mu).masked_fill(value.isneginf().unsqueeze(1), 0.0).to(x.dtype)


def given_marginals_jvp(
    x: Tensor, required: Tensor, tangent: Tensor, lengths: Tensor, size: int, exact: bool
) -> Tensor:
    rest, _, score, left = _split(x, required, lengths, size)
    return marginals_jvp(rest, tangent, lengths, left, exact).masked_fill(score.isneginf().unsqueeze(1), 0.0)
