"""Curves and bars as SVG for a page. `page.js` reads `data-points` to tell values under the pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from structmax.plots import svg
from structmax.plots.series import REST, Line

# A panel of curves, and what its axes take of it.
WIDTH, HEIGHT = 380.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 8.0, 8.0, 38.0
# More lines than this are drawn thin, and more bands than this faint.
CROWD, FAINT = 24, 4
# A row of bars: its name, and the bar below it. The room of the value on the right.
ROW, BAR, VALUE = 34.0, 10.0, 56.0


@dataclass(frozen=True)
class Look:
    """The colour of a run's lines, and their entry in the legend, which other runs may share."""

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
    """One panel: a line for each run and split, training dashed, with gaps where a value is not finite.

    A mean over seeds that has a colour of its own has a band, unless it is of training and there is held-out data.
    """
    held_out = any(line.split != "train" for line in lines)
    own = [line for line in lines if line.low and looks[line.run].colour != REST]
    banded = [line for line in own if not (held_out and line.split == "train")]
    points = [(x, y) for line in lines for x, y in zip(line.at, line.values, strict=True) if math.isfinite(y)]
    edges = [y for line in banded for y in (*line.low, *line.high) if math.isfinite(y)]
    across = scale([x for x, _ in points], LEFT, WIDTH - RIGHT)
    upwards = scale([*edges, *(y for _, y in points)], HEIGHT - BOTTOM, TOP, margin=0.05)
    body = ""
    for tick, name in ticks(upwards.low, upwards.high):
        body += svg.line(LEFT, upwards(tick), WIDTH - RIGHT, upwards(tick), "grid")
        body += svg.text(LEFT - 6, upwards(tick) + 4, name, "tick", "end")
    for tick, name in ticks(across.low, across.high):
        body += svg.text(across(tick), HEIGHT - BOTTOM + 16, name, "tick")
    body += svg.text(WIDTH - RIGHT, HEIGHT - 6, along, "tick", "end")
    body += "".join(_band(line, across, upwards, looks[line.run]) for line in banded)
    body += "".join(_curve(line, across, upwards, looks[line.run]) for line in lines)
    if not points:
        body += svg.text((LEFT + WIDTH) / 2, HEIGHT / 2, "no finite value", "tick")
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" data-along="{svg.escape(along)}"'
    kind = "chart curves" + " crowded" * (len(lines) > CROWD) + " faint" * (len(banded) > FAINT)
    return f'<svg class="{kind}" role="img" {box}><title>{svg.escape(title)}</title>{body}</svg>'


def _curve(line: Line, across: Scale, upwards: Scale, look: Look) -> str:
    steps, points, drawing = "", [], False
    for i, (at, value) in enumerate(zip(line.at, line.values, strict=True)):
        if math.isfinite(value):
            x, y = svg.pixels(across(at)), svg.pixels(upwards(value))
            steps += f"{'L' if drawing else 'M'}{x} {y}"
            band = f" ({svg.number(line.low[i])} to {svg.number(line.high[i])})" if line.low else ""
            points.append((float(x), float(y), svg.number(at), svg.number(value) + band))
        drawing = math.isfinite(value)
    if len(points) == 1:
        # A line of no length, which round ends make a dot.
        steps += "h0"
    kind = "curve alone" if len(points) == 1 else "curve train" if line.split == "train" else "curve"
    told = svg.escape(json.dumps(points, separators=(",", ":")))
    return f'<path class="{kind}" {_named(line, look)} data-points="{told}" d="{steps}"/>'


def _band(line: Line, across: Scale, upwards: Scale, look: Look) -> str:
    """From the lowest to the highest, a piece for each stretch of finite values."""
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for at, low, high in zip(line.at, line.low, line.high, strict=True):
        if math.isfinite(low):
            pieces[-1].append((across(at), upwards(low), upwards(high)))
        elif pieces[-1]:
            pieces.append([])
    steps = ""
    for piece in filter(None, pieces):
        corners = [(x, high) for x, _, high in piece] + [(x, low) for x, low, _ in reversed(piece)]
        steps += f"M{'L'.join(f'{svg.pixels(x)} {svg.pixels(y)}' for x, y in corners)}Z"
    return f'<path class="band" {_named(line, look)} d="{steps}"/>'


def _named(line: Line, look: Look) -> str:
    """The colour of a shape, and what `page.js` finds it by."""
    names = (("run", line.run), ("split", line.split), ("setting", look.setting))
    return f'style="--colour:{look.colour}" ' + " ".join(f'data-{name}="{svg.escape(value)}"' for name, value in names)


@dataclass(frozen=True)
class Bar:
    """A mean with its spread, and the values it is of. `mean` is NaN where there is none."""

    name: str
    mean: float
    spread: float
    values: Sequence[float]
    colour: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Bars from zero below their names, whiskers of one standard deviation, a dot for each value."""
    finite = [row for row in rows if math.isfinite(row.mean)]
    spreads = {row.name: row.spread if math.isfinite(row.spread) else 0.0 for row in finite}
    ends = [row.mean + sign * spreads[row.name] for row in finite for sign in (-1, 1)]
    dots = [value for row in finite for value in row.values if math.isfinite(value)]
    across = scale([0.0, *ends, *dots], 4.0, WIDTH - VALUE)
    body = ""
    for i, row in enumerate(rows):
        middle = (i + 1) * ROW - BAR
        body += svg.text(0, middle - BAR, svg.shortened(row.name, WIDTH), "bar-name", "start")
        if not math.isfinite(row.mean):
            body += svg.text(across(0.0) + 4, middle + 4, "–", "tick", "start")
            continue
        first, last = sorted((across(0.0), across(row.mean)))
        spread = spreads[row.name]
        told = f"{row.name}: {svg.number(row.mean)}" + (f" ± {spread:.2g}" if len(row.values) > 1 else "")
        shapes = svg.rectangle(first, middle - BAR / 2, last - first, BAR, "bar", told)
        if spread:
            shapes += svg.line(across(row.mean - spread), middle, across(row.mean + spread), middle, "whisker")
        if len(row.values) > 1:
            dots = [value for value in row.values if math.isfinite(value)]
            shapes += "".join(svg.circle(across(value), middle, 2.4, "value", svg.number(value)) for value in dots)
        body += svg.line(across(0.0), middle - BAR / 2 - 1, across(0.0), middle + BAR / 2 + 1, "zero")
        body += f'<g style="--colour:{row.colour}">{shapes}</g>'
        body += svg.text(WIDTH, middle + 4, svg.number(row.mean), "bar-value", "end")
    box = f'viewBox="0 0 {WIDTH:g} {svg.pixels(len(rows) * ROW + 2)}" '
    return f'<svg class="chart bars" role="img" {box}><title>{svg.escape(title)}</title>{body}</svg>'
