"""A comparison: the runs of every setting with every seed, and what came of them on the average."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from structmax.training import intervals
from structmax.training.run_folder import spelled
from structmax.training.task import C, merit


@dataclass(frozen=True)
class Member(Generic[C]):
    """One run of a comparison."""

    name: str
    setting: dict[str, Any]
    config: C


@dataclass(frozen=True)
class Outcome:
    """What came of it: a summary, or why there is none."""

    summary: dict[str, Any] | None = None
    error: str | None = None


def members(config: C, over: Mapping[str, Sequence[Any]], seeds: int) -> list[Member[C]]:
    """The product of all values with seeds from 0.

    Examples:
        >>> from structmax.training import Settings
        >>> [member.name for member in members(Settings(), {"clip": [0.0, 1.0]}, seeds=2)]
        ['clip=0.0,seed=0', 'clip=0.0,seed=1', 'clip=1.0,seed=0', 'clip=1.0,seed=1']
    """
    found = []
    for values in itertools.product(*over.values()):
        setting = dict(zip(over, values, strict=True))
        for seed in range(seeds):
            own = {**setting, "seed": seed}
            found.append(Member(spelled(own), setting, replace(config, **own)))
    return found


def rows(
    runs: Sequence[Member[Any]], outcomes: Mapping[str, Outcome], best: str, better: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row of each setting, the best first, with the mean, spread and values of each test metric over the seeds.

    `ci95` is half of the 95 % confidence interval of the mean. Where there are several rows, `mark` is "best" for the
    best mean of a metric, and "tied" for those that seeds cannot tell from it.

    Args:
        runs: all members.
        outcomes: of those that were run, by name.
        best: the metric to sort by.
        better: "higher" or "lower" for the metrics that have a better direction.
    """
    settings: list[dict[str, Any]] = []
    for run in runs:
        if run.setting not in settings:
            settings.append(run.setting)
    found = [_row(setting, [outcomes[run.name] for run in runs if run.setting == setting]) for setting in settings]
    found.sort(key=lambda row: merit(row["metrics"].get(best, {"mean": math.nan})["mean"]), reverse=True)
    for name, direction in better.items():
        _mark([row["metrics"][name] for row in found if name in row["metrics"]], direction)
    return found


def _mark(measured: list[dict[str, Any]], direction: str) -> None:
    sign = 1 if direction == "higher" else -1
    if len(measured) < 2:
        return
    top = max(measured, key=lambda one: merit(sign * one["mean"]))
    if math.isnan(top["mean"]):
        return
    for one in measured:
        if one["mean"] == top["mean"]:
            one["mark"] = "best"
        elif intervals.differ(one["values"], top["values"]) is False:
            one["mark"] = "tied"


def _row(setting: dict[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    summaries = [outcome.summary for outcome in outcomes if outcome.summary]
    names = dict.fromkeys(name for summary in summaries for name in summary["test"])
    return {
        "setting": setting,
        "runs": len(summaries),
        "metrics": {name: _spread([s["test"][name] for s in summaries if name in s["test"]]) for name in names},
        "seconds": statistics.mean(summary["seconds"] for summary in summaries) if summaries else 0.0,
        "error": next((outcome.error for outcome in outcomes if outcome.error), None),
    }


def _spread(values: list[float]) -> dict[str, Any]:
    """`std` is that of a sample: 0 for a single value, NaN where one is not finite."""
    std = 0.0 if len(values) == 1 else statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
    return {"mean": statistics.mean(values), "std": std, "ci95": intervals.half_width(values), "values": values}
