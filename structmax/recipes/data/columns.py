"""Sentences with tagged spans, such as names: a word and its tag in each line, as in the shared tasks of CoNLL."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from structmax.recipes.data import text
from structmax.training.errors import DataError

TAG = re.compile(r"O|[BIES]-.+")


@dataclass(frozen=True)
class Sentence:
    """N words and as many tags, in IOBES: a span is `B-X I-X … E-X`, or `S-X` if it is one word, and `O` is none."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.words)


def read(path: str | Path) -> list[Sentence]:
    """The sentences of a file, with an empty line after each; .gz and .xz are unpacked.

    Columns have tabs between them, or spaces where a line has no tab. The first is the word, the last its tag, in IOB1,
    IOB2 or IOBES. In a file without E and S, a span begins at a B, and at an I that does not follow a tag of its type,
    as conlleval counts: this reads IOB1, and forgives IOB2 an I without a B. Tags of IOBES should fit together. A
    sentence of `-DOCSTART-` is left out.
    """
    found = [_rows(block, path) for block in text.blocks(path, "words and tags")]
    sentences = [rows for rows in found if rows and rows[0][1] != "-DOCSTART-"]
    if not sentences:
        raise DataError(path, None, "should have sentences, but has none")
    closed = any(tag[0] in "ES" for rows in sentences for _, _, tag in rows)
    return [_sentence(rows, closed, path) for rows in sentences]


def _rows(block: list[tuple[int, str]], path: str | Path) -> list[tuple[int, str, str]]:
    """Number, word and tag of each line."""
    rows = []
    for number, line in block:
        columns = line.rstrip().split("\t") if "\t" in line.rstrip() else line.split()
        if len(columns) < 2 or not columns[0]:
            reason = f"should have a word and a tag, with a tab or a space between them, but is {line.strip()!r}"
            raise DataError(path, number, reason)
        word, tag = columns[0], columns[-1]
        if not TAG.fullmatch(tag):
            reason = f"the tag should be O, or B-, I-, E- or S- and a type such as B-PER, but is {tag!r}"
            raise DataError(path, number, reason)
        rows.append((number, word, tag))
    return rows


def _sentence(rows: list[tuple[int, str, str]], closed: bool, path: str | Path) -> Sentence:
    words, tags = tuple(word for _, word, _ in rows), tuple(tag for _, _, tag in rows)
    if not closed:
        return Sentence(words, iobes(len(words), spans(tags)))
    if (place := fault(tags)) is not None:
        before, after = (["the beginning", *tags, "the end"][place + k] for k in (0, 1))
        reason = f"tags of IOBES should be B-X I-X … E-X or S-X, but after {before} comes {after}"
        raise DataError(path, rows[min(place, len(rows) - 1)][0], reason)
    return Sentence(words, tags)


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Spans of IOB1 or IOB2 as conlleval counts them: first and last word, from 0, and the type."""
    found: list[tuple[int, int, str]] = []
    before = "O"
    for place, tag in enumerate(tags):
        if tag != "O":
            kind = tag[2:]
            if tag[0] == "I" and before[2:] == kind:
                found[-1] = (found[-1][0], place, kind)
            else:
                found.append((place, place, kind))
        before = tag
    return found


def iobes(length: int, spans: Iterable[tuple[int, int, str]]) -> tuple[str, ...]:
    """The tags of spans that do not overlap.

    Examples:
        >>> from structmax.recipes.data.columns import iobes
        >>> iobes(4, [(0, 1, "PER"), (3, 3, "LOC")])
        ('B-PER', 'E-PER', 'O', 'S-LOC')
    """
    tags = ["O"] * length
    for first, last, kind in spans:
        tags[first : last + 1] = [f"I-{kind}"] * (last + 1 - first)
        tags[first], tags[last] = f"B-{kind}", f"E-{kind}"
        if first == last:
            tags[first] = f"S-{kind}"
    return tuple(tags)


def fault(tags: Sequence[str]) -> int | None:
    """The first place at which tags of IOBES do not fit what comes before; their number if the last span stays open."""
    for place, (before, after) in enumerate(zip(["O", *tags], [*tags, "O"], strict=True)):
        opened, continued = before[0] in "BI", after[0] in "IE"
        if opened != continued or (opened and before[2:] != after[2:]):
            return place
    return None


def labels(sentences: Iterable[Sentence]) -> list[str]:
    """All tags of IOBES for the types of spans in the data, `O` first."""
    kinds = sorted({tag[2:] for sentence in sentences for tag in sentence.tags if tag != "O"})
    return ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BIES")]
