"""Where zeros appear: how many parts are above 0 at each of many temperatures."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

import structmax
from structmax import omega
from structmax.explore.request import RANGES, Asked

STEPS = 25


def sweep(asked: Asked) -> dict[str, Any]:
    """Over the temperature: parts above 0 of marginals, SparseMAP and the smoothed recursion, all in one batch."""
    low, high, _ = RANGES["temperature"]
    temperatures = torch.logspace(math.log10(low), math.log10(high), STEPS, dtype=torch.float64)
    structure, places = asked.structure, asked.fields[0].places
    # each regulariser grows in proportion to the temperature, so that scores may be divided by it instead
    cooled = structure.parts(tuple(s / temperatures.view(-1, *[1] * s.dim()) for s in asked.scores))

    def above(marginals: Any) -> list[int]:
        first: Tensor = structure.tensors(marginals)[0]
        return (first.flatten(1)[:, places] > 0).sum(1).tolist()

    lines = {
        "Marginals": above(structmax.marginals(cooled, structure)),
        "SparseMAP": above(structmax.sparsemap(cooled, structure).marginals),
    }
    # a structure without a recursion says so beside the other answers
    with suppress(structmax.Refusal):
        smoothed = structmax.smoothed_marginals(cooled, structure, omega.LocalTsallis(asked.alpha))
        lines["Smoothed recursion"] = above(smoothed)
    return {"temperatures": temperatures.tolist(), "parts": len(places), "noun": asked.kind.part[1], "above": lines}
