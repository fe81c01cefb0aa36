"""Curves as they come out of runs' metrics: which points belong to which metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What a row says about when it was written; all else are metrics.
TIMES = ("step", "epoch", "seconds")
# Apart from each other for most eyes, and from light and dark pages. Runs beyond the last start again with the first.
COLOURS = (
    "#3B5BDB",
    "#E8590C",
    "#2B9A66",
    "#C2428F",
    "#1C8FB8",
    "#B98900",
    "#7950C8",
    "#A8453B",
    "#6B8E23",
    "#7A8794",
)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


@dataclass(frozen=True)
class Line:
    """One metric in one split of one run. A value that was not finite is NaN; one that was left out is no point."""

    run: str
    split: str
    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def axis(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What curves are drawn against: epochs, which mean the same to all methods, if every row knows its own."""
    return "epoch" if all("epoch" in row for rows in runs.values() for row in rows) else "step"


def by_metric(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Line]]:
    """The lines of each metric, in the order of their first rows: "train/loss" and "valid/loss" are lines of "loss"."""
    along = axis(runs)
    metrics: dict[str, dict[tuple[str, str], Line]] = {}
    for run, rows in runs.items():
        for row in rows:
            if along not in row:
                continue
            for key, value in row.items():
                if key in TIMES or not (value is None or isinstance(value, int | float)) or isinstance(value, bool):
                    continue
                split, _, metric = key.rpartition("/")
                line = metrics.setdefault(metric, {}).setdefault((run, split), Line(run, split))
                line.at.append(float(row[along]))
                line.values.append(math.nan if value is None or not math.isfinite(value) else float(value))
    return {metric: list(lines.values()) for metric, lines in metrics.items()}
