"""Times every question of every structure on a GPU: `python benchmarks/gpu.py --help`.

Beside each stands the way over the host: copies of the scores to the CPU, its kernels on all cores, and the answer
copied back. `auto` should never be slower than that. GPU time is that of a replayed CUDA graph; a call that needs the
host cannot be captured and has none.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.measure import captured, peak_mib, take_turns
from benchmarks.run import RESULTS, Stamp, save, show_fields
from examples.rna import foldings

DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    "log_partition": structmax.log_partition,
    "marginals": structmax.marginals,
    "entropy": structmax.entropy,
    "smoothed": lambda x, s: structmax.smoothed(x, s, structmax.omega.LocalL2(1.0)),
    "sparsemap": lambda x, s: structmax.sparsemap(x, s, max_iter=100).marginals,
}
DISCRETE: dict[str, Callable[..., Any]] = {
    "argmax": structmax.argmax,
    "topk": lambda x, s: structmax.topk(x, s, 3),
    "max_marginals": structmax.max_marginals,
    "sample": structmax.sample,
}
QUESTIONS = (*DIFFERENTIABLE, *DISCRETE)
# There are hundreds of rows: a call sits out the remaining rounds once it has taken so long.
BUDGET_MS = 60.0


@dataclass(frozen=True)
class Work:
    """A structure with scores of these shapes, and the milliseconds of GPU time that questions should take at most."""

    name: str
    structure: structmax.AbstractStructure
    shapes: tuple[tuple[int, ...], ...]
    bars: dict[str, float]

    @property
    def title(self) -> str:
        return f"{self.name}/{'x'.join(map(str, self.shapes[0]))}"

    def inputs(self) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator) for shape in self.shapes)


def _chains(b: int, n: int, c: int, limit: float | None = None) -> list[Work]:
    def bars(share: float) -> dict[str, float]:
        return {} if limit is None else dict.fromkeys(("log_partition", "argmax", "sample"), share * limit)

    chain = structmax.LinearChain()
    return [
        Work("chain, general", chain, ((b, n, c), (b, n - 1, c, c)), bars(1.0)),
        Work("chain, one matrix", chain, ((b, n, c), (c, c)), bars(0.5)),
    ]


def _each(name: str, structure: Any, *cases: tuple[tuple[int, ...], float | None]) -> list[Work]:
    bars: list[dict[str, float]] = [{} if limit is None else {"log_partition": limit} for _, limit in cases]
    return [Work(name, structure, (shape,), own) for (shape, _), own in zip(cases, bars, strict=True)]


WORKS = [
    *_chains(64, 128, 64, 0.5),
    *_chains(256, 256, 32, 0.45),
    *_chains(8, 1024, 20, 0.9),
    *_chains(32, 64, 20),
    *_chains(1024, 25, 10),
    *_each("projective tree", structmax.ProjectiveTree(single_root=True), ((32, 41, 41), 1.2), ((8, 101, 101), 4.0)),
    *_each("binary tree", structmax.BinaryTree(), ((32, 40, 40), 0.6), ((8, 100, 100), 2.5)),
    *_each(
        "spanning tree",
        structmax.SpanningTree(single_root=True),
        ((32, 41, 41), 1.5),
        ((8, 101, 101), 3.0),
        ((1024, 41, 41), None),
    ),
    *_each("alignment", structmax.MonotoneAlignment(), ((32, 256, 256), 0.5), ((8, 1024, 1024), 2.0)),
    *_each("subset of 10", structmax.Subset(10), ((256, 128), 0.3)),
    *_each("subset of 32", structmax.Subset(32), ((64, 1024), 2.0)),
    *_each("matching", structmax.Matching(), ((64, 128, 128), None)),
    *_each("bits", structmax.Bits(), ((256, 128), None)),
    *_each("simplex", structmax.Simplex(), ((4096, 1000), None)),
    Work("semi-Markov", structmax.SemiMarkov(), ((16, 64, 6, 8), (8, 8)), {}),
    Work("pcfg", structmax.PCFG(), ((8, 30, 20), (20, 40, 40), (20,)), {}),
    Work("low-rank pcfg", structmax.LowRankPCFG(), ((8, 30, 40), (20,), (20, 32), (32, 60), (32, 60)), {}),
    Work("ctc", structmax.CTC(1 + torch.arange(40).expand(32, -1)), ((32, 200, 50),), {}),
    Work("second-order tree", structmax.SecondOrderTree(single_root=True), ((32, 31, 31), (32, 31, 31, 31)), {}),
    Work("bilexical tree", structmax.BilexicalTree(), ((8, 16, 16), (8, 15, 15), (8, 15, 15, 15)), {}),
    Work("jump alignment", structmax.JumpAlignment(), ((32, 40, 60), (4, 1, 1)), {}),
    Work("budget chain", structmax.BudgetChain(5), ((32, 64, 5), (5, 5)), {}),
    Work("labelled tree", structmax.LabelledTree((torch.arange(40) - 1) // 2), ((64, 40, 8), (8, 8)), {}),
    Work("head automaton", structmax.HeadAutomaton(), ((64, 20), (64, 21, 21)), {}),
    *_each("shift-reduce", structmax.ShiftReduce(), ((64, 39, 2), None)),
    *_each("small matching", structmax.SmallMatching(), ((32, 8, 8), None)),
    *_each("projective tree, undirected", structmax.ProjectiveTree(directed=False), ((32, 20, 20), None)),
    *_each("spanning tree, undirected", structmax.SpanningTree(directed=False), ((32, 40, 40), None)),
    # a recursion of a user's
    *_each("RNA foldings", structmax.Hypergraph.from_function(foldings, 100, 3), ((32, 100 * 100), None)),
]


@dataclass(frozen=True)
class Row:
    """A question to one structure, in milliseconds: eager, by the GPU alone, and by way of the host."""

    case: str
    question: str
    answered_by: str
    eager_ms: float
    gpu_ms: float | None
    host_ms: float
    over_host: float
    bar_ms: float | None
    peak_mib: float | None
    rounds: int


def asked(question: str, structure: structmax.AbstractStructure, leaves: tuple[Tensor, ...]) -> Any:
    """The answer, or, where there is one, the gradient of its sum."""
    scores = leaves[0] if structure.Parts is None else structure.Parts(*leaves)
    if question in DISCRETE:
        with torch.no_grad():
            return DISCRETE[question](scores, structure)
    answer = DIFFERENTIABLE[question](scores, structure)
    first = answer if isinstance(answer, Tensor) else answer[0]
    # not the gradient of a sum: that of marginals would be one of a constant
    weights = first.detach() if first.dim() else torch.ones_like(first)
    return torch.autograd.grad(first, leaves, weights, allow_unused=True)


def by_host(question: str, structure: structmax.AbstractStructure, leaves: tuple[Tensor, ...]) -> Any:
    there = tuple(t.detach().cpu().requires_grad_() for t in leaves)
    out = asked(question, structure, there)
    return [t.cuda() for t in tree_leaves(out) if isinstance(t, Tensor)]


def time_question(work: Work, question: str, rounds: int) -> Row:
    leaves = tuple(t.cuda().requires_grad_() for t in work.inputs())
    calls: dict[str, Callable[[], object]] = {
        "eager": lambda: asked(question, work.structure, leaves),
        "host": lambda: by_host(question, work.structure, leaves),
    }
    for call in calls.values():
        call()
    name = "log_partition_and_marginals" if question == "log_partition" else question
    if question in ("marginals", "entropy"):
        name = "marginals_jvp"
    if question == "smoothed":
        name = "smoothed_and_marginals"
    scores = leaves[0] if work.structure.Parts is None else work.structure.Parts(*leaves)
    answered_by = structmax.which(scores, work.structure)[name]
    # a sparse map asks the host how far it is
    if not answered_by.startswith("numba") and question != "sparsemap":
        try:
            calls["gpu"] = captured(calls["eager"])
        except Exception as error:
            torch.cuda.synchronize()
            print(f"{work.title} {question} cannot be captured: {type(error).__name__}: {error}"[:300])
    peak = peak_mib(calls["eager"], "cuda")
    # Apart from the others: threads of the CPU that have nothing left to do wait busily for some time.
    host_call = {"host": calls.pop("host")}
    times = take_turns(calls, "cuda", rounds, BUDGET_MS) | take_turns(host_call, "cuda", rounds, BUDGET_MS)
    eager, host = median(times["eager"]), median(times["host"])
    gpu = median(times["gpu"]) if "gpu" in times else None
    bar = work.bars.get(question)
    return Row(work.title, question, answered_by, eager, gpu, host, eager / host, bar, peak, len(times["eager"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="patterns of case names, such as 'chain*'")
    parser.add_argument("--questions", nargs="*", default=list(QUESTIONS), choices=QUESTIONS)
    parser.add_argument("--bars", action="store_true", help="only what has a bar")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    stamp = Stamp.now("cuda")
    rows: list[Row] = []
    chosen = [w for w in WORKS if not options.only or any(fnmatchcase(w.title, pattern) for pattern in options.only)]
    for work in chosen:
        for question in work.bars if options.bars else options.questions:
            try:
                row = time_question(work, question, options.rounds)
            except structmax.Refusal:
                continue
            except Exception as error:
                print(f"{work.title} {question} failed: {type(error).__name__}: {error}"[:400], flush=True)
                continue
            rows.append(row)
            written = save([row], stamp, "questions", options.results)
            gpu = "-" if row.gpu_ms is None else f"{row.gpu_ms:.3f}"
            print(
                f"{row.case} {row.question}: eager {row.eager_ms:.3f} gpu {gpu} host {row.host_ms:.3f} bar {row.bar_ms}"
                f" [{row.answered_by}]"[:220],
                flush=True,
            )
    if not rows:
        parser.error("nothing was timed; see the names in WORKS")
    show_fields(rows, "answered_by")
    print(f"written to {written}")


if __name__ == "__main__":
    main()
