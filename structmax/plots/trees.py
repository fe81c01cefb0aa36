"""Constituency trees: where their nodes stand, and the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structmax.plots import svg

# Between tokens, between trees, and the widest row of trees.
GAP, GUTTER, ROW = 12.0, 56.0, 1040.0
# A level is HIGHEST pixels high, or less where a tree would be taller than TALLEST, but never under LOWEST.
HIGHEST, LOWEST, TALLEST = 26.0, 7.0, 420.0
CORNER = 5.0


@dataclass(frozen=True)
class Node:
    """A span of leaves, both ends included. A leaf is on level 0, any other node one above its highest child."""

    first: int
    last: int
    x: float
    level: int
    children: tuple[Node, ...] = ()


def layout(tokens: Sequence[str], spans: Iterable[Sequence[int]]) -> list[Node]:
    """The nodes of a tree, children before parents: leaves as far apart as their texts need, parents in the middle.

    Args:
        tokens: the leaves' texts.
        spans: pairs (first, last) of leaves, nested, in any order; one leaf alone adds no node to that leaf.
    """
    nodes = [Node(i, i, x, 0) for i, x in enumerate(_centres(tokens))]
    # What has no parent yet, from left to right. Narrow spans come first, so these are the children of the next.
    forest = list(nodes)
    for first, last in sorted({(i, j) for i, j in spans}, key=lambda span: (span[1] - span[0], span)):
        if not 0 <= first <= last < len(tokens):
            raise ValueError(
                f"a span should be [first, last] with 0 <= first <= last < {len(tokens)}, the number of tokens, "
                f"but one is [{first}, {last}]. Both ends are included: did you pass the position after the last?"
            )
        if first == last:
            continue
        touched = [place for place, node in enumerate(forest) if node.first <= last and first <= node.last]
        children = tuple(forest[place] for place in touched)
        for child in (children[0], children[-1]):
            if child.first < first or child.last > last:
                raise ValueError(
                    f"spans of one tree should be nested, but [{child.first}, {child.last}] and [{first}, {last}] "
                    "cross. Draw them as two trees."
                )
        x = (children[0].x + children[-1].x) / 2
        nodes.append(Node(first, last, x, 1 + max(child.level for child in children), children))
        forest[touched[0] : touched[-1] + 1] = nodes[-1:]
    return nodes


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """All trees of a drawing: in a row if they fit, else in a column, with wrong spans marked."""
    tokens, trees = [str(token) for token in drawing["tokens"]], drawing["trees"]
    nodes = {name: layout(tokens, spans) for name, spans in trees.items()}
    wrong = _wrong(nodes, drawing.get("brackets"))
    heights = {name: max((node.level for node in tree), default=0) for name, tree in nodes.items()}
    if len(trees) * (_width(tokens) + GUTTER) - GUTTER > ROW:
        return svg.above([_draw(name, tokens, nodes[name], wrong, heights[name]) for name in trees], GUTTER / 2)
    # Side by side, all tokens stand on one line.
    highest = max(heights.values(), default=0)
    return svg.beside([_draw(name, tokens, nodes[name], wrong, highest) for name in trees], GUTTER)


def _wrong(trees: Mapping[str, list[Node]], brackets: Sequence[Sequence[int]] | None) -> set[tuple[int, int]]:
    """Spans the first tree has not; or, given the brackets of every right tree, those that cross one of them."""
    spans = {(node.first, node.last) for nodes in trees.values() for node in nodes}
    if brackets is None:
        return spans - {(node.first, node.last) for nodes in list(trees.values())[:1] for node in nodes}
    return {
        (first, last)
        for first, last in spans
        if any(first < start <= last < end or start < first <= end < last for start, end in brackets)
    }


def _width(tokens: Sequence[str]) -> float:
    return sum(svg.text_width(token) + GAP for token in tokens)


def _centres(tokens: Sequence[str]) -> list[float]:
    centres, edge = [], GAP / 2
    for token in tokens:
        width = svg.text_width(token)
        centres.append(edge + width / 2)
        edge += width + GAP
    return centres


def _draw(name: str, tokens: Sequence[str], nodes: list[Node], wrong: set[tuple[int, int]], levels: int) -> svg.Sketch:
    step = max(LOWEST, min(HIGHEST, TALLEST / max(levels, 1)))
    ground = 32.0 + levels * step

    def y(node: Node) -> float:
        return ground - node.level * step

    edges, dots = "", ""
    for node in nodes[len(tokens) :]:
        mark = " wrong" if (node.first, node.last) in wrong else ""
        edges += "".join(_edge(node.x, y(node), child.x, y(child), f"edge{mark}") for child in node.children)
        covered = " ".join(tokens[node.first : node.last + 1])
        dots += svg.circle(node.x, y(node), 3.0, f"node{mark}", f"{node.first}–{node.last}: {covered}")
    leaves = "".join(svg.text(leaf.x, ground + 16, token, "token") for leaf, token in zip(nodes, tokens, strict=False))
    body = svg.text(0, 12, name, "name", "start") + edges + dots + leaves
    return svg.Sketch(max(svg.text_width(name), _width(tokens)), ground + 24, body)


def _edge(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    """Sideways, round a corner, down: edges of such trees do not cross."""
    corner = min(CORNER, abs(to_x - x), to_y - y)
    before = to_x - corner if to_x > x else to_x + corner
    steps = f"M{svg.pixels(x)} {svg.pixels(y)}H{svg.pixels(before)}"
    bend = f"Q{svg.pixels(to_x)} {svg.pixels(y)} {svg.pixels(to_x)} {svg.pixels(y + corner)}"
    return svg.path(f"{steps}{bend}V{svg.pixels(to_y)}", kind)
