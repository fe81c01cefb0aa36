"""The page of a comparison: a table, the spread over seeds, and curves with a colour for each setting."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from structmax.plots import charts, page, run_page, series
from structmax.plots.files import Rows, read_json, reading
from structmax.plots.tables import estimate, headed, metric_names, title

MARKS = {
    "interval": "± is half of the 95 % confidence interval of the mean over seeds (Student's t).",
    "best": "Bold: the best of its column.",
    "tied": "≈: seeds cannot tell it from the best (Welch's t test, 5 %).",
}


def html(folder: Path) -> str:
    path = folder / "compare.json"
    with reading(path):
        return _page(folder, read_json(path, dict))


def _page(folder: Path, compared: dict[str, Any]) -> str:
    fields, rows = list(compared.get("over", {})), compared.get("rows", [])
    better = compared.get("better") or {}
    looks = _looks([_setting(row["setting"], fields) for row in rows])
    folders = {str(name): folder / path for name, path in compared.get("runs", {}).items()}
    belongs = {name: _setting(read_json(path / "config.json", dict), fields) for name, path in folders.items()}
    summaries = [read_json(path / "summary.json", dict) for path in folders.values()]
    failed, seeds = sum(bool(row.get("error")) for row in rows), compared.get("seeds", 1)
    told = [f"{len(rows)} settings", f"{seeds} seed{'s' * (seeds != 1)} each"]
    told += [f"{failed} failed"] if failed else []
    runs = run_page.rows_of(folders)
    body = page.header("structmax · comparison", title(compared), told)
    body += page.section(
        "Results",
        _results(fields, rows, looks, better)
        + _downloads(folder)
        + run_page.explained(compared, metric_names(rows), run_page.trained(runs)),
    )
    body += page.section("Spread over seeds", _bars(fields, rows, looks, better))
    body += page.section("Learning curves", _curves(runs, belongs, looks, better))
    if rows and (best := next((n for n, s in belongs.items() if s == _setting(rows[0]["setting"], fields)), None)):
        body += page.section(f"Structures of {best}", run_page.drawings(folders[best]))
    body += page.section("Runs", _links(folder, compared.get("runs", {})))
    body += page.section("Shared settings", run_page.settings(compared.get("settings") or {}, compared))
    devices = {summary["device"]: None for summary in summaries if summary.get("device")}
    made_with = {**next(filter(None, summaries), {}), "device": ", ".join(devices)}
    body += page.section("Reproduce", run_page.made(compared.get("origin") or {}, made_with))
    return page.document(f"{title(compared)} · structmax", body)


def _looks(settings: Sequence[str]) -> dict[str, charts.Look]:
    """The first settings, which are the best, have a colour each; all others are grey, and one entry of the legend."""
    others = f"{len(settings) - len(series.COLOURS)} others"
    return {
        setting: charts.Look(series.colour(i), setting if i < len(series.COLOURS) else others)
        for i, setting in enumerate(settings)
    }


def _results(fields: Sequence[str], rows: Rows, looks: Mapping[str, charts.Look], better: Mapping[str, str]) -> str:
    if not rows:
        return '<p class="empty">No runs yet.</p>'
    names = metric_names(rows)
    failed = any(row.get("error") for row in rows)
    cells = []
    for i, row in enumerate(rows):
        values = [row["setting"].get(field) for field in fields]
        setting = [replace(page.cell(value), shown=page.escape(_exactly(value))) for value in values]
        if i == 0 and len(rows) > 1 and row.get("runs"):
            setting = [page.Cell(f"<b>{cell.shown}</b>", cell.order) for cell in setting]
        dot = f'<i style="--colour:{looks[_setting(row["setting"], fields)].colour}"></i>'
        # a narrow page breaks long names between words
        setting[:1] = [page.Cell(dot + cell.shown.replace("_", "_<wbr>"), cell.order) for cell in setting[:1]]
        time = row.get("seconds")
        line = [*setting, *(_mean(_measured(row, name)) for name in names), page.cell(row.get("runs"))]
        line.append(page.Cell(page.duration(time), "" if time is None else str(time)))
        if failed:
            error = page.escape(row.get("error") or "")
            line.append(page.Cell(f'<span class="error">{error}</span>', error))
        cells.append(line)
    measured = [_measured(row, name) for row in rows for name in names]
    used = {one.get("mark") for one in measured} | {"interval" for one in measured if estimate(one)[1]}
    keys = [words for mark, words in MARKS.items() if mark in used]
    heads = [*fields, *(headed(name, better) for name in names), "runs", "time a run"]
    return page.table([*heads, *(["error"] if failed else [])], cells, sortable=True) + page.keys(keys)


def _measured(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return (row.get("metrics") or {}).get(name) or {}


def _mean(measured: Mapping[str, Any]) -> page.Cell:
    mean, half = estimate(measured)
    shown = mean + (f' <span class="spread">± {half}</span>' if half else "")
    mark, value = measured.get("mark"), measured.get("mean")
    shown = f"<b>{shown}</b>" if mark == "best" else f"{shown} ≈" if mark == "tied" else shown
    return page.Cell(shown, "" if value is None or math.isnan(value) else str(value))


def _downloads(folder: Path) -> str:
    links = " · ".join(
        f'<a href="{name}" download>{what}</a>'
        for name, what in (("compare.csv", "CSV"), ("compare.tex", "LaTeX"), ("compare.json", "JSON"))
        if (folder / name).exists()
    )
    return f'<p class="downloads">This table as {links}</p>' if links else ""


def _bars(fields: Sequence[str], rows: Rows, looks: Mapping[str, charts.Look], better: Mapping[str, str]) -> str:
    """Of those metrics that several seeds have measured."""
    figures = ""
    for name in metric_names(rows):
        if max(len(_measured(row, name).get("values") or ()) for row in rows) < 2:
            continue
        bars = []
        for row in rows:
            setting, measured = _setting(row["setting"], fields), _measured(row, name)
            values = [_number(value) for value in measured.get("values") or ()]
            mean, std = _number(measured.get("mean")), _number(measured.get("std"))
            bars.append(charts.Bar(setting, mean, std, values, looks[setting].colour))
        shown = f"{name} by {' and '.join(fields)}, each seed a dot"
        figures += page.figure(headed(name, better), charts.bars(shown, bars))
    keys = page.keys(["Bar: mean. Line: one standard deviation to either side. Dot: a seed."])
    return f'{keys}<div class="panels">{figures}</div>' if figures else ""


def _curves(
    runs: Mapping[str, Rows],
    belongs: Mapping[str, str],
    looks: Mapping[str, charts.Look],
    better: Mapping[str, str],
) -> str:
    """A line for each setting: the mean over its seeds, in a band."""
    metrics = series.over_seeds(series.by_metric(runs), belongs)
    drawn = {
        line.run: looks.get(line.run, charts.Look(series.REST, "")) for lines in metrics.values() for line in lines
    }
    # the best on top
    rank = {setting: i for i, setting in enumerate(looks)}
    ordered = {
        metric: sorted(lines, key=lambda line: -rank.get(line.run, len(rank))) for metric, lines in metrics.items()
    }
    legend = {look.setting: look.colour for setting, look in looks.items() if setting in drawn}
    banded = any(line.low for lines in metrics.values() for line in lines)
    notes = ["line: mean over the seeds that got so far", "band: lowest to highest of them"] if banded else []
    return run_page.panels(ordered, series.axis(runs), drawn, better, legend, notes)


def _links(folder: Path, runs: Mapping[str, str]) -> str:
    """To each run's own page, where it has one."""
    items = ""
    for name, path in runs.items():
        target, shown = f"{path}/report.html", page.escape(name)
        items += (
            f'<li><a href="{quote(os.fsencode(target))}">{shown}</a></li>'
            if (folder / target).exists()
            else f"<li>{shown}</li>"
        )
    return f'<ul class="runs">{items}</ul>' if items else ""


def _setting(values: Mapping[str, Any], fields: Sequence[str]) -> str:
    """What tells a row from the others: its values of the fields compared."""
    return " · ".join(_exactly(values.get(field)) for field in fields)


def _exactly(value: Any) -> str:
    """A setting in words, with as many digits as tell it from any other."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return page.words(value)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
