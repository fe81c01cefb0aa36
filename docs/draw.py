"""Draws the pictures of the documentation: `python docs/draw.py`; of some tutorials, `python docs/draw.py tagger`."""

import contextlib
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import notebooks
import torch
from members import MEMBERS
from PIL import Image
from stories import STORIES

import structmax
from structmax.plots import simplex, structures

PICTURES = Path(__file__).parent / "pictures"
GALLERY = Path(__file__).parent / "gallery"
STRUCTURES = Path(__file__).parent / "reference" / "structures"
TREES = {
    "kind": "trees",
    "title": "A list expression, as it is meant and as a model grouped it",
    "tokens": ["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "]"],
    "trees": {
        "gold": [[0, 1], [0, 2], [3, 4], [3, 5], [3, 6], [0, 6], [0, 7], [0, 8]],
        "induced": [[0, 1], [0, 2], [4, 5], [3, 5], [6, 7], [3, 7], [0, 7], [0, 8]],
    },
    "brackets": [[3, 6]],
    "note": "predicted 9, gold 9: 4 and 7 may be grouped first, but ] and 0 do not belong together",
}


def parse() -> dict[str, Any]:
    """A sentence with two readings, and what SparseMAP makes of scores that are nearly the same for both."""
    gold = [2, 0, 4, 2, 2, 7, 5]
    scores = torch.zeros(8, 8)
    scores[gold, range(1, 8)] = 2.0
    scores[4, 5] = 1.9
    marginals = structmax.sparsemap(scores, structmax.ProjectiveTree(single_root=True)).marginals
    kept = [[head, modifier, "", marginals[head, modifier].item()] for head, modifier in marginals.nonzero().tolist()]
    return {
        "kind": "arcs",
        "title": "A dependency tree, and a sparse distribution over trees",
        "tokens": ["I", "saw", "the", "man", "with", "a", "telescope"],
        "arcs": {"gold": [[head, modifier] for modifier, head in enumerate(gold, 1)], "SparseMAP": kept},
    }


def on_white(drawn: str) -> str:
    """White behind a picture, as behind the others: its ink is black."""
    return drawn.replace("<svg ", '<svg style="background: white" ', 1)


def white(path: Path, drawn: str) -> None:
    path.write_text(on_white(drawn), encoding="utf-8")


def keep(drawn: Path, kept: Path) -> None:
    """Keeps a picture: with 128 colours, which makes the file a third as large, or on white."""
    if kept.suffix == ".svg":
        white(kept, drawn.read_text(encoding="utf-8"))
    else:
        Image.open(drawn).convert("RGB").quantize(128).save(kept, optimize=True)


def library() -> None:
    """The pictures of the pages that are no tutorials."""
    PICTURES.mkdir(exist_ok=True)
    figures = {"one-score": simplex.mappings_1d(), "triangle": simplex.triangle(), "bars": simplex.bars()}
    for name, figure in figures.items():
        path = PICTURES / f"{name}.png"
        figure.savefig(path, dpi=80)
        keep(path, path)
    white(PICTURES / "trees.svg", structures.svg(TREES))
    white(PICTURES / "arcs.svg", structures.svg(parse()))
    for name, story in STORIES.items():
        white(PICTURES / f"{name}.svg", story())
    for name, member in MEMBERS.items():
        white(STRUCTURES / f"{name}.svg", structures.svg(member()))
    # Last, since their style stays.
    for script in sorted(GALLERY.glob("*.py")):
        path = script.with_suffix(".png")
        runpy.run_path(str(script))["draw"]().savefig(path)
        keep(path, path)


def tutorial(page: Path) -> None:
    """Runs a tutorial, keeps the pictures that it shows, and writes its notebook."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in notebooks.BLOCK.finditer(page.read_text(encoding="utf-8")):
            exec(compile(block["code"], str(page), "exec"), namespace)
        for picture in notebooks.pictures(page):
            keep(Path(picture.name), picture)
    notebooks.write(page)


if __name__ == "__main__":
    for page in notebooks.pages():
        if page.stem in sys.argv[1:] or not sys.argv[1:]:
            tutorial(page)
    if not sys.argv[1:]:
        library()
