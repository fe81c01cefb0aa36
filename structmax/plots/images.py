"""Grids of grey images, each a PNG inside the picture."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from structmax.plots import svg
from structmax.plots.heat_map import names

# Pixels of the screen for the longer side of an image, and between images.
SIDE, GAP = 56.0, 4.0


def draw(drawing: dict[str, Any]) -> svg.Sketch:
    """Rows of images, with the names of rows on the left and those of columns on top."""
    images = drawing["images"]
    wide = max((len(row) for row in images), default=0)
    rows = names(drawing.get("rows"), len(images), "rows", "images")
    columns = names(drawing.get("columns"), wide, "columns", "images")
    cell = max([SIDE, *(svg.text_width(name, svg.SMALL) for name in columns)]) + GAP
    left = max((svg.text_width(name, svg.SMALL) for name in rows), default=0.0) + 8
    top = svg.SMALL + 8
    body = "".join(svg.text(left + j * cell + SIDE / 2, top - 6, name, "tag") for j, name in enumerate(columns))
    for i, row in enumerate(images):
        y = top + i * (SIDE + GAP)
        body += svg.text(left - 6, y + SIDE / 2 + 4, rows[i], "tag", "end")
        body += "".join(_image(left + j * cell, y, image) for j, image in enumerate(row))
    return svg.Sketch(left + wide * cell, top + len(images) * (SIDE + GAP), body)


def png(image: list[list[int]]) -> bytes:
    """Rows of grey values from 0, black, to 255, white, as a PNG file.

    Examples:
        >>> from structmax.plots.images import png
        >>> png([[0, 255], [128, 0]])[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    width = len(image[0]) if image else 0
    if not width or any(len(row) != width for row in image):
        raise ValueError(
            f"an image should be rows of one length, at least 1, but they have {sorted({len(row) for row in image})}."
        )
    values = [value for row in image for value in row]
    if not all(isinstance(value, int) and 0 <= value <= 255 for value in values):
        raise ValueError("pixels of an image should be whole numbers from 0 to 255, but not all are.")
    # each row begins with the number of its filter, 0 for none
    rows = b"".join(b"\0" + bytes(row) for row in image)
    header = struct.pack(">IIBBBBB", width, len(image), 8, 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _image(x: float, y: float, image: list[list[int]]) -> str:
    source = base64.b64encode(png(image)).decode("ascii")
    place = f'x="{svg.pixels(x)}" y="{svg.pixels(y)}" width="{svg.pixels(SIDE)}" height="{svg.pixels(SIDE)}"'
    return f'<image {place} style="image-rendering: pixelated" href="data:image/png;base64,{source}"/>'
