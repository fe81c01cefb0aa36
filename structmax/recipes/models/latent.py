"""Discrete latent variables: the ways to learn through them that several recipes share, in one table.

An encoder scores structures y, and q(y) is the distribution that an estimator makes of the scores: sparse for those
that sum few structures, Gibbs's for all others. What is maximised is

    E[log p(x, y)] + w H(q)          w = 1: the evidence lower bound of log p(x)

The expectation comes from `structmax.expect`, the entropy from its result. VIMCO has an objective of its own, the
log-mean of p(x, y) / q(y)ʷ over draws, which is the same for a single draw and larger for several.

Reference: Correia, Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent variables
via sparsity, https://arxiv.org/abs/2007.01919.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

import structmax
from structmax import estimators
from structmax.training import Settings, option

Name = Literal[
    "dense",
    "score_function",
    "running_mean",
    "self_critical",
    "nvil",
    "leave_one_out",
    "sum_and_sample",
    "gumbel",
    "straight_through_gumbel",
    "rebar",
    "vimco",
    "sparsemax",
    "topk_sparsemax",
    "sparsemap",
    "sparsemap_budget",
]
# Those whose q is sparse: few structures have all the probability. Of these and of all structures sums are exact.
SPARSE = ("sparsemax", "topk_sparsemax", "sparsemap", "sparsemap_budget")
SUMMED = (*SPARSE, "dense")
SEVERAL = ("leave_one_out", "vimco")
RELAXED = ("gumbel", "straight_through_gumbel", "rebar")
# those that look at these settings
USERS = {
    "samples": ("score_function", "running_mean", "self_critical", "nvil", *SEVERAL),
    "k": ("sum_and_sample", "topk_sparsemax"),
    "temperature": RELAXED,
    "cooling": RELAXED,
}
# For each kind of latent variable, what it cannot have, and what to use instead.
REFUSED_FOR_CATEGORIES = {
    "sparsemap": "SparseMAP of one category is sparsemax: try sparsemax",
    "sparsemap_budget": "a budget is for bits, and one category is chosen here: try topk_sparsemax",
}
REFUSED_FOR_BITS = {
    "sparsemax": "it would have to list all 2ᴰ vectors of D bits: try topk_sparsemax, which is the same where no more "
    "than k vectors have probability, or sparsemap"
}

ESTIMATOR = "how the latent variable is summed or sampled, and where its gradient comes from"
LogJoint = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class LatentSettings(Settings):
    """How the scores of a latent variable learn."""

    least: ClassVar[dict[str, float]] = Settings.least | {"samples": 0, "k": 0, "temperature": 1e-3, "cooling": 0}
    refused: ClassVar[dict[str, str]] = REFUSED_FOR_CATEGORIES
    estimator: Name = option("sparsemax", ESTIMATOR)
    samples: int = option(
        0, f"draws of an instance, for {', '.join(USERS['samples'])}; 0 for 2 with the last two, else 1"
    )
    k: int = option(0, "best structures of sum_and_sample and topk_sparsemax; 0 for 1 and 10")
    temperature: float = option(1.0, f"of the relaxation, for {', '.join(RELAXED)}")
    cooling: float = option(
        1e-4, f"the temperature falls by exp(-cooling) at each step, until it has halved, for {', '.join(RELAXED)}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator in self.refused:
            raise ValueError(f"`estimator` cannot be {self.estimator} here: {self.refused[self.estimator]}.")
        for name, users in USERS.items():
            if getattr(self, name) != getattr(type(self), name) and self.estimator not in users:
                raise ValueError(
                    f"`{name}` should be given with {', '.join(users)}, but the estimator is {self.estimator}."
                )
        if self.estimator in SEVERAL and self.samples == 1:
            raise ValueError(f"`samples` should be at least 2 for {self.estimator}, which compares draws, but is 1.")


class Support(NamedTuple):
    """The structures (B, K, size) of each instance, their q and log p(x, y), (B, K) both: 0 and −inf where none is."""

    structures: Tensor
    q: Tensor
    log_joint: Tensor


def by_instance(index: Tensor, count: int) -> tuple[tuple[Tensor, Tensor], int]:
    """Where rows of M structures stand if each instance has its own: (instance, place) (M,) both, and how many places.

    Args:
        index: the instance of each row: (M,).
        count: of the instances.

    Examples:
        >>> import torch
        >>> from structmax.recipes.models.latent import by_instance
        >>> by_instance(torch.tensor([0, 2, 0, 0]), 3)
        ((tensor([0, 2, 0, 0]), tensor([0, 0, 1, 2])), 3)
    """
    order = index.argsort(stable=True)
    counts = torch.bincount(index, minlength=count)
    first = (counts.cumsum(0) - counts)[index[order]]
    place = torch.empty_like(index).scatter_(0, order, torch.arange(len(index), device=index.device) - first)
    return (index, place), int(counts.max())


class Latent(nn.Module):
    """A latent variable and its estimator, with what that learns and remembers.

    Args:
        settings: which estimator.
        structure: `Simplex()` or `Bits()`.
        size: how many categories or bits.
        features: of an instance, for the baseline of nvil.
    """

    def __init__(self, settings: LatentSettings, structure: Any, size: int, features: int) -> None:
        super().__init__()
        self.settings, self.size = settings, size
        self.structure = structmax.Subset(at_most=size // 2) if settings.estimator == "sparsemap_budget" else structure
        # the noise whose argmax is an exact draw
        self.noise: Any = (
            structmax.noise.Gumbel() if isinstance(structure, structmax.Simplex) else structmax.noise.Logistic()
        )
        self.running = estimators.RunningMean()
        self.steps = 0
        if settings.estimator == "nvil":
            self.baseline = nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(
        self, log_joint: LogJoint, scores: Tensor, features: Tensor, generator: torch.Generator, weight: float = 1.0
    ) -> tuple[Tensor, float]:
        """What is to be minimised, −E[log p(x, y)] − weight · H(q), and the calls of `log_joint` for an instance.

        In evaluation, estimators that draw or relax are replaced by one draw: the model is the discrete one, and a
        baseline changes no value. The calls are still those that the estimator takes in training.

        Args:
            log_joint: from M structures and the instances (M,) they belong to, log p(x, y): (M,).
            scores: of the parts of y: (B, size).
            features: of the instances: (B, features).
            generator: random number generator.
            weight: of the entropy.
        """
        estimator = self.estimator(features)
        # log q of bfloat16 would be off by a few hundredths
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        self.steps += self.training
        if isinstance(estimator, estimators.Vimco):
            result = structmax.expect(
                lambda y, index, log_q: log_joint(y, index) - weight * log_q,
                scores,
                self.structure,
                estimator,
                with_log_prob=True,
                generator=generator,
            )
            cost = -result.value
        else:
            result = structmax.expect(
                lambda y, index: -log_joint(y, index), scores, self.structure, estimator, generator=generator
            )
            cost = result.value - weight * result.entropy
        counted = self.training or self.settings.estimator in SUMMED
        return cost, result.evaluations / len(scores) if counted else self.draws

    @property
    def draws(self) -> int:
        """How often an estimator that draws or relaxes calls `log_joint` for an instance."""
        own = {"self_critical": self.samples + 1, "sum_and_sample": self.k + 1, "rebar": 3}
        return own.get(self.settings.estimator, self.samples)

    def estimator(self, features: Tensor) -> Any:
        """That of the settings; in evaluation one draw, unless q is summed."""
        name = self.settings.estimator
        if not self.training and name not in SUMMED:
            return estimators.ScoreFunction()
        return ESTIMATORS[name](self, features)

    def support(self, log_joint: LogJoint, scores: Tensor, features: Tensor) -> "Support | None":
        """The structures that have all the probability of q, where it is summed."""
        if self.settings.estimator not in SUMMED:
            return None
        listed: list[tuple[Tensor, ...]] = []

        def listing(y: Tensor, index: Tensor, log_q: Tensor) -> Tensor:
            listed.append((y, index, log_q, log_joint(y, index)))
            return log_q

        structmax.expect(listing, scores, self.structure, self.estimator(features), with_log_prob=True)
        ((y, index, log_q, found),) = listed
        places, most = by_instance(index, len(scores))
        empty = scores.new_full((len(scores), most), -math.inf)
        return Support(
            scores.new_zeros(len(scores), most, self.size).index_put(places, y),
            empty.index_put(places, log_q).exp(),
            empty.index_put(places, found),
        )

    @property
    def samples(self) -> int:
        return self.settings.samples or (2 if self.settings.estimator in SEVERAL else 1)

    @property
    def k(self) -> int:
        return self.settings.k or (1 if self.settings.estimator == "sum_and_sample" else 10)

    @property
    def temperature(self) -> float:
        return self.settings.temperature * max(0.5, math.exp(-self.settings.cooling * self.steps))

    def state(self) -> dict[str, Any]:
        """What is no parameter, for the checkpoint."""
        return {"steps": self.steps, "running": dict(vars(self.running))}

    def load_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        vars(self.running).update(state["running"])


# From a latent variable and the features of the instances: as many of the estimators of `structmax.expect` as there are
# names.
ESTIMATORS: dict[Name, Callable[[Latent, Tensor], Any]] = {
    "dense": lambda latent, _: estimators.Enumerate(),
    "score_function": lambda latent, _: estimators.ScoreFunction(latent.samples),
    "running_mean": lambda latent, _: estimators.ScoreFunction(latent.samples, latent.running),
    "self_critical": lambda latent, _: estimators.ScoreFunction(latent.samples, estimators.SelfCritical()),
    "nvil": lambda latent, features: estimators.ScoreFunction(
        latent.samples, estimators.Learned(latent.baseline, features, latent.running)
    ),
    "leave_one_out": lambda latent, _: estimators.ScoreFunction(latent.samples, estimators.LeaveOneOut()),
    "sum_and_sample": lambda latent, _: estimators.SumAndSample(latent.k),
    "gumbel": lambda latent, _: estimators.Relaxation(structmax.omega.Entropy(latent.temperature), latent.noise),
    "straight_through_gumbel": lambda latent, _: estimators.PerturbAndMAP(
        latent.noise, backward=structmax.omega.Entropy(latent.temperature)
    ),
    "rebar": lambda latent, _: estimators.Rebar(latent.temperature),
    "vimco": lambda latent, _: estimators.Vimco(latent.samples),
    # the sparsemax of the scores of all categories
    "sparsemax": lambda latent, _: estimators.SparseTopK(latent.size),
    "topk_sparsemax": lambda latent, _: estimators.SparseTopK(latent.k),
    "sparsemap": lambda latent, _: estimators.SparseSupport(),
    "sparsemap_budget": lambda latent, _: estimators.SparseSupport(),
}


class Tally:
    """Costs of instances, and how often f was called for each, gathered batch by batch."""

    def __init__(self) -> None:
        self.costs: list[Tensor] = []
        self.total = 0.0

    def add(self, costs: Tensor, calls: float) -> None:
        """Costs (B,), and the mean number of calls."""
        self.costs.append(costs)
        self.total += calls * len(costs)

    @property
    def cost(self) -> float:
        return torch.cat(self.costs).mean().item()

    @property
    def calls(self) -> float:
        return self.total / sum(map(len, self.costs))
