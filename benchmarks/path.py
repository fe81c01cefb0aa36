"""The way of one call through the package: the files, Python calls and switches between files that it takes.

    python benchmarks/path.py
    python benchmarks/path.py --calls

Each question is asked forward and backward of a linear chain (4, 8, 5) with a shared matrix. A switch is a change of
file between two successive calls; the files below are those of all calls but the first, which is the public function.
`checks` says how often the scores were checked: at a first call, and later, when scores of the same form are known.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

import structmax
from structmax import estimators, omega

ROOT = Path(structmax.__file__).parent


class Trace(NamedTuple):
    """The calls of Python functions inside the package, in order: file and name."""

    calls: list[tuple[str, str]]

    @property
    def below(self) -> list[str]:
        """The files of all calls but the first, each once."""
        return list(dict.fromkeys(file for file, _ in self.calls[1:]))

    @property
    def switches(self) -> int:
        return sum(a[0] != b[0] for a, b in zip(self.calls, self.calls[1:], strict=False))


def trace(ask: Callable[[], object]) -> Trace:
    """What is called inside the package while `ask` runs, in this thread."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT):
            calls.append((str(file.relative_to(ROOT)), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return Trace(calls)


@contextmanager
def counted(structure: structmax.AbstractStructure) -> Iterator[list[object]]:
    """A list that grows by one whenever scores are checked for this class of structures."""
    kind, checks = type(structure), []
    check = kind.check

    def counting(self: Any, scores: Any) -> None:
        checks.append(scores)
        check(self, scores)

    kind.check = counting  # type: ignore[method-assign]
    try:
        yield checks
    finally:
        kind.check = check  # type: ignore[method-assign]


def questions(structure: structmax.AbstractStructure) -> dict[str, Callable[[], object]]:
    """Calls forward and backward, by name."""
    torch.manual_seed(0)
    scores = torch.randn(4, 8, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)

    def backward(out: Any) -> object:
        return torch.autograd.grad(sum(t.square().sum() for t in out if t is not None), scores)

    straight_through = estimators.StraightThrough(omega.Entropy())
    return {
        "marginals": lambda: backward(structmax.marginals(scores, structure)),
        "sparsemap": lambda: backward(structmax.sparsemap(scores, structure).marginals),
        "surrogate": lambda: backward(structmax.surrogate(scores, structure, straight_through)),
        "expect": lambda: backward(
            [
                structmax.expect(
                    lambda parts, _: parts.unary.square().sum((-1, -2)), scores, structure, estimators.ScoreFunction()
                ).value
            ]
        ),
    }


def checks(structure: structmax.AbstractStructure, ask: Callable[[], object]) -> int:
    """How often the scores are checked, when scores of their form are not known."""
    type(structure).remembered.pop("forms", None)
    with counted(structure) as seen:
        ask()
    return len(seen)


def warm(ask: Callable[[], object]) -> Trace:
    """The trace after two calls, which load and compile."""
    ask()
    ask()
    return trace(ask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="list every call")
    chosen = parser.parse_args()
    # the backward pass of the CPU runs in the thread that asks for it
    structure = structmax.LinearChain()
    print(f"{'':12} {'files below':>11} {'calls':>6} {'switches':>8} {'checks, first':>13} {'later':>6}")
    for name, ask in questions(structure).items():
        first, found = checks(structure, ask), warm(ask)
        with counted(structure) as later:
            ask()
        print(f"{name:12} {len(found.below):11} {len(found.calls):6} {found.switches:8} {first:13} {len(later):6}")
        for file, function in found.calls if chosen.calls else ():
            print(f"    {file} {function}")


if __name__ == "__main__":
    main()
