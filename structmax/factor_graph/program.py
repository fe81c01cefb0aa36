"""What a solver gets, from the part tensors and fields of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structmax.factor_graph.existence import existing, speaking
from structmax.factor_graph.layout import Layout
from structmax.factor_graph.masks import bring_near
from structmax.factor_graph.solver import FORBIDDEN, Program


class Stated(NamedTuple):
    """A program, the scores as they were given (B, n) and (B, m), and which instances hold NaN or +inf (B,).

    These are solved as if such scores were 0, and then lost.
    """

    program: Program
    theta: Tensor
    phi: Tensor
    lost: Tensor


def stated(layout: Layout, scores: Sequence[Tensor], fields: dict[str, Any]) -> Stated:
    """The program of scores (B, …) and of fields with one entry for each instance."""
    theta, phi = (t.double() for t in layout.joined(scores))
    structures = layout.structures(fields)
    mask = fields.get("mask")
    mask = torch.ones(theta.shape, dtype=torch.bool) if mask is None else mask
    on, own = existing(layout, mask, structures)
    theta, phi = theta.masked_fill(~on, 0.0), phi.masked_fill(~own, 0.0)
    lost = ~((theta < math.inf).all(-1) & (phi < math.inf).all(-1))
    forbidden, blocked = (~on | theta.isneginf()).numpy(), phi.isneginf().numpy()
    clean = theta.nan_to_num(0.0, 0.0, 0.0).numpy()
    both = np.concatenate([clean, np.where(blocked, 0.0, phi.nan_to_num(0.0, 0.0, 0.0).numpy())], 1)
    near = bring_near(both)
    clean = np.ascontiguousarray(near[:, : clean.shape[1]])
    free = np.where(blocked, FORBIDDEN, np.maximum(near[:, clean.shape[1] :], FORBIDDEN / 2))
    vacuous = ~speaking(layout, mask).numpy()
    bounds = np.zeros_like(clean), np.where(forbidden, 0.0, 1.0)
    return Stated(Program(clean, free, *bounds, vacuous, np.arange(len(clean)), structures), theta, phi, lost)


def worth(scores: Tensor, parts: Tensor) -> Tensor:
    """⟨scores, parts⟩ with 0 · −inf = 0: (B,)."""
    return (scores.masked_fill((parts == 0) & ~scores.isfinite(), 0.0) * parts).sum(-1)
