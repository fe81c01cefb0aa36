"""One run from its first step to its summary: train, take the best model, test it, write down what came of it."""

import platform
import re
from contextlib import nullcontext
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from structmax.training.distributed import Processes, joined
from structmax.training.errors import RunError
from structmax.training.loop import Loop
from structmax.training.origin import origin
from structmax.training.run_folder import RunFolder, spelled
from structmax.training.task import C, Settings, Task
from structmax.training.watcher import Watcher

# What is before the name of a file, in each of several with commas between them.
FOLDERS = re.compile("[^,]*/")


def run(
    recipe: type[Task[C]], config: C, folder: Path, watcher: Watcher | None = None, command: str | None = None
) -> dict[str, Any]:
    """Trains a task and tests its best model. An interrupted run of the same config in the folder is resumed.

    Args:
        recipe: the task's class.
        config: its settings.
        folder: of the run; made if it is not there.
        watcher: is notified of progress; none by default.
        command: the command line that starts the same run again, for its report.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        Interrupted: by Ctrl-C or termination, after the current step; call again to resume.
        Diverged: the loss or a parameter is not finite; the folder keeps the last checkpoint from before.
        RunError: the folder holds a run of another config or is in use, or the device does not exist.

    Examples:
        >>> import tempfile
        >>> from structmax.recipes import clusters
        >>> config = clusters.Config(epochs=1, points=200, device="cpu")
        >>> summary = run(clusters.Recipe, config, Path(tempfile.mkdtemp()) / "first")
        >>> sorted(summary["test"])
        ['accuracy', 'explained', 'loss', 'v_measure']
    """
    processes = joined(config.device)
    place = RunFolder(Path(folder))
    with place.locked() if processes.is_first else nullcontext():
        return _run(recipe, config, place, processes, watcher, command)


def _run(
    recipe: type[Task[C]],
    config: C,
    place: RunFolder,
    processes: Processes,
    watcher: Watcher | None,
    command: str | None,
) -> dict[str, Any]:
    # the first process looks, for all
    if problem := processes.from_first(_conflict(place, config) if processes.is_first else None):
        raise RunError(problem)
    if summary := processes.from_first(place.summary):
        return summary
    torch.manual_seed(config.seed)
    task = recipe(config, processes.device)
    # now that there is data: where there is a config, a run was begun
    if processes.is_first and place.config is None:
        place.write("origin.json", origin(command))
        place.write("config.json", asdict(config))
    loop = Loop(task, place, processes, watcher if watcher and processes.is_first else Watcher())
    loop.train()
    summary = _tested(loop, config)
    if processes.is_first:
        place.write("structures.json", _drawn(task))
        place.write("summary.json", summary)
    return summary


def changed(config: Settings) -> dict[str, Any]:
    """What differs from the defaults.

    Examples:
        >>> changed(Settings(seed=1, schedule="cosine"))
        {'seed': 1, 'schedule': 'cosine'}
    """
    return {field.name: value for field in fields(config) if (value := getattr(config, field.name)) != field.default}


def name_of(config: Settings) -> str:
    """A name for the run: what differs from the defaults, or "default". Files go without their folders.

    Examples:
        >>> name_of(Settings(seed=1, bf16=True)), name_of(Settings())
        ('seed=1,bf16=True', 'default')
    """
    settings = {name: FOLDERS.sub("", v) if isinstance(v, str) else v for name, v in changed(config).items()}
    return spelled(settings) or "default"


def _conflict(folder: RunFolder, config: Settings) -> str | None:
    """Why the run cannot be here; None if it can."""
    stored, given = folder.config, asdict(config)
    if stored is not None and stored != given:
        differing = ", ".join(sorted(name for name in stored | given if stored.get(name) != given.get(name)))
        return f"{folder.path} should be empty or hold a run of this config, but its run differs in {differing}."
    return None


def _tested(loop: Loop, config: Settings) -> dict[str, Any]:
    best = loop.load_best()
    return {
        "recipe": type(loop.task).__module__.rpartition(".")[2],
        "name": loop.folder.path.name,
        "best": best,
        "test": loop.evaluate("test"),
        "meanings": loop.task.meanings,
        "better": loop.task.better(),
        "seconds": round(loop.place.seconds, 3),
        "instances_per_second": round(loop.place.instances_per_second, 1),
        "seconds_per_epoch": round(loop.place.training / loop.rows[-1]["epoch"], 3),
        "steps": loop.place.step,
        "parameters": sum(parameter.numel() for parameter in loop.parameters),
        "device": _spoken(loop.processes),
        "versions": versions(),
        "changed": changed(config),
    }


@torch.no_grad()
def _drawn(task: Task[Any]) -> list[dict[str, Any]]:
    task.model.eval()
    return task.drawings()


def _spoken(processes: Processes) -> str:
    """The devices in words."""
    if processes.device.type == "cuda":
        name = torch.cuda.get_device_name(processes.device)
    else:
        threads = torch.get_num_threads()
        name = f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"
    return name if processes.count == 1 else f"{processes.count} × {name}"


def versions() -> dict[str, str]:
    """Of Python and of what computes."""
    found = {"python": platform.python_version()}
    for package in ("structmax", "torch", "numpy", "numba", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
