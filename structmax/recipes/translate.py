"""Translation with attention: do sparse weights say which word stands for which, and at what price?

An LSTM in both directions reads a sentence, another writes its translation and attends to the words it needs. The
weights of the attention come from any of seven mappings; two of them bound what a word may receive in all, so that it
is not translated twice. The output layer may be sparse too. Without files, a made-up language is translated, in which
it is known which word stands for which: `aligned`, `on_links` and `link_f1` say how much of that the attention found.

Reference: Luong, Pham & Manning 2015, Effective approaches to attention-based neural machine translation; Niculae &
Blondel 2017, A regularized framework for sparse and structured neural attention; Malaviya, Ferreira & Martins 2018,
Sparse and constrained attention for neural machine translation; Peters, Niculae & Martins 2019, Sparse
sequence-to-sequence models.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data import made_up_language, parallel, text
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.models.translator import Attention, Mapping, Translator, at_once, step_by_step
from structmax.training import RunError, Settings, Task, option

# of the generated data
HELD_OUT = 500
IGNORED = -100
# From scores to probabilities of words, and the loss that belongs to it.
OUTPUTS: dict[str, tuple[Any, Any]] = {
    "softmax": (structmax.softmax, nn.functional.cross_entropy),
    "entmax15": (structmax.entmax15, structmax.entmax15_loss),
    "sparsemax": (structmax.sparsemax, structmax.sparsemax_loss),
}


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A translation from one language into another."""

    least = Settings.least | {
        "size": 2,
        "dropout": 0,
        "penalty": 0,
        "fertility": 0,
        "exhaustion": 0,
        "beam": 1,
        "longest": 1,
        "frequency": 1,
        "train_size": 1,
    }
    most = Settings.most | {"dropout": 1}
    attention: Literal["softmax", "sparsemax", "entmax15", "fusedmax", "oscarmax", "csparsemax", "csoftmax"] = option(
        "sparsemax", "from scores of the source's words to their weights"
    )
    output: Literal["softmax", "entmax15", "sparsemax"] = option(
        "softmax", "from scores of words to the probabilities of the next one, with the loss that belongs to it"
    )
    size: int = option(128, "size of the vectors of words and states")
    dropout: float = option(0.1, "share of features that training leaves out")
    penalty: float = option(0.1, "for fusedmax and oscarmax: strength of the penalty that makes weights equal")
    fertility: float = option(2.0, "for csparsemax and csoftmax: the attention that a word may receive in all")
    exhaustion: float = option(
        0.2, "for csparsemax and csoftmax: how much a word's score grows with the attention it may still receive"
    )
    beam: int = option(1, "number of translations the search keeps of each sentence; 1 takes the best word each time")
    longest: int = option(80, "largest number of words in a sentence to train on, and in a translation that is found")
    frequency: int = option(2, "words that are rarer in the training data are unknown")
    lower_case: bool = option(False, "read capitals as small letters, and judge without them")
    train_size: int = option(6000, "number of sentences to generate for training, if no files are given")
    train_file: str = option(
        "",
        "sentences to train on: a file with a sentence, a tab and its translation in each line, or train.de,train.en",
    )
    valid_file: str = option("", "sentences that choose the best checkpoint, likewise")
    test_file: str = option("", "sentences to test on, likewise")
    epochs: int = option(6, "passes over the training data")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    clip: float = option(1.0, "largest norm of the gradient; 0 for no limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        text.files(self)


def attention(config: Config) -> tuple[Attention, float]:
    """The one of that name, and how much the first scores of a sentence's words differ.

    They differ by about half of what would choose one word alone. If they were all alike, learning would take long to
    begin; if one word were chosen, sparse weights would have no gradient to leave it.
    """

    def free(mapping: Mapping) -> Attention:
        return functools.partial(at_once, mapping)

    def bounded(mapping: Mapping) -> Attention:
        return functools.partial(step_by_step, mapping, config.exhaustion)

    known = {
        "softmax": (free(structmax.softmax), 2.0),
        "csoftmax": (bounded(structmax.csoftmax), 2.0),
        "entmax15": (free(structmax.entmax15), 1.0),
        "sparsemax": (free(structmax.sparsemax), 0.5),
        "csparsemax": (bounded(structmax.csparsemax), 0.5),
        "fusedmax": (free(functools.partial(structmax.fusedmax, lam=config.penalty)), 0.5),
        "oscarmax": (free(functools.partial(structmax.oscarmax, lam=config.penalty)), 0.5),
    }
    return known[config.attention]


def splits(config: Config) -> dict[str, list[parallel.Pair]]:
    """Pairs to train on, to validate with and to test: those of the files, or generated ones."""
    files = text.files(config)
    if not files:
        valid = made_up_language.generate(HELD_OUT, VALID_SEED)
        test = made_up_language.generate(HELD_OUT, TEST_SEED, without=valid)
        train = made_up_language.generate(config.train_size, training_seed(config), without=[*valid, *test])
        return {"train": train, "valid": valid, "test": test}
    found = {name: parallel.read(file, config.lower_case) for name, file in files.items()}
    short = [pair for pair in found["train"] if max(len(pair.source), len(pair.target)) <= config.longest]
    if not short:
        raise RunError(f"{config.train_file} should have sentences of at most {config.longest} words, but has none.")
    return found | {"train": short}


class Recipe(Task[Config]):
    model: Translator
    best = "bleu"
    meanings = {
        "loss": "what training minimises: that of a reference's words, on average",
        "accuracy": "share of a reference's words, its end included, that have the highest score after those before "
        "them, on average over sentences",
        "bleu": "of the translations that are found, their words joined by simple rules, by sacrebleu with its own "
        "tokens (13a)",
        "attended": "share of the source's words that have any attention, on average over the words of the reference",
        "aligned": "of the target words that stand for source words, those that attend to one of these most",
        "on_links": "share of their attention that is on the words they stand for",
        "link_f1": "F1 of the words with any attention against those they stand for",
    }
    higher = ("accuracy", "aligned", "on_links", "link_f1")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        # a missing package is missed now, not after an epoch
        self.bleu = parallel.bleu(config.lower_case)
        self.probabilities, self.loss = OUTPUTS[config.output]
        pairs = splits(config)
        self.source = parallel.vocabulary([pair.source for pair in pairs["train"]], config.frequency)
        self.target = parallel.vocabulary([pair.target for pair in pairs["train"]], config.frequency)
        corpora = {name: parallel.Corpus(each, self.source, self.target, device) for name, each in pairs.items()}
        self.train, self.held_out = corpora.pop("train"), corpora
        sizes = len(self.source), len(self.target), config.size
        weights = *attention(config), config.fertility
        self.model = Translator(*sizes, *weights, config.dropout).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return text.by_length(self.train.target.lengths, self.config.batch_size, self.shuffling(epoch))

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = self.train.batch(indices.to(self.device))
        losses, right, _ = self.judged(batch)
        yield losses.mean(), {"accuracy": right.mean()}

    def judged(self, batch: parallel.Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss of the words of each reference, share of them that is right, (B,), and weights (B, T, S)."""
        scores, weights, _ = self.model(batch.before, *self.model.encode(batch.source, batch.source_lengths))
        expected = batch.target.masked_fill(~batch.inside, IGNORED)
        losses = self.loss(scores.flatten(0, 1), expected.flatten(), ignore_index=IGNORED, reduction="none")
        right = scores.detach().argmax(-1) == expected
        means = (each.sum(-1) / batch.target_lengths for each in (losses.float().view_as(right), right))
        return *means, weights

    def evaluate(self, split: str) -> dict[str, float]:
        data = self.held_out[split]
        translations = [""] * len(data)
        # what was found, and what there was to find
        counts: dict[str, Tensor] = {}
        for indices in text.in_order(data.source.lengths, self.config.batch_size):
            batch = data.batch(indices.to(self.device))
            losses, right, weights = self.judged(batch)
            many = torch.tensor(len(indices), device=self.device)
            found = {"loss": (losses.sum(), many), "accuracy": (right.sum(), many)} | agreement(weights, batch)
            counts = {name: counts.get(name, 0) + torch.stack(pair) for name, pair in found.items()}
            for index, translation in zip(indices.tolist(), self.translations(batch), strict=True):
                translations[index] = translation
        metrics = {name: float(found / wanted) for name, (found, wanted) in counts.items()}
        return metrics | {"bleu": self.bleu(translations, [pair.written for pair in data.pairs])}

    def translations(self, batch: parallel.Batch) -> list[str]:
        """As they are written."""
        end = self.target.index[parallel.END]
        # a model that has learnt little would not stop
        longest = min(self.config.longest, 2 * batch.source.shape[1] + 10)
        given = batch.source, batch.source_lengths
        found = self.model.translate(*given, end, longest, self.config.beam, self.probabilities)
        lengths = (found == end).cumsum(-1).eq(0).sum(-1)
        words = [row[:length] for row, length in zip(found.tolist(), lengths.tolist(), strict=True)]
        return [parallel.joined([self.target.words[word] for word in row]) for row in words]

    def drawings(self) -> list[dict[str, Any]]:
        """The attention of held-out translations, from short to long: a row for each word of the reference."""
        data = self.held_out["valid"]
        order = data.target.lengths.argsort(stable=True)
        order = order[data.target.lengths[order] <= 30]
        places = torch.linspace(0.1, 0.9, min(8, len(order)), device=order.device) * (len(order) - 1)
        indices = order[places.long()]
        if not len(indices):
            return []
        batch = data.batch(indices)
        weights = self.judged(batch)[-1].float()
        drawn = []
        for row, (index, translation) in enumerate(zip(indices.tolist(), self.translations(batch), strict=True)):
            pair = data.pairs[index]
            rows, columns = [*pair.target, parallel.END], [*pair.source, parallel.END]
            drawn.append(
                {
                    "kind": "alignment",
                    "title": parallel.joined(pair.source),
                    "rows": rows,
                    "columns": columns,
                    "weights": weights[row, : len(rows), : len(columns)].tolist(),
                    "gold": [list(link) for link in pair.links],
                    "note": f"translated as: {translation}",
                }
            )
        return drawn


def agreement(weights: Tensor, batch: parallel.Batch) -> dict[str, tuple[Tensor, Tensor]]:
    """How many words have attention, and, where links are known, how much of it is on them: found, and to be found."""
    attended = (weights > 0) & batch.inside.unsqueeze(-1)
    counts = {"attended": (attended.sum(), (batch.source_lengths * batch.target_lengths).sum())}
    if batch.gold is None:
        return counts
    gold = batch.gold
    linked = gold.any(-1)
    most = gold.gather(-1, weights.argmax(-1, keepdim=True)).sum()
    tried = (attended & linked.unsqueeze(-1)).sum() + gold.sum()
    return counts | {
        "aligned": (most, linked.sum()),
        "on_links": ((weights * gold).sum(), linked.sum()),
        "link_f1": (2 * (attended & gold).sum(), tried),
    }
