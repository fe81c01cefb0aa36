"""Drawings of structures: dictionaries that JSON can hold, and the SVG they become.

Every drawing has a `kind`, and may have a `title` and a `note`, which stands below. Where a drawing holds several
structures by name, the first is the one to compare with: what the others have and it has not is coloured.

- "trees": `tokens`; `trees`, {name: [[first, last], …]}, the spans of a tree over its leaves, counted from 0, both ends
  included. They are nested, and need not be binary. `brackets`, [[first, last], …], are the spans that every right tree
  has, where there are more right trees than the first: then only spans that cross one of them are coloured.
- "arcs": `tokens`; `arcs`, {name: [[head, modifier], …]}, or [head, modifier, label], or [head, modifier, label,
  weight]. Tokens count from 1; 0 is the root. Weights are above 0 and at most 1: the heavier, the wider and darker.
  Several arcs may end at one token. A label may be "".
- "sequence": `tokens`; `tags`, {name: [tag, …]}, for each token a tag or, if it keeps several, {tag: weight, …}.
- "alignment" and "matrix": `weights`, rows of numbers; `rows` and `columns`, their names, or numbers if left out;
  `gold`, [[row, column], …], counted from 0, which are framed; `cell`, pixels of a cell, by default as fits the page.
  Few weights are also written into their cells.
- "series": `series`, {name: [value, …]}, lines over one another, the first in ink; a value may be None, which leaves a
  gap. `behind`, [[value, …], …], are pale lines without names.
- "images": `images`, rows of grey images, each rows of whole numbers from 0, black, to 255, white; `rows` and
  `columns`, their names, or numbers if left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from structmax.plots import arcs, heat_map, images, lines, sequences, trees
from structmax.plots import svg as shapes

__all__ = ["svg"]

KINDS: dict[str, Callable[[dict[str, Any]], shapes.Sketch]] = {
    "trees": trees.draw,
    "arcs": arcs.draw,
    "sequence": sequences.draw,
    "alignment": heat_map.draw,
    "matrix": heat_map.draw,
    "series": lines.draw,
    "images": images.draw,
}


def svg(drawing: dict[str, Any]) -> str:
    """One drawing as an SVG that stands alone: a file, or a cell of a notebook.

    Args:
        drawing: as above.

    Returns:
        The SVG's text.

    Examples:
        >>> from structmax.plots import structures
        >>> spans = {"gold": [[0, 2], [1, 2]], "induced": [[0, 2], [0, 1]]}
        >>> structures.svg({"kind": "trees", "tokens": ["a", "big", "dog"], "trees": spans}).count("node wrong")
        1
    """
    sketch = _sketch(drawing)
    if note := drawing.get("note"):
        below = shapes.text(0, 12, note, "note", "start")
        sketch = shapes.above([sketch, shapes.Sketch(shapes.text_width(note), 18, below)], 6.0)
    return shapes.standalone(sketch, title(drawing))


def picture(drawing: dict[str, Any]) -> str:
    """One drawing as an SVG for a page that has the style of `drawing.css`; the page writes the note."""
    return shapes.picture(_sketch(drawing), title(drawing))


def keys(drawing: dict[str, Any]) -> list[str]:
    """What colours, frames and strokes of a drawing mean, a sentence each.

    Examples:
        >>> from structmax.plots import structures
        >>> structures.keys({"kind": "trees", "tokens": ["a"], "trees": {"gold": [], "induced": []}})
        ['Orange in a tree: a span that “gold” does not have.']
    """
    kind, found = drawing.get("kind"), []
    if kind == "trees" and drawing.get("brackets") is not None:
        found.append("Orange in a tree: a span that crosses a bracket which every right tree has.")
        found.append("Trees that group the parts of a bracket in another way are right too.")
    elif kind == "trees" and len(drawing["trees"]) > 1:
        found.append(f"Orange in a tree: a span that “{next(iter(drawing['trees']))}” does not have.")
    elif kind == "arcs" and len(drawing["arcs"]) > 1:
        found.append(f"Orange arc or label: one that “{next(iter(drawing['arcs']))}” does not have.")
    elif kind == "sequence" and len(drawing["tags"]) > 1:
        found.append(f"Orange tag: one that “{next(iter(drawing['tags']))}” does not have.")
    elif kind in ("alignment", "matrix"):
        found += heat_map.keys(drawing)
    if kind in ("arcs", "sequence") and _has_weights(drawing):
        found.append("A number beside an arc or a tag is its probability; the fainter, the lower.")
    return found


def _has_weights(drawing: dict[str, Any]) -> bool:
    if drawing["kind"] == "arcs":
        return any(len(arc) > 3 for arcs in drawing["arcs"].values() for arc in arcs)
    return any(isinstance(tag, dict) for tags in drawing["tags"].values() for tag in tags)


def title(drawing: dict[str, Any]) -> str:
    return str(drawing.get("title") or drawing["kind"])


def _sketch(drawing: dict[str, Any]) -> shapes.Sketch:
    kind = drawing.get("kind")
    if kind not in KINDS:
        raise ValueError(f"`kind` of a drawing should be one of {', '.join(KINDS)}, but is {kind!r}.")
    return KINDS[kind](drawing)
