"""Pairs of sentences, and whether the second follows from the first: files of SICK and SNLI, and padded batches."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from structmax.recipes.data import text
from structmax.training.errors import DataError

LABELS = ("entailment", "neutral", "contradiction")
# Names of the columns of premise, hypothesis and label, in the order in which they are looked for.
COLUMNS = {
    "premise": ("sentence_A", "sentence1", "premise"),
    "hypothesis": ("sentence_B", "sentence2", "hypothesis"),
    "label": ("entailment_judgment", "entailment_label", "gold_label", "label"),
}
# SNLI's label of a pair whose annotators did not agree
NO_LABEL = "-"
# words, with "n't" and "'s" apart as in the Penn treebank; any other sign is a word of its own
TOKEN = re.compile(r"\w+(?=n't\b)|n't\b|'\w+|\w+|[^\w\s]")


@dataclass(frozen=True)
class Pair:
    """Two sentences, the number of their label, and which words belong together."""

    premise: tuple[str, ...]
    hypothesis: tuple[str, ...]
    label: int
    # for each word of the hypothesis, the place of its counterpart in the premise, from 0; −1 for none or not known
    origins: tuple[int, ...]


def tokens(sentence: str) -> tuple[str, ...]:
    """Its words in lower case.

    Examples:
        >>> from structmax.recipes.data.entailment import tokens
        >>> tokens("A dog isn't eating the man's hat.")
        ('a', 'dog', 'is', "n't", 'eating', 'the', 'man', "'s", 'hat', '.')
    """
    return tuple(TOKEN.findall(sentence.lower()))


def read(path: str | Path) -> list[Pair]:
    """The pairs of a file with tabs between its columns, which the first line names; .gz and .xz are unpacked.

    Columns are found by their names: those of SICK, those of SNLI, or premise, hypothesis and label. Others are not
    read, nor are lines whose label is "-".
    """
    numbered = text.lines(path, "pairs of sentences")
    names = next(numbered, (0, ""))[1].split("\t")
    places = {column: _place(column, names, path) for column in COLUMNS}
    pairs = []
    for number, line in numbered:
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(names):
            reason = f"should have {len(names)} columns with tabs between, as the first line has, but has {len(cells)}"
            raise DataError(path, number, reason)
        label = cells[places["label"]].strip().lower()
        if label == NO_LABEL:
            continue
        if label not in LABELS:
            raise DataError(path, number, f"the label should be {', '.join(LABELS)} or {NO_LABEL}, but is {label!r}")
        sentences = [tokens(cells[places[column]]) for column in ("premise", "hypothesis")]
        for column, words in zip(("premise", "hypothesis"), sentences, strict=True):
            if not words:
                raise DataError(path, number, f"the {column} should have words, but is empty")
        premise, hypothesis = sentences
        pairs.append(Pair(premise, hypothesis, LABELS.index(label), (-1,) * len(hypothesis)))
    if not pairs:
        raise DataError(path, None, "should have labelled pairs of sentences, but has none")
    return pairs


def _place(column: str, names: Sequence[str], path: str | Path) -> int:
    known = [name for name in COLUMNS[column] if name in names]
    if not known:
        reason = f"should name a column {' or '.join(COLUMNS[column])}, but has {', '.join(names)}"
        raise DataError(path, 1, reason)
    return names.index(known[0])


@dataclass(frozen=True)
class Batch:
    """B pairs of sentences, all of them padded to one length N."""

    # (2B, N) and (2B,): numbers of words, 0 past the last, and how many there are; premises first, then hypotheses
    sentences: Tensor
    lengths: Tensor
    # (B,)
    labels: Tensor
    # (B, N, N) bool: known counterparts, from places in the premise to places in the hypothesis
    gold: Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Pairs:
    """Pairs as numbers, on a device.

    Args:
        pairs: of sentences.
        vocabulary: the numbers of their words.
        device: where to keep them.
    """

    def __init__(self, pairs: Sequence[Pair], vocabulary: text.Vocabulary, device: torch.device) -> None:
        self.pairs = list(pairs)
        sentences = [pair.premise for pair in pairs] + [pair.hypothesis for pair in pairs]
        self.sentences = text.Ragged([vocabulary.numbers(words) for words in sentences], device)
        self.labels = torch.tensor([pair.label for pair in pairs], device=device)
        # from 1, so that padding is none
        self.origins = text.Ragged([[1 + place for place in pair.origins] for pair in pairs], device)
        # of both sentences together, by which batches are sorted
        self.lengths = self.sentences.lengths.view(2, -1).sum(0)

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, indices: Tensor) -> Batch:
        both = torch.cat([indices, indices + len(self)])
        sentences, origins = self.sentences.at(both), self.origins.at(indices)
        N = sentences.shape[-1]
        origins = torch.nn.functional.pad(origins, (0, N - origins.shape[-1]))
        gold = torch.arange(1, N + 1, device=origins.device).unsqueeze(-1) == origins.unsqueeze(-2)
        return Batch(sentences, self.sentences.lengths[both], self.labels[indices], gold)
