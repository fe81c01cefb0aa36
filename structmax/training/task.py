"""What a recipe is: settings that users may change, and a task made of them.

A recipe is a file with two classes, `Config`, a frozen dataclass over `Settings`, and `Recipe`, a `Task`. The file's
name is the recipe's, its docstring the description, and the fields of `Config` are the flags.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from structmax.training.errors import nearest

Metrics = dict[str, Tensor]


def option(default: Any, help: str) -> Any:
    """A field of a Config, with the sentence `--help` prints. Choices are a `Literal` type."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of every recipe.

    `least` has the smallest values that make sense: `Settings.least | {"size": 1}` adds one. `most` has the largest.
    """

    least: ClassVar[dict[str, float]] = {
        "seed": 0,
        "epochs": 1,
        "minutes": 0,
        "batch_size": 1,
        "learning_rate": 0,
        "warm_up": 0,
        "clip": 0,
        "evaluations": 1,
    }
    # a seed that all random number generators accept, and a rate that optimisers can still multiply
    most: ClassVar[dict[str, float]] = {"seed": 2**32 - 1, "learning_rate": 1e30}

    seed: int = option(0, "seed of all random numbers: data, initial weights, samples")
    device: str = option("auto", "auto, cpu, cuda or cuda:1; auto takes a GPU if there is one")
    bf16: bool = option(False, "compute in bfloat16 wherever torch.autocast does")
    epochs: int = option(10, "passes over the training data")
    minutes: float = option(0.0, "stop training after this many minutes; 0 for no limit")
    batch_size: int = option(64, "number of instances in a step, over all processes together")
    learning_rate: float = option(1e-3, "highest learning rate of the optimiser")
    schedule: Literal["constant", "cosine", "linear"] = option(
        "constant", "how the learning rate changes after the warm-up, until the last epoch or the time limit"
    )
    warm_up: int = option(0, "number of steps until the learning rate is at its highest")
    clip: float = option(0.0, "largest norm of the gradient; 0 for no limit")
    evaluations: int = option(1, "number of evaluations in an epoch, including the one at its end")

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for told in fields(self):
            _check(told.name, kinds[told.name], getattr(self, told.name))
        for name, least in self.least.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"`{name}` should be at least {least}, but is {getattr(self, name)}.")
        for name, most in self.most.items():
            if not getattr(self, name) <= most:
                raise ValueError(f"`{name}` should be at most {most}, but is {getattr(self, name)}.")


def _check(name: str, kind: Any, value: Any) -> None:
    """A field is of the type it is said to be of: a config may come from a file."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(map(str, get_args(kind)))
            raise ValueError(f"`{name}` should be one of {choices}, but is {value!r}.{nearest(value, get_args(kind))}")
        return
    accepted: Any = {int: int, float: (int, float), str: str, bool: bool}.get(kind, object)
    # True is an int in Python, but should not count as one here
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"`{name}` should be of type {kind.__name__}, but is {value!r}.")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"`{name}` should be a number of at most 64 bits, but is {value}.")


C = TypeVar("C", bound=Settings)


class Task(ABC, Generic[C]):
    """Data, a model, and how it learns. Made with the config and the device; random numbers come from its seed.

    `model` holds all that is trained. `best` names the metric of `evaluate` whose largest value marks the best
    checkpoint; `shown` the metrics of a training step that a progress bar has room for; `meanings` explains metrics.
    Of other metrics than `best`, `higher` names those that are better when they are higher, `lower` those that are
    better when they are lower.
    """

    model: nn.Module
    best: ClassVar[str] = "accuracy"
    shown: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    meanings: ClassVar[dict[str, str]] = {}
    higher: ClassVar[tuple[str, ...]] = ("accuracy",)
    lower: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(self, config: C, device: torch.device) -> None:
        self.config = config
        self.device = device

    @classmethod
    def better(cls) -> dict[str, str]:
        """The better direction of each metric that has one: "higher" or "lower"."""
        return {**dict.fromkeys(cls.lower, "lower"), **dict.fromkeys((*cls.higher, cls.best), "higher")}

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Tensor]:
        """The batches of an epoch, each the indices of its instances; the same for the same seed and epoch."""

    def shuffling(self, epoch: int) -> torch.Generator:
        """Random numbers for the batches of an epoch, on the CPU; the same for the same seed and epoch."""
        return torch.Generator().manual_seed(self.config.seed + 1_000_003 * (epoch + 1))

    @abstractmethod
    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Metrics]]:
        """The losses of one batch to step on, one after the other: most tasks yield one, PPO several.

        A loss is a mean over the instances. The optimiser has stepped when the next is asked for; parameters without
        a gradient stay. Metrics are means over instances too, tensors without gradient: the loop never waits for a GPU.

        Args:
            indices: of the instances, those of this process.
            generator: random number generator on the task's device.
        """

    @abstractmethod
    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics over held-out data, with the model as it is: "valid" during training, "test" at the end."""

    def optimiser(self) -> torch.optim.Optimizer:
        """Adam by default. Groups may have learning rates of their own: the schedule multiplies them."""
        return torch.optim.Adam(self.model.parameters(), self.config.learning_rate, fused=True)

    def rate(self, group: Mapping[str, Any], epoch: int) -> float:
        """The share of its learning rate that a group of the optimiser has in an epoch, beside the schedule."""
        return 1.0

    def drawings(self) -> list[dict[str, Any]]:
        """Structures worth looking at, as `structmax.plots.structures` takes them. None by default."""
        return []

    def state(self) -> dict[str, Any]:
        """Other state that is needed to resume with the same numbers, such as running baselines.

        Tensors, numbers and strings, in dicts and lists.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse."""


def merit(best: float) -> float:
    """How good a value of the metric `best` is: NaN is worse than any other."""
    return -math.inf if math.isnan(best) else best
