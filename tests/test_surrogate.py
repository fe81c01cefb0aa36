"""Surrogates against their formulas over listed members; identities between them; chance within its bounds."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from cases import CASES
from torch import Tensor

import structmax
from structmax import surrogate
from structmax.estimators import (
    BlackboxInterpolation,
    Box,
    GumbelRecursion,
    Identity,
    ImplicitMLE,
    PerturbAndMAP,
    Perturbed,
    Polytope,
    ReinMax,
    Relaxation,
    RowSoftmax,
    Simplices,
    Spigot,
    SpigotCE,
    SpigotEG,
    StraightThrough,
    WholeSpace,
    gumbel_relaxation,
    straight_through_gumbel,
)
from structmax.noise import Gumbel, Logistic, Normal, SumOfGamma
from structmax.omega import Entropy, LocalL2, LocalTsallis, SquaredNorm
from structmax.parts import flat, unflat
from structmax.testing import Case, same
from structmax.testing.case import forbid
from structmax.testing.projection import nearest

SMALL = [
    "simplex",
    "simplex in two batch dimensions",
    "bits with lengths",
    "subset with lengths",
    "linear chain",
    "linear chain, a matrix for each position",
    "linear chain with gaps",
    "projective tree, roots",
    "spanning tree",
    "binary tree",
    "alignment with gaps",
    "matching",
]
ALL = [
    StraightThrough(),
    StraightThrough(Entropy(0.7)),
    Spigot(0.3),
    Spigot(0.3, projection=Box()),
    Spigot(0.3, projection=WholeSpace()),
    SpigotCE(0.3),
    SpigotEG(0.3),
    PerturbAndMAP(),
    PerturbAndMAP(Normal(), 0.5, Entropy(2.0)),
    straight_through_gumbel(0.5),
    ImplicitMLE(2.0),
    ImplicitMLE(2.0, 3, SumOfGamma(2), 0.5),
    BlackboxInterpolation(3.0),
    Perturbed(4, 0.5),
    Perturbed(4, 0.5, Gumbel(), True),
    ReinMax(),
    GumbelRecursion(0.5),
    GumbelRecursion(0.5, hard=False),
    Relaxation(),
    gumbel_relaxation(0.5),
]
EXACT = [e for e in ALL if isinstance(e, Relaxation) or e == GumbelRecursion(0.5, hard=False)]
DISCRETE = [e for e in ALL if e not in EXACT and not isinstance(e, Perturbed) and getattr(e, "samples", 1) == 1]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def named(estimator) -> str:
    return repr(estimator).replace("structmax.", "")


def can(case: Case, estimator) -> bool:
    return all(case.answers(name, "reference") or case.answers(name, "numba") for name in estimator.needs)


def pulled(case: Case, scores, estimator, g, seed: int = 0) -> tuple[Tensor, Tensor]:
    """z and the gradient of ⟨g, z⟩, as vectors (batch, d)."""
    leaves = tuple(t.clone().requires_grad_() for t in scores)
    z = case.flat(surrogate(case.parts(leaves), case.structure, estimator, generator=seeded(seed)))
    return z.detach(), case.vector(torch.autograd.grad((z * g).sum(), leaves))


def best(case: Case, scores, vectors: Tensor) -> Tensor:
    """The member with the highest score, for vectors of scores (…, d) over the members of each instance."""
    members = case.members(scores)
    value = torch.where(members > 0, vectors.unsqueeze(-2) * members, 0.0).sum(-1)
    index = value.masked_fill((members < 0).any(-1), -math.inf).argmax(-1)
    found = members.gather(-2, index[..., None, None].expand(*index.shape, 1, members.shape[-1])).squeeze(-2)
    return found


def direction(case: Case, scores) -> Tensor:
    return torch.randn(case.vector(scores).shape, generator=seeded(7), dtype=torch.float64)


def covariance(case: Case, scores, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Marginals and their Jacobian, over listed members: (batch, d) and (batch, d, d)."""
    p = case.probabilities(tuple(s / temperature for s in scores))
    y = case.members(scores)
    mean = (p.unsqueeze(-1) * y).sum(-2)
    away = y - mean.unsqueeze(-2)
    return mean, torch.einsum("...m,...mi,...mj->...ij", p, away, away) / temperature


def held_to(*estimators) -> pytest.MarkDecorator:
    """Each estimator on each small case that answers what it asks."""
    pairs = [(name, estimator) for name in SMALL for estimator in estimators if can(CASES[name], estimator)]
    return pytest.mark.parametrize(
        ("case", "estimator"), [pytest.param(CASES[name], e, id=f"{name}-{named(e)}") for name, e in pairs]
    )


small = pytest.mark.parametrize("case", [CASES[name] for name in SMALL], ids=SMALL)
WITH_MARGINALS = [name for name in SMALL if CASES[name].answers("marginals", "reference")]
small_with_marginals = pytest.mark.parametrize("case", [CASES[name] for name in WITH_MARGINALS], ids=WITH_MARGINALS)


# ---------------------------------------------------------------- what holds for all


@held_to(*ALL)
def test_padding_and_forbidden_parts(case, estimator):
    """What no member has may hold anything, gets exactly 0, and changes nothing; what is forbidden gets 0."""
    scores = forbid(case.scores(), 3, 0.15)
    g = direction(case, scores)
    z, gradient = pulled(case, scores, estimator, g)
    padding = ~(case.members(scores) > 0).any(-2)
    for answer in (z, gradient):
        assert not bool(answer[padding | case.vector(scores).isneginf()].any())
        assert bool(answer.isfinite().all())
    junk = case.structure.tensors(case.unflat(case.vector(scores).masked_fill(padding, math.nan), scores))
    for got, want in zip(pulled(case, junk, estimator, g), (z, gradient), strict=True):
        same("with NaN in padding", got, want, 1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_exists_is_what_members_have(case):
    scores = case.scores()
    exists = case.structure.exists(scores)
    if exists is not None:
        told = case.vector(tuple(e.expand(s.shape) for e, s in zip(exists, scores, strict=True)))
        assert torch.equal(told, (case.members(scores) > 0).any(-2))


@held_to(*DISCRETE)
def test_discrete_ones_are_members(case, estimator):
    scores = case.scores()
    z, _ = pulled(case, scores, estimator, direction(case, scores))
    feasible = (case.scores_of_members(scores) > -math.inf).any(-1)
    assert bool(((z.unsqueeze(-2) == case.members(scores)).all(-1).sum(-1) == feasible).all())


@pytest.mark.parametrize("estimator", ALL, ids=named)
def test_the_seed_decides(estimator):
    case = CASES["simplex"]
    scores = case.scores()
    g = direction(case, scores)
    for one, other in zip(*(pulled(case, scores, estimator, g, 5) for _ in range(2)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("estimator", [StraightThrough(), Spigot(), SpigotEG(), BlackboxInterpolation()], ids=named)
def test_without_chance_the_forward_is_the_public_argmax(estimator):
    x = torch.randn(3, 4, 4, generator=seeded(1))
    trees = structmax.SpanningTree(torch.tensor([3, 2, 3]), single_root=True)
    want = structmax.argmax(x, trees)
    assert torch.equal(surrogate(x, trees, estimator), want)
    assert torch.equal(surrogate(x.requires_grad_(), trees, estimator).detach(), want)


def test_named_parts_shared_matrices_and_ends():
    """Scores that several parts share get the sum of their gradients; start and end theirs."""
    chain = structmax.LinearChain(torch.tensor([3, 2]))
    g = seeded(2)
    leaves = [torch.randn(shape, generator=g, requires_grad=True) for shape in ((2, 3, 2), (2, 2), (2,), (2, 2))]
    z = surrogate(tuple(leaves), chain, StraightThrough())
    assert type(z) is structmax.LinearChain.Parts
    weight = torch.randn(2, 3, 2, generator=g)
    transitions = torch.randn(2, 2, 2, generator=g)
    d_unary, d_pairwise, d_start, d_end = torch.autograd.grad(
        (z.unary * weight).sum() + (z.pairwise * transitions).sum(), leaves
    )
    weight[1, 2] = 0
    torch.testing.assert_close(d_unary, weight)
    torch.testing.assert_close(d_pairwise, transitions.sum(0))
    torch.testing.assert_close(d_start, weight[:, 0].sum(0))
    torch.testing.assert_close(d_end, torch.stack([weight[0, 2], weight[1, 1]]))


@pytest.mark.parametrize("estimator", ALL, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(estimator, dtype):
    x = torch.randn(3, 5, generator=seeded(1)).to(dtype).requires_grad_()
    z = surrogate(x, structmax.Subset(2), estimator, generator=seeded())
    (gradient,) = torch.autograd.grad(z.sum() + z[0, 0], x)
    assert z.dtype == gradient.dtype == dtype
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("estimator", ALL, ids=named)
def test_empty_batches_and_single_instances(estimator):
    x = torch.zeros(0, 4, requires_grad=True)
    z = surrogate(x, structmax.Simplex(), estimator, generator=seeded())
    assert z.shape == (0, 4)
    z.sum().backward()
    one = torch.zeros(4, requires_grad=True)
    surrogate(one, structmax.Simplex(), estimator, generator=seeded()).sum().backward()
    assert one.grad.shape == (4,)


@pytest.mark.parametrize("estimator", [e for e in ALL if e not in EXACT], ids=named)
def test_an_invented_gradient_is_taken_once(estimator):
    x = torch.randn(2, 4, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    z = surrogate(x, structmax.Simplex(), estimator, generator=seeded())
    (gradient,) = torch.autograd.grad((z**2 + z).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"is a surrogate and has no derivative.*Relaxation\(\)"):
        gradient.sum().backward()


def test_a_relaxation_is_differentiable_twice():
    x = torch.randn(2, 3, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    trees = structmax.SpanningTree(single_root=True)
    assert torch.autograd.gradgradcheck(lambda s: surrogate(s, trees, Relaxation(Entropy(0.5))), x)


@pytest.mark.parametrize(
    "estimator", [StraightThrough(Entropy()), Spigot(), ImplicitMLE(2.0, 3), Perturbed(3)], ids=named
)
def test_vmap_and_functional_gradients(estimator):
    x = torch.randn(3, 2, 4, generator=seeded(1), dtype=torch.float64)
    g = torch.randn(4, generator=seeded(2), dtype=torch.float64)

    def loss(scores):
        return (surrogate(scores, structmax.Simplex(), estimator, generator=seeded()) * g).sum()

    each = torch.func.vmap(torch.func.grad(loss), randomness="different")(x)
    leaf = x.clone().requires_grad_()
    (whole,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(each, whole)


@pytest.mark.parametrize(
    "estimator",
    [StraightThrough(), StraightThrough(Entropy()), StraightThrough(SquaredNorm(0.5)), SpigotEG()],
    ids=named,
)
def test_compiles_whole(estimator):
    x = torch.randn(2, 4, generator=seeded(1), requires_grad=True)

    def loss(scores):
        return (surrogate(scores, structmax.Simplex(), estimator) ** 2 * torch.arange(4)).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(loss(x), x))


# ---------------------------------------------------------------- formulas, one by one


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@small_with_marginals
def test_straight_through_marginals(case, temperature):
    scores = case.scores()
    g = direction(case, scores)
    _, gradient = pulled(case, scores, StraightThrough(Entropy(temperature)), g)
    _, jacobian = covariance(case, scores, temperature)
    same("∇μ g", gradient, torch.einsum("...ij,...j->...i", jacobian, g), 1e-9)


@small
def test_spigot_projects_onto_the_polytope(case):
    scores = case.scores()
    g = direction(case, scores)
    members = case.members(scores)
    for steps in (1, 2):
        z, gradient = pulled(case, scores, Spigot(0.4, steps), g)
        for index in torch.cartesian_prod(*(torch.arange(n) for n in z.shape[:-1])).reshape(-1, z.dim() - 1):
            at = tuple(index.tolist())
            y = members[at][(members[at] >= 0).all(-1)]
            target = z[at]
            for _ in range(steps):
                target = nearest(y, target - 0.4 * g[at])
            same("z − Proj(z − η g)", gradient[at], z[at] - target, 1e-8)


def test_spigot_onto_the_whole_space_is_straight_through():
    for name in SMALL:
        case = CASES[name]
        scores = case.scores()
        g = direction(case, scores)
        _, straight = pulled(case, scores, StraightThrough(Identity()), g)
        _, whole = pulled(case, scores, Spigot(1.0, projection=WholeSpace()), g)
        assert torch.equal(straight, whole)
        _, twice = pulled(case, scores, Spigot(0.25, 2, WholeSpace()), g)
        same("two steps", twice, straight / 2, 1e-14)


def test_spigot_of_small_gradients_keeps_their_digits():
    """In float32, 1 − (1 − 1e-9) is 0."""
    x = torch.tensor([0.0, 1.0, 0.5], requires_grad=True)
    g = 1e-9 * torch.tensor([-1.0, 1.0, 1.0])
    (surrogate(x, structmax.Simplex(), Spigot()) * g).sum().backward()
    torch.testing.assert_close(x.grad, 1e-9 * torch.tensor([-1.0, 1.0, 0.0]), rtol=1e-6, atol=0.0)


def test_spigot_relaxed_projections():
    x = torch.randn(2, 4, 4, generator=seeded(3), dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 4, 4, generator=seeded(4), dtype=torch.float64)
    trees = structmax.SpanningTree(torch.tensor([3, 2]), single_root=False)
    z = structmax.argmax(x.detach(), trees)
    possible = structmax.max_marginals(torch.zeros_like(g), trees) > -math.inf

    def gradient(projection):
        (got,) = torch.autograd.grad((surrogate(x, trees, Spigot(0.5, projection=projection)) * g).sum(), x)
        return got

    # one head for every word: columns of possible arcs
    want = torch.zeros_like(g)
    for b, m in ((0, 1), (0, 2), (0, 3), (1, 1), (1, 2)):
        rows = possible[b, :, m]
        wish = (z - 0.5 * g)[b, rows, m]
        want[b, rows, m] = z[b, rows, m] - nearest(torch.eye(len(wish), dtype=torch.float64), wish)
    torch.testing.assert_close(gradient(Simplices(-2)), want)
    box = torch.where(possible, z - (z - 0.5 * g).clamp(0, 1), 0.0)
    torch.testing.assert_close(gradient(Box()), box)
    with_budget = z - gradient(Box(budget=True))
    torch.testing.assert_close(with_budget.sum((-1, -2)), torch.tensor([3.0, 2.0], dtype=torch.float64))
    assert bool(((with_budget >= -1e-12) & (with_budget <= 1 + 1e-12)).all())
    for b, words in enumerate((3, 2)):
        inside = possible[b]
        want_b = structmax.budget((z - 0.5 * g)[b][inside], words)
        torch.testing.assert_close(with_budget[b][inside], want_b)


@small_with_marginals
def test_spigot_from_marginals(case):
    scores = case.scores()
    g = direction(case, scores)
    mean, _ = covariance(case, scores)
    moved = case.structure.tensors(case.unflat(case.vector(scores) - 0.4 * g, scores))
    _, gradient = pulled(case, scores, SpigotEG(0.4), g)
    same("μ(θ) − μ(θ − η g)", gradient, mean - covariance(case, moved)[0], 1e-10)
    _, gradient = pulled(case, scores, SpigotCE(0.4), g)
    members = case.members(scores).flatten(0, -3)
    rows = zip(members, mean.flatten(0, -2), g.flatten(0, -2), gradient.flatten(0, -2), strict=True)
    for y, mu, cotangent, got in rows:
        same("μ − Proj(μ − η g)", got, mu - nearest(y[(y >= 0).all(-1)], mu - 0.4 * cotangent), 1e-8)


@small
def test_interpolation_and_implicit_mle(case):
    scores = case.scores()
    g, theta = direction(case, scores), case.vector(scores)
    z, gradient = pulled(case, scores, BlackboxInterpolation(1.5), g)
    same("(z(θ) − z(θ − λ g)) / λ", gradient, (z - best(case, scores, theta - 1.5 * g)) / 1.5, 1e-12)
    estimator = ImplicitMLE(1.5, noise=Normal(), temperature=0.5)
    z, gradient = pulled(case, scores, estimator, g, 3)
    generator = seeded(3)
    rank = len(case.structure.batch_shape(case.parts(scores)))
    drawn = [torch.randn((*t.shape[:rank], 1, *t.shape[rank:]), generator=generator, dtype=t.dtype) for t in scores]
    noise = case.vector(tuple(e.squeeze(rank) for e in drawn))
    same("z(θ + ε)", z, best(case, scores, theta + 0.5 * noise), 0.0)
    other = best(case, scores, theta - 1.5 * g + 0.5 * noise)
    same("the same ε in both", gradient, (z - other) / 1.5, 1e-12)


def test_implicit_mle_averages_its_samples():
    x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    z = surrogate(x, structmax.Simplex(), ImplicitMLE(2.0, 20_000), generator=seeded())
    (gradient,) = torch.autograd.grad((z * g).sum(), x)
    within(z.detach(), x.detach().softmax(-1), 0.5 / math.sqrt(20_000))
    want = (x.detach().softmax(-1) - (x.detach() - 2 * g).softmax(-1)) / 2
    within(gradient, want, 1 / math.sqrt(20_000))


def within(got: Tensor, want: Tensor, error) -> None:
    """Within 4 standard errors, or bounds on them."""
    assert bool(((got - want).abs() <= 4 * error).all()), ((got - want).abs() / error).max()


def test_perturb_and_map_pulls_back_at_the_perturbed_scores():
    x = torch.randn(2, 5, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 5, generator=seeded(2), dtype=torch.float64)
    z = surrogate(x, structmax.Simplex(), PerturbAndMAP(Normal(), 0.5, Entropy(2.0)), generator=seeded(3))
    perturbed = x.detach() + 0.5 * torch.randn(2, 5, generator=seeded(3), dtype=torch.float64)
    assert torch.equal(z.argmax(-1), perturbed.argmax(-1))
    leaf = perturbed.requires_grad_()
    (want,) = torch.autograd.grad(((leaf / 2).softmax(-1) * g).sum(), leaf)
    torch.testing.assert_close(torch.autograd.grad((z * g).sum(), x)[0], want)


def test_straight_through_gumbel_on_the_simplex_is_the_hard_gumbel_softmax():
    x = torch.randn(2, 5, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 5, generator=seeded(2), dtype=torch.float64)
    for hard, estimator in ((True, straight_through_gumbel(0.5)), (False, gumbel_relaxation(0.5))):
        want = structmax.gumbel_softmax(x, 0.5, hard, generator=seeded(3))
        got = surrogate(x, structmax.Simplex(), estimator, generator=seeded(3))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad((got * g).sum(), x), torch.autograd.grad((want * g).sum(), x))


def test_sparse_relaxed_draws_on_the_simplex():
    x = torch.randn(2, 5, generator=seeded(1), dtype=torch.float64)
    for alpha, point in ((2.0, SquaredNorm(0.5)), (1.5, LocalTsallis(1.5, 0.5)), (2.0, LocalL2(0.5))):
        want = structmax.gumbel_entmax(x, alpha, 0.5, generator=seeded(3))
        got = surrogate(x, structmax.Simplex(), Relaxation(point, Gumbel()), generator=seeded(3))
        torch.testing.assert_close(got, want)


def test_softmax_of_rows():
    x = torch.randn(2, 4, 4, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 4, 4, generator=seeded(2), dtype=torch.float64)
    trees = structmax.SpanningTree(torch.tensor([3, 2]), single_root=False)
    z = surrogate(x, trees, StraightThrough(RowSoftmax(-2)))
    possible = structmax.max_marginals(torch.zeros_like(g), trees) > -math.inf
    soft = x.masked_fill(~possible, -math.inf).softmax(-2).nan_to_num(0.0)
    (want,) = torch.autograd.grad((soft * g).sum(), x)
    torch.testing.assert_close(torch.autograd.grad((z * g).sum(), x)[0], want.nan_to_num(0.0))
    chain = structmax.LinearChain()
    scores = (torch.zeros(3, 2, requires_grad=True), torch.zeros(2, 2))
    with pytest.raises(TypeError, match=r"one part tensor, but LinearChain has 2. Try omega.Entropy\(\)"):
        surrogate(scores, chain, StraightThrough(RowSoftmax())).unary.sum().backward()


@small_with_marginals
def test_reinmax_is_exact_in_the_mean_for_quadratic_functions(case):
    """The mean over all members, listed, against the gradient of Σ p f: f(z) = ½ zᵀAz + ⟨b, z⟩."""
    scores = case.scores()
    b = direction(case, scores)
    d = b.shape[-1]
    a = torch.randn(d, d, generator=seeded(8), dtype=torch.float64)
    a = a + a.mT
    y, p = case.members(scores), case.probabilities(scores)
    mean, _ = covariance(case, scores)
    f = 0.5 * torch.einsum("...mi,ij,...mj->...m", y, a, y) + (y * b.unsqueeze(-2)).sum(-1)
    exact = torch.einsum("...m,...m,...mi->...i", p, f, y - mean.unsqueeze(-2))
    # the pullback at each member in place of a draw
    estimator, problem = ReinMax(), structmax.Problem.of(case.parts(scores), case.structure)
    total = torch.zeros_like(exact)
    for m in range(y.shape[-2]):
        z = y[..., m, :].clamp_min(0)
        g = z @ a + b
        z_parts, g_parts = (unflat(v.reshape(-1, d), problem.scores) for v in (z, g))
        pulled = flat(estimator.pullback(problem, z_parts, (), g_parts))
        total += p[..., m, None] * pulled.reshape(total.shape)
    same("E of ReinMax", total, exact, 1e-9)


def test_reinmax_on_the_simplex_is_that_of_the_paper():
    x = torch.randn(4, 5, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    g = torch.randn(4, 5, generator=seeded(2), dtype=torch.float64)
    z = surrogate(x, structmax.Simplex(), ReinMax(), generator=seeded(3))
    assert torch.equal(z.detach(), structmax.sample(x.detach(), structmax.Simplex(), generator=seeded(3)))
    p = x.detach().softmax(-1)
    middle = (z.detach() + p) / 2

    def through(q):
        return q * (g - (q * g).sum(-1, keepdim=True))

    torch.testing.assert_close(torch.autograd.grad((z * g).sum(), x)[0], 2 * through(middle) - through(p) / 2)


# ---------------------------------------------------------------- chance


@pytest.mark.parametrize("control_variate", [False, True])
@pytest.mark.parametrize("noise", [Normal(), Gumbel(), Logistic()], ids=named)
def test_the_perturbed_jacobian(noise, control_variate):
    """Against differences of the mean under the same noise, by quadrature over one pair of items."""
    x = torch.tensor([0.4, 0.1], dtype=torch.float64, requires_grad=True)
    sigma, g, draws = 0.7, torch.tensor([1.5, -0.5], dtype=torch.float64), 200_000
    z = surrogate(x, structmax.Simplex(), Perturbed(draws, sigma, noise, control_variate), generator=seeded(5))
    (gradient,) = torch.autograd.grad((z * g).sum(), x)
    # density of (x₀ − x₁) / σ under the difference of two: P(first) = ∫ density(e) CDF(e + δ) de
    e = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    if isinstance(noise, Normal):
        density, cdf = torch.exp(-(e**2) / 2) / math.sqrt(2 * math.pi), torch.special.ndtr
    elif isinstance(noise, Gumbel):
        density, cdf = torch.exp(-e - torch.exp(-e)).nan_to_num(0.0), lambda t: torch.exp(-torch.exp(-t))
    else:
        density, cdf = torch.sigmoid(e) * torch.sigmoid(-e), torch.sigmoid

    def first(delta):
        # the first wins where ε₁ < ε₀ + δ
        return torch.trapezoid(density * cdf(e + delta), e)

    delta = 0.3 / sigma
    p = first(delta)
    within(z.detach(), torch.stack([p, 1 - p]), 0.5 / math.sqrt(draws))
    slope = (first(delta + 1e-4) - first(delta - 1e-4)) / 2e-4 / sigma
    want = slope * (g[0] - g[1]) * torch.tensor([1.0, -1.0], dtype=torch.float64)
    generator = seeded(6)
    weights = torch.tensor([g[0], g[1]], dtype=torch.float64)
    # a bound on the standard error: |⟨g, y⟩| ≤ 2 (or 1.5) times that of the slope of the noise
    sample = noise.slope(noise.like(torch.zeros(100_000, dtype=torch.float64), generator))
    within(gradient, want, 2 * weights.abs().max() * sample.std() / sigma / math.sqrt(draws))


def test_the_control_variate_lowers_the_variance():
    x = torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64).expand(2000, 3).clone().requires_grad_()
    spread = []
    for control_variate in (False, True):
        z = surrogate(x, structmax.Simplex(), Perturbed(1, 0.5, control_variate=control_variate), generator=seeded())
        (gradient,) = torch.autograd.grad((z * torch.tensor([1.0, 2.0, 3.0])).sum(), x)
        spread.append(float(gradient.var(0).sum()))
    assert spread[1] < 0.5 * spread[0]


def test_perturbed_value_has_the_perturbed_mean_as_gradient():
    scores = torch.randn(2, 3, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    matchings = structmax.Matching()
    value = structmax.perturbed_value(scores, matchings, samples=50, temperature=0.5, generator=seeded(2))
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    mean = surrogate(scores, matchings, Perturbed(50, 0.5), generator=seeded(2))
    torch.testing.assert_close(gradient, mean.detach())
    assert value.shape == (2,)


def test_sums_of_gammas_are_gumbels():
    """k of them add up to Σ E_i / i − log n with n exponentials, whose moments tend to those of a Gumbel."""
    k, n, draws = 4, 50, 20_000
    noise = SumOfGamma(k, n).like(torch.zeros(k, draws, dtype=torch.float64), seeded()).sum(0)
    mean, variance = (sum(i**-power for i in range(1, n + 1)) for power in (1, 2))
    within(noise.mean(), torch.tensor(mean - math.log(n)), math.sqrt(variance / draws))
    # the fourth moment of a Gumbel is 5.4 variance²
    within(noise.var(), torch.tensor(variance), variance * math.sqrt(4.4 / draws))


# ---------------------------------------------------------------- refusals


def test_what_a_structure_cannot_answer_is_refused_at_once():
    x = torch.zeros(3, 3, requires_grad=True)
    wanted = (
        r"StraightThrough\(backward=Entropy\(temperature=1.0\)\) needs `marginals`, which Matching does not support: "
        r".*permanent.*\. Try StraightThrough\(Identity\(\)\), Spigot\(\) or ImplicitMLE\(\), "
        r"which ask `argmax` alone\."
    )
    with pytest.raises(structmax.Refusal, match=wanted):
        surrogate(x, structmax.Matching(), StraightThrough(Entropy()))
    for estimator in (SpigotCE(), SpigotEG(), ReinMax(), gumbel_relaxation(), straight_through_gumbel()):
        with pytest.raises(structmax.Refusal, match="Matching does not support"):
            surrogate(x, structmax.Matching(), estimator)


@dataclass(frozen=True)
class Pair(structmax.AbstractStructure):
    """Both or neither: a structure that answers argmax alone."""

    event_dim: ClassVar[int] = 1

    @staticmethod
    def argmax(scores: Tensor) -> Tensor:
        return (scores.sum(-1, keepdim=True) > 0).to(scores.dtype).expand(scores.shape).clone()

    def check(self, scores):
        pass

    def enumerate(self, scores):
        return torch.tensor([[0.0, 0.0], [1.0, 1.0]])

    def decode(self, parts):
        return parts[..., 0] > 0

    def encode(self, both):
        return both.unsqueeze(-1).expand(*both.shape, 2).float()


@pytest.mark.parametrize("estimator", [e for e in ALL if e.needs == ("argmax",)], ids=named)
def test_argmax_is_enough(estimator):
    x = torch.tensor([[0.5, 0.2], [-1.0, 0.2]], requires_grad=True)
    z = surrogate(x, Pair(), estimator, generator=seeded())
    (gradient,) = torch.autograd.grad((z * torch.tensor([1.0, 2.0])).sum(), x)
    assert z.shape == gradient.shape == x.shape
    assert bool(gradient.isfinite().all())


def test_errors():
    x = torch.zeros(3)
    with pytest.raises(
        TypeError, match=r"`estimator` should be an object such as StraightThrough\(\), but is Spigot itself"
    ):
        surrogate(x, structmax.Simplex(), Spigot)
    with pytest.raises(TypeError, match=r"`estimator` should be .* but is 'ste'"):
        surrogate(x, structmax.Simplex(), "ste")
    for make in (
        lambda: Spigot(step=0.0),
        lambda: SpigotEG(step=-1.0),
        lambda: BlackboxInterpolation(step=0.0),
        lambda: ImplicitMLE(step=0.0),
    ):
        with pytest.raises(ValueError, match="`step` should be > 0"):
            make()
    with pytest.raises(ValueError, match="`steps` should be a whole number"):
        Spigot(steps=0)
    for make in (lambda: ImplicitMLE(samples=0), lambda: Perturbed(samples=0)):
        with pytest.raises(ValueError, match="`samples` should be a whole number"):
            make()
    with pytest.raises(ValueError, match="`temperature` should be > 0"):
        Perturbed(temperature=0.0)
    with pytest.raises(TypeError, match=r"`noise` should be Normal\(\), Gumbel\(\) or Logistic\(\), of known density"):
        Perturbed(noise=SumOfGamma(2))
    for make in (lambda: Entropy(0.0), lambda: SquaredNorm(0.0), lambda: PerturbAndMAP(temperature=0.0)):
        with pytest.raises(ValueError, match="`temperature` should be > 0"):
            make()


def test_every_estimator_declares_itself():
    for estimator in ALL:
        assert estimator.unbiased is False
        assert isinstance(estimator.needs, tuple)
        assert hash(estimator) == hash(estimator)
    assert Polytope() == Polytope()


@pytest.mark.parametrize("estimator", [StraightThrough(), Spigot(projection=structmax.estimators.Box()), ReinMax()])
@pytest.mark.parametrize("batch", [(), (2,), (1, 2)])
def test_gradients_through_vmap(estimator, batch):
    """Instances of a vmap become part of the batch, whatever its shape was, with the fields that belong to them."""
    lengths = torch.tensor([3, 4])[: math.prod(batch)].reshape(batch)
    trees = structmax.BinaryTree(lengths)
    x = torch.randn(3, *batch, 4, 4, generator=seeded(3), dtype=torch.float64, requires_grad=True)

    def chosen(t):
        return surrogate(t, trees, estimator)

    z = torch.func.vmap(chosen, randomness="different")(x)
    (found,) = torch.autograd.grad(z.square().sum(), x)
    assert found.shape == x.shape
    if not isinstance(estimator, ReinMax):
        (want,) = torch.autograd.grad(chosen(x).square().sum(), x)
        assert torch.equal(found, want)
