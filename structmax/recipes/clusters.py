"""Regression with latent categories: which gradient estimator finds the hidden clusters?

Points x lie in K clusters, and each cluster has a regression of its own, y = β_z · x + noise. A linear encoder scores
the categories, a bilinear decoder predicts zᵀ V x, and the loss is squared. The categories are never seen: the encoder
learns only from the gradient that the estimator gives it. To compare the estimators:

    structmax compare clusters --over estimator=all --over clusters=3,10 --seeds 5 --jobs 2

Two other ways show the encoder the categories of some points: before the rest of the training, or along with it.

Reference: Martins, Mihaylova, Nangia & Niculae 2019, Latent structure models for natural language processing (ACL
tutorial).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

import structmax
from structmax.training import Settings, Task, option

# Of held-out points, in each of two splits.
HELD_OUT = 1000
# The first weights are drawn with the run's seed, and should not know the clusters.
DATA_SEED = 1_000_001

Name = Literal[
    "marginalise",
    "sparse_support",
    "score_function",
    "self_critical",
    "leave_one_out",
    "sum_and_sample",
    "without_replacement",
    "rebar",
    "straight_through",
    "straight_through_softmax",
    "straight_through_gumbel",
    "reinmax",
    "spigot",
    "spigot_ce",
    "implicit_mle",
    "perturbed",
    "softmax_attention",
    "gumbel_softmax",
]
ESTIMATORS: dict[Name, Any] = {
    "marginalise": structmax.estimators.Enumerate(),
    "sparse_support": structmax.estimators.SparseSupport(),
    "score_function": structmax.estimators.ScoreFunction(),
    "self_critical": structmax.estimators.ScoreFunction(1, structmax.estimators.SelfCritical()),
    "leave_one_out": structmax.estimators.ScoreFunction(4, structmax.estimators.LeaveOneOut()),
    "sum_and_sample": structmax.estimators.SumAndSample(1),
    "without_replacement": structmax.estimators.SampleWithoutReplacement(2),
    "rebar": structmax.estimators.Rebar(),
    "straight_through": structmax.estimators.StraightThrough(),
    "straight_through_softmax": structmax.estimators.StraightThrough(structmax.omega.Entropy()),
    "straight_through_gumbel": structmax.estimators.straight_through_gumbel(),
    "reinmax": structmax.estimators.ReinMax(),
    "spigot": structmax.estimators.Spigot(),
    "spigot_ce": structmax.estimators.SpigotCE(),
    "implicit_mle": structmax.estimators.ImplicitMLE(),
    "perturbed": structmax.estimators.Perturbed(4, control_variate=True),
    "softmax_attention": structmax.estimators.Relaxation(),
    "gumbel_softmax": structmax.estimators.gumbel_relaxation(),
}


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A run of one estimator; the defaults take about a minute."""

    least = Settings.least | {
        "given": 0,
        "pretrain": 0,
        "clusters": 1,
        "points": 1,
        "features": 1,
        "distance": 0,
        "noise": 0,
    }
    most = Settings.most | {"given": 1}
    estimator: Name = option("marginalise", "gradient estimator of the encoder")
    way: Literal["latent", "pretrain", "multi_task"] = option(
        "latent",
        "categories are never seen; or given ones alone train the encoder at first; or they add to the loss throughout",
    )
    given: float = option(0.02, "for pretrain and multi_task: share of the points to train on with a given category")
    pretrain: int = option(
        5, "for pretrain: number of epochs at the start in which the encoder learns given categories"
    )
    clusters: int = option(3, "number of clusters in the data, and of categories in the model")
    points: int = option(3000, "number of points to train on")
    features: int = option(100, "number of features of a point")
    distance: float = option(6.0, "distance of a cluster's centre from the origin; a cluster is 1 wide")
    noise: float = option(0.1, "standard deviation of the noise in y")
    epochs: int = option(20, "passes over the training data")
    batch_size: int = option(200, "number of instances in a step, over all processes together")
    learning_rate: float = option(0.01, "highest learning rate of the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.way == "pretrain" and self.pretrain >= self.epochs:
            raise ValueError(
                f"`pretrain` should be less than `epochs`, {self.epochs}, but is {self.pretrain}: "
                "the decoder would not be trained."
            )
        if self.way != "latent" and round(self.given * self.points) < 1:
            raise ValueError(
                f"`given` should be the share of at least one of {self.points} points, but is {self.given}. "
                "Try --way latent."
            )


@dataclass(frozen=True)
class Data:
    """Points x (N, D), their hidden categories (N,), and y (N,)."""

    x: Tensor
    category: Tensor
    y: Tensor

    @classmethod
    def draw(cls, config: Config, device: torch.device) -> "Data":
        """Points to train on, then those of both held-out splits."""
        generator = torch.Generator().manual_seed(DATA_SEED + config.seed)
        points, size = config.points + 2 * HELD_OUT, (config.clusters, config.features)
        centres = nn.functional.normalize(torch.randn(size, generator=generator), dim=-1)
        slopes = torch.randn(size, generator=generator) / config.features**0.5
        category = torch.randint(config.clusters, (points,), generator=generator)
        x = config.distance * centres[category] + torch.randn(points, config.features, generator=generator)
        y = (slopes[category] * x).sum(-1) + config.noise * torch.randn(points, generator=generator)
        return cls(x.to(device), category.to(device), y.to(device))

    def at(self, points: Tensor | slice) -> "Data":
        return Data(self.x[points], self.category[points], self.y[points])


class Model(nn.Module):
    def __init__(self, clusters: int, features: int) -> None:
        super().__init__()
        self.encoder = nn.Parameter(0.01 * torch.randn(features, clusters))
        self.decoder = nn.Parameter(0.01 * torch.randn(features, clusters))

    def forward(self, data: Data) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Scores (N, K), and the squared error of chosen categories."""
        predicted, y = data.x @ self.decoder, data.y

        def error(z: Tensor, index: Tensor) -> Tensor:
            return ((z * predicted[index]).sum(-1) - y[index]) ** 2

        return data.x @ self.encoder, error


class Recipe(Task[Config]):
    # The hidden categories judge the model; they do not choose it.
    best = "explained"
    shown = ("loss",)
    meanings = {
        "loss": "squared error of y, predicted with the best category of each point",
        "explained": "share of the variance of y that the prediction explains",
        "accuracy": "share of points in the right cluster, with the names of clusters that suit best",
        "v_measure": "of clusters that hold points of one category alone, and of categories within one cluster alone: "
        "harmonic mean of both, whatever the names",
    }
    higher = ("accuracy", "v_measure")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        data, points = Data.draw(config, device), config.points
        self.train = data.at(slice(points))
        self.held_out = {
            "valid": data.at(slice(points, points + HELD_OUT)),
            "test": data.at(slice(points + HELD_OUT, None)),
        }
        self.model = Model(config.clusters, config.features).to(device)

        # points are in random order: the first of them are as good as any
        self.given = round(config.given * points)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        config = self.config
        order = torch.randperm(config.points, generator=self.shuffling(epoch))
        if config.way == "pretrain" and epoch < config.pretrain:
            # given points, as often as makes an epoch; to tell, they are numbered after all points
            order = config.points + order % self.given
        return order.split(config.batch_size)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        config = self.config
        data = self.train.at((indices % config.points).to(self.device))
        scores, error = self.model(data)
        of_categories = nn.functional.cross_entropy(scores, data.category, reduction="none")
        if int(indices[0]) >= config.points:
            yield of_categories.mean(), {}
            return
        estimator = ESTIMATORS[config.estimator]
        losses = structmax.expect(error, scores, structmax.Simplex(), estimator, generator=generator).value
        if config.way == "multi_task":
            # on average the mean over given points
            is_given = (indices < self.given).to(self.device)
            losses = losses + is_given * of_categories * config.points / self.given
        yield losses.mean(), {}

    def evaluate(self, split: str) -> dict[str, float]:
        """The loss at the best category, the part of y's variance that leaves explained, and the clusters found."""
        data = self.held_out[split]
        scores, error = self.model(data)
        choice = structmax.argmax(scores, structmax.Simplex())
        loss = error(choice, torch.arange(len(data.y), device=self.device)).mean()
        counts = self._counts(data, choice)
        # the best matching gives the found categories their names
        named = structmax.argmax(counts, structmax.Matching())
        return {
            "loss": loss.item(),
            "explained": (1 - loss / data.y.var()).item(),
            "accuracy": ((named * counts).sum() / counts.sum()).item(),
            "v_measure": v_measure(counts).item(),
        }

    def drawings(self) -> list[dict[str, Any]]:
        data = self.held_out["valid"]
        counts = self._counts(data, structmax.argmax(self.model(data)[0], structmax.Simplex()))
        order = structmax.argmax(counts, structmax.Matching()).argmax(-1)
        return [
            {
                "kind": "matrix",
                "title": "Points of each true cluster (rows) in each found one (columns)",
                "weights": counts[:, order].long().tolist(),
            }
        ]

    def _counts(self, data: Data, choice: Tensor) -> Tensor:
        """(K, K): points of each true category in each found one."""
        K = self.config.clusters
        return torch.bincount(K * data.category + choice.argmax(-1), minlength=K * K).view(K, K).float()


def v_measure(counts: Tensor) -> Tensor:
    """The harmonic mean of homogeneity and completeness of counts (true, found).

    Reference: Rosenberg and Hirschberg, V-Measure, EMNLP 2007.
    """
    p = counts / counts.sum()

    def entropy(q: Tensor) -> Tensor:
        return -torch.xlogy(q, q).sum()

    true, found, both = entropy(p.sum(-1)), entropy(p.sum(-2)), entropy(p)
    shared = (true + found - both).clamp_min(0.0)
    # a single cluster, found as one, is found
    return torch.where(true + found > 0, 2 * shared / (true + found), 1.0)
