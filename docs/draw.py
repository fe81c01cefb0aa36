"""Draws the pictures of the documentation: `python docs/draw.py`."""

import runpy
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from PIL import Image

import structmax
from structmax.plots import simplex, structures

PICTURES = Path(__file__).parent / "pictures"
GALLERY = Path(__file__).parent / "gallery"
TREES = {
    "kind": "trees",
    "title": "A list expression, as it is meant and as a model grouped it",
    "tokens": ["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "]"],
    "trees": {
        "gold": [[0, 1], [0, 2], [3, 4], [3, 5], [3, 6], [0, 6], [0, 7], [0, 8]],
        "induced": [[0, 1], [0, 2], [4, 5], [3, 5], [3, 6], [0, 6], [7, 8], [0, 8]],
    },
    "note": "predicted 9, gold 9, F1 0.75",
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


def save(figure: Figure, path: Path, dpi: float | Literal["figure"] = "figure") -> None:
    """Saves a picture with 128 colours, which makes the file a third as large."""
    figure.savefig(path, dpi=dpi)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    save(simplex.mappings_1d(), PICTURES / "one-score.png", 80)
    save(simplex.triangle(), PICTURES / "triangle.png", 80)
    save(simplex.bars(), PICTURES / "bars.png", 80)
    # White behind them, as behind the others: their ink is black.
    for name, drawing in {"trees": TREES, "arcs": parse()}.items():
        drawn = structures.svg(drawing).replace("<svg ", '<svg style="background: white" ', 1)
        (PICTURES / f"{name}.svg").write_text(drawn, encoding="utf-8")
    # Last, since their style stays.
    for script in sorted(GALLERY.glob("*.py")):
        save(runpy.run_path(str(script))["draw"](), script.with_suffix(".png"))
