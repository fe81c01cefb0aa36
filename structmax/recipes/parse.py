"""Dependency parsing: which loss trains the best parser, and how many trees does SparseMAP leave a sentence?

A BiLSTM reads words, their characters and parts of speech; a biaffine form scores all arcs. The losses differ in what
they compare the right tree with: the best one (perceptron, svm), all of them (crf), or a few (sparsemap). `support` is
the number of trees to which SparseMAP gives a probability above 0: it falls as the parser becomes sure, until most
sentences have one tree, and those that remain ambiguous have a few.

Reference: Niculae, Martins, Blondel & Cardie 2018, SparseMAP: differentiable sparse structured inference; Dozat &
Manning 2017, Deep biaffine attention for neural dependency parsing; Mensch & Blondel 2018, Differentiable dynamic
programming for structured prediction and attention.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data import conllu, grammar, text, treebank
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.models.parser import Parser
from structmax.recipes.models.words import Words
from structmax.training import Settings, Task, option

Loss = Literal["crf", "perceptron", "svm", "sparsemap", "margin_sparsemap", "smoothed"]
# how many drawings there are of either kind, and of how many words a sentence may be
DRAWN, LONGEST_DRAWN = 5, 20


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A parser trained by one loss."""

    least = (
        Settings.least
        | dict.fromkeys(("word_size", "size", "hidden_size", "layers", "train_size", "alpha"), 1)
        | dict.fromkeys(("character_size", "tag_size", "dropout", "word_dropout"), 0)
        | {"temperature": 1e-3}
    )
    most = Settings.most | {"dropout": 0.9, "word_dropout": 0.9}
    loss: Loss = option("sparsemap", "what the right tree is compared with")
    tree: Literal["projective", "spanning"] = option("spanning", "trees without crossing arcs, or all trees")
    single_root: bool = option(True, "whether one word hangs on the root, or one or more")
    temperature: float = option(1.0, "of sparsemap and smoothed: more trees as it grows")
    alpha: float = option(2.0, "of smoothed: every maximum is an entmax; 2 is sparse, 1 is crf")
    train_file: str = option("", "CoNLL-U file to train on; without one, sentences are generated")
    valid_file: str = option("", "CoNLL-U file that chooses the best checkpoint")
    test_file: str = option("", "CoNLL-U file to test on")
    train_size: int = option(500, "number of sentences to generate for training, if no file is given")
    word_size: int = option(100, "size of the vectors of words")
    tag_size: int = option(25, "size of the vectors of parts of speech; 0 for none")
    character_size: int = option(50, "size of the vectors of spellings, an even number; 0 for none")
    size: int = option(125, "size of the states of the LSTM in each direction")
    layers: int = option(2, "number of layers of the LSTM")
    hidden_size: int = option(100, "size of the vectors of heads and of dependents")
    dropout: float = option(0.0, "share of features that training leaves out; more leaves more trees")
    word_dropout: float = option(0.25, "share of words that training takes for unknown ones")
    epochs: int = option(20, "passes over the training data")
    batch_size: int = option(16, "number of instances in a step, over all processes together")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    schedule: Literal["constant", "cosine", "linear"] = option(
        "linear", "how the learning rate changes after the warm-up, until the last epoch or the time limit"
    )
    clip: float = option(5.0, "largest norm of the gradient; 0 for no limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        text.files(self)
        if self.character_size % 2:
            raise ValueError(f"`character_size` should be even, but is {self.character_size}.")
        if self.loss == "smoothed" and self.tree == "spanning":
            raise ValueError(
                "`loss` smoothed should have `tree` projective, whose recursion it smooths, but `tree` is spanning: "
                "spanning trees have no such recursion. Try --tree projective, or --loss sparsemap."
            )


class Model(Parser):
    """The parser of these sizes."""

    def __init__(self, config: Config, known: treebank.Vocabularies) -> None:
        words = Words(
            len(known.words),
            config.word_size,
            config.size,
            characters=known.spellings.characters()[1] if config.character_size else None,
            character_size=config.character_size,
            tags=len(known.tags) if config.tag_size else 0,
            tag_size=config.tag_size,
            layers=config.layers,
            dropout=config.dropout,
            word_dropout=config.word_dropout,
        )
        super().__init__(words, config.hidden_size, len(known.labels), dropout=config.dropout)

    def parsed(self, batch: treebank.Batch) -> tuple[Tensor, Tensor]:
        """Features of the words, and scores of all arcs."""
        return self(batch.words, batch.lengths, batch.spellings, batch.tags)


class Recipe(Task[Config]):
    model: Model
    best = "uas"
    shown = ("loss", "support")
    meanings = {
        "loss": "what training minimises: that of the arcs and that of the labels, of a sentence",
        "arc_loss": "of a sentence's tree, by the loss that is compared",
        "label_loss": "cross-entropy of the labels of a sentence, in nats",
        "uas": "unlabelled attachment score: words with the right head",
        "las": "labelled attachment score: words with the right head and label",
        "uas_words": "unlabelled attachment score without punctuation",
        "las_words": "labelled attachment score without punctuation",
        "support": "trees of a sentence to which SparseMAP gives a probability above 0, on average",
        "one_tree": "sentences to which SparseMAP gives one tree alone",
        "sentences_per_second": "that are parsed in evaluation: scores, best tree and labels",
    }
    higher = ("las", "uas_words", "las_words", "sentences_per_second")
    lower = ("loss", "arc_loss", "label_loss")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        if files := text.files(config):
            train, valid, test = map(conllu.read, files.values())
        else:
            valid = grammar.generate(300, VALID_SEED)
            test = grammar.generate(1000, TEST_SEED, without=valid)
            train = grammar.generate(config.train_size, training_seed(config), without=[*valid, *test])
        self.known = treebank.Vocabularies.of(train, [*valid, *test])
        self.train = treebank.Treebank(train, self.known, device)
        self.held_out = {
            "valid": treebank.Treebank(valid, self.known, device),
            "test": treebank.Treebank(test, self.known, device),
        }
        self.punctuation = self.known.tags.index.get("PUNCT", -1)
        self.model = Model(config, self.known).to(device)

    def trees(self, lengths: Tensor) -> structmax.ProjectiveTree | structmax.SpanningTree:
        kind = structmax.ProjectiveTree if self.config.tree == "projective" else structmax.SpanningTree
        return kind(lengths, single_root=self.config.single_root)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return text.by_length(self.train.lengths, self.config.batch_size, self.shuffling(epoch))

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = self.train.batch(indices.to(self.device))
        words, arcs = self.model.parsed(batch)
        trees = self.trees(batch.lengths)
        # Of these trees, the one with most of the right arcs: the right one, unless it has crossing arcs or more roots.
        target = structmax.argmax(trees.encode(batch.heads), trees)
        loss, metrics = arc_loss(self.config, arcs, trees, target)
        labels = self.model.labels(words, batch.heads).flatten(0, 1)
        named = nn.functional.cross_entropy(
            labels, batch.labels.flatten(), ignore_index=text.Vocabulary.PADDING, reduction="sum"
        ) / len(batch)
        yield loss + named, {"arc_loss": loss.detach(), "label_loss": named.detach(), **metrics}

    def evaluate(self, split: str) -> dict[str, float]:
        """How many heads and labels are right, and how many trees SparseMAP finds."""
        data = self.held_out[split]
        # of all words and of those that are no punctuation: how many, with the right head, and with the right label too
        counts = torch.zeros(2, 3, device=self.device, dtype=torch.long)
        scored = []
        began = _clock()
        for batch in self._in_order(data):
            words, arcs = self.model.parsed(batch)
            trees = self.trees(batch.lengths)
            heads = trees.decode(structmax.argmax(arcs, trees))
            labels = self.model.labels(words, heads).argmax(-1)
            right = batch.inside & (heads == batch.heads)
            measured = torch.stack([batch.inside, right, right & (labels == batch.labels)])
            counts += torch.stack([measured, measured & (batch.tags != self.punctuation)]).sum((-1, -2))
            scored.append((arcs, batch.lengths))
        (count, uas, las), (others, uas_words, las_words) = counts.tolist()
        speed = len(data) / (_clock() - began)
        support = torch.cat([self._sparsemap(arcs, lengths).counts for arcs, lengths in scored]).float()
        return {
            "uas": uas / count,
            "las": las / count,
            "uas_words": uas_words / max(others, 1),
            "las_words": las_words / max(others, 1),
            "support": support.mean().item(),
            "one_tree": (support == 1).float().mean().item(),
            "sentences_per_second": speed,
        }

    def drawings(self) -> list[dict[str, Any]]:
        """Best trees of held-out sentences, from short to long; then several, where SparseMAP is most undecided."""
        data = self.held_out["valid"]
        fitting = (data.lengths <= LONGEST_DRAWN).nonzero().squeeze(-1)
        order = fitting[data.lengths[fitting].argsort(stable=True)]
        if not len(order):
            return []
        places = torch.linspace(0.2, 1.0, min(DRAWN, len(order)), device=order.device) * (len(order) - 1)
        doubts = torch.cat([self._doubts(data.batch(indices)) for indices in order.split(self.config.batch_size)])
        doubt, place = doubts.topk(min(DRAWN, len(order)))
        return [self._drawn(data, int(index), "best") for index in order[places.long()]] + [
            self._drawn(data, int(index), "sparsemap") for index in order[place[doubt > 0]]
        ]

    def _doubts(self, batch: treebank.Batch) -> Tensor:
        """The probability of the second tree of each sentence, (B,); 0 if there is but one."""
        probabilities = self._sparsemap(self.model.parsed(batch)[1], batch.lengths).probabilities
        return probabilities[1] if len(probabilities) > 1 else torch.zeros_like(probabilities[0])

    def _drawn(self, data: treebank.Treebank, index: int, name: Literal["best", "sparsemap"]) -> dict[str, Any]:
        """A sentence with its right tree, and its best one or SparseMAP's, whose arcs have weights."""
        sentence, batch = data.sentences[index], data.batch(torch.tensor([index], device=self.device))
        words, arcs = self.model.parsed(batch)
        trees = self.trees(batch.lengths)
        found = self._sparsemap(arcs, batch.lengths)
        parts = structmax.argmax(arcs, trees).unsqueeze(0) if name == "best" else found.parts
        # (K, 1, N): of each tree
        heads = trees.decode(parts)
        labels = torch.stack([self.model.labels(words, tree).argmax(-1) for tree in heads])
        marginals = found.marginals[0].tolist()
        drawn: dict[tuple[int, int], list[Any]] = {}
        for tree, named in zip(heads[:, 0].tolist(), labels[:, 0].tolist(), strict=True):
            for word, (head, label) in enumerate(zip(tree, named, strict=True), 1):
                weight = [] if name == "best" else [marginals[head][word]]
                drawn[head, word] = [head, word, self.known.labels.words[label], *weight]
        gold = [
            [head, word, label]
            for word, (head, label) in enumerate(zip(sentence.heads, sentence.labels, strict=True), 1)
        ]
        right = int((heads[0] == batch.heads).sum())
        shares = ", ".join(f"{p:.2f}" for p in found.probabilities[:, 0].tolist())
        return {
            "kind": "arcs",
            "title": " ".join(sentence.words),
            "tokens": list(sentence.words),
            "arcs": {"gold": gold, name: list(drawn.values())},
            "note": f"{right} of {len(sentence)} heads are right"
            if name == "best"
            else f"trees with probabilities {shares}",
        }

    def _in_order(self, data: treebank.Treebank) -> Iterator[treebank.Batch]:
        """All sentences, those of a length together."""
        for indices in text.in_order(data.lengths, self.config.batch_size):
            yield data.batch(indices.to(self.device))

    def _sparsemap(self, arcs: Tensor, lengths: Tensor) -> structmax.SparseMAP:
        return structmax.sparsemap(arcs, self.trees(lengths), temperature=self.config.temperature)


def arc_loss(
    config: Config, arcs: Tensor, trees: structmax.AbstractStructure, target: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean over sentences, and what else is known."""
    losses = {
        "crf": structmax.crf_loss,
        "perceptron": structmax.perceptron_loss,
        "svm": structmax.svm_loss,
    }
    if config.loss in losses:
        return losses[config.loss](arcs, trees, target), {}
    if config.loss == "smoothed":
        omega = structmax.omega.LocalTsallis(config.alpha, config.temperature)
        return structmax.fenchel_young(arcs, trees, target, omega), {}
    # The same as `sparsemap_loss` and `margin_sparsemap_loss`, which do not say how many trees they met.
    scores = arcs + 0.5 - target if config.loss == "margin_sparsemap" else arcs
    # A gradient needs no more digits: at first, when there are hundreds of trees, this takes a third of the time.
    found = structmax.sparsemap(scores, trees, temperature=config.temperature, start=target.unsqueeze(0), tol=1e-3)
    losses_of_all = found.value + ((config.temperature / 2 - scores) * target).sum((-1, -2))
    return losses_of_all.mean(), {"support": found.counts.float().mean()}


def _clock() -> float:
    """In seconds, without those in which kernels are compiled or loaded."""
    return time.perf_counter() - structmax.loading_seconds()
