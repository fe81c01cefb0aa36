"""Factors of logic one by one: projections against a solver over listed members, derivatives against differences."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from relaxations import LOGIC, logic_members
from torch import Tensor

import structmax
from structmax import FactorGraph
from structmax.factors import Budget, Pair, Variables, Xor
from structmax.testing.projection import nearest

N = 4
NEGATIONS = [(False,) * N, (True,) * N, (False, True, False, True), (True, False, False, False)]


def graph_of(name: str, negated: tuple[bool, ...]) -> FactorGraph:
    x = Variables("x", (N,))
    return FactorGraph(LOGIC[name][0](*(~x[i : i + 1] if flip else x[i : i + 1] for i, flip in enumerate(negated))))


def members(name: str, negated: tuple[bool, ...]) -> Tensor:
    """All corners of the factor's polytope: (M, N)."""
    corners = torch.from_numpy(logic_members(name, N))
    return torch.where(torch.tensor(negated), 1 - corners, corners)


def edge_cases() -> Tensor:
    """Ties, corners, faces, scores far outside, and random ones: (R, N)."""
    grid = torch.tensor(list(itertools.product((-1.0, 0.0, 0.5, 1.0, 2.0), repeat=2)), dtype=torch.float64)
    repeated = grid.repeat(1, 2)
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(24, N, generator=generator, dtype=torch.float64)
    return torch.cat([repeated, random, 10 * random[:8], torch.zeros(1, N), torch.full((1, N), 0.25)])


def marginals(graph: FactorGraph, x: Tensor) -> Tensor:
    out = structmax.sparsemap({"x": x}, graph, tol=1e-10)
    assert bool(out.converged.all())
    return out.marginals["x"]


@pytest.mark.parametrize("negated", NEGATIONS, ids=lambda flips: "".join("~" if flip else "x" for flip in flips))
@pytest.mark.parametrize("name", LOGIC)
def test_projection(name, negated):
    theta, listed = edge_cases(), members(name, negated)
    got = marginals(graph_of(name, negated), theta)
    want = torch.stack([nearest(listed, row) for row in theta])
    torch.testing.assert_close(got, want, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", LOGIC)
def test_far_scores(name):
    """Scores a thousand times the variables: the answer is a mean of members, and none is better to first order."""
    far = torch.tensor([[1e3, -1e3, 1e3, 5.0], [-1e3] * 4, [1e3] * 4, [1e3, 1e3 + 0.25, 0.0, 1e3]]).double()
    generator = torch.Generator().manual_seed(5)
    theta = torch.cat([far, 1e3 * torch.randn(30, N, generator=generator, dtype=torch.float64)])
    listed = members(name, NEGATIONS[2])
    got = marginals(graph_of(name, NEGATIONS[2]), theta)
    force = theta - got
    torch.testing.assert_close((force * got).sum(-1), (force @ listed.mT).amax(-1), atol=1e-9, rtol=0)
    inside = torch.stack([nearest(listed, row) for row in got])
    torch.testing.assert_close(got, inside, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", LOGIC)
def test_forbidden(name):
    """A variable at −inf is 0, and the others are projected onto what is left."""
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(40, N, generator=generator, dtype=torch.float64)
    theta[torch.rand(40, N, generator=generator) < 0.3] = -math.inf
    listed = members(name, NEGATIONS[2])
    out = structmax.sparsemap({"x": theta}, graph_of(name, NEGATIONS[2]), tol=1e-10)
    for row, got, value in zip(theta, out.marginals["x"], out.value, strict=True):
        feasible = listed[(listed * row.isneginf()).sum(-1) == 0]
        if not len(feasible):
            assert value == -math.inf
            assert not got.any()
            continue
        want = nearest(feasible, row.nan_to_num(neginf=0.0))
        torch.testing.assert_close(got, want, atol=1e-9, rtol=0)
        assert not got[row.isneginf()].any()


@pytest.mark.parametrize("name", LOGIC)
def test_jacobian(name):
    """A thousand random points: none with a wrong derivative, but where a difference crosses a kink."""
    generator = torch.Generator().manual_seed(2)
    negated = NEGATIONS[len(name) % len(NEGATIONS)]
    graph = graph_of(name, negated)
    theta = torch.randn(1000, N, generator=generator, dtype=torch.float64).requires_grad_()
    got = jacobian(lambda x: marginals(graph, x), theta)
    small, smaller = (differences(lambda x: marginals(graph, x), theta.detach(), step) for step in (1e-5, 1e-6))
    smooth = (small - smaller).flatten(1).abs().amax(1) < 1e-6
    assert smooth.sum() > 980
    assert (got - smaller).flatten(1).abs().amax(1)[smooth].max() < 1e-6


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    out = function(x)
    rows = [torch.autograd.grad(out[:, i].sum(), x, retain_graph=True)[0] for i in range(out.shape[1])]
    return torch.stack(rows, 1)


def differences(function: Callable[[Tensor], Tensor], x: Tensor, step: float) -> Tensor:
    bumps = step * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.stack([(function(x + bump) - function(x - bump)) / (2 * step) for bump in bumps], -1)


# ---------------------------------------------------------------- pairs: a score of their own


def pair_graph(first: bool, second: bool) -> FactorGraph:
    x = Variables("x", (2,))
    ends = [~x[i] if flip else x[i] for i, flip in enumerate((first, second))]
    return FactorGraph(Pair(*ends, score=Variables("bond", (), free=True)))


def both(graph: FactorGraph) -> Callable[[Tensor], Tensor]:
    """Marginals of the two variables and the pair, from scores (R, 3)."""

    def ask(scores: Tensor) -> Tensor:
        out = structmax.sparsemap({"x": scores[:, :2], "bond": scores[:, 2]}, graph, tol=1e-10)
        assert bool(out.converged.all())
        return torch.cat([out.marginals["x"], out.marginals["bond"].unsqueeze(-1)], -1)

    return ask


@pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)))
def test_pair_is_optimal(flips):
    """No member is better than the answer to first order; marginals are means of members."""
    generator = torch.Generator().manual_seed(3)
    theta = 2 * torch.randn(400, 3, generator=generator, dtype=torch.float64)
    theta[::7, 2] = -math.inf
    theta[::5] = theta[::5].round()
    got = both(pair_graph(*flips))(theta)
    literal = torch.where(torch.tensor(flips), 1 - got[:, :2], got[:, :2])
    low = (literal.sum(-1) - 1).clamp_min(0)
    assert (got[:, 2] >= low - 1e-12).all()
    assert (got[:, 2] <= literal.amin(-1) + 1e-12).all()
    gradient = theta.clone()
    gradient[:, :2] -= got[:, :2]
    ends = torch.tensor(list(itertools.product((0.0, 1.0), repeat=2)), dtype=torch.float64)
    joint = torch.where(torch.tensor(flips), 1 - ends, ends).prod(-1, keepdim=True)
    listed = torch.cat([ends, joint], -1)
    scores = torch.where(listed == 0, 0.0, gradient.unsqueeze(1) * listed).sum(-1).amax(-1)
    here = torch.where(got == 0, 0.0, gradient * got).sum(-1)
    torch.testing.assert_close(here, scores, atol=1e-9, rtol=0)


@pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)))
def test_pair_jacobian(flips):
    generator = torch.Generator().manual_seed(4)
    theta = torch.randn(1000, 3, generator=generator, dtype=torch.float64).requires_grad_()
    ask = both(pair_graph(*flips))
    got = jacobian(ask, theta)
    small, smaller = (differences(ask, theta.detach(), step) for step in (1e-5, 1e-6))
    smooth = (small - smaller).flatten(1).abs().amax(1) < 1e-6
    assert smooth.sum() > 980
    assert (got - smaller).flatten(1).abs().amax(1)[smooth].max() < 1e-6
    # scores that repel move the answer too
    assert (got[theta[:, 2] < 0][:, :2, 2] != 0).any()


def test_xor_is_sparsemax():
    theta = torch.randn(200, N, dtype=torch.float64)
    graph = graph_of("xor", NEGATIONS[0])
    torch.testing.assert_close(marginals(graph, theta), structmax.sparsemax(theta, -1), atol=1e-14, rtol=0)


def test_wide_factors():
    """Sums over many literals agree with the mappings that project onto them."""
    theta = 3 * torch.randn(5, 300, dtype=torch.float64)
    x = Variables("x", (300,))
    exactly = structmax.sparsemap({"x": theta}, FactorGraph(Budget(x, exactly=20))).marginals["x"]
    torch.testing.assert_close(exactly, structmax.budget(theta, 20.0, -1), atol=1e-12, rtol=0)
    one = structmax.sparsemap({"x": theta}, FactorGraph(Xor(x))).marginals["x"]
    torch.testing.assert_close(one, structmax.sparsemax(theta, -1), atol=1e-12, rtol=0)
