"""The table of what is timed, and the bars it should clear. A new task is one row of `TASKS` and one of `SHAPES`."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

import torch
from torch import Tensor

import structmax

Shape = tuple[int, int]

# Ours by name: (scores (B, n), target (B,), backend) → probabilities (B, n), or the mean loss.
TASKS: dict[str, Callable[[Tensor, Tensor, str], Tensor]] = {
    "softmax": lambda x, _, backend: structmax.softmax(x, backend=backend),
    "sparsemax": lambda x, _, backend: structmax.sparsemax(x, backend=backend),
    "entmax15": lambda x, _, backend: structmax.entmax15(x, backend=backend),
    "entmax13": lambda x, _, backend: structmax.entmax(x, 1.3, backend=backend),
    "entmax17": lambda x, _, backend: structmax.entmax(x, 1.7, backend=backend),
    "entmax_by_head": lambda x, _, backend: by_head(x, backend),
    "sparsemax_loss": lambda x, y, backend: structmax.sparsemax_loss(x, y, backend=backend),
    "entmax15_loss": lambda x, y, backend: structmax.entmax15_loss(x, y, backend=backend),
    "fusedmax": lambda x, _, backend: structmax.fusedmax(x, 0.1, backend=backend),
    "oscarmax": lambda x, _, backend: structmax.oscarmax(x, 0.01, backend=backend),
}

MAPPINGS = ("softmax", "sparsemax", "entmax15", "entmax13")
ALPHAS = ("entmax17", "entmax_by_head")
LOSSES = ("sparsemax_loss", "entmax15_loss")
PROXIMAL = ("fusedmax", "oscarmax")

# Attention-sized, classifier-sized and vocabulary-sized rows; on the GPU also a large vocabulary.
SHAPES: dict[str, dict[tuple[str, ...], tuple[Shape, ...]]] = {
    "cpu": {
        MAPPINGS + LOSSES: ((4096, 1000), (256, 32000), (32768, 64)),
        PROXIMAL: ((1024, 64), (256, 512)),
    },
    "cuda": {
        MAPPINGS + LOSSES: ((4096, 1000), (8192, 32000), (65536, 64), (2048, 128000)),
        ALPHAS: ((4096, 1000), (8192, 32000), (65536, 64)),
    },
}
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}
BACKENDS = {"cpu": "numba", "cuda": "triton"}


def by_head(x: Tensor, backend: str) -> Tensor:
    """Rows of eight heads, each with its own alpha."""
    return structmax.entmax(x.unflatten(0, (-1, 8, 1)), alphas(x.device), backend=backend).flatten(0, 2)


@functools.cache
def alphas(device: torch.device) -> Tensor:
    return torch.linspace(1.2, 1.8, 8, device=device)


@dataclass(frozen=True)
class Case:
    """One task at one shape in one dtype."""

    task: str
    shape: Shape
    dtype: torch.dtype

    @property
    def name(self) -> str:
        rows, n = self.shape
        return f"{self.task}/{rows}x{n}/{spoken(self.dtype)}"

    @property
    def family(self) -> str:
        return "losses" if self.task in LOSSES else "proximal" if self.task in PROXIMAL else "mappings"

    def ours(self, device: str) -> Callable[[Tensor, Tensor], Tensor]:
        """Our call with the device's kernel by name: a missing kernel is refused and not replaced by the reference."""
        return lambda scores, target: TASKS[self.task](scores, target, BACKENDS[device])


def spoken(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cases(device: str, only: list[str], dtypes: tuple[torch.dtype, ...] | None = None) -> list[Case]:
    """The cases of a device whose task or name matches one of the patterns in `only`; all of them if it is empty."""
    every = [
        Case(task, shape, dtype)
        for tasks, shapes in SHAPES[device].items()
        for task in tasks
        for shape in shapes
        for dtype in dtypes or DTYPES[device]
    ]
    return [case for case in every if not only or any(_matches(case, pattern) for pattern in only)]


def _matches(case: Case, pattern: str) -> bool:
    return case.task == pattern or fnmatchcase(case.name, pattern)


@dataclass(frozen=True)
class Inputs:
    """Scores (B, n) that require a gradient, targets (B,), and the cotangent of probabilities (B, n)."""

    scores: Tensor
    target: Tensor
    cotangent: Tensor

    @staticmethod
    def of(case: Case, device: str) -> "Inputs":
        generator = torch.Generator(device).manual_seed(0)
        rows, n = case.shape
        scores, cotangent = (torch.randn(rows, n, device=device, generator=generator).to(case.dtype) for _ in range(2))
        target = torch.randint(n, (rows,), device=device, generator=generator)
        return Inputs(scores.requires_grad_(), target, cotangent)

    def hostile(self, rows: int) -> "Inputs":
        """The first rows, of which one has forbidden entries and one is all ties."""
        scores, target = self.scores.detach()[:rows].clone(), self.target[:rows].clone()
        scores[1:2, 1::2] = -inf
        target[1:2] = 0
        scores[2:3] = 0
        return Inputs(scores.requires_grad_(), target, self.cotangent[:rows])

    def widened(self, scale: float) -> "Inputs":
        """The same in float64, the scores times `scale`."""
        scores = self.scores.detach().double() * scale
        return Inputs(scores.requires_grad_(), self.target, self.cotangent.double())

    def gradient(self, out: Tensor) -> Tensor:
        """The gradient of the scores, from the cotangent or, for a loss, from 1."""
        return torch.autograd.grad(out, self.scores, self.cotangent if out.dim() else None)[0]


@dataclass(frozen=True)
class Bar:
    """Forward and backward of these tasks should take at most `limit`: ms, or times the baseline (`ratio`)."""

    device: str
    tasks: tuple[str, ...]
    limit: float
    unit: str
    shapes: tuple[Shape, ...] | None = None
    dtype: torch.dtype | None = None

    def cases(self) -> Iterator[Case]:
        for case in cases(self.device, list(self.tasks)):
            if (self.shapes is None or case.shape in self.shapes) and self.dtype in (None, case.dtype):
                yield case


SPARSE = ("sparsemax", "entmax15")
SMALL, LARGE, LARGER = ((65536, 64), (4096, 1000)), ((8192, 32000),), ((2048, 128000),)

BARS = (
    Bar("cpu", SPARSE, 1.4, "ratio"),
    Bar("cpu", ("entmax13",), 4.5, "ratio"),
    Bar("cpu", LOSSES, 1.4, "ratio"),
    Bar("cpu", PROXIMAL, 10.0, "ratio"),
    Bar("cuda", SPARSE, 2.2, "ms", LARGE, torch.float32),
    Bar("cuda", SPARSE, 1.5, "ms", LARGE, torch.bfloat16),
    Bar("cuda", SPARSE, 2.8, "ms", LARGER, torch.float32),
    Bar("cuda", SPARSE, 1.5, "ms", LARGER, torch.bfloat16),
    Bar("cuda", SPARSE, 1.2, "ratio", SMALL),
    Bar("cuda", LOSSES, 1.0, "ratio"),
    Bar("cuda", ("entmax13", *ALPHAS), 3.0, "ratio", SMALL + LARGE, torch.float32),
)
