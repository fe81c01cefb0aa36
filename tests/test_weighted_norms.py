"""Factor graphs whose norm weighs variables: against a solver of their own, gradients, losses, projections."""

import pickle
import re

import numpy as np
import pytest
import torch
from relaxations import QuadraticProgram, RandomGraph

import structmax
from structmax import FactorGraph, estimators
from structmax.factors import AtMostOne, Factor, Variables, Xor

KINDS = [
    ("xor", "or_out", "budget"),
    ("knapsack", "imply", "xor_out"),
    ("at_most_one", "pair", "and_out"),
    ("table", "or", "pair"),
    ("chain", "exactly", "pair"),
    ("tree", "at_most_one", "imply"),
    ("matching", "or", "square table"),
]


def weigh(random: RandomGraph, seed: int) -> np.ndarray:
    """Gives a random graph weights between 1/4 and 4; the square roots for all that it scores."""
    weights = 4.0 ** np.random.default_rng(seed).uniform(-1, 1, random.n)
    random.graph = random.graph.weighted({"x": torch.from_numpy(weights)})
    return np.concatenate([np.sqrt(weights), np.ones(random.m)])


@pytest.mark.parametrize("kinds", KINDS, ids=" ".join)
def test_random_graphs(kinds):
    """In units in which the norm is plain, u' = √ω u, it is another program, which is solved by itself."""
    generator = np.random.default_rng(len(" ".join(kinds)))
    solved = 0
    for seed in range(4):
        random = RandomGraph(generator, kinds)
        root = weigh(random, seed)
        A, b, C, d = random.system()
        program = QuadraticProgram(A / root, b, C / root, d, random.n)
        flat = torch.from_numpy(2 * generator.standard_normal((3, random.n + random.m)))
        out = random.ask(flat)
        assert out.converged.all()
        if not program.possible:
            assert (out.value == -torch.inf).all()
            continue
        got = random.marginals(flat).numpy()
        weights = root[: random.n] ** 2
        for row, point, value, gap in zip(flat.numpy(), got, out.value, out.gap, strict=True):
            want = program(row / root) / root
            np.testing.assert_allclose(point[: random.n], want[: random.n], atol=1e-7)
            worth = row @ want - 0.5 * (weights * want[: random.n] ** 2).sum()
            assert float(value) == pytest.approx(worth, abs=1e-7)
            assert float(gap) < 1e-7
            solved += 1
    assert solved >= 3


@pytest.mark.parametrize("kinds", KINDS[::2], ids=" ".join)
def test_gradients(kinds):
    """The Jacobian is symmetric, and that of differences, away from kinks."""
    generator = np.random.default_rng(7)
    random = RandomGraph(generator, kinds)
    while not QuadraticProgram(*random.system(), random.n).possible:
        random = RandomGraph(generator, kinds)
    weigh(random, 1)
    size, smooth = random.n + random.m, 0
    for row in torch.from_numpy(generator.standard_normal((6, size))):
        jacobian = torch.autograd.functional.jacobian(random.marginals, row)
        torch.testing.assert_close(jacobian, jacobian.mT, atol=1e-9, rtol=0)
        bumps = 1e-5 * torch.eye(size, dtype=torch.float64)
        here, up, down = random.marginals(row), random.marginals(row + bumps), random.marginals(row - bumps)
        if (up + down - 2 * here).abs().max() < 1e-9:
            torch.testing.assert_close(jacobian, ((up - down) / 2e-5).mT, atol=1e-5, rtol=0)
            smooth += 1
    assert smooth >= 3


def test_degrees():
    """The norm of all factors together: of copies that are the same, as many as there are."""
    x, alone = Variables("x", (3,)), Variables("alone", (2,))
    graph = FactorGraph(Xor(x), AtMostOne(x[1], x[2]), AtMostOne(x[2], ~x[0]), alone)
    assert graph.degrees["x"].tolist() == [2, 2, 3]
    assert graph.degrees["alone"].tolist() == [1, 1]
    scores = {"x": torch.tensor([0.3, 0.9, 0.6], dtype=torch.float64), "alone": torch.tensor([0.25, 3.0]).double()}
    out = structmax.sparsemap(scores, graph.weighted(graph.degrees))
    mu = out.marginals["x"]
    norm = sum(mu[list(factor)].square().sum() for factor in ((0, 1, 2), (1, 2), (2, 0)))
    want = (scores["x"] * mu).sum() - norm / 2 + (0.25**2 / 2 + 2.5)
    torch.testing.assert_close(out.value, want)
    assert out.marginals["alone"].tolist() == [0.25, 1.0]


def test_weights_of_one_change_nothing():
    x = Variables("x", (2, 3))
    graph = FactorGraph(*(Xor(row) for row in (x[0], x[1])), AtMostOne(x[0, 0], x[1, 0]))
    scores = {"x": torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))}
    same = graph.weighted({"x": 1.0})
    assert same.weights is None
    assert torch.equal(
        structmax.sparsemap(scores, same).marginals["x"], structmax.sparsemap(scores, graph).marginals["x"]
    )


def weighted() -> tuple[FactorGraph, dict[str, torch.Tensor]]:
    x, step = Variables("x", (3, 2)), Variables("step", (2, 2), free=True)
    graph = FactorGraph(Factor(structmax.LinearChain(), x, step), AtMostOne(x[0, 1], x[2, 1]))
    generator = torch.Generator().manual_seed(0)
    scores = {
        "x": torch.randn(5, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True),
        "step": torch.randn(2, 2, generator=generator, dtype=torch.float64),
    }
    return graph.weighted({"x": torch.tensor([[3.0], [0.5], [2.0]])}), scores


def test_losses():
    """value + Ω(y) − ⟨θ, y⟩ with the weighted Ω: never negative, and its gradient is μ − y."""
    graph, scores = weighted()
    target = graph.encode({"x": torch.tensor([[1, 0], [0, 1], [1, 0]])})
    target = {name: t.double().expand(5, *t.shape) for name, t in target.items()}
    loss = structmax.sparsemap_loss(scores, graph, target, reduction="none", temperature=0.7)
    weights = torch.tensor([3.0, 0.5, 2.0])
    out = structmax.sparsemap(scores, graph, temperature=0.7)
    score = sum((scores[name] * target[name]).flatten(1).sum(-1) for name in ("x", "step"))
    torch.testing.assert_close(loss, out.value + 0.35 * weights.sum() - score)
    assert (loss >= -1e-9).all()
    (gradient,) = torch.autograd.grad(loss.sum(), scores["x"])
    torch.testing.assert_close(gradient, out.marginals["x"] - target["x"])


def test_temperature_and_best_structures():
    """A low temperature leaves the best structure, which knows no norm."""
    graph, scores = weighted()
    best = structmax.argmax(scores, graph)
    sparse = structmax.sparsemap(scores, graph, temperature=1e-3).marginals
    torch.testing.assert_close(sparse["x"], best["x"], atol=1e-6, rtol=0)


def test_projections_are_in_that_norm():
    """A step of no length stays where it is: the projection of a point of the polytope is the point."""
    graph, scores = weighted()
    z = structmax.surrogate(scores, graph, estimators.Spigot(step=1e-9))
    (gradient,) = torch.autograd.grad(z["x"].sum(), scores["x"])
    assert gradient.abs().max() < 1e-6
    assert torch.equal(z["x"], structmax.argmax(scores, graph)["x"])


def test_copies_and_outlines():
    graph, scores = weighted()
    assert repr(graph) == "FactorGraph(x (3, 2), step (2, 2) free; 1 × LinearChain, 1 × AtMostOne; weighted)"
    again = pickle.loads(pickle.dumps(graph))
    want = structmax.sparsemap(scores, graph).marginals["x"]
    assert torch.equal(structmax.sparsemap(scores, again).marginals["x"], want)
    present = {"x": torch.ones(3, 2, dtype=torch.bool)}
    assert torch.equal(structmax.sparsemap(scores, graph.masked(present)).marginals["x"], want)


x = Variables("x", (2, 3))
plain = FactorGraph(Xor(x[0]), Xor(x[1]))
REFUSED = {
    "a number": (2.0, "`weights` of a FactorGraph should be a dictionary by name, but is a float"),
    "a name": ({"y": 2.0}, "`weights` should have names among ['x'], but has 'y'"),
    "nothing": ({"x": 0.0}, "`weights['x']` should be > 0, but is 0"),
    "below 0": (
        {"x": torch.tensor([1.0, -1.0, 1.0])},
        "`weights['x']` should be > 0 everywhere, but its minimum is -1",
    ),
    "a shape": ({"x": torch.ones(2)}, "`weights['x']` should broadcast to (2, 3), but has (2,)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    weights, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        plain.weighted(weights)
