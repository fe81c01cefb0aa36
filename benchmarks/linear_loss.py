"""Times a linear layer with its loss, and the memory they take: `python benchmarks/linear_loss.py`, `--words 32000`.

A step is the loss and the gradients of hidden states and weights. Scores have the given spread: the larger it is, the
fewer words have a probability. Memory is the most that a step holds at once beside its inputs and the gradients that it
returns, and the last column is its share of what scores and their gradient would take. All contenders take turns. Each
loss is compared with that of the same layer in one piece before it is timed.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.measure import MIB, peak_mib, take_turns
from benchmarks.run import DTYPES, RESULTS, Stamp, save, show_fields

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# rows, words, size of the hidden states, dtype
SIZES = {"cuda": (8192, 128000, 4096, "bfloat16"), "cpu": (512, 8000, 64, "float32")}
BUDGET_MS = 10000.0


@dataclass(frozen=True)
class Row:
    """A loss and its gradients: milliseconds, times the first contender's, and memory, also over that of all scores."""

    shape: str
    dtype: str
    spread: float
    loss: str
    step_ms: float
    ratio: float
    mib_beside_gradients: float | None
    of_scores: float | None
    rounds: int


def in_one_piece(loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    return lambda hidden, weight, target: loss(F.linear(hidden, weight), target)


def without_scores(alpha: float) -> Loss:
    return lambda hidden, weight, target: structmax.linear_entmax_loss(hidden, weight, target, alpha)


LOSSES: dict[str, Loss] = {
    "linear + cross_entropy": in_one_piece(F.cross_entropy),
    "linear + entmax15_loss": in_one_piece(structmax.entmax15_loss),
    "linear_entmax_loss 1": without_scores(1.0),
    "linear_entmax_loss 1.5": without_scores(1.5),
    "linear_entmax_loss 2": without_scores(2.0),
}


def inputs(rows: int, words: int, size: int, spread: float, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Hidden states and weights, whose products have that standard deviation, and targets."""
    torch.manual_seed(0)
    hidden = torch.randn(rows, size, device=device, dtype=dtype)
    weight = torch.randn(words, size, device=device, dtype=dtype) * (spread / size**0.5)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(words, (rows,), device=device)


def step(loss: Loss, hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    value = loss(hidden, weight, target)
    return value.detach(), *torch.autograd.grad(value, (hidden, weight))


def verify(given: tuple[Tensor, ...]) -> None:
    """On a few rows: the losses of the blocks are those of the layer in one piece."""
    hidden, weight, target = (given[0][:64].detach(), given[1].detach(), given[2][:64])
    scores = F.linear(hidden, weight)
    for alpha in (1.0, 1.5, 2.0):
        wanted = structmax.entmax_loss(scores.float(), target, alpha)
        torch.testing.assert_close(without_scores(alpha)(hidden, weight, target).float(), wanted, atol=1e-4, rtol=1e-4)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("rows", "words", "size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--spreads", type=float, nargs="+", default=[1.0, 4.0], help="of the scores")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    usual: Any = dict(zip(("rows", "words", "size", "dtype"), SIZES[given.device], strict=True))
    chosen = {name: usual[name] if getattr(given, name) is None else getattr(given, name) for name in usual}
    dtype = chosen.pop("dtype")
    scores_mib = 2 * chosen["rows"] * chosen["words"] * DTYPES[dtype].itemsize / MIB
    stamp, rows = Stamp.now(given.device), []
    print(f"{stamp.device}, {chosen}, {dtype}; scores and their gradient: {scores_mib:.0f} MiB")
    for spread in given.spreads:
        tensors = inputs(**chosen, spread=spread, dtype=DTYPES[dtype], device=given.device)
        verify(tensors)
        returned = sum(tensor.numel() * tensor.element_size() for tensor in tensors[:2]) / MIB
        calls = {name: partial(step, loss, *tensors) for name, loss in LOSSES.items()}
        # compiles kernels and fills caches
        held = {name: (call(), peak_mib(call, given.device))[1] for name, call in calls.items()}
        times = take_turns(calls, given.device, given.rounds, BUDGET_MS)
        baseline = median(times["linear + cross_entropy"])
        for name, samples in times.items():
            middle, peak = median(samples), held[name]
            beside = None if peak is None else peak - returned
            share = None if beside is None else beside / scores_mib
            where = "x".join(map(str, chosen.values())), dtype, spread, name
            rows.append(Row(*where, middle, middle / baseline, beside, share, len(samples)))
    show_fields(rows, "dtype", "rounds")
    print(f"written to {save(rows, stamp, 'linear-losses', given.results)}")


if __name__ == "__main__":
    main()
