"""`expect`: exact where it says so, unbiased where it says so, and f asked where it has to be and nowhere else."""

import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from cases import CASES as TABLE
from torch import Tensor, nn

import structmax
from structmax.estimators import sparse
from structmax.estimators.without_replacement import order_chances
from structmax.testing import check_structure

CASES = {
    "simplex": (structmax.Simplex(), ((2, 4),)),
    "bits": (structmax.Bits(torch.tensor([3, 1])), ((2, 3),)),
    "subset": (structmax.Subset(2, lengths=torch.tensor([4, 2])), ((2, 4),)),
    "chain": (structmax.LinearChain(torch.tensor([3, 1])), ((2, 3, 2), (2, 2))),
    "tree": (structmax.SpanningTree(torch.tensor([3, 2]), single_root=True), ((2, 4, 4),)),
}
UNBIASED = [
    structmax.estimators.ScoreFunction(),
    structmax.estimators.ScoreFunction(3, structmax.estimators.LeaveOneOut()),
    structmax.estimators.ScoreFunction(2, structmax.estimators.SelfCritical()),
    structmax.estimators.SumAndSample(1),
    structmax.estimators.SumAndSample(3),
    structmax.estimators.SampleWithoutReplacement(1),
    structmax.estimators.SampleWithoutReplacement(2),
    structmax.estimators.SampleWithoutReplacement(4),
    structmax.estimators.Rebar(),
]
ONE_OF_TWO_KINDS = (structmax.Simplex, structmax.Bits)
DRAWS = 4000


class Bend(nn.Module):
    """A control variate that knows nothing: smooth, and far from f."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        self.unused = nn.Parameter(torch.tensor(0.0))

    def forward(self, z):
        return (self.scale * z * torch.arange(1, 1 + z.shape[-1])).sum(-1).sin()


UNBIASED += [structmax.estimators.Relax(Bend()), structmax.estimators.Relax(Bend(), 1.0, weight=0.0)]


def problem(name: str):
    """A structure, scores with one instance that forbids a part, and what f knows: (2, parts)."""
    structure, shapes = CASES[name]
    g = torch.Generator().manual_seed(1)
    scores = tuple(torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)
    tensors = structure.tensors(structure.parts(scores))
    weights = torch.randn(2, sum(t[0].numel() for t in tensors), generator=g, dtype=torch.float64)
    return structure, tuple(t.clone() for t in tensors), weights


def losses_of(weights: Tensor):
    """f(y) = (w · y)² + sin(w · y): nothing an estimator could know."""

    def f(parts, index):
        tensors = (parts,) if isinstance(parts, Tensor) else [t for t in parts if t is not None]
        flat = torch.cat([t.flatten(1) for t in tensors], 1)
        score = (flat * weights[index]).sum(-1)
        return score**2 + score.sin()

    return f


def by_hand(structure, scores, weights, distribution=torch.softmax):
    """Σ p(y) f(y) of each instance, in plain torch."""
    f, out = losses_of(weights), []
    for i in range(2):
        members = structure.tensors(structure.at((i,), (2,)).enumerate(structure.parts(tuple(s[i] for s in scores))))
        values = sum((m * s[i]).flatten(1).sum(-1) for m, s in zip(members, scores, strict=True))
        losses = f(structure.parts(members), torch.full((len(members[0]),), i))
        out.append((distribution(values, 0) * losses).sum())
    return torch.stack(out)


def gradients(value, leaves):
    return torch.autograd.grad(value.sum(), leaves)


@pytest.mark.parametrize("name", CASES)
def test_enumeration_is_exact(name):
    structure, scores, weights = problem(name)
    leaves = [t.requires_grad_() for t in (*scores, weights)]
    result = structmax.expect(losses_of(weights), structure.parts(scores), structure, structmax.estimators.Enumerate())
    wanted = by_hand(structure, scores, weights)
    torch.testing.assert_close(result.value, wanted, rtol=1e-12, atol=1e-12)
    for found, right in zip(gradients(result.value, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    sizes = structmax.log_count(structure.parts(scores), structure).exp().round().sum()
    assert result.evaluations == int(sizes)


@pytest.mark.parametrize("estimator", UNBIASED, ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_unbiased(name, estimator):
    """Value and both gradients are right on average: within 4 standard errors, seeded."""
    structure, scores, weights = problem(name)
    if isinstance(estimator, structmax.estimators.Rebar | structmax.estimators.Relax) and not isinstance(
        structure, ONE_OF_TWO_KINDS
    ):
        with pytest.raises(
            structmax.Refusal, match=r"known for Simplex and Bits, but not for .* Try ScoreFunction\(\)"
        ):
            structmax.expect(losses_of(weights), structure.parts(scores), structure, estimator)
        return
    assert estimator.unbiased
    exact_leaves = [t.clone().requires_grad_() for t in (*scores, weights)]
    exact = by_hand(structure, exact_leaves[:-1], exact_leaves[-1])
    right = [exact, *gradients(exact, exact_leaves)]
    # Draws are instances of a larger batch, with weights of their own.
    leaves = [t.expand(DRAWS, *t.shape).clone().requires_grad_() for t in (*scores, weights)]
    g = torch.Generator().manual_seed(7)
    many = structure.parts(tuple(leaves[:-1]))
    result = structmax.expect(losses_of(leaves[-1].flatten(0, 1)), many, structure, estimator, generator=g)
    for found, wanted in zip([result.value, *gradients(result.value, leaves)], right, strict=True):
        off = (found.mean(0) - wanted).abs()
        # Where nothing is left to chance it is exact, up to rounding.
        assert (off <= 4 * found.std(0) / math.sqrt(DRAWS) + 1e-9).all()


@pytest.mark.parametrize("name", CASES)
def test_draws_that_cover_everything_are_exact(name):
    structure, scores, weights = problem(name)
    leaves = [t.requires_grad_() for t in scores]
    wanted = gradients(by_hand(structure, scores, weights), leaves)
    for estimator in (structmax.estimators.SampleWithoutReplacement(12), structmax.estimators.SumAndSample(40)):
        result = structmax.expect(losses_of(weights), structure.parts(scores), structure, estimator)
        for found, right in zip(gradients(result.value, leaves), wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-8)


def sparsemax_by_hand(values, dim):
    ordered = values.sort(descending=True).values
    sizes = torch.arange(1, len(values) + 1)
    thresholds = (ordered.cumsum(0) - 1) / sizes
    return (values - thresholds[int((ordered > thresholds).sum()) - 1]).clamp_min(0)


@pytest.mark.parametrize("name", CASES)
def test_sparse_sums(name):
    """Sparsemax over all structures, if k lets it; f is evaluated on the support and nowhere else."""
    structure, scores, weights = problem(name)
    leaves = [t.requires_grad_() for t in (*scores, weights)]
    seen = []

    def f(parts, index):
        seen.append(index)
        return losses_of(weights)(parts, index)

    result = structmax.expect(f, structure.parts(scores), structure, structmax.estimators.SparseTopK(16))
    wanted = by_hand(structure, scores, weights, sparsemax_by_hand)
    torch.testing.assert_close(result.value, wanted)
    for found, right in zip(gradients(result.value, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(found, right)
    values = structmax.topk(structure.parts(scores), structure, 16).values
    support = int((structmax.sparsemax(values, 0) > 0).sum())
    assert result.evaluations == support == len(torch.cat(seen))


@pytest.mark.parametrize("name", CASES)
def test_sparse_support(name):
    structure, scores, weights = problem(name)
    leaves = [t.requires_grad_() for t in scores]
    at = structure.parts(scores)
    result = structmax.expect(losses_of(weights), at, structure, structmax.estimators.SparseSupport(0.5))
    found = structmax.sparsemap(at, structure, temperature=0.5)
    assert result.evaluations == int(found.counts.sum())

    def value(*tensors):
        at = structmax.sparsemap(structure.parts(tensors), structure, temperature=0.5)
        rows = (t.flatten(0, 1) for t in structure.tensors(at.parts))
        losses = losses_of(weights)(structure.parts(tuple(rows)), torch.arange(2).repeat(len(at.probabilities)))
        return (at.probabilities * losses.reshape(-1, 2)).sum(0)

    torch.testing.assert_close(result.value, value(*scores))
    for one, other in zip(gradients(result.value, leaves), gradients(value(*scores), leaves), strict=True):
        torch.testing.assert_close(one, other)


EXACT = [
    structmax.estimators.Enumerate(),
    structmax.estimators.SparseTopK(16),
    structmax.estimators.SparseSupport(0.5),
]


@pytest.mark.parametrize("estimator", EXACT, ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_the_mean_of_the_log_probability_is_the_entropy(name, estimator):
    structure, scores, _ = problem(name)
    leaves = [t.requires_grad_() for t in scores]
    at = structure.parts(scores)
    result = structmax.expect(lambda y, index, log_prob: -log_prob, at, structure, estimator, with_log_prob=True)
    entropy = result.entropy
    torch.testing.assert_close(result.value, entropy)
    # both are made of the same probabilities
    of_value = torch.autograd.grad(result.value.sum(), leaves, retain_graph=True)
    for found, right in zip(of_value, gradients(entropy, leaves), strict=True):
        torch.testing.assert_close(found, right)
    if isinstance(estimator, structmax.estimators.Enumerate):
        torch.testing.assert_close(entropy, structmax.entropy(at, structure))
    else:
        assert (entropy <= math.log(result.evaluations)).all()


@pytest.mark.parametrize("estimator", UNBIASED, ids=repr)
@pytest.mark.parametrize("structure", [structmax.Simplex(), structmax.Bits()], ids=repr)
def test_a_bound_of_the_evidence_is_unbiased(structure, estimator):
    """E[f(y) + log q(y)] with f's own gradient: as E[f(y)] − H(q) on average, which has less variance."""
    x = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    cost = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    exact = structmax.expect(lambda z, _: (z @ cost) ** 2, x, structure, structmax.estimators.Enumerate())
    wanted = exact.value - exact.entropy
    right = [wanted, *gradients(wanted, [x])]
    many = x.detach().expand(DRAWS, 3).clone().requires_grad_()
    drawn = structmax.expect(
        lambda z, _, log_prob: (z @ cost) ** 2 + log_prob,
        many,
        structure,
        estimator,
        with_log_prob=True,
        generator=torch.Generator().manual_seed(5),
    )
    torch.testing.assert_close(drawn.entropy, exact.entropy.expand(DRAWS))
    for found, value in zip([drawn.value, *gradients(drawn.value, [many])], right, strict=True):
        assert ((found.mean(0) - value).abs() <= 4 * found.std(0) / math.sqrt(DRAWS) + 1e-9).all()


@pytest.mark.parametrize("estimator", EXACT, ids=repr)
def test_entropies_keep_nan_and_are_0_where_nothing_is_feasible(estimator):
    x = torch.tensor([[0.0, math.nan, 1.0], [-math.inf] * 3, [0.0, 0.0, 5.0]])
    result = structmax.expect(lambda z, _: z[:, 0], x, structmax.Simplex(), estimator)
    assert result.entropy[0].isnan()
    assert result.entropy[1].item() == 0.0
    assert result.entropy[2] >= 0


def test_a_surrogate_has_the_log_probability_of_its_choice():
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    seen = []

    def f(z, index, log_prob):
        seen.append((z * x[index].log_softmax(-1)).sum(-1) - log_prob)
        return log_prob

    result = structmax.expect(f, x, structmax.Simplex(), structmax.estimators.StraightThrough(), with_log_prob=True)
    torch.testing.assert_close(seen[0], torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(result.entropy, structmax.entropy(x, structmax.Simplex()))


def test_on_the_simplex_the_support_is_that_of_sparsemax():
    x = torch.tensor([[0.0, 1.5, 1.0, -3.0], [5.0, 0.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    cost = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = structmax.sparsemax(x) @ cost
    for estimator in (structmax.estimators.SparseSupport(), structmax.estimators.SparseTopK(4)):
        result = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), estimator)
        torch.testing.assert_close(result.value, wanted)
        torch.testing.assert_close(gradients(result.value, [x]), gradients(structmax.sparsemax(x) @ cost, [x]))
        assert result.evaluations == 3


def test_sparse_sums_evaluate_what_has_probability():
    """Of 256 classes, most of the work of enumeration is for nothing."""
    x = 3 * torch.randn(16, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def evaluations(estimator):
        return structmax.expect(lambda z, _: z.sum(-1), x, structmax.Simplex(), estimator).evaluations

    support = int((structmax.sparsemax(x) > 0).sum())
    assert evaluations(structmax.estimators.SparseSupport()) == support < 16 * 10
    assert evaluations(structmax.estimators.SparseTopK(8)) <= 16 * 8
    assert evaluations(structmax.estimators.Enumerate()) == 16 * 256


# ---------------------------------------------------------------- a learned control variate


def relaxed_problem(count=500):
    """A black box on three classes, and gradients of so many instances."""
    cost = torch.tensor([7.0, 4.5, 2.0], dtype=torch.float64)

    def gradient(estimator, seed):
        x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64).expand(count, 3).clone().requires_grad_()
        g = torch.Generator().manual_seed(seed)
        f = lambda z, _: z.detach() @ cost  # noqa: E731
        result = structmax.expect(f, x, structmax.Simplex(), estimator, generator=g)
        result.value.mean().backward()
        return count * x.grad, result.evaluations

    return gradient


@pytest.mark.thorough
def test_relax_learns_to_lower_the_variance():
    """The module gets the gradient of the mean of ‖g‖², as differences say, and descent along it helps."""
    gradient = relaxed_problem()
    control = nn.Linear(3, 1).double()
    nn.init.zeros_(control.weight)
    nn.init.zeros_(control.bias)
    estimator = structmax.estimators.Relax(control, weight=0.0)
    start, evaluations = gradient(estimator, 0)
    assert evaluations == len(start)
    slopes = [(p, at, float(p.grad[at])) for p, at in ((control.weight, (0, 1)), (control.bias, (0,)))]
    for parameter, at, slope in slopes:
        sizes = []
        for step in (1e-3, -2e-3):
            with torch.no_grad():
                parameter[at] += step
            sizes.append(float(gradient(estimator, 0)[0].square().sum(-1).mean()))
        with torch.no_grad():
            parameter[at] += 1e-3
        assert math.isclose(slope, (sizes[0] - sizes[1]) / 2e-3, rel_tol=1e-6)
    optimiser = torch.optim.Adam(control.parameters(), 0.2)
    for seed in range(60):
        optimiser.zero_grad()
        gradient(estimator, seed)
        optimiser.step()
    # draws it was not trained on
    after, _ = gradient(estimator, 60)
    assert after.var(0).sum() < 0.5 * start.var(0).sum()


def test_relax_is_rebar_without_a_module():
    """A module that says 0 leaves η f, and all gradients of the scores are those of REBAR."""
    structure, scores, weights = problem("bits")
    scores[0][0, 1] = -torch.inf
    nothing = Bend()
    nn.init.zeros_(nothing.scale)
    found = []
    for estimator in (structmax.estimators.Rebar(0.7, 0.9), structmax.estimators.Relax(nothing, 0.7, 0.9)):
        x = scores[0].clone().requires_grad_()
        g = torch.Generator().manual_seed(3)
        result = structmax.expect(losses_of(weights), x, structure, estimator, generator=g)
        assert result.evaluations == 6
        found.append((result.value, *gradients(result.value * torch.tensor([1.0, 2.0]), [x])))
    torch.testing.assert_close(found[1], found[0])
    assert found[0][1].isfinite().all()


def test_relax_without_gradients_or_structures():
    """Nobody asks for gradients: f at the draw is all. Nothing feasible: 0, and the module is not disturbed."""
    module = Bend()
    assert ask(structmax.estimators.Relax(module)).evaluations == 2
    x = torch.tensor([[-torch.inf] * 3, [0.0, 1.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    value = structmax.expect(
        lambda z, _: z[:, 1] ** 2, x, structmax.Simplex(), structmax.estimators.Relax(module)
    ).value
    value.sum().backward()
    assert value[0] == 0
    assert x.grad.isfinite().all()
    assert not x.grad[0].any()
    assert module.scale.grad.isfinite()
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    result = structmax.expect(lambda z, _: z[:, 1], empty, structmax.Simplex(), structmax.estimators.Relax(module))
    assert result.value.shape == (0,)
    assert result.evaluations == 0


# ---------------------------------------------------------------- the chances of orders


def test_chances_of_orders():
    """Against the sum over all orders."""
    p = torch.tensor([[0.3, 0.25], [0.1, 0.5], [0.2, 0.25]], dtype=torch.float64)
    first, second = order_chances(p)
    for b in range(2):
        total, ways_first, ways_second = 0.0, [0.0] * 3, [[0.0] * 3 for _ in range(3)]
        for order in itertools.permutations(range(3)):
            chance, left = 1.0, 1.0
            for draw in order:
                chance *= float(p[draw, b]) / left
                left -= float(p[draw, b])
            total += chance
            ways_first[order[0]] += chance
            ways_second[order[0]][order[1]] += chance
        for s in range(3):
            assert float(first[s, b]) == pytest.approx(ways_first[s] / total, rel=1e-12)
            for t in range(3):
                wanted = (1 - float(p[s, b])) * ways_second[s][t] / ways_first[s]
                assert float(second[s, t, b]) == pytest.approx(wanted, rel=1e-12)


def test_chances_where_nothing_is_left():
    first, _ = order_chances(torch.tensor([[1.0, 0.5], [0.0, 0.5], [0.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(first, torch.tensor([[1.0, 0.5], [0.0, 0.5], [0.0, 0.0]], dtype=torch.float64))


# ---------------------------------------------------------------- baselines and bounds


def test_running_mean_and_scale():
    mean, scale = structmax.estimators.RunningMean(0.5), structmax.estimators.RunningScale(0.5)
    f = lambda z, _: 4 * z[:, 0]  # noqa: E731
    x = torch.zeros(500, 2, dtype=torch.float64, requires_grad=True)
    g = torch.Generator().manual_seed(0)
    estimator = structmax.estimators.ScoreFunction(baseline=mean, scale=scale)
    assert not estimator.unbiased
    variances = []
    for _ in range(3):
        value = structmax.expect(f, x, structmax.Simplex(), estimator, generator=g).value
        variances.append(float(gradients(value, [x])[0].var(0).sum()))
    assert float(mean.mean / mean.weight) == pytest.approx(2.0, abs=0.2)
    assert mean.weight == 1 - 0.5**3
    # centred by the second batch, and divided by the standard deviation 2
    assert variances[1] < variances[0]
    assert variances[2] < 0.3 * variances[1] + 1


def test_learned_baseline_learns():
    torch.manual_seed(0)
    module = nn.Linear(3, 1)
    features = torch.randn(64, 3)
    estimator = structmax.estimators.ScoreFunction(2, structmax.estimators.Learned(module, features))
    f = lambda z, index: features[index, 0] + 0 * z[:, 0]  # noqa: E731
    optimiser = torch.optim.SGD(module.parameters(), 0.3)
    x = torch.zeros(64, 5)
    for _ in range(60):
        optimiser.zero_grad()
        result = structmax.expect(f, x, structmax.Simplex(), estimator)
        torch.testing.assert_close(result.value, features[:, 0])
        result.value.mean().backward()
        optimiser.step()
    torch.testing.assert_close(module(features).squeeze(-1), features[:, 0], atol=1e-2, rtol=1e-2)
    by_scores = structmax.estimators.ScoreFunction(1, structmax.estimators.Learned(nn.Linear(5, 1)))
    assert structmax.expect(f, x, structmax.Simplex(), by_scores).value.shape == (64,)


def test_learned_baseline_begins_at_the_mean_of_what_it_leaves():
    torch.manual_seed(0)
    module, features = nn.Linear(3, 1), torch.randn(8, 3)
    centre = structmax.estimators.RunningMean()
    estimator = structmax.estimators.ScoreFunction(1, structmax.estimators.Learned(module, features, centre))
    x = torch.zeros(8, 4, requires_grad=True)
    guessed = module(features).squeeze(-1).detach()
    f = lambda z, index: 1000 + guessed[index] + 0 * z[:, 0]  # noqa: E731
    for credit in (1000.0, 0.0):
        module.zero_grad()
        x.grad = None
        structmax.expect(f, x, structmax.Simplex(), estimator).value.sum().backward()
        # credit · ∇ log p, and the misfit ½ credit² is what the module learns from
        torch.testing.assert_close(x.grad.abs().sum(-1), torch.full((8,), 1.5 * credit), atol=1e-3, rtol=1e-5)
        torch.testing.assert_close(module.bias.grad, torch.tensor([-8 * credit]), atol=1e-3, rtol=1e-5)


def test_self_critical_asks_for_the_best():
    x = torch.randn(6, 4)
    result = structmax.expect(
        lambda z, _: z[:, 0],
        x,
        structmax.Simplex(),
        structmax.estimators.ScoreFunction(3, structmax.estimators.SelfCritical()),
    )
    assert result.evaluations == 6 * 4


def test_vimco():
    """The gradient of the mean of log mean exp f over K draws, by enumeration of all pairs of draws."""
    x = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    weights = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    p = x.softmax(0)
    both = torch.logaddexp(weights.unsqueeze(0), weights.unsqueeze(1)) - math.log(2)
    exact = (p.unsqueeze(0) * p.unsqueeze(1) * both).sum()
    right = [exact, *torch.autograd.grad(exact, [x, weights])]
    leaves = [t.detach().expand(DRAWS, 3).clone().requires_grad_() for t in (x, weights)]
    f = lambda z, index: (z * leaves[1][index]).sum(-1)  # noqa: E731
    g = torch.Generator().manual_seed(0)
    value = structmax.expect(f, leaves[0], structmax.Simplex(), structmax.estimators.Vimco(2), generator=g).value
    for found, wanted in zip([value, *gradients(value, leaves)], right, strict=True):
        assert ((found.mean(0) - wanted).abs() <= 4 * found.std(0) / math.sqrt(DRAWS)).all()


def test_ppo_starts_as_the_score_function():
    structure, scores, weights = problem("chain")
    leaves = [t.requires_grad_() for t in scores]
    at = structure.parts(scores)
    f = losses_of(weights)
    ppo = structmax.estimators.PPO(0.2, 3, structmax.estimators.LeaveOneOut())
    drawn = ppo.draw(f, at, structure, generator=torch.Generator().manual_seed(5))
    estimator = structmax.estimators.ScoreFunction(3, structmax.estimators.LeaveOneOut())
    value = structmax.expect(f, at, structure, estimator, generator=torch.Generator().manual_seed(5)).value
    torch.testing.assert_close(drawn.losses.mean(0), value)
    for found, right in zip(gradients(ppo.loss(at, structure, drawn), leaves), gradients(value, leaves), strict=True):
        torch.testing.assert_close(found, right)


def test_ppo_clips():
    log_p = torch.tensor([0.5, -0.5, 0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    value = structmax.estimators.PPO(0.2).surrogate(log_p, torch.zeros(4), advantage)
    (slope,) = gradients(value, [log_p])
    torch.testing.assert_close(value, torch.tensor([-1.2, -math.exp(-0.5), math.exp(0.5), 0.8]))
    assert (slope != 0).tolist() == [False, True, True, False]


# ---------------------------------------------------------------- edges


ALL = [
    structmax.estimators.Enumerate(),
    structmax.estimators.SparseTopK(3),
    structmax.estimators.SparseSupport(),
    structmax.estimators.Vimco(2),
    *UNBIASED,
]


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_forbidden_parts_and_batches(estimator):
    """What is forbidden is never asked for; nothing feasible is 0 without a gradient; batches have any shape."""
    x = torch.tensor([[[0.0, -torch.inf, 1.0]], [[-torch.inf] * 3]], dtype=torch.float64, requires_grad=True)

    def f(z, index):
        assert set(index.tolist()) == {0}
        assert (z[:, 1] == 0).all()
        return z @ z.new_tensor([1.0, 5.0, 2.0])

    result = structmax.expect(f, x, structmax.Simplex(), estimator)
    assert result.value.shape == (2, 1)
    (slope,) = gradients(result.value, [x])
    assert torch.isfinite(slope).all()
    assert (slope[1] == 0).all()
    assert float(slope[0, 0, 1].detach()) == 0
    assert float(result.value[1, 0].detach()) == 0
    none = structmax.expect(f, torch.zeros(0, 3), structmax.Simplex(), estimator)
    assert none.value.shape == (0,)
    assert none.evaluations == 0
    one = structmax.expect(lambda z, index: z[:, 0] + index, torch.zeros(3), structmax.Simplex(), estimator)
    assert one.value.shape == ()


SURROGATES = [
    structmax.estimators.StraightThrough(),
    structmax.estimators.Relaxation(),
    structmax.estimators.PerturbAndMAP(),
    structmax.estimators.ImplicitMLE(),
    structmax.estimators.Spigot(),
    structmax.estimators.ReinMax(),
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLE)
def test_every_estimator_on_every_structure(name):
    """With a batch and without: the batch shape, finite values, finite gradients."""
    case = TABLE[name]
    tensors, structure = case.scores(), case.structure
    batch = structure.batch_shape(case.parts(tensors))
    instance = (0,) * len(batch)
    single = structure.at(instance, batch), tuple(t[instance] for t in tensors)

    def f(parts, index):
        several = parts.values() if isinstance(parts, dict) else parts
        every = [parts] if isinstance(parts, Tensor) else [t for t in several if t is not None]
        assert all(len(t) == len(index) for t in every)
        return sum(t.reshape(len(t), -1).square().sum(1) for t in every)

    for estimator in (*ALL, *SURROGATES):
        for which, given in ((structure, tensors), single):
            scores = tuple(t.clone().requires_grad_() for t in given)
            generator = torch.Generator().manual_seed(0)
            try:
                value = structmax.expect(f, which.parts(scores), which, estimator, generator=generator).value
            except structmax.Refusal:
                continue
            assert value.shape == which.batch_shape(which.parts(scores))
            assert value.isfinite().all()
            for slope in torch.autograd.grad(value.sum(), scores, allow_unused=True) if value.requires_grad else ():
                assert slope is None or slope.isfinite().all()


def test_fewer_structures_than_are_summed():
    """The zeros that stand for a missing structure score more than log Z: no exponential of that."""
    x = torch.tensor([[-100.0, -torch.inf, -torch.inf], [-100.0, -101.0, -torch.inf]], requires_grad=True)
    for k in (2, 3):
        value = structmax.expect(
            lambda z, _: z[:, 0], x, structmax.Simplex(), structmax.estimators.SumAndSample(k)
        ).value
        (slope,) = gradients(value, [x])
        assert slope.isfinite().all()
        assert (slope[0] == 0).all()
        torch.testing.assert_close(value[0].detach(), torch.tensor(1.0))


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("name", CASES)
def test_a_constant_in_f_changes_no_gradient_of_what_is_summed_and_drawn(name, k):
    structure, scores, weights = problem(name)
    f, leaves, slopes = losses_of(weights), [t.requires_grad_() for t in scores], []
    for constant in (0.0, 1e3):
        estimator, generator = structmax.estimators.SumAndSample(k), torch.Generator().manual_seed(0)

        def shifted(y, index, constant=constant):
            return constant + f(y, index)

        result = structmax.expect(shifted, structure.parts(scores), structure, estimator, generator=generator)
        slopes.append(gradients(result.value, leaves))
    for slope, other in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, other, atol=1e-10, rtol=0)


@pytest.mark.parametrize("estimator", ALL, ids=repr)
def test_not_a_number_stays_in_its_instance(estimator):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    x[1, 2] = math.nan
    x = x.requires_grad_()
    value = structmax.expect(lambda z, _: z.sum(-1) ** 2, x, structmax.Bits(), estimator).value
    (slope,) = gradients(value[[0, 2]], [x])
    assert value.isnan().tolist() == [False, True, False]
    assert slope[[0, 2]].isfinite().all()


def test_surrogates_are_evaluated_at_their_choice():
    x = torch.tensor([[0.2, 1.5, 0.3]], requires_grad=True)
    cost = torch.tensor([1.0, 2.0, 3.0])
    result = structmax.expect(lambda z, _: z @ cost, x, structmax.Simplex(), structmax.estimators.StraightThrough())
    assert result.value.tolist() == [2.0]
    assert result.evaluations == 1
    assert gradients(result.value, [x])[0].tolist() == [cost.tolist()]


def test_seeded():
    x = torch.randn(5, 4)
    for estimator in UNBIASED:
        one, two = (
            structmax.expect(
                lambda z, _: z[:, 0], x, structmax.Simplex(), estimator, generator=torch.Generator().manual_seed(1)
            ).value
            for _ in range(2)
        )
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: structmax.estimators.ScoreFunction(0), ValueError, "`samples`"),
        (
            lambda: structmax.estimators.ScoreFunction(1, "mean"),
            TypeError,
            r"`baseline` should be None or an object such as Leav",
        ),
        (lambda: structmax.estimators.SumAndSample(0), ValueError, "`k`"),
        (lambda: structmax.estimators.SparseTopK(0), ValueError, "`k`"),
        (lambda: structmax.estimators.SparseSupport(0), ValueError, "`temperature`"),
        (lambda: structmax.estimators.SampleWithoutReplacement(17), ValueError, "`samples` should be at most 16"),
        (lambda: structmax.estimators.Vimco(1), ValueError, "`samples`"),
        (lambda: structmax.estimators.PPO(0.0), ValueError, "`clip`"),
        (lambda: structmax.estimators.Rebar(0.0), ValueError, "`temperature`"),
        (lambda: structmax.estimators.Relax(Bend(), 0.0), ValueError, "`temperature`"),
        (lambda: structmax.estimators.Relax(torch.sin), TypeError, "`control` should be a torch.nn.Module"),
        (
            lambda: ask(structmax.estimators.Relax(nn.Linear(3, 2)), scores=torch.zeros(4, 3, requires_grad=True)),
            ValueError,
            r"should return shape \(2, 4\) for structures of shape \(2, 4, 3\), but returned \(2, 4, 2\)",
        ),
        (lambda: structmax.estimators.RunningMean(1.0), ValueError, "`decay` should be below 1, but is 1.0"),
        (
            lambda: ask(structmax.estimators.ScoreFunction),
            TypeError,
            "such as ScoreFunction.., but is ScoreFunction itself",
        ),
        (lambda: ask(None), TypeError, "`estimator` should be an object such as"),
        (
            lambda: ask(structmax.estimators.ScoreFunction(1, structmax.estimators.LeaveOneOut())),
            ValueError,
            "`samples` should be at least 2",
        ),
        (
            lambda: ask(structmax.estimators.ScoreFunction(1, structmax.estimators.Learned(nn.Linear(3, 2)))),
            ValueError,
            r"should return the batch shape \(2,\), but returned \(2, 2\)",
        ),
        (lambda: ask(f=lambda z, _: z), ValueError, r"for each of the M = 6 structures .* but returned shape \(6, 3\)"),
        (lambda: ask(f=lambda z, _: 0.0), ValueError, r"but returned float. It is called as f\(parts, index\)"),
        (
            lambda: ask(structure=structmax.Bits(), scores=torch.zeros(200)),
            structmax.Refusal,
            r"members of Bits should be few enough .* but are up to 1.6e60, with 200 parts each. Try SparseTopK\(k\)",
        ),
        (
            lambda: ask(structure=structmax.Matching(), scores=torch.zeros(30, 30)),
            structmax.Refusal,
            r"members of Matching should be few enough .* but are up to 2.7e32, with 900 parts each",
        ),
        (
            lambda: structmax.Distribution(torch.zeros(2, 200), structmax.Bits()).enumerate_support(),
            structmax.Refusal,
            r"up to 1.6e60, with 200 parts each. Try `sample`, or `structmax.topk`",
        ),
        (
            lambda: check_structure(structmax.Bits(), lambda g, dtype: torch.zeros(2, 200, dtype=dtype)),
            structmax.Refusal,
            r"up to 1.6e60, with 200 parts each. Try a smaller instance",
        ),
        (
            lambda: ask(
                structmax.estimators.ScoreFunction(), structure=structmax.Matching(), scores=torch.zeros(20, 20)
            ),
            structmax.Refusal,
            r"ScoreFunction\(.*\) needs `sample`, which Matching does not support: .* Try SparseSupport\(\)\.",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def ask(estimator=structmax.estimators.Enumerate(), f=lambda z, _: z[:, 0], structure=structmax.Simplex(), scores=None):  # noqa: B008
    return structmax.expect(f, torch.zeros(2, 3) if scores is None else scores, structure, estimator)


@pytest.mark.parametrize(
    "estimator", [structmax.estimators.SampleWithoutReplacement(3), structmax.estimators.SumAndSample(2)]
)
def test_masks_on_every_structure(estimator):
    """Sums of −1e30 and more round to anything: probabilities stay below 1."""
    x = -1e30 * torch.randint(1, 9, (8, 9, 2), generator=torch.Generator().manual_seed(0)).float().requires_grad_()
    structure = structmax.ShiftReduce()
    value = structmax.expect(lambda y, _: y.flatten(1)[:, :5].sum(-1), x, structure, estimator).value
    assert value.detach().isfinite().all()
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert gradient.isfinite().all()


def test_graphs_show_their_variables_by_name():
    x = structmax.factors.Variables("x", (3,))
    graph = structmax.FactorGraph(structmax.factors.Budget(x, at_most=2))
    scores = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 2.0, -3.0]], requires_grad=True)
    estimator = structmax.estimators.StraightThrough()
    result = structmax.expect(lambda z, _: z["x"].sum(-1), {"x": scores}, graph, estimator)
    assert result.value.tolist() == [2.0, 1.0]
    result.value.sum().backward()
    assert torch.equal(scores.grad, torch.ones(2, 3))
    with pytest.raises(structmax.Refusal) as refused:
        structmax.expect(lambda z, _: z["x"].sum(-1), {"x": scores}, graph, structmax.estimators.ScoreFunction())
    assert "SparseSupport" not in str(refused.value)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of the best structures are listed, call by call."""
    counts: list[int] = []
    best = sparse.best

    def recording(problem: Any, k: int) -> Any:
        counts.append(k)
        return best(problem, k)

    monkeypatch.setattr(sparse, "best", recording)
    return counts


def test_many_best_structures_are_listed_only_where_they_have_probability(asked: list[int]) -> None:
    """The best 200 are as good as all of them, whether few or most have probability."""
    generator = torch.Generator().manual_seed(0)
    cost = torch.rand(200, generator=generator, dtype=torch.float64)
    for scale, most in ((0.0, 200), (0.01, 200), (0.1, 100), (1.0, 16), (50.0, 1)):
        x = (scale * torch.randn(3, 200, generator=generator, dtype=torch.float64)).requires_grad_()
        result = structmax.expect(lambda y, _: y @ cost, x, structmax.Simplex(), structmax.estimators.SparseTopK(200))
        p = structmax.sparsemax(x)
        assert result.evaluations == (p > 0).sum() <= 3 * most
        assert asked == {16: [16], 1: [16]}.get(most, asked)
        assert asked[-1] >= (p > 0).sum(-1).max()
        asked.clear()
        torch.testing.assert_close(result.value, p @ cost)
        torch.testing.assert_close(result.entropy, torch.special.entr(p).sum(-1))
        value, wanted = (torch.autograd.grad(v.sum(), x, retain_graph=True)[0] for v in (result.value, p @ cost))
        torch.testing.assert_close(value, wanted)


@pytest.mark.parametrize("estimator", [structmax.estimators.Enumerate(), structmax.estimators.SparseTopK(3)])
def test_expectations_can_be_pickled(estimator):
    x, chain = (torch.randn(2, 3, 2), torch.zeros(2, 2)), structmax.LinearChain(torch.tensor([3, 2]))
    # answered by a function that cannot be pickled
    structmax.smoothed(x, chain, structmax.omega.LocalL2())
    result = structmax.expect(lambda y, _: y.unary[:, 0, 0], x, chain, estimator)
    again = pickle.loads(pickle.dumps(result))
    assert repr(again) == repr(result)
    torch.testing.assert_close(again.value, result.value)
    torch.testing.assert_close(again.entropy, result.entropy)


def test_a_backend_that_is_named_takes_k_or_refuses_it_whatever_the_scores_are(asked: list[int]) -> None:
    x, estimator = 50 * torch.arange(100.0), structmax.estimators.SparseTopK(40)
    for backend, k in (("auto", 16), ("reference", 40)):
        structmax.expect(lambda y, _: y.sum(-1), x, structmax.Simplex(), estimator, backend=backend)
        assert asked.pop() == k
