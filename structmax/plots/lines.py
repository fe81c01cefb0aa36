"""Time series as lines over one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from structmax.plots import charts, series, svg

# A panel, the room above it for names, and between names.
WIDTH, HEIGHT, TOP, GAP = 400.0, 150.0, 22.0, 16.0


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """The first line in ink, the others in colours of their own; those of `behind` are pale and have no names."""
    named = {str(name): _read(values) for name, values in drawing["series"].items()}
    behind = [_read(values) for values in drawing.get("behind") or ()]
    lines = [*behind, *named.values()]
    finite = [value for line in lines for value in line if math.isfinite(value)]
    across = charts.scale([0, max((len(line) for line in lines), default=1) - 1], 0.0, WIDTH)
    upwards = charts.scale(finite, TOP + HEIGHT, TOP, margin=0.05)
    body = svg.rectangle(0, TOP, WIDTH, HEIGHT, "board")
    body += "".join(svg.path(_steps(line, across, upwards), "line behind") for line in behind)
    x = 0.0
    for index, (name, line) in enumerate(named.items()):
        colour = f' style="--colour:{series.colour(index - 1)}"' if index else ""
        shapes = svg.path(_steps(line, across, upwards), "line") + svg.text(x, 12, name, "tag key", "start")
        body += f"<g{colour}>{shapes}</g>"
        x += svg.text_width(name, svg.SMALL) + GAP
    return svg.Sketch(max(WIDTH, x), TOP + HEIGHT + 4, body)


def _read(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _steps(line: Sequence[float], across: charts.Scale, upwards: charts.Scale) -> str:
    """A path through the points, with gaps where a value is not finite."""
    steps, drawing = "", False
    for at, value in enumerate(line):
        if math.isfinite(value):
            place = f"{svg.pixels(across(at))} {svg.pixels(upwards(value))}"
            # a lone point is a line of no length, which round ends make a dot
            steps += f"L{place}" if drawing else f"M{place}h0"
        drawing = math.isfinite(value)
    return steps
