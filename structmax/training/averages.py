"""Means of what training steps report, without waiting for the device at each of them."""

import math
from typing import Any

import torch

from structmax.training.errors import Diverged
from structmax.training.task import Metrics

# how many steps, and how many seconds, may wait to be fetched
STEPS, SECONDS = 20, 0.5


class Averages:
    """Means over instances since they were last taken. Metrics stay on the device until `fetch`.

    Values are added one by one in the order of the steps, so that the means do not depend on when they were fetched.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, int] = {}
        self._waiting: list[tuple[int, int, Metrics]] = []
        self._fetched = 0.0

    def add(self, step: int, weight: int, metrics: Metrics) -> None:
        """Metrics of a step, means over `weight` instances."""
        self._waiting.append((step, weight, metrics))

    def is_due(self, seconds: float) -> bool:
        """Whether it is time to fetch, this many seconds after the run began."""
        due = len(self._waiting) >= STEPS or seconds - self._fetched > SECONDS
        self._fetched = seconds if due else self._fetched
        return due

    def fetch(self) -> None:
        """Waits for the device. Raises `Diverged` if a loss is not finite."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        values = iter(torch.stack([value.detach() for *_, metrics in waiting for value in metrics.values()]).tolist())
        for step, weight, metrics in waiting:
            for name in metrics:
                value = next(values)
                if name == "loss" and not math.isfinite(value):
                    raise Diverged(step, value)
                self._sums[name] = self._sums.get(name, 0.0) + value * weight
                self._weights[name] = self._weights.get(name, 0) + weight

    def means(self) -> dict[str, float]:
        """Of all that was fetched."""
        return {name: total / self._weights[name] for name, total in self._sums.items()}

    def clear(self) -> None:
        self._sums, self._weights = {}, {}

    def state(self) -> dict[str, Any]:
        """For a checkpoint, after `fetch`."""
        return {"sums": self._sums, "weights": self._weights}

    def load_state(self, state: dict[str, Any]) -> None:
        self._sums, self._weights = state["sums"], state["weights"]
