"""The structures of the page: what they are called, how large they may be, and how their parts are laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import structmax

Words = tuple[str, ...]
# Pairs (row, column) of a grid.
Cells = tuple[tuple[int, int], ...]
# What there is to draw: see structmax.plots.structures. None is told in words alone.
Drawing = dict[str, Any] | None


@dataclass(frozen=True)
class Field:
    """A grid of parts on the page: `at` (rows, columns) are places in the library's flattened tensor, −1 for none."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    # of the library's tensor
    shape: tuple[int, ...]
    at: Tensor

    def shown(self, tensor: Tensor) -> list[list[float | None]]:
        """The grid of a tensor of the library: None where there is no part."""
        values = tensor.detach().flatten()[self.at.clamp_min(0)].tolist()
        return [
            [value if place >= 0 else None for value, place in zip(*pair, strict=True)]
            for pair in zip(values, self.at.tolist(), strict=True)
        ]

    def tensor(self, grid: Sequence[Sequence[float | None]]) -> Tensor:
        """The library's tensor of a grid: 0 where the grid has no part."""
        values = torch.tensor([[value or 0.0 for value in row] for row in grid], dtype=torch.float64)
        here = self.at >= 0
        flat = torch.zeros(torch.Size(self.shape).numel(), dtype=torch.float64)
        flat[self.at[here]] = values[here]
        return flat.view(self.shape)

    @property
    def places(self) -> Tensor:
        """All places with a part, row by row."""
        return self.at[self.at >= 0]

    def cells(self, tensor: Tensor) -> Cells:
        """(row, column) of the parts that a tensor of the library has."""
        rows, columns = torch.where((self.at >= 0) & (tensor.flatten()[self.at.clamp_min(0)] > 0))
        return tuple(zip(rows.tolist(), columns.tolist(), strict=True))


@dataclass(frozen=True)
class Names:
    """A list of words that the page asks for."""

    label: str
    least: int
    most: int
    example: str


# compared by identity, so that it can be a key
@dataclass(frozen=True, eq=False)
class Kind:
    title: str
    # one sentence for a person who has never seen it
    about: str
    # one and many
    part: tuple[str, str]
    member: tuple[str, str]
    rows: Names
    columns: Names | None
    structure: Callable[[int], structmax.AbstractStructure]
    fields: Callable[[Words, Words], tuple[Field, ...]]
    # cells of a member as a drawing, and as words
    draw: Callable[[Words, Words, Cells], Drawing]
    tell: Callable[[Words, Words, Cells], str]
    # scores of the example, in the first field: (row, column) and how much is added to noise
    favoured: dict[tuple[int, int], float]
    takes_k: bool = False

    def example(self) -> list[list[list[float | None]]]:
        """Scores to begin with, for which there is more than one good structure."""
        columns = self.columns.example.split() if self.columns else []
        fields = self.fields(tuple(self.rows.example.split()), tuple(columns))
        grids = [field.shown(0.3 * scores) for field, scores in zip(fields, random_scores(fields, 1), strict=True)]
        for (row, column), score in self.favoured.items():
            grids[0][row][column] = (grids[0][row][column] or 0.0) + score
        return [[[None if v is None else round(v, 1) for v in row] for row in grid] for grid in grids]


def random_scores(fields: Sequence[Field], seed: int) -> tuple[Tensor, ...]:
    """Scores of the library, to one digit, so that what the page sends back is what was drawn."""
    generator = torch.Generator().manual_seed(seed)

    def scores(field: Field) -> Tensor:
        drawn = 1.5 * torch.randn(field.at.shape, dtype=torch.float64, generator=generator)
        return field.tensor((drawn.clamp(-4.0, 4.0) * 10).round().div(10).tolist())

    return tuple(scores(field) for field in fields)


def _grid(rows: int, columns: int) -> Tensor:
    return torch.arange(rows * columns).view(rows, columns)


def _column(rows: Words, columns: Words) -> tuple[Field, ...]:
    return (Field("scores", rows, ("score",), (len(rows),), _grid(len(rows), 1)),)


def _matrix(rows: Words, columns: Words) -> tuple[Field, ...]:
    return (Field("pairs", rows, columns, (len(rows), len(columns)), _grid(len(rows), len(columns))),)


def _chain(rows: Words, columns: Words) -> tuple[Field, ...]:
    tags = Field("tags of words", rows, columns, (len(rows), len(columns)), _grid(len(rows), len(columns)))
    size = len(columns)
    return tags, Field("from tag to tag", columns, columns, (size, size), _grid(size, size))


def _arcs(rows: Words, columns: Words) -> tuple[Field, ...]:
    """A row for each head, the root first, and a column for each word that has one."""
    nodes = len(rows) + 1
    at = _grid(nodes, nodes).fill_diagonal_(-1)[:, 1:]
    return (Field("from head to word", ("root", *rows), rows, (nodes, nodes), at),)


def _spans(rows: Words, columns: Words) -> tuple[Field, ...]:
    """From the row's word to the column's. Single words and the whole are in every tree, and left out."""
    at = _grid(len(rows), len(rows))
    at[torch.ones_like(at).tril().bool()] = -1
    at[0, -1] = -1
    return (Field("from first to last word", rows, rows, (len(rows), len(rows)), at),)


def _no_drawing(rows: Words, columns: Words, cells: Cells) -> Drawing:
    return None


def _draw_arcs(rows: Words, columns: Words, cells: Cells) -> Drawing:
    return {"kind": "arcs", "tokens": rows, "arcs": {"": [(head, word + 1) for head, word in cells]}}


def _draw_tree(rows: Words, columns: Words, cells: Cells) -> Drawing:
    return {"kind": "trees", "tokens": rows, "trees": {"": [(0, len(rows) - 1), *cells]}}


def _draw_tags(rows: Words, columns: Words, cells: Cells) -> Drawing:
    return {"kind": "sequence", "tokens": rows, "tags": {"": [columns[tag] for _, tag in cells]}}


def _draw_matrix(rows: Words, columns: Words, cells: Cells) -> Drawing:
    weights = [[float((i, j) in cells) for j in range(len(columns))] for i in range(len(rows))]
    return {"kind": "matrix", "weights": weights, "rows": rows, "columns": columns, "cell": 16}


def _tell_items(rows: Words, columns: Words, cells: Cells) -> str:
    return ", ".join(rows[i] for i, _ in cells) or "nothing"


def _tell_pairs(rows: Words, columns: Words, cells: Cells) -> str:
    return ", ".join(f"{rows[i]}–{columns[j]}" for i, j in cells)


def _tell_tags(rows: Words, columns: Words, cells: Cells) -> str:
    return " ".join(f"{rows[i]}/{columns[j]}" for i, j in cells)


def _tell_arcs(rows: Words, columns: Words, cells: Cells) -> str:
    nodes = ("root", *rows)
    return ", ".join(f"{nodes[head]} → {rows[word]}" for head, word in cells)


def _tell_spans(rows: Words, columns: Words, cells: Cells) -> str:
    return " ".join(f"[{' '.join(rows[first : last + 1])}]" for first, last in [(0, len(rows) - 1), *cells])


def _dependencies(title: str, about: str, structure: Callable[[int], structmax.AbstractStructure]) -> Kind:
    sentence = Names("Sentence", 1, 12, "she saw the man with a telescope")
    words = ("arc", "arcs"), ("tree", "trees")
    # who has the telescope?
    favoured = {(0, 1): 3.0, (2, 0): 2.5, (4, 2): 2.5, (2, 3): 2.5, (2, 4): 1.9, (4, 4): 1.7, (7, 5): 2.0, (5, 6): 2.5}
    return Kind(title, about, *words, sentence, None, structure, _arcs, _draw_arcs, _tell_arcs, favoured)


KINDS: dict[str, Kind] = {
    "dependencies": _dependencies(
        "Dependency tree",
        "Every word hangs on another word or on the root, and arcs do not cross.",
        lambda k: structmax.ProjectiveTree(single_root=True),
    ),
    "crossing": _dependencies(
        "Tree with crossing arcs",
        "Every word hangs on another word or on the root, and arcs may cross.",
        lambda k: structmax.SpanningTree(single_root=True),
    ),
    "brackets": Kind(
        "Brackets",
        "Every group of words is split into two, down to single words.",
        ("span", "spans"),
        ("binary tree", "binary trees"),
        Names("Sentence", 3, 12, "the old man saw the sea"),
        None,
        lambda k: structmax.BinaryTree(),
        _spans,
        _draw_tree,
        _tell_spans,
        {(0, 2): 1.5, (1, 2): 1.0, (3, 5): 1.4, (4, 5): 1.2, (0, 1): 0.8, (0, 3): 0.9},
    ),
    "chain": Kind(
        "Chain of tags",
        "Every word has one tag, and neighbouring tags have a score, too.",
        ("tag", "tags"),
        ("tagging", "taggings"),
        Names("Sentence", 1, 12, "time flies like an arrow"),
        Names("Tags", 1, 5, "noun verb other"),
        lambda k: structmax.LinearChain(),
        _chain,
        _draw_tags,
        _tell_tags,
        {(0, 0): 1.2, (0, 1): 0.7, (1, 0): 0.8, (1, 1): 1.1, (2, 1): 0.9, (2, 2): 1.0, (3, 2): 2.0, (4, 0): 2.0},
    ),
    "alignment": Kind(
        "Alignment",
        "A path from the upper left corner to the lower right one, by steps down, right or both.",
        ("cell", "cells"),
        ("path", "paths"),
        Names("Down", 1, 10, "the white house"),
        Names("Across", 1, 10, "la maison blanche"),
        lambda k: structmax.MonotoneAlignment(),
        _matrix,
        _draw_matrix,
        _tell_pairs,
        {(0, 0): 2.0, (1, 2): 1.5, (2, 1): 1.3, (2, 2): 0.8},
    ),
    "matching": Kind(
        "Matching",
        "Every row has a column of its own; if there are more of one than of the other, some stay alone.",
        ("pair", "pairs"),
        ("matching", "matchings"),
        Names("Down", 1, 8, "Ann Bob Cem Dee"),
        Names("Across", 1, 8, "cook wash shop clean"),
        lambda k: structmax.SmallMatching(),
        _matrix,
        _draw_matrix,
        _tell_pairs,
        {(0, 0): 2.0, (1, 0): 1.6, (1, 1): 1.5, (2, 2): 1.2, (3, 3): 1.0, (0, 1): 1.0},
    ),
    "subset": Kind(
        "k of n",
        "Exactly k of the items are in.",
        ("item", "items"),
        ("subset", "subsets"),
        Names("Items", 1, 12, "tent stove map rope lamp"),
        None,
        lambda k: structmax.Subset(k),
        _column,
        _no_drawing,
        _tell_items,
        {(0, 0): 1.5, (1, 0): 1.0, (2, 0): 1.2, (4, 0): 0.5},
        takes_k=True,
    ),
    "simplex": Kind(
        "One of n",
        "Exactly one of the items is chosen.",
        ("item", "items"),
        ("choice", "choices"),
        Names("Items", 1, 12, "red green blue yellow"),
        None,
        lambda k: structmax.Simplex(),
        _column,
        _no_drawing,
        _tell_items,
        {(0, 0): 1.0, (1, 0): 1.3, (2, 0): 0.7},
    ),
}


def described() -> dict[str, Any]:
    """What the page has to know to ask."""

    def asks(names: Names | None) -> dict[str, Any] | None:
        return None if names is None else asdict(names)

    return {
        name: {
            "title": kind.title,
            "about": kind.about,
            "rows": asks(kind.rows),
            "columns": asks(kind.columns),
            "takes_k": kind.takes_k,
            "scores": kind.example(),
        }
        for name, kind in KINDS.items()
    }
