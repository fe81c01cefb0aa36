"""The progress of a run: a bar and a line for each evaluation; only the lines if the output is not a terminal."""

import time
from datetime import timedelta

from rich.progress import BarColumn, Progress, TextColumn

from structmax.cli.speech import console, number, say
from structmax.training import Place, Watcher

# of the bar, in seconds: steps may be much faster
REFRESH = 0.1


class Bar(Watcher):
    """Shows the current epoch.

    Args:
        shown: names of the metrics there is room for.
        minutes: after which the run ends, or 0.
    """

    def __init__(self, shown: tuple[str, ...], minutes: float) -> None:
        self._shown, self._limit = shown, 60 * minutes
        self._drawn = 0.0
        self._epochs = 0
        texts = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[said]}")]
        columns = (texts[0], BarColumn(24), texts[1])
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar = self._progress.add_task("prepares", total=None, said="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def begins(self, place: Place, epochs: int) -> None:
        self._epochs = epochs
        if place.step:
            say(f"Resuming after step {place.step}.")

    def steps(self, place: Place, batches: int, means: dict[str, float]) -> None:
        now = time.perf_counter()
        if now - self._drawn < REFRESH:
            return
        self._drawn = now
        said = [f"{name} {number(means[name])}" for name in self._shown if name in means]
        said += [f"{place.instances_per_second:,.0f}/s", f"{self._remaining(place, batches)} left"]
        epoch = f"epoch {min(place.epoch + 1, self._epochs)}/{self._epochs}"
        self._progress.update(self._bar, description=epoch, total=batches, completed=place.batch, said="  ".join(said))

    def evaluates(self, split: str) -> None:
        self._progress.update(self._bar, said=f"evaluates {split} …")

    def evaluated(self, row: dict[str, float], is_best: bool) -> None:
        said = [f"epoch {row['epoch']:.4g}", f"step {row['step']}"]
        said += [f"{name} {number(value)}" for name, value in row.items() if "/" in name]
        say("  ".join([*said, *(["(best)"] if is_best else [])]))

    def _remaining(self, place: Place, batches: int) -> str:
        done = (place.epoch + place.batch / batches) / self._epochs
        seconds = place.seconds * (1 - done) / done
        if self._limit:
            seconds = min(seconds, self._limit - place.seconds)
        return str(timedelta(seconds=max(round(seconds), 0)))
