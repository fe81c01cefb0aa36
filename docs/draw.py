"""Draws the pictures of the documentation: `python docs/draw.py`."""

from pathlib import Path

from structmax.plots import simplex

PICTURES = Path(__file__).parent / "pictures"

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    simplex.mappings_1d().savefig(PICTURES / "one-score.png", dpi=80)
    simplex.triangle().savefig(PICTURES / "triangle.png", dpi=80)
    simplex.bars().savefig(PICTURES / "bars.png", dpi=80)
