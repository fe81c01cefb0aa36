"""A run, or a comparison of runs, on one page: `report.html`, which needs no other file and no network."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from structmax.plots import charts, page, series, structures

__all__ = ["write"]

# How many numbers head the page.
LARGE = 4
# What a run's page says in places of their own; all else of its summary is listed.
PLACED = ("recipe", "name", "best", "test", "seconds", "device", "parameters", "versions", "changed", "meanings")
# The colour of a run that belongs to no row of its comparison.
STRAY = "#98A2B3"

Rows = list[dict[str, Any]]


def write(folder: Path) -> Path:
    """Writes `report.html` into the folder of a run, or of a comparison, from the files it finds there.

    A run has `config.json`, `metrics.jsonl`, `summary.json` and `structures.json`; one that has not ended may lack all
    but the first. A comparison has `compare.json`, which names the folders of its runs.

    Args:
        folder: of the run or the comparison.

    Returns:
        The page's path.

    Examples:
        >>> import tempfile
        >>> from structmax.plots import report
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.json").write_text('{"seed": 0}')
        >>> report.write(folder).name
        'report.html'
    """
    if (folder / "compare.json").exists():
        html = _comparison(folder)
    elif (folder / "config.json").exists():
        html = _run(folder)
    else:
        raise FileNotFoundError(
            f"{folder} should be the folder of a run, with config.json, or of a comparison, with compare.json, but has "
            "neither. Runs are in <folder>/<recipe>/<name>."
        )
    target = folder / "report.html"
    # A reader of the page sees the old one or the new one, never a part.
    draft = folder / "report.html.part"
    draft.write_text(html, encoding="utf-8")
    return draft.replace(target)


def _run(folder: Path) -> str:
    config, summary = _json(folder / "config.json", dict), _json(folder / "summary.json", dict)
    name = str(summary.get("name", folder.name))
    curves = _curves_of({name: folder}, {name: charts.Look("var(--accent)", "")}, {})
    drawn = _structures(folder)
    with _reading(folder / "summary.json"):
        return _page_of_run(folder, name, config, summary, curves, drawn)


def _page_of_run(
    folder: Path, name: str, config: dict[str, Any], summary: dict[str, Any], curves: str, drawn: str
) -> str:
    best, test = (_metrics(summary.get(key) or {}) for key in ("best", "test"))
    told = [f"on {summary['device']}"] if summary.get("device") else []
    told += [f"{page.words(summary['parameters'])} parameters"] if summary.get("parameters") else []
    told += [page.duration(summary["seconds"])] if "seconds" in summary else ["not finished"]
    body = page.header(f"structmax · {summary.get('recipe', folder.parent.name)}", name, told)
    body += page.headlines(_headlines(best, test)) + _explained(summary, {**test, **best})
    body += page.section("Learning curves", curves)
    body += page.section("Structures", drawn)
    body += page.section("Results", _measured(best, test))
    changed = list(summary.get("changed") or ())
    key = '<p class="key">differs from the default</p>' if changed else ""
    body += page.section("Settings", page.facts(config, changed, "differs from the default") + key)
    body += page.section("Details", _details(summary))
    return page.document(f"{name} · structmax", body)


def _comparison(folder: Path) -> str:
    path = folder / "compare.json"
    with _reading(path):
        return _page_of_comparison(folder, _json(path, dict))


def _page_of_comparison(folder: Path, compared: dict[str, Any]) -> str:
    fields, rows = list(compared.get("over", {})), compared.get("rows", [])
    colours = {_setting(row["setting"], fields): series.colour(i) for i, row in enumerate(rows)}
    folders = {str(name): folder / path for name, path in compared.get("runs", {}).items()}
    belongs = {name: _setting(_json(path / "config.json", dict), fields) for name, path in folders.items()}
    title = " × ".join(fields) or "Runs"
    failed = sum(bool(row.get("error")) for row in rows)
    seeds = compared.get("seeds", 1)
    told = [f"{len(rows)} settings", f"{seeds} seed{'s' * (seeds != 1)} each"]
    told += [f"{failed} failed"] if failed else []
    body = page.header(f"structmax · {compared.get('recipe', folder.parent.name)} · comparison", title, told)
    body += page.section("Results", _results(fields, rows, colours) + _explained(compared, _metric_names(rows)))
    body += page.section("Spread over seeds", _bars(fields, rows, colours))
    looks = {name: charts.Look(colours.get(setting, STRAY), setting) for name, setting in belongs.items()}
    body += page.section("Learning curves", _curves_of(folders, looks, colours))
    if rows and (best := next((n for n, s in belongs.items() if s == _setting(rows[0]["setting"], fields)), None)):
        body += page.section(f"Structures of {best}", _structures(folders[best]))
    body += page.section("Runs", _links(folder, compared.get("runs", {})))
    return page.document(f"{title} · structmax", body)


def _headlines(best: Mapping[str, Any], test: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Test metrics with the validation next to them; before there is a test, the best validation."""
    if not test:
        return [(name, page.words(value), "validation, best") for name, value in list(best.items())[:LARGE]]
    remarks = {name: f"test; validation {page.words(best[name])}" for name in test if name in best}
    return [(name, page.words(value), remarks.get(name, "test")) for name, value in list(test.items())[:LARGE]]


def _measured(best: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """All metrics, unless the headlines already show them."""
    names = list({**test, **best})
    if names == list(test or best)[:LARGE]:
        return ""
    rows = [[page.cell(name), page.cell(best.get(name)), page.cell(test.get(name))] for name in names]
    return page.table(["", "validation, best", "test"], rows)


def _explained(told: Mapping[str, Any], metrics: Iterable[str]) -> str:
    """What the metrics mean, of those whose names do not say it."""
    meanings = told.get("meanings") or {}
    return page.glossary({name: meanings[name] for name in metrics if name in meanings})


def _curves_of(folders: Mapping[str, Path], looks: Mapping[str, charts.Look], settings: Mapping[str, str]) -> str:
    runs = {}
    for name, folder in folders.items():
        path = folder / "metrics.jsonl"
        runs[name] = _json_lines(path)
        # once for each: together, one could not tell whose it was
        with _reading(path):
            series.by_metric({name: runs[name]})
    return _curves(runs, looks, settings)


def _curves(runs: Mapping[str, Rows], looks: Mapping[str, charts.Look], settings: Mapping[str, str]) -> str:
    """A panel for each metric, below a legend of the settings' colours."""
    metrics = series.by_metric(runs)
    if not metrics:
        return '<p class="empty">No metrics yet.</p>'
    along = series.axis(runs)
    panels = "".join(
        page.figure(metric, charts.curves(metric, along, lines, looks)) for metric, lines in metrics.items()
    )
    splits = list({line.split: None for lines in metrics.values() for line in lines if line.split})
    return page.legend(settings, splits) + f'<div class="panels">{panels}</div>'


def _structures(folder: Path) -> str:
    path = folder / "structures.json"
    with _reading(path):
        figures = "".join(
            page.figure(structures.title(drawing), structures.picture(drawing), drawing.get("note", ""))
            for drawing in _json(path, list)
        )
    return f'<div class="drawings">{figures}</div>' if figures else ""


def _details(summary: Mapping[str, Any]) -> str:
    """What else a summary holds: plain values in one list, each dictionary in its own."""
    others = {name: value for name, value in summary.items() if name not in PLACED}
    body = page.facts({name: value for name, value in others.items() if not isinstance(value, dict)})
    named = {name: value for name, value in others.items() if isinstance(value, dict)}
    named["versions"] = summary.get("versions") or {}
    return body + "".join(f"<h3>{page.escape(name)}</h3>{page.facts(value)}" for name, value in named.items() if value)


def _results(fields: Sequence[str], rows: Rows, colours: Mapping[str, str]) -> str:
    names = _metric_names(rows)
    failed = any(row.get("error") for row in rows)
    cells = []
    for row in rows:
        setting = [page.cell(row["setting"].get(field)) for field in fields]
        colour = colours[_setting(row["setting"], fields)]
        dot = f'<i style="--colour:{colour}"></i>'
        setting[:1] = [page.Cell(dot + cell.shown, cell.order) for cell in setting[:1]]
        time = row.get("seconds")
        line = [*setting, *(_mean(row, name) for name in names), page.cell(row.get("runs"))]
        line.append(page.Cell(page.duration(time), "" if time is None else str(time)))
        if failed:
            error = page.escape(row.get("error") or "")
            line.append(page.Cell(f'<span class="error">{error}</span>', error))
        cells.append(line)
    heads = [*fields, *names, "runs", "time a run", *(["error"] if failed else [])]
    return page.table(heads, cells, sortable=True) if rows else '<p class="empty">No runs yet.</p>'


def _mean(row: Mapping[str, Any], name: str) -> page.Cell:
    measured = (row.get("metrics") or {}).get(name) or {}
    mean = measured.get("mean")
    shown = page.words(mean)
    if len(measured.get("values") or ()) > 1:
        spread = _number(measured.get("std"))
        shown += f' <span class="spread">± {spread:.2g}</span>'
    return page.Cell(shown, "" if mean is None or math.isnan(mean) else str(mean))


def _bars(fields: Sequence[str], rows: Rows, colours: Mapping[str, str]) -> str:
    figures = ""
    for name in _metric_names(rows):
        bars = []
        for row in rows:
            measured = (row.get("metrics") or {}).get(name) or {}
            values = [_number(value) for value in measured.get("values") or ()]
            setting = _setting(row["setting"], fields)
            bars.append(
                charts.Bar(
                    setting, _number(measured.get("mean")), _number(measured.get("std")), values, colours[setting]
                )
            )
        figures += page.figure(name, charts.bars(name, bars))
    return f'<div class="panels large">{figures}</div>' if figures else ""


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
    return " · ".join(page.words(values.get(field)) for field in fields)


def _metric_names(rows: Rows) -> list[str]:
    return list({name: None for row in rows for name in row.get("metrics") or {}})


def _metrics(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without the split in front of their names, and without times."""
    return {name.rpartition("/")[2]: value for name, value in measured.items() if name not in series.TIMES}


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


class BadFile(ValueError):
    """A file of a run is not as a run writes it."""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """While the page is made of this file: what it holds may be of any shape."""
    try:
        yield
    except BadFile:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"should be as a run writes it, but is not ({type(error).__name__}: {error})"
        raise BadFile(f"{path}: {reason}. Start the run again, or remove the file.") from error


def _json(path: Path, kind: type) -> Any:
    """What a file holds; nothing, if it does not exist."""
    return _parsed(_text(path), path, kind) if path.exists() else kind()


def _json_lines(path: Path) -> Rows:
    lines = _text(path).splitlines() if path.exists() else []
    return [_parsed(line, path, dict, number) for number, line in enumerate(lines, 1)]


def _text(path: Path) -> str:
    """Text that cannot be decoded is not JSON either, which parsing it reports."""
    return path.read_text(encoding="utf-8", errors="replace")


def _parsed(text: str, path: Path, kind: type, line: int = 1) -> Any:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadFile(
            f"{path}:{line + error.lineno - 1}: should be JSON, but {error.msg}. "
            "Was it being written when the run stopped?"
        ) from None
    if not isinstance(found, kind):
        wanted = "an object" if kind is dict else "an array"
        raise BadFile(f"{path}:{line}: should be {wanted} of JSON, but is {text.strip()[:40]!r}. Remove the file.")
    return found
