"""How long factor graphs take on the CPU: grids of variables with states, coupled by tables or by pairs.

    python benchmarks/factor_graph.py

Scores are standard normal, float64, and each line is a batch of 8, forward and backward of the marginals.
"""

import argparse
import statistics
from collections.abc import Iterator
from functools import partial

import torch
from measure import milliseconds

import structmax
from structmax import FactorGraph, Relaxed
from structmax.factors import Dense, Pair, Variables, Xor

BATCH = 8
ROUNDS = 9


def tables(height: int, width: int, states: int) -> FactorGraph:
    """A table of scores for each pair of neighbours."""
    cell = Variables("cell", (height, width, states))
    across = Variables("across", (height, width - 1, states, states), free=True)
    down = Variables("down", (height - 1, width, states, states), free=True)
    rows = [Dense(cell[i, j], cell[i, j + 1], score=across[i, j]) for i in range(height) for j in range(width - 1)]
    columns = [Dense(cell[i, j], cell[i + 1, j], score=down[i, j]) for i in range(height - 1) for j in range(width)]
    return FactorGraph(*rows, *columns)


def pairs(height: int, width: int, states: int) -> FactorGraph:
    """One state of each cell, and a score where neighbours share it: a Potts model."""
    cell = Variables("cell", (height, width, states))
    across = Variables("across", (height, width - 1, states), free=True)
    down = Variables("down", (height - 1, width, states), free=True)
    one = [Xor(cell[i, j]) for i in range(height) for j in range(width)]
    return FactorGraph(*one, Pair(cell[:, :-1], cell[:, 1:], score=across), Pair(cell[:-1], cell[1:], score=down))


def cases() -> Iterator[tuple[str, FactorGraph]]:
    for size in ((3, 2, 3), (10, 10, 5)):
        yield f"tables {size[0]} × {size[1]}, {size[2]} states", tables(*size)
        yield f"pairs {size[0]} × {size[1]}, {size[2]} states", pairs(*size)


def solve(graph: FactorGraph, scores: dict[str, torch.Tensor]) -> Relaxed:
    result = structmax.sparsemap(scores, graph)
    torch.autograd.grad(sum(t.square().sum() for t in result.marginals.values()), list(scores.values()))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    print(f"{'':32} {'steps':>8} {'residual':>9} {'ms':>8} {'least':>8}")
    for name, graph in cases():
        generator = torch.Generator().manual_seed(0)
        names = {**graph.layout.bound, **graph.layout.free}
        scores = {
            key: torch.randn(BATCH, *variables.shape, generator=generator, dtype=torch.float64).requires_grad_()
            for key, variables in names.items()
        }
        call = partial(solve, graph, scores)
        result = call()
        times = [milliseconds(call, "cpu") for _ in range(ROUNDS)]
        steps, residual = result.iterations.double().mean(), result.primal_residual.max()
        state = "" if result.converged.all() else "  not converged"
        print(f"{name:32} {steps:8.0f} {residual:9.0e} {statistics.median(times):8.1f} {min(times):8.1f}{state}")


if __name__ == "__main__":
    main()
