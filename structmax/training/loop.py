"""The training loop. It can be stopped after any step, and resumes with the same numbers as if it had not been.

Of each batch, the task yields losses to step on. What a step reports stays on the device; the loop waits for it only
now and then, before an evaluation, and before a checkpoint.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

import torch
from torch import Tensor

from structmax import loading_seconds
from structmax.training import schedule
from structmax.training.averages import Averages
from structmax.training.distributed import Processes
from structmax.training.errors import DataError, Diverged, Interrupted, RunError
from structmax.training.interruption import Interruption
from structmax.training.run_folder import ANEW, Row, RunFolder
from structmax.training.task import Task, merit
from structmax.training.watcher import Place, Watcher

# How many processes have random numbers of their own for one seed.
PROCESSES = 1 << 16

T = TypeVar("T")


class Loop:
    """A task, the folder of its run, and where it stands.

    Args:
        task: what is trained.
        folder: for checkpoints and rows; if it has a checkpoint, training goes on from there.
        processes: that train together.
        watcher: is notified of progress.
    """

    def __init__(self, task: Task[Any], folder: RunFolder, processes: Processes, watcher: Watcher) -> None:
        self.task, self.folder, self.processes, self.watcher = task, folder, processes, watcher
        self.config = task.config
        self.place = Place()
        self.rows: list[Row] = []
        self.averages = Averages()
        processes.begin_alike(task.model)
        self.parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
        self.optimiser = task.optimiser()
        # Two streams: the default one, which dropout draws from, and the one handed to the task.
        stream = 2 * (self.config.seed * PROCESSES + processes.rank)
        torch.manual_seed(stream)
        self.generator = torch.Generator(task.device).manual_seed(stream + 1)
        self._go_on()
        # of the others, the task may know why: a score of −inf forbids something
        self._to_stay_finite = [p for p in self.parameters if p.numel() and p.isfinite().all()]
        self._began = _clock() - self.place.seconds

    # ---------------------------------------------------------------- training

    def train(self) -> None:
        """Trains to the end. A signal stops it after the current step with `Interrupted`, ready to be resumed."""
        place, config = self.place, self.config
        self.watcher.begins(place, config.epochs)
        self.task.model.train()
        with Interruption() as interruption:
            for indices, batches in self._ahead():
                self._step(indices, batches)
                self._count(indices, batches)
                place.seconds, heard = self.processes.agreed(self._seconds(), interruption.number)
                if self.averages.is_due(place.seconds):
                    self.averages.fetch()
                self.watcher.steps(place, batches, self.averages.means())
                is_due = self._is_late() or _crosses(place.batch or batches, batches, config.evaluations)
                if is_due:
                    self._evaluate(batches)
                    place.seconds, heard = self.processes.agreed(self._seconds(), interruption.number)
                if is_due or heard:
                    self._save()
                if heard:
                    raise Interrupted(int(heard))

    def _ahead(self) -> Iterator[tuple[Tensor, int]]:
        """The batches that are left, each with how many its epoch has."""
        while self.place.epoch < self.config.epochs:
            batches = self.task.batches(self.place.epoch)
            if not batches:
                raise RunError(f"Epoch {self.place.epoch} should have batches, but has none. Is there training data?")
            for indices in batches[self.place.batch :]:
                if self._is_late():
                    return
                yield indices, len(batches)

    def _step(self, indices: Tensor, batches: int) -> None:
        rate = schedule.factor(self.config, self.place.step, self._steps(batches), self.place.seconds)
        for group in self.optimiser.param_groups:
            whole = group.setdefault("initial_lr", group["lr"]) * rate
            group["lr"] = whole * self.task.rate(group, self.place.epoch)
        mine, share = self.processes.share(indices)
        updates = self.task.updates(mine, self.generator)
        while update := self._in_precision(lambda: next(updates, None)):
            loss, metrics = update
            self.optimiser.zero_grad(set_to_none=True)
            loss.backward()
            metrics = self.processes.average(self.parameters, {"loss": loss.detach(), **metrics}, share)
            if self.config.clip:
                torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
            self.optimiser.step()
            self.averages.add(self.place.step + 1, len(indices), metrics)

    def _steps(self, batches: int) -> float:
        """Of the whole run, at its pace so far: epochs may differ in length."""
        done, whole = self.place.epoch * batches + self.place.batch, self.config.epochs * batches
        return self.place.step * whole / done if done else whole

    def _count(self, indices: Tensor, batches: int) -> None:
        self.place.step += 1
        self.place.instances += len(indices)
        self.place.batch += 1
        if self.place.batch == batches:
            self.place.epoch, self.place.batch = self.place.epoch + 1, 0

    def _in_precision(self, compute: Callable[[], T]) -> T:
        with torch.autocast(self.task.device.type, torch.bfloat16, enabled=self.config.bf16):
            return compute()

    def _seconds(self) -> float:
        return _clock() - self._began

    def _is_late(self) -> bool:
        return 0 < 60 * self.config.minutes <= self.place.seconds

    # ---------------------------------------------------------------- judging

    def evaluate(self, split: str) -> dict[str, float]:
        """The task's own judgement, by the first process, for all."""
        self.watcher.evaluates(split)
        self.task.model.eval()
        with torch.no_grad():
            metrics = self._in_precision(lambda: self.task.evaluate(split)) if self.processes.is_first else None
        self.task.model.train()
        return self.processes.from_first(metrics)

    @torch.no_grad()
    def _settle(self) -> None:
        """Waits for all steps, and raises `Diverged` if one went astray: what is written is good."""
        self.averages.fetch()
        if not torch.nn.utils.get_total_norm(self._to_stay_finite, torch.inf).isfinite():
            raise Diverged(self.place.step)

    def _evaluate(self, batches: int) -> None:
        """Writes a row, and the model if it is the best so far."""
        place, before = self.place, self._seconds()
        self._settle()
        valid = self.evaluate("valid")
        if self.task.best not in valid:
            names = ", ".join(valid) or "none"
            raise ValueError(f"`best` should be a metric of evaluate ({names}), but is {self.task.best!r}.")
        row = {"step": place.step, "epoch": place.epoch + place.batch / batches, "seconds": round(before, 3)}
        row |= {f"train/{name}": value for name, value in self.averages.means().items()}
        row |= {f"valid/{name}": value for name, value in valid.items()}
        self.averages.clear()
        key = f"valid/{self.task.best}"
        is_best = all(merit(row[key]) > merit(earlier[key]) for earlier in self.rows)
        self.rows.append(row)
        if self.processes.is_first:
            self.folder.write_rows(self.rows)
            if is_best:
                state = {"step": place.step, "model": self.task.model.state_dict(), "task": self.task.state()}
                self.folder.save("best.pt", state | {"valid": valid})
        self.watcher.evaluated(row, is_best)
        place.evaluating += self._seconds() - before

    def load_best(self) -> dict[str, float]:
        """Makes the model the best so far; returns its step and what it was judged by."""
        best = self._best()
        with self.folder.restoring("best.pt"):
            self.task.model.load_state_dict(best["model"])
            self.task.load_state(best["task"])
            return {"step": best["step"], **best["valid"]}

    def _best(self) -> dict[str, Any]:
        if (best := self.folder.load("best.pt")) is None:
            reason = f"should exist, since the run has been evaluated, but does not. {ANEW}"
            raise DataError(self.folder.path / "best.pt", None, reason)
        return best

    # ---------------------------------------------------------------- stopping and going on

    def _save(self) -> None:
        self._settle()
        # each process has its own
        own = {
            "task": self.task.state(),
            "generator": self.generator.get_state(),
            "default": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(self.task.device) if self.task.device.type == "cuda" else None,
        }
        owned = self.processes.gathered(own)
        if self.processes.is_first:
            state = {
                "place": asdict(self.place),
                "model": self.task.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "averages": self.averages.state(),
                "processes": owned,
            }
            self.folder.save("last.pt", state)

    def _go_on(self) -> None:
        """From the checkpoint, if there is one."""
        state = self.folder.load("last.pt")
        if state is None:
            return
        with self.folder.restoring("last.pt"):
            self._take_up(state)
        # the end needs it: better to know now
        if self.rows:
            self._best()

    def _take_up(self, state: dict[str, Any]) -> None:
        if len(state["processes"]) != self.processes.count:
            raise RunError(
                f"The run in {self.folder.path} was started by {len(state['processes'])} processes "
                f"and should be resumed by as many, but there are {self.processes.count}."
            )
        own = state["processes"][self.processes.rank]
        here, there = self.task.device.type, "cpu" if own["cuda"] is None else "cuda"
        if here != there:
            raise RunError(
                f"The run in {self.folder.path} was started with the random numbers of {there} and should go on there, "
                f"but this is {here}. Try --device {there}."
            )
        self.place = Place(**state["place"])
        # An evaluation may have been written after the checkpoint: it comes again.
        self.rows = [row for row in self.folder.rows if row["step"] <= self.place.step]
        self.task.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.averages.load_state(state["averages"])
        self.task.load_state(own["task"])
        self.generator.set_state(own["generator"])
        torch.set_rng_state(own["default"])
        if own["cuda"] is not None:
            torch.cuda.set_rng_state(own["cuda"], self.task.device)


def _clock() -> float:
    """In seconds. It stands still while kernels are compiled or loaded: a first run gets as far as a second."""
    return time.perf_counter() - loading_seconds()


def _crosses(done: int, batches: int, evaluations: int) -> bool:
    """Whether the last of `done` batches completes one of so many equal parts of an epoch."""
    return done * evaluations // batches > (done - 1) * evaluations // batches
