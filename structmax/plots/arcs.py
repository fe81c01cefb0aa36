"""Dependency arcs over and under a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from structmax.plots import svg, weights

# Between tokens, between levels of arcs, from the text's middle to where arcs end.
GAP, LEVEL, CLEAR = 16.0, 22.0, 13.0
CORNER = 8.0
# A head's arcs leave it a little to the side, so that they part from those that come in; those stand side by side.
PORT, BERTH = 4.0, 8.0


@dataclass(frozen=True)
class Arc:
    """From head to modifier, tokens counted from 1; the head 0 is the root. Level 1 is nearest to the sentence.

    The weight is None where none is given. The line begins `leave` pixels to the right of the head's middle, and ends
    `arrive` pixels to the right of the modifier's.
    """

    head: int
    modifier: int
    label: str
    weight: float | None
    level: int = 0
    leave: float = 0.0
    arrive: float = 0.0

    @property
    def name(self) -> str:
        """The text at the arc."""
        label = self.label or ("" if self.head else "root")
        return f"{label} {weights.number(self.weight)}".strip()

    @property
    def ends(self) -> tuple[int, int]:
        return min(self.head, self.modifier), max(self.head, self.modifier)

    @property
    def length(self) -> int:
        return self.ends[1] - self.ends[0]


def layout(arcs: Sequence[Sequence[Any]], tokens: int) -> list[Arc]:
    """Levels for arcs: one is above all shorter ones whose tokens it spans or crosses. Ends side by side at a token.

    Args:
        arcs: (head, modifier), (head, modifier, label) or (head, modifier, label, weight).
        tokens: how many there are.
    """
    read = [_read(arc, tokens) for arc in arcs]
    offsets = _berths(read)
    # How far from a token's middle the arcs that leave it begin.
    ports = [PORT] * (tokens + 1)
    for arc, offset in zip(read, offsets, strict=True):
        ports[arc.modifier] = max(ports[arc.modifier], PORT + offset)
    placed: list[Arc] = []
    for arc, arrive in sorted(zip(read, offsets, strict=True), key=lambda pair: (pair[0].head == 0, pair[0].length)):
        level = 1 + max((other.level for other in placed if _share(arc, other)), default=0)
        leave = ports[arc.head] if arc.modifier > arc.head else -ports[arc.head]
        placed.append(replace(arc, level=level, leave=leave, arrive=arrive))
    return placed


def centres(tokens: Sequence[str], arcs: Sequence[Arc]) -> list[float]:
    """The positions of tokens: far enough from each other for their texts, their arcs' ends, and the labels between.

    The first entry is no token, so that token 1 is entry 1; the last is the right edge.
    """
    widths = [0.0, *(svg.text_width(token) for token in tokens), 0.0]
    for arc in arcs:
        label = 0.0 if arc.head else svg.text_width(arc.name, svg.SMALL)
        widths[arc.modifier] = max(widths[arc.modifier], label + 2 * abs(arc.arrive))
    places = [-GAP]
    for i in range(1, len(widths)):
        closest = places[-1] + widths[i - 1] / 2 + GAP + widths[i] / 2
        spanned = (
            places[arc.ends[0]] + abs(arc.leave - arc.arrive) + svg.text_width(arc.name, svg.SMALL) + GAP
            for arc in arcs
            if arc.head > 0 and arc.ends[1] == i
        )
        places.append(max(closest, *spanned, 0.0))
    return places


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """Two sets to a sentence, the first above it; more sets repeat the sentence. Arcs not in the first are wrong."""
    tokens, sets = [str(token) for token in drawing["tokens"]], drawing["arcs"]
    placed = {name: layout(arcs, len(tokens)) for name, arcs in sets.items()}
    known: dict[tuple[int, int], set[str]] = {}
    for arc in next(iter(placed.values()), []):
        known.setdefault((arc.head, arc.modifier), set()).add(arc.label)
    places = centres(tokens, [arc for arcs in placed.values() for arc in arcs])
    names = list(placed)
    pairs = [{name: placed[name] for name in names[i : i + 2]} for i in range(0, max(len(names), 1), 2)]
    return svg.above([_draw(tokens, places, pair, known) for pair in pairs], 24.0)


def _read(arc: Sequence[Any], tokens: int) -> Arc:
    head, modifier, label, weight = (*arc, None, None)[:4]
    if not (0 <= head <= tokens and 1 <= modifier <= tokens and head != modifier):
        raise ValueError(
            f"an arc should be [head, modifier], two tokens of 1 to {tokens}, or 0 for the root as a head, "
            f"but one is [{head}, {modifier}]. Did you count from 0?"
        )
    read = None if weight is None else weights.read(weight, f"the arc [{head}, {modifier}]")
    return Arc(head, modifier, "" if label is None else str(label), read)


def _berths(arcs: Sequence[Arc]) -> list[float]:
    """Where each arc ends, from its modifier's middle: arcs from the left end left of those from the right.

    On either side the longer arc is nearer to the middle, so that it goes around the shorter one.
    """
    into: dict[int, list[tuple[float, int]]] = {}
    for i, arc in enumerate(arcs):
        # −1/length for a head on the left, 0 for the root, 1/length for a head on the right. Of two arcs between the
        # same tokens the second is the outer one.
        nearness = 0.0 if arc.head == 0 else 1 / (arc.head - arc.modifier)
        into.setdefault(arc.modifier, []).append((nearness, -i if nearness > 0 else i))
    offsets = [0.0] * len(arcs)
    for rivals in into.values():
        for berth, (_, i) in enumerate(sorted(rivals)):
            offsets[abs(i)] = (berth - (len(rivals) - 1) / 2) * BERTH
    return offsets


def _share(arc: Arc, other: Arc) -> bool:
    """Whether a stretch between two tokens, or a token below an arrow from the root, lies under both."""
    (first, last), (other_first, other_last) = arc.ends, other.ends
    if arc.head == 0:
        return other.head != 0 and other_first <= arc.modifier <= other_last
    return other.head != 0 and first < other_last and other_first < last


def _draw(
    tokens: Sequence[str], places: list[float], sets: dict[str, list[Arc]], known: dict[tuple[int, int], set[str]]
) -> svg.Sketch:
    body, sides = "", []
    for direction, (name, arcs) in zip((-1, 1), sets.items(), strict=False):
        reach = CLEAR + LEVEL * (1 + max((arc.level for arc in arcs), default=0))
        sides.append(reach)
        for arc in arcs:
            wrong = "" if (arc.head, arc.modifier) in known else " wrong"
            mislabelled = wrong or (" wrong" if arc.label and arc.label not in known[arc.head, arc.modifier] else "")
            body += _arc(arc, places, direction, wrong, mislabelled)
        body += svg.text(0, direction * reach + 4, name, "name", "start")
    body += "".join(svg.text(places[i], 4.5, token, "token") for i, token in enumerate(tokens, 1))
    over, under = (*sides, CLEAR, CLEAR)[:2]
    named = max((svg.text_width(name) for name in sets), default=0.0)
    return svg.Sketch(max(places[-1], named) + 8, over + under + 24, svg.moved(4, over + 12, body))


def _arc(arc: Arc, places: list[float], direction: int, wrong: str, mislabelled: str) -> str:
    """A line with its arrowhead and its label beyond it; y grows downwards, and direction −1 is up."""
    near, far = direction * CLEAR, direction * (CLEAR + LEVEL * arc.level)
    x = places[arc.modifier] + arc.arrive
    if arc.head == 0:
        start, steps = x, f"M{svg.pixels(x)} {svg.pixels(far)}"
    else:
        side = 1 if arc.modifier > arc.head else -1
        start = places[arc.head] + arc.leave
        corner = min(CORNER, abs(x - start) / 2)
        turn = svg.pixels(far - direction * corner)
        steps = (
            f"M{svg.pixels(start)} {svg.pixels(near)}V{turn}"
            f"Q{svg.pixels(start)} {svg.pixels(far)} {svg.pixels(start + side * corner)} {svg.pixels(far)}"
            f"H{svg.pixels(x - side * corner)}Q{svg.pixels(x)} {svg.pixels(far)} {svg.pixels(x)} {turn}"
        )
    width = None if arc.weight is None else 0.5 + 1.5 * arc.weight
    line = svg.path(f"{steps}V{svg.pixels(near + direction * 4)}", f"edge{wrong}", width)
    arrow = svg.path(f"M{svg.pixels(x)} {svg.pixels(near)}l-3.5 {6 * direction}h7z", f"head{wrong}")
    # Letters are about 8 pixels high.
    baseline = far - 4 if direction < 0 else far + 12
    shape = weights.inked(arc.weight, line + arrow)
    return shape + (svg.text((start + x) / 2, baseline, arc.name, f"label{mislabelled}") if arc.name else "")
