"""How to call the others. Each peer is optional: one that cannot be imported is said, and the run goes on without it.

A peer is a function that imports its package and returns, for each task it can be compared on, its contenders by name.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Call = Callable[[Tensor, Tensor], Tensor]
# task → contender → call
Calls = dict[str, dict[str, Call]]

# What ratios are taken against: the operation of torch that the task would replace in a network.
BASELINE = "torch"


def of_torch() -> Calls:
    def softmax(x: Tensor, _: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def cross_entropy(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x, y)

    mappings = ("softmax", "sparsemax", "entmax15", "entmax13", "entmax17", "entmax_by_head", "fusedmax", "oscarmax")
    losses = ("sparsemax_loss", "entmax15_loss")
    calls: Calls = {task: {BASELINE: softmax} for task in mappings}
    return calls | {task: {BASELINE: cross_entropy} for task in losses}


def of_entmax() -> Calls:
    import entmax

    # A partial sort of the 100 largest is the setting recommended for large vocabularies.
    return {
        "sparsemax": {
            "entmax": lambda x, _: entmax.sparsemax(x),
            "entmax k=100": lambda x, _: entmax.sparsemax(x, k=100),
        },
        "entmax15": {
            "entmax": lambda x, _: entmax.entmax15(x),
            "entmax k=100": lambda x, _: entmax.entmax15(x, k=100),
        },
        "entmax13": {"entmax bisect": lambda x, _: entmax.entmax_bisect(x, alpha=1.3)},
        "sparsemax_loss": {"entmax": lambda x, y: entmax.sparsemax_loss(x, y).mean()},
        "entmax15_loss": {"entmax": lambda x, y: entmax.entmax15_loss(x, y).mean()},
    }


PEERS = {BASELINE: of_torch, "entmax": of_entmax}


class Found(NamedTuple):
    calls: Calls
    # peer → why it is not here
    missing: dict[str, str]


def find() -> Found:
    """The contenders of every task, the baseline first, from the peers that are installed."""
    calls: Calls = {}
    missing: dict[str, str] = {}
    for peer, calls_of in PEERS.items():
        try:
            found = calls_of()
        except ImportError as error:
            missing[peer] = str(error)
            continue
        for task, contenders in found.items():
            calls.setdefault(task, {}).update(contenders)
    return Found(calls, missing)
