"""Answers of the library to a checked request, in the words and grids of the page."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import structmax
from structmax import omega
from structmax.explore.gradients import target
from structmax.explore.kinds import Cells, Kind, Words
from structmax.explore.request import Asked
from structmax.plots import structures

# How many samples are drawn, and how many structures of a SparseMAP.
SAMPLES, DRAWN = 8, 12


def answer(asked: Asked) -> dict[str, Any]:
    """Argmax, marginals, SparseMAP, the smoothed recursion, samples, and the target."""
    structure = asked.structure
    scores, cooled = structure.parts(asked.scores), asked.cooled
    best = structure.tensors(structmax.argmax(scores, structure))
    soft = structure.tensors(structmax.marginals(cooled, structure))
    sparse = structmax.sparsemap(scores, structure, temperature=asked.temperature)
    few = structure.tensors(sparse.parts)[0].unbind()[: int(sparse.counts)]
    drawn = structure.tensors(structmax.sample(cooled, structure, (SAMPLES,), generator=asked.generator()))[0].unbind()
    count = math.exp(float(structmax.log_count(scores, structure)))
    wanted = target(asked, [*few, *drawn])
    of = f"of {_many(count, asked.kind.member)}"
    return {
        "fields": [_field(asked, index) for index in range(len(asked.fields))],
        "points": [
            _point(asked, "argmax", "Argmax", f"The best {of}. It does not depend on the temperature.", best),
            _point(asked, "marginals", "Marginals", f"Means over all {of[3:]}, weighted by exp(score / t).", soft),
            _point(asked, "sparsemap", "SparseMAP", _kept(sparse, of), structure.tensors(sparse.marginals)),
            _smoothed(asked),
        ],
        "sparsemap": {
            "caption": f"{_kept(sparse, of)}{'' if len(few) <= DRAWN else f' The first {DRAWN} are drawn.'}",
            "structures": [
                _member(asked, parts, float(p), _percent(float(p)))
                for parts, p in zip(few[:DRAWN], sparse.probabilities, strict=False)
            ],
        },
        "samples": _samples(asked, drawn),
        "target": _member(asked, wanted),
    }


def _many(count: float, names: tuple[str, str]) -> str:
    """A number with its noun."""
    shown = f"{round(count):,}" if count < 1e6 else f"{count:.2g}"
    return f"{shown} {names[0] if shown == '1' else names[1]}"


def _field(asked: Asked, index: int) -> dict[str, Any]:
    field = asked.fields[index]
    shown = field.shown(asked.scores[index])
    return {"title": field.title, "rows": field.rows, "columns": field.columns, "scores": shown}


def _point(asked: Asked, name: str, title: str, caption: str, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    field = asked.fields[0]
    above = int((tensors[0].flatten()[field.places] > 0).sum())
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "above": f"{above} of {_many(len(field.places), asked.kind.part)} above 0",
        "grids": [field.shown(tensor) for field, tensor in zip(asked.fields, tensors, strict=True)],
    }


def _kept(sparse: Any, of: str) -> str:
    kept, late = int(sparse.counts), "" if bool(sparse.converged) else " The search was ended early."
    return f"{kept} {of} {'has' if kept == 1 else 'have'} a probability above 0.{late}"


def _smoothed(asked: Asked) -> dict[str, Any]:
    """Entmax in every maximum of the recursion, where there is one."""
    regulariser = omega.LocalTsallis(asked.alpha, asked.temperature)
    try:
        found = structmax.smoothed_marginals(asked.structure.parts(asked.scores), asked.structure, regulariser)
    except structmax.Refusal as refusal:
        return {"name": "smoothed", "title": "Smoothed recursion", "caption": str(refusal), "above": "", "grids": []}
    caption = f"Every maximum of the recursion is an entmax with α = {asked.alpha:g}."
    return _point(asked, "smoothed", "Smoothed recursion", caption, asked.structure.tensors(found))


def _samples(asked: Asked, drawn: tuple[Tensor, ...]) -> dict[str, Any]:
    """The different ones, the most frequent first."""
    different, counts = torch.unique(torch.stack(drawn), dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    return {
        "caption": f"{SAMPLES} samples of p ∝ exp(score / t), {len(counts)} of them different.",
        "structures": [
            _member(asked, different[i], int(counts[i]) / SAMPLES, f"{int(counts[i])} of {SAMPLES}") for i in order
        ],
    }


def _percent(probability: float) -> str:
    return f"{100 * probability:.{0 if probability >= 0.1 else 1}f} %"


def _member(asked: Asked, parts: Tensor, share: float = 1.0, label: str = "") -> dict[str, Any]:
    """A structure with its cells, in words and as an SVG; `share` is its probability, or how often it was drawn."""
    cells = asked.fields[0].cells(parts)
    words, svg = _picture(asked.kind, asked.rows, asked.columns, cells)
    return {"share": share, "label": label, "cells": cells, "words": words, "svg": svg}


@lru_cache(1024)
def _picture(kind: Kind, rows: Words, columns: Words, cells: Cells) -> tuple[str, str | None]:
    """In words and as an SVG: kept, as a drag changes few structures."""
    drawing, words = kind.draw(rows, columns, cells), kind.tell(rows, columns, cells)
    return words, None if drawing is None else structures.picture({**drawing, "title": words})
