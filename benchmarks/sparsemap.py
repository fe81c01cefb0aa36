"""How large supports are, how many best structures the search for them asks for, and how long it takes.

    python benchmarks/sparsemap.py
    python benchmarks/sparsemap.py --device cuda --batch 1024

Scores are standard normal, float32, and each line is a batch of 32, forward and backward of the marginals. The last
lines have the scores of a trained parser: one head of each word stands out. Below, expectations of a decoder of 512
units over 256 classes, by sparse sums and by the sum over all classes, alternately.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from measure import milliseconds, take_turns
from torch import Tensor, nn

import structmax
from structmax.contract import AbstractStructure

ROUNDS = 9
BUDGET_MS = 8000.0


def cases(batch: int) -> Iterator[tuple[str, AbstractStructure, tuple[Tensor, ...], float]]:
    """Name, structure, scores and temperature."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    yield "sequences 25 × 10", structmax.LinearChain(), (draw(batch, 25, 10), draw(batch, 24, 10, 10)), 1.0
    yield "sequences 25 × 10, one matrix", structmax.LinearChain(), (draw(batch, 25, 10), draw(10, 10)), 1.0
    tree = structmax.SpanningTree(single_root=False)
    for words in (10, 20, 40):
        for temperature in (0.1, 0.5, 1.0, 2.0):
            yield f"spanning trees {words}", tree, (draw(batch, words + 1, words + 1),), temperature
    yield "projective trees 20", structmax.ProjectiveTree(single_root=True), (draw(batch, 21, 21),), 1.0
    yield "binary trees 20", structmax.BinaryTree(), (draw(batch, 20, 20),), 1.0
    yield "matchings 20", structmax.Matching(), (draw(batch, 20, 20),), 1.0
    for words in (20, 40):
        gold = structmax.argmax(-draw(batch, words + 1, words + 1), tree)
        yield f"spanning trees {words}, peaked", tree, (draw(batch, words + 1, words + 1) + 8 * gold,), 1.0


def solve(
    structure: AbstractStructure, leaves: tuple[Tensor, ...], cotangents: list[Tensor], temperature: float
) -> structmax.SparseMAP:
    scores = leaves if len(leaves) > 1 else leaves[0]
    result = structmax.sparsemap(scores, structure, temperature=temperature, tol=1e-7)
    torch.autograd.grad(structure.tensors(result.marginals), leaves, cotangents)
    return result


def expectation(
    estimator: structmax.estimators.SparseTopK | structmax.estimators.SparseSupport | structmax.estimators.Enumerate,
) -> Callable[[], Tensor]:
    """One training step of E f(y), f a network."""
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    x = (3 * torch.randn(64, 256)).requires_grad_()

    def step() -> Tensor:
        result = structmax.expect(lambda z, _: decoder(z).squeeze(-1), x, structmax.Simplex(), estimator)
        return torch.autograd.grad(result.value.mean(), x)[0]

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'':32} {'t':>5} {'support':>8} {'searches':>9} {'gap':>8} {'ms':>8} {'least':>8}")
    for name, structure, scores, temperature in cases(options.batch):
        leaves = tuple(t.to(options.device).requires_grad_() for t in scores)
        like = structure.tensors(leaves if len(leaves) > 1 else leaves[0])
        call = partial(solve, structure, leaves, [torch.randn_like(t) for t in like], temperature)
        result = call()
        times = [milliseconds(call, options.device) for _ in range(ROUNDS)]
        support, searches = (counts.double().mean().item() for counts in (result.counts, result.iterations))
        clock = f"{statistics.median(times):8.2f} {min(times):8.2f}"
        state = "" if result.converged.all() else "  not converged"
        print(f"{name:32} {temperature:5.1f} {support:8.1f} {searches:9.1f} {result.gap.max():8.0e} {clock}{state}")
    estimators = (
        structmax.estimators.Enumerate(),
        structmax.estimators.SparseSupport(),
        structmax.estimators.SparseTopK(8),
    )
    samples = take_turns({repr(e): expectation(e) for e in estimators}, "cpu", ROUNDS, BUDGET_MS)
    everything = samples[repr(estimators[0])]
    for name, times in samples.items():
        ratio = statistics.median(a / b for a, b in zip(everything, times, strict=False))
        print(f"expectation by {name:48} {statistics.median(times):8.2f} {min(times):8.2f}  {ratio:6.1f} times as fast")


if __name__ == "__main__":
    main()
