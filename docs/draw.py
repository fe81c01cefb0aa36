"""Draws the pictures of the documentation: `python docs/draw.py`."""

from pathlib import Path

from structmax.plots import simplex, structures

PICTURES = Path(__file__).parent / "pictures"
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

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    simplex.mappings_1d().savefig(PICTURES / "one-score.png", dpi=80)
    simplex.triangle().savefig(PICTURES / "triangle.png", dpi=80)
    simplex.bars().savefig(PICTURES / "bars.png", dpi=80)
    # White behind it, as behind the others: its ink is black.
    drawn = structures.svg(TREES).replace("<svg ", '<svg style="background: white" ', 1)
    (PICTURES / "trees.svg").write_text(drawn, encoding="utf-8")
