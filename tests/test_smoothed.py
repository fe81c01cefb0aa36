"""Smoothed recursions: bounds on their value, sparsity, ranking, refusals. The laws hold the rest."""

import math

import pytest
import torch

import structmax

OMEGAS = [
    structmax.omega.Entropy(0.5),
    structmax.omega.LocalL2(2.0),
    structmax.omega.LocalTsallis(1.5, 1.0),
    structmax.omega.LocalTsallis(3.0, 0.3),
]


def spread(omega, n: int) -> float:
    """ω(n) = max over the simplex of −Ω, at its centre."""
    if omega.alpha == 1:
        return omega.temperature * math.log(n)
    return omega.temperature * (1 - n ** (1 - omega.alpha)) / (omega.alpha * (omega.alpha - 1))


def bound(structure: structmax.Hypergraph, omega) -> float:
    """The largest sum of ω(edges of v) over the nodes of a derivation: the best score with that for each node."""
    first, tails, _ = structure.grouped
    most: list[float] = []
    for v in range(len(first) - 1):
        own = range(int(first[v]), int(first[v + 1]))
        below = [sum(most[t] for t in tails[e].tolist() if t >= 0) for e in own]
        most.append(max(below) + spread(omega, len(own)) if below else 0.0)
    return most[-1]


def bracketings(n):
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            here = (width - 1) * n + i
            part = i * n + i + width - 1
            if width == 1:
                yield here, part, -1, -1
            for left in range(1, width):
                yield here, part, (left - 1) * n + i, (width - left - 1) * n + i + left


@pytest.mark.parametrize("omega", OMEGAS, ids=str)
def test_the_value_lies_above_the_maximum_by_at_most_the_bound(omega):
    n = 6
    structure = structmax.Hypergraph.from_function(bracketings, n, goal=(n - 1) * n)
    allowed = bound(structure, omega)
    for seed in range(20):
        scores = torch.randn(n * n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * seed / 5
        gap = structmax.smoothed(scores, structure, omega) - structmax.topk(scores, structure, 1).values[0]
        assert -1e-12 <= gap <= allowed + 1e-12
    # at ties the walk is spread as far as it can be at every node it meets
    ties = structmax.smoothed(torch.zeros(n * n, dtype=torch.float64), structure, omega)
    assert allowed / 4 < ties <= allowed + 1e-12


def test_entropy_is_the_log_partition_and_its_temperature():
    x, paths = torch.randn(2, 4, 5, dtype=torch.float64), structmax.MonotoneAlignment()
    close = torch.testing.assert_close
    close(structmax.smoothed(x, paths, structmax.omega.Entropy(1.0)), structmax.log_partition(x, paths))
    close(structmax.smoothed_marginals(x, paths, structmax.omega.Entropy(1.0)), structmax.marginals(x, paths))
    close(
        structmax.smoothed(x, paths, structmax.omega.LocalTsallis(1.0, 0.3)),
        0.3 * structmax.log_partition(x / 0.3, paths),
    )


def test_l2_is_exactly_sparse_and_entropy_is_not():
    x, paths = 3 * torch.randn(6, 6, dtype=torch.float64), structmax.MonotoneAlignment()
    sparse = structmax.smoothed_marginals(x, paths, structmax.omega.LocalL2(1.0))
    assert (sparse == 0).sum() > 6
    assert (structmax.marginals(x, paths) > 0).all()


def test_structures_are_ranked_by_their_walk():
    x, chain = torch.randn(4, 3, dtype=torch.float64), structmax.LinearChain()
    scores = chain.Parts(x, torch.randn(3, 3, dtype=torch.float64))
    best = structmax.topk(scores, chain, 5).parts
    log_p = structmax.smoothed_log_prob(scores, chain, best, structmax.omega.Entropy())
    torch.testing.assert_close(log_p, structmax.log_prob(scores, chain, best))
    assert (log_p.diff() <= 0).all()


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_the_most_probable_of_the_entropy_are_the_best(backend):
    x, chain = torch.randn(2, 4, 3, dtype=torch.float64), structmax.LinearChain()
    scores = chain.Parts(x, torch.randn(2, 3, 3, dtype=torch.float64))
    walks = structmax.smoothed_topk(scores, chain, structmax.omega.Entropy(), 5, backend=backend)
    best = structmax.topk(scores, chain, 5)
    assert torch.equal(walks.parts.unary, best.parts.unary)
    assert torch.equal(walks.parts.pairwise, best.parts.pairwise)
    torch.testing.assert_close(walks.log_probs, best.values - structmax.log_partition(scores, chain))


def test_a_walk_divides_among_the_ways_to_a_node():
    """By hand: one way over node 1, and three over node 2 that are equal."""
    edges = torch.tensor([[0, 1], [0, 2], [0, 2], [0, 2], [1, 3], [2, 3]])
    lattice = structmax.Lattice(edges, source=0, sink=3)
    x = torch.tensor([0.1, 0.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    parts, log_probs = structmax.smoothed_topk(x, lattice, structmax.omega.LocalL2(1.0), 6)
    # node 2 has the value 1/2 (1 − 1/3)
    first = 0.5 + (0.1 - 1 / 3) / 2
    want = torch.tensor([first, *[(1 - first) / 3] * 3, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(log_probs.exp(), want)
    assert parts[0].tolist() == [1, 0, 0, 0, 1, 0]
    assert sorted(parts[1:4].argmax(-1).tolist()) == [1, 2, 3]
    assert not parts[4:].any()


def test_walks_where_nothing_is_feasible():
    x = torch.stack([torch.full((3, 3), -math.inf), torch.zeros(3, 3)])
    parts, log_probs = structmax.smoothed_topk(x, structmax.BinaryTree(), structmax.omega.LocalL2(), 3)
    assert log_probs[:, 0].isneginf().all()
    assert not parts[:, 0].any()
    torch.testing.assert_close(log_probs[:, 1].exp(), torch.tensor([0.5, 0.5, 0.0]))


def test_log_probabilities_of_walks_have_gradients_under_transforms():
    """By plain autograd, by torch.func for each instance, and compiled."""
    paths, omega = structmax.MonotoneAlignment(), structmax.omega.LocalL2(2.0)
    x = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts, _ = structmax.smoothed_topk(x, paths, omega, 3)

    def of_the_best(x):
        return structmax.smoothed_topk(x, paths, omega, 3).log_probs.exp().sum()

    def of_given(x, parts):
        return structmax.smoothed_log_prob(x, paths, parts, omega).exp().sum()

    want = torch.func.grad(of_given)(x, parts)
    assert want.abs().sum() > 0.1
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(of_given), (0, 1))(x, parts), want)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(of_the_best))(x), want)
    leaf = x.clone().requires_grad_()
    torch.compile(of_the_best, fullgraph=True, backend="eager")(leaf).backward()
    torch.testing.assert_close(leaf.grad, want)


def test_wrong_regularisers_are_refused():
    x, paths = torch.zeros(2, 2), structmax.MonotoneAlignment()
    with pytest.raises(TypeError, match=r"regulariser such as omega.LocalL2\(1.0\), but is LocalL2 itself"):
        structmax.smoothed(x, paths, structmax.omega.LocalL2)
    with pytest.raises(ValueError, match=r"`temperature` should be > 0, but is 0"):
        structmax.omega.LocalL2(0)
    with pytest.raises(ValueError, match=r"`alpha` should be ≥ 1, but is 0.5. 1 is Entropy, 2 is LocalL2."):
        structmax.omega.LocalTsallis(0.5)
    with pytest.raises(structmax.Refusal, match=r"SquaredNorm\(.*\) does not define a random walk"):
        structmax.smoothed_topk(x, paths, structmax.omega.SquaredNorm(), 2)
    with pytest.raises(ValueError, match=r"`k` should be .*≥ 1, but is 0"):
        structmax.smoothed_topk(x, paths, structmax.omega.LocalL2(), 0)


@pytest.mark.parametrize(
    "omega", [structmax.omega.Zero(), structmax.omega.Entropy(0.3), structmax.omega.SquaredNorm(0.3)], ids=repr
)
def test_half_precision_is_rounded_once(omega):
    scores = torch.randn(16, 9, generator=torch.Generator().manual_seed(0)).bfloat16()
    structure = structmax.Subset(4)
    for question in (structmax.smoothed, structmax.smoothed_marginals):
        got = question(scores, structure, omega)
        assert torch.equal(got, question(scores.float(), structure, omega).bfloat16())


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_walks_among_masked_and_impossible_edges(backend):
    """In the first frame one state can be entered, and −1e30 is all there is: powers of the others overflow."""
    scores = torch.full((2, 3), -1e30, requires_grad=True)
    structure = structmax.CTC(torch.tensor([1]))
    value = structmax.smoothed(scores, structure, structmax.omega.LocalTsallis(1.3, 1.0), backend=backend)
    (gradient,) = torch.autograd.grad(value, scores)
    assert gradient.sum(-1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_a_walk_too_improbable_for_its_probability_has_a_logarithm(backend):
    scores = torch.tensor([3.0, -1e5, 1.0], dtype=torch.float64, requires_grad=True)
    second = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    given = structmax.Subset(2), second, structmax.omega.Entropy(4.0)
    value = structmax.smoothed_log_prob(scores, *given, backend=backend)
    assert value.item() == pytest.approx(-100001 / 4)
    (gradient,) = torch.autograd.grad(value, scores)
    assert gradient.tolist() == pytest.approx([0, 0.25, -0.25])


def test_steep_slopes_are_scaled_before_they_are_rounded_to_half_precision():
    """log q has the slope 1 / (q t) at an edge of probability q, which may exceed the range of float16."""
    x, omega = torch.tensor([0.0, -0.9995 / 64]).half(), structmax.omega.LocalL2(1 / 64)

    def slope(x):
        x = x.clone().requires_grad_()
        log_q = structmax.smoothed_log_prob(x, structmax.Simplex(), torch.tensor([0.0, 1.0]).to(x.dtype), omega)
        return torch.autograd.grad(log_q * 2.0**-8, x)[0]

    assert slope(x.double()).max() * 2**8 > torch.finfo(torch.float16).max
    torch.testing.assert_close(slope(x).double(), slope(x.double()), rtol=1e-3, atol=0.0)
