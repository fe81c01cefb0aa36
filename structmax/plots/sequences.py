"""Tags above the tokens of a sequence."""

from __future__ import annotations

from typing import Any

from structmax.plots import svg, weights

# Between columns, between rows, and from one tag of a token to the next.
GAP, ROW, TAG = 14.0, 4.0, 18.0


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """A row for each tagging, the tokens below. Tags that the first tagging has not are marked wrong.

    Tags with weights stand below each other, the heaviest on top.
    """
    tokens = [str(token) for token in drawing["tokens"]]
    rows = {name: [_read(tag) for tag in tags] for name, tags in drawing["tags"].items()}
    for name, tags in rows.items():
        if len(tags) != len(tokens):
            raise ValueError(
                f"`tags` should have a tag for each of the {len(tokens)} tokens, but {name!r} has {len(tags)}. "
                "Leave out the padding."
            )
    known = next(iter(rows.values()), [])
    left = max((svg.text_width(name) for name in rows), default=0.0) + GAP
    tops = [0.0]
    for tags in rows.values():
        tops.append(tops[-1] + TAG * max((len(kept) for kept in tags), default=1) + ROW)
    body, x = "", left
    for i, token in enumerate(tokens):
        names = [_name(tag, weight) for tags in rows.values() for tag, weight in tags[i].items()]
        width = max(svg.text_width(token), *(_width(name) for name in names), 0.0)
        for top, tags in zip(tops, rows.values(), strict=False):
            for line, (tag, weight) in enumerate(tags[i].items()):
                shape = _tag(
                    x + width / 2, top + line * TAG, _name(tag, weight), tag in known[i], " or ".join(known[i])
                )
                body += weights.inked(weight, shape)
        body += svg.text(x + width / 2, tops[-1] + 15, token, "token")
        x += width + GAP
    titles = (svg.text(0, top + 13, name, "name", "start") for top, name in zip(tops, rows, strict=False))
    return svg.Sketch(x, tops[-1] + 24, "".join(titles) + body)


def _read(tag: Any) -> dict[str, float | None]:
    """The tags of one token, the heaviest first: one without a weight, or {tag: weight}."""
    if not isinstance(tag, dict):
        return {str(tag): None}
    read = [(str(name), weights.read(weight, f"the tag {name!r}")) for name, weight in tag.items()]
    read.sort(key=lambda entry: -entry[1])
    return dict(read)


def _name(tag: str, weight: float | None) -> str:
    return f"{tag} {weights.number(weight)}".strip()


def _width(name: str) -> float:
    """Of a tag in its pill."""
    return svg.text_width(name, svg.SMALL) + 8


def _tag(x: float, top: float, name: str, right: bool, gold: str) -> str:
    if right:
        return svg.text(x, top + 13, name, "tag")
    pill = svg.rectangle(x - _width(name) / 2, top, _width(name), TAG, "pill", f"not {gold}")
    return pill + svg.text(x, top + 13, name, "tag wrong")
