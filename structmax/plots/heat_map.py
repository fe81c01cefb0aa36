"""Heat maps of weights: alignments, attention, marginals, confusions. A cell that is exactly zero stays empty."""

from __future__ import annotations

import math
from typing import Any

from structmax.plots import svg

# Cells shrink from LARGE to SMALL as the map grows, so that it is about WIDE pixels wide.
LARGE, SMALL, WIDE = 26.0, 7.0, 640.0
# At most this many columns, and cells, have numbers in them.
COLUMNS, CELLS = 12, 144
# The darkest ink of a cell: a number in the colour of the text is legible on the second, on light and on dark pages.
PLAIN, WRITTEN = 1.0, 0.55
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
    numbers = [] if drawing.get("cell") or wide > COLUMNS or wide * len(weights) > CELLS else _numbers(weights)
    widest = max((svg.text_width(number, svg.SMALL) for row in numbers for number in row), default=0.0)
    cell = float(drawing.get("cell") or max(SMALL, min(LARGE, WIDE / max(wide, 1)), widest + 8))
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
                kind, strength = _ink(weight, largest, WRITTEN if numbers else PLAIN)
                hint = f"{rows[i]} · {columns[j]}: {svg.number(weight)}"
                place = left + j * cell + 0.5, top + i * cell + 0.5, cell - 1, cell - 1
                body += svg.rectangle(*place, kind, hint, strength)
                if numbers:
                    middle = left + (j + 0.5) * cell, top + (i + 0.5) * cell + 4
                    body += svg.text(*middle, numbers[i][j], "number")
    for i, j in drawing.get("gold") or ():
        if not (0 <= i < len(weights) and 0 <= j < wide):
            raise ValueError(
                f"`gold` should have pairs [row, column] inside the {len(weights)} by {wide} weights, counted from 0, "
                f"but one is [{i}, {j}]."
            )
        body += svg.rectangle(left + j * cell, top + i * cell, cell, cell, "gold")
    return svg.Sketch(left + wide * cell + 8, top + len(weights) * cell + 8, body)


def keys(drawing: dict[str, Any]) -> list[str]:
    """What the cells of this drawing show."""
    weights = [weight or 0.0 for row in drawing["weights"] for weight in row]
    found = ["Cells: the stronger the colour, the larger the weight; empty cells are exactly 0."]
    found += ["Orange cells: weights below 0."] if any(weight < 0 for weight in weights) else []
    return found + (["Framed cells: those that should have the weight."] if drawing.get("gold") else [])


def _numbers(weights: list[list[float]]) -> list[list[str]]:
    """Whole numbers as they are, others in two digits after the point; those below 1 without their zero.

    What is not 0 is not written as 0.
    """
    finite = [weight for row in weights for weight in row if math.isfinite(weight)]
    form = ",.0f" if all(weight.is_integer() for weight in finite) else ".2f"
    largest = max(map(abs, finite), default=0.0)
    if largest >= 1e6:
        form = ".2g"

    def written(weight: float) -> str:
        shown = format(weight, form) if math.isfinite(weight) else "–"
        if form == ".2f" and 0 < abs(weight) < 0.005:
            return "<.01" if weight > 0 else ">-.01"
        return shown.replace("0.", ".", 1) if form == ".2f" and abs(weight) < 0.995 else shown

    return [[written(weight) for weight in row] for row in weights]


def _ink(weight: float, largest: float, strongest: float) -> tuple[str, float]:
    if not math.isfinite(weight):
        return "cell void", 1.0
    # Never so faint that it could be taken for a zero.
    return "cell" if weight > 0 else "cell negative", 0.08 + (strongest - 0.08) * abs(weight) / largest


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
