"""Times training steps of a recipe under several settings, in turns on the same batches.

    python benchmarks/recipe_steps.py translate --over attention=softmax,sparsemax,fusedmax
    python benchmarks/recipe_steps.py listops --over encoder=lstm,gold --set size=128 --set batch_size=128 --steps 100

A step reads a batch, computes its loss and gradient, and moves the parameters. All contenders have the batches of the
first epoch, up to `--steps` of them; what is compared is the sum over these batches of each one's median.
"""

import argparse
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure import take_turns
from benchmarks.run import device_name, show
from structmax import recipes
from structmax.training import Task


def stepper(task: Task[Any], indices: torch.Tensor, optimiser: torch.optim.Optimizer, clip: float) -> None:
    for loss, _ in task.updates(indices, torch.Generator(task.device)):
        optimiser.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), clip)
        optimiser.step()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=recipes.names())
    parser.add_argument("--over", required=True, metavar="field=a,b,c", help="values to compare, the first as baseline")
    parser.add_argument("--set", action="append", default=[], metavar="field=value", help="a setting of all")
    parser.add_argument("--steps", type=int, default=50, help="number of batches")
    parser.add_argument("--rounds", type=int, default=5, help="how often each batch is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    found = recipes.find(given.recipe)
    kinds = {field.name: type(field.default) for field in fields(found.config)}

    def read(text: str) -> dict[str, Any]:
        name, _, value = text.partition("=")
        if name not in kinds:
            parser.error(f"a setting should be one of {', '.join(kinds)}, but is {name!r}")
        return {name: value == "True" if kinds[name] is bool else kinds[name](value)}

    settings = {name: value for text in given.set for name, value in read(text).items()}
    over, _, values = given.over.partition("=")
    times: dict[str, list[float]] = {}
    tasks, optimisers = {}, {}
    for value in values.split(","):
        torch.manual_seed(0)
        config = found.config(**{**settings, **read(f"{over}={value}"), "device": given.device})
        tasks[value] = found.task(config, torch.device(given.device))
        optimisers[value] = tasks[value].optimiser()
        times[value] = []
        clip = config.clip
    for indices in list(tasks[next(iter(tasks))].batches(0))[: given.steps]:
        calls = {value: partial(stepper, tasks[value], indices, optimisers[value], clip) for value in tasks}
        for call in calls.values():
            call()
        for value, samples in take_turns(calls, given.device, given.rounds, budget_ms=1e6).items():
            times[value].append(median(samples))
    print(f"{given.recipe}, {device_name(given.device)}, {torch.get_num_threads()} threads")
    base = sum(next(iter(times.values())))
    lines = [[value, f"{sum(all) / len(all):.2f}", f"{sum(all) / base:.3f}x"] for value, all in times.items()]
    show([over, "ms of a step", "ratio"], lines)


if __name__ == "__main__":
    main()
