"""Curves and bars as SVG for a page. `page.js` reads `data-points` to tell values under the pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from structmax.plots import svg
from structmax.plots.series import Line

# A panel of curves, and what its axes take of it.
WIDTH, HEIGHT = 380.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 8.0, 8.0, 38.0
# More lines than this are drawn thin.
CROWD = 24
# A row of bars.
ROW, BAR = 26.0, 12.0


@dataclass(frozen=True)
class Look:
    """The colour of a run's lines, and the setting they show, which other runs may share."""

    colour: str
    setting: str


@dataclass(frozen=True)
class Scale:
    """A straight map from values to pixels, over the range of the values."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def scale(values: Sequence[float], start: float, end: float, margin: float = 0.0) -> Scale:
    """A scale for all finite values; a single value is in the middle."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        around = abs(low) / 2 or 0.5
        low, high = low - around, high + around
    margin *= high - low
    return Scale(low - margin, high + margin, start, end)


def ticks(low: float, high: float, about: int = 5) -> list[tuple[float, str]]:
    """Round numbers between low and high, and their names: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    values = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    # As many decimals as tell them apart; very large and very small ones with exponents.
    plain = max(abs(low), abs(high)) < 1e6 and step > 1e-5
    form = f",.{max(0, -math.floor(math.log10(step) + 1e-9))}f" if plain else ".3g"
    return [(value, format(value, form)) for value in values]


def curves(title: str, along: str, lines: Sequence[Line], looks: Mapping[str, Look]) -> str:
    """One panel: a line for each run and split, training dashed, with gaps where a value is not finite."""
    points = [(x, y) for line in lines for x, y in zip(line.at, line.values, strict=True) if math.isfinite(y)]
    across = scale([x for x, _ in points], LEFT, WIDTH - RIGHT)
    upwards = scale([y for _, y in points], HEIGHT - BOTTOM, TOP, margin=0.05)
    body = ""
    for tick, name in ticks(upwards.low, upwards.high):
        body += svg.line(LEFT, upwards(tick), WIDTH - RIGHT, upwards(tick), "grid")
        body += svg.text(LEFT - 6, upwards(tick) + 4, name, "tick", "end")
    for tick, name in ticks(across.low, across.high):
        body += svg.text(across(tick), HEIGHT - BOTTOM + 16, name, "tick")
    body += svg.text(WIDTH - RIGHT, HEIGHT - 6, along, "tick", "end")
    body += "".join(_curve(line, across, upwards, looks[line.run]) for line in lines)
    if not points:
        body += svg.text((LEFT + WIDTH) / 2, HEIGHT / 2, "no finite value", "tick")
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" data-along="{svg.escape(along)}"'
    kind = "chart curves crowded" if len(lines) > CROWD else "chart curves"
    return f'<svg class="{kind}" role="img" {box}><title>{svg.escape(title)}</title>{body}</svg>'


def _curve(line: Line, across: Scale, upwards: Scale, look: Look) -> str:
    steps, points, drawing = "", [], False
    for at, value in zip(line.at, line.values, strict=True):
        if math.isfinite(value):
            x, y = svg.pixels(across(at)), svg.pixels(upwards(value))
            steps += f"{'L' if drawing else 'M'}{x} {y}"
            points.append((float(x), float(y), svg.number(at), svg.number(value)))
        drawing = math.isfinite(value)
    if len(points) == 1:
        # A line of no length, which round ends make a dot.
        steps += "h0"
    kind = "curve alone" if len(points) == 1 else "curve train" if line.split == "train" else "curve"
    names = "".join(
        f'data-{name}="{svg.escape(value)}" '
        for name, value in (("run", line.run), ("split", line.split), ("setting", look.setting))
    )
    told = svg.escape(json.dumps(points, separators=(",", ":")))
    return f'<path class="{kind}" style="--colour:{look.colour}" {names}data-points="{told}" d="{steps}"/>'


@dataclass(frozen=True)
class Bar:
    """A mean with its spread, and the values it is of. `mean` is NaN where there is none."""

    name: str
    mean: float
    spread: float
    values: Sequence[float]
    colour: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Bars from zero, whiskers of one standard deviation, a dot for each value."""
    left = max((svg.text_width(row.name, svg.SMALL) for row in rows), default=0.0) + 12
    right = 132.0
    width = left + 300.0 + right
    finite = [row for row in rows if math.isfinite(row.mean)]
    spreads = {row.name: row.spread if math.isfinite(row.spread) else 0.0 for row in finite}
    ends = [row.mean + sign * spreads[row.name] for row in finite for sign in (-1, 1)]
    across = scale(
        [0.0, *ends, *(value for row in finite for value in row.values if math.isfinite(value))], left, width - right
    )
    body = ""
    for i, row in enumerate(rows):
        middle = (i + 0.5) * ROW
        body += svg.text(left - 10, middle + 4, row.name, "bar-name", "end")
        if not math.isfinite(row.mean):
            body += svg.text(left + 4, middle + 4, "–", "tick", "start")
            continue
        first, last = sorted((across(0.0), across(row.mean)))
        spread = spreads[row.name]
        told = svg.number(row.mean) + (f" ± {spread:.2g}" if len(row.values) > 1 else "")
        shapes = svg.rectangle(first, middle - BAR / 2, last - first, BAR, "bar", f"{row.name}: {told}")
        if spread:
            shapes += svg.line(across(row.mean - spread), middle, across(row.mean + spread), middle, "whisker")
        if len(row.values) > 1:
            dots = (value for value in row.values if math.isfinite(value))
            shapes += "".join(svg.circle(across(value), middle, 2.4, "value", svg.number(value)) for value in dots)
        body += f'<g style="--colour:{row.colour}">{shapes}</g>'
        body += svg.text(width - right + 12, middle + 4, told, "bar-value", "start")
    body += svg.line(across(0.0), 2, across(0.0), len(rows) * ROW - 2, "zero")
    box = f'viewBox="0 0 {svg.pixels(width)} {svg.pixels(len(rows) * ROW)}" '
    return f'<svg class="chart bars" role="img" {box}><title>{svg.escape(title)}</title>{body}</svg>'
