"""Laws of factor graphs: every law holds every graph of a table, and random graphs are compared with another solver."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import CASES
from fuzz_factor_graph import disagreements
from relaxations import KINDS, LOGIC, QuadraticProgram, RandomGraph, members
from torch import Tensor

import structmax
from structmax import FactorGraph
from structmax.factors import Factor, Variables

# Where many bounds coincide, and a bound is often touched without a force.
OUTPUTS = ("or_out", "and_out", "imply")
TOUCHING = (39, 151, 216)
# Own scores that hardly differ; contradictions, where multipliers grow without bound.
RARE = (604550, 605919, 605988, 606005)


@pytest.mark.parametrize("kinds", [OUTPUTS, (*LOGIC, "pair"), KINDS], ids=["outputs", "logic", "all"])
def test_random_graphs(kinds):
    """Marginals and Jacobians are those of an independent solver and of its differences."""
    seeds = [*range(40), *(TOUCHING if kinds == OUTPUTS else RARE if kinds == KINDS else ())]
    found = [disagreements(seed, kinds, kinds) for seed in seeds]
    assert not [line for wrong, _ in found for line in wrong]
    assert sum(compared for _, compared in found) > 100


# ---------------------------------------------------------------- the table

# The kinds of a graph's factors; seeds for which something satisfies them.
GRAPHS: dict[str, tuple[int, tuple[str, ...]]] = {
    "outputs": (0, ("or_out", "and_out", "imply", "budget")),
    "sums": (0, ("xor", "at_most_one", "or", "xor_out")),
    "costs": (0, ("knapsack", "exactly")),
    "pairs": (0, ("pair", "pair", "xor")),
    "tables": (0, ("table", "square table", "pair")),
    "cube": (0, ("cube", "or_out")),
    "chain": (0, ("chain", "imply")),
    "matchings": (0, ("matching", "partial matching")),
    "tree": (0, ("tree", "imply")),
}
ROWS = 6


def graph_of(name: str) -> RandomGraph:
    seed, kinds = GRAPHS[name]
    return RandomGraph(np.random.default_rng(seed), kinds)


def draw(graph: RandomGraph, *batch: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, graph.n + graph.m, generator=generator, dtype=torch.float64)


def forbid(scores: Tensor, value: float) -> Tensor:
    off = torch.rand(scores.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    return scores.masked_fill(off, value)


def joined(graph: RandomGraph, parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([parts["x"], *([parts["own"]] if graph.m else [])], -1)


def structures(graph: RandomGraph) -> Tensor:
    """All 0/1 structures of a graph: those of each factor, where they agree on the variables."""
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=graph.n)), dtype=torch.float64)
    every = torch.nn.functional.pad(every, (0, graph.m))
    for one in graph.factors:
        listed = torch.from_numpy(members(one.kind, len(one.variables)))
        listed = listed[((listed == 0) | (listed == 1)).all(1)]
        wide = len(one.variables)
        literal = torch.where(torch.tensor(graph.signs(one)), 1 - every[:, one.variables], every[:, one.variables])
        row, which = (literal.unsqueeze(1) == listed[:, :wide]).all(-1).nonzero(as_tuple=True)
        every = every[row]
        every[:, graph.n + one.own : graph.n + one.own + listed.shape[1] - wide] = listed[which, wide:]
    return every


def law_marginals(graph: RandomGraph) -> None:
    """sparsemap is the quadratic program's answer: random, large, tied and whole scores, and with parts forbidden."""
    A, b, C, d = graph.system()
    random = draw(graph, ROWS)
    tied, whole = torch.zeros_like(random[:1]), (2 * random).round()
    scores = torch.cat([random, 30 * random, tied, whole, forbid(random, -math.inf)])
    out = graph.ask(scores)
    assert bool(out.converged.all())
    for row, got, value in zip(scores, joined(graph, out.marginals), out.value, strict=True):
        off = np.flatnonzero(row.isneginf().numpy())
        program = QuadraticProgram(A, b, np.concatenate([C, np.eye(len(row))[off]]), np.append(d, 0.0 * off), graph.n)
        want = program(row.nan_to_num(neginf=0.0).numpy())
        if want is None:
            assert value == -math.inf
            assert not got.any()
            continue
        # parts that their scores do not tell apart have many answers, all of one value
        best = torch.from_numpy(want)
        worth = (row.nan_to_num(neginf=0.0) * best).sum() - 0.5 * best[: graph.n].square().sum()
        torch.testing.assert_close(got[: graph.n], best[: graph.n], atol=1e-8, rtol=0)
        torch.testing.assert_close(value, worth, atol=1e-7, rtol=0)
        assert (A @ got.numpy() <= b + 1e-8).all()


def law_best(graph: RandomGraph) -> None:
    """argmax is the best of all structures where it says that it is exact, and bounded by what it says elsewhere."""
    scores, listed = draw(graph, ROWS), structures(graph)
    want = (scores @ listed.mT).amax(-1) if len(listed) else torch.full((ROWS,), -math.inf).double()
    first, certain = (graph.graph.search(graph.scores(scores), exact=exact) for exact in (False, True))
    assert bool(certain.exact.all())
    torch.testing.assert_close(certain.value, want, atol=1e-9, rtol=0)
    torch.testing.assert_close(first.value[first.exact], want[first.exact], atol=1e-9, rtol=0)
    assert (first.value <= want + 1e-9).all()
    assert (want <= first.upper_bound + 1e-6).all()
    for row in joined(graph, certain.parts)[want > -math.inf]:
        assert (listed == row).all(1).any()


def law_gradients(graph: RandomGraph) -> None:
    """Backward, forward mode and the next derivative."""
    scores = draw(graph, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(graph.marginals, scores, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(graph.marginals, scores, fast_mode=True)


def law_batches(graph: RandomGraph) -> None:
    """Any batch shape; an instance is answered the same in any company."""
    for batch in ((), (1,), (2, 2), (0,)):
        scores = draw(graph, *batch)
        out, best = graph.ask(scores), graph.graph.search(graph.scores(scores))
        assert joined(graph, out.marginals).shape == joined(graph, best.parts).shape == scores.shape
        assert out.value.shape == out.converged.shape == out.gap.shape == best.value.shape == torch.Size(batch)
    scores = draw(graph, ROWS)
    together = graph.marginals(scores)
    assert torch.equal(together, graph.marginals(scores))
    torch.testing.assert_close(torch.stack([graph.marginals(row) for row in scores]), together, atol=1e-9, rtol=0)


def law_dtypes(graph: RandomGraph) -> None:
    """Answers of lower precision are those of float64, rounded; gradients have the dtype of the scores."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        scores = draw(graph, ROWS).to(dtype).requires_grad_()
        out = graph.ask(scores)
        got = joined(graph, out.marginals)
        assert got.dtype == out.value.dtype == dtype
        assert torch.equal(got, graph.marginals(scores.detach().double()).to(dtype))
        (gradient,) = torch.autograd.grad(got.float().square().sum(), scores)
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()


def law_masks(graph: RandomGraph) -> None:
    """−1e9, or the least number of a dtype, is as good as −inf where something else is feasible."""
    scores = draw(graph, ROWS)
    want = graph.ask(forbid(scores, -math.inf))
    feasible = want.value > -math.inf
    assert feasible.any()
    for value in (-1e9, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min):
        masked = forbid(scores, value).requires_grad_()
        got = graph.ask(masked)
        assert bool(got.converged.all())
        torch.testing.assert_close(
            joined(graph, got.marginals)[feasible], joined(graph, want.marginals)[feasible], atol=1e-8, rtol=0
        )
        torch.testing.assert_close(got.value[feasible], want.value[feasible], atol=1e-6, rtol=0)
        (gradient,) = torch.autograd.grad(joined(graph, got.marginals)[feasible].square().sum(), masked)
        assert gradient.isfinite().all()
        bests = [graph.graph.search(graph.scores(s), exact=True) for s in (masked.detach(), forbid(scores, -math.inf))]
        there = bests[1].value > -math.inf
        torch.testing.assert_close(bests[0].value[there], bests[1].value[there], atol=1e-8, rtol=0)


def law_company(graph: RandomGraph) -> None:
    """NaN stays in its instance; one that nothing satisfies has zeros and −inf, and no gradient."""
    scores = draw(graph, 4)
    scores[1, 0] = math.nan
    scores[2] = -math.inf
    scores.requires_grad_()
    out = graph.ask(scores)
    got, alone = joined(graph, out.marginals), graph.marginals(scores.detach()[[0, 3]])
    torch.testing.assert_close(got[[0, 3]], alone, atol=1e-9, rtol=0)
    assert got[1].isnan().all()
    assert out.value[1].isnan()
    if out.value[2] == -math.inf:
        assert not got[2].any()
    (gradient,) = torch.autograd.grad(got[[0, 2, 3]].square().sum(), scores)
    assert gradient[[0, 3]].isfinite().all()
    assert not gradient[2].any()


LAWS: dict[str, Callable[[RandomGraph], None]] = {
    name.removeprefix("law_"): law for name, law in list(globals().items()) if name.startswith("law_")
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("law", LAWS)
def test_law(law, name):
    LAWS[law](graph_of(name))


# ---------------------------------------------------------------- every structure as a factor


def as_graph(structure: structmax.AbstractStructure, scores: dict[str, Tensor], batch: int) -> FactorGraph:
    """The structure alone, its part tensors under their names."""
    regularised = structure.regularised or tuple(scores)
    over = [Variables(name, tuple(t.shape[batch:]), free=name not in regularised) for name, t in scores.items()]
    return FactorGraph(Factor(structure, *over))


# A part tensor of size 0 has no variables, and a graph is no factor.
FACTORS = {
    name: case
    for name, case in CASES.items()
    if all(tensor.numel() for tensor in case.scores()) and not isinstance(case.structure, FactorGraph)
}


@pytest.mark.parametrize("name", FACTORS)
def test_structures_with_and_without_a_batch(name):
    """A structure is the same factor for a batch, with its fields for each instance, and for one instance alone."""
    case = FACTORS[name]
    structure, tensors = case.structure, case.scores()
    batch = structure.batch_shape(structure.parts(tensors))
    want = structmax.sparsemap(structure.parts(tensors), structure).marginals
    values = case.scores_of_members(tensors).amax(-1)
    names = structure.names
    wanted = dict(zip(names, structure.tensors(want), strict=False))
    for index in (slice(None), (0,) * len(batch), tuple(size - 1 for size in batch)):
        whole = index == slice(None)
        scores = {name: tensor[index] for name, tensor in zip(names, tensors, strict=False)}
        graph = as_graph(structure if whole else structure.at(index, batch), scores, len(batch) if whole else 0)
        got = structmax.sparsemap(scores, graph, tol=1e-9).marginals
        for key, answer in got.items():
            torch.testing.assert_close(answer, wanted[key][index], atol=1e-8, rtol=0)
        torch.testing.assert_close(graph.search(scores, exact=True).value, values[index], atol=1e-8, rtol=0)


def test_lengths_that_do_not_fit_the_batch():
    tag, step = Variables("tag", (5, 3)), Variables("step", (3, 3), free=True)
    graph = FactorGraph(Factor(structmax.LinearChain(torch.tensor([3, 5])), tag, step))
    with pytest.raises(ValueError, match="lengths"):
        structmax.sparsemap({"tag": torch.zeros(3, 5, 3), "step": torch.zeros(3, 3)}, graph)
