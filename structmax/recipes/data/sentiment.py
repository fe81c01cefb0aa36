"""Sentences with a class, generated or from files in four formats, and with dependency trees where these are known.

A generated sentence has words that praise or blame, each with a gender, and negators that turn the word of their gender
into its opposite: `not.c bad.a is good.c not.b fine.b` praises nothing, blames three times. Its class is what most of
its words say. Words come in any order, so only the tree, which hangs a negator on its word, tells what it negates.
"""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from structmax.recipes.data import conllu, text
from structmax.recipes.data.different import different
from structmax.training.errors import DataError, RunError

GENDERS = "abcdef"
PRAISE, BLAME = ("good", "fine", "kind"), ("bad", "dull", "rude")
VERB, NEGATOR = "is", "not"
# how many words of a generated sentence praise or blame
JUDGEMENTS = 3
WHAT = "sentences with a class"
# brackets and words of a tree such as (3 (2 It) (4 works))
BRACKETS = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Example:
    """Words, their class, and their heads, counted from 1 with 0 for the root; no heads where they are not known."""

    words: tuple[str, ...]
    label: str
    heads: tuple[int, ...] = ()


# ---------------------------------------------------------------- generated sentences


def generate(count: int, seed: int, without: Iterable[Example] = ()) -> list[Example]:
    """Different random sentences that are not among `without`.

    Args:
        count: how many.
        seed: of the generator.
        without: sentences to leave out, such as those of a test set.

    Examples:
        >>> from structmax.recipes.data import sentiment
        >>> for example in sentiment.generate(2, seed=1):
        ...     print(*example.words, example.heads, example.label)
        good.a fine.b is fine.e (3, 3, 0, 3) positive
        not.c kind.c not.a rude.a good.e is (2, 6, 4, 6, 6, 0) positive
    """
    chance = random.Random(seed)
    return different(lambda: _drawn(chance), count, lambda example: example.words, without)


def _drawn(chance: random.Random) -> Example:
    genders = chance.sample(GENDERS, JUDGEMENTS)
    # words, and the places of their heads in this list; the verb is first, and hangs on the root
    words, heads, praised = [VERB], [-1], 0
    for gender in genders:
        praises = chance.random() < 0.5
        words.append(f"{chance.choice(PRAISE if praises else BLAME)}.{gender}")
        heads.append(0)
        if chance.random() < 0.5:
            words.append(f"{NEGATOR}.{gender}")
            heads.append(len(words) - 2)
            praises = not praises
        praised += praises
    for gender in GENDERS:
        # a negator of nothing
        if gender not in genders and chance.random() < 0.25:
            words.append(f"{NEGATOR}.{gender}")
            heads.append(0)
    order = chance.sample(range(len(words)), len(words))
    place = {old: new for new, old in enumerate(order, 1)} | {-1: 0}
    label = "positive" if 2 * praised > JUDGEMENTS else "negative"
    return Example(tuple(words[old] for old in order), label, tuple(place[heads[old]] for old in order))


# ---------------------------------------------------------------- files


def read(path: str | Path, classes: int = 2, encoding: str = "utf-8") -> list[Example]:
    """The sentences of a file; .gz and .xz are unpacked. Its first line says which of four formats it has:

    - `(3 (2 It) (4 works))`: a bracketed tree in each line, as the Stanford Sentiment Treebank has them. The class is
      that of the whole, 0 to 4; of two classes, 0 and 1 are negative, 3 and 4 positive, and 2 is left out.
    - `# instance 1`: a word in each line, its number, form, lemma, part of speech and the class of the sentence, with
      tabs between; empty lines between sentences.
    - any other comment, or a word in ten columns: CoNLL-U, with a comment `# label = x` in each sentence, and heads.
    - `1 it works`: a class, a space or a tab, and words with spaces between them, in each line.

    Args:
        path: of the file.
        classes: 2 or 5, of bracketed trees.
        encoding: of the text.
    """
    first = next((line for _, line in text.lines(path, WHAT, encoding) if line.strip()), None)
    if first is None:
        raise DataError(path, None, f"should have {WHAT}, but is empty")
    if re.match(r"\(\d+ ", first):
        found = _bracketed(path, classes, encoding)
    elif first.startswith("# instance"):
        found = _in_columns(path, encoding)
    elif first.startswith("#") or first.count("\t") + 1 == conllu.COLUMNS:
        if encoding not in ("utf-8", "utf8"):
            raise DataError(path, None, f"CoNLL-U files should be UTF-8, but `encoding` is {encoding}")
        found = _treebank(path)
    else:
        found = _in_lines(path, encoding)
    if not found:
        raise DataError(path, None, f"should have {WHAT}, but all are left out")
    return found


def _in_lines(path: str | Path, encoding: str) -> list[Example]:
    found = []
    for number, line in text.lines(path, WHAT, encoding):
        if not line.strip():
            continue
        label, *words = line.split()
        if not words:
            raise DataError(path, number, f"should be a class and words, but has only {label!r}")
        found.append(Example(tuple(words), label))
    return found


def _in_columns(path: str | Path, encoding: str) -> list[Example]:
    found = []
    for block in text.blocks(path, WHAT, encoding):
        rows = [(number, line.split("\t")) for number, line in block if not line.startswith("# instance")]
        for place, (number, row) in enumerate(rows, 1):
            if len(row) != 5:
                reason = "should be a number, a form, a lemma, a part of speech and a class, with tabs between"
                raise DataError(path, number, f"{reason}, but has {len(row)} columns")
            if row[0] != str(place):
                raise DataError(path, number, f"this word should have the number {place}, but has {row[0]}")
            if row[4] != rows[0][1][4]:
                raise DataError(path, number, f"the class should be {rows[0][1][4]}, as before, but is {row[4]}")
        if not rows:
            raise DataError(path, block[0][0], "should begin a sentence, but no words follow")
        found.append(Example(tuple(row[1] for _, row in rows), rows[0][1][4]))
    return found


def _bracketed(path: str | Path, classes: int, encoding: str) -> list[Example]:
    binary = {"0": "negative", "1": "negative", "3": "positive", "4": "positive"}
    found = []
    for number, line in text.lines(path, WHAT, encoding):
        if not line.strip():
            continue
        label, words = _of_brackets(line, path, number)
        if classes == 5:
            found.append(Example(words, label))
        elif label in binary:
            found.append(Example(words, binary[label]))
    return found


def _of_brackets(line: str, path: str | Path, number: int) -> tuple[str, tuple[str, ...]]:
    """The class of the whole, and the words."""
    tokens = BRACKETS.findall(line)
    depth, words = 0, []
    for place, token in enumerate(tokens):
        if depth == 0 and place > 0:
            raise DataError(path, number, "should be one tree, but something follows it")
        if token in "()":
            depth += 1 if token == "(" else -1
        elif tokens[place - 1] == "(":
            if not re.fullmatch("[0-4]", token):
                raise DataError(path, number, f"a class should be a digit from 0 to 4, but one is {token!r}")
        else:
            words.append(token)
    if depth != 0 or not words or tokens[0] != "(":
        raise DataError(path, number, "should be a tree such as (3 (2 It) (4 works)), but brackets do not match")
    return tokens[1], tuple(words)


def _treebank(path: str | Path) -> list[Example]:
    labels = []
    for block in text.blocks(path, WHAT):
        if not any(line.split("\t")[0].isdigit() for _, line in block):
            continue
        given = [re.match(r"#\s*label\s*=\s*(\S+)\s*$", line) for _, line in block]
        named = [match[1] for match in given if match]
        if len(named) != 1:
            reason = f"should begin a sentence with one comment `# label = x`, but it has {len(named)}"
            raise DataError(path, block[0][0], reason)
        labels.append(named[0])
    return [Example(s.words, label, s.heads) for s, label in zip(conllu.read(path), labels, strict=True)]


def held_out(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """A random share of sentences, at least one, and the others."""
    order = random.Random(seed).sample(range(len(examples)), len(examples))
    count = max(1, round(share * len(examples)))
    if count == len(examples):
        raise RunError("There should be sentences for training, validation and tests, but there are too few to part.")
    return [examples[i] for i in order[:count]], [examples[i] for i in sorted(order[count:])]


# ---------------------------------------------------------------- tensors


class Sentences:
    """Sentences as tensors on a device.

    Args:
        examples: what it holds.
        vocabulary: numbers of words in lower case.
        labels: names of classes, by their numbers.
        device: where.
    """

    def __init__(
        self, examples: Sequence[Example], vocabulary: text.Vocabulary, labels: Sequence[str], device: torch.device
    ) -> None:
        self.examples = examples
        self.words = text.Ragged([vocabulary.numbers(lowered(e)) for e in examples], device)
        self.lengths = self.words.lengths
        # −1 where heads are not known
        self.heads = text.Ragged([e.heads or [-1] * len(e.words) for e in examples], device)
        self.labels = torch.tensor([labels.index(e.label) for e in examples], device=device)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, indices: Tensor) -> "Batch":
        """Those sentences, padded to the longest of them."""
        return Batch(
            self.words.at(indices), self.lengths[indices], self.heads.at(indices), self.labels[indices], indices
        )


@dataclass(frozen=True)
class Batch:
    """B sentences of up to N words."""

    # (B, N)
    words: Tensor
    # (B,)
    lengths: Tensor
    # (B, N), −1 where they are not known
    heads: Tensor
    # (B,): classes, and the place of each sentence in the data
    labels: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return len(self.words)


def lowered(example: Example) -> list[str]:
    return [word.lower() for word in example.words]
