"""Heat maps of weights: alignments, attention, marginals. A cell that is exactly zero stays empty."""

from __future__ import annotations

import math
from typing import Any

from structmax.plots import svg

# Cells shrink from LARGE to SMALL as the map grows, so that it is about WIDE pixels wide.
LARGE, SMALL, WIDE = 26.0, 7.0, 640.0
# Cells under this height have no room for a name, so that only some rows and columns are named.
LEGIBLE = 14.0


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """Weights as ink, |weight| over the largest; negative ones in the other colour; `gold` cells are framed."""
    weights = [[math.nan if weight is None else float(weight) for weight in row] for row in drawing["weights"]]
    wide = max((len(row) for row in weights), default=0)
    rows = names(drawing.get("rows"), len(weights), "rows", "weights")
    columns = names(drawing.get("columns"), wide, "columns", "weights")
    if any(len(row) != wide for row in weights):
        raise ValueError(
            f"`weights` should have rows of one length, but they have {sorted({len(row) for row in weights})}. "
            "Pad short rows with 0."
        )
    cell = float(drawing.get("cell") or max(SMALL, min(LARGE, WIDE / max(wide, 1))))
    left = max((svg.text_width(name, svg.SMALL) for name in rows), default=0.0) + 8
    # Names of columns stand upright where one is wider than its column.
    longest = max((svg.text_width(name, svg.SMALL) for name in columns), default=0.0)
    upright = longest > cell - 2
    top = (longest if upright else svg.SMALL) + 8
    every = math.ceil(LEGIBLE / cell)
    body = svg.rectangle(left, top, wide * cell, len(weights) * cell, "board")
    body += "".join(
        svg.text(left - 6, top + (i + 0.5) * cell + 4, name, "tag", "end") for i, name in _some(rows, every)
    )
    for j, name in _some(columns, every):
        x = left + (j + 0.5) * cell
        if upright:
            turned = svg.text(0, 0, name, "tag", "start")
            body += f'<g transform="translate({svg.pixels(x + 4)} {svg.pixels(top - 6)}) rotate(-90)">{turned}</g>'
        else:
            body += svg.text(x, top - 6, name, "tag")
    largest = max((abs(weight) for row in weights for weight in row if math.isfinite(weight)), default=0.0)
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if weight:
                kind, strength = _ink(weight, largest)
                hint = f"{rows[i]} · {columns[j]}: {svg.number(weight)}"
                place = left + j * cell + 0.5, top + i * cell + 0.5, cell - 1, cell - 1
                body += svg.rectangle(*place, kind, hint, strength)
    for i, j in drawing.get("gold") or ():
        if not (0 <= i < len(weights) and 0 <= j < wide):
            raise ValueError(
                f"`gold` should have pairs [row, column] inside the {len(weights)} by {wide} weights, counted from 0, "
                f"but one is [{i}, {j}]."
            )
        body += svg.rectangle(left + j * cell, top + i * cell, cell, cell, "gold")
    return svg.Sketch(left + wide * cell + 8, top + len(weights) * cell + 8, body)


def _ink(weight: float, largest: float) -> tuple[str, float]:
    if not math.isfinite(weight):
        return "cell void", 1.0
    # Never so faint that it could be taken for a zero.
    return "cell" if weight > 0 else "cell negative", 0.08 + 0.92 * abs(weight) / largest


def names(given: list[Any] | None, count: int, argument: str, whose: str) -> list[str]:
    """Given names of rows or columns, or numbers from 0."""
    if given is None:
        return [str(i) for i in range(count)]
    if len(given) != count:
        raise ValueError(
            f"`{argument}` should have a name for each of the {count} {argument} of `{whose}`, but has {len(given)}. "
            "Leave it out to show numbers."
        )
    return [str(name) for name in given]


def _some(names: list[str], every: int) -> list[tuple[int, str]]:
    return list(enumerate(names))[::every]
