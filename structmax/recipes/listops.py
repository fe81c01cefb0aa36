"""ListOps: expressions whose value depends on their tree. Which ways to learn a tree find it?

`[MAX 2 9 [MIN 4 7 ] 0 ]` is 9: a model has to compose the innermost brackets first. The encoder is an LSTM that sees no
tree, a Tree-LSTM over the tree of the grammar, or one of many that have to find a helpful tree, trained on the answer
alone. `f1` compares the trees they find with the grammar's; `brackets` is the share of its inner brackets that
they have as spans, in whatever order they take arguments.

Reference: Nangia & Bowman 2018, ListOps: a diagnostic dataset for latent tree learning; Williams, Drozdov & Bowman
2018, Do latent tree learning models identify meaningful structure in sentences?; Havrylov, Kruszewski & Joulin 2019,
Cooperative learning of disjoint syntax and semantics.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data import listops, text
from structmax.recipes.data.held_out import TEST_SEED, VALID_SEED, training_seed
from structmax.recipes.models import tree_encoders as encoders
from structmax.training import Settings, Task, option

Name = Literal[
    "lstm",
    "gold",
    "spinn",
    "rl_spinn",
    "ppo",
    "gumbel",
    "straight_through",
    "spigot",
    "perturb_and_parse",
    "marginals",
    "sparsemap",
    "sparse_marginalisation",
]
Baseline = Literal["none", "running_mean", "leave_one_out", "self_critical", "learned"]
TOKENS = len(listops.TOKENS)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A study of one encoder."""

    least = Settings.least | {
        "size": 1,
        "longest": 5,
        "train_size": 1,
        "curriculum": 0,
        "begin": 4,
        "parser_size": 1,
        "policy_updates": 1,
        "policy_rate": 0,
        "policy_epochs": 0,
        "entropy": 0,
        "dropout": 0,
        "weight_decay": 0,
    }
    most = Settings.most | {"policy_rate": 1e30, "dropout": 0.99, "weight_decay": 1e30}
    encoder: Name = option("sparse_marginalisation", "module that reads the expression")
    baseline: Baseline = option("self_critical", "for rl_spinn: what the loss of a sample is compared with")
    size: int = option(64, "size of the vectors of words and states")
    longest: int = option(20, "largest number of tokens of an expression; longer ones are left out of training")
    train_size: int = option(50_000, "number of expressions to generate for training, if no file is given")
    train_file: str = option("", "file of expressions to train on, in the published format")
    test_file: str = option("", "file of expressions to test on, in the published format, of any length")
    dropout: float = option(0.0, "share of features of the expression's state that training leaves out")
    weight_decay: float = option(0.0, "how much of each parameter a step takes away, times the learning rate")
    curriculum: int = option(4, "number of epochs that each add as many longer expressions, until there are all")
    begin: int = option(8, "number of tokens of the longest expressions at the start of the curriculum")
    parser_size: int = option(64, "for ppo: size of the states of the parser that merges neighbours")
    policy_updates: int = option(2, "for ppo: how often the parser learns from a sample")
    policy_rate: float = option(1e-3, "for ppo and rl_spinn: learning rate of the parameters that choose the tree")
    policy_epochs: int = option(0, "for ppo: number of epochs in which the parser learns, to be kept then; 0 for all")
    entropy: float = option(0.003, "for ppo: weight of the entropy bonus that keeps the parser exploring")
    epochs: int = option(15, "passes over the training data")
    learning_rate: float = option(2e-3, "highest learning rate of the optimiser")
    clip: float = option(1.0, "largest norm of the gradient; 0 for no limit")


def encoder(config: Config) -> encoders.Encoder:
    """The network of that name."""
    size = config.size
    surrogates: dict[str, Any] = {
        "straight_through": structmax.estimators.StraightThrough(structmax.omega.Entropy()),
        "spigot": structmax.estimators.Spigot(),
        "perturb_and_parse": structmax.estimators.PerturbAndMAP(backward=structmax.omega.Entropy()),
    }
    makers: dict[str, Callable[[], encoders.Encoder]] = {
        "lstm": lambda: encoders.Lstm(TOKENS, size),
        "gold": lambda: encoders.Gold(TOKENS, size),
        "spinn": lambda: encoders.SupervisedSpinn(TOKENS, size),
        "rl_spinn": lambda: encoders.ReinforcedSpinn(TOKENS, size, config.baseline),
        "ppo": lambda: encoders.ProximalMerges(TOKENS, size, config.parser_size, config.policy_updates, config.entropy),
        "gumbel": lambda: encoders.Gumbel(TOKENS, size),
        "marginals": lambda: encoders.MarginalTree(TOKENS, size),
        "sparsemap": lambda: encoders.SparseTrees(TOKENS, size),
        "sparse_marginalisation": lambda: encoders.SparseLosses(TOKENS, size),
    }
    if config.encoder in surrogates:
        return encoders.LatentTree(TOKENS, size, surrogates[config.encoder])
    return makers[config.encoder]()


class Model(nn.Module):
    """An encoder, and a classifier of its states."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = encoder(config)
        self.classifier = nn.Sequential(
            nn.Dropout(config.dropout), nn.Linear(config.size, config.size), nn.ReLU(), nn.Linear(config.size, 10)
        )


class Recipe(Task[Config]):
    model: Model
    meanings = {
        "loss": "cross-entropy of the value, in nats",
        "accuracy": "share of expressions whose value is right",
        "f1": "spans that a tree shares with the grammar's, which takes arguments from the left, of those that are "
        "neither a leaf nor the whole",
        "brackets": "of the brackets within others, those that a tree has as spans, however it takes arguments",
    }
    higher = ("brackets",)

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        given = listops.read(config.train_file, config.longest) if config.train_file else []
        valid = listops.generate(1000, VALID_SEED, config.longest, without=given)
        test = (
            listops.read(config.test_file)
            if config.test_file
            else listops.generate(2000, TEST_SEED, config.longest, without=[*given, *valid])
        )
        train = given or listops.generate(
            config.train_size, training_seed(config), config.longest, without=[*valid, *test]
        )
        self.train = listops.ListOps(train, device)
        self.held_out = {"valid": listops.ListOps(valid, device), "test": listops.ListOps(test, device)}
        self.model = Model(config).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        generator = self.shuffling(epoch)
        grown = min(1.0, epoch / self.config.curriculum) if self.config.curriculum else 1.0
        lengths = self.train.lengths.sort().values
        begun = max(int((lengths <= self.config.begin).sum()), 1)
        longest = int(lengths[begun - 1 + round(grown * (len(lengths) - begun))])
        batches = text.by_length(self.train.lengths, self.config.batch_size, generator, longest)
        # to tell, expressions whose trees are kept are numbered after all
        kept = self.config.encoder == "ppo" and 0 < self.config.policy_epochs <= epoch
        return [indices + kept * len(self.train) for indices in batches]

    def optimiser(self) -> torch.optim.Optimizer:
        """What is taught by a reward alone learns at a rate of its own."""
        choosing = CHOOSING.get(self.config.encoder, ())
        named = list(self.model.named_parameters())
        chosen = [p for name, p in named if name.startswith(choosing)]
        rest = [p for name, p in named if not name.startswith(choosing)]
        groups: list[dict[str, Any]] = [{"params": rest}, {"params": chosen, "lr": self.config.policy_rate}]
        return torch.optim.AdamW(groups, self.config.learning_rate, weight_decay=self.config.weight_decay, fused=True)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        numbers = indices.to(self.device)
        batch = self.train.batch(numbers % len(self.train))
        judged: list[dict[str, Tensor]] = []

        def judge(states: Tensor, index: Tensor) -> Tensor:
            logits, values = self.model.classifier(states), batch.values[index]
            losses = nn.functional.cross_entropy(logits, values, reduction="none")
            right = logits.detach().argmax(-1) == values
            # An expression counts once, however many of its trees are judged.
            times = torch.zeros_like(batch.values).index_add(0, index, torch.ones_like(index))
            share = 1 / (len(batch) * times[index])
            judged.append({"loss": (losses.detach() * share).sum(), "accuracy": (right * share).sum()})
            return losses

        encoder = self.model.encoder
        is_kept = bool(indices[0] >= len(self.train))
        updates = encoder.composing(batch, judge) if is_kept else encoder.losses(batch, judge, generator)
        for losses in updates:
            # of what was judged first, the states that are learnt from
            yield losses.mean(), judged[0]

    def evaluate(self, split: str) -> dict[str, float]:
        """How many answers are right, and how much of the grammar's trees was found."""
        data = self.held_out[split]
        lost, right = torch.zeros(2, device=self.device).unbind()
        # what was found, and what there was to find
        agreed: dict[str, Tensor] = {}
        for indices in text.in_order(data.lengths, self.config.batch_size):
            batch = data.batch(indices.to(self.device))
            root, spans = self.model.encoder(batch)
            logits = self.model.classifier(root)
            lost = lost + nn.functional.cross_entropy(logits, batch.values, reduction="sum")
            right = right + (logits.argmax(-1) == batch.values).sum()
            if spans is not None:
                agreed = {name: agreed.get(name, 0) + counts for name, counts in agreement(spans, batch).items()}
        metrics = {"loss": float(lost) / len(data), "accuracy": float(right) / len(data)}
        return metrics | {name: float(found / wanted) for name, (found, wanted) in agreed.items() if wanted}

    def drawings(self) -> list[dict[str, Any]]:
        """Trees of the grammar and found ones, of held-out expressions from short to long."""
        data = self.held_out["valid"]
        fitting = (data.lengths <= 40).nonzero().squeeze(-1)
        order = fitting[data.lengths[fitting].argsort(stable=True)]
        places = torch.linspace(0.4, 1.0, 8, device=order.device) * (len(order) - 1)
        batch = data.batch(order[places.long()])
        root, spans = self.model.encoder(batch)
        answers = self.model.classifier(root).argmax(-1)
        brackets = batch.brackets()
        drawn = []
        for row, length in enumerate(batch.lengths.tolist()):
            trees = {"gold": batch.gold[row]} | ({} if spans is None else {"induced": spans[row]})
            tokens = [listops.TOKENS[token] for token in batch.tokens[row, :length].tolist()]
            answer, value = int(answers[row]), int(batch.values[row])
            drawn.append(
                {
                    "kind": "trees",
                    "title": f"{' '.join(tokens)} = {value}",
                    "tokens": tokens,
                    "trees": {name: (parts > 0).nonzero().tolist() for name, parts in trees.items()},
                    "brackets": brackets[row].nonzero().tolist(),
                    "note": f"answered {answer}, " + ("right" if answer == value else f"should be {value}"),
                }
            )
        return drawn

    def state(self) -> dict[str, Any]:
        return {"running": [vars(m) for m in self._running()]}

    def load_state(self, state: dict[str, Any]) -> None:
        for m, values in zip(self._running(), state["running"], strict=True):
            vars(m).update(values)

    def _running(self) -> list[Any]:
        return [m for m in vars(self.model.encoder).values() if isinstance(m, RUNNING)]


def agreement(spans: Tensor, batch: listops.Batch) -> dict[str, Tensor]:
    """Of each measure, what trees (B, N, N) share with the grammar's and what they could: (2,)."""
    # All trees have the leaves and the whole; a binary tree has n − 2 other spans.
    shared, others = (spans * batch.gold).sum((-2, -1)), (batch.lengths - 2).clamp_min(0)
    found = torch.where(others > 0, shared - batch.lengths - 1, 0.0)
    brackets = batch.brackets()
    return {
        "f1": torch.stack([found.sum(), others.sum()]),
        "brackets": torch.stack([(spans * brackets).sum(), brackets.sum()]),
    }


# Of the parameters of an encoder, those that choose the tree, if a reward is their only teacher.
CHOOSING = {
    "ppo": ("encoder.parser", "encoder.reader"),
    "rl_spinn": ("encoder.spinn.score", "encoder.spinn.track", "encoder.spinn.look_ahead"),
}
# The state that an encoder keeps of earlier batches.
RUNNING = (structmax.estimators.RunningMean, structmax.estimators.RunningScale)
