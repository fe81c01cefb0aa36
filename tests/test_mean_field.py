"""Mean field: its bound against enumeration, its conditions at the fixed point, and its derivatives."""

import math
import warnings

import numpy as np
import pytest
import torch
from relaxations import LOGIC, STRUCTURES, TABLES, One, RandomGraph, sizes
from test_belief_propagation import draw, enumerated, members
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import structmax
from structmax import Beliefs, FactorGraph, mean_field
from structmax.factors import AtMostOne, Factor, Pair, Variables, Xor

WHOLE = tuple(kind for kind in STRUCTURES if "matching" not in kind)
KINDS = (*LOGIC, *TABLES, *WHOLE)


class RandomBlocks(RandomGraph):
    """Factors that share no variable, two variables in none, and pairs between different blocks."""

    def __init__(self, generator: np.random.Generator, kinds: tuple[str, ...], count: int) -> None:
        self.n, self.m, self.factors = 2, 0, []
        blocks = [[0], [1]]
        for kind in kinds:
            wide, own = (int(generator.integers(2, 5)), 0) if kind in LOGIC else sizes(kind)
            flips = generator.random(wide) < generator.choice([0.0, 0.5])
            if kind in STRUCTURES:
                flips[:] = flips[0]
            blocks.append([int(i) for i in self.n + generator.permutation(wide)])
            self.factors.append(One(kind, tuple(blocks[-1]), tuple(flips.tolist()), self.m))
            self.n, self.m = self.n + wide, self.m + own
        for _ in range(count):
            first, second = generator.permutation(len(blocks))[:2]
            ends = int(generator.choice(blocks[first])), int(generator.choice(blocks[second]))
            self.factors.append(One("pair", ends, tuple((generator.random(2) < 0.3).tolist()), self.m))
            self.m += 1
        self.graph = FactorGraph(Variables("x", (self.n,)), *map(self._made, self.factors))

    def draw(self, scale: float, *batch: int, seed: int = 0) -> dict[str, Tensor]:
        scores = scale * draw(*batch, self.n + self.m, seed=seed)
        return {"x": scores[..., : self.n], **({"own": scores[..., self.n :]} if self.m else {})}

    def exact(self, scores: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        listed = members(self.graph, {name: t[0] for name, t in scores.items()})
        return enumerated(torch.cat([scores[name] for name in self.graph.names], -1), listed)


def flat(found: Beliefs) -> Tensor:
    return torch.cat(list(found.marginals.values()), -1)


@pytest.mark.parametrize("kind", KINDS)
def test_exact_without_couplings(kind):
    for seed in range(5):
        case = RandomBlocks(np.random.default_rng(seed), (kind, "xor"), 0)
        scores = case.draw(3.0, 2, seed=seed)
        scores["x"][1, case.factors[0].variables[0]] = -math.inf
        value, want = case.exact(scores)
        found = mean_field(scores, case.graph)
        torch.testing.assert_close(found.log_partition, value)
        torch.testing.assert_close(flat(found), want)
        assert found.converged.all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound(kind):
    """It is at most log Z, is that of q, and never decreases from sweep to sweep."""
    for seed in range(3):
        case = RandomBlocks(np.random.default_rng(seed), (kind, "xor"), 5)
        scores = case.draw(2.0, 3, seed=seed)
        value, _ = case.exact(scores)
        last = torch.full_like(value, -math.inf)
        for sweeps in (1, 2, 3, 5, 300):
            found = mean_field(scores, case.graph, max_iter=sweeps, tol=0)
            assert (found.log_partition <= value + 1e-9).all()
            assert (found.log_partition >= last - 1e-9).all()
            last = found.log_partition
        at_once = mean_field(scores, case.graph, max_iter=2, tol=0, parallel=True)
        assert (at_once.log_partition <= value + 1e-9).all()
        damped = [mean_field(scores, case.graph, max_iter=k, tol=0, damping=0.5).log_partition for k in (1, 2)]
        assert (damped[0] <= damped[1] + 1e-9).all()


def average(log_weights: Tensor, worth: Tensor) -> Tensor:
    """The bound of a distribution over all members (M,), by its definition."""
    log_q = log_weights.log_softmax(-1)
    return (log_q.exp() * (worth - log_q)).sum(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_conditions(kind):
    """At the fixed point q is that of the fields it makes, the bound is its own, and is stationary in q."""
    for seed in range(2):
        case = RandomBlocks(np.random.default_rng(seed), (kind, "xor"), 4)
        scores = case.draw(1.0, 1, seed=seed)
        theta = {name: t[0] for name, t in scores.items()}
        found = mean_field(scores, case.graph, tol=1e-13)
        mu, eta, own = found.marginals["x"][0], theta["x"].clone(), theta["own"].clone()
        for one in case.factors:
            if one.kind == "pair":
                for k, (i, j) in enumerate((one.variables, one.variables[::-1])):
                    other = 1 - mu[j] if one.negated[1 - k] else mu[j]
                    eta[i] += theta["own"][one.own] * other * (-1 if one.negated[k] else 1)
                own[one.own] = 0.0
        listed = members(case.graph, theta)
        worth = listed @ torch.cat([theta["x"], theta["own"]])
        fields = torch.cat([eta, own]).requires_grad_()
        log_weights = listed @ fields
        torch.testing.assert_close(log_weights.softmax(-1) @ listed, flat(found)[0])
        value = average(log_weights, worth)
        torch.testing.assert_close(value, found.log_partition[0])
        # along variables; a factor's own scores are not chosen
        (slope,) = torch.autograd.grad(value, fields)
        torch.testing.assert_close(slope[: case.n], torch.zeros(case.n, dtype=torch.float64), atol=1e-9, rtol=0)


class Words:
    """Three words with one of three heads each, some literals negated, a flag, and couplings, also within one word."""

    def __init__(self, negated: bool) -> None:
        arc, flag = Variables("arc", (3, 3)), Variables("flag", (1,))
        bond, cross, inner = (Variables(name, (3,), free=True) for name in ("bond", "cross", "inner"))
        tie = Variables("tie", (2,), free=True)
        heads = [Xor(arc[:, 0]), AtMostOne(arc[:, 1])]
        heads.append(Xor(~arc[:1, 2], arc[1:, 2]) if negated else Xor(arc[:, 2]))
        self.graph = FactorGraph(
            *heads,
            Pair(arc[:, 0], arc[:, 1], score=bond),
            Pair(~arc[:, 1], arc[:, 2], score=cross),
            Pair(arc[0], ~arc[1], score=inner),
            Pair(arc[1:, 2], ~arc[[2, 0], 2], score=tie),
            flag,
        )

    def scores(self, scale: float, *batch: int, seed: int = 0) -> dict[str, Tensor]:
        shapes = {v.name: v.shape for v in self.graph.layout.variables}
        return {name: scale * draw(*batch, *shape, seed=seed + k) for k, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize("negated", [False, True])
def test_couplings_within_a_block(negated):
    """Where one literal of a block is on, its pairs are exact: the bound is that of q over all members."""
    words = Words(negated)
    scores = words.scores(1.0)
    found = mean_field(scores, words.graph, tol=1e-13)
    parts = words.graph.enumerate(scores)
    listed = members(words.graph, scores)
    worth = listed @ torch.cat([scores[name].flatten() for name in words.graph.names])
    # q of each block, by the states of its variables
    arcs = torch.cat([parts["arc"].flatten(1), parts["flag"]], 1)
    wanted = torch.cat([found.marginals["arc"].flatten(), found.marginals["flag"], torch.ones(1, dtype=torch.float64)])
    log_q, logits = torch.zeros(len(listed), dtype=torch.float64), []
    for block in ([0, 3, 6], [1, 4, 7], [2, 5, 8], [9]):
        states, which = arcs[:, block].unique(dim=0, return_inverse=True)
        # with as many states as variables, or one more, marginals say all
        known = torch.cat([states.mT, torch.ones(1, len(states), dtype=torch.float64)])
        chances = torch.linalg.lstsq(known, wanted[[*block, -1], None]).solution.squeeze(-1)
        logits.append(chances.log().requires_grad_())
        log_q = log_q + logits[-1][which]
    q = log_q.exp()
    torch.testing.assert_close(q.sum().item(), 1.0)
    everything = torch.cat([found.marginals[name].flatten() for name in words.graph.names])
    torch.testing.assert_close(q @ listed, everything)
    value = average(log_q, worth)
    torch.testing.assert_close(value, found.log_partition)
    for slope in torch.autograd.grad(value, logits):
        torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-9, rtol=0)


def asked(graph: FactorGraph, **options):
    def ask(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = mean_field(dict(zip(graph.names, tensors, strict=True)), graph, **options)
        return *found.marginals.values(), found.log_partition

    return ask


EFFORTS = {
    "fixed point": {"tol": 1e-13},
    "fixed point at once": {"tol": 1e-13, "parallel": True, "damping": 0.3},
    "sweeps": {"tol": 0, "max_iter": 2},
    "sweeps at once": {"tol": 0, "max_iter": 3, "parallel": True},
}


@pytest.mark.parametrize("effort", EFFORTS)
def test_gradients(effort):
    words = Words(negated=True)
    scores = words.scores(0.7)
    inputs = tuple(scores[name].requires_grad_() for name in words.graph.names)
    ask = asked(words.graph, **EFFORTS[effort])
    assert gradcheck(ask, inputs, check_forward_ad=effort.startswith("fixed"))
    if effort.startswith("fixed"):
        gradient = torch.autograd.grad(ask(*inputs)[-1].sum(), inputs)
        for slope, marginals in zip(gradient, ask(*inputs), strict=False):
            torch.testing.assert_close(slope, marginals)


@pytest.mark.thorough
@pytest.mark.parametrize("effort", EFFORTS)
def test_second_derivatives(effort):
    words = Words(negated=True)
    scores = words.scores(0.7)
    inputs = tuple(scores[name].requires_grad_() for name in words.graph.names)
    assert gradgradcheck(asked(words.graph, **EFFORTS[effort]), inputs)


@pytest.mark.parametrize("kind", ["chain", "tree", "square table", "budget"])
@pytest.mark.parametrize("effort", ["fixed point", "sweeps"])
def test_gradients_of_blocks(kind, effort):
    case = RandomBlocks(np.random.default_rng(1), (kind, "xor"), 5)
    scores = case.draw(0.7)
    inputs = tuple(scores[name].requires_grad_() for name in case.graph.names)
    assert gradcheck(asked(case.graph, **EFFORTS[effort]), inputs)


def test_forbidden_pairs():
    """−inf for a pair: q never has both, though each may be on."""
    x, bar = Variables("x", (2, 2)), Variables("bar", (2,), free=True)
    graph = FactorGraph(Xor(x[0]), Xor(x[1]), Pair(x[0], x[1], score=bar))
    scores = {"x": torch.tensor([[0.3, 0.0], [0.2, 0.0]], dtype=torch.float64), "bar": torch.full((2,), -math.inf)}
    scores["bar"] = scores["bar"].double().requires_grad_()
    found = mean_field(scores, graph)
    assert not found.marginals["bar"].any()
    assert found.marginals["x"].tolist() in ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])
    assert found.log_partition.isfinite()
    assert not torch.autograd.grad(found.log_partition, scores["bar"])[0].any()
    one = mean_field(scores, graph, max_iter=1, tol=0, parallel=True)
    assert one.marginals["x"].isfinite().all()
    free = FactorGraph(Pair(x[0], ~x[1], score=bar))
    scores["x"] = torch.tensor([[0.0, -1.0], [-2.0, -1.0]], dtype=torch.float64)
    found = mean_field({name: t.detach() for name, t in scores.items()}, free)
    assert not (found.marginals["x"][0] * (1 - found.marginals["x"][1])).any()
    assert found.log_partition.isfinite()


def test_infeasible_and_lost_instances():
    words = Words(negated=False)
    scores = words.scores(1.0, 4)
    scores["arc"][1, :, 0] = -math.inf
    scores["bond"][2, 1] = math.nan
    scores["arc"].requires_grad_()
    found = mean_field(scores, words.graph)
    assert found.log_partition[1] == -math.inf
    assert not found.marginals["arc"][1].any()
    assert not found.marginals["bond"][1].any()
    assert found.marginals["arc"][2].isnan().all()
    assert found.log_partition[2].isnan()
    assert found.converged.tolist() == [True, True, False, True]
    alone = mean_field({name: t.detach()[[0, 3]] for name, t in scores.items()}, words.graph)
    torch.testing.assert_close(found.marginals["arc"][[0, 3]], alone.marginals["arc"])
    (gradient,) = torch.autograd.grad(found.marginals["arc"][[0, 1, 3]].square().sum(), scores["arc"])
    assert not gradient[1].any()
    assert gradient[[0, 3]].isfinite().all()
    sweeps = mean_field(scores, words.graph, max_iter=2, tol=0)
    assert sweeps.log_partition.isneginf().tolist() == [False, True, False, False]
    (gradient,) = torch.autograd.grad(sweeps.marginals["arc"][[0, 1, 3]].square().sum(), scores["arc"])
    assert not gradient[1].any()
    assert gradient[[0, 3]].isfinite().all()


def test_batches():
    words = Words(negated=True)
    scores = words.scores(1.0, 3)
    found = mean_field(scores, words.graph)
    for k, only in enumerate(found.marginals["arc"]):
        alone = mean_field({name: t[k] for name, t in scores.items()}, words.graph)
        assert alone.iterations == found.iterations[k]
        torch.testing.assert_close(alone.marginals["arc"], only)
    wide = mean_field({**scores, "arc": draw(2, 3, 3, 3)}, words.graph)
    assert wide.marginals["bond"].shape == (2, 3, 3)
    assert wide.log_partition.shape == wide.converged.shape == (2, 3)
    for tol in (1e-9, 0):
        empty = mean_field({name: t[:0] for name, t in scores.items()}, words.graph, max_iter=3, tol=tol)
        assert empty.marginals["arc"].shape == (0, 3, 3)
    narrow = mean_field({name: t.float() for name, t in scores.items()}, words.graph)
    assert narrow.marginals["arc"].dtype == torch.float32
    torch.testing.assert_close(narrow.marginals["arc"].double(), found.marginals["arc"], atol=1e-6, rtol=0)


def test_padding():
    """Masked variables are 0 and couple to nothing; structures have their lengths."""
    x, bond = Variables("x", (3, 2)), Variables("bond", (2, 2), free=True)
    graph = FactorGraph(*(Xor(x[i]) for i in range(3)), Pair(x[:-1], x[1:], score=bond))
    scores = {"x": draw(3, 2), "bond": draw(2, 2)}
    mask = torch.tensor([True, True, False]).unsqueeze(-1)
    padded = {"x": scores["x"].masked_fill(~mask, math.nan), "bond": scores["bond"].clone()}
    padded["bond"][1] = math.nan
    found = mean_field(padded, graph.masked({"x": mask}))
    y = Variables("x", (2, 2))
    short = FactorGraph(Xor(y[0]), Xor(y[1]), Pair(y[:-1], y[1:], score=Variables("bond", (1, 2), free=True)))
    alone = mean_field({"x": scores["x"][:2], "bond": scores["bond"][:1]}, short)
    torch.testing.assert_close(found.marginals["x"][:2], alone.marginals["x"])
    torch.testing.assert_close(found.marginals["bond"][:1], alone.marginals["bond"])
    torch.testing.assert_close(found.log_partition, alone.log_partition)
    assert not found.marginals["x"][2].any()
    assert not found.marginals["bond"][1].any()


def coupled_chains(length: int, lengths: Tensor | None = None) -> FactorGraph:
    """Two chains of the same length, and a bond between their labels at each position."""
    first, second = (Variables(name, (length, 2)) for name in ("first", "second"))
    steps = [Variables(name, (2, 2), free=True) for name in ("step", "stride")]
    chains = [Factor(structmax.LinearChain(lengths), v, s) for v, s in zip((first, second), steps, strict=True)]
    return FactorGraph(*chains, Pair(first, second, score=Variables("bond", (length, 2), free=True)))


def test_coupled_structures():
    """Two chains are two blocks: the first update of the second one is its marginals at the fields of the first."""
    lengths = torch.tensor([3, 2])
    graph = coupled_chains(3, lengths)
    scores = {"first": draw(2, 3, 2), "second": draw(2, 3, 2, seed=1), "bond": draw(2, 3, 2, seed=2)}
    scores |= {"step": draw(2, 2, seed=3), "stride": draw(2, 2, seed=4)}
    found = mean_field(scores, graph, tol=1e-12)
    chain = structmax.LinearChain(lengths)
    for one, other, step in (("first", "second", "step"), ("second", "first", "stride")):
        felt = scores[one] + scores["bond"] * found.marginals[other]
        want = structmax.marginals((felt, scores[step].expand(2, 2, 2)), chain)
        torch.testing.assert_close(found.marginals[one], want.unary)
        torch.testing.assert_close(found.marginals[step], want.pairwise)
    short = {name: t[1, :2] if t.dim() == 3 else t for name, t in scores.items()}
    alone = mean_field(short, coupled_chains(2), tol=1e-12)
    torch.testing.assert_close(found.log_partition[1], alone.log_partition)
    value, _ = enumerated(
        torch.cat([short[name].flatten() for name in coupled_chains(2).names]), members(coupled_chains(2), short)
    )
    assert alone.log_partition <= value


def test_couplings_within_a_structure():
    """They are scored by products of marginals: a fixed point of the tree's marginals at the fields these make."""
    arc, bond = Variables("arc", (4, 4)), Variables("bond", (3,), free=True)
    tree = structmax.SpanningTree(single_root=False)
    graph = FactorGraph(Factor(tree, arc), Pair(arc[0, 1:], arc[1, [2, 3, 2]], score=bond))
    scores = {"arc": draw(4, 4), "bond": draw(3)}
    found = mean_field(scores, graph)
    mu = found.marginals["arc"]
    felt = scores["arc"].clone()
    felt[0, 1:] += scores["bond"] * mu[1, [2, 3, 2]]
    felt.index_put_((torch.tensor(1), torch.tensor([2, 3, 2])), scores["bond"] * mu[0, 1:], accumulate=True)
    torch.testing.assert_close(structmax.marginals(felt, tree), mu)
    torch.testing.assert_close(found.marginals["bond"], mu[0, 1:] * mu[1, [2, 3, 2]])


def test_at_once_is_one_update_of_all():
    """As many softmaxes of scores plus mean couplings as sweeps, after one without couplings."""
    x, bond = Variables("x", (3, 2)), Variables("bond", (3,), free=True)
    graph = FactorGraph(Xor(x[:, 0]), Xor(x[:, 1]), Pair(x[:, 0], x[:, 1], score=bond))
    scores = {"x": draw(3, 2), "bond": draw(3)}
    q = scores["x"].softmax(0)
    for _ in range(3):
        q = (scores["x"] + scores["bond"][:, None] * q.flip(1)).softmax(0)
    found = mean_field(scores, graph, max_iter=3, tol=0, parallel=True)
    torch.testing.assert_close(found.marginals["x"], q)
    assert found.iterations == 3


def test_not_converged():
    """Two words that repel each other, at once: both move back and forth."""
    x, bond = Variables("x", (2,)), Variables("bond", (), free=True)
    graph = FactorGraph(Pair(x[0], x[1], score=bond))
    scores = {"x": torch.tensor([5.0, 5.0]), "bond": torch.tensor(-20.0)}
    with pytest.warns(UserWarning, match="mean_field: 1 of 1 instances have not converged"):
        assert not mean_field(scores, graph, max_iter=50, parallel=True).converged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mean_field(scores, graph).converged
        assert mean_field(scores, graph, max_iter=500, parallel=True, damping=0.7).converged
        assert not mean_field(scores, graph, max_iter=50, tol=0, parallel=True).converged


def test_transforms():
    words = Words(negated=True)
    scores = words.scores(0.5, 3)
    names = words.graph.names
    for options in ({}, {"tol": 0, "max_iter": 2}):
        ask = asked(words.graph, **options)
        want = ask(*(scores[name] for name in names))
        for got, wanted in zip(torch.func.vmap(ask)(*(scores[name] for name in names)), want, strict=True):
            torch.testing.assert_close(got, wanted)
        slope = torch.func.grad(lambda s, ask=ask: ask(s, *(scores[n] for n in names[1:]))[-1].sum())(scores["arc"])
        assert slope.isfinite().all()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"tol": 0, "max_iter": 3, "parallel": True}])
def test_compilation(options):
    """torch.compile breaks the graph, and what comes after is compiled again."""
    words = Words(negated=True)
    scores = words.scores(0.5, 2)
    found = mean_field(scores, words.graph, **options)
    compiled = torch.compile(lambda s: mean_field(s, words.graph, **options).log_partition * 2, backend="eager")
    torch.testing.assert_close(compiled(scores), found.log_partition * 2)


def test_refusals():
    x = Variables("x", (2, 2))
    scores = {"x": torch.zeros(2, 2)}
    crossing = FactorGraph(*(Xor(line) for line in (x[0], x[1], x[:, 0])))
    with pytest.raises(ValueError, match=r"entry \(0, 0\) of `x` is in 2. Try `belief_propagation`"):
        mean_field(scores, crossing)
    with pytest.raises(TypeError, match="`graph` should be a FactorGraph"):
        mean_field(scores, structmax.LinearChain())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`tol` should be ≥ 0, but is -1\.0\. Try tol=0"):
        mean_field(scores, FactorGraph(Xor(x)), tol=-1.0)
    with pytest.raises(ValueError, match="`damping` should be"):
        mean_field(scores, FactorGraph(Xor(x)), damping=1.0)
    with pytest.raises(ValueError, match="`max_iter`"):
        mean_field(scores, FactorGraph(Xor(x)), max_iter=0)
    with pytest.raises(structmax.Refusal, match="permanent"):
        mean_field(scores, FactorGraph(Factor(structmax.Matching(), x)))


def test_an_empty_batch_of_trees():
    graph = structmax.factors.second_order_arcs(2, tree=structmax.SpanningTree(single_root=True))
    scores = {"arc": torch.zeros(0, 3, 3), "sibling": torch.zeros(0, 3, 3, 3)}
    for ask in (structmax.mean_field, structmax.belief_propagation):
        found = ask(scores, graph)
        assert found.log_partition.shape == (0,)
        assert found.marginals["arc"].shape == (0, 3, 3)
