"""Natural language inference: does one sentence follow from another? Which alignment of their words helps to tell?

A classifier compares the words of a premise with those of a hypothesis, and says entailment, neutral or contradiction.
What is compared with what is an alignment that nobody shows it: each word for itself, dense (softmax) or sparse
(sparsemax), or all together: as a sequence of steps, or as a matching of words, an average of few ones (SparseMAP) or
a soft one (Sinkhorn). Generated sentences have a known alignment, and `aligned` is the share of it that is found;
`nonzero` is the share of pairs of words with any weight.

Reference: Niculae, Martins, Blondel & Cardie 2018, SparseMAP: differentiable sparse structured inference, section 5.2;
Chen et al. 2017, Enhanced LSTM for natural language inference; Parikh et al. 2016, A decomposable attention model for
natural language inference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from structmax.recipes.data import entailment, text, word_families
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.models.entailment import ALIGNMENTS, MODELS, Aligned, Decomposable, Esim
from structmax.training import RunError, Settings, Task, option

# Of every ten pairs of a training file, these are held out where there is no file for them.
TENTH = {"valid": 4, "test": 9}


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A study of one alignment."""

    least = Settings.least | {"size": 1, "dropout": 0, "longest": 4, "train_size": 1}
    most = Settings.most | {"dropout": 0.99, "longest": len(word_families.LEXICON) - 1}
    model: Literal["esim", "decomposable"] = option("esim", "classifier of pairs of sentences")
    alignment: Literal["softmax", "sparsemax", "sequential", "matching", "sinkhorn"] = option(
        "matching", "from scores of pairs of words to the weights with which they read one another"
    )
    size: int = option(64, "size of states, and of the vectors of words if no file has them")
    dropout: float = option(0.1, "share of features that training leaves out")
    longest: int = option(8, "number of words of the longest premise that is generated, if no file is given")
    train_size: int = option(6000, "number of pairs to generate for training, if no file is given")
    train_file: str = option("", "file of pairs to train on, in the format of SICK or SNLI")
    valid_file: str = option("", "file of pairs to choose the best checkpoint by; without it, a tenth of train_file")
    test_file: str = option("", "file of pairs to test on; without it, another tenth of train_file")
    vectors: str = option("", "file of word vectors: lines of a word and numbers")
    epochs: int = option(8, "passes over the training data")
    batch_size: int = option(32, "number of pairs in a step, over all processes together")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    clip: float = option(10.0, "largest norm of the gradient; 0 for no limit")


class Recipe(Task[Config]):
    model: Esim | Decomposable
    meanings = {
        "loss": "cross-entropy of the label, in nats",
        "accuracy": "share of pairs with the right label",
        "nonzero": "of the pairs of a word of the premise and one of the hypothesis, those with a weight above 0",
        "aligned": "of the words with a known counterpart, those that read it more than any other word",
    }
    higher = ("aligned",)

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        pairs = from_files(config) if config.train_file else generated(config)
        # With vectors from a file, words of held-out pairs have a meaning even if training does not have them.
        seen = [pair for split in (pairs if config.vectors else ["train"]) for pair in pairs[split]]
        self.vocabulary = text.Vocabulary.of(words for pair in seen for words in (pair.premise, pair.hypothesis))
        self.data = {split: entailment.Pairs(pairs[split], self.vocabulary, device) for split in pairs}
        words = text.vectors(config.vectors, self.vocabulary) if config.vectors else len(self.vocabulary)
        alignment = ALIGNMENTS[config.alignment]()
        self.model = MODELS[config.model](words, config.size, alignment, config.dropout).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return text.by_length(self.data["train"].lengths, self.config.batch_size, self.shuffling(epoch))

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = self.data["train"].batch(indices.to(self.device))
        logits = self.model(batch.sentences, batch.lengths).logits
        loss = nn.functional.cross_entropy(logits, batch.labels)
        right = (logits.detach().argmax(-1) == batch.labels).float().mean()
        yield loss, {"loss": loss.detach(), "accuracy": right}

    def evaluate(self, split: str) -> dict[str, float]:
        """How many labels are right, how sparse the alignments are, and how much of the known ones they find."""
        data = self.data[split]
        lost, right = torch.zeros(2, device=self.device).unbind()
        # of each measure of alignments, what was found and what there was
        counted = {"nonzero": torch.zeros(2, device=self.device), "aligned": torch.zeros(2, device=self.device)}
        for indices in text.in_order(data.lengths, self.config.batch_size):
            batch = data.batch(indices.to(self.device))
            logits, aligned = self.model(batch.sentences, batch.lengths)
            lost = lost + nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
            right = right + (logits.argmax(-1) == batch.labels).sum()
            counted["nonzero"] += nonzero(aligned, batch)
            counted["aligned"] += found(aligned, batch)
        metrics = {"loss": float(lost) / len(data), "accuracy": float(right) / len(data)}
        return metrics | {name: float(some / all_) for name, (some, all_) in counted.items() if all_}

    def drawings(self) -> list[dict[str, Any]]:
        """What words of held-out hypotheses read in their premises; known counterparts are framed."""
        data = self.data["valid"]
        order = data.lengths.argsort(stable=True)
        places = torch.linspace(0.3, 1.0, 8, device=order.device) * (len(order) - 1)
        indices = order[places.long()]
        batch = data.batch(indices)
        logits, aligned = self.model(batch.sentences, batch.lengths)
        drawn = []
        for row, pair in enumerate(data.pairs[index] for index in indices.tolist()):
            answer, label = entailment.LABELS[int(logits[row].argmax())], entailment.LABELS[pair.label]
            weights = aligned.of_hypothesis[row, : len(pair.premise), : len(pair.hypothesis)]
            drawn.append(
                {
                    "kind": "alignment",
                    "title": f"{' '.join(pair.premise)} / {' '.join(pair.hypothesis)}",
                    "rows": list(pair.premise),
                    "columns": list(pair.hypothesis),
                    "weights": weights.float().tolist(),
                    "gold": [[i, j] for j, i in enumerate(pair.origins) if i >= 0],
                    "note": f"answered {answer}, " + ("right" if answer == label else f"should be {label}"),
                }
            )
        return drawn


def nonzero(aligned: Aligned, batch: entailment.Batch) -> Tensor:
    """The number of pairs of words with any weight, over both directions, and of all pairs: (2,)."""
    used = sum((weights > 0).sum() for weights in aligned)
    return torch.stack([torch.as_tensor(used), len(aligned) * batch.lengths.view(2, -1).prod(0).sum()])


def found(aligned: Aligned, batch: entailment.Batch) -> Tensor:
    """The number of words that read their known counterpart most, over both directions, and of all that have one: (2,).

    A word that reads nothing has not found it.
    """
    of_premise, of_hypothesis = aligned
    most, most_too = _most(of_premise, -1), _most(of_hypothesis, -2)
    return torch.stack([(most & batch.gold).sum() + (most_too & batch.gold).sum(), len(aligned) * batch.gold.sum()])


def _most(weights: Tensor, dim: int) -> Tensor:
    """Where a weight is above all others along a dimension."""
    top = (weights == weights.amax(dim, keepdim=True)) & (weights > 0)
    return top & (top.sum(dim, keepdim=True) == 1)


def generated(config: Config) -> dict[str, list[entailment.Pair]]:
    """Pairs of each split, made up."""
    if config.valid_file or config.test_file:
        raise RunError("`valid_file` and `test_file` need a `train_file`, but there is none. Try --train-file.")
    seed = training_seed(config)
    sizes = {"train": (config.train_size, seed), "valid": (1000, VALID_SEED), "test": (2000, TEST_SEED)}
    return {split: word_families.generate(size, seed, config.longest) for split, (size, seed) in sizes.items()}


def from_files(config: Config) -> dict[str, list[entailment.Pair]]:
    """Pairs of each split from files; where one is missing, those of a tenth of the premises to train on."""
    given = {"valid": config.valid_file, "test": config.test_file}
    pairs = {split: entailment.read(path) for split, path in given.items() if path}
    train = entailment.read(config.train_file)
    tenths = {split: place for split, place in TENTH.items() if not given[split]}
    # premises that are held out are in no pair to train on
    order = {premise: place for place, premise in enumerate(dict.fromkeys(pair.premise for pair in train))}
    if tenths and len(order) < 10:
        raise RunError(
            f"`train_file` should have at least 10 premises, a tenth of which can be held out, but {config.train_file} "
            f"has {len(order)}. Try --valid-file and --test-file."
        )
    for split, place in tenths.items():
        pairs[split] = [pair for pair in train if order[pair.premise] % 10 == place]
    kept = [pair for pair in train if order[pair.premise] % 10 not in tenths.values()]
    return {"train": kept} | pairs
