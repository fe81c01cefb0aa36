"""The page of a run, and the parts it shares with the page of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from structmax.plots import charts, page, series, structures
from structmax.plots.files import Rows, read_json, read_rows, reading

# How many numbers head the page.
LARGE = 4
# What a run's page says in places of their own; all else of its summary is listed.
PLACED = {
    "recipe",
    "name",
    "best",
    "test",
    "seconds",
    "device",
    "parameters",
    "versions",
    "changed",
    "meanings",
    "better",
}
ARROWS = {"higher": "↑", "lower": "↓"}


def html(folder: Path) -> str:
    config, summary = read_json(folder / "config.json", dict), read_json(folder / "summary.json", dict)
    name = str(summary.get("name", folder.name))
    runs = rows_of({name: folder})
    drawn = drawings(folder)
    with reading(folder / "origin.json"):
        origin = made(read_json(folder / "origin.json", dict), summary)
    with reading(folder / "summary.json"):
        recipe = str(summary.get("recipe", folder.parent.name))
        best, test = (_metrics(summary.get(key) or {}) for key in ("best", "test"))
        better = summary.get("better") or {}
        looks = {name: charts.Look("var(--accent)", "")}
        curves = panels(series.by_metric(runs), series.axis(runs), looks, better, {})
        told = [f"on {summary['device']}"] if summary.get("device") else []
        told += [f"{page.words(summary['parameters'])} parameters"] if summary.get("parameters") else []
        told += [page.duration(summary["seconds"])] if "seconds" in summary else ["not finished"]
        body = page.header(f"structmax · {recipe}", name, told)
        body += page.headlines(_headlines(best, test, better))
        body += explained(summary, {**test, **best}, trained(runs))
        body += page.section("Learning curves", curves)
        body += page.section("Structures", drawn)
        body += page.section("Results", _measured(best, test, better))
        body += page.section("Settings", settings(config, summary))
        body += page.section("Reproduce", origin)
        body += page.section("Details", _details(summary))
    return page.document(f"{recipe}: {name} · structmax", body)


def headed(metric: str, better: Mapping[str, str]) -> str:
    """A metric's name, with an arrow in the direction that is better."""
    return f"{metric} {ARROWS[better[metric]]}" if metric in better else metric


def rows_of(folders: Mapping[str, Path]) -> dict[str, Rows]:
    """The rows of each run's metrics, which can be drawn."""
    runs = {}
    for name, folder in folders.items():
        path = folder / "metrics.jsonl"
        runs[name] = read_rows(path)
        # once for each: together, one could not tell whose it was
        with reading(path):
            series.by_metric({name: runs[name]})
    return runs


def trained(runs: Mapping[str, Rows]) -> list[str]:
    """Names of all metrics in rows, those of training too."""
    return list(series.by_metric(runs))


def panels(
    metrics: Mapping[str, list[series.Line]],
    along: str,
    looks: Mapping[str, charts.Look],
    better: Mapping[str, str],
    legend: Mapping[str, str],
    notes: Iterable[str] = (),
) -> str:
    """A panel for each metric, below a legend of colours, strokes, and notes."""
    if not metrics:
        return '<p class="empty">No metrics yet.</p>'
    drawn = "".join(
        page.figure(headed(metric, better), charts.curves(f"{metric} by {along}", along, lines, looks))
        for metric, lines in metrics.items()
    )
    splits = list({line.split: None for lines in metrics.values() for line in lines if line.split})
    return page.legend(legend, splits, notes) + f'<div class="panels">{drawn}</div>'


def drawings(folder: Path) -> str:
    """The structures a run has drawn, below what their colours mean."""
    path = folder / "structures.json"
    with reading(path):
        found = read_json(path, list)
        figures = "".join(
            page.figure(structures.title(drawing), structures.picture(drawing), drawing.get("note", ""))
            for drawing in found
        )
        keys = page.keys({key: None for drawing in found for key in structures.keys(drawing)})
    return f'{keys}<div class="drawings">{figures}</div>' if figures else ""


def explained(told: Mapping[str, Any], *metrics: Iterable[str]) -> str:
    """What the metrics and the arrows at their names mean."""
    meanings, better = told.get("meanings") or {}, told.get("better") or {}
    names = {name: None for some in metrics for name in some}
    directions = {better[name] for name in names if name in better}
    arrows = [f"{arrow} {direction} is better" for direction, arrow in ARROWS.items() if direction in directions]
    return page.glossary({name: meanings[name] for name in names if name in meanings}) + page.keys(arrows)


def settings(config: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    changed = list(told.get("changed") or ())
    key = '<p class="key">differs from the default</p>' if changed else ""
    return page.facts(config, changed, "differs from the default") + key


def made(origin: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The command, when and where it ran, and with what; older folders do not have all of it."""
    facts: dict[str, Any] = {}
    if started := origin.get("started"):
        facts["started"] = f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M %Z}".strip()
    facts["commit"] = origin.get("commit")
    facts["device"] = summary.get("device")
    facts.update(summary.get("versions") or {})
    return page.command(origin.get("command") or "") + page.facts({name: fact for name, fact in facts.items() if fact})


def _headlines(
    best: Mapping[str, Any], test: Mapping[str, Any], better: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Test metrics with the validation next to them; before there is a test, the best validation."""
    if not test:
        remarks = dict.fromkeys(best, "validation, best")
    else:
        remarks = {name: f"test; validation {page.words(best[name])}" if name in best else "test" for name in test}
    return [(headed(name, better), page.words((test or best)[name]), remarks[name]) for name in list(remarks)[:LARGE]]


def _measured(best: Mapping[str, Any], test: Mapping[str, Any], better: Mapping[str, str]) -> str:
    """All metrics, unless the headlines already show them."""
    names = list({**test, **best})
    if names == list(test or best)[:LARGE]:
        return ""
    rows = [[page.cell(headed(name, better)), page.cell(best.get(name)), page.cell(test.get(name))] for name in names]
    return page.table(["", "validation, best", "test"], rows)


def _details(summary: Mapping[str, Any]) -> str:
    """What else a summary holds: plain values in one list, each dictionary in its own."""
    others = {name: value for name, value in summary.items() if name not in PLACED}
    body = page.facts({name: value for name, value in others.items() if not isinstance(value, dict)})
    named = {name: value for name, value in others.items() if isinstance(value, dict) and value}
    return body + "".join(f"<h3>{page.escape(name)}</h3>{page.facts(value)}" for name, value in named.items())


def _metrics(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without the split in front of their names, and without times."""
    return {name.rpartition("/")[2]: value for name, value in measured.items() if name not in series.TIMES}
