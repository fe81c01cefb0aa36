"""Answering once ahead of time, so that no drag waits for a kernel that is compiled, or loaded."""

from __future__ import annotations

from typing import Any

from structmax.explore.answers import answer
from structmax.explore.gradients import gradients
from structmax.explore.kinds import KINDS
from structmax.explore.request import LARGEST, checked
from structmax.explore.sweep import sweep


def example(name: str) -> dict[str, Any]:
    """What the page asks first of that kind."""
    kind = KINDS[name]
    columns = kind.columns.example.split() if kind.columns else []
    return {"kind": name, "rows": kind.rows.example.split(), "columns": columns, "scores": kind.example()}


def warm(name: str) -> None:
    """Answers the example of a kind, and its like with scores so large that some kernels take another way."""
    first = example(name)
    steep = [[[score and LARGEST for score in row] for row in grid] for grid in first["scores"]]
    for scores in (first["scores"], steep):
        asked = checked({**first, "scores": scores})
        answer(asked)
        gradients(asked)
        sweep(asked)
