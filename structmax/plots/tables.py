"""The results of a comparison as tables for other programs: CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

from structmax.plots.files import Rows
from structmax.plots.svg import number

# More decimals than this are written with an exponent.
DECIMALS = 6
ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$"}
ESCAPES = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


def metric_names(rows: Rows) -> list[str]:
    return list({name: None for row in rows for name in row.get("metrics") or {}})


def estimate(measured: Mapping[str, Any]) -> tuple[str, str]:
    """A mean and half of its interval, to two digits of the interval; without one, four digits and nothing.

    Examples:
        >>> from structmax.plots import tables
        >>> tables.estimate({"mean": 0.75812, "ci95": 0.0123}), tables.estimate({"mean": 0.75812})
        (('0.758', '0.012'), ('0.7581', ''))
    """
    mean, half = (math.nan if measured.get(key) is None else float(measured[key]) for key in ("mean", "ci95"))
    if math.isnan(mean):
        return "–", ""
    shown = number(mean).replace("inf", "∞")
    if not math.isfinite(mean) or not math.isfinite(half):
        return shown, ""
    decimals = max(0, 1 - math.floor(math.log10(half))) if half > 0 else DECIMALS + 1
    return (f"{mean:,.{decimals}f}", f"{half:,.{decimals}f}") if decimals <= DECIMALS else (shown, number(half))


def as_csv(compared: Mapping[str, Any]) -> str:
    """What `compare.json` holds as a row for each setting: mean, standard deviation, interval and number of seeds."""
    fields, rows = list(compared["over"]), compared["rows"]
    names = metric_names(rows)
    heads = [f"{name}_{kind}" for name in names for kind in ("mean", "std", "ci95", "n")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*fields, *heads, "runs", "seconds", "error"])
    for row in rows:
        line = [row["setting"][field] for field in fields]
        for name in names:
            measured = row["metrics"].get(name, {"values": []})
            n = len(measured["values"])
            # one seed has no spread
            line += [measured.get("mean"), measured.get("std") if n > 1 else None, measured.get("ci95"), n]
        writer.writerow([*line, row["runs"], row["seconds"], row["error"]])
    return out.getvalue()


def as_latex(compared: Mapping[str, Any]) -> str:
    """What `compare.json` holds as a `tabular` with the rules of `booktabs`: the best of each column is bold."""
    fields, rows, better = list(compared["over"]), compared["rows"], compared["better"]
    names = metric_names(rows)
    heads = [*map(latex, fields), *(latex(name) + ARROWS.get(better.get(name, ""), "") for name in names)]
    lines = [[latex(row["setting"][field]) for field in fields] + [_latex(row, name) for name in names] for row in rows]
    widths = "l" * len(fields) + "r" * len(names)
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in lines)
    return (
        f"% {latex(title(compared))}. Needs \\usepackage{{booktabs}}.\n"
        "% The number after the sign is half of the 95\\% confidence interval of the mean over seeds (Student's t).\n"
        f"\\begin{{tabular}}{{{widths}}}\n\\toprule\n{' & '.join(heads)} \\\\\n\\midrule\n{body}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def title(compared: Mapping[str, Any]) -> str:
    """What is compared, by what, and over how many seeds.

    Examples:
        >>> from structmax.plots import tables
        >>> tables.title({"recipe": "listops", "best": "accuracy", "over": {"encoder": ["lstm", "gold"]}, "seeds": 3})
        'listops: accuracy by encoder, 3 seeds'
    """
    fields = " and ".join(compared.get("over") or ()) or "run"
    best, recipe = compared.get("best"), compared.get("recipe")
    seeds = compared.get("seeds", 1)
    named = f"{recipe}: " if recipe else ""
    return f"{named}{best or 'results'} by {fields}, {seeds} seed{'s' * (seeds != 1)}"


def latex(text: object) -> str:
    """Text that LaTeX prints as it is.

    Examples:
        >>> from structmax.plots import tables
        >>> print(tables.latex("a_b & 5 %"))
        a\\_b \\& 5 \\%
    """
    return " ".join(str(text).split()).translate(ESCAPES)


def _latex(row: Mapping[str, Any], name: str) -> str:
    measured = row["metrics"].get(name, {})
    mean, half = (part.replace(",", "{,}").replace("∞", r"\infty") for part in estimate(measured))
    if mean == "–":
        return "--"
    shown = rf"{mean} \pm {half}" if half else mean
    return rf"$\mathbf{{{shown}}}$" if measured.get("mark") == "best" else f"${shown}$"
