"""Gumbel-CRF draws and beam search on the CPU, beside torch-struct where it is installed.

    python benchmarks/policies.py

Contenders take turns, and the median of the rounds is printed. Gumbel-CRF is forward and backward of a relaxed draw of
a chain, in float32; beams are of a GRU, without gradients.
"""

import argparse
import importlib
import math
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measure import take_turns

import structmax
from structmax.estimators import GumbelRecursion, ReinMax
from structmax.incremental import Autoregressive

CHAINS = ((16, 20, 10), (16, 50, 20), (4, 100, 50))
BEAMS = ((8, 5, 100), (8, 10, 5000))


def installed() -> Any:
    """torch-struct, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("torch_struct")
        except ImportError:
            return None


def chain(batch: int, positions: int, labels: int, torch_struct: Any) -> dict[str, Callable[[], object]]:
    pairwise = torch.randn(batch, positions - 1, labels, labels, requires_grad=True)
    unary = torch.zeros(batch, positions, labels)
    structure = structmax.LinearChain()

    def ours(estimator: Any, backend: str = "auto") -> object:
        z = structmax.surrogate(structure.Parts(unary, pairwise), structure, estimator, backend=backend)
        return torch.autograd.grad(z.pairwise.square().sum(), pairwise)

    def theirs() -> object:
        z = torch_struct.LinearChainCRF(pairwise.mT).gumbel_crf(0.5)
        return torch.autograd.grad(z.square().sum(), pairwise)

    found: dict[str, Callable[[], object]] = {
        "relaxed": partial(ours, GumbelRecursion(0.5, hard=False)),
        "hard": partial(ours, GumbelRecursion(0.5)),
        "ReinMax": partial(ours, ReinMax()),
        "relaxed, reference": partial(ours, GumbelRecursion(0.5, hard=False), "reference"),
    }
    return found if torch_struct is None else found | {"torch-struct": theirs}


def beam(batch: int, k: int, words: int, torch_struct: Any) -> dict[str, Callable[[], object]]:
    steps, size = 20, 64
    embed, cell, out = torch.nn.Embedding(words, size), torch.nn.GRUCell(size, size), torch.nn.Linear(size, words)
    first = torch.randn(batch, size)

    def step(actions: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = cell(embed(actions), state)
        return out(state), state

    def network(tokens: torch.Tensor, states: tuple[torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        scores, state = step(tokens[:, 0], *states)
        return scores.unsqueeze(1), (state,)

    model = Autoregressive(step, torch.zeros(batch, dtype=torch.long), first, steps)
    quietly = torch.no_grad()
    found: dict[str, Callable[[], object]] = {
        "beam": quietly(lambda: model.beam(k)),
        "without replacement": quietly(lambda: model.sample_without_replacement(k)),
    }
    # it finds its sequences by a backward pass
    theirs = lambda: torch_struct.Autoregressive(network, (first,), words, steps).beam_topk(k)  # noqa: E731
    return found if torch_struct is None else found | {"torch-struct": theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch_struct = installed()
    cases = [(f"chain {size}", chain(*size, torch_struct)) for size in CHAINS]
    cases += [(f"beam {size}", beam(*size, torch_struct)) for size in BEAMS]
    for name, contenders in cases:
        # the first calls compile
        take_turns(contenders, "cpu", 1, math.inf)
        taken = take_turns(contenders, "cpu", asked.rounds, math.inf)
        listed = ", ".join(f"{who} {statistics.median(times):.2f} ms" for who, times in taken.items())
        print(f"{name:24} {listed}")


if __name__ == "__main__":
    main()
