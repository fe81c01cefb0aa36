"""Dependency arcs over and under a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from structmax.plots import svg

# Between tokens, between levels of arcs, from the text's middle to where arcs end.
GAP, LEVEL, CLEAR = 16.0, 22.0, 13.0
CORNER = 8.0
# A head's arcs leave it a little to the side, so that they part from the one that comes in.
PORT = 4.0


@dataclass(frozen=True)
class Arc:
    """From head to modifier, tokens counted from 1; the head 0 is the root. Level 1 is nearest to the sentence."""

    head: int
    modifier: int
    label: str
    level: int

    @property
    def name(self) -> str:
        """The text at the arc."""
        return self.label or ("" if self.head else "root")

    @property
    def ends(self) -> tuple[int, int]:
        return min(self.head, self.modifier), max(self.head, self.modifier)


def layout(arcs: Sequence[Sequence[Any]], tokens: int) -> list[Arc]:
    """Levels for the arcs of one tree: an arc is above all shorter ones whose tokens it spans or crosses.

    Args:
        arcs: (head, modifier) or (head, modifier, label).
        tokens: how many there are.
    """
    placed: list[Arc] = []
    for head, modifier, *label in sorted(arcs, key=lambda arc: (arc[0] == 0, abs(arc[0] - arc[1]))):
        if not (0 <= head <= tokens and 1 <= modifier <= tokens and head != modifier):
            raise ValueError(
                f"an arc should be [head, modifier], two tokens of 1 to {tokens}, or 0 for the root as a head, "
                f"but one is [{head}, {modifier}]. Did you count from 0?"
            )
        arc = Arc(head, modifier, str(label[0]) if label else "", 0)
        below = (other.level for other in placed if _share(arc, other))
        placed.append(Arc(arc.head, arc.modifier, arc.label, 1 + max(below, default=0)))
    return placed


def centres(tokens: Sequence[str], arcs: Sequence[Arc]) -> list[float]:
    """The positions of tokens: far enough from each other for their texts, and for the labels of the arcs between them.

    The first entry is no token, so that token 1 is entry 1; the last is the right edge.
    """
    widths = [0.0, *(svg.text_width(token) for token in tokens), 0.0]
    for arc in arcs:
        if arc.head == 0:
            widths[arc.modifier] = max(widths[arc.modifier], svg.text_width(arc.name, svg.SMALL))
    places = [-GAP]
    for i in range(1, len(widths)):
        closest = places[-1] + widths[i - 1] / 2 + GAP + widths[i] / 2
        spanned = (
            places[arc.ends[0]] + svg.text_width(arc.name, svg.SMALL) + 2 * PORT + GAP
            for arc in arcs
            if arc.head > 0 and arc.ends[1] == i
        )
        places.append(max(closest, *spanned, 0.0))
    return places


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """Two sets to a sentence, the first above it; more sets repeat the sentence. Arcs not in the first are wrong."""
    tokens, sets = [str(token) for token in drawing["tokens"]], drawing["arcs"]
    placed = {name: layout(arcs, len(tokens)) for name, arcs in sets.items()}
    known = {(arc.head, arc.modifier): arc.label for arcs in list(placed.values())[:1] for arc in arcs}
    places = centres(tokens, [arc for arcs in placed.values() for arc in arcs])
    names = list(placed)
    pairs = [{name: placed[name] for name in names[i : i + 2]} for i in range(0, max(len(names), 1), 2)]
    return svg.above([_draw(tokens, places, pair, known) for pair in pairs], 24.0)


def _share(arc: Arc, other: Arc) -> bool:
    """Whether a stretch between two tokens, or a token below an arrow from the root, lies under both."""
    (first, last), (other_first, other_last) = arc.ends, other.ends
    if arc.head == 0:
        return other.head != 0 and other_first <= arc.modifier <= other_last
    return other.head != 0 and first < other_last and other_first < last


def _draw(
    tokens: Sequence[str], places: list[float], sets: dict[str, list[Arc]], known: dict[tuple[int, int], str]
) -> svg.Sketch:
    body, sides = "", []
    for direction, (name, arcs) in zip((-1, 1), sets.items(), strict=False):
        reach = CLEAR + LEVEL * (1 + max((arc.level for arc in arcs), default=0))
        sides.append(reach)
        for arc in arcs:
            wrong = "" if (arc.head, arc.modifier) in known else " wrong"
            mislabelled = wrong or (" wrong" if arc.label and known[arc.head, arc.modifier] != arc.label else "")
            body += _arc(arc, places, direction, wrong, mislabelled)
        body += svg.text(0, direction * reach + 4, name, "name", "start")
    body += "".join(svg.text(places[i], 4.5, token, "token") for i, token in enumerate(tokens, 1))
    over, under = (*sides, CLEAR, CLEAR)[:2]
    named = max((svg.text_width(name) for name in sets), default=0.0)
    return svg.Sketch(max(places[-1], named) + 8, over + under + 24, svg.moved(4, over + 12, body))


def _arc(arc: Arc, places: list[float], direction: int, wrong: str, mislabelled: str) -> str:
    """A line with its arrowhead and its label beyond it; y grows downwards, and direction −1 is up."""
    near, far = direction * CLEAR, direction * (CLEAR + LEVEL * arc.level)
    x = places[arc.modifier]
    if arc.head == 0:
        start, steps = x, f"M{svg.pixels(x)} {svg.pixels(far)}"
    else:
        side = 1 if arc.modifier > arc.head else -1
        start = places[arc.head] + side * PORT
        corner = min(CORNER, abs(x - start) / 2)
        turn = svg.pixels(far - direction * corner)
        steps = (
            f"M{svg.pixels(start)} {svg.pixels(near)}V{turn}"
            f"Q{svg.pixels(start)} {svg.pixels(far)} {svg.pixels(start + side * corner)} {svg.pixels(far)}"
            f"H{svg.pixels(x - side * corner)}Q{svg.pixels(x)} {svg.pixels(far)} {svg.pixels(x)} {turn}"
        )
    line = svg.path(f"{steps}V{svg.pixels(near + direction * 4)}", f"edge{wrong}")
    arrow = svg.path(f"M{svg.pixels(x)} {svg.pixels(near)}l-3.5 {6 * direction}h7z", f"head{wrong}")
    # Letters are about 8 pixels high.
    baseline = far - 4 if direction < 0 else far + 12
    return line + arrow + (svg.text((start + x) / 2, baseline, arc.name, f"label{mislabelled}") if arc.name else "")
