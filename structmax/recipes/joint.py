"""A parser inside a network: trees that are never the goal, trained through by the task that uses them.

A dependency parser is taught by a treebank for the first epochs. Then a task uses its trees: each word is seen next to
its head. The task is to find a semantic graph, whose arcs say who does what, or to tell good from bad sentences. In a
`pipeline` the parser learns from the treebank alone; the other methods pass the gradient of the task on to it, through
the best tree or through an average of trees. `uas` shows how far its trees move from the treebank's.

Reference: Peng, Thomson & Smith 2018, Backpropagating through structured argmax using a SPIGOT,
https://arxiv.org/abs/1805.04658.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import structmax
from structmax import estimators, omega
from structmax.recipes.data import conllu, scenes, semantic_graphs, sentiment, text, treebank
from structmax.recipes.data.conllu import Sentence
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.data.semantic_graphs import Batch, Corpus
from structmax.recipes.models.parser import Parser
from structmax.recipes.models.semantics import Classifier, EndTask, GraphParser, HeadWords
from structmax.recipes.models.words import Words
from structmax.training import DataError, RunError, Settings, Task, option

Method = Literal["pipeline", "straight_through", "structured_attention", "spigot", "sparsemap"]
# number of generated sentences that no run trains on, for each of two splits
HELD_OUT = 500


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A run of one method; the defaults take about a minute."""

    least = Settings.least | {
        "pretrain": 0,
        "step": 1e-6,
        "parser_rate": 0,
        "size": 1,
        "layers": 1,
        "word_size": 1,
        "hidden": 1,
        "dropout": 0,
        "word_dropout": 0,
        "most_heads": 1,
        "train_size": 1,
        "tree_size": 1,
    }
    most = Settings.most | {"dropout": 0.99, "word_dropout": 1, "parser_rate": 1}
    task: Literal["semantic", "sentiment"] = option("semantic", "what is predicted: a graph of meaning, or a class")
    method: Method = option("spigot", "what the task sees of the trees, and how the parser learns from it")
    pretrain: int = option(4, "number of epochs at the start in which the parser alone is trained, on the treebank")
    rehearse: bool = option(True, "go on with the treebank afterwards, a batch of it for each one of the task")
    tree_loss: Literal["crf", "margin"] = option("crf", "loss of the parser on the treebank's trees")
    projection: Literal["polytope", "simplices"] = option(
        "polytope", "for spigot: onto mixtures of trees, or of choices of a head for each word"
    )
    step: float = option(1.0, "for spigot: size of the step against the task's gradient")
    parser_rate: float = option(
        1.0, "share of the learning rate that the parser keeps after `pretrain`: a low one guards what it has learnt"
    )
    size: int = option(64, "size of the states of both LSTMs, in each direction")
    layers: int = option(1, "number of layers of both LSTMs")
    word_size: int = option(64, "size of the vectors of words, if no file is given")
    vectors: str = option("", "file of word vectors to begin with: lines of a word and numbers")
    hidden: int = option(64, "size of the layers that score arcs")
    dropout: float = option(0.1, "share of features that training leaves out")
    word_dropout: float = option(0.1, "share of words that training takes for unknown ones")
    most_heads: int = option(4, "largest number of heads of a word in a graph; in training further ones are left out")
    train_size: int = option(500, "number of sentences to generate for the task, if no file is given")
    tree_size: int = option(2000, "number of trees to generate for the treebank, if no file is given")
    train_file: str = option("", "file to train the task on: CoNLL-U with enhanced graphs, or sentences with classes")
    valid_file: str = option("", "file to choose the best checkpoint on, in the same format")
    test_file: str = option("", "file to test on, in the same format")
    tree_file: str = option("", "CoNLL-U file of trees for the parser; by default those of the task's sentences")
    epochs: int = option(14, "passes over the training data, those of the parser included")
    batch_size: int = option(32, "number of instances in a step, over all processes together")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    clip: float = option(5.0, "largest norm of the gradient; 0 for no limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrain >= self.epochs:
            raise ValueError(
                f"`pretrain` should be less than `epochs`, {self.epochs}, but is {self.pretrain}: the task would not "
                "be trained. Try more epochs."
            )
        files = text.files(self)
        if self.tree_file and not files:
            raise ValueError("`train_file` should be given with `tree_file`, but is empty.")


class Model(nn.Module):
    """A parser, and a task that reads words next to their heads. They share no parameters."""

    def __init__(self, config: Config, vocabularies: treebank.Vocabularies, outputs: int) -> None:
        super().__init__()
        known = text.vectors(config.vectors, vocabularies.words) if config.vectors else len(vocabularies.words)
        # sentences with classes come without tags
        self.tags = len(vocabularies.tags) if config.task == "semantic" else 0

        def reader() -> Words:
            return Words(
                known,
                config.word_size,
                config.size,
                tags=self.tags,
                layers=config.layers,
                dropout=config.dropout,
                word_dropout=config.word_dropout,
            )

        self.parser = Parser(reader(), config.hidden, dropout=config.dropout)
        self.reader = reader()
        self.head_words = HeadWords(self.reader.output_size)
        features, hidden, dropout = self.head_words.output_size, config.hidden, config.dropout
        self.end: EndTask = (
            GraphParser(features, hidden, outputs, config.most_heads, dropout)
            if config.task == "semantic"
            else Classifier(features, hidden, outputs, dropout)
        )

    def forward(self, batch: treebank.Batch) -> Tensor:
        """Scores of the parser's arcs, (B, N + 1, N + 1)."""
        return self.parser(batch.words, batch.lengths, tags=batch.tags if self.tags else None)[1].float()

    def features(self, batch: treebank.Batch, trees: Tensor) -> Tensor:
        """Words next to their heads, (B, N, D)."""
        words = self.reader(batch.words, batch.lengths, tags=batch.tags if self.tags else None)
        return self.head_words(words, trees)


class Recipe(Task[Config]):
    model: Model
    best = "score"
    shown = ("loss",)
    meanings = {
        "loss": "what training minimises, on the treebank and on the task",
        "tree_loss": "of the parser, on the trees of the treebank",
        "task_loss": "of the task, on its own sentences",
        "score": "of semantic: F1 of the graph's labelled arcs; of sentiment: accuracy",
        "unlabelled": "F1 of the graph's arcs, whatever their labels",
        "beyond": "F1 of the graph's labelled arcs without those of the gold tree, whose heads are also in the tree",
        "uas": "share of words that have the treebank's head in the parser's best tree",
    }
    higher = ("unlabelled", "beyond")
    lower = ("loss", "tree_loss", "task_loss")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        data = read(config) if config.train_file else generated(config)
        known = treebank.Vocabularies.of([*data.splits["train"].sentences, *data.trees], least=1)
        labels = semantic_graphs.labels(data.splits["train"].sentences)

        def corpus(name: str, most_heads: int | None = None) -> Corpus:
            split = data.splits[name]
            graphs = semantic_graphs.Graphs(split.sentences, labels, device, most_heads)
            return Corpus(split.sentences, graphs, split.classes, known, device)

        self.labels = labels.words
        self.train = corpus("train", config.most_heads)
        self.trees = treebank.Treebank(data.trees, known, device)
        self.held_out = {name: corpus(name) for name in ("valid", "test")}
        # sentences whose trees are compared with the parser's
        self.parsed = {name: treebank.Treebank(trees, known, device) for name, trees in data.parsed.items()}
        self.estimator = estimator(config)
        outputs = len(labels) if config.task == "semantic" else 1 + max(data.splits["train"].classes)
        self.model = Model(config, known, outputs).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        """Sentences of the treebank are numbered after those of the task."""
        config = self.config
        generator = self.shuffling(epoch)
        trees = [len(self.train) + batch for batch in text.by_length(self.trees.lengths, config.batch_size, generator)]
        if epoch < config.pretrain:
            return trees
        batches = text.by_length(self.train.lengths, config.batch_size, generator)
        if config.rehearse:
            turns = [trees[k % len(trees)] for k in range(len(batches))]
            batches = [batch for pair in zip(batches, turns, strict=True) for batch in pair]
        return batches

    def optimiser(self) -> torch.optim.Optimizer:
        parser = list(self.model.parser.parameters())
        rest = [p for name, p in self.model.named_parameters() if not name.startswith("parser.")]
        groups = [{"params": parser, "part": "parser"}, {"params": rest, "part": "task"}]
        return torch.optim.Adam(groups, self.config.learning_rate, fused=True)

    def rate(self, group: Mapping[str, Any], epoch: int) -> float:
        is_later = epoch >= self.config.pretrain
        return self.config.parser_rate if is_later and group["part"] == "parser" else 1.0

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        if int(indices[0]) >= len(self.train):
            loss = self._tree_loss(self.trees.batch((indices - len(self.train)).to(self.device)))
            yield loss, {"tree_loss": loss.detach()}
        else:
            batch = self.train.batch(indices.to(self.device))
            trees = self._trees(self.model(batch), batch.lengths, generator)
            loss = self.model.end.loss(self.model.features(batch, trees), trees, batch)
            yield loss, {"task_loss": loss.detach()}

    def _tree_loss(self, batch: treebank.Batch) -> Tensor:
        structure = structure_of(batch.lengths)
        target = structure.encode(batch.heads.masked_fill(~batch.inside, -1))
        loss = structmax.crf_loss if self.config.tree_loss == "crf" else structmax.svm_loss
        return loss(self.model(batch), structure, target)

    def _trees(self, scores: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What the task sees: (B, N + 1, N + 1)."""
        structure = structure_of(lengths)
        if self.estimator is None:
            return structmax.argmax(scores.detach(), structure)
        return structmax.surrogate(scores, structure, self.estimator, generator=generator)

    def evaluate(self, split: str) -> dict[str, float]:
        """How good the task's answers are, and how much the trees are like those of a treebank."""
        # of each measure what is right, what was found, and what there was to find
        agreed: dict[str, Tensor] = {}
        for batch in self._sorted(self.held_out[split]):
            scores = self.model(batch)
            counts = self.model.end.agreement(self._answers(scores, batch), batch)
            agreed = {name: agreed.get(name, 0) + counts[name] for name in counts}
        counted = {name: counts.tolist() for name, counts in agreed.items()}
        # of arcs beyond the tree there may be none
        metrics = {name: 2 * right / max(found + wanted, 1) for name, (right, found, wanted) in counted.items()}
        right, words = torch.zeros(2, dtype=torch.long, device=self.device).unbind()
        for batch in self._sorted(self.parsed[split]):
            right = right + ((best_heads(self.model(batch), batch.lengths) == batch.heads) & batch.inside).sum()
            words = words + batch.lengths.sum()
        return metrics | {"uas": float(right / words)}

    def _sorted(self, data: Any) -> Iterator[Any]:
        """Batches of sentences, from short to long."""
        for indices in text.in_order(data.lengths, self.config.batch_size):
            yield data.batch(indices.to(self.device))

    def _answers(self, scores: Tensor, batch: Batch) -> Tensor:
        trees = self._trees(scores, batch.lengths)
        return self.model.end.decode(self.model.features(batch, trees), trees, batch.lengths)

    def drawings(self) -> list[dict[str, Any]]:
        """Graphs, and the trees in between, of held-out sentences from short to long."""
        data = self.held_out["valid"]
        lengths = data.lengths.cpu()
        order = lengths.argsort(stable=True)
        order = order[lengths[order] <= 25]
        places = (torch.linspace(0.4, 1.0, 5) * (len(order) - 1)).long()
        if not len(order):
            return []
        batch = data.batch(order[places].to(self.device))
        scores = self.model(batch)
        answers, heads = self._answers(scores, batch).cpu(), best_heads(scores, batch.lengths).tolist()
        drawn = []
        for row, sentence in enumerate(data.sentences[index] for index in order[places].tolist()):
            drawing = {"kind": "arcs", "title": " ".join(sentence.words), "tokens": sentence.words}
            trees = {"treebank": tree_arcs(sentence.heads)} if sentence.heads else {}
            trees["parser"] = tree_arcs(heads[row][: len(sentence)])
            if self.config.task == "semantic":
                gold = [[head, word, label] for word, arcs in enumerate(sentence.graph, 1) for head, label in arcs]
                found = [[h, m + 1, self.labels[answers[row, h, m]]] for h, m in answers[row].nonzero().tolist()]
                drawn.append(drawing | {"arcs": {"gold": gold, "found": found}})
                note = "the tree that the graph was found with"
            else:
                answer, right = int(answers[row]), int(batch.classes[row])
                note = f"class {answer}, " + ("right" if answer == right else f"should be {right}")
            drawn.append(drawing | {"arcs": trees, "note": note})
        return drawn


def tree_arcs(heads: Sequence[int]) -> list[list[int]]:
    """From the head of each word to the word, counted from 1."""
    return [[head, word] for word, head in enumerate(heads, 1)]


def estimator(config: Config) -> estimators.AbstractSurrogate | None:
    """How the gradient goes through the trees; None where it does not."""
    projections = {"polytope": estimators.Polytope(), "simplices": estimators.Simplices(dim=-2)}
    return {
        "pipeline": None,
        "straight_through": estimators.StraightThrough(),
        "structured_attention": estimators.Relaxation(omega.Entropy()),
        "spigot": estimators.Spigot(config.step, projection=projections[config.projection]),
        "sparsemap": estimators.Relaxation(omega.SquaredNorm()),
    }[config.method]


def structure_of(lengths: Tensor) -> structmax.SpanningTree:
    return structmax.SpanningTree(lengths, single_root=True)


def best_heads(scores: Tensor, lengths: Tensor) -> Tensor:
    """Of the best tree, (B, N); −1 past the last word."""
    structure = structure_of(lengths)
    return structure.decode(structmax.argmax(scores, structure))


# ---------------------------------------------------------------- data


@dataclass(frozen=True)
class Split:
    """Sentences, and their classes, all 0 where the task has none."""

    sentences: list[Sentence]
    classes: list[int]


@dataclass(frozen=True)
class Data:
    """The task's sentences by split; those that teach the parser; held-out ones whose trees are compared with its."""

    splits: dict[str, Split]
    trees: list[Sentence]
    parsed: dict[str, list[Sentence]]


def generated(config: Config) -> Data:
    """Sentences of `scenes`, none of them twice."""
    seed = training_seed(config)
    counts = {"test": (HELD_OUT, TEST_SEED), "valid": (HELD_OUT, VALID_SEED), "train": (config.train_size, seed)}

    def is_fitting(sentence: Sentence) -> bool:
        return config.task == "semantic" or scenes.is_good(sentence) is not None

    splits: dict[str, Split] = {}
    for name, (count, own) in counts.items():
        known = [sentence for split in splits.values() for sentence in split.sentences]
        sentences = scenes.generate(count, own, known, is_fitting)
        splits[name] = Split(sentences, [int(bool(scenes.is_good(sentence))) for sentence in sentences])
    known = [sentence for name in ("test", "valid") for sentence in splits[name].sentences]
    trees = scenes.generate(config.tree_size, seed + 1, known)
    return Data(splits, trees, {name: splits[name].sentences for name in ("valid", "test")})


def read(config: Config) -> Data:
    """Of the files of the config."""
    files = text.files(config)
    return read_graphs(files, config.tree_file) if config.task == "semantic" else read_classes(files, config.tree_file)


def read_graphs(files: dict[str, str], tree_file: str) -> Data:
    splits = {}
    for name, path in files.items():
        sentences = conllu.read(path)
        if not any(any(sentence.graph) for sentence in sentences):
            raise DataError(path, None, "should have graphs in the column DEPS, but has none")
        if name == "train":
            # No other graph is a member of the set, and the loss of what is none has no lower bound.
            sentences = [sentence for sentence in sentences if any(0 in dict(arcs) for arcs in sentence.graph)]
            if not sentences:
                raise DataError(path, None, "should have graphs with a word below the root, but has none")
        splits[name] = Split(sentences, [0] * len(sentences))
    trees = conllu.read(tree_file) if tree_file else splits["train"].sentences
    return Data(splits, trees, {name: splits[name].sentences for name in ("valid", "test")})


def read_classes(files: dict[str, str], tree_file: str) -> Data:
    """Sentences with classes, and a treebank, of which every tenth tree is held out."""
    if not tree_file:
        raise RunError(
            "With --task sentiment and --train-file there should be trees to teach the parser. Give --tree-file."
        )
    examples = {name: sentiment.read(path) for name, path in files.items()}
    classes = sorted({example.label for example in examples["train"]})
    splits = {}
    for name, found in examples.items():
        strange = next((example.label for example in found if example.label not in classes), None)
        if strange is not None:
            raise DataError(files[name], None, f"classes should be among {', '.join(classes)}, but one is {strange}")
        sentences = [Sentence(example.words, (), example.heads, ()) for example in found]
        splits[name] = Split(sentences, [classes.index(example.label) for example in found])
    trees = conllu.read(tree_file)
    held_out = trees[::10]
    kept = [tree for place, tree in enumerate(trees) if place % 10]
    if not kept:
        raise DataError(
            tree_file, None, f"should have at least 2 trees, one of them to be held out, but has {len(trees)}"
        )
    return Data(splits, kept, {"valid": held_out, "test": held_out})
