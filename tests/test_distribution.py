"""`Distribution` over the simplex against torch's own categorical distributions."""

import itertools
import math

import pytest
import scipy.stats
import torch
from cases import CASES
from mapping_cases import close, normal
from torch import Tensor
from torch.distributions import Categorical, OneHotCategorical, kl_divergence

import structmax
from structmax import Distribution, Simplex
from structmax.parts import flat
from structmax.testing import Case


def pair(*shape: int, seed: int = 0) -> tuple[Distribution, OneHotCategorical]:
    x = normal(*shape, seed=seed)
    return Distribution(x, Simplex()), OneHotCategorical(logits=x)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_equals_the_one_hot_categorical(shape: tuple[int, ...]) -> None:
    ours, theirs = pair(*shape)
    assert ours.batch_shape == theirs.batch_shape
    assert ours.event_shape == theirs.event_shape
    close(ours.mean, theirs.mean, 1e-12)
    close(ours.variance, theirs.variance, 1e-12)
    close(ours.stddev, theirs.stddev, 1e-12)
    close(ours.mode, theirs.mode, 0.0)
    close(ours.entropy(), theirs.entropy(), 1e-12)
    close(ours.perplexity(), theirs.perplexity(), 1e-11)
    draws = theirs.sample((7,))
    close(ours.log_prob(draws), theirs.log_prob(draws), 1e-12)
    for expand in (True, False):
        members = ours.enumerate_support(expand)
        close(members, theirs.enumerate_support(expand), 0.0)
        if expand:
            close(ours.log_prob(members), theirs.log_prob(members), 1e-12)
            close(ours.log_prob(members).exp().sum(0), torch.ones(shape[:-1]), 1e-12)


def test_entropy_equals_the_categorical_with_forbidden_entries() -> None:
    x = normal(3, 4)
    x[1, 2] = -math.inf
    x[2] = torch.tensor([0.0, -math.inf, -math.inf, -math.inf])
    x.requires_grad_()
    h = Distribution(x, Simplex()).entropy()
    p = x.detach().softmax(-1)
    close(h, -torch.xlogy(p, p).sum(-1), 1e-12)
    assert torch.autograd.grad(h.sum(), x)[0].isfinite().all()


def test_kl_divergence_is_registered() -> None:
    (p, p_torch), (q, q_torch) = pair(3, 4), pair(3, 4, seed=1)
    close(kl_divergence(p, q), kl_divergence(p_torch, q_torch), 1e-12)
    close(kl_divergence(p, p), torch.zeros(3), 1e-12)
    close(structmax.kl_divergence(p.scores, q.scores, Simplex()), kl_divergence(p, q), 0.0)
    cross = structmax.cross_entropy(p.scores, q.scores, Simplex())
    close(cross, kl_divergence(p, q) + p.entropy(), 1e-12)
    barred = Distribution(torch.tensor([0.0, -math.inf]), Simplex())
    free = Distribution(torch.tensor([0.0, 0.0]), Simplex())
    assert kl_divergence(free, barred) == math.inf
    close(kl_divergence(barred, free), math.log(2), 1e-6)


@pytest.mark.parametrize("sample_shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_sample_shapes(sample_shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    p = Distribution(normal(*batch, 4), Simplex())
    draws = p.sample(sample_shape)
    assert draws.shape == (*sample_shape, *batch, 4)
    assert (draws.sum(-1) == 1).all()
    assert ((draws == 0) | (draws == 1)).all()
    assert p.log_prob(draws).shape == (*sample_shape, *batch)
    assert not draws.requires_grad


def test_samples_follow_the_distribution() -> None:
    x = torch.tensor([[0.0, 1.0, -1.0, -math.inf], [2.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    draws = Distribution(x, Simplex()).sample((20000,), generator=torch.Generator().manual_seed(0))
    for row in range(2):
        expected, counts = 20000 * x[row].softmax(-1), draws[:, row].sum(0)
        possible = expected > 0
        assert not counts[~possible].any()
        assert scipy.stats.chisquare(counts[possible].numpy(), expected[possible].numpy()).pvalue > 1e-3


def test_the_generator_decides() -> None:
    p = Distribution(normal(5, 40), Simplex())

    def draw(seed: int) -> Tensor:
        return p.sample((50,), generator=torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_expand() -> None:
    p = Distribution(normal(3, 4), Simplex())
    wide = p.expand((2, 3))
    assert isinstance(wide, Distribution)
    assert wide.batch_shape == (2, 3)
    assert wide.event_shape == (4,)
    close(wide.mean[1], p.mean, 0.0)
    assert wide.sample((6,)).shape == (6, 2, 3, 4)
    close(wide.entropy(), p.entropy().expand(2, 3), 1e-15)


def test_validation_looks_at_values_only_when_asked() -> None:
    broken = torch.tensor([[0.0, math.nan], [0.0, 1.0]])
    with pytest.raises(ValueError, match="no NaN"):
        Distribution(broken, Simplex(), validate_args=True)
    p = Distribution(broken, Simplex(), validate_args=False)
    assert p.entropy().isnan().tolist() == [True, False]
    assert p.log_prob(torch.full((2, 2), 0.5))[1].isfinite()
    sound = Distribution(broken[1:], Simplex(), validate_args=True)
    with pytest.raises(ValueError, match="zeros and ones"):
        sound.log_prob(torch.full((1, 2), 0.5))
    close(
        sound.log_prob(Simplex().encode(torch.tensor([1]), 2)),
        Categorical(logits=broken[1:]).log_prob(torch.tensor([1])),
        1e-6,
    )


def test_gradients_reach_the_scores() -> None:
    x = normal(3, 4).requires_grad_()
    p = Distribution(x, Simplex())
    y = p.sample()
    quantities = {
        "log_prob": (p.log_prob(y), OneHotCategorical(logits=x).log_prob(y)),
        "entropy": (p.entropy(), OneHotCategorical(logits=x).entropy()),
        "mean": (p.mean[..., 0], x.softmax(-1)[..., 0]),
    }
    for ours, theirs in quantities.values():
        close(torch.autograd.grad(ours.sum(), x)[0], torch.autograd.grad(theirs.sum(), x)[0], 1e-12)


def test_an_instance_without_a_member() -> None:
    x = torch.full((2, 3), -math.inf)
    x[1] = 0.0
    p = Distribution(x, Simplex())
    close(p.mean[0], torch.zeros(3), 0.0)
    close(p.mode[0], torch.zeros(3), 0.0)
    close(p.sample()[0], torch.zeros(3), 0.0)
    close(p.entropy(), [0.0, math.log(3)], 1e-6)
    assert p.log_prob(torch.eye(3)[:2])[0] == -math.inf


# --- laws, over every structure that has a distribution ---------------------------------------------------------------

ANSWERING = {
    name: case
    for name, case in CASES.items()
    if all(case.answers(q, "numba") or case.answers(q, "reference") for q in ("log_partition", "sample"))
}


@pytest.mark.parametrize("case", ANSWERING.values(), ids=ANSWERING)
def test_laws(case: Case) -> None:
    scores = case.scores()
    structure = case.structure
    p = Distribution(case.parts(scores), structure, validate_args=True)
    prob, members = case.probabilities(scores), case.members(scores)
    feasible = prob.sum(-1) > 0
    batch = structure.batch_shape(case.parts(scores))
    assert p.batch_shape == batch
    assert p.event_shape == scores[0].shape[len(batch) :]
    mean = case.mean(prob, scores)
    close(case.flat(p.mean), mean, 1e-10)
    variance = (prob.unsqueeze(-1) * (members - mean.unsqueeze(-2)) ** 2).sum(-2)
    close(case.flat(p.variance), variance, 1e-10)
    assert not case.flat(p.stddev).isnan().any()
    close(p.entropy(), -torch.xlogy(prob, prob).sum(-1), 1e-10)
    best = case.scores_of_members(scores).argmax(-1)
    mode = case.flat(p.mode)
    for index in feasible.nonzero().tolist():
        assert torch.equal(mode[tuple(index)], members[(*index, int(best[tuple(index)]))])
    # the members of each instance, those that are none left out
    total = torch.zeros(batch, dtype=torch.float64)
    for member in members.unbind(-2):
        real = (member >= 0).all(-1)
        value = p.log_prob(case.unflat(member.clamp_min(0.0), scores))
        total += torch.where(real, value.exp(), 0.0)
    close(total, feasible.double(), 1e-10)
    draws = case.flat(p.sample((4,), generator=torch.Generator().manual_seed(0)))
    assert ((draws.unsqueeze(-2) == members).all(-1).sum(-1) == feasible).all()
    log_p = p.log_prob(case.unflat(draws, scores))
    assert log_p.shape == (4, *batch)
    assert (log_p[:, feasible] > -math.inf).all()
    wide = p.expand((2, *batch))
    assert wide.batch_shape == (2, *batch)
    assert wide.event_shape == p.event_shape
    close(wide.entropy()[1], p.entropy(), 1e-12)
    close(case.flat(wide.mean)[1], mean, 1e-10)


@pytest.mark.parametrize("case", ANSWERING.values(), ids=ANSWERING)
def test_the_support_of_each_instance(case: Case) -> None:
    scores = case.scores()
    batch = case.structure.batch_shape(case.parts(scores))
    for index in itertools.product(*map(range, batch)):
        one, own = case.structure.at(index, batch), tuple(t[index] for t in scores)
        p = Distribution(one.parts(own), one, validate_args=True)
        listed = p.enumerate_support()
        rows = flat(one.tensors(listed))
        wanted = case.members(scores)[index]
        wanted = wanted[(wanted >= 0).all(-1)]
        assert sorted(rows.tolist()) == sorted(wanted.tolist())
        if not len(rows):
            continue
        # every member is in the support by torch's own word, and together they are all there is
        for tensor in one.tensors(listed):
            assert bool(p.support.base_constraint.check(tensor).all())
        close(p.log_prob(listed).exp().sum(), 1.0, 1e-10)
        wide = p.expand((2,)).enumerate_support()
        close(p.expand((2,)).log_prob(wide)[:, 1], p.log_prob(listed), 1e-12)


def test_counts_are_validated() -> None:
    chain, scores = structmax.LinearChain(), (torch.zeros(4, 2), torch.zeros(2, 2))
    p = Distribution(scores, chain, validate_args=True)
    parts = chain.encode(torch.tensor([1, 1, 1, 1]), scores)
    assert parts.pairwise[1, 1] == 3
    close(p.log_prob(parts), -4 * math.log(2), 1e-6)
    with pytest.raises(ValueError, match=r"counts: 0, 1, 2, …, but holds -0.5"):
        p.log_prob((parts.unary, parts.pairwise - 0.5))
    with pytest.raises(ValueError, match=r"zeros and ones, but holds 2"):
        p.log_prob((2 * parts.unary, parts.pairwise))


def test_the_variance_of_counts_has_a_gradient() -> None:
    chain, unary = structmax.LinearChain(), torch.zeros(3, 2, dtype=torch.float64)

    def variance(pairwise: Tensor) -> Tensor:
        return Distribution((unary, pairwise), chain).variance.pairwise

    assert torch.autograd.gradcheck(variance, normal(2, 2).requires_grad_())


def test_validation_passes_over_padding() -> None:
    bits, x = structmax.Bits(torch.tensor(1)), torch.tensor([0.0, math.nan])
    p = Distribution(x, bits, validate_args=True)
    close(p.log_prob(torch.tensor([1.0, math.nan])), -math.log(2), 1e-6)


def test_the_variance_of_scores_that_share_memory() -> None:
    edges = torch.tensor([0, 0]), torch.tensor([-1, -1]), torch.tensor([0, 1])
    structure, x = structmax.Hypergraph(*edges), normal(1, 3, 2)
    shared = Distribution(x.expand(2, 3, 2), structure).variance
    close(shared, Distribution(x.repeat(2, 1, 1), structure).variance, 0.0)


def test_no_instances_with_goals_of_their_own() -> None:
    edges = torch.tensor([0, 0]), torch.tensor([-1, -1]), torch.tensor([0, 1])
    structure = structmax.Hypergraph(*edges, goal=torch.zeros(0, dtype=torch.int64))
    assert Distribution(torch.zeros(0, 2), structure).sample((3,)).shape == (3, 0, 2)


def test_a_sample_without_gradient_says_what_has_one():
    p = structmax.Distribution(torch.zeros(2, 3), structmax.Simplex())
    with pytest.raises(NotImplementedError, match=r"Try `structmax\.surrogate"):
        p.rsample()
