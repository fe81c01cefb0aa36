"""Tags above the tokens of a sequence."""

from __future__ import annotations

from typing import Any

from structmax.plots import svg

# Between columns, and from one row to the next.
GAP, ROW = 14.0, 22.0


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """A row for each tagging, the tokens below. Tags that are not those of the first tagging are marked wrong."""
    tokens = [str(token) for token in drawing["tokens"]]
    rows = {name: [str(tag) for tag in tags] for name, tags in drawing["tags"].items()}
    for name, tags in rows.items():
        if len(tags) != len(tokens):
            raise ValueError(
                f"`tags` should have a tag for each of the {len(tokens)} tokens, but {name!r} has {len(tags)}. "
                "Leave out the padding."
            )
    known = next(iter(rows.values()), [])
    left = max((svg.text_width(name) for name in rows), default=0.0) + GAP
    body, x = "", left
    for i, token in enumerate(tokens):
        width = max(svg.text_width(token), *(svg.text_width(tags[i], svg.SMALL) + 8 for tags in rows.values()), 0.0)
        for row, tags in enumerate(rows.values()):
            wrong = tags[i] != known[i]
            pill = svg.text_width(tags[i], svg.SMALL) + 8
            if wrong:
                body += svg.rectangle(x + (width - pill) / 2, row * ROW, pill, 18, "pill", f"not {known[i]}")
            body += svg.text(x + width / 2, row * ROW + 13, tags[i], "tag wrong" if wrong else "tag")
        body += svg.text(x + width / 2, len(rows) * ROW + 15, token, "token")
        x += width + GAP
    names = (svg.text(0, row * ROW + 13, name, "name", "start") for row, name in enumerate(rows))
    return svg.Sketch(x, len(rows) * ROW + 24, "".join(names) + body)
