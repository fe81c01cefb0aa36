"""Sentences with dependency trees and graphs, in the CoNLL-U format of Universal Dependencies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structmax.recipes.data import text
from structmax.training.errors import DataError, RunError

COLUMNS = 10


@dataclass(frozen=True)
class Sentence:
    """N words with their parts of speech, their heads, counted from 1 with 0 for the root, and labels of these arcs.

    `graph` has the arcs of the enhanced graph that end in each word, (head, label); none where the file has no graph.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    graph: tuple[tuple[tuple[int, str], ...], ...] = ()

    def __len__(self) -> int:
        return len(self.words)


def read(path: str | Path) -> list[Sentence]:
    """The sentences of a file; .gz and .xz are unpacked.

    A word is a line with a whole number: lines of several words (`1-2`) and empty nodes (`8.1`) are left out, and so
    are the arcs of a graph that begin in an empty node.
    """
    try:
        import conllu
    except ImportError:
        raise RunError("Reading CoNLL-U files needs the package conllu. Try pip install structmax[recipes].") from None
    sentences = []
    for block in text.blocks(path, "CoNLL-U sentences"):
        numbered = [(number, line) for number, line in block if not line.startswith("#")]
        for number, line in numbered:
            if (columns := line.count("\t") + 1) != COLUMNS:
                raise DataError(path, number, f"should have {COLUMNS} columns with tabs between, but has {columns}")
        try:
            tokens = conllu.parse("\n".join(line for _, line in numbered))[0] if numbered else []
        except conllu.exceptions.ParseException as error:
            raise DataError(path, numbered[0][0], f"should begin a CoNLL-U sentence, but does not: {error}") from None
        lines = (number for number, _ in numbered)
        words = [(number, token) for number, token in zip(lines, tokens, strict=True) if isinstance(token["id"], int)]
        if words:
            sentences.append(_sentence(words, path))
    if not sentences:
        raise DataError(path, None, "should have sentences, but has none")
    return sentences


def _sentence(words: list[tuple[int, Any]], path: str | Path) -> Sentence:
    for place, (number, token) in enumerate(words, 1):
        if token["id"] != place:
            raise DataError(path, number, f"this word should have the number {place}, but has {token['id']}")
        head = token["head"]
        if not isinstance(head, int) or not 0 <= head <= len(words) or head == place:
            reason = f"the head should be another word, 1 to {len(words)}, or 0 for the root, but is {head}"
            raise DataError(path, number, reason)
    heads = tuple(token["head"] for _, token in words)
    cyclic = next((place for place in range(1, len(heads) + 1) if not _hangs(place, heads)), None)
    if cyclic is not None:
        raise DataError(path, words[cyclic - 1][0], "the heads should lead to the root, but go in a circle")
    return Sentence(
        tuple(token["form"] for _, token in words),
        tuple(token["upos"] or "_" for _, token in words),
        heads,
        tuple(token["deprel"] or "_" for _, token in words),
        tuple(_arcs(token["deps"], len(words), number, path) for number, token in words),
    )


def _hangs(place: int, heads: tuple[int, ...]) -> bool:
    """Whether a way from head to head ends at the root."""
    for _ in heads:
        place = heads[place - 1]
        if place == 0:
            return True
    return False


def _arcs(deps: Any, words: int, number: int, path: str | Path) -> tuple[tuple[int, str], ...]:
    if deps is None:
        return ()
    if isinstance(deps, str):
        raise DataError(path, number, f"the graph should be head:label|head:label …, but is {deps!r}")
    arcs = tuple((head, label) for label, head in deps if isinstance(head, int))
    wrong = next((head for head, _ in arcs if not 0 <= head <= words), None)
    if wrong is not None:
        raise DataError(path, number, f"heads of the graph should be words, 0 to {words}, but one is {wrong}")
    return arcs
