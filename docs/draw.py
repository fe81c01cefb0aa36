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

import structmax
from structmax.plots import heat_map, sequences, simplex, structures, svg, trees

PICTURES = Path(__file__).parent / "pictures"
GALLERY = Path(__file__).parent / "gallery"
# Pixels of a phone between its margins, and of a cell of a heat map, so that two maps of seven words fit there.
PHONE, CELL = 370, 20
STRUCTURES = Path(__file__).parent / "reference" / "structures"
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
# After `structmax run listops --encoder sparse_marginalisation --minutes 6`: an expression of the test set.
FOUND = {
    "tokens": ["[MIN", "8", "[MAX", "[SM", "8", "7", "]", "9", "4", "6", "]", "4", "]"],
    "trees": {
        "every bracket found, no tree given": [
            [0, 12], [1, 12], [2, 12], [2, 10], [2, 6], [3, 6], [4, 6], [5, 6], [7, 10], [8, 10], [9, 10], [11, 12],
        ]
    },
}  # fmt: skip


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


def attention() -> svg.Sketch:
    """Where the words of a French sentence look in the English one, if words of one meaning have similar vectors."""
    english = ["the", "black", "cat", "drinks", "the", "cold", "milk"]
    french = ["le", "chat", "noir", "boit", "le", "lait", "froid"]
    meant = [0, 2, 1, 3, 4, 6, 5]
    draws = torch.Generator().manual_seed(1)
    vectors = {word: torch.randn(16, generator=draws) for word in english}
    keys = torch.stack([vectors[word] for word in english])
    queries = keys[meant] + 0.5 * torch.randn(7, 16, generator=draws)
    scores = queries @ keys.mT / 4
    maps = []
    for mapping in (structmax.softmax, structmax.entmax15):
        weights = mapping(scores)
        # The rows are named once, on the left.
        rows = ["" for _ in french] if maps else french
        board = heat_map.draw({"weights": weights.tolist(), "rows": rows, "columns": english, "cell": CELL})
        zeros = int((weights == 0).sum())
        words = f"{mapping.__name__}: {zeros or 'no'} zeros"
        maps.append(named(words, board, board.width - 8 - CELL * len(english)))
    return svg.beside(maps, 10.0)


def tagger() -> svg.Sketch:
    """Scores of tags that would put the inside of a place into a person, and what the rules make of them."""
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    rules = structmax.tag_constraints(labels)
    crf = structmax.nn.CRF(len(labels), batch_first=True, constraints=rules)
    for parameter in crf.parameters():
        torch.nn.init.zeros_(parameter)
    # The surname and the city's second word are nearly a toss-up for a network that looks at one word.
    emissions = torch.zeros(1, 6, 5)
    emissions[0, range(6), [1, 4, 0, 0, 3, 2]] = torch.tensor([3.0, 2.0, 3.0, 3.0, 3.0, 2.0])
    emissions[0, [1, 5], [2, 4]] = 1.5
    taggings = {"CRF": crf.decode(emissions)[0], "alone": emissions[0].argmax(-1).tolist()}
    tags = {name: [labels[tag] for tag in tagging] for name, tagging in taggings.items()}
    sentence = sequences.draw({"tokens": ["Ada", "Lovelace", "lived", "in", "New", "York"], "tags": tags})
    may_follow = (rules.pairwise > -torch.inf).float().tolist()
    board = heat_map.draw({"weights": may_follow, "rows": labels, "columns": labels, "cell": CELL})
    legend = "".join(
        svg.text(0, 70 + 18 * i, words, "name", "start")
        for i, words in enumerate(["The rules: which tag", "(column) may follow", "which (row)."])
    )
    return svg.above([sentence, svg.beside([board, svg.Sketch(150.0, board.height, legend)], 16.0)], 10.0)


def named(words: str, sketch: svg.Sketch, left: float) -> svg.Sketch:
    """A line of words above a picture."""
    line = svg.Sketch(left + svg.text_width(words, svg.SMALL), 20.0, svg.text(left, 13, words, "name", "start"))
    return svg.above([line, sketch], 2.0)


def write(name: str, sketch: svg.Sketch, title: str) -> None:
    """A picture with a margin, as a file. All are about as wide as a phone, so that their letters have one size."""
    width = max(sketch.width + 16, PHONE)
    framed = svg.Sketch(width, sketch.height + 16, svg.moved((width - sketch.width) / 2, 8, sketch.body))
    white(PICTURES / f"{name}.svg", svg.standalone(framed, title))


def white(path: Path, drawn: str) -> None:
    """White behind a picture, as behind the others: its ink is black."""
    path.write_text(drawn.replace("<svg ", '<svg style="background: white" ', 1), encoding="utf-8")


def stories() -> None:
    """The pictures of the landing page."""
    write("attention", attention(), "Attention of softmax and of entmax15")
    write("tagger", tagger(), "A tagger with rules, and one without")
    write("found", trees.draw(FOUND), "The tree that a network found in an expression, trained on answers alone")


def keep(drawn: Path, kept: Path) -> None:
    """Keeps a picture: with 128 colours, which makes the file a third as large, or on white."""
    if kept.suffix == ".svg":
        white(kept, drawn.read_text(encoding="utf-8"))
    else:
        Image.open(drawn).convert("RGB").quantize(128).save(kept, optimize=True)


def library() -> None:
    """The pictures of the pages that are no tutorials."""
    PICTURES.mkdir(exist_ok=True)
    simplex.mappings_1d().savefig(PICTURES / "one-score.png", dpi=80)
    simplex.triangle().savefig(PICTURES / "triangle.png", dpi=80)
    simplex.bars().savefig(PICTURES / "bars.png", dpi=80)
    white(PICTURES / "trees.svg", structures.svg(TREES))
    white(PICTURES / "arcs.svg", structures.svg(parse()))
    stories()
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
