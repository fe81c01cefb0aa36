"""The few shapes our pictures are made of, as SVG text. Colours are classes, and `drawing.css` gives them."""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

# Monospaced letters are about 0.6 of their size wide, in all fonts that `drawing.css` names.
LETTER = 0.61
# Of tokens, and of names, tags and labels next to them.
SIZE, SMALL = 13.0, 11.0
# Control characters, and halves of a letter.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Sketch:
    """A picture's extent in pixels, and its shapes."""

    width: float
    height: float
    body: str


def escape(text: object) -> str:
    """Text escaped for a page or a picture; a letter that XML does not allow becomes �."""
    return html.escape(FORBIDDEN.sub("�", str(text)))


def text_width(text: str, size: float = SIZE) -> float:
    """Pixels a monospaced text takes: wide letters count twice, marks that sit on others not at all."""
    letters = sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
    return letters * LETTER * size


def pixels(value: float) -> str:
    """A coordinate, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def number(value: float) -> str:
    """A number to show, to four digits."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def shortened(words: str, width: float, size: float = SMALL) -> str:
    """Monospaced words that fit into so many pixels: of longer ones the beginning and the end.

    Examples:
        >>> from structmax.plots import svg
        >>> svg.shortened("a very long name", 85.0)
        'a very…name'
    """
    room = int(width / (LETTER * size))
    if text_width(words, size) <= width:
        return words
    return f"{words[: room - 1 - room // 3].rstrip()}…{words[len(words) - room // 3 :].lstrip()}"


def text(x: float, y: float, words: object, kind: str, anchor: str = "middle") -> str:
    """Words whose baseline is at y and whose start, middle or end is at x."""
    return f'<text class="{kind}" x="{pixels(x)}" y="{pixels(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def circle(x: float, y: float, radius: float, kind: str, hint: str = "") -> str:
    return f'<circle class="{kind}" cx="{pixels(x)}" cy="{pixels(y)}" r="{pixels(radius)}">{_hint(hint)}</circle>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, hint: str = "", opacity: float = 1.0) -> str:
    faint = f' fill-opacity="{opacity:.3f}"' if opacity < 1 else ""
    place = f'x="{pixels(x)}" y="{pixels(y)}" width="{pixels(width)}" height="{pixels(height)}"'
    return f'<rect class="{kind}" {place}{faint}>{_hint(hint)}</rect>'


def path(steps: str, kind: str, width: float | None = None) -> str:
    """A line, as wide as its class says unless a width is given."""
    style = "" if width is None else f' style="stroke-width: {pixels(width)}px"'
    return f'<path class="{kind}" d="{steps}"{style}/>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return path(f"M{pixels(x)} {pixels(y)}L{pixels(to_x)} {pixels(to_y)}", kind)


def moved(x: float, y: float, body: str) -> str:
    return f'<g transform="translate({pixels(x)} {pixels(y)})">{body}</g>'


def beside(sketches: Iterable[Sketch], gap: float) -> Sketch:
    """Sketches in a row, their tops on a line."""
    body, width, height = "", 0.0, 0.0
    for sketch in sketches:
        left = width + gap if body else 0.0
        body += moved(left, 0, sketch.body)
        width, height = left + sketch.width, max(height, sketch.height)
    return Sketch(width, height, body)


def above(sketches: Iterable[Sketch], gap: float) -> Sketch:
    """Sketches in a column, their left sides on a line."""
    body, width, height = "", 0.0, 0.0
    for sketch in sketches:
        top = height + gap if body else 0.0
        body += moved(0, top, sketch.body)
        width, height = max(width, sketch.width), top + sketch.height
    return Sketch(width, height, body)


def picture(sketch: Sketch, title: object) -> str:
    """An `<svg>` to stand in a page that has `drawing.css`."""
    width, height = pixels(sketch.width), pixels(sketch.height)
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg class="drawing" role="img" {box}><title>{escape(title)}</title>{sketch.body}</svg>'


def standalone(sketch: Sketch, title: object) -> str:
    """An `<svg>` to stand alone, in a file or a notebook."""
    style = f"<style>{resource('drawing.css')}</style>"
    return picture(Sketch(sketch.width, sketch.height, style + sketch.body), title).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1
    )


@functools.cache
def resource(name: str) -> str:
    """The text of a file in this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hint(words: str) -> str:
    """What a browser shows while the pointer rests on a shape."""
    return f"<title>{escape(words)}</title>" if words else ""
