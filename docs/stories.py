"""The three pictures of the landing page: `STORIES`, each an SVG. All are about as wide as a phone."""

from collections.abc import Callable

import torch

import structmax
from structmax.plots import heat_map, sequences, svg, trees

# Pixels of a phone between its margins, and of a cell of a heat map, so that two maps of seven words fit there.
PHONE, CELL = 370, 20
# After `structmax run listops --encoder sparse_marginalisation --minutes 6`: an expression of the test set.
FOUND = {
    "tokens": ["[MIN", "8", "[MAX", "[SM", "8", "7", "]", "9", "4", "6", "]", "4", "]"],
    "trees": {
        "every bracket found, no tree given": [
            [0, 12], [1, 12], [2, 12], [2, 10], [2, 6], [3, 6], [4, 6], [5, 6], [7, 10], [8, 10], [9, 10], [11, 12],
        ]
    },
}  # fmt: skip


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


def framed(sketch: svg.Sketch, title: str) -> str:
    """A picture with a margin. All have about one width, so that their letters have one size."""
    width = max(sketch.width + 16, PHONE)
    body = svg.moved((width - sketch.width) / 2, 8, sketch.body)
    return svg.standalone(svg.Sketch(width, sketch.height + 16, body), title)


STORIES: dict[str, Callable[[], str]] = {
    "attention": lambda: framed(attention(), "Attention of softmax and of entmax15"),
    "tagger": lambda: framed(tagger(), "A tagger with rules, and one without"),
    "found": lambda: framed(
        trees.draw(FOUND), "The tree that a network found in an expression, trained on answers alone"
    ),
}
