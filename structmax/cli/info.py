"""`structmax info`: what is installed, what would run, and where compiled kernels are kept."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

import structmax
from structmax import recipes
from structmax.cli.speech import console, say, table
from structmax.training import versions

QUESTIONS = ("argmax", "topk", "log_partition", "marginals", "sample", "sparsemap")
STRUCTURES: tuple[tuple[structmax.AbstractStructure, tuple[tuple[int, ...], ...]], ...] = (
    (structmax.Simplex(), ((3,),)),
    (structmax.LinearChain(), ((3, 2), (2, 2))),
    (structmax.SemiMarkov(), ((3, 2, 2), (2, 2))),
    (structmax.MonotoneAlignment(), ((3, 3),)),
    (structmax.ProjectiveTree(single_root=True), ((4, 4),)),
    (structmax.SpanningTree(single_root=True), ((4, 4),)),
    (structmax.BinaryTree(), ((3, 3),)),
    (structmax.Matching(), ((3, 3),)),
    (structmax.Subset(2), ((3,),)),
)


def show() -> None:
    """Prints it all."""
    say("  ".join(f"{name} {version}" for name, version in versions().items()))
    say(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads")
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    for device in devices[1:]:
        say(f"{device}: {torch.cuda.get_device_name(device)}")
    for device in dict.fromkeys(device.partition(":")[0] for device in devices):
        lines = table(f"on {device}", *QUESTIONS)
        for structure, shapes in STRUCTURES:
            scores = [torch.zeros(shape, device=device) for shape in shapes]
            answers = structmax.which(scores if len(scores) > 1 else scores[0], structure)
            lines.add_row(type(structure).__name__, *(_backend(answers[question]) for question in QUESTIONS))
        console.print(lines)
    for folder, size in _caches():
        say(f"compiled kernels: {size / 2**20:.1f} MiB in {folder}")
    say(f"recipes: {', '.join(recipes.names())}")


def _backend(answer: str) -> str:
    """The first word: the file and reasons follow it."""
    word = answer.replace(":", " ").replace(",", " ").split()[0]
    return "–" if word == "refused" else word


def _caches() -> Iterator[tuple[Path, int]]:
    """Where Numba and Triton keep what they compiled, and how many bytes it has."""
    package = Path(structmax.__file__).parent
    numba = Path(os.environ.get("NUMBA_CACHE_DIR", package))
    triton = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    for folder, pattern in ((numba, "*.nb[ic]"), (triton, "*")):
        if folder.exists():
            yield folder, sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())
