"""Answering once ahead of time, so that no drag waits for a kernel that is compiled, or loaded."""

from __future__ import annotations

from structmax.explore.answers import answer
from structmax.explore.kinds import KINDS
from structmax.explore.request import checked
from structmax.explore.sweep import sweep


def example(name: str) -> dict[str, object]:
    """What the page asks first of that kind."""
    kind = KINDS[name]
    columns = kind.columns.example.split() if kind.columns else []
    return {"kind": name, "rows": kind.rows.example.split(), "columns": columns}


def warm(name: str) -> None:
    """Answers the example of a kind."""
    asked = checked(example(name))
    answer(asked)
    sweep(asked)
