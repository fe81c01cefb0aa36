"""Logarithms of sums that may be 0: −inf, with gradient 0."""

import math

import torch
from torch import Tensor


def finite(log: Tensor) -> Tensor:
    """0 in place of −inf."""
    return torch.where(log == -math.inf, 0.0, log)


def log_sum(x: Tensor) -> Tensor:
    """log Σ exp over the last dimension, which may be empty."""
    if x.shape[-1] == 0:
        return x.new_full(x.shape[:-1], -math.inf)
    peak = finite(x.detach().amax(-1))
    return log_of((x - peak.unsqueeze(-1)).exp().sum(-1), peak)


def log_of(total: Tensor, peak: Tensor) -> Tensor:
    """log total + peak."""
    # NaN is not 0
    some = total != 0
    return torch.where(some, torch.where(some, total, 1.0).log() + peak, -math.inf)


def log_add(a: Tensor, b: Tensor) -> Tensor:
    return log_sum(torch.stack([a, b], -1))
