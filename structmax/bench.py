"""How fast the main questions are on this machine: `structmax bench`. Nothing is compared; `benchmarks/` does that."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

import structmax

# calls at least, and milliseconds after which there are no more
REPEATS, BUDGET = 5, 300.0

Question = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """One question of one structure at one size. `ask` takes the scores; with a gradient, it returns a value."""

    title: str
    shapes: tuple[tuple[int, ...], ...]
    ask: Question
    has_gradient: bool = True

    @property
    def size(self) -> str:
        return "×".join(map(str, self.shapes[0]))


@dataclass(frozen=True)
class Row:
    """Milliseconds of a call, warm: the median of several. `both` is forward and backward, None without a gradient."""

    case: Case
    forward: float
    both: float | None


def _asked(question: Callable[..., Any], structure: structmax.AbstractStructure) -> Question:
    def ask(*scores: Tensor) -> Tensor:
        answer = question(scores if len(scores) > 1 else scores[0], structure)
        answer = answer.marginals if isinstance(answer, structmax.SparseMAP) else answer
        return answer if isinstance(answer, Tensor) else answer[0]

    return ask


CHAIN, TREE = ((32, 64, 20), (20, 20)), ((32, 31, 31),)
CASES = (
    Case("softmax", ((1024, 1000),), structmax.softmax),
    Case("sparsemax", ((1024, 1000),), structmax.sparsemax),
    Case("entmax15", ((1024, 1000),), structmax.entmax15),
    Case("LinearChain log_partition", CHAIN, _asked(structmax.log_partition, structmax.LinearChain())),
    Case("LinearChain argmax", CHAIN, _asked(structmax.argmax, structmax.LinearChain()), has_gradient=False),
    Case("LinearChain sample", CHAIN, _asked(structmax.sample, structmax.LinearChain()), has_gradient=False),
    Case("LinearChain sparsemap", ((32, 16, 5), (5, 5)), _asked(structmax.sparsemap, structmax.LinearChain())),
    Case(
        "ProjectiveTree log_partition",
        TREE,
        _asked(structmax.log_partition, structmax.ProjectiveTree(single_root=True)),
    ),
    Case("SpanningTree log_partition", TREE, _asked(structmax.log_partition, structmax.SpanningTree(single_root=True))),
    Case(
        "SpanningTree argmax",
        TREE,
        _asked(structmax.argmax, structmax.SpanningTree(single_root=True)),
        has_gradient=False,
    ),
    Case("BinaryTree log_partition", ((32, 30, 30),), _asked(structmax.log_partition, structmax.BinaryTree())),
    Case("MonotoneAlignment log_partition", TREE, _asked(structmax.log_partition, structmax.MonotoneAlignment())),
    Case("Subset(10) marginals", ((32, 200),), _asked(structmax.marginals, structmax.Subset(10))),
    Case("Matching argmax", ((32, 30, 30),), _asked(structmax.argmax, structmax.Matching()), has_gradient=False),
)


def measure(device: str = "cpu", only: str = "") -> Iterator[Row]:
    """Times the cases whose title contains `only`, one after the other.

    Examples:
        >>> [row.case.title for row in measure(only="Matching")]
        ['Matching argmax']
    """
    for case in CASES:
        if only.lower() in case.title.lower():
            yield _measured(case, torch.device(device))


def _measured(case: Case, device: torch.device) -> Row:
    generator = torch.Generator().manual_seed(0)
    scores = [torch.randn(shape, generator=generator).to(device) for shape in case.shapes]
    forward = _milliseconds(lambda: case.ask(*scores), device)
    if not case.has_gradient:
        return Row(case, forward, None)
    leaves = [score.requires_grad_() for score in scores]
    d_out = torch.randn_like(case.ask(*leaves))
    return Row(case, forward, _milliseconds(lambda: torch.autograd.grad(case.ask(*leaves), leaves, d_out), device))


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    call()
    call()
    times: list[float] = []
    while len(times) < REPEATS or sum(times) < BUDGET:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
