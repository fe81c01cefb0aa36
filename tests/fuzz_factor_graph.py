"""Random factor graphs against an independent quadratic program: marginals, and the Jacobian against its differences.

    python tests/fuzz_factor_graph.py --count 10000 --seed 0 [--kinds or_out and_out imply]

Every graph has two to four factors of random kinds; the first kind goes round, so that each is in its share of graphs.
"""

import argparse
import sys
import warnings

import numpy as np
import torch
from relaxations import KINDS, QuadraticProgram, RandomGraph

# Points for each graph.
POINTS = 4


def disagreements(seed: int, kinds: tuple[str, ...] = KINDS, others: tuple[str, ...] = KINDS) -> tuple[list[str], int]:
    """What is wrong with one random graph, and at how many points its Jacobian was compared."""
    generator = np.random.default_rng(seed)
    first = kinds[seed % len(kinds)]
    rest = generator.choice(others, int(generator.integers(1, 4)))
    graph = RandomGraph(generator, (first, *map(str, rest)))
    program = QuadraticProgram(*graph.system(), graph.n)
    scale = generator.choice([0.3, 1.0, 2.0], (POINTS, 1))
    points = scale * generator.standard_normal((POINTS, graph.n + graph.m))
    wanted = [program(point) for point in points]
    name = f"seed {seed}, {[(f.kind, f.variables, f.negated) for f in graph.factors]}"
    if wanted[0] is None:
        value = graph.ask(torch.from_numpy(points)).value
        return ([] if bool((value == -torch.inf).all()) else [f"{name}: infeasible, but its value is {value}"]), 0
    size = points.shape[1]
    # one copy of each point for each row of the Jacobian
    leaves = torch.from_numpy(points).repeat_interleave(size, 0).requires_grad_()
    out = graph.marginals(leaves)
    rows = out[torch.arange(len(out)), torch.arange(size).repeat(POINTS)]
    jacobians = torch.autograd.grad(rows.sum(), leaves)[0].reshape(POINTS, size, size).numpy()
    wrong, compared = [], 0
    for k, (point, want) in enumerate(zip(points, wanted, strict=True)):
        error = np.abs(out[k * size].detach().numpy() - want).max()
        # parts that their scores do not tell apart have many answers
        if not error < 1e-7:
            wrong.append(f"{name}, point {k}, {point.round(4)}: marginals {error:.2g}")
            continue
        slopes = program.slopes(point)
        if slopes is None:
            continue
        compared += 1
        error = np.abs(jacobians[k] - slopes).max()
        if not error < 1e-5:
            wrong.append(f"{name}, point {k}, {point.round(4)}: Jacobian {error:.2g}")
    return wrong, compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of which the factors are")
    given = parser.parse_args()
    warnings.simplefilter("error")
    failures, points = 0, 0
    for seed in range(given.seed, given.seed + given.count):
        try:
            wrong, compared = disagreements(seed, tuple(given.kinds), tuple(given.kinds))
        except (AssertionError, UserWarning) as error:
            wrong, compared = [f"seed {seed}: {error}"], 0
        points += compared
        failures += bool(wrong)
        for line in wrong:
            print(line, flush=True)
        done = seed + 1 - given.seed
        if done % 500 == 0:
            print(f"{done} graphs", file=sys.stderr, flush=True)
    print(f"{given.count} graphs, {points} Jacobians compared, {failures} graphs disagree")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
