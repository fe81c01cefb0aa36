"""Belief propagation: trees of every kind of factor against enumeration, loopy graphs against its own conditions."""

import itertools
import math

import numpy as np
import pytest
import torch
from relaxations import LOGIC, STRUCTURES, TABLES, One, RandomGraph, sizes
from test_factor_graph_laws import FACTORS, as_graph
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax import FactorGraph, belief_propagation
from structmax.factors import (
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

# Those whose sums are tractable.
WHOLE = tuple(kind for kind in STRUCTURES if "matching" not in kind)
KINDS = (*LOGIC, "pair", *TABLES, *WHOLE)


class RandomTree(RandomGraph):
    """Factors each of which shares one variable, at the most, with those before."""

    def __init__(self, generator: np.random.Generator, kinds: tuple[str, ...]) -> None:
        self.n, self.m, self.factors = 0, 0, []
        for kind in kinds:
            wide, own = (int(generator.integers(2, 5)), 0) if kind in LOGIC else sizes(kind)
            index = list(range(self.n, self.n + wide))
            if self.n and generator.random() < 0.9:
                index = [int(generator.integers(self.n)), *index[:-1]]
            flips = generator.random(wide) < generator.choice([0.0, 0.5])
            if kind in STRUCTURES:
                flips[:] = flips[0]
            order = generator.permutation(wide)
            self.factors.append(One(kind, tuple(index[k] for k in order), tuple(flips.tolist()), self.m))
            self.n, self.m = max(self.n, *(i + 1 for i in index)), self.m + own
        self.graph = FactorGraph(Variables("x", (self.n,)), *map(self._made, self.factors))

    def ask_beliefs(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Log-partition, and marginals of variables and then of own parts."""
        found = belief_propagation(self.scores(flat), self.graph, tol=1e-12)
        assert bool(found.converged.all())
        return found.log_partition, torch.cat([found.marginals["x"], *([found.marginals["own"]] if self.m else [])], -1)


def members(graph: FactorGraph, scores: dict[str, Tensor]) -> Tensor:
    """All members of a graph, flat: (M, parts)."""
    listed = graph.enumerate({name: scores[name] for name in graph.names})
    return torch.cat([listed[name].flatten(1) for name in graph.names], 1)


def enumerated(scores: Tensor, listed: Tensor) -> tuple[Tensor, Tensor]:
    """Log-partition and marginals of scores (B, parts), from all members."""
    if not len(listed):
        return scores.new_full(scores.shape[:-1], -math.inf), torch.zeros_like(scores)
    barred = scores.isneginf()
    worth = scores.masked_fill(barred, 0.0) @ listed.mT
    worth = worth.masked_fill((barred.double() @ listed.mT) > 0, -math.inf)
    value = worth.logsumexp(-1)
    return value, (worth - value.unsqueeze(-1)).exp().nan_to_num(0.0) @ listed


def disagreement(seed: int, first: str, count: int) -> float:
    """By how much a random tree and enumeration differ, with random, large and forbidden scores."""
    generator = np.random.default_rng(seed)
    tree = RandomTree(generator, (first, *map(str, generator.choice(KINDS, count))))
    scores = torch.from_numpy(generator.standard_normal((6, tree.n + tree.m)))
    scores[2:4] *= 8.0
    off = torch.from_numpy(generator.random((3, tree.n + tree.m)) < 0.15)
    scores[3:] = scores[3:].masked_fill(off, -math.inf)
    listed = members(tree.graph, tree.scores(scores[0]))
    value, marginals = tree.ask_beliefs(scores)
    want_value, want = enumerated(scores, listed)
    assert torch.equal(value.isneginf(), want_value.isneginf()), (seed, value, want_value)
    feasible = ~want_value.isneginf()
    errors = (marginals - want).abs().amax(), (value - want_value)[feasible].abs().sum()
    return max(map(float, errors))


@pytest.mark.parametrize("kind", KINDS)
def test_trees(kind):
    """Exact on trees: log-partition and marginals, with −inf and with negated literals."""
    for seed in range(4):
        assert disagreement(seed, kind, 1 + seed % 2) < 1e-10


@pytest.mark.thorough
def test_many_trees():
    for seed in range(1000, 1200):
        assert disagreement(seed, KINDS[seed % len(KINDS)], 2) < 1e-10


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def first_feasible(kinds: tuple[str, ...]) -> RandomTree:
    """The first random tree of these kinds that has several members."""
    for seed in itertools.count():
        tree = RandomTree(np.random.default_rng(seed), kinds)
        if len(members(tree.graph, tree.scores(draw(tree.n + tree.m)))) > 2:
            return tree
    raise AssertionError


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_trees(kind):
    """Both answers have the derivatives of enumeration, also where a score is −inf."""
    tree = first_feasible((kind, "pair", "or"))
    scores = draw(3, tree.n + tree.m, seed=1)
    scores[2, 0] = -math.inf
    scores.requires_grad_()
    listed = members(tree.graph, tree.scores(scores[0].detach()))
    got, want = tree.ask_beliefs(scores), enumerated(scores, listed)
    feasible = ~want[0].isneginf()
    for answer, right in zip(got, want, strict=True):
        cotangent = draw(*right[feasible].shape, seed=2)
        gradients = [torch.autograd.grad(a[feasible], scores, cotangent, retain_graph=True)[0] for a in (answer, right)]
        torch.testing.assert_close(gradients[0][feasible], gradients[1][feasible], atol=1e-10, rtol=0)
        assert gradients[0].isfinite().all()
    leaf = scores.detach()[:2].requires_grad_()
    assert gradcheck(tree.ask_beliefs, leaf, fast_mode=True, check_forward_ad=True, check_undefined_grad=False)


@pytest.mark.parametrize(
    "kinds",
    [
        ("or_out", "pair"),
        pytest.param(("cube", "xor"), marks=pytest.mark.thorough),
        pytest.param(("chain", "imply"), marks=pytest.mark.thorough),
        pytest.param(("tree", "at_most_one"), marks=pytest.mark.thorough),
    ],
)
def test_second_derivatives(kinds):
    tree = first_feasible(kinds)
    scores = draw(1, tree.n + tree.m, seed=1).requires_grad_()
    assert gradgradcheck(tree.ask_beliefs, scores, fast_mode=True, check_fwd_over_rev=True)


def test_third_derivatives_are_refused():
    x = Variables("x", (2,))
    scores = draw(2).requires_grad_()
    total = belief_propagation({"x": scores}, FactorGraph(Or(x))).marginals["x"].pow(2).sum()
    for _ in range(2):
        (gradient,) = torch.autograd.grad(total, scores, create_graph=True)
        total = gradient.pow(2).sum()
    with pytest.raises(structmax.Refusal, match="up to the second"):
        torch.autograd.grad(total, scores)


def tractable() -> list[str]:
    """Structures with marginals whose part tensors are either used once or free."""
    found = []
    for name, case in FACTORS.items():
        structure, tensors = case.structure, case.scores()
        regularised = structure.regularised or structure.names
        pairs = zip(structure.names, structure.counts(tensors), strict=False)
        if "marginals" not in structure.intractable and not any(c and name in regularised for name, c in pairs):
            found.append(name)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", tractable())
def test_every_structure(name):
    """A structure alone has its own log-partition and marginals, for a batch with its fields for each instance."""
    case = FACTORS[name]
    structure, tensors = case.structure, case.scores()
    scores = dict(zip(structure.names, tensors, strict=False))
    batch = len(structure.batch_shape(structure.parts(tensors)))
    found = belief_propagation(scores, as_graph(structure, scores, batch))
    assert bool(found.converged.all())
    torch.testing.assert_close(found.log_partition, structmax.log_partition(structure.parts(tensors), structure))
    want = structure.tensors(structmax.marginals(structure.parts(tensors), structure))
    for key, right in zip(scores, want, strict=True):
        torch.testing.assert_close(found.marginals[key], right, atol=1e-10, rtol=0)


# ---------------------------------------------------------------- graphs with cycles


class Grid:
    """Variables in a square, each joined with its neighbours."""

    def __init__(self, size: int) -> None:
        x = Variables("x", (size, size))
        self.down, self.right = (
            Variables(name, shape, free=True)
            for name, shape in (("down", (size - 1, size)), ("right", (size, size - 1)))
        )
        self.graph = FactorGraph(Pair(x[:-1], x[1:], score=self.down), Pair(x[:, :-1], x[:, 1:], score=self.right))
        self.size = size

    def scores(self, scale: float, *batch: int) -> dict[str, Tensor]:
        n = self.size
        shapes = {"x": (n, n), "down": (n - 1, n), "right": (n, n - 1)}
        drawn = {name: draw(*batch, *shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}
        return {name: t if name == "x" else scale * t for name, t in drawn.items()}


def tables(marginals: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The joint beliefs (…, 4) of all pairs, down and right."""
    x = marginals["x"]
    ends = (x[..., :-1, :], x[..., 1:, :], marginals["down"]), (x[..., :-1], x[..., 1:], marginals["right"])
    down, right = (torch.stack([both, a - both, b - both, 1 - a - b + both], -1) for a, b, both in ends)
    return down.flatten(-3, -2), right.flatten(-3, -2)


def entropy(probabilities: Tensor) -> Tensor:
    return -torch.special.xlogy(probabilities, probabilities)


def test_conditions_of_the_bethe_approximation():
    """On a graph with cycles: joint beliefs have the couplings' odds ratios, and the value is the Bethe free energy."""
    grid = Grid(3)
    scores = grid.scores(1.0, 5)
    found = belief_propagation(scores, grid.graph)
    assert bool(found.converged.all())
    assert (found.residual <= 1e-9).all()
    x, joint = found.marginals["x"], torch.cat(tables(found.marginals), -2)
    assert (joint > 0).all()
    ratios = (joint.log() * torch.tensor([1.0, -1.0, -1.0, 1.0])).sum(-1)
    couplings = torch.cat([scores["down"].flatten(1), scores["right"].flatten(1)], 1)
    torch.testing.assert_close(ratios, couplings, atol=1e-7, rtol=0)
    degree = torch.tensor([[2.0, 3, 2], [3, 4, 3], [2, 3, 2]])
    energy = sum((scores[name] * found.marginals[name]).flatten(1).sum(1) for name in scores)
    alone = ((1 - degree) * (entropy(x) + entropy(1 - x))).flatten(1).sum(1)
    torch.testing.assert_close(
        found.log_partition, energy + entropy(joint).flatten(1).sum(1) + alone, atol=1e-9, rtol=0
    )


def test_weak_couplings_are_nearly_exact():
    """Cycles of four: errors fall with the fourth power of the couplings, but for their own, which are derivatives."""
    grid, errors = Grid(3), []
    for scale in (0.2, 0.1):
        scores = grid.scores(scale, 4)
        found = belief_propagation(scores, grid.graph)
        listed = members(grid.graph, {name: t[0] for name, t in scores.items()})
        value, want = enumerated(torch.cat([scores[name].flatten(1) for name in grid.graph.names], 1), listed)
        got = torch.cat([found.marginals[name].flatten(1) for name in grid.graph.names], 1)
        errors.append([found.log_partition - value, (got - want)[:, :9], (got - want)[:, 9:]])
    for (strong, weak), ratio in zip(zip(*errors, strict=True), (12, 12, 6), strict=True):
        assert weak.abs().max() < strong.abs().max() / ratio < 1e-4


def test_gradients_with_cycles():
    """The gradient of the log-partition is the marginals, and theirs is that of the fixed point."""
    grid = Grid(2)
    names, scores = grid.graph.names, grid.scores(1.0, 2)
    shapes = [scores[name].shape[1:] for name in names]
    flat = torch.cat([scores[name].flatten(1) for name in names], 1).requires_grad_()

    def ask(flat: Tensor) -> tuple[Tensor, Tensor]:
        pieces = flat.split([math.prod(shape) for shape in shapes], 1)
        given = {name: t.unflatten(1, shape) for name, t, shape in zip(names, pieces, shapes, strict=True)}
        found = belief_propagation(given, grid.graph, tol=1e-12)
        return found.log_partition, torch.cat([found.marginals[name].flatten(1) for name in names], 1)

    value, marginals = ask(flat)
    (gradient,) = torch.autograd.grad(value.sum(), flat, retain_graph=True)
    torch.testing.assert_close(gradient, marginals, atol=1e-10, rtol=0)
    assert gradcheck(ask, flat, fast_mode=True, check_forward_ad=True, check_undefined_grad=False)
    assert gradgradcheck(ask, flat, fast_mode=True)


def test_structures_that_share_variables():
    """Two structures and logic with cycles: damping changes nothing of the answer, and gradients are right."""
    arc, tag = Variables("arc", (4, 4)), Variables("tag", (3, 2))
    step = Variables("step", (2, 2), free=True)
    graph = FactorGraph(
        Factor(structmax.SpanningTree(single_root=True), arc),
        Factor(structmax.LinearChain(), tag, step),
        *(Imply(arc[0, m], tag[m - 1, 1]) for m in range(1, 4)),
        Budget(tag[:, 1], at_most=2),
    )

    def ask(flat: Tensor, damping: float = 0.0) -> tuple[Tensor, Tensor]:
        arcs, tags, steps = flat.split((16, 6, 4), -1)
        scores = {
            "arc": arcs.unflatten(-1, (4, 4)),
            "tag": tags.unflatten(-1, (3, 2)),
            "step": steps.unflatten(-1, (2, 2)),
        }
        found = belief_propagation(scores, graph, tol=1e-11, damping=damping)
        assert bool(found.converged.all())
        return found.log_partition, torch.cat([found.marginals[name].flatten(-2) for name in scores], -1)

    scores = 0.5 * draw(2, 26)
    value, marginals = ask(scores.requires_grad_())
    for plain, damped in zip((value, marginals), ask(scores, 0.3), strict=True):
        torch.testing.assert_close(plain, damped, atol=1e-9, rtol=0)
    heads = marginals[:, :16].unflatten(-1, (4, 4))[:, :, 1:].sum(1)
    torch.testing.assert_close(heads, torch.ones_like(heads))
    for answer in (value, marginals):
        cotangent, direction = draw(*answer.shape, seed=1), draw(2, 26, seed=2)
        (gradient,) = torch.autograd.grad(answer, scores, cotangent, retain_graph=True)
        here = [ask(scores.detach() + h * direction)[answer is marginals] for h in (1e-4, -1e-4)]
        slope = (cotangent * (here[0] - here[1])).sum() / 2e-4
        torch.testing.assert_close((gradient * direction).sum(), slope, atol=1e-6, rtol=0)


# ---------------------------------------------------------------- what it says of itself


def test_not_converged():
    grid = Grid(3)
    scores = grid.scores(1.0, 2)
    with pytest.warns(UserWarning, match=r"2 of 2 instances have not converged.*damping"):
        found = belief_propagation(scores, grid.graph, max_iter=2)
    assert not found.converged.any()
    assert found.iterations.tolist() == [2, 2]
    assert (found.residual > 1e-9).all()


def test_gradients_that_do_not_converge():
    """A fixed point from which messages would flee has a gradient that sweeps do not find, and that is said."""
    node, pairs = Variables("node", (4, 2)), list(itertools.combinations(range(4), 2))
    joint = Variables("joint", (len(pairs), 2, 2), free=True)
    graph = FactorGraph(*(Dense(node[i], node[j], score=joint[k]) for k, (i, j) in enumerate(pairs)))
    scores = {"node": torch.zeros(4, 2).double().requires_grad_(), "joint": 2 * torch.eye(2).double().expand(6, 2, 2)}
    found = belief_propagation(scores, graph, max_iter=20)
    assert bool(found.converged)
    with pytest.warns(UserWarning, match="gradients of 1 of 1 instances"):
        found.marginals["node"][0, 0].backward()


def test_iterations_are_each_instance_s_own():
    """An instance is answered the same in any company."""
    grid = Grid(3)
    scores = {name: torch.cat([t, 0 * t[:1]]) for name, t in grid.scores(1.0, 2).items()}
    found = belief_propagation(scores, grid.graph)
    assert len(set(found.iterations.tolist())) > 1
    for k in range(3):
        alone = belief_propagation({name: t[k] for name, t in scores.items()}, grid.graph)
        assert alone.iterations == found.iterations[k]
        torch.testing.assert_close(alone.marginals["x"], found.marginals["x"][k])


def test_batches_broadcast():
    grid = Grid(2)
    scores = grid.scores(1.0)
    wide = {"x": draw(2, 3, 2, 2), "down": scores["down"], "right": scores["right"]}
    found = belief_propagation(wide, grid.graph)
    assert found.marginals["down"].shape == (2, 3, 1, 2)
    assert (
        found.log_partition.shape == found.iterations.shape == found.converged.shape == found.residual.shape == (2, 3)
    )
    empty = belief_propagation({**wide, "x": draw(0, 2, 2)}, grid.graph)
    assert empty.marginals["x"].shape == (0, 2, 2)


def test_infeasible_and_lost_instances():
    """Zeros, −inf and no gradient where nothing is feasible; NaN where a score is NaN; others are as they were."""
    x = Variables("x", (4,))
    graph = FactorGraph(Xor(x[:2]), XorOut(x[1:4]))
    scores = draw(4, 4)
    scores[1, :2] = -math.inf
    scores[2, 3] = math.nan
    scores.requires_grad_()
    found = belief_propagation({"x": scores}, graph)
    assert found.log_partition[1] == -math.inf
    assert not found.marginals["x"][1].any()
    assert found.marginals["x"][2].isnan().all()
    assert found.log_partition[2].isnan()
    assert found.converged.tolist() == [True, True, False, True]
    alone = belief_propagation({"x": scores.detach()[[0, 3]]}, graph)
    torch.testing.assert_close(found.marginals["x"][[0, 3]], alone.marginals["x"])
    (gradient,) = torch.autograd.grad(found.marginals["x"][[0, 1, 3]].square().sum(), scores)
    assert not gradient[1].any()
    assert gradient[[0, 3]].isfinite().all()


def test_contradictions_between_structures():
    """Two structures that leave each other nothing, though each alone has members."""
    x = Variables("x", (5,))
    graph = FactorGraph(Factor(structmax.Subset(2), x[:3]), Factor(structmax.Subset(2), ~x[2:]))
    scores = torch.tensor([[-math.inf, 0.0, 5.0, 0.0, 0.0], [-math.inf, 50.0, -90.0, 3.0, -math.inf]])
    listed = members(graph, {"x": scores[0].double()})
    want = enumerated(scores.double(), listed)[0]
    found = belief_propagation({"x": scores.double()}, graph)
    torch.testing.assert_close(found.log_partition, want)
    none = torch.tensor([-math.inf, 0.0, 0.0, 0.0, 0.0])
    clash = FactorGraph(Factor(structmax.Subset(2), x[:3]), Factor(structmax.Subset(3), ~x[2:]))
    assert belief_propagation({"x": none}, clash).log_partition == -math.inf


def test_padding():
    """Masked variables and positions past a chain's length are 0, and everything else is as without them."""
    tag, step = Variables("tag", (4, 2)), Variables("step", (2, 2), free=True)
    extra = Variables("extra", (2,))
    lengths = torch.tensor([4, 2])

    def graph_of(count: int, lengths: Tensor | None = None) -> FactorGraph:
        tags = Variables("tag", (count, 2))
        return FactorGraph(Factor(structmax.LinearChain(lengths), tags, step), OrOut(tags[0, 0], tags[1, 1], extra[0]))

    scores = {"tag": draw(2, 4, 2), "step": draw(2, 2), "extra": draw(2, 2)}
    scores["tag"][1, 2:] = math.nan
    found = belief_propagation(scores, graph_of(4, lengths))
    for k, length in enumerate(lengths.tolist()):
        short = {"tag": scores["tag"][k, :length], "step": scores["step"], "extra": scores["extra"][k]}
        alone = belief_propagation(short, graph_of(length))
        torch.testing.assert_close(found.marginals["tag"][k, :length], alone.marginals["tag"])
        torch.testing.assert_close(found.marginals["step"][k], alone.marginals["step"])
        torch.testing.assert_close(found.log_partition[k], alone.log_partition)
    assert not found.marginals["tag"][1, 2:].any()
    mask = torch.tensor([True, True, False, False]).unsqueeze(-1)
    pairs = FactorGraph(*(AtMostOne(tag[i]) for i in range(4)), Xor(tag[2:])).masked({"tag": mask})
    whole = belief_propagation({"tag": scores["tag"][0]}, pairs)
    listed = members(pairs, {"tag": scores["tag"][0]})
    value, want = enumerated(scores["tag"][:1].flatten(1), listed)
    torch.testing.assert_close(whole.log_partition, value[0])
    torch.testing.assert_close(whole.marginals["tag"].flatten(), want[0])


def test_large_sums():
    """Many literals, and costs that are no whole numbers."""
    x = Variables("x", (40,))
    scores = draw(40)
    found = belief_propagation({"x": scores}, FactorGraph(Budget(x, exactly=7)))
    want = structmax.marginals(scores, structmax.Subset(7))
    torch.testing.assert_close(found.marginals["x"], want)
    costs = draw(9, seed=1).abs()
    graph = FactorGraph(Knapsack(x[:9], costs=costs, capacity=2.0), x)
    listed = torch.tensor(list(itertools.product((0.0, 1.0), repeat=9)), dtype=torch.float64)
    value, want = enumerated(scores[:9], listed[listed @ costs <= 2.0])
    found = belief_propagation({"x": scores}, graph)
    torch.testing.assert_close(found.marginals["x"][:9], want)
    torch.testing.assert_close(found.log_partition, value + torch.nn.functional.softplus(scores[9:]).sum())


@pytest.mark.thorough
def test_compilation():
    """torch.compile breaks the graph, and what comes after is compiled again."""
    grid = Grid(2)
    scores = grid.scores(1.0, 2)
    found = belief_propagation(scores, grid.graph)
    compiled = torch.compile(lambda s: belief_propagation(s, grid.graph).log_partition * 2, backend="eager")
    torch.testing.assert_close(compiled(scores), found.log_partition * 2)


def test_refusals():
    x, step = Variables("x", (3, 2)), Variables("step", (2, 2))
    scores = {"x": torch.zeros(3, 2)}
    with pytest.raises(TypeError, match="`graph` should be a FactorGraph"):
        belief_propagation(scores, structmax.LinearChain())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`damping` should be"):
        belief_propagation(scores, FactorGraph(Xor(x)), damping=1.0)
    with pytest.raises(ValueError, match="`max_iter`"):
        belief_propagation(scores, FactorGraph(Xor(x)), max_iter=0)
    with pytest.raises(ValueError, match="`step` should be free"):
        belief_propagation({**scores, "step": torch.zeros(2, 2)}, FactorGraph(Factor(structmax.LinearChain(), x, step)))
    with pytest.raises(structmax.Refusal, match="permanent"):
        belief_propagation(scores, FactorGraph(Factor(structmax.Matching(), x)))
    many = Variables("many", (30,))
    with pytest.raises(structmax.Refusal, match="different partial sums"):
        belief_propagation({"many": torch.zeros(30)}, FactorGraph(Knapsack(many, costs=draw(30).abs(), capacity=100.0)))
    with pytest.raises(structmax.Refusal, match="belief_propagation"):
        structmax.marginals(scores, FactorGraph(Xor(x)))  # type: ignore[arg-type]
