"""Gumbel-CRF for any recursion: exact draws, their relaxation by hand over all derivations, and its derivatives."""

import itertools
import math

import pytest
import torch
from cases import CASES
from hypergraph_cases import Case as Graph

import structmax
from structmax import surrogate
from structmax.backends import Refusal
from structmax.estimators import GumbelRecursion
from structmax.recursion import kernel_numba, reference_noisy
from structmax.testing.case import forbid, variants
from structmax.testing.chance import chi_squared, which_member

SMALL = [
    "simplex",
    "bits with lengths",
    "subset with lengths",
    "linear chain",
    "linear chain with gaps",
    "semi-Markov",
    "projective tree, roots",
    "binary tree",
    "alignment with gaps",
    "pcfg",
    "ctc",
]
small = pytest.mark.parametrize("case", [CASES[name] for name in SMALL], ids=SMALL)
each_backend = pytest.mark.parametrize("backend", ["numba", "reference"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def relaxed(case, scores, backend="auto", temperature=0.6, hard=False, seed=0):
    """z as vectors (batch, d)."""
    estimator = GumbelRecursion(temperature, hard)
    parts = surrogate(case.parts(scores), case.structure, estimator, generator=seeded(seed), backend=backend)
    return case.flat(parts)


@small
def test_draws_are_exact(case):
    """χ² against the probabilities of all members; what is forbidden is never drawn."""
    scores, draws = forbid(case.scores(), 1, 0.2), 3000
    many = tuple(t.expand(draws, *t.shape) for t in scores)
    z = surrogate(case.parts(many), case.structure, GumbelRecursion(), generator=seeded(11))
    index = which_member(case, "GumbelRecursion", case.flat(z), scores)
    chi_squared("GumbelRecursion", index, case.probabilities(scores))


@each_backend
@small
def test_the_relaxation_tends_to_the_draw(case, backend):
    scores = case.scores()
    drawn = relaxed(case, scores, backend, hard=True)
    torch.testing.assert_close(relaxed(case, scores, backend, 1e-7), drawn, rtol=0, atol=1e-6)


@small
def test_backends_agree(case):
    """On z and on its gradient, which is the same for the draw."""
    for kind in ("random", "forbidden", "large"):
        found = []
        for backend in ("numba", "reference"):
            leaves = tuple(t.clone().requires_grad_() for t in variants(case)[kind])
            for hard in (True, False):
                z = relaxed(case, leaves, backend, hard=hard)
                weights = torch.randn(z.shape, generator=seeded(1), dtype=z.dtype)
                found.append((z.detach(), case.vector(torch.autograd.grad((z * weights).sum(), leaves))))
        drawn, soft, drawn_again, soft_again = found
        assert torch.equal(drawn[0], drawn_again[0])
        torch.testing.assert_close(drawn[1], soft[1], rtol=1e-12, atol=1e-12)
        for one, other in zip((*soft, drawn[1]), (*soft_again, drawn_again[1]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
            assert bool(one.isfinite().all())


@pytest.mark.parametrize("name", ["linear chain", "binary tree", "alignment with gaps"])
def test_derivatives(name):
    case = CASES[name]
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())

    def z(*scores):
        return relaxed(case, scores)

    assert torch.autograd.gradcheck(z, leaves)
    assert torch.autograd.gradgradcheck(z, leaves)


def test_a_chain_by_hand():
    """The walk goes backwards: the relaxed state at t + 1 weighs the rows softmax((log q + g) / τ)."""
    unary = torch.randn(2, 4, 3, generator=seeded(1), dtype=torch.float64)
    pairwise = torch.randn(3, 3, generator=seeded(2), dtype=torch.float64)
    chain, tau = structmax.LinearChain(), 0.7
    scores = chain.Parts(unary, pairwise)
    z = surrogate(scores, chain, GumbelRecursion(tau, hard=False), generator=seeded(3))
    # an edge of the empty sequence, one of each first state, those from each state before, and those of the ends
    g = structmax.noise.Gumbel().like(torch.zeros(2, 1 + 3 + 3 * 9 + 4 * 3).double(), seeded(3))
    filtered = [unary[:, 0]]
    for t in range(1, 4):
        filtered.append(torch.logsumexp(filtered[-1].unsqueeze(-1) + pairwise, 1) + unary[:, t])
    state = ((filtered[3].log_softmax(-1) + g[:, -3:]) / tau).softmax(-1)
    torch.testing.assert_close(z.unary[:, 3], state)
    for t in (2, 1, 0):
        log_q = (filtered[t].unsqueeze(-1) + pairwise).log_softmax(1)
        # noise (B, head, tail): the edges of a state stand together
        noise = g[:, 4 + 9 * t : 13 + 9 * t].reshape(2, 3, 3).transpose(1, 2)
        rows = ((log_q + noise) / tau).softmax(1)
        state = torch.einsum("bij,bj->bi", rows, state)
        torch.testing.assert_close(z.unary[:, t], state)


@pytest.mark.parametrize("seed", [0, 4, 6, 18, 27])
@pytest.mark.parametrize("engine", [kernel_numba, reference_noisy])
def test_the_relaxation_over_all_derivations(engine, seed):
    """Its counts are the mean over derivations whose probability is the product of the weights of their edges."""
    case = Graph(seed)
    first = case.edges.first.tolist()
    g = torch.randn(3, len(case.edges.tails), generator=seeded(seed), dtype=torch.float64)
    found = engine.noisy_walk(case.x, gumbel=g, gamma=0.7, **case.graph)
    for b in range(3):
        # log q, −inf where it is none
        log_q = torch.tensor(case.walk(b, 1.0, 1.0)[1].astype(float)).log()
        pairs = itertools.pairwise(first)
        w = torch.cat([((log_q[i:j] + g[b, i:j]) / 0.7).softmax(0).nan_to_num() for i, j in pairs])
        p = torch.stack([torch.stack([w[e] for _, e in member]).prod() for member in case.members[b]])
        wanted = p @ case.table(b)[0]
        torch.testing.assert_close(found[b], wanted, rtol=1e-9, atol=1e-12)


def test_each_instance_has_noise_of_its_own():
    chain = structmax.LinearChain()
    z = surrogate(chain.Parts(torch.zeros(64, 5, 3), torch.zeros(3, 3)), chain, GumbelRecursion(), generator=seeded())
    assert len(z.unary.flatten(1).unique(dim=0)) > 50


def test_improbable_edges_keep_their_weight():
    """At a high temperature even an edge of probability exp(−2000) has some."""
    x = torch.tensor([[0.0, -2000.0]], dtype=torch.float64, requires_grad=True)
    for backend in ("numba", "reference"):
        z = surrogate(x, structmax.Simplex(), GumbelRecursion(1000.0, hard=False), generator=seeded(), backend=backend)
        assert 0.05 < z[0, 1].item() < 0.2
        assert torch.autograd.grad(z[0, 1], x)[0][0, 1] > 1e-5


def test_in_infeasible_instances_all_is_zero():
    x = torch.zeros(3, 4)
    x[1] = -math.inf
    x.requires_grad_()
    for hard in (True, False):
        z = surrogate(x, structmax.Simplex(), GumbelRecursion(hard=hard), generator=seeded())
        assert z.sum(-1).tolist() == pytest.approx([1, 0, 1])
        (slope,) = torch.autograd.grad((z * torch.arange(4)).sum(), x)
        assert slope[1].tolist() == [0, 0, 0, 0]
        assert slope[0].any()


def test_vmap_and_functional_gradients():
    x = torch.randn(3, 2, 4, generator=seeded(1), dtype=torch.float64)

    def loss(scores):
        z = surrogate(scores, structmax.Simplex(), GumbelRecursion(0.5), generator=seeded())
        return (z * torch.arange(4)).sum()

    each = torch.func.vmap(torch.func.grad(loss), randomness="different")(x)
    leaf = x.clone().requires_grad_()
    (whole,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(each, whole)


def test_compiles():
    x = torch.randn(2, 4, generator=seeded(1), requires_grad=True)

    def loss(scores):
        z = surrogate(scores, structmax.Simplex(), GumbelRecursion(0.5, hard=False), generator=seeded())
        return (z**2 * torch.arange(4)).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(loss(x), x))


def test_structures_without_a_recursion_are_refused():
    for structure, shape in ((structmax.SpanningTree(single_root=True), (3, 3)), (structmax.Matching(), (2, 2))):
        with pytest.raises(Refusal, match=r"GumbelRecursion.* needs `noisy_walk`.* Try StraightThrough\(Identity"):
            surrogate(torch.zeros(shape), structure, GumbelRecursion())
    with pytest.raises(Refusal, match=r"or straight_through_gumbel\(\) or gumbel_relaxation\(\)\."):
        surrogate(torch.zeros(3, 3), structmax.SpanningTree(single_root=True), GumbelRecursion())


@each_backend
def test_a_draw_that_would_share_a_choice_is_refused(backend):
    """The goal builds on one node twice, which has two edges."""
    structure = structmax.Hypergraph(torch.tensor([0, 0, 1]), torch.tensor([[-1, -1], [-1, -1], [0, 0]]))
    scores = torch.zeros(3)
    soft = surrogate(scores, structure, GumbelRecursion(hard=False), generator=seeded(), backend=backend)
    torch.testing.assert_close(soft[:2].sum(), torch.tensor(2.0))
    with pytest.raises(ValueError, match=r"come to one node several times.*Try GumbelRecursion\(hard=False\)"):
        surrogate(scores, structure, GumbelRecursion(), generator=seeded(), backend=backend)
    scores[1] = -math.inf
    # without a choice there is nothing to share
    assert surrogate(scores, structure, GumbelRecursion(), backend=backend).tolist() == [2, 0, 1]


@pytest.mark.parametrize("engine", [kernel_numba, reference_noisy])
def test_noise_of_another_size_is_refused(engine):
    case = Graph(0)
    for name, tensors in (("noisy_walk", (case.x,)), ("noisy_walk_pullback", (case.x, case.x))):
        with pytest.raises(ValueError, match=r"`gumbel` should have shape \(3, \d+\), a number for each edge"):
            getattr(engine, name)(*tensors, gumbel=case.x[:, :2], gamma=1.0, **case.graph)


def test_a_temperature_is_positive():
    with pytest.raises(ValueError, match="`temperature`"):
        GumbelRecursion(0.0)
