"""Curves as they come out of runs' metrics: which points belong to which metric."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

# What a row says about when it was written; all else are metrics.
TIMES = ("step", "epoch", "seconds")
# Apart from each other for most eyes, and from light and dark pages.
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
    "#EC6A9C",
)
# The colour of all that come after those: none of them is used twice.
REST = "#98A2B3"


def colour(index: int) -> str:
    return COLOURS[index] if index < len(COLOURS) else REST


@dataclass(frozen=True)
class Line:
    """One metric in one split of one run. A value that was not finite is NaN; one that was left out is no point.

    A mean over several runs has the lowest and the highest of them at each point; one run has no such values.
    """

    run: str
    split: str
    at: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


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


def over_seeds(metrics: Mapping[str, Sequence[Line]], settings: Mapping[str, str]) -> dict[str, list[Line]]:
    """The lines of each metric, with one for each setting in place of those of its runs, its seeds.

    Args:
        metrics: lines by metric, as `by_metric` finds them.
        settings: of each run.

    Examples:
        >>> from structmax.plots import series
        >>> lines = [series.Line("a", "valid", [1.0], [0.5]), series.Line("b", "valid", [1.0], [1.0])]
        >>> series.over_seeds({"loss": lines}, {"a": "sgd", "b": "sgd"})["loss"]
        [Line(run='sgd', split='valid', at=[1.0], values=[0.75], low=[0.5], high=[1.0])]
    """
    means = {}
    for metric, lines in metrics.items():
        seeds: dict[tuple[str, str], list[Line]] = {}
        for line in lines:
            seeds.setdefault((settings[line.run], line.split), []).append(line)
        means[metric] = [_mean(setting, split, found) for (setting, split), found in seeds.items()]
    return means


def _mean(setting: str, split: str, lines: Sequence[Line]) -> Line:
    """The mean of all first points, of all second ones, and so on; some runs may have ended before others."""
    if len(lines) == 1:
        return Line(setting, split, lines[0].at, lines[0].values)
    mean = Line(setting, split)
    for points in zip_longest(*(zip(line.at, line.values, strict=True) for line in lines)):
        reached = [point for point in points if point is not None]
        values = [value for _, value in reached]
        mean.at.append(statistics.mean(at for at, _ in reached))
        mean.values.append(statistics.mean(values))
        finite = math.isfinite(mean.values[-1])
        mean.low.append(min(values) if finite else math.nan)
        mean.high.append(max(values) if finite else math.nan)
    return mean
