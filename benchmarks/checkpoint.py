"""The memory and the time of the gradient of a long recursion, with and without `omega.Checkpointed`.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --positions 100000 --labels 8

A chain is listed as a user's `Hypergraph`. Each way runs in a process of its own, after the edges are made and every
kernel is compiled: `peak` is how far the resident memory of the process rises above that during forward and backward.
The edges themselves, which both ways hold, are printed beside it. Times are the best of three.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

import structmax
from structmax import omega

WAYS = {"plain": omega.LocalTsallis(1.5), "checkpointed": omega.Checkpointed(omega.LocalTsallis(1.5))}


def chain(positions: int, labels: int) -> structmax.Hypergraph:
    """Part n · C + c scores label c at position n; the last node chooses among the last labels."""
    every = torch.arange(labels)
    n, c, i = (t.flatten() for t in torch.meshgrid(torch.arange(1, positions), every, every, indexing="ij"))
    none, end = torch.full((labels,), -1), torch.full((labels,), positions * labels)
    head = torch.cat([every, n * labels + c, end])
    tail = torch.cat([none, (n - 1) * labels + i, (positions - 1) * labels + every])
    part = torch.cat([every, n * labels + c, none])
    return structmax.Hypergraph(head, tail.unsqueeze(1), part)


def resident() -> int:
    """Bytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def forget_peak() -> None:
    """The most from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def once(scores: torch.Tensor, structure: structmax.Hypergraph, way: omega.AbstractOmega) -> float:
    start = time.perf_counter()
    structmax.smoothed(scores, structure, way).sum().backward()
    return time.perf_counter() - start


def high_water() -> int:
    """The most since it was forgotten: ru_maxrss does not forget."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure(way: str, positions: int, labels: int) -> None:
    small = torch.zeros(1, 3 * labels, requires_grad=True)
    once(small, chain(3, labels), WAYS[way])
    structure = chain(positions, labels)
    scores = torch.randn(1, positions * labels, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scores.grad = torch.zeros_like(scores)
    # the structure's table of edges is made once
    fields = structure.fields((scores,))
    forget_peak()
    before = resident()
    seconds = min(once(scores, structure, WAYS[way]) for _ in range(3))
    edges = sum(fields[name].numel() * fields[name].element_size() for name in ("first", "tails", "parts"))
    print(
        f"{way:>13}: peak {(high_water() - before) / 2**20:7.1f} MiB, {seconds:6.2f} s; "
        f"edges {edges / 2**20:.1f} MiB, scores {scores.numel() * 4 / 2**20:.1f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--positions", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=8)
    parser.add_argument("--way", choices=list(WAYS))
    given = parser.parse_args()
    if given.way:
        measure(given.way, given.positions, given.labels)
        return
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way]
        sizes = ["--positions", str(given.positions), "--labels", str(given.labels)]
        # what is freed goes back to the system at once, so that it is not counted as held
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        subprocess.run([*command, *sizes], check=True, env=environment)


if __name__ == "__main__":
    main()
