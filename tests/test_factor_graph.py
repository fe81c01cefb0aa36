"""Factor graphs: loopy ones against linear and quadratic programs, enumeration, differences; structures; refusals."""

import copy
import gc
import itertools
import math
import pickle
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import structmax
from structmax import FactorGraph, LinearChain, Matching, SpanningTree
from structmax.factors import (
    AndOut,
    AtMostOne,
    Budget,
    Dense,
    Factor,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Variables,
    Xor,
    XorOut,
)

# ---------------------------------------------------------------- random graphs, and what they mean


class Loopy:
    """A random graph over n variables and pairs of neighbours, with its relaxation as inequalities A v ≤ b."""

    kinds = (Xor, Or, AtMostOne, OrOut, Imply, AndOut, XorOut)

    def __init__(self, seed: int, n: int = 10, factors: int = 6) -> None:
        generator = np.random.default_rng(seed)
        self.n = n
        self.rows: list[tuple[np.ndarray, float]] = []
        word, bond = Variables("word", (n,)), Variables("bond", (n - 1,), free=True)
        items: list = [word]
        for _ in range(factors):
            index = generator.permutation(n)[: generator.integers(3, 6)]
            flips = generator.random(len(index)) < 0.5
            literals = [~word[int(i)] if flip else word[int(i)] for i, flip in zip(index, flips, strict=True)]
            kind = self.kinds[generator.integers(len(self.kinds))]
            items.append(kind(*literals))
            self._describe(kind, list(zip(index.tolist(), flips.tolist(), strict=True)))
        items.append(Pair(word[:-1], word[1:], score=bond))
        for i in range(n - 1):
            pair = n + i
            self._at_most({pair: 1, i: -1}, 0)
            self._at_most({pair: 1, i + 1: -1}, 0)
            self._at_most({i: 1, i + 1: 1, pair: -1}, 1)
        self.graph = FactorGraph(*items)

    def _at_most(self, coefficients: dict[int, float], bound: float) -> None:
        row = np.zeros(2 * self.n - 1)
        for i, c in coefficients.items():
            row[i] = c
        self.rows.append((row, bound))

    def _sum(self, literals: list[tuple[int, bool]], sign: float, bound: float) -> None:
        """sign · Σ literals ≤ bound."""
        self._at_most({i: -sign if flip else sign for i, flip in literals}, bound - sign * sum(f for _, f in literals))

    def _describe(self, kind: type, literals: list[tuple[int, bool]]) -> None:
        *inputs, (out, flip) = literals
        negated = [(i, not f) for i, f in inputs]
        if kind in (Xor, AtMostOne):
            self._sum(literals, 1, 1)
        if kind in (Xor, Or):
            self._sum(literals, -1, -1)
        if kind is Imply:
            self._sum([*negated, (out, flip)], -1, -1)
        if kind is XorOut:
            self._sum([*inputs, (out, not flip)], 1, 1)
            self._sum([*inputs, (out, not flip)], -1, -1)
        if kind in (OrOut, AndOut):
            if kind is AndOut:
                inputs, flip = negated, not flip
            # z ≤ Σ x is Σ x + ¬z ≥ 1, and x ≤ z is x + ¬z ≤ 1
            self._sum([*inputs, (out, not flip)], -1, -1)
            for one in inputs:
                self._sum([one, (out, not flip)], 1, 1)

    @property
    def inequalities(self) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([row for row, _ in self.rows]), np.array([bound for _, bound in self.rows], np.float64)

    def members(self) -> Tensor:
        """All 0/1 structures with their pairs: (M, 2n − 1)."""
        words = torch.tensor(list(itertools.product((0.0, 1.0), repeat=self.n)), dtype=torch.float64)
        every = torch.cat([words, words[:, :-1] * words[:, 1:]], 1)
        A, b = self.inequalities
        return every[(every @ torch.from_numpy(A).mT <= torch.from_numpy(b) + 1e-9).all(1)]

    def linear(self, scores: Tensor) -> float:
        """The relaxation's optimum, −inf where it is empty."""
        A, b = self.inequalities
        found = linprog(-scores.numpy(), A, b, bounds=(0, 1))
        return -found.fun if found.status == 0 else -math.inf

    def named(self, scores: Tensor) -> dict[str, Tensor]:
        return {"word": scores[..., : self.n], "bond": scores[..., self.n :]}

    def sparse(self, scores: Tensor) -> Tensor:
        out = structmax.sparsemap(self.named(scores), self.graph, tol=1e-10)
        assert bool(out.converged.all())
        return torch.cat([out.marginals["word"], out.marginals["bond"]], -1)


SEEDS = range(8)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_program(seed):
    loopy = Loopy(seed)
    scores = draw(12, 2 * loopy.n - 1, seed=seed)
    best = loopy.graph.search(loopy.named(scores))
    assert bool(best.converged.all())
    for row, relaxed, pairs, value, bound in zip(
        scores, best.relaxed["word"], best.relaxed["bond"], best.value, best.upper_bound, strict=True
    ):
        want = loopy.linear(row)
        if want == -math.inf:
            assert value == bound == -math.inf
            continue
        assert float(row @ torch.cat([relaxed, pairs])) == pytest.approx(want, abs=1e-6)
        assert value <= bound <= want + 1e-6 or bound == value


@pytest.mark.parametrize("seed", SEEDS)
def test_branch_and_bound(seed):
    loopy = Loopy(seed)
    scores, members = draw(12, 2 * loopy.n - 1, seed=seed), loopy.members()
    best = loopy.graph.search(loopy.named(scores), exact=True)
    assert bool(best.exact.all())
    want = (scores @ members.mT).amax(-1) if len(members) else torch.full((12,), -math.inf, dtype=torch.float64)
    torch.testing.assert_close(best.value, want, atol=1e-9, rtol=0)
    torch.testing.assert_close(best.upper_bound, want, atol=1e-6, rtol=0)
    first = loopy.graph.search(loopy.named(scores))
    assert (first.value <= want + 1e-9).all()
    torch.testing.assert_close(first.value[first.exact], want[first.exact], atol=1e-9, rtol=0)
    if len(members):
        parts = torch.cat([first.parts["word"], first.parts["bond"]], -1)
        assert all((members == row).all(1).any() for row in parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_quadratic_program(seed):
    """The answer satisfies all inequalities, and no point of them is better to first order, says a linear program."""
    loopy = Loopy(seed)
    scores = 2 * draw(10, 2 * loopy.n - 1, seed=seed)
    if loopy.linear(scores[0]) == -math.inf:
        out = structmax.sparsemap(loopy.named(scores), loopy.graph)
        assert bool(out.converged.all())
        assert (out.value == -math.inf).all()
        assert not out.marginals["word"].any()
        return
    got = loopy.sparse(scores)
    A, b = loopy.inequalities
    assert (got @ torch.from_numpy(A).mT <= torch.from_numpy(b) + 1e-9).all()
    for row, point in zip(scores, got, strict=True):
        force = row.clone()
        force[: loopy.n] -= point[: loopy.n]
        assert loopy.linear(force) == pytest.approx(float(force @ point), abs=1e-7)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_gradient_of_loopy_graphs(seed):
    loopy = Loopy(seed)
    scores = draw(60, 2 * loopy.n - 1, seed=seed).requires_grad_()
    weight = draw(2 * loopy.n - 1, seed=9)
    (got,) = torch.autograd.grad((loopy.sparse(scores) @ weight).sum(), scores)
    estimates = [slopes(lambda x: loopy.sparse(x) @ weight, scores.detach(), step) for step in (1e-5, 1e-6)]
    smooth = (estimates[0] - estimates[1]).abs().amax(1) < 1e-6
    assert smooth.sum() > 50
    torch.testing.assert_close(got[smooth], estimates[1][smooth], atol=1e-6, rtol=0)


def slopes(function: Callable[[Tensor], Tensor], x: Tensor, step: float) -> Tensor:
    """Central differences of a function (R, d) → (R,): all bumps in one batch."""
    bumps = step * torch.eye(x.shape[1], dtype=x.dtype)
    up, down = (function((x.unsqueeze(1) + sign * bumps).flatten(0, 1)) for sign in (1, -1))
    return ((up - down) / (2 * step)).reshape(x.shape)


def test_gradcheck():
    """Backward, forward mode and the next derivative, at points away from kinks."""
    loopy = Loopy(3)
    scores = draw(3, 2 * loopy.n - 1, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(loopy.sparse, scores, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loopy.sparse, scores)


def test_value():
    """Its gradient is the marginals; it is what they are worth."""
    loopy = Loopy(2)
    scores = draw(5, 2 * loopy.n - 1, seed=1).requires_grad_()
    out = structmax.sparsemap(loopy.named(scores), loopy.graph, temperature=0.5)
    both = torch.cat([out.marginals["word"], out.marginals["bond"]], -1)
    want = (scores * both).sum(-1) - 0.25 * out.marginals["word"].square().sum(-1)
    torch.testing.assert_close(out.value, want)
    (gradient,) = torch.autograd.grad(out.value.sum(), scores)
    torch.testing.assert_close(gradient, both)
    assert (out.gap < 1e-9).all()


# ---------------------------------------------------------------- matchings, from rows and columns


def lines(n: int) -> FactorGraph:
    x = Variables("x", (n, n))
    return FactorGraph(*(Xor(x[i]) for i in range(n)), *(Xor(x[:, j]) for j in range(n)))


@pytest.mark.parametrize("scale", [0.3, 1.0, 30.0])
def test_matching(scale):
    """Rows and columns give the matching polytope, which has no fractional corner."""
    scores = (scale * draw(8, 7, 7)).requires_grad_()
    out = structmax.sparsemap({"x": scores}, lines(7), tol=1e-9)
    assert bool(out.converged.all())
    assert (out.primal_residual < 1e-9).all()
    got = out.marginals["x"]
    torch.testing.assert_close(got.sum(-1), torch.ones(8, 7, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(got.sum(-2), torch.ones(8, 7, dtype=torch.float64), atol=1e-12, rtol=0)
    want = structmax.sparsemap(scores, Matching()).marginals
    torch.testing.assert_close(got, want, atol=1e-9, rtol=0)
    weight = draw(8, 7, 7, seed=5)
    gradients = [torch.autograd.grad((answer * weight).sum(), scores)[0] for answer in (got, want)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)
    best = lines(7).search({"x": scores.detach()})
    assert bool(best.exact.all())
    torch.testing.assert_close(best.parts["x"], structmax.argmax(scores.detach(), Matching()))


def test_ties():
    """The symmetric answer for scores that do not differ, and integers."""
    flat = structmax.sparsemap({"x": torch.zeros(4, 4, dtype=torch.float64)}, lines(4)).marginals["x"]
    torch.testing.assert_close(flat, torch.full((4, 4), 0.25, dtype=torch.float64))
    scores = torch.randint(-2, 3, (50, 5, 5), generator=torch.Generator().manual_seed(0)).double()
    out = structmax.sparsemap({"x": scores}, lines(5), tol=1e-9)
    assert bool(out.converged.all())
    want = structmax.sparsemap(scores, Matching()).marginals
    torch.testing.assert_close(out.marginals["x"], want, atol=1e-8, rtol=0)
    best = lines(5).search({"x": scores})
    value = (structmax.argmax(scores, Matching()) * scores).sum((-1, -2))
    torch.testing.assert_close(best.value, value)


# ---------------------------------------------------------------- structures as factors


def test_single_structures_agree_with_sparsemap():
    arc, tag = Variables("arc", (6, 6)), Variables("tag", (5, 3))
    step = Variables("step", (3, 3), free=True)
    tree, chain = SpanningTree(single_root=True), LinearChain()
    graph = FactorGraph(Factor(tree, arc), Factor(chain, tag, step))
    leaves = [draw(4, *shape, seed=k).requires_grad_() for k, shape in enumerate([(6, 6), (5, 3), (3, 3)])]
    out = structmax.sparsemap(dict(zip(("arc", "tag", "step"), leaves, strict=True)), graph, tol=1e-9)
    one = structmax.sparsemap(leaves[0], tree)
    two = structmax.sparsemap((leaves[1], leaves[2]), chain)
    wanted = [one.marginals, two.marginals.unary, two.marginals.pairwise]
    got = [out.marginals[name] for name in ("arc", "tag", "step")]
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
    weights = [draw(*t.shape, seed=7) for t in leaves]
    sums = [sum((a * w).sum() for a, w in zip(answers, weights, strict=True)) for answers in (got, wanted)]
    for a, b in zip(*(torch.autograd.grad(s, leaves) for s in sums), strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
    torch.testing.assert_close(out.value, one.value + two.value)


class Parser:
    """A tree and a chain that share what a word is: words that hang on the root have tag 0, and at most two do."""

    def __init__(self) -> None:
        self.shapes = {"arc": (4, 4), "tag": (3, 2), "step": (2, 2)}
        arc, tag = Variables("arc", (4, 4)), Variables("tag", (3, 2))
        step = Variables("step", (2, 2), free=True)
        self.graph = FactorGraph(
            Factor(SpanningTree(single_root=False), arc),
            Factor(LinearChain(), tag, step),
            *(Imply(arc[0, m], tag[m - 1, 0]) for m in range(1, 4)),
            Budget(arc[0], at_most=2),
        )

    def draw(self, rows: int, seed: int) -> dict[str, Tensor]:
        return {name: draw(rows, *shape, seed=seed + k) for k, (name, shape) in enumerate(self.shapes.items())}

    def flat(self, parts: dict[str, Tensor]) -> Tensor:
        return torch.cat([parts[name].flatten(-len(shape)) for name, shape in self.shapes.items()], -1)

    def members(self) -> Tensor:
        scores = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self.shapes.items()}
        trees = SpanningTree(single_root=False).enumerate(scores["arc"])
        tags = LinearChain().enumerate((scores["tag"], scores["step"]))
        every = []
        for tree, k in itertools.product(trees, range(len(tags[0]))):
            hanging = tree[0, 1:]
            if hanging.sum() <= 2 and (hanging <= tags[0][k][:, 0]).all():
                every.append(self.flat({"arc": tree, "tag": tags[0][k], "step": tags[1][k]}))
        return torch.stack(every)


@pytest.mark.thorough
def test_tree_and_chain():
    """Feasible where they should be, better than all structures to first order, and the derivative is right."""
    parser = Parser()
    scores = {name: t.requires_grad_() for name, t in parser.draw(30, seed=3).items()}
    out = structmax.sparsemap(scores, parser.graph, tol=1e-9)
    assert bool(out.converged.all())
    assert (out.primal_residual < 1e-9).all()
    arc, tag = out.marginals["arc"].detach(), out.marginals["tag"].detach()
    assert (arc[:, 0, 1:] <= tag[..., 0] + 1e-9).all()
    assert (arc[:, 0].sum(-1) <= 2 + 1e-9).all()
    torch.testing.assert_close(arc[:, :, 1:].sum(1), torch.ones(30, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    force = parser.flat(scores).detach()
    point = parser.flat(out.marginals).detach()
    force[:, :22] -= point[:, :22]
    assert ((force @ parser.members().mT).amax(-1) <= (force * point).sum(-1) + 1e-8).all()
    weight = draw(26, seed=8)
    leaves = list(scores.values())
    got = torch.cat([g.flatten(1) for g in torch.autograd.grad((parser.flat(out.marginals) @ weight).sum(), leaves)], 1)

    def asked(flat: Tensor) -> Tensor:
        pieces = flat.split([16, 6, 4], -1)
        named = {n: p.reshape(-1, *s) for (n, s), p in zip(parser.shapes.items(), pieces, strict=True)}
        return parser.flat(structmax.sparsemap(named, parser.graph, tol=1e-10).marginals) @ weight

    flat = parser.flat(scores).detach()[:12]
    estimates = [slopes(asked, flat, step) for step in (1e-5, 1e-6)]
    smooth = (estimates[0] - estimates[1]).abs().amax(1) < 1e-6
    assert smooth.sum() >= 9
    torch.testing.assert_close(got[:12][smooth], estimates[1][smooth], atol=1e-5, rtol=0)


def test_best_tree_and_chain():
    parser = Parser()
    scores = parser.draw(20, seed=11)
    best = parser.graph.search(scores, exact=True)
    assert bool(best.exact.all())
    want = (parser.flat(scores) @ parser.members().mT).amax(-1)
    torch.testing.assert_close(best.value, want, atol=1e-8, rtol=0)
    members = parser.members()
    assert all((members == row).all(1).any() for row in parser.flat(best.parts))


def test_dense():
    """A table over two groups is a chain of two with its own transitions."""
    tag, joint = Variables("tag", (2, 3)), Variables("joint", (3, 3), free=True)
    graph = FactorGraph(Dense(tag[0], tag[1], score=joint))
    states, table = draw(6, 2, 3).requires_grad_(), draw(6, 3, 3, seed=1).requires_grad_()
    out = structmax.sparsemap({"tag": states, "joint": table}, graph, tol=1e-9)
    want = structmax.sparsemap((states, table.unsqueeze(1)), LinearChain()).marginals
    torch.testing.assert_close(out.marginals["tag"], want.unary, atol=1e-9, rtol=0)
    torch.testing.assert_close(out.marginals["joint"], want.pairwise.squeeze(1), atol=1e-9, rtol=0)
    weight = draw(6, 3, 3, seed=2)
    one = torch.autograd.grad((out.marginals["joint"] * weight).sum(), (states, table))
    two = torch.autograd.grad((want.pairwise.squeeze(1) * weight).sum(), (states, table))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
    best = graph.search({"tag": states.detach(), "joint": table.detach()})
    torch.testing.assert_close(
        best.parts["tag"], structmax.argmax((states.detach(), table.detach().unsqueeze(1)), LinearChain()).unary
    )


def test_lengths_of_a_structure():
    """A structure with a length for each instance: padding is 0, and does not disturb."""
    lengths = torch.tensor([3, 5, 1])
    tag, step = Variables("tag", (5, 3)), Variables("step", (3, 3), free=True)
    graph = FactorGraph(Factor(LinearChain(lengths), tag, step), Budget(tag[:, 0], at_most=1))
    scores = {"tag": draw(3, 5, 3), "step": draw(3, 3)}
    got = structmax.sparsemap(scores, graph, tol=1e-9)
    assert bool(got.converged.all())
    for k, n in enumerate(lengths.tolist()):
        short = Variables("tag", (n, 3))
        alone = FactorGraph(Factor(LinearChain(), short, step), Budget(short[:, 0], at_most=1))
        want = structmax.sparsemap({"tag": scores["tag"][k, :n], "step": scores["step"]}, alone, tol=1e-9)
        torch.testing.assert_close(got.marginals["tag"][k, :n], want.marginals["tag"], atol=1e-8, rtol=0)
        assert not got.marginals["tag"][k, n:].any()


# ---------------------------------------------------------------- forms of input


def test_no_factor_is_a_box():
    x = Variables("x", (3,))
    graph = FactorGraph(x)
    scores = torch.tensor([-0.5, 0.3, 1.7], requires_grad=True)
    out = structmax.sparsemap({"x": scores}, graph)
    torch.testing.assert_close(out.marginals["x"], torch.tensor([0.0, 0.3, 1.0]))
    out.marginals["x"].sum().backward()
    torch.testing.assert_close(scores.grad, torch.tensor([0.0, 1.0, 0.0]))
    best = graph.search({"x": scores.detach()})
    torch.testing.assert_close(best.parts["x"], torch.tensor([0.0, 1.0, 1.0]))
    assert best.exact


def test_mask():
    """Absent variables are 0; a factor over none that is present says nothing."""
    tag = Variables("tag", (4, 3))
    graph = FactorGraph(*(Xor(tag[i]) for i in range(4)), Budget(tag[:, 0], at_most=1))
    scores = draw(2, 4, 3)
    scores[1, 2:] = math.nan
    mask = torch.ones(2, 4, 1, dtype=torch.bool)
    mask[1, 2:] = False
    got = structmax.sparsemap({"tag": scores}, graph.masked({"tag": mask})).marginals["tag"]
    short = Variables("tag", (2, 3))
    alone = FactorGraph(*(Xor(short[i]) for i in range(2)), Budget(short[:, 0], at_most=1))
    torch.testing.assert_close(got[1, :2], structmax.sparsemap({"tag": scores[1, :2]}, alone).marginals["tag"])
    assert not got[1, 2:].any()
    torch.testing.assert_close(got[0], structmax.sparsemap({"tag": scores[0]}, graph).marginals["tag"])
    best = graph.masked({"tag": mask}).search({"tag": scores})
    assert bool(best.exact.all())
    assert not best.parts["tag"][1, 2:].any()


def test_instances_do_not_disturb_each_other():
    """NaN stays where it is; an instance nothing satisfies has zeros and −inf; gradients too."""
    graph = lines(3)
    scores = draw(4, 3, 3)
    scores[1, 0, 0] = math.nan
    scores[2, 1] = -math.inf
    scores.requires_grad_()
    out = structmax.sparsemap({"x": scores}, graph)
    got = out.marginals["x"]
    assert got[1].isnan().all()
    assert out.value[1].isnan()
    assert not got[2].any()
    assert out.value[2] == -math.inf
    assert out.converged.tolist() == [True, False, True, True]
    for k in (0, 3):
        torch.testing.assert_close(got[k], structmax.sparsemap({"x": scores[k]}, graph).marginals["x"])
    got[[0, 2, 3]].square().sum().backward()
    assert scores.grad[[0, 2, 3]].isfinite().all()
    assert not scores.grad[2].any()
    best = graph.search({"x": scores.detach()}, exact=True)
    assert best.exact.tolist() == [True, False, True, True]
    assert best.value[2] == -math.inf


def test_contradictions_are_found():
    """Each factor can be satisfied, all together cannot."""
    x = Variables("x", (3,))
    graph = FactorGraph(Xor(x), Budget(x, exactly=2), Or(x[0], x[1]))
    out = structmax.sparsemap({"x": draw(4, 3)}, graph)
    assert (out.value == -math.inf).all()
    assert not out.marginals["x"].any()
    best = graph.search({"x": draw(4, 3)})
    assert bool(best.exact.all())
    assert (best.upper_bound == -math.inf).all()
    # the relaxation has a point, ½ everywhere, and no structure
    odd = FactorGraph(Xor(x[0], x[1]), Xor(x[1], x[2]), Xor(x[0], x[2]))
    torch.testing.assert_close(structmax.sparsemap({"x": draw(3)}, odd).marginals["x"], torch.full((3,), 0.5).double())
    best = odd.search({"x": draw(3)})
    assert best.exact
    assert best.value == -math.inf


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)])
def test_batches(batch):
    graph = lines(3)
    scores = draw(*batch, 3, 3)
    out = structmax.sparsemap({"x": scores}, graph)
    assert out.marginals["x"].shape == scores.shape
    assert out.value.shape == out.converged.shape == out.gap.shape == torch.Size(batch)
    best = graph.search({"x": scores})
    assert best.parts["x"].shape == scores.shape
    assert best.value.shape == torch.Size(batch)
    rows = scores.reshape(-1, 3, 3)
    for row, got in zip(rows, out.marginals["x"].reshape(-1, 3, 3), strict=True):
        torch.testing.assert_close(structmax.sparsemap({"x": row}, graph).marginals["x"], got)


def test_batches_broadcast():
    word, bond = Variables("word", (3,)), Variables("bond", (2,), free=True)
    graph = FactorGraph(Pair(word[:-1], word[1:], score=bond), AtMostOne(word[0], word[2]))
    scores = {"word": draw(4, 3).requires_grad_(), "bond": draw(2, seed=1).requires_grad_()}
    out = structmax.sparsemap(scores, graph)
    assert out.marginals["bond"].shape == (4, 2)
    (out.marginals["bond"].sum() + out.marginals["word"].sum()).backward()
    assert scores["bond"].grad.shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    scores = draw(5, 4, 4).to(dtype).requires_grad_()
    out = structmax.sparsemap({"x": scores}, lines(4))
    assert out.marginals["x"].dtype == out.value.dtype == dtype
    want = structmax.sparsemap({"x": scores.detach().double()}, lines(4)).marginals["x"]
    torch.testing.assert_close(out.marginals["x"], want.to(dtype))
    out.marginals["x"].square().sum().backward()
    assert scores.grad.dtype == dtype


def test_a_knapsack_is_cut_by_the_relaxation_alone():
    item = Variables("item", (4,))
    costs = [2.0, 3.0, 4.0, 5.0]
    graph = FactorGraph(Knapsack(item, costs=costs, capacity=7.0))
    scores = draw(20, 4).abs() + 0.1
    best = graph.search({"item": scores}, exact=True)
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64)
    fits = every[every @ torch.tensor(costs, dtype=torch.float64) <= 7.0]
    torch.testing.assert_close(best.value, (scores @ fits.mT).amax(-1))
    cut = best.relaxed["item"]
    assert ((cut > 1e-6) & (cut < 1 - 1e-6)).any()


def test_limits_are_spoken():
    graph = lines(8)
    with pytest.warns(UserWarning, match="did not converge in 1 steps"):
        out = structmax.sparsemap({"x": 50 * draw(4, 8, 8)}, graph, max_iter=1, tol=1e-12)
    assert not out.converged.all()
    odd = Variables("x", (5,))
    pairs = [AtMostOne(odd[i], odd[j]) for i, j in itertools.combinations(range(5), 2)]
    best = FactorGraph(*pairs).search({"x": 1 + 0.1 * draw(5).abs()}, exact=True, max_nodes=1)
    assert not best.exact
    assert best.upper_bound > best.value


# ---------------------------------------------------------------- what is refused


X, Y = Variables("x", (3,)), Variables("y", (2, 2))
FREE = Variables("free", (2,), free=True)
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (lambda: Xor(), "Xor should have at least one variable, but has none."),
    "empty slice": (lambda: Or(X[:0]), "Or should have at least one variable, but has none."),
    "twice": (lambda: Xor(X, X[1]), "should have each variable once, negated or not, but has entry (1,) of `x` twice."),
    "negated": (lambda: Or(Y[0], ~Y[0, 1]), "has entry (0, 1) of `y` twice."),
    "free in logic": (lambda: Xor(FREE), "Xor should be over variables that are not free, but `free` is free."),
    "not variables": (lambda: Xor(3), "a factor should be over Variables or slices of them, but got a int."),
    "no output": (
        lambda: OrOut(X[0]),
        "OrOut should have at least two literals, the last of them its output, but has 1.",
    ),
    "no number": (lambda: Budget(X), "Budget should have one of `at_most` and `exactly`"),
    "two numbers": (lambda: Budget(X, at_most=1, exactly=1), "Budget should have one of `at_most` and `exactly`"),
    "too many": (lambda: Budget(X, exactly=4), "`exactly` should be at most the number of literals, 3, but is 4."),
    "negative": (lambda: Budget(X, at_most=-1), "`at_most` should be a whole number ≥ 0, but is -1."),
    "costs": (lambda: Knapsack(X, costs=[1.0], capacity=1.0), "`costs` should have one number for each of the 3"),
    "negative costs": (
        lambda: Knapsack(X, costs=[1, -1, 0], capacity=1),
        "`costs` should be ≥ 0, but the least is -1.",
    ),
    "pair shapes": (lambda: Pair(X[:2], X[0], score=FREE), "Pair should be over slices of equal shape"),
    "pair with itself": (lambda: Pair(X[:2], X[:2], score=FREE), "but joins an entry of `x` with itself."),
    "bound score": (lambda: Pair(X[0], X[1], score=X[2]), "the score of Pair should be free, but `x` is not."),
    "table": (lambda: Dense(Y[0], X, score=FREE), "`score` of Dense should have shape (2, 3), the sizes of its groups"),
    "negated score": (lambda: ~FREE, "`free` is free: a factor's own score has no negation."),
    "structure": (lambda: Factor(X, X), "Factor should have a structure first, but got a Variables."),
    "class": (lambda: Factor(LinearChain, X), "but got a class. Try LinearChain()."),
    "parts": (lambda: Factor(Matching(), Y, X), "`scores`, at least 1 and at most 1, but has 2."),
    "all free": (
        lambda: Factor(structmax.Simplex(), FREE),
        "Factor should have at least one variable that is not free",
    ),
    "name": (lambda: Variables("", (2,)), "`name` should be a word, the key of the scores, but is ''."),
    "size": (lambda: Variables("x", (2, 0)), "`shape` should hold whole numbers ≥ 1, but holds 0."),
    "index": (lambda: X[3], "`x` of shape (3,) has no [3]"),
    "one size": (lambda: Variables("x", 3), "`shape` should be a tuple of sizes, but is 3. Try (3,)."),
    "capacity": (lambda: Knapsack(X, costs=[1, 1, 0], capacity=-1), "`capacity` should be ≥ 0, but is -1."),
    "too few parts": (lambda: Factor(LinearChain(), Y), "at least 2 and at most 4, but has 1."),
    "misfit": (
        lambda: Factor(SpanningTree(single_root=True), Variables("arc", (3, 4))),
        "Factor over `arc` (3, 4) does not fit: `scores` of a SpanningTree",
    ),
    "list of slices": (lambda: Xor([X[0], X[1]]), "but got a list. Try Xor(*slices) for a list of them."),
    "third item": (lambda: FactorGraph(Xor(X), Y, "x"), "but its item 2 is a str."),
    "structure alone": (
        lambda: FactorGraph(LinearChain()),
        "but its item 0 is a LinearChain. Try Factor(LinearChain(), …), over variables that are its parts.",
    ),
    "slice alone": (lambda: FactorGraph(X[0]), "Try a factor over it, such as Xor(…), or all the Variables."),
    "factor's class": (lambda: FactorGraph(Xor), "but its item 0 is the class Xor."),
    "mask of a tensor": (
        lambda: FactorGraph(Xor(X)).masked(torch.ones(3).bool()),
        "`mask` of a FactorGraph should be a dictionary by name, but is a Tensor. Try {'x': …}.",
    ),
    "searched tensor": (lambda: FactorGraph(Xor(X)).search(torch.ones(3)), "should be a dictionary by name"),
    "encoded tensor": (lambda: FactorGraph(Xor(X)).encode(torch.ones(3)), "should be a dictionary by name"),
    "None": (lambda: structmax.argmax({"x": None}, FactorGraph(Xor(X))), "`x` should be a torch tensor, but is None."),
    "list": (lambda: FactorGraph([Xor(X)]), "A list of factors is given as FactorGraph(*factors)."),
    "nothing": (lambda: FactorGraph(), "a FactorGraph should have variables, but has none."),
    "two shapes": (
        lambda: FactorGraph(Xor(X), Variables("x", (4,))),
        "`x` should name one tensor of variables, but names one of shape (3,) and one of shape (4,).",
    ),
    "free alone": (lambda: FactorGraph(Xor(X), FREE), "`free` is free, and should belong to a factor, but is in none."),
    "shared score": (
        lambda: FactorGraph(Pair(X[0], X[1], score=FREE[0]), Pair(X[0], X[2], score=FREE[0])),
        "`free` is free: each entry should belong to one factor, but entry (0,) belongs to two.",
    ),
    "unknown": (
        lambda: structmax.sparsemap({"x": torch.zeros(3), "z": torch.zeros(1)}, FactorGraph(Xor(X))),
        "'z' is unknown",
    ),
    "missing": (
        lambda: structmax.sparsemap({}, FactorGraph(Xor(X))),
        "scores and parts of this graph should have the names ['x'], but 'x' is missing.",
    ),
    "shape": (
        lambda: FactorGraph(Xor(X)).search({"x": torch.zeros(2, 4)}),
        "`x` should have shape (…, 3), but has (2, 4).",
    ),
    "batch": (
        lambda: structmax.sparsemap({"x": torch.zeros(2, 3), "y": torch.zeros(3, 2, 2)}, FactorGraph(Xor(X), Y)),
        "the batch dimensions of `scores` should broadcast, but are x (2,), y (3,).",
    ),
    "integers": (
        lambda: structmax.sparsemap({"x": torch.zeros(3).long()}, FactorGraph(Xor(X))),
        "`x` should be floating point",
    ),
    "mask": (
        lambda: structmax.sparsemap({"x": torch.zeros(3)}, FactorGraph(Xor(X)).masked({"y": torch.ones(3).bool()})),
        "`mask` should have names among ['x'], but has 'y'.",
    ),
    "mask shape": (
        lambda: FactorGraph(Xor(X)).masked({"x": torch.ones(2).bool()}),
        "`mask['x']` should broadcast to (…, 3), but has (2,).",
    ),
    "mask dtype": (lambda: FactorGraph(Xor(X)).masked({"x": torch.ones(3)}), "`mask['x']` should be"),
    "mask batch": (
        lambda: structmax.argmax({"x": torch.zeros(3, 3)}, FactorGraph(Xor(X)).masked({"x": torch.ones(2, 3).bool()})),
        "`mask` should broadcast to the batch (3,) of the scores, but has batch dimensions (2,).",
    ),
    "tensor": (
        lambda: structmax.argmax(torch.zeros(3), FactorGraph(Xor(X))),
        "scores and parts of a FactorGraph should be a dictionary by name, but are a Tensor. Try {'x': …}.",
    ),
    "target": (
        lambda: structmax.svm_loss({"x": torch.zeros(3)}, FactorGraph(Xor(X)), torch.zeros(3)),
        "scores and parts of a FactorGraph should be a dictionary by name",
    ),
    "no member": (
        lambda: FactorGraph(Xor(X), Pair(X[:2], X[1:], score=FREE)).encode({"x": torch.tensor([1, 1, 0])}),
        "the variables should satisfy all factors, but do not in 1 of 1 instances.",
    ),
    "graph in a graph": (
        lambda: Factor(FactorGraph(Xor(X)), X),
        "Try giving the factors of both graphs to one FactorGraph.",
    ),
    "start": (
        lambda: structmax.sparsemap({"x": torch.zeros(3)}, FactorGraph(Xor(X)), start={"x": torch.zeros(1, 3)}),
        "sparsemap of a FactorGraph should have neither `start` nor `solver`",
    ),
    "regularised": (
        lambda: structmax.smoothed(
            {"x": torch.zeros(3), "free": torch.zeros(2)},
            FactorGraph(Xor(X), Pair(X[:2], X[1:], score=FREE)),
            structmax.omega.SquaredNorm(regularised=("x", "free")),
        ),
        "`regularised` of a FactorGraph should be ('x',), all that is not free, but is ('x', 'free').",
    ),
    "temperature": (
        lambda: structmax.sparsemap({"x": torch.zeros(3)}, FactorGraph(Xor(X)), temperature=0.0),
        "`temperature` should be > 0, but is 0.0.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    do, said = REFUSED[name]
    with pytest.raises((ValueError, TypeError, IndexError), match=re.escape(said)):
        do()


def test_example(capsys):
    runpy.run_path(str(Path(__file__).parent.parent / "examples" / "factor_graph.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "the best structure" in said
    assert "more of it on the root" in said


# ---------------------------------------------------------------- as a structure


def by_members(parser: Parser, scores: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The best members by listing, as parts in one vector, and a target: the first member, for every instance."""
    members = parser.members()
    best = members[(parser.flat(scores) @ members.mT).argmax(-1)]
    return best, members[:1].expand(best.shape)


def test_members():
    parser = Parser()
    listed = parser.flat(parser.graph.enumerate({name: torch.zeros(s).double() for name, s in parser.shapes.items()}))
    ours, theirs = (sorted(map(tuple, rows.tolist())) for rows in (listed, parser.members()))
    assert ours == theirs


def test_encode():
    """Free parts follow from the variables, for every member; and back."""
    parser = Parser()
    members = parser.graph.enumerate({name: torch.zeros(shape) for name, shape in parser.shapes.items()})
    made = parser.graph.encode({name: members[name] for name in ("arc", "tag")})
    torch.testing.assert_close(made, members)
    shown = parser.graph.decode(made)
    assert shown["arc"].dtype == torch.bool
    torch.testing.assert_close(parser.graph.encode(shown), members)


@pytest.mark.thorough
def test_losses_and_surrogates():
    """Losses are those of the members, and surrogates have the best structures for values and reach all scores."""
    parser = Parser()
    scores = {name: t.requires_grad_() for name, t in parser.draw(6, seed=5).items()}
    best, target = by_members(parser, scores)
    pieces = target.split([16, 6, 4], -1)
    y = {name: p.reshape(6, *shape) for (name, shape), p in zip(parser.shapes.items(), pieces, strict=True)}
    flat = parser.flat(scores)
    lead = ((best - target) * flat).sum(-1)
    torch.testing.assert_close(structmax.perceptron_loss(scores, parser.graph, y, reduction="none"), lead)
    # half the variables in which a member differs from the target; free parts cost nothing
    cost = 0.5 - target
    cost[:, 22:] = 0.0
    members = parser.members()
    margins = ((flat + cost) @ members.mT).amax(-1) - ((flat + cost) * target).sum(-1)
    torch.testing.assert_close(structmax.svm_loss(scores, parser.graph, y, reduction="none"), margins)
    got = structmax.sparsemap_loss(scores, parser.graph, y, reduction="none")
    out = structmax.sparsemap(scores, parser.graph)
    want = out.value + 0.5 * target[:, :22].square().sum(-1) - (flat * target).sum(-1)
    torch.testing.assert_close(got, want)
    assert bool((structmax.margin_sparsemap_loss(scores, parser.graph, y, reduction="none") >= got - 1e-9).all())
    generator = torch.Generator().manual_seed(0)
    assert structmax.perturbed_loss(scores, parser.graph, y, samples=2, generator=generator) > 0
    torch.testing.assert_close(parser.flat(structmax.argmax(scores, parser.graph)), best)
    estimators = structmax.estimators
    exact = estimators.Spigot(), estimators.StraightThrough()
    for estimator in (*exact, estimators.ImplicitMLE(), estimators.PerturbAndMAP(), estimators.Perturbed()):
        z = structmax.surrogate(scores, parser.graph, estimator, generator=generator)
        if estimator in exact:
            torch.testing.assert_close(parser.flat(z).detach(), best)
        slopes = torch.autograd.grad((parser.flat(z) * draw(26, seed=4)).sum(), list(scores.values()))
        assert all(bool(t.isfinite().all()) and bool(t.any()) for t in slopes), estimator
    draws = parser.flat(structmax.perturb_and_map(scores, parser.graph, (5,), generator=generator))
    assert all((members == row).all(1).any() for row in draws.flatten(0, 1))
    soft = structmax.surrogate(scores, parser.graph, structmax.estimators.Relaxation(structmax.omega.SquaredNorm()))
    torch.testing.assert_close(parser.flat(soft), parser.flat(out.marginals))


def test_spigot_projects_onto_the_relaxation():
    """Without free parts, a graph of lines has the gradient of the matchings it stands for."""
    scores = draw(4, 3, 3).requires_grad_()
    weight = draw(3, 3, seed=2)
    answers = (
        structmax.surrogate({"x": scores}, lines(3), structmax.estimators.Spigot())["x"],
        structmax.surrogate(scores, Matching(), structmax.estimators.Spigot()),
    )
    gradients = [torch.autograd.grad((z * weight).sum(), scores)[0] for z in answers]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            structmax.log_partition,
            "Try `belief_propagation`, which is exact on trees, `sparsemap`, or `perturb_and_map`",
        ),
        (structmax.marginals, "Try `belief_propagation`, which is exact on trees, `sparsemap`, or `perturb_and_map`"),
        (structmax.sample, "Try `belief_propagation`, which is exact on trees, `sparsemap`, or `perturb_and_map`"),
        (structmax.max_marginals, "Try `argmax`"),
        (lambda scores, graph: structmax.topk(scores, graph, 2), "Try `argmax`"),
        (lambda scores, graph: structmax.smoothed(scores, graph, structmax.omega.LocalL2()), "Try `sparsemap`"),
        (
            lambda scores, graph: structmax.omega.SquaredNorm().distribution(structmax.Problem.of(scores, graph)),
            "Try `sp",
        ),
    ],
)
def test_what_a_graph_cannot_answer(ask, said):
    with pytest.raises(structmax.Refusal, match=f"FactorGraph does not support.*{said}"):
        ask({"x": torch.zeros(3, 3)}, lines(3))


def test_copies_of_a_graph():
    """A graph may be pickled and copied, and outlives the one it was copied from."""
    lengths = torch.tensor([3, 2])
    tag, step = Variables("tag", (3, 2)), Variables("step", (2, 2), free=True)
    scores = {"step": draw(2, 2), "tag": draw(2, 3, 2)}
    graph = FactorGraph(Factor(LinearChain(lengths), tag, step), AtMostOne(tag[:2, 0]))
    graph = graph.masked({"tag": torch.tensor([[True], [True], [False]])})
    want = structmax.sparsemap(scores, graph).marginals["tag"]
    copies = pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), copy.copy(graph)
    assert copies[2].matches(graph)
    assert not copies[1].matches(graph)
    del graph
    gc.collect()
    for other in copies:
        torch.testing.assert_close(structmax.sparsemap(scores, other).marginals["tag"], want)


def test_best_structures_under_transforms_and_compilers():
    graph, scores = lines(3), draw(2, 4, 3, 3)
    want = structmax.argmax({"x": scores}, graph)["x"]
    torch.testing.assert_close(torch.func.vmap(lambda x: structmax.argmax({"x": x}, graph)["x"])(scores), want)
    compiled = torch.compile(lambda x: structmax.argmax({"x": 2 * x}, graph)["x"], backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), want)
    with pytest.raises(structmax.Refusal, match=r"FactorGraph\.search cannot be called inside a transform"):
        torch.func.vmap(lambda x: graph.search({"x": x}).value)(scores)


def test_an_unfinished_search_is_spoken_of(monkeypatch):
    monkeypatch.setattr(structmax.factor_graph.kernel_numba, "MOST_NODES", 1)
    odd = Variables("x", (5,))
    graph = FactorGraph(*(AtMostOne(odd[i], odd[j]) for i, j in itertools.combinations(range(5), 2)))
    with pytest.warns(UserWarning, match="a better structure than the one returned may exist"):
        structmax.argmax({"x": 1 + 0.1 * draw(5).abs()}, graph)


def test_compiled_code_leaves_off_and_goes_on():
    graph, scores = lines(3), draw(2, 3, 3).requires_grad_()

    def ask(x: Tensor) -> Tensor:
        return structmax.sparsemap({"x": 2 * x}, graph).marginals["x"].square().sum()

    compiled = torch.compile(ask, backend="eager")
    torch.testing.assert_close(compiled(scores), ask(scores))
    one, two = (torch.autograd.grad(function(scores), scores)[0] for function in (compiled, ask))
    torch.testing.assert_close(one, two)
