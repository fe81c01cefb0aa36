"""Tags of words that form spans, such as names: which losses train a chain of tags, and is a chain worth having?

Words and their characters go through an LSTM, which scores the tags of each word. A chain adds scores for neighbouring
tags, and allows what is written in IOBES alone: a name that begins has to end, with the type it began with. The loss is
the log-likelihood of a conditional random field, one of its relatives with sparse marginals or with a margin, or the
cross-entropy of each word on its own, without a chain. To compare them:

    structmax compare tag --over loss=all --seeds 3 --jobs 2

Reference: Lample, Ballesteros, Subramanian, Kawakami & Dyer 2016, Neural architectures for named entity recognition;
Mensch & Blondel 2018, Differentiable dynamic programming for structured prediction and attention; Niculae, Martins,
Blondel & Cardie 2018, SparseMAP.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

import structmax
from structmax import omega
from structmax.recipes.data import columns, names, text
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.models.words import Words
from structmax.training import RunError, Settings, Task, option

Loss = Literal["crf", "smoothed_l2", "smoothed_tsallis", "perceptron", "svm", "sparsemap", "cross_entropy"]
# What makes loss and marginals of each that has a chain. The margin's loss is the perceptron's at other scores.
OMEGAS: dict[Loss, omega.AbstractOmega] = {
    "crf": omega.Entropy(),
    "smoothed_l2": omega.LocalL2(),
    "smoothed_tsallis": omega.LocalTsallis(1.5),
    "perceptron": omega.Zero(),
    "svm": omega.Zero(),
    "sparsemap": omega.SquaredNorm(),
}
# numbers of generated sentences that no run trains on
VALID, TEST = 300, 500
# Drawings show so many sentences, of at most so many words, and the tags that have at least this weight.
DRAWN, LONGEST_DRAWN, SEEN = 6, 25, 0.01


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A run of one loss."""

    least = Settings.least | {
        "size": 1,
        "word_size": 1,
        "character_size": 2,
        "dropout": 0,
        "word_dropout": 0,
        "train_size": 1,
    }
    most = Settings.most | {"dropout": 0.99, "word_dropout": 0.99}
    loss: Loss = option("crf", "loss to train with; cross_entropy has no chain, svm has a margin for each wrong tag")
    size: int = option(100, "size of the LSTM's states in each direction")
    word_size: int = option(100, "size of the vectors of words, if no file of vectors is given")
    character_size: int = option(50, "size of the vectors of spellings, an even number")
    dropout: float = option(0.25, "share of features left out in training, before and after the LSTM")
    word_dropout: float = option(0.1, "share of words that are unknown in training")
    train_size: int = option(1000, "number of sentences to generate for training, if no files are given")
    train_file: str = option("", "file of words and tags to train on; needs valid_file and test_file")
    valid_file: str = option("", "file of words and tags that chooses the best checkpoint")
    test_file: str = option("", "file of words and tags to test on")
    vectors: str = option("", "file of word vectors: lines of a word and its numbers, with spaces between them")
    epochs: int = option(12, "passes over the training data")
    batch_size: int = option(32, "number of sentences in a step, over all processes together")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    clip: float = option(5.0, "largest norm of the gradient; 0 for no limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.character_size % 2:
            raise ValueError(f"`character_size` should be an even number, but is {self.character_size}.")
        text.files(self)


class Batch(NamedTuple):
    """B sentences of at most N words: numbers of words, of their spellings and tags, (B, N), and lengths (B,)."""

    words: Tensor
    spellings: Tensor
    tags: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """True where there is a word."""
        return text.within(self.lengths, self.words.shape[1])


class Data:
    """Sentences, and their numbers on a device."""

    def __init__(
        self,
        sentences: list[columns.Sentence],
        words: text.Vocabulary,
        spellings: text.Vocabulary,
        labels: Sequence[str],
        device: torch.device,
    ) -> None:
        index = {label: number for number, label in enumerate(labels)}
        self.sentences = sentences
        self.rows = [
            text.Ragged(rows, device)
            for rows in (
                [words.numbers(map(normal, sentence.words)) for sentence in sentences],
                [spellings.numbers(sentence.words) for sentence in sentences],
                [[index[tag] for tag in sentence.tags] for sentence in sentences],
            )
        ]
        self.lengths = self.rows[0].lengths

    def __len__(self) -> int:
        return len(self.sentences)

    def batch(self, indices: Tensor) -> Batch:
        words, spellings, tags = (rows.at(indices) for rows in self.rows)
        return Batch(words, spellings, tags, self.lengths[indices])


def normal(word: str) -> str:
    """The form in which words are the same word: without capitals, every digit 0. Characters know the rest."""
    return re.sub(r"\d", "0", word.lower())


def read(config: Config) -> dict[str, list[columns.Sentence]]:
    """The sentences of each split, from files or generated."""
    if files := text.files(config):
        return {split: columns.read(path) for split, path in files.items()}
    return {
        "train": names.generate(config.train_size, training_seed(config)),
        "valid": names.generate(VALID, VALID_SEED),
        "test": names.generate(TEST, TEST_SEED),
    }


class Model(nn.Module):
    """Scores of the tags of each word, and a chain over them, if the loss has one."""

    def __init__(self, config: Config, words: int | Tensor, spellings: Tensor, labels: Sequence[str]) -> None:
        super().__init__()
        self.loss: Loss = config.loss
        self.words = Words(
            words,
            config.word_size,
            config.size,
            characters=spellings,
            character_size=config.character_size,
            dropout=config.dropout,
            word_dropout=config.word_dropout,
        )
        self.scores = nn.Linear(self.words.output_size, len(labels))
        self.chain = None
        if config.loss in OMEGAS:
            rules = structmax.tag_constraints(labels, "IOBES")
            self.chain = structmax.nn.CRF(len(labels), True, constraints=rules, omega=OMEGAS[config.loss])

    def forward(self, batch: Batch) -> Tensor:
        """(B, N, tags)."""
        return self.scores(self.words(batch.words, batch.lengths, batch.spellings))

    def loss_of(self, scores: Tensor, batch: Batch) -> Tensor:
        """The sum over the words of a sentence, averaged over sentences."""
        if self.chain is None:
            losses = nn.functional.cross_entropy(scores.flatten(0, 1), batch.tags.flatten(), reduction="none")
            return losses[batch.mask.flatten()].sum() / len(scores)
        if self.loss == "svm":
            parts, chain = self.chain.scores(scores, batch.mask)
            return structmax.svm_loss(parts, chain, tuple(chain.encode(batch.tags, parts)[:2]))
        return -self.chain(scores, batch.tags, batch.mask, reduction="mean")

    def best(self, scores: Tensor, batch: Batch) -> Tensor:
        """The best tags, (B, N)."""
        return scores.argmax(-1) if self.chain is None else self.chain.argmax(scores, batch.mask)

    def weights(self, scores: Tensor, batch: Batch) -> Tensor:
        """How much weight each tag of a word has, (B, N, tags)."""
        return scores.softmax(-1) if self.chain is None else self.chain.marginals(scores, batch.mask)


class Recipe(Task[Config]):
    model: Model
    best = "f1"
    meanings = {
        "loss": "what training minimises: that of a sentence's tags, by the loss that is compared",
        "f1": "of spans with the right words and type; one whose tags do not fit together is none",
        "precision": "of the spans that were found, the share that is right",
        "recall": "of the spans to find, the share that was found",
        "accuracy": "share of words with the right tag",
        "broken": "share of sentences whose tags do not fit together, such as B-PER E-LOC",
    }
    higher = ("precision", "recall", "accuracy")
    lower = ("loss", "broken")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        splits = read(config)
        self.labels = columns.labels(sentence for split in splits.values() for sentence in split)
        words, spellings = vocabularies(splits, config.vectors)
        self.data = {split: Data(found, words, spellings, self.labels, device) for split, found in splits.items()}
        table = text.vectors(config.vectors, words) if config.vectors else len(words)
        self.model = Model(config, table, spellings.characters()[1], self.labels).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return text.by_length(self.data["train"].lengths, self.config.batch_size, self.shuffling(epoch))

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = self.data["train"].batch(indices.to(self.device))
        scores = self.model(batch)
        loss = self.model.loss_of(scores, batch)
        yield loss, {"loss": loss.detach()}

    def evaluate(self, split: str) -> dict[str, float]:
        """Spans that are found, and the words with the right tag."""
        data = self.data[split]
        found: list[list[str]] = [[] for _ in range(len(data))]
        lost = torch.zeros((), device=self.device)
        for indices, batch, scores in self._scored(data):
            lost = lost + len(indices) * self.model.loss_of(scores, batch)
            for index, tags in zip(indices.tolist(), self._names(self.model.best(scores, batch), batch), strict=True):
                found[index] = tags
        gold = [list(sentence.tags) for sentence in data.sentences]
        pairs = [pair for tags in zip(gold, found, strict=True) for pair in zip(*tags, strict=True)]
        return span_scores(gold, found) | {
            "loss": float(lost) / len(data),
            "accuracy": sum(ours == theirs for ours, theirs in pairs) / len(pairs),
            "broken": sum(columns.fault(tags) is not None for tags in found) / len(found),
        }

    def _scored(self, data: Data) -> Iterator[tuple[Tensor, Batch, Tensor]]:
        """Batches of all sentences, from short to long: indices, sentences and the scores of their tags."""
        for indices in text.in_order(data.lengths, self.config.batch_size):
            batch = data.batch(indices.to(self.device))
            yield indices, batch, self.model(batch)

    def _names(self, tags: Tensor, batch: Batch) -> list[list[str]]:
        """The labels of numbers (B, N), without padding."""
        rows = zip(tags.tolist(), batch.lengths.tolist(), strict=True)
        return [[self.labels[tag] for tag in row[:length]] for row, length in rows]

    def drawings(self) -> list[dict[str, Any]]:
        """Of sentences that are not too long, those in which most words keep several tags."""
        data = self.data["valid"]
        drawn = []
        for indices, batch, scores in self._scored(data):
            weights = self.model.weights(scores, batch)
            found = self._names(self.model.best(scores, batch), batch)
            for index, tags, rows in zip(indices.tolist(), found, weights.tolist(), strict=True):
                if len(tags) <= LONGEST_DRAWN:
                    drawn.append(self._drawing(data.sentences[index], tags, rows[: len(tags)]))
        drawn.sort(key=lambda entry: -entry[0])
        return [drawing for _, drawing in drawn[:DRAWN]]

    def _drawing(
        self, sentence: columns.Sentence, found: list[str], rows: list[list[float]]
    ) -> tuple[int, dict[str, Any]]:
        """How many words keep several tags, and the drawing."""
        kept = [{self.labels[tag]: w for tag, w in enumerate(row) if w >= SEEN} for row in rows]
        several = sum(len(tags) > 1 for tags in kept)
        return several, {
            "kind": "sequence",
            "title": " ".join(sentence.words),
            "tokens": list(sentence.words),
            "tags": {"gold": list(sentence.tags), "best": found, "weights": kept},
            "note": f"{several} of {len(kept)} words keep several tags",
        }


def vocabularies(splits: dict[str, list[columns.Sentence]], vectors: str) -> tuple[text.Vocabulary, text.Vocabulary]:
    """Words that have a vector of their own, and all spellings.

    A word has one if it is in the training data or in the file of vectors.
    """
    train = text.Vocabulary.of(map(normal, sentence.words) for sentence in splits["train"])
    every = [sentence.words for split in splits.values() for sentence in split]
    if vectors:
        others = {normal(word) for words in every for word in words} - set(train.words)
        train = text.Vocabulary([*train.words[2:], *sorted(text.listed(vectors, others))])
    return train, text.Vocabulary.of(every)


def span_scores(gold: list[list[str]], found: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 of spans, by seqeval."""
    try:
        from seqeval.metrics.v1 import precision_recall_fscore_support
        from seqeval.scheme import IOBES
    except ImportError:
        raise RunError("Counting spans needs the package seqeval. Try pip install structmax[recipes].") from None
    precision, recall, f1, _ = precision_recall_fscore_support(
        gold, found, average="micro", scheme=IOBES, zero_division=0
    )
    return {"f1": float(f1), "precision": float(precision), "recall": float(recall)}
