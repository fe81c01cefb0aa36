"""What the page sends, checked: afterwards every answer is cheap and every number finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import structmax
from structmax.explore.kinds import KINDS, Field, Kind, Words, random_scores

# Of scores, up and down; of letters in a word; of the parts that a target is asked to have.
LARGEST, LETTERS, WANTED = 50.0, 24, 144
# Lowest, highest, and what it is if it is not sent.
RANGES = {"temperature": (0.05, 10.0, 1.0), "alpha": (1.0, 3.0, 1.5), "step": (0.1, 20.0, 1.0)}
KEYS = ("kind", "rows", "columns", "k", "scores", "seed", "wanted", *RANGES)
SEEDS = 2**31


class Unacceptable(ValueError):
    """A request that should be written differently; the message says how."""


@dataclass(frozen=True)
class Asked:
    kind: Kind
    rows: Words
    columns: Words
    fields: tuple[Field, ...]
    structure: structmax.AbstractStructure
    # the library's, one for each field, float64
    scores: tuple[Tensor, ...]
    temperature: float
    # of the smoothed recursion
    alpha: float
    # of estimators that make one
    step: float
    seed: int
    # [row, column] in the first field: what the target should have
    wanted: tuple[tuple[int, int], ...]

    @property
    def cooled(self) -> Any:
        """Scores over the temperature, as the library takes them."""
        return self.structure.parts(tuple(scores / self.temperature for scores in self.scores))

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def checked(sent: Any) -> Asked:
    """The request, or an `Unacceptable` that says what it should be."""
    if not isinstance(sent, dict):
        raise Unacceptable("The request should be an object of JSON.")
    if unknown := [key for key in sent if key not in KEYS]:
        raise Unacceptable(f"The request should have keys among {', '.join(KEYS)}, but has {_short(unknown[0])}.")
    name = sent.get("kind")
    if not isinstance(name, str) or name not in KINDS:
        raise Unacceptable(f"`kind` should be one of {', '.join(KINDS)}, but is {_short(name)}.")
    kind = KINDS[name]
    rows = _words(sent.get("rows"), "rows", kind.rows.least, kind.rows.most)
    most = kind.columns.most if kind.columns else 0
    columns = _words(sent.get("columns", []), "columns", kind.columns.least if kind.columns else 0, most)
    k = _whole(sent.get("k", 1), "k", 1, len(rows)) if kind.takes_k else 1
    seed = _whole(sent.get("seed", 0), "seed", 0, SEEDS - 1)
    fields = kind.fields(rows, columns)
    given = sent.get("scores")
    return Asked(
        kind=kind,
        rows=rows,
        columns=columns,
        fields=fields,
        structure=kind.structure(k),
        scores=random_scores(fields, seed) if given is None else _scores(given, fields),
        seed=seed,
        wanted=_wanted(sent.get("wanted", []), fields[0]),
        **{key: _number(sent.get(key, usual), f"`{key}`", low, high) for key, (low, high, usual) in RANGES.items()},
    )


def _short(value: Any) -> str:
    """A value as it may be repeated in an answer."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _number(value: Any, name: str, low: float, high: float) -> float:
    # a whole number may be too large for a float
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Unacceptable(f"{name} should be a number from {low:g} to {high:g}, but is {_short(value)}.")
    return float(value)


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Unacceptable(f"`{name}` should be a whole number from {low} to {high}, but is {_short(value)}.")
    return value


def _words(value: Any, name: str, least: int, most: int) -> Words:
    if not isinstance(value, list) or not least <= len(value) <= most:
        found = f"has {len(value)}" if isinstance(value, list) else f"is {_short(value)}"
        raise Unacceptable(f"`{name}` should be a list of {least} to {most} words, but {found}.")
    for word in value:
        if not isinstance(word, str) or not 1 <= len(word) <= LETTERS:
            raise Unacceptable(f"`{name}` should have words of 1 to {LETTERS} letters, but has {_short(word)}.")
    return tuple(value)


def _scores(value: Any, fields: tuple[Field, ...]) -> tuple[Tensor, ...]:
    """Grids as `Field.shown` makes them."""
    if not isinstance(value, list) or len(value) != len(fields):
        raise Unacceptable(f"`scores` should be null, or a list of {len(fields)} grids, but is {_short(value)}.")
    return tuple(field.tensor(_grid(grid, field)) for grid, field in zip(value, fields, strict=True))


def _grid(value: Any, field: Field) -> list[list[float | None]]:
    rows, columns = field.at.shape
    if not isinstance(value, list) or len(value) != rows:
        raise Unacceptable(f"a grid of `scores` should have {rows} rows here, but is {_short(value)}.")
    grid: list[list[float | None]] = []
    for row, places in zip(value, field.at.tolist(), strict=True):
        if not isinstance(row, list) or len(row) != columns:
            raise Unacceptable(f"a row of `scores` should have {columns} entries here, but is {_short(row)}.")
        for entry, place in zip(row, places, strict=True):
            if place < 0 and entry is not None:
                raise Unacceptable(f"`scores` should be null where there is no part, but one is {_short(entry)}.")
        grid.append(
            [
                _number(entry, "a score", -LARGEST, LARGEST) if place >= 0 else None
                for entry, place in zip(row, places, strict=True)
            ]
        )
    return grid


def _wanted(value: Any, field: Field) -> tuple[tuple[int, int], ...]:
    rows, columns = field.at.shape
    if not isinstance(value, list) or len(value) > WANTED:
        raise Unacceptable(f"`wanted` should be a list of at most {WANTED} cells, but is {_short(value)}.")
    cells = []
    for cell in value:
        if not isinstance(cell, list) or len(cell) != 2:
            raise Unacceptable(f"a cell of `wanted` should be [row, column], but is {_short(cell)}.")
        row, column = _whole(cell[0], "wanted", 0, rows - 1), _whole(cell[1], "wanted", 0, columns - 1)
        if field.at[row, column] < 0:
            raise Unacceptable(f"a cell of `wanted` should be a part, but {[row, column]} is none.")
        cells.append((row, column))
    return tuple(cells)
