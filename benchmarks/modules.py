"""Times modules against other libraries, on the CPU: `python benchmarks/modules.py`, `--only 'crf*'`.

A training step is the loss and the gradients of its inputs and parameters, in float32. All contenders of a case get the
same inputs and parameters and take turns, and what a peer computes is compared with ours before it is timed. A ratio is
the median over the rounds of a contender's time divided by ours in the same round.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.measure import take_turns
from benchmarks.run import CPU_THREADS, OURS, show

ROUNDS = 25
BUDGET_MS = 4000.0

Contenders = dict[str, Callable[[], Any]]


def crf_inputs(batch: int, steps: int, tags: int) -> tuple[Tensor, Tensor, Tensor]:
    """Emissions, tags and a mask of prefixes, half of the longest at least."""
    torch.manual_seed(0)
    lengths = torch.randint(steps // 2, steps + 1, (batch, 1)).index_fill(0, torch.tensor(0), steps)
    return torch.randn(batch, steps, tags), torch.randint(tags, (batch, steps)), torch.arange(steps) < lengths


def crf_modules(tags: int) -> dict[str, nn.Module]:
    """Ours and the peer's, with the same transitions."""
    ours = structmax.nn.CRF(tags, batch_first=True)
    if not importlib.util.find_spec("torchcrf"):
        return {OURS: ours}
    import torchcrf

    theirs = torchcrf.CRF(tags, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    return {OURS: ours, "pytorch-crf": theirs}


def crf_training(*size: int) -> Contenders:
    emissions, tags, mask = crf_inputs(*size)
    emissions.requires_grad_()

    def step(crf: nn.Module) -> tuple[Tensor, ...]:
        loss = -crf(emissions, tags, mask, reduction="token_mean")
        return loss, *torch.autograd.grad(loss, [emissions, *crf.parameters()])

    return {name: partial(step, crf) for name, crf in crf_modules(size[-1]).items()}


@torch.no_grad()
def crf_decoding(*size: int) -> Contenders:
    emissions, _, mask = crf_inputs(*size)
    return {name: partial(crf.decode, emissions, mask) for name, crf in crf_modules(size[-1]).items()}


def tree_training(trees: int, leaves: int, size: int) -> Contenders:
    """A Tree-LSTM over random trees, all at once and each by recursion."""
    torch.manual_seed(0)
    spans = structmax.sample(torch.zeros(trees, leaves, leaves), structmax.BinaryTree())
    inputs = torch.randn(trees, leaves, size, requires_grad=True)
    lstm = structmax.nn.BinaryTreeLSTM(size, size)
    order = structmax.BinaryTree().decode(spans).tolist()

    def recursive(states: tuple[Tensor, Tensor], nodes: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Of the first of the nodes, which are taken away with all below it."""
        i, j = nodes.pop(0)
        if i == j:
            return states[0][i : i + 1], states[1][i : i + 1]
        (left, left_c), (right, right_c) = recursive(states, nodes), recursive(states, nodes)
        enter, keep, keep_too, out, new = lstm.pair(torch.cat([left, right], -1)).chunk(5, -1)
        c = enter.sigmoid() * new.tanh() + keep.sigmoid() * left_c + keep_too.sigmoid() * right_c
        return out.sigmoid() * c.tanh(), c

    def one_by_one() -> Tensor:
        roots = [recursive(lstm.leaves(x), nodes.copy())[0] for x, nodes in zip(inputs, order, strict=True)]
        return torch.cat(roots)

    def step(forward: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        loss = forward().square().mean()
        return loss, *torch.autograd.grad(loss, [inputs, *lstm.parameters()])

    return {OURS: partial(step, lambda: lstm(inputs, spans)), "recursion": partial(step, one_by_one)}


CASES: dict[str, Callable[[], Contenders]] = {
    f"{name}/{'x'.join(map(str, size))}": partial(make, *size)
    for name, make in (("crf training", crf_training), ("crf decoding", crf_decoding))
    for size in ((32, 64, 20), (32, 25, 9), (16, 128, 50))
} | {
    f"tree lstm training/{'x'.join(map(str, size))}": partial(tree_training, *size)
    for size in ((256, 60, 64), (256, 60, 128))
}


def lines(name: str, contenders: Contenders) -> list[list[str]]:
    """Compares, times, and says so in one line for each contender."""
    want = contenders[OURS]()
    for call in contenders.values():
        torch.testing.assert_close(call(), want, atol=1e-4, rtol=1e-4)
    samples = take_turns(contenders, "cpu", ROUNDS, BUDGET_MS)
    ratios = {key: median(a / b for a, b in zip(times, samples[OURS], strict=False)) for key, times in samples.items()}
    return [
        [name, key, f"{median(times):.2f}", f"{min(times):.2f}", f"{ratios[key]:.1f}"] for key, times in samples.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="a pattern of case names")
    parser.add_argument("--threads", type=int, default=CPU_THREADS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    names = [name for name in CASES if fnmatchcase(name, chosen.only)]
    rows = [line for name in names for line in lines(name, CASES[name]())]
    show(["module/batch x steps x tags, or trees x leaves x size", "contender", "median ms", "min ms", "x ours"], rows)


if __name__ == "__main__":
    main()
