"""Classifiers of two sentences that align their words, and the ways to align them.

Both compare every word of a sentence with what it reads in the other one. How it reads is an alignment: from scores
(B, N, N) of pairs of words, the weights with which words of the premise read the hypothesis, and the other way round.
Premises and hypotheses are the first and the second half of a batch of 2B sentences.

Reference: Chen et al. 2017, Enhanced LSTM for natural language inference, https://arxiv.org/abs/1609.06038; Parikh,
Täckström, Das & Uszkoreit 2016, A decomposable attention model, https://arxiv.org/abs/1606.01933; structured
alignments Niculae, Martins, Blondel & Cardie 2018, https://arxiv.org/abs/1802.04223.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data.entailment import LABELS
from structmax.recipes.data.text import within
from structmax.recipes.models.words import BiLSTM, Words, embedding


class Aligned(NamedTuple):
    """Weights of pairs of words, each (B, N, N), 0 past the lengths. Matchings have the same for both."""

    # of what a word of the premise reads: rows sum to 1, or less where words may stay alone
    of_premise: Tensor
    # of what a word of the hypothesis reads: columns sum to 1, or less
    of_hypothesis: Tensor


class AbstractAlignment(nn.Module, ABC):
    @abstractmethod
    def forward(self, scores: Tensor, rows: Tensor, columns: Tensor) -> Aligned:
        """Of scores (B, N, N) of pairs of words, for sentences of so many words, (B,) and (B,)."""


class WordByWord(AbstractAlignment):
    """Every word has weights of its own, from a mapping such as `structmax.softmax`."""

    def __init__(self, mapping: Callable[..., Tensor]) -> None:
        super().__init__()
        self.mapping = mapping

    def forward(self, scores: Tensor, rows: Tensor, columns: Tensor) -> Aligned:
        N = scores.shape[-1]
        inside = within(rows, N).unsqueeze(-1) & within(columns, N).unsqueeze(-2)
        return Aligned(self.mapping(scores, -1, mask=inside), self.mapping(scores, -2, mask=inside))


class Sequential(AbstractAlignment):
    """Few sequences of words of the other sentence, one for each word, with learnt scores of steps; both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.of_premise = structmax.nn.Steps()
        self.of_hypothesis = structmax.nn.Steps()

    def forward(self, scores: Tensor, rows: Tensor, columns: Tensor) -> Aligned:
        of_premise = self.of_premise(scores, structmax.sparse_marginals, rows, columns)
        of_hypothesis = self.of_hypothesis(scores.mT, structmax.sparse_marginals, columns, rows)
        return Aligned(of_premise, of_hypothesis.mT)


class Matched(AbstractAlignment):
    """An average of matchings, read in both directions. Words of the longer sentence may stay alone."""

    def __init__(self, answer: Callable[..., Tensor]) -> None:
        super().__init__()
        self.answer = answer
        self.pairs = structmax.nn.Pairs(structmax.Matching)

    def forward(self, scores: Tensor, rows: Tensor, columns: Tensor) -> Aligned:
        weights = self.pairs(scores, self.answer, rows, columns)
        return Aligned(weights, weights)


def entropic(scores: Tensor, matching: Any) -> Tensor:
    return structmax.sinkhorn(scores, matching).marginals


ALIGNMENTS: dict[str, Callable[[], AbstractAlignment]] = {
    "softmax": lambda: WordByWord(structmax.softmax),
    "sparsemax": lambda: WordByWord(structmax.sparsemax),
    "sequential": Sequential,
    "matching": lambda: Matched(structmax.sparse_marginals),
    "sinkhorn": lambda: Matched(entropic),
}


class Judged(NamedTuple):
    """Scores of the labels, (B, 3), and the alignment they are based on."""

    logits: Tensor
    aligned: Aligned


class Esim(nn.Module):
    """The enhanced LSTM: words are read in their sentences, compared with what they read, and read once more.

    Args:
        words: number of words of the vocabulary, or their vectors, (words, D).
        size: of the states of LSTMs in each direction.
        alignment: of the words of the two sentences.
        dropout: the share of features that training leaves out.
    """

    def __init__(self, words: int | Tensor, size: int, alignment: AbstractAlignment, dropout: float) -> None:
        super().__init__()
        self.words = Words(words, size, size, dropout=dropout)
        self.alignment = alignment
        self.compare = nn.Sequential(nn.Linear(8 * size, size), nn.ReLU(), nn.Dropout(dropout))
        self.compose = BiLSTM(size, size)
        self.classify = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(8 * size, size), nn.Tanh(), nn.Dropout(dropout), nn.Linear(size, len(LABELS))
        )

    def forward(self, sentences: Tensor, lengths: Tensor) -> Judged:
        """Of numbers of words, (2B, N), of so many words each, (2B,)."""
        own = self.words(sentences, lengths)
        aligned, read = aligned_and_read(self.alignment, own, own, lengths)
        states = self.compose(self.compare(torch.cat([own, read, own - read, own * read], -1)), lengths)
        inside = within(lengths, states.shape[1]).unsqueeze(-1)
        mean = states.masked_fill(~inside, 0.0).sum(1) / lengths.unsqueeze(-1)
        largest = states.masked_fill(~inside, -torch.inf).amax(1)
        return Judged(self.classify(torch.cat([*mean.chunk(2), *largest.chunk(2)], -1)), aligned)


class Decomposable(nn.Module):
    """Decomposable attention: words are attended to, compared and added up, in whatever order they come.

    The arguments are those of `Esim`; `size` is that of all layers.
    """

    def __init__(self, words: int | Tensor, size: int, alignment: AbstractAlignment, dropout: float) -> None:
        super().__init__()
        self.words = embedding(words, size)
        self.project = nn.Linear(self.words.embedding_dim, size, bias=False)
        self.attend = layers(size, size, dropout)
        self.alignment = alignment
        self.compare = layers(2 * size, size, dropout)
        self.classify = nn.Sequential(layers(2 * size, size, dropout), nn.Linear(size, len(LABELS)))

    def forward(self, sentences: Tensor, lengths: Tensor) -> Judged:
        """Of numbers of words, (2B, N), of so many words each, (2B,)."""
        own = self.project(self.words(sentences))
        aligned, read = aligned_and_read(self.alignment, own, self.attend(own), lengths)
        compared = self.compare(torch.cat([own, read], -1))
        added = compared.masked_fill(~within(lengths, own.shape[1]).unsqueeze(-1), 0.0).sum(1)
        return Judged(self.classify(torch.cat(added.chunk(2), -1)), aligned)


MODELS: dict[str, Callable[..., Esim | Decomposable]] = {"esim": Esim, "decomposable": Decomposable}


def aligned_and_read(
    alignment: AbstractAlignment, words: Tensor, keys: Tensor, lengths: Tensor
) -> tuple[Aligned, Tensor]:
    """The alignment by products of keys (2B, N, D), and the words (2B, N, E) of the other sentence that each reads."""
    premise, hypothesis = keys.chunk(2)
    aligned = alignment(premise @ hypothesis.mT, *lengths.chunk(2))
    premise, hypothesis = words.chunk(2)
    return aligned, torch.cat([aligned.of_premise @ hypothesis, aligned.of_hypothesis.mT @ premise])


def layers(input_size: int, size: int, dropout: float) -> nn.Sequential:
    parts = [nn.Dropout(dropout), nn.Linear(input_size, size), nn.ReLU()]
    return nn.Sequential(*parts, nn.Dropout(dropout), nn.Linear(size, size), nn.ReLU())
