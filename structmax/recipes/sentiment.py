"""Sentiment: classes of sentences by latent dependency trees. Which ways to learn a tree find a helpful one?

A parser scores arcs, a tree or a few are chosen by their scores, and a Tree-LSTM or a graph convolution composes the
words along them. Nobody shows the parser a tree: it learns from the classes alone. In the sentences that are generated
by default a negator turns one word into its opposite, and only the tree says which; with files, it trains on any
sentences with classes. `attachment` is the share of words with the head that is given for them, where one is.

Reference: Niculae, Martins & Cardie 2018, Towards dynamic computation graphs via sparse latent structure; Correia,
Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent variables via sparsity; Peng,
Thomson & Smith 2018, Backpropagating through structured argmax using a SPIGOT; Corro & Titov 2019, Differentiable
perturb-and-parse; Liu & Lapata 2018, Learning structured text representations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data import sentiment, text
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.models import dependency_encoders as encoders
from structmax.training import DataError, RunError, Settings, Task, option

Tree = Literal[
    "none",
    "left_to_right",
    "flat",
    "given",
    "marginals",
    "gumbel",
    "sparsemap",
    "sparse_marginalisation",
    "sparse_likelihood",
    "spigot",
    "straight_through",
    "perturb_and_parse",
    "structured_attention",
]
# the share of a file that is held out, for validation and for tests, where no file is given for these
SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A study of one way to choose trees."""

    least = Settings.least | {"size": 1, "train_size": 1, "dropout": 0.0, "temperature": 1e-6}
    most = Settings.most | {"dropout": 0.99}
    tree: Tree = option("sparse_marginalisation", "trees of the sentences, and how the parser learns them")
    composer: Literal["tree_lstm", "gcn"] = option(
        "tree_lstm",
        "network over the trees; marginals and gumbel need gcn; none and structured_attention have their own",
    )
    projective: bool = option(False, "whether the arcs of latent trees must not cross")
    temperature: float = option(0.3, "of SparseMAP: fewer trees as it falls")
    size: int = option(48, "size of the vectors of words and states")
    vectors: str = option("", "file of word vectors: lines of a word and numbers; by default vectors start at random")
    tuned: bool = option(True, "whether word vectors are trained")
    dropout: float = option(0.0, "share of features of words and states that training leaves out")
    train_size: int = option(6000, "number of sentences to generate for training, if no file is given")
    train_file: str = option("", "file of sentences to train on, in one of four formats")
    valid_file: str = option("", "file to validate on; by default a tenth of the training file")
    test_file: str = option("", "file to test on; by default another tenth of the training file")
    classes: Literal[2, 5] = option(2, "for bracketed trees: two classes, without neutral sentences, or five")
    encoding: Literal["utf8", "latin1"] = option("utf8", "of the files")
    epochs: int = option(10, "passes over the training data")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    clip: float = option(1.0, "largest norm of the gradient; 0 for no limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.composer == "tree_lstm" and self.tree in ("marginals", "gumbel"):
            raise ValueError(
                f"`composer` should be gcn with the soft arcs of tree={self.tree}, but is tree_lstm, which needs an "
                "order from the leaves to the root. Try composer=gcn, or tree=sparsemap for an average of few trees."
            )
        for name in ("valid_file", "test_file"):
            if getattr(self, name) and not self.train_file:
                raise ValueError(f"`train_file` should be given with `{name}`, but is empty.")


def encoder(config: Config, words: int) -> encoders.Encoder:
    """The network for a kind of tree, over vectors of words of a size."""
    size = config.size
    kind = structmax.ProjectiveTree if config.projective else structmax.SpanningTree

    def structure(lengths: Tensor) -> Any:
        return kind(lengths, single_root=True)

    if config.tree == "none":
        return encoders.WithoutTree(words, size)
    if config.tree == "structured_attention":
        return encoders.StructuredAttention(words, size, structure)
    composer = encoders.TreeLSTM(words, size) if config.composer == "tree_lstm" else encoders.Convolution(words, size)
    if config.tree in ("left_to_right", "flat", "given"):
        return encoders.FixedTree(composer, config.tree)
    smooth = structmax.omega.Entropy()
    choices: dict[str, encoders.Choice] = {
        "marginals": encoders.SoftTree(),
        "gumbel": encoders.SoftTree(noise=True),
        "sparsemap": encoders.FewTrees(config.temperature),
        "sparse_marginalisation": encoders.FewTrees(config.temperature),
        "sparse_likelihood": encoders.FewTrees(config.temperature),
        "spigot": encoders.BestTree(structmax.estimators.Spigot()),
        "straight_through": encoders.BestTree(structmax.estimators.StraightThrough(smooth)),
        "perturb_and_parse": encoders.BestTree(structmax.estimators.PerturbAndMAP(backward=smooth)),
    }
    averaged = config.tree not in ("sparse_marginalisation", "sparse_likelihood")
    return encoders.LatentTree(encoders.Parser(words, size), choices[config.tree], composer, structure, averaged)


class Model(nn.Module):
    """Vectors of words, an encoder, and a linear classifier of its states."""

    def __init__(self, config: Config, words: nn.Embedding, classes: int) -> None:
        super().__init__()
        self.words = words
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = encoder(config, words.embedding_dim)
        self.classifier = nn.Linear(config.size, classes)

    def forward(self, batch: sentiment.Batch, generator: torch.Generator | None = None) -> encoders.Encoded:
        """What the classes are told by."""
        return self.encoder(self.dropout(self.words(batch.words)), batch.lengths, batch.heads, generator)

    def log_probs(self, encoded: encoders.Encoded) -> Tensor:
        """Of the classes, for each state: (M, classes)."""
        return self.classifier(self.dropout(encoded.states)).float().log_softmax(-1)


class Recipe(Task[Config]):
    model: Model
    meanings = {
        "loss": "what training minimises: minus the log-probability of the right class, in nats",
        "accuracy": "share of sentences with the right class",
        "attachment": "words that have the given head in the best tree",
        "undirected": "words that are joined with the given head in the best tree, whichever of the two is the head",
        "trees": "number of trees with a probability above 0, of a sentence",
    }

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        splits = read(config) if config.train_file else generated(config)
        # one that is rare may be held out alone
        self.labels = sorted({example.label for examples in splits.values() for example in examples})
        # with word vectors, held-out words are known too
        known = splits.values() if config.vectors else [splits["train"]]
        self.vocabulary = text.Vocabulary.of(sentiment.lowered(e) for examples in known for e in examples)
        table = (
            text.vectors(config.vectors, self.vocabulary)
            if config.vectors
            else torch.randn(len(self.vocabulary), config.size)
        )
        words = nn.Embedding.from_pretrained(table, freeze=not config.tuned, padding_idx=text.Vocabulary.PADDING)
        self.data = {
            split: sentiment.Sentences(examples, self.vocabulary, self.labels, device)
            for split, examples in splits.items()
        }
        self.model = Model(config, words, len(self.labels)).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return text.by_length(self.data["train"].lengths, self.config.batch_size, self.shuffling(epoch))

    def optimiser(self) -> torch.optim.Optimizer:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.optim.Adam(trained, self.config.learning_rate, fused=True)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = self.data["train"].batch(indices.to(self.device))
        encoded = self.model(batch, generator)
        log_probs = self.model.log_probs(encoded)
        losses = nn.functional.nll_loss(log_probs, batch.labels[encoded.sentence], reduction="none")
        # a sentence counts once, however many of its trees are judged
        judged = log_of_mean if self.config.tree == "sparse_likelihood" else mean
        loss = judged(encoded, losses, len(batch)).mean()
        right = predicted(encoded, log_probs.detach(), len(batch)) == batch.labels
        yield loss, {"loss": loss.detach(), "accuracy": right.float().mean()}

    def evaluate(self, split: str) -> dict[str, float]:
        """How many classes are right, how many trees there are, and how many heads they share with the given ones."""
        data = self.data[split]
        # what was found, and out of how many
        totals: dict[str, Tensor] = {}
        for indices in text.in_order(data.lengths, self.config.batch_size):
            batch = data.batch(indices.to(self.device))
            encoded = self.model(batch)
            right = predicted(encoded, self.model.log_probs(encoded), len(batch)) == batch.labels
            found = {"accuracy": torch.stack([right.sum(), batch.labels.new_tensor(len(batch))])}
            if encoded.trees is not None:
                found |= agreement(best_heads(encoded.trees, batch), batch)
                if self.config.tree.startswith("sparse"):
                    found["trees"] = batch.labels.new_tensor([len(encoded.trees.weights), len(batch)])
            for name, pair in found.items():
                totals[name] = totals.get(name, 0) + pair
        return {name: int(some) / int(all) for name, (some, all) in totals.items() if all}

    def drawings(self) -> list[dict[str, Any]]:
        """Trees with their probabilities, or soft arcs, below the given tree."""
        data = self.data["valid"]
        fitting = (data.lengths <= 25).nonzero().squeeze(-1)
        order = fitting[data.lengths[fitting].argsort(stable=True)]
        if not len(order):
            return []
        places = torch.linspace(0.3, 1.0, 8, device=order.device) * (len(order) - 1)
        batch = data.batch(order[places.long()])
        encoded = self.model(batch)
        answers = predicted(encoded, self.model.log_probs(encoded), len(batch)).tolist()
        return [self._drawing(row, batch, encoded.trees, answer) for row, answer in enumerate(answers)]

    def _drawing(self, row: int, batch: sentiment.Batch, trees: encoders.Trees | None, answer: int) -> dict[str, Any]:
        example = self.data["valid"].examples[int(batch.indices[row])]
        arcs: dict[str, list[list[Any]]] = {}
        if example.heads:
            arcs["given"] = [[head, place] for place, head in enumerate(example.heads, 1)]
        if trees is not None:
            mine = (trees.sentence == row).nonzero().squeeze(-1)
            # the most probable first; more than a few are not looked at
            for place in mine[trees.weights[mine].argsort(descending=True)][:4].tolist():
                tree = trees.arcs[place]
                probability = f"{100 * float(trees.weights[place]):.0f} %"
                name = f"tree {len(arcs)}, {probability}" if len(mine) > 1 else self.config.tree
                kept = (tree > 0.05).nonzero().tolist()
                arcs[name] = [[head, word, "", round(float(tree[head, word]), 3)] for head, word in kept]
        said = self.labels[answer]
        return {
            "kind": "arcs",
            "title": " ".join(example.words),
            "tokens": list(example.words),
            "arcs": arcs,
            "note": f"answered {said}, " + ("right" if said == example.label else f"should be {example.label}"),
        }


def generated(config: Config) -> dict[str, list[sentiment.Example]]:
    """Sentences of the generator, none of them in two splits."""
    valid = sentiment.generate(500, VALID_SEED)
    test = sentiment.generate(1000, TEST_SEED, without=valid)
    train = sentiment.generate(config.train_size, training_seed(config), without=[*valid, *test])
    return {"train": train, "valid": valid, "test": test}


def read(config: Config) -> dict[str, list[sentiment.Example]]:
    """Sentences of files. What has no file is held out from the training file, the same with every seed."""
    train = sentiment.read(config.train_file, config.classes, config.encoding)
    splits = {}
    for split, path, seed in (("valid", config.valid_file, VALID_SEED), ("test", config.test_file, TEST_SEED)):
        if path:
            splits[split] = sentiment.read(path, config.classes, config.encoding)
            known = {example.label for example in train}
            unknown = sorted({example.label for example in splits[split]} - known)
            if unknown:
                reason = f"classes should be those of the training file, {', '.join(sorted(known))}, but one is"
                raise DataError(path, None, f"{reason} {unknown[0]!r}")
        else:
            splits[split], train = sentiment.held_out(train, SHARE, seed)
    if config.tree == "given" and any(not e.heads for examples in (train, *splits.values()) for e in examples):
        raise RunError("Sentences should have heads for --tree given, but some have none. Try CoNLL-U files.")
    return {"train": train, **splits}


def mean(encoded: encoders.Encoded, losses: Tensor, sentences: int) -> Tensor:
    """E[L(z)] over the trees of each sentence: (B,)."""
    return losses.new_zeros(sentences).index_add(0, encoded.sentence, encoded.weights * losses)


def log_of_mean(encoded: encoders.Encoded, losses: Tensor, sentences: int) -> Tensor:
    """−log E[exp(−L(z))], the trees of each sentence as a latent variable: (B,)."""
    least = losses.new_full((sentences,), torch.inf).scatter_reduce(0, encoded.sentence, losses.detach(), "amin")
    return least - mean(encoded, (least[encoded.sentence] - losses).exp(), sentences).log()


def predicted(encoded: encoders.Encoded, log_probs: Tensor, sentences: int) -> Tensor:
    """The most probable class of each sentence over all its trees: (B,)."""
    weighed = log_probs.exp() * encoded.weights.detach().unsqueeze(-1)
    return weighed.new_zeros(sentences, weighed.shape[-1]).index_add(0, encoded.sentence, weighed).argmax(-1)


def best_heads(trees: encoders.Trees, batch: sentiment.Batch) -> Tensor:
    """Those of the tree that shares most with the trees of a sentence: (B, N)."""
    structure = structmax.SpanningTree(batch.lengths, single_root=False)
    return structure.decode(structmax.argmax(trees.mean(trees.arcs, len(batch)), structure))


def agreement(heads: Tensor, batch: sentiment.Batch) -> dict[str, Tensor]:
    """Of each measure, what heads (B, N) share with given ones and what they could: (2,)."""
    known = (batch.heads >= 0) & text.within(batch.lengths, batch.words.shape[1])
    same = heads == batch.heads
    # whether the given head has the word as its own head; the root has none
    place = torch.arange(1, heads.shape[1] + 1, device=heads.device)
    turned = (heads.gather(1, (batch.heads - 1).clamp_min(0)) == place) & (batch.heads > 0)
    return {
        "attachment": torch.stack([(same & known).sum(), known.sum()]),
        "undirected": torch.stack([((same | turned) & known).sum(), known.sum()]),
    }
