"""Connectionist temporal classification on the CPU. Derivations: ../README.md.

Functions take scores (B, T, V), labels (B, L), label_lengths (B,), lengths (B,) and the number of the blank.
"""

import torch
from torch import Tensor

from structmax.numerics.kernel_numba import over_rows
from structmax.structures.ctc.kernel_numba.outside import posterior_rows, value_rows
from structmax.structures.ctc.kernel_numba.tangent import tangent_rows
from structmax.structures.ctc.kernel_numba.walks import argmax_rows, sample_rows

# Visits per state and frame, as `over_rows` counts them.
VISITS = 8


def _run(kernel, scores: Tensor, fields: dict, *arrays) -> None:
    work = VISITS * scores.shape[0] * scores.shape[1] * (2 * fields["labels"].shape[1] + 1)
    given = (fields[name].numpy() for name in ("labels", "label_lengths", "lengths"))
    over_rows(kernel, len(scores), work, scores.numpy(), *given, fields["blank"], *arrays)


def log_partition(scores: Tensor, **fields) -> Tensor:
    value = scores.new_empty(len(scores))
    _run(value_rows, scores, fields, value.numpy())
    return value


def log_partition_and_marginals(scores: Tensor, **fields) -> tuple[Tensor, Tensor]:
    value, mu = scores.new_empty(len(scores)), torch.empty_like(scores)
    _run(posterior_rows, scores, fields, value.numpy(), mu.numpy())
    return value, mu


def marginals_jvp(scores: Tensor, tangent: Tensor, **fields) -> Tensor:
    out = torch.empty_like(scores)
    _run(tangent_rows, scores, fields, tangent.numpy(), out.numpy())
    return out


def argmax(scores: Tensor, **fields) -> Tensor:
    y = torch.zeros_like(scores)
    _run(argmax_rows, scores, fields, y.numpy())
    return y


def sample(scores: Tensor, noise: Tensor, **fields) -> Tensor:
    y = scores.new_zeros(*noise.shape[:2], *scores.shape[1:])
    _run(sample_rows, scores, fields, noise.numpy(), y.numpy())
    return y
