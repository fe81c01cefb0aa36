"""Times the structures against other libraries: `python benchmarks/structures.py --help`.

Three tasks of each structure: log-partition and marginals (forward and backward), the best structure, one draw. All
contenders take turns on the same inputs, and what a peer computes is compared with ours before it is timed. With
`--device cuda`, on the GPU.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.measure import peak_mib, take_turns
from benchmarks.run import BUDGET_MS, CPU_THREADS, OURS, RESULTS, Stamp, save, show_fields

Inputs = tuple[Tensor, ...]
# A log-partition (B,) of the inputs; the best structure; one draw.
Contender = dict[str, Callable[..., Any]]
TASKS = ("marginals", "argmax", "sample")


@dataclass(frozen=True)
class Case:
    """One structure at one size."""

    name: str
    size: tuple[int, ...]
    structure: structmax.AbstractStructure
    inputs: Callable[[], Inputs]
    peers: Callable[[], dict[str, Contender]]
    # ours, where it is not the questions to the structure
    front: Contender | None = None
    tasks: tuple[str, ...] = TASKS

    @property
    def title(self) -> str:
        return f"{self.name}/{'x'.join(map(str, self.size))}"

    def ours(self) -> Contender:
        if self.front is not None:
            return self.front
        structure = self.structure
        scores = (lambda x: x[0]) if structure.Parts is None else (lambda x: structure.Parts(*x))
        asked = {
            "marginals": lambda *x: structmax.log_partition(scores(x), structure),
            "argmax": lambda *x: structmax.argmax(scores(x), structure),
            "sample": lambda *x: structmax.sample(scores(x), structure),
        }
        return {task: asked[task] for task in self.tasks}


def normal(*shapes: tuple[int, ...]) -> Callable[[], Inputs]:
    def draw() -> Inputs:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)

    return draw


# ---------------------------------------------------------------- the peers, each in its own convention


def of_torch_struct(build: Callable[..., Any]) -> Contender:
    return {
        "marginals": lambda *x: build(*x).partition,
        "argmax": lambda *x: build(*x).argmax,
        "sample": lambda *x: build(*x).sample((1,)),
    }


def chain_peers() -> dict[str, Contender]:
    import torch_struct

    def build(unary: Tensor, pairwise: Tensor) -> Any:
        B, N, C = unary.shape
        if unary.is_cpu and B * N * C**3 > 1e9:
            raise MemoryError("its scan would hold some 17 GB")
        # edges [next, previous]; the first unary is folded into the first edge
        edges = (pairwise if pairwise.dim() == 4 else pairwise.expand(len(unary), unary.shape[1] - 1, -1, -1)).mT
        edges = edges + unary[:, 1:, :, None]
        first = torch.zeros_like(edges)
        first[:, 0] = unary[:, 0, None, :]
        return torch_struct.LinearChainCRF(edges + first)

    # its draws take seconds, and gigabytes
    return {"torch-struct": {task: ask for task, ask in of_torch_struct(build).items() if task != "sample"}}


def shared_chain_peers() -> dict[str, Contender]:
    import torchcrf

    def crf(unary: Tensor, pairwise: Tensor) -> Any:
        model = torchcrf.CRF(unary.shape[-1], batch_first=True).to(unary.device)
        for bound in (model.start_transitions, model.end_transitions):
            bound.data.zero_()
        del model.transitions
        model.transitions = pairwise
        return model

    def log_partition(unary: Tensor, pairwise: Tensor) -> Tensor:
        mask = unary.new_ones(unary.shape[:2], dtype=torch.bool).T
        return crf(unary, pairwise)._compute_normalizer(unary.transpose(0, 1), mask)

    mine = {"marginals": log_partition, "argmax": lambda u, p: crf(u, p).decode(u)}
    return {"pytorch-crf": mine} | chain_peers()


def segment_peers() -> dict[str, Contender]:
    import torch_struct

    def log_partition(segment: Tensor, pairwise: Tensor) -> Tensor:
        # widths from 1, so that slot 0 is dead, and [next, previous]; the first segment follows label 0 alone
        first = torch.full_like(pairwise[:, :1].mT, -1e9)
        first[..., 0] = segment[:, :1]
        edges = torch.cat([first, pairwise.mT + segment[:, 1:].unsqueeze(-1)], 1)
        dead = torch.full_like(edges[:, :, :1], -1e9)
        return torch_struct.SemiMarkovCRF(torch.cat([dead, edges], 2)).partition

    return {"torch-struct": {"marginals": log_partition}}


def root_on_diagonal(arcs: Tensor) -> Tensor:
    words = arcs[:, 1:, 1:] * (1 - torch.eye(arcs.shape[1] - 1, device=arcs.device))
    return words + torch.diag_embed(arcs[:, 0, 1:])


def projective_peers() -> dict[str, Contender]:
    import torch_struct

    def build(arcs: Tensor) -> Any:
        return torch_struct.DependencyCRF(root_on_diagonal(arcs), multiroot=False)

    return {"torch-struct": of_torch_struct(build)}


def sibling_peers() -> dict[str, Contender]:
    def log_partition(arc: Tensor, sibling: Tensor) -> Tensor:
        """A common implementation: all spans of a width at once, batch last, with autograd behind it."""
        nodes, batch = arc.shape[1], len(arc)
        arc, sibling = arc.permute(1, 2, 0), sibling.permute(1, 2, 3, 0)
        # [head, end], [head, dependent] and [sibling, dependent], each (nodes, nodes, B)
        tree, link, gap = (arc.new_full((nodes, nodes, batch), -torch.inf) for _ in range(3))
        tree.diagonal().zero_()
        for width in range(1, nodes):
            i = torch.arange(nodes - width)
            j, step = i + width, torch.arange(width)
            between = i[:, None] + step[1:]
            # a head on the left, then on the right; the root has one dependent, and no head
            for h, m, near in ((i, j, i + 1), (j, i, j - 1)):
                later = link[h[:, None], between] + gap[between, m[:, None]] + sibling[h[:, None], between, m[:, None]]
                later = later.masked_fill((h == 0)[:, None, None], -torch.inf)
                first = tree[m, near].unsqueeze(1)
                cells = torch.cat([first, later], 1).logsumexp(1) + arc[h, m]
                link = link.index_put((h, m), cells.masked_fill((m == 0)[:, None], -torch.inf))
            split = i[:, None] + step
            met = (tree[i[:, None], split] + tree[j[:, None], split + 1]).logsumexp(1)
            gap = gap.index_put((i, j), met).index_put((j, i), met)
            right = (link[i[:, None], split + 1] + tree[split + 1, j[:, None]]).logsumexp(1)
            left = (link[j[:, None], split] + tree[split, i[:, None]]).logsumexp(1)
            tree = tree.index_put((i, j), right).index_put((j, i), left)
        return tree[0, -1]

    return {"torch": {"marginals": log_partition}} | _supar_siblings()


def _supar_siblings() -> dict[str, Contender]:
    """supar's class, where it is installed: without the parsers around it, which need more than torch."""
    import importlib.util
    from types import ModuleType

    for name in ("supar", "supar.utils"):
        if name not in sys.modules:
            found = importlib.util.find_spec(name)
            if found is None or found.submodule_search_locations is None:
                return {}
            package = ModuleType(name)
            package.__path__ = list(found.submodule_search_locations)
            sys.modules[name] = package
    from supar.structs import Dependency2oCRF

    def build(arc: Tensor, sibling: Tensor) -> Any:
        # [dependent, head] and [dependent, head, sibling]
        return Dependency2oCRF((arc.mT, sibling.movedim(3, 1)))

    return {
        "supar": {
            "marginals": lambda *x: build(*x).log_partition,
            "argmax": lambda *x: build(*x).argmax,
        }
    }


def spanning_peers() -> dict[str, Contender]:
    import torch_struct

    def log_partition(arcs: Tensor) -> Tensor:
        return torch_struct.NonProjectiveDependencyCRF(root_on_diagonal(arcs), multiroot=False).partition

    # it has neither argmax nor samples
    return {"torch-struct": {"marginals": log_partition}}


def matching_peers() -> dict[str, Contender]:
    from scipy.optimize import linear_sum_assignment

    def argmax(scores: Tensor) -> list[Any]:
        return [linear_sum_assignment(one, maximize=True) for one in scores.detach().cpu().numpy()]

    return {"scipy": {"argmax": argmax}}


def subset_peers(k: int) -> dict[str, Contender]:
    def log_partition(x: Tensor) -> Tensor:
        """A common implementation: one step for each item, over all counts, with autograd behind it."""
        counts = torch.cat([x.new_zeros(len(x), 1), x.new_full((len(x), k), -torch.inf)], 1)
        for item in x.unbind(1):
            taken = torch.nn.functional.pad(counts[:, :-1] + item[:, None], (1, 0), value=-torch.inf)
            counts = torch.logaddexp(counts, taken)
        return counts[:, k]

    return {"torch": {"marginals": log_partition}}


def binary_peers() -> dict[str, Contender]:
    import torch_struct

    return {"torch-struct": of_torch_struct(lambda spans: torch_struct.TreeCRF(spans.unsqueeze(-1)))}


def low_rank_peers() -> dict[str, Contender]:
    """The inside pass in plain torch, all spans of a width at once, autograd backward.

    In log space, as published (Yang, Zhao and Tu 2021), every sum is a log-sum-exp. The other sums over symbols and
    ranks by products of matrices, and is much faster.
    """

    def summed(x: Tensor, factors: Tensor) -> Tensor:
        return (x.unsqueeze(-1) + factors).logsumexp(-2)

    def multiplied(x: Tensor, factors: Tensor) -> Tensor:
        peak = x.detach().amax(-1, keepdim=True)
        return ((x - peak).exp() @ factors.exp()).log() + peak

    def inside(project: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
        def log_partition(terms: Tensor, roots: Tensor, heads: Tensor, left: Tensor, right: Tensor) -> Tensor:
            N, K = terms.shape[1], len(roots)
            # (batch, first or last word, children from narrow to wide or from wide to narrow, rank)
            lefts, rights = (project(terms, table.mT[K:]).unsqueeze(2) for table in (left, right))
            for w in range(1, N):
                ranks = (lefts[:, : N - w] + rights[:, 1:]).logsumexp(2)
                nodes = project(ranks, heads.mT)
                lefts = torch.cat([lefts[:, : N - w], project(nodes, left.mT[:K]).unsqueeze(2)], 2)
                rights = torch.cat([project(nodes, right.mT[:K]).unsqueeze(2), rights[:, 1:]], 2)
            return (nodes[:, 0] + roots).logsumexp(-1)

        return log_partition

    return {
        "torch in log space": {"marginals": inside(summed)},
        "torch in products": {"marginals": inside(multiplied)},
    }


def soft_dtw_peers() -> dict[str, Contender]:
    from tslearn.metrics import SoftDTWLossPyTorch

    return {"tslearn": {"marginals": SoftDTWLossPyTorch(gamma=1.0)}}


def nobody() -> dict[str, Contender]:
    return {}


CHAINS = ((32, 64, 20), (64, 128, 64), (8, 1024, 20))
SEGMENTS = ((8, 64, 8, 8), (8, 64, 8, 16))
JUMPS = ((32, 32, 128), (8, 128, 1024))
TREES = ((32, 20), (32, 40), (8, 100))
SIBLINGS = ((32, 30), (32, 50))
GRAPHS = (*TREES, (1, 1000))
# sentences, words, nonterminals, preterminals, ranks
GRAMMARS = ((8, 30, 43, 85, 64), (8, 30, 64, 64, 64))
TABLES = ((64, 32, 32), (64, 128, 128), (1, 1000, 1000))
GRIDS = ((32, 64, 64), (32, 256, 256), (8, 1024, 1024))

CASES = [
    *(
        Case("chain, one matrix", (b, n, c), structmax.LinearChain(), normal((b, n, c), (c, c)), shared_chain_peers)
        for b, n, c in CHAINS
    ),
    *(
        Case("chain, general", (b, n, c), structmax.LinearChain(), normal((b, n, c), (b, n - 1, c, c)), chain_peers)
        for b, n, c in CHAINS
    ),
    *(
        Case(
            "projective tree",
            (b, n),
            structmax.ProjectiveTree(single_root=True),
            normal((b, n + 1, n + 1)),
            projective_peers,
        )
        for b, n in TREES
    ),
    *(
        Case(
            "second-order tree",
            (b, n),
            structmax.SecondOrderTree(single_root=True),
            normal((b, n + 1, n + 1), (b, n + 1, n + 1, n + 1)),
            sibling_peers,
        )
        for b, n in SIBLINGS
    ),
    *(
        Case(
            "segments, general",
            (b, n, w, c),
            structmax.SemiMarkov(),
            normal((b, n, w, c), (b, n - 1, w, c, c)),
            segment_peers,
        )
        for b, n, w, c in SEGMENTS
    ),
    *(Case("binary tree", (b, n), structmax.BinaryTree(), normal((b, n, n)), binary_peers) for b, n in TREES),
    *(
        Case(
            "low-rank pcfg",
            (b, n, k, t, r),
            structmax.LowRankPCFG(),
            normal((b, n, t), (k,), (k, r), (r, k + t), (r, k + t)),
            low_rank_peers,
            tasks=("marginals",),
        )
        for b, n, k, t, r in GRAMMARS
    ),
    *(
        Case(
            "spanning tree",
            (b, n),
            structmax.SpanningTree(single_root=True),
            normal((b, n + 1, n + 1)),
            spanning_peers,
            tasks=TASKS if n < 1000 else ("argmax",),
        )
        for b, n in GRAPHS
    ),
    *(
        Case("matching", (b, n, m), structmax.Matching(), normal((b, n, m)), matching_peers, tasks=("argmax",))
        for b, n, m in TABLES
    ),
    Case("subset of 10", (256, 1000), structmax.Subset(10), normal((256, 1000)), lambda: subset_peers(10)),
    *(Case("alignment", (b, n, m), structmax.MonotoneAlignment(), normal((b, n, m)), nobody) for b, n, m in GRIDS),
    *(
        Case(
            "alignment with jumps",
            (b, n, m),
            structmax.JumpAlignment(),
            normal((b, n, m), (3, 1, 1)),
            nobody,
        )
        for b, n, m in JUMPS
    ),
    *(
        Case(
            "soft-DTW",
            (b, n, m),
            structmax.MonotoneAlignment(),
            normal((b, n, 1), (b, m, 1)),
            soft_dtw_peers,
            {"marginals": lambda x, y: structmax.soft_dtw(x, y)},
        )
        for b, n, m in GRIDS
    ),
]


# ---------------------------------------------------------------- one case


@dataclass(frozen=True)
class Row:
    """One contender at one task of a case; `ratio` is its time over ours."""

    case: str
    task: str
    contender: str
    median_ms: float
    minimum_ms: float
    ratio: float
    peak_mib: float
    rounds: int


def call(task: str, contender: Contender, inputs: Inputs) -> Callable[[], object]:
    """The task as it is timed: the marginals are the gradient of the log-partition."""
    if task == "marginals":
        return lambda: torch.autograd.grad(contender[task](*inputs).sum(), inputs)
    return lambda: contender[task](*inputs)


def time_case(case: Case, device: str, rounds: int) -> list[Row]:
    inputs = tuple(t.detach().to(device).requires_grad_() for t in case.inputs())
    contenders = {OURS: case.ours()}
    try:
        contenders |= case.peers()
    except ImportError as error:
        print(f"{case.title} without peers: {error}")
    rows = []
    for task in case.tasks:
        calls = {}
        for name, contender in contenders.items():
            if task not in contender:
                continue
            try:
                got = call(task, contender, inputs)()
            except Exception as error:
                print(f"{case.title} {task} without {name}: {type(error).__name__}: {error}")
                continue
            if name == OURS:
                want = got
            elif task == "marginals":
                off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))
                if off > 1e-3:
                    print(f"{case.title}: marginals of {name} differ from ours by {off:.1e} of the largest")
            calls[name] = call(task, contender, inputs)
        if not calls:
            continue
        # one more call each, where it is told what memory it holds
        peak = {name: peak_mib(each, device) or 0.0 for name, each in calls.items()}
        times = take_turns(calls, device, rounds, BUDGET_MS)
        rows += [
            Row(
                case=case.title,
                task=task,
                contender=name,
                median_ms=median(times[name]),
                minimum_ms=min(times[name]),
                ratio=median(times[name]) / median(times[OURS]),
                peak_mib=peak[name],
                rounds=len(times[name]),
            )
            for name in calls
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="patterns of case names, such as 'chain*'")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(CPU_THREADS)
    stamp = Stamp.now(options.device)
    chosen = [c for c in CASES if not options.only or any(fnmatchcase(c.title, p) for p in options.only)]
    if not chosen:
        parser.error(f"nothing matches {options.only}; there are: " + ", ".join(case.title for case in CASES))
    rows = [row for case in chosen for row in time_case(case, options.device, options.rounds)]
    show_fields(rows)
    print(f"written to {save(rows, stamp, 'structures', options.results)}")


if __name__ == "__main__":
    main()
