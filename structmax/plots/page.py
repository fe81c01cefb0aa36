"""The pieces of a page in a single file: style and script are in it, and nothing is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structmax.plots.svg import escape, number, resource

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """What a table shows as HTML, and what it is sorted by."""

    shown: str
    order: str = ""


def cell(value: Any) -> Cell:
    """A cell of plain data: numbers to four digits, none and NaN as a dash, lists as JSON."""
    shown = words(value)
    return Cell(escape(shown), "" if shown == NOTHING else str(value))


def words(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value).replace("inf", "∞")
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


def document(title: str, body: str) -> str:
    """The whole page."""
    style = resource("page.css") + resource("drawing.css")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # An empty icon, so that the browser does not request one.
        '<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}\n"
        f"<script>\n{resource('page.js')}</script>\n</body>\n</html>\n"
    )


def header(above: str, title: str, facts: Sequence[str]) -> str:
    told = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    # Names of runs are settings with commas between; a narrow page breaks them there.
    broken = escape(title).replace(",", ",<wbr>")
    return f'<header><p class="above">{escape(above)}</p><h1>{broken}</h1><ul class="facts">{told}</ul></header>'


def section(title: str, body: str) -> str:
    """A part of the page, or nothing if it has no body."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def headlines(numbers: Sequence[tuple[str, str, str]]) -> str:
    """Large numbers, each with its name and a remark."""
    tiles = "".join(
        f'<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class="remark">{escape(remark)}</dd></div>'
        for name, value, remark in numbers
    )
    return f'<dl class="headlines">{tiles}</dl>' if tiles else ""


def glossary(meanings: Mapping[str, str]) -> str:
    """What names mean, a line each."""
    lines = (f"<div><dt>{escape(name)}</dt> <dd>{escape(meaning)}</dd></div>" for name, meaning in meanings.items())
    return f'<dl class="glossary">{"".join(lines)}</dl>' if meanings else ""


def keys(lines: Iterable[str]) -> str:
    """What marks and colours mean, a sentence each."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="keys">{items}</ul>' if items else ""


def command(words: str) -> str:
    """A command line as one would type it."""
    return f'<pre class="command"><code>{escape(words)}</code></pre>' if words else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], sortable: bool = False) -> str:
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    lines = ""
    for row in rows:
        cells = (f'<td data-order="{escape(cell.order)}">{cell.shown}</td>' for cell in row)
        lines += f"<tr>{''.join(cells)}</tr>"
    kind = ' class="sortable"' if sortable else ""
    return f'<div class="wide"><table{kind}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def facts(pairs: Mapping[str, Any], marked: Sequence[str] = (), mark: str = "") -> str:
    """Names with their values, in as many columns as there is room for."""
    marking = f' class="marked" title="{escape(mark)}"'
    items = "".join(
        f"<div{marking if name in marked else ''}><dt>{escape(name)}</dt><dd>{escape(words(value))}</dd></div>"
        for name, value in pairs.items()
    )
    return f'<dl class="pairs">{items}</dl>' if items else ""


def figure(title: str, picture: str, note: str = "") -> str:
    caption = f"<p>{escape(note)}</p>" if note else ""
    return f'<figure><figcaption>{escape(title)}</figcaption><div class="wide">{picture}</div>{caption}</figure>'


def legend(settings: Mapping[str, str], splits: Sequence[str], notes: Iterable[str]) -> str:
    """Which colour is which setting; which stroke which split; what else there is to see."""
    shown = "".join(
        f'<li class="setting"><i style="--colour:{colour}"></i>{escape(name)}</li>' for name, colour in settings.items()
    )
    shown += "".join(f'<li><i class="{escape(split)}"></i>{escape(split)}</li>' for split in splits)
    shown += "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="legend">{shown}</ul>'
