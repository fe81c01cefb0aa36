"""Times soft sorts and ranks over permutahedra beside `torch.sort`, with gradients: `python benchmarks/sorting.py`.

A small temperature pools nothing, a large one everything. All contenders take turns on the same values.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.measure import take_turns
from benchmarks.run import device_name, show

TEMPERATURES = (0.001, 1.0, 1000.0)
BUDGET_MS = 10000.0


def contenders(temperature: float) -> dict[str, Callable[[Tensor], Tensor]]:
    squared, entropy = structmax.omega.SquaredNorm(temperature), structmax.omega.Entropy(temperature)
    return {
        "torch.sort": lambda x: x.sort(dim=-1).values,
        "soft_sort": lambda x: structmax.soft_sort(x, squared),
        "soft_rank": lambda x: structmax.soft_rank(x, squared),
        "soft_sort, entropy": lambda x: structmax.soft_sort(x, entropy, over="permutahedron"),
        "soft_rank, entropy": lambda x: structmax.soft_rank(x, entropy, over="permutahedron"),
    }


def step(ask: Callable[[Tensor], Tensor], x: Tensor, d_y: Tensor) -> Tensor:
    return torch.autograd.grad(ask(x), x, d_y)[0]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    x, d_y = torch.randn(2, given.rows, given.length, device=given.device)
    x.requires_grad_()
    print(f"{device_name(given.device)}, ({given.rows}, {given.length}), float32, forward and backward")
    lines = []
    for temperature in TEMPERATURES:
        calls = {name: partial(step, ask, x, d_y) for name, ask in contenders(temperature).items()}
        for call in calls.values():
            # compiles kernels
            call()
        times = take_turns(calls, given.device, given.rounds, BUDGET_MS)
        baseline = median(times["torch.sort"])
        for name, samples in times.items():
            middle = median(samples)
            lines.append([f"{temperature:g}", name, f"{middle:.1f}", f"{middle / baseline:.2f}x"])
    show(["temperature", "contender", "ms", "ratio"], lines)


if __name__ == "__main__":
    main()
