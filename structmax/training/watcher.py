"""Receives the progress of a run. The loop prints nothing itself."""

from dataclasses import dataclass

from structmax.training.run_folder import Row


@dataclass
class Place:
    """Where a run stands: between two steps, of which `batch` are done in this epoch and `step` in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    instances: int = 0
    # since the run began, and how many of them went into evaluations
    seconds: float = 0.0
    evaluating: float = 0.0

    @property
    def training(self) -> float:
        """Seconds without those of evaluations."""
        return max(self.seconds - self.evaluating, 1e-9)

    @property
    def instances_per_second(self) -> float:
        """Of training alone."""
        return self.instances / self.training


class Watcher:
    """Prints nothing. Subclasses show what they receive."""

    def begins(self, place: Place, epochs: int) -> None:
        """Training begins, or goes on."""

    def steps(self, place: Place, batches: int, means: dict[str, float]) -> None:
        """After a step, of so many in the epoch; means of what training has reported since the last evaluation."""

    def evaluates(self, split: str) -> None:
        """Before an evaluation."""

    def evaluated(self, row: Row, is_best: bool) -> None:
        """After an evaluation of the valid split."""
