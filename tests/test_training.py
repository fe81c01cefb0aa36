"""The loop: what it computes, what it writes, how it stops, and that it goes on as if it had not stopped."""

import errno
import json
import math
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import scipy.stats
import torch
from torch import nn

from structmax.training import (
    DataError,
    Diverged,
    Interrupted,
    RunError,
    RunFolder,
    Settings,
    Task,
    Watcher,
    changed,
    comparison,
    intervals,
    lock,
    name_of,
    option,
    origin,
    run,
    schedule,
)
from structmax.training.averages import Averages
from structmax.training.distributed import Processes, joined
from structmax.training.origin import commit


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    device: str = option("cpu", "")
    epochs: int = option(3, "")
    batch_size: int = option(4, "")
    learning_rate: float = option(0.1, "")
    instances: int = option(22, "")
    draws: bool = option(False, "whether steps depend on chance")
    flavour: Literal["plain", "twice", "nan"] = option("plain", "")


class Line(Task[Config]):
    """A line through points. Its state and both sources of chance matter for the numbers."""

    best = "score"

    def __init__(self, config, device):
        super().__init__(config, device)
        generator = torch.Generator().manual_seed(config.seed)
        self.x = torch.randn(config.instances, 5, generator=generator)
        self.y = self.x @ torch.arange(5.0)
        self.model = nn.Sequential(nn.Linear(5, 1), nn.Dropout(0.3 if config.draws else 0.0))
        self.model.register_parameter("unused", nn.Parameter(torch.ones(2)))
        self.baseline = torch.zeros(())
        self.seen = []

    def batches(self, epoch):
        generator = torch.Generator().manual_seed(1000 * self.config.seed + epoch)
        return torch.randperm(self.config.instances, generator=generator).split(self.config.batch_size)

    def updates(self, indices, generator):
        assert self.model.training
        for _ in range(2 if self.config.flavour == "twice" else 1):
            self.seen.append(len(indices))
            noise = torch.randn(len(indices), generator=generator) if self.config.draws else 0.0
            error = self.model(self.x[indices]).squeeze(-1) - self.y[indices] + noise
            loss = (error**2).mean()
            if self.config.flavour == "nan" and len(self.seen) == 9:
                loss = loss * torch.nan
            if self.config.draws:
                self.baseline = 0.9 * self.baseline + 0.1 * loss.detach()
                loss = loss + 0.01 * self.baseline * error.mean()
            yield loss, {"size": error.detach().abs().mean()}

    def evaluate(self, split):
        assert not self.model.training
        assert not torch.is_grad_enabled()
        loss = ((self.model(self.x).squeeze(-1) - self.y) ** 2).mean().item()
        return {"loss": loss, "score": -loss}

    def drawings(self):
        return [{"kind": "matrix", "weights": self.model[0].weight.tolist()}]

    def state(self):
        return {"baseline": self.baseline}

    def load_state(self, state):
        self.baseline = state["baseline"]


def timeless(folder):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in RunFolder(folder).rows]


def weights(folder, name="last.pt"):
    return RunFolder(folder).load(name)["model"]


class StopAt(Watcher):
    """Presses Ctrl-C during a step."""

    def __init__(self, step, number=signal.SIGINT):
        self.step, self.number = step, number

    def steps(self, place, batches, means):
        # what is heard now is obeyed after the next step
        if place.step == self.step - 1:
            signal.raise_signal(self.number)


# ---------------------------------------------------------------- what a run leaves


def test_the_folder_has_all_of_it(tmp_path):
    summary = run(Line, Config(evaluations=2, draws=True), tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    assert folder.config == {field.name: field.default for field in fields(Config)} | {"evaluations": 2, "draws": True}
    assert folder.summary == json.loads(json.dumps(summary))
    assert summary["test"]["score"] == summary["best"]["score"] == max(row["valid/score"] for row in folder.rows)
    assert summary["parameters"] == 8
    assert summary["changed"] == {"evaluations": 2, "draws": True}
    assert summary["steps"] == 18
    # 6 batches an epoch, evaluated after 3 and 6
    assert [row["step"] for row in folder.rows] == [3, 6, 9, 12, 15, 18]
    assert [row["epoch"] for row in folder.rows] == [0.5, 1, 1.5, 2, 2.5, 3]
    assert {"train/loss", "train/size", "valid/loss", "valid/score"} < set(folder.rows[0])
    best = max(folder.rows, key=lambda row: row["valid/score"])
    assert folder.load("best.pt")["step"] == best["step"] == summary["best"]["step"]
    torch.testing.assert_close(
        torch.tensor(folder.read("structures.json")[0]["weights"]), weights(folder.path, "best.pt")["0.weight"]
    )
    assert not list(folder.path.glob(".*"))


def test_a_run_is_plain_descent(tmp_path):
    config = Config(clip=0.5, schedule="linear", warm_up=3, flavour="twice", evaluations=2)
    run(Line, config, tmp_path / "a")
    torch.manual_seed(0)
    task = Line(config, torch.device("cpu"))
    optimiser, losses, step = task.optimiser(), [], 0
    for epoch in range(3):
        for indices in task.batches(epoch):
            ramp = (step + 1) / 3 if step < 3 else 1 - (step - 3) / 15
            optimiser.param_groups[0]["lr"] = 0.1 * ramp
            step += 1
            for loss, _ in task.updates(indices, None):
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(task.model.parameters(), 0.5)
                optimiser.step()
                losses += [loss.item()] * len(indices)
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, weights(tmp_path / "a")[name]), name
    # the last half epoch: 3 batches of two updates, of 4, 4 and 2 instances
    assert timeless(tmp_path / "a")[-1]["train/loss"] == pytest.approx(sum(losses[-20:]) / 20, rel=1e-12)


def test_parameters_without_a_gradient_stay(tmp_path):
    run(Line, Config(), tmp_path / "a")
    assert torch.equal(weights(tmp_path / "a")["unused"], torch.ones(2))


def test_bfloat16_is_used_where_it_is_asked_for(tmp_path):
    run(Line, Config(bf16=True), tmp_path / "a")
    run(Line, Config(), tmp_path / "b")
    half, full = (weights(tmp_path / name)["0.weight"] for name in "ab")
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, atol=0.1, rtol=0.1)


def test_seeds_decide(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(Line, Config(seed=seed, draws=True), tmp_path / name)
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b") != timeless(tmp_path / "c")


def test_minutes_end_a_run_early(tmp_path):
    summary = run(Line, Config(minutes=1e-9, schedule="cosine"), tmp_path / "a")
    assert summary["steps"] == 1
    assert [row["step"] for row in RunFolder(tmp_path / "a").rows] == [1]


def test_the_clock_stands_still_while_kernels_are_compiled(tmp_path, monkeypatch):
    # a second goes by whenever somebody looks, and all of them into compilation
    seconds = [0]
    monkeypatch.setattr("structmax.training.loop.time.perf_counter", lambda: seconds.append(0) or len(seconds))
    monkeypatch.setattr("structmax.training.loop.loading_seconds", lambda: len(seconds))
    summary = run(Line, Config(minutes=1e-9), tmp_path / "a")
    assert summary["steps"] == run(Line, Config(), tmp_path / "b")["steps"] > 1


def test_a_finished_run_is_not_run_again(tmp_path):
    first = run(Line, Config(), tmp_path / "a")
    before = (tmp_path / "a" / "last.pt").stat().st_mtime_ns
    assert run(Line, Config(), tmp_path / "a") == json.loads(json.dumps(first))
    assert (tmp_path / "a" / "last.pt").stat().st_mtime_ns == before


# ---------------------------------------------------------------- stopping and going on


@pytest.mark.parametrize("step", [2, 8, 12, 17, 18])
@pytest.mark.parametrize("flavour", ["plain", "twice"])
def test_an_interrupted_run_goes_on_with_the_same_numbers(tmp_path, step, flavour):
    config = Config(draws=True, flavour=flavour, evaluations=2, schedule="cosine", warm_up=4)
    whole = run(Line, config, tmp_path / "whole")
    with pytest.raises(Interrupted, match="SIGINT") as stopped:
        run(Line, config, tmp_path / "parts", StopAt(step))
    assert stopped.value.number == signal.SIGINT
    assert RunFolder(tmp_path / "parts").load("last.pt")["place"]["step"] == step
    assert RunFolder(tmp_path / "parts").summary is None
    # nothing of this process may leak into what follows
    torch.randn(7)
    parts = run(Line, config, tmp_path / "parts")
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "parts")
    assert whole["test"] == parts["test"]
    for name in ("last.pt", "best.pt"):
        ours, theirs = (weights(tmp_path / folder, name) for folder in ("whole", "parts"))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), name


def test_a_run_killed_after_an_evaluation_repeats_it(tmp_path):
    config = Config(draws=True)
    run(Line, config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(Line, config, tmp_path / "parts", StopAt(9))
    folder = RunFolder(tmp_path / "parts")
    # as if the kill came between the row and the checkpoint
    folder.write_rows([*folder.rows, RunFolder(tmp_path / "whole").rows[1]])
    run(Line, config, folder.path)
    assert timeless(tmp_path / "whole") == timeless(folder.path)


def test_termination_is_an_interruption_too(tmp_path):
    with pytest.raises(Interrupted, match="SIGTERM"):
        run(Line, Config(), tmp_path / "a", StopAt(5, signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture
def interruptible():
    """As in a terminal; what runs in the background may have been told to ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_second_interruption_stops_at_once(tmp_path):
    class Impatient(Watcher):
        def steps(self, place, batches, means):
            if place.step == 4:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(Line, Config(), tmp_path / "a", Impatient())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not (tmp_path / "a" / "last.pt").exists()


def test_the_schedule_ends_with_the_run_though_epochs_grow(tmp_path):
    rates = []

    class Growing(Line):
        def batches(self, epoch):
            return super().batches(epoch)[: 2 * (epoch + 1)]

        def optimiser(self):
            self.kept = super().optimiser()
            return self.kept

        def updates(self, indices, generator):
            rates.append(self.kept.param_groups[0]["lr"])
            yield from super().updates(indices, generator)

    run(Growing, Config(schedule="linear", learning_rate=1.0), tmp_path / "a")
    # of 3 epochs, the first has 2 batches, the second 4 and the third 6
    done = [0, 1 / 2, 1, 5 / 4, 6 / 4, 7 / 4, 2, *(2 + i / 6 for i in range(1, 6))]
    assert rates == pytest.approx([1 - epochs / 3 for epochs in done])


def test_a_task_slows_a_group_of_parameters(tmp_path):
    rates = []

    class Slowing(Line):
        def optimiser(self):
            groups = [{"params": [p], "place": place} for place, p in enumerate(self.model.parameters())]
            self.kept = torch.optim.SGD(groups, self.config.learning_rate)
            return self.kept

        def rate(self, group, epoch):
            return 0.5 if epoch == 1 and group["place"] == 0 else 1.0

        def updates(self, indices, generator):
            rates.append([group["lr"] for group in self.kept.param_groups])
            yield from super().updates(indices, generator)

    run(Slowing, Config(learning_rate=0.1, epochs=3), tmp_path / "a")
    steps = len(rates) // 3
    assert [first for first, *_ in rates] == pytest.approx([0.1] * steps + [0.05] * steps + [0.1] * steps)
    assert {rate for _, *rest in rates for rate in rest} == {0.1}


# ---------------------------------------------------------------- errors


def test_a_full_disk(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RunError, match=r"a/best.pt could not be written: No space left on device."):
        run(Line, Config(), tmp_path / "a")
    assert not list((tmp_path / "a").glob(".*"))


def test_what_a_killed_run_was_writing_is_cleared(tmp_path):
    (tmp_path / ".1234.last.pt").touch()
    (tmp_path / ".notes").touch()
    RunFolder(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == [".notes"]


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    with pytest.raises(Diverged, match=r"should be finite, but is nan at step 9. Try a lower learning rate"):
        run(Line, Config(flavour="nan"), tmp_path / "a")
    # the checkpoint is from before
    assert RunFolder(tmp_path / "a").load("last.pt")["place"]["step"] == 6


@pytest.mark.parametrize("is_forbidden", [False, True])
def test_parameters_that_are_no_numbers_stop_the_run(tmp_path, is_forbidden):
    """After the last step too, when no loss follows; but not those that the task itself made infinite."""

    class Jumping(Line):
        def __init__(self, config, device):
            super().__init__(config, device)
            if is_forbidden:
                self.model.unused.data[0] = -torch.inf

        def updates(self, indices, generator):
            for loss, metrics in super().updates(indices, generator):
                yield loss, metrics
                if len(self.seen) == 12 and not is_forbidden:
                    self.model[0].weight.data[0, 0] = torch.inf

    if is_forbidden:
        assert run(Jumping, Config(epochs=2), tmp_path / "a")["steps"] == 12
        return
    with pytest.raises(
        Diverged, match=r"Parameters should be finite, but are not at step 12\. Try a lower learning rate"
    ):
        run(Jumping, Config(epochs=2), tmp_path / "a")
    folder = RunFolder(tmp_path / "a")
    assert folder.load("last.pt")["place"]["step"] == folder.load("best.pt")["step"] == 6
    assert folder.summary is None


# ---------------------------------------------------------------- one process at a time


def test_a_folder_is_held_by_one(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b")
    with folder.locked():
        assert (folder.path / lock.NAME).read_text() == f"process {os.getpid()} on {platform.node()}"
        with pytest.raises(RunError, match=rf"a/b should be used by one run at a time, but process {os.getpid()} on"):
            run(Line, Config(), folder.path)
        with pytest.raises(RunError, match=r"uses it\. Wait until it ends, or choose another --name\."):
            folder.clear()
    # nothing was put into it
    assert not (tmp_path / "a").exists()
    run(Line, Config(epochs=1), folder.path)
    assert not (folder.path / lock.NAME).exists()


def test_a_run_that_was_killed_holds_nothing(tmp_path):
    folder = RunFolder(tmp_path)
    child = os.fork()
    if not child:
        with folder.locked():
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (tmp_path / lock.NAME).read_text().startswith(f"process {child} on")
    with folder.locked():
        assert (tmp_path / lock.NAME).read_text().startswith(f"process {os.getpid()} on")


def test_a_lock_on_a_file_that_went_is_none(tmp_path, monkeypatch):
    taken = []
    take = lock._lock

    def late(file, path):
        take(file, path)
        if not taken:
            # who held it goes just before
            path.unlink()
        taken.append(file)

    monkeypatch.setattr(lock, "_lock", late)
    with lock.locked(tmp_path):
        assert len(taken) == 2
        assert (tmp_path / lock.NAME).exists()


def test_a_folder_is_held_where_there_is_no_fcntl(tmp_path, monkeypatch):
    held = set()

    def locking(file, mode, count):
        assert (mode, count, os.lseek(file, 0, os.SEEK_CUR)) == (2, 1, lock.FAR)
        if held:
            raise OSError(errno.EACCES, "Permission denied")
        held.add(file)

    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    # the second does not get in
    with (
        lock.locked(tmp_path),
        pytest.raises(RunError, match=f"but process {os.getpid()} on .* uses it"),
        lock.locked(tmp_path),
    ):
        raise AssertionError


def test_a_drive_without_locks(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", flock)
    words = r"cannot be locked \(No locks available\)\. Start one run at a time\."
    with pytest.warns(UserWarning, match=words), lock.locked(tmp_path):
        pass


def test_a_folder_belongs_to_one_config(tmp_path):
    run(Line, Config(), tmp_path / "a")
    with pytest.raises(RunError, match="but its run differs in epochs, seed"):
        run(Line, Config(seed=4, epochs=1), tmp_path / "a")


def test_the_best_is_a_metric(tmp_path):
    class Other(Line):
        best = "beauty"

    with pytest.raises(ValueError, match=r"should be a metric of evaluate \(loss, score\), but is 'beauty'"):
        run(Other, Config(), tmp_path / "a")


def test_an_epoch_has_batches(tmp_path):
    class Empty(Line):
        def batches(self, epoch):
            return []

    with pytest.raises(RunError, match="Epoch 0 should have batches, but has none"):
        run(Empty, Config(), tmp_path / "a")


def test_as_many_processes_go_on(tmp_path):
    with pytest.raises(Interrupted):
        run(Line, Config(), tmp_path / "a", StopAt(3))
    folder = RunFolder(tmp_path / "a")
    state = folder.load("last.pt")
    folder.save("last.pt", state | {"processes": state["processes"] * 2})
    with pytest.raises(RunError, match="was started by 2 processes and should be resumed by as many, but there are 1"):
        run(Line, Config(), tmp_path / "a")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 0}, "`epochs` should be at least 1, but is 0"),
        ({"learning_rate": -1.0}, "`learning_rate` should be at least 0, but is -1.0"),
        ({"schedule": "step"}, "`schedule` should be one of constant, cosine, linear, but is 'step'"),
        ({"flavour": "sour"}, "`flavour` should be one of plain, twice, nan, but is 'sour'"),
        ({"flavour": "twise"}, "but is 'twise'. Did you mean twice?"),
        ({"seed": 2**32}, "`seed` should be at most 4294967295, but is 4294967296"),
        ({"epochs": 2.0}, "`epochs` should be of type int, but is 2.0"),
        ({"device": None}, "`device` should be of type str, but is None"),
        ({"epochs": 2**63}, "`epochs` should be a number of at most 64 bits, but is 9223372036854775808"),
    ],
)
def test_bad_settings(given, said):
    with pytest.raises(ValueError, match=said):
        Config(**given)


def test_bad_devices(tmp_path):
    with pytest.raises(RunError, match="should be auto, cpu or a GPU such as cuda:1, but is 'tpu'"):
        run(Line, Config(device="tpu"), tmp_path / "a")
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match=r"but is 'cuda': it has no GPU. Try auto"):
            run(Line, Config(device="cuda"), tmp_path / "a")


def test_data_errors_say_where():
    assert str(DataError("a.txt", None, "should be there, but is not")) == "a.txt: should be there, but is not"
    assert isinstance(DataError("a.txt", 1, ""), ValueError)


# ---------------------------------------------------------------- the parts


def test_schedules():
    def rates(seconds=0.0, **settings):
        config = Settings(**settings)
        return [round(schedule.factor(config, step, 4, seconds), 4) for step in range(5)]

    assert rates() == [1, 1, 1, 1, 1]
    assert rates(schedule="linear") == [1, 0.75, 0.5, 0.25, 0]
    assert rates(schedule="cosine") == [1, 0.8536, 0.5, 0.1464, 0]
    assert rates(schedule="linear", warm_up=2) == [0.5, 1, 1, 0.5, 0]
    # half of the time is over
    assert rates(schedule="linear", minutes=1.0, seconds=30.0) == [0.5, 0.5, 0.5, 0.25, 0]
    assert rates(schedule="linear", warm_up=9) == [0.1111, 0.2222, 0.3333, 0.4444, 0.5556]


def test_averages_do_not_depend_on_when_they_are_fetched():
    values = torch.randn(50, dtype=torch.float64).abs()
    means = []
    for often in (1, 7, 50):
        averages = Averages()
        for step, value in enumerate(values):
            averages.add(step, step + 1, {"loss": value.float(), **({"other": value} if step % 2 else {})})
            if step % often == 0:
                averages.fetch()
        averages.fetch()
        means.append(averages.means())
    assert means[0] == means[1] == means[2]
    weight = torch.arange(1, 51)
    assert means[0]["loss"] == pytest.approx((values.float() * weight).sum().item() / weight.sum().item())
    assert means[0]["other"] == pytest.approx(((values * weight)[1::2].sum() / weight[1::2].sum()).item())


def test_averages_are_fetched_now_and_then():
    averages = Averages()
    for step in range(20):
        assert not averages.is_due(seconds=0.1)
        averages.add(step, 1, {"loss": torch.ones(())})
    assert averages.is_due(seconds=0.1)
    averages.fetch()
    assert not averages.is_due(seconds=0.2)
    assert averages.is_due(seconds=0.7)


def test_names_of_runs():
    assert name_of(Config()) == "default"
    assert name_of(Config(seed=2, flavour="twice")) == "seed=2,flavour=twice"
    assert name_of(Config(device="of/a/x.de,b/x.en")) == "device=x.de,x.en"
    assert changed(Config(draws=True)) == {"draws": True}


def test_rows_of_a_comparison():
    members = comparison.members(Config(), {"flavour": ["plain", "twice"], "clip": [0.0]}, seeds=2)
    assert [member.name for member in members][1] == "flavour=plain,clip=0.0,seed=1"
    scores = iter([1.0, 2.0, 5.0])
    outcomes = {
        member.name: comparison.Outcome({"test": {"score": next(scores)}, "seconds": 2.0}) for member in members[:3]
    }
    outcomes[members[3].name] = comparison.Outcome(error="no")
    first, second = comparison.rows(members, outcomes, "score", {"score": "higher", "loss": "lower"})
    assert first["setting"] == {"flavour": "twice", "clip": 0.0}
    assert first["metrics"]["score"] == {"mean": 5.0, "std": 0.0, "ci95": None, "values": [5.0], "mark": "best"}
    assert (first["runs"], first["error"], second["error"]) == (1, "no", None)
    spread = {"std": pytest.approx(0.5**0.5), "ci95": pytest.approx(12.7062 / 2, rel=1e-4)}
    assert second["metrics"]["score"] == {"mean": 1.5, **spread, "values": [1.0, 2.0]}


def test_rows_of_values_that_are_not_finite():
    members = comparison.members(Config(), {"clip": [0.0, 1.0, 2.0]}, seeds=2)
    scores = iter([math.nan, 1.0, 0.1, 0.1, math.inf, 0.9])
    outcomes = {m.name: comparison.Outcome({"test": {"score": next(scores)}, "seconds": 2.0}) for m in members}
    found = comparison.rows(members, outcomes, "score", {"score": "higher"})
    assert [row["setting"]["clip"] for row in found] == [2.0, 1.0, 0.0]
    assert [math.isnan(row["metrics"]["score"]["std"]) for row in found] == [True, False, True]


@pytest.mark.parametrize(("direction", "best"), [("higher", [2, 3]), ("lower", [0, 1])])
def test_the_best_is_marked_and_what_seeds_cannot_tell_from_it(direction, best):
    members = comparison.members(Config(), {"clip": [0.0, 1.0, 2.0, 3.0]}, seeds=3)
    scores = iter([1.0, 1.1, 1.2, 1.1, 1.2, 1.3, 2.0, 2.1, 2.2, 2.1, 2.2, 2.3])
    outcomes = {m.name: comparison.Outcome({"test": {"score": next(scores)}, "seconds": 2.0}) for m in members}
    found = comparison.rows(members, outcomes, "other", {"score": direction})
    marks = [row["metrics"]["score"].get("mark") for row in found]
    assert marks.count("best") == marks.count("tied") == 1
    assert [i for i, mark in enumerate(marks) if mark] == best
    assert marks.index("best") == (3 if direction == "higher" else 0)
    # nothing is marked where nothing is compared, or where no better direction is known
    for runs, better in ((members[:3], {"score": direction}), (members, {})):
        assert not any("mark" in row["metrics"]["score"] for row in comparison.rows(runs, outcomes, "other", better))


def test_equal_means_are_equally_good():
    members = comparison.members(Config(), {"clip": [0.0, 1.0, 2.0]}, seeds=1)
    scores = iter([1.0, 2.0, 2.0])
    outcomes = {m.name: comparison.Outcome({"test": {"score": next(scores)}, "seconds": 2.0}) for m in members}
    found = comparison.rows(members, outcomes, "score", {"score": "higher"})
    assert [row["metrics"]["score"].get("mark") for row in found] == ["best", "best", None]


def test_intervals_are_those_of_student_and_welch():
    for freedom in (1, 2, 3, 4, 5, 9, 30, 101):
        assert intervals.critical(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-9)
    values = [0.3, 0.5, 0.1, 0.9]
    low, high = scipy.stats.t.interval(0.95, 3, statistics.mean(values), scipy.stats.sem(values))
    assert intervals.half_width(values) == pytest.approx((high - low) / 2)
    assert math.isnan(intervals.half_width([1.0, math.inf]))
    for apart in (0.1, 0.3, 0.4, 0.8, 2.0):
        others = [value + apart for value in (0.3, 0.32, 0.35)]
        test = scipy.stats.ttest_ind(values, others, equal_var=False)
        # degrees of freedom are rounded down, which can only keep means together
        kept = abs(test.statistic) < scipy.stats.t.ppf(0.975, math.floor(test.df))
        assert intervals.differ(values, others) is not bool(kept)
    assert intervals.differ([1.0, 1.0], [1.0, 1.0]) is False
    assert intervals.differ([1.0, 1.0], [2.0, 2.0]) is True
    assert intervals.differ([1.0], [2.0, 3.0]) is intervals.differ([1.0, math.nan], [2.0, 3.0]) is None


# ---------------------------------------------------------------- where a run comes from


def git(folder, *words):
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *me, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git on PATH")
def test_a_run_knows_the_commit_of_its_project(tmp_path, monkeypatch):
    # however busy the machine is
    monkeypatch.setattr(origin, "PATIENCE", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    git(tmp_path, "init")
    assert commit() is None
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    clean = commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    # files that git does not know, such as runs, are no changes
    (tmp_path / "other").write_text("two")
    assert commit() == clean
    (tmp_path / "file").write_text("three")
    assert commit() == f"{clean} + changes"


def test_a_run_does_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit() is None

    def slow(question, *, timeout, **more):
        raise subprocess.TimeoutExpired(question, timeout)

    monkeypatch.setattr(subprocess, "run", slow)
    assert commit() is None


def test_a_resumed_run_keeps_its_origin(tmp_path):
    with pytest.raises(Interrupted):
        run(Line, Config(), tmp_path / "a", StopAt(7), command="first")
    begun = RunFolder(tmp_path / "a").read("origin.json")
    assert begun["command"] == "first"
    run(Line, Config(), tmp_path / "a", command="second")
    assert RunFolder(tmp_path / "a").read("origin.json") == begun


def test_a_run_goes_on_where_it_was_begun(tmp_path):
    with pytest.raises(Interrupted):
        run(Line, Config(), tmp_path / "a", StopAt(3))
    folder = RunFolder(tmp_path / "a")
    state = folder.load("last.pt")
    state["processes"][0]["cuda"] = torch.zeros(16, dtype=torch.uint8)
    folder.save("last.pt", state)
    with pytest.raises(RunError, match=r"should go on there, but this is cpu. Try --device cuda\."):
        run(Line, Config(), tmp_path / "a")


# ---------------------------------------------------------------- several processes


def test_shares_of_a_batch():
    shares = [Processes(torch.device("cpu"), rank, 3).share(torch.arange(2)) for rank in range(3)]
    # the third has nothing, and makes the same steps with an instance that does not count
    assert [(mine.tolist(), part) for mine, part in shares] == [([0], 0.5), ([1], 0.5), ([0], 0.0)]


def test_one_process_needs_nobody():
    alone = joined("cpu")
    assert alone.is_first
    assert alone.agreed(1.0, 2.0) == [1.0, 2.0]
    assert alone.gathered("x") == ["x"]


def torchrun(script: Path, *arguments: object) -> subprocess.CompletedProcess:
    # any free port: other tests may run at the same time
    where = ["--nproc-per-node", "2", "--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command = [sys.executable, "-m", "torch.distributed.run", *where, str(script), *map(str, arguments)]
    tests = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.thorough
def test_two_processes_train_as_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import signal, sys
        from pathlib import Path
        import torch
        torch.set_num_threads(1)
        from structmax.training import Interrupted, RunFolder, run
        from test_training import Config, Line, StopAt

        class Sometimes(Line):
            # a parameter that one process alone has a gradient for
            def updates(self, indices, generator):
                for loss, metrics in super().updates(indices, generator):
                    rare = (indices == 3).float().mean()
                    yield loss + (rare * self.model.unused.sum() if (indices == 3).any() else 0.0), metrics

        def go(folder, **more):
            # batches of 7, 7, 7 and 1: uneven shares, and an empty one
            return run(Sometimes, Config(batch_size=7, clip=1.0, epochs=4, evaluations=2), Path(folder), **more)

        if __name__ == "__main__":
            go(sys.argv[1] + "/whole")
            try:
                go(sys.argv[1] + "/parts", watcher=StopAt(6))
            except Interrupted:
                go(sys.argv[1] + "/parts")
        """)
    )
    said = torchrun(script, tmp_path)
    assert said.returncode == 0, said.stderr
    namespace: dict = {"__name__": "script"}
    exec(script.read_text(), namespace)
    namespace["go"](tmp_path / "alone")
    one, two, parts = (weights(tmp_path / name) for name in ("alone", "whole", "parts"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=0)
        assert torch.equal(parts[name], two[name]), name
    assert not torch.equal(one["unused"], torch.ones(2))
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "parts")
    for ours, theirs in zip(timeless(tmp_path / "whole"), timeless(tmp_path / "alone"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert RunFolder(tmp_path / "whole").summary["device"].startswith("2 × ")
