"""The conditional random field with another Ω, against sums over all tag sequences and the losses of structures."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from test_nn_crf import LABELS, PATTERNS, C, draw, every_sequence, gradients, model, score

import structmax
from structmax.nn import CRF
from structmax.omega import AbstractOmega, Entropy, LocalL2, LocalTsallis, SquaredNorm, Zero
from structmax.testing import same

inf = math.inf
OMEGAS = [Entropy(0.5), LocalL2(0.7), LocalTsallis(1.5), SquaredNorm(0.8), Zero()]
every_omega = pytest.mark.parametrize("omega", OMEGAS, ids=repr)
SMOOTH = [omega for omega in OMEGAS if omega != Zero()]


def alone(crf, emissions, keep):
    """Scores of one instance's kept steps, without start and end: (N, C) and (C, C)."""
    unary = emissions[keep].clone()
    # the first step may be the last
    unary[0] = unary[0] + crf.start_transitions
    unary[-1] = unary[-1] + crf.end_transitions
    return unary, crf.transitions


def parts(tags):
    """What a sequence has, written down step by step."""
    unary, pairwise = torch.zeros(len(tags), C, dtype=torch.float64), torch.zeros(C, C, dtype=torch.float64)
    for n, tag in enumerate(tags):
        unary[n, tag] = 1
    for before, after in itertools.pairwise(tags):
        pairwise[before, after] += 1
    return unary, pairwise


def by_functions(crf, emissions, tags, keep):
    """Minus the loss of each instance on its own, by `fenchel_young`."""
    losses = []
    for e, t, k in zip(emissions, tags, keep, strict=True):
        if not k.any():
            losses.append(e.new_zeros(()))
            continue
        target = parts(t[k].tolist())
        losses.append(structmax.fenchel_young(alone(crf, e, k), structmax.LinearChain(), target, crf.omega))
    return -torch.stack(losses)


@every_omega
def test_loss_and_gradients_under_any_mask(omega):
    crf, (emissions, tags) = model(omega=omega), draw()
    emissions.requires_grad_()
    ours, judge = crf(emissions, tags, PATTERNS, "none"), by_functions(crf, emissions, tags, PATTERNS)
    same("minus the loss", ours, judge)
    assert ours[-1] == 0
    assert (ours <= 1e-9).all()
    weights = torch.arange(1.0, 7.0, dtype=torch.float64)
    got, want = (gradients(crf, (weights * value).sum(), emissions) for value in (ours, judge))
    for name, a, b in zip(("emissions", "start", "end", "transitions"), got, want, strict=True):
        same(name, a, b)


@pytest.mark.parametrize("omega", [Zero(), Entropy(0.5)], ids=repr)
def test_loss_by_enumeration(omega):
    crf, (emissions, tags) = model(omega=omega), draw()
    value = crf(emissions, tags, PATTERNS, "none")
    for b, keep in enumerate(PATTERNS):
        positions, every, _ = every_sequence(crf, emissions[b], keep)
        scores = torch.stack([score(crf, emissions[b], positions, y) for y in every])
        highest = scores.max() if omega == Zero() else 0.5 * (scores / 0.5).logsumexp(0)
        same("minus the loss", value[b], score(crf, emissions[b], positions, tags[b][keep].tolist()) - highest)


def test_the_entropy_is_the_default():
    (emissions, tags), plain, named = draw(), model(), model(omega=Entropy())
    assert plain(emissions, tags, PATTERNS) == named(emissions, tags, PATTERNS)
    assert repr(plain) == repr(named)
    # a recursion with the entropy in every maximum is the log-partition
    local = model(omega=LocalTsallis(1.0))
    same("alpha = 1", local(emissions, tags, PATTERNS, "none"), plain(emissions, tags, PATTERNS, "none"))
    same("marginals", local.marginals(emissions, PATTERNS), plain.marginals(emissions, PATTERNS))


@pytest.mark.parametrize("omega", SMOOTH, ids=repr)
@pytest.mark.parametrize("ignore_index", [None, pytest.param(-100, marks=pytest.mark.thorough)])
def test_gradcheck(omega, ignore_index):
    crf, (emissions, tags) = model(omega=omega, ignore_index=ignore_index), draw()
    tags[0, 2] = 1 if ignore_index is None else -100
    names = [name for name, _ in crf.named_parameters()]

    def value(e, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(crf, values, (e, tags, PATTERNS, "none"))

    inputs = tuple(t.detach().requires_grad_() for t in (emissions, *crf.parameters()))
    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradcheck(lambda e: crf.marginals(e, PATTERNS), inputs[:1])


@every_omega
def test_the_gradient_leads_from_the_marginals_to_the_tags(omega):
    crf, (emissions, tags) = model(omega=omega), draw()
    emissions.requires_grad_()
    (gradient,) = torch.autograd.grad(crf(emissions, tags, PATTERNS), emissions)
    marginals = crf.marginals(emissions, PATTERNS)
    one_hot = torch.nn.functional.one_hot(tags, C) * PATTERNS.unsqueeze(-1)
    same("gradient", gradient, one_hot - marginals)
    same("sum", marginals.sum(-1), PATTERNS.double())
    for b, keep in enumerate(PATTERNS[:-1]):
        alone_ = structmax.smoothed_marginals(alone(crf, emissions[b], keep), structmax.LinearChain(), omega)
        same("marginals", marginals[b][keep], alone_.unary)


@every_omega
def test_tags_far_ahead_have_no_loss_and_are_decoded(omega):
    crf, (emissions, tags) = model(omega=omega), draw()
    ahead = emissions + 50 * torch.nn.functional.one_hot(tags, C)
    same("no loss", crf(ahead, tags, PATTERNS), torch.zeros((), dtype=torch.float64))
    assert crf.decode(ahead, PATTERNS) == [t[keep].tolist() for t, keep in zip(tags, PATTERNS, strict=True)]
    assert crf.decode(emissions, PATTERNS) == model().decode(emissions, PATTERNS)


@every_omega
def test_unknown_tags_take_the_smallest_loss(omega):
    crf, partial, (emissions, tags) = model(omega=omega), model(omega=omega, ignore_index=-100), draw()
    same("all known", partial(emissions, tags, PATTERNS, "none"), crf(emissions, tags, PATTERNS, "none"))
    nothing = torch.full_like(tags, -100)
    same("nothing known", partial(emissions, nothing, PATTERNS, "none"), torch.zeros(6, dtype=torch.float64))
    unknown = tags.clone()
    unknown[:, 1] = unknown[:, 2] = -100
    value = partial(emissions, unknown, PATTERNS, "none")
    every = []
    for one, two in itertools.product(range(C), repeat=2):
        filled = tags.clone()
        filled[:, 1], filled[:, 2] = one, two
        every.append(crf(emissions, filled, PATTERNS, "none"))
    best = torch.stack(every).amax(0)
    assert (value >= best - 1e-9).all()
    if omega == Zero():
        same("the best of all", value, best)
    if isinstance(omega, Entropy):
        distinct = torch.stack(every).unflatten(0, (C, C))
        # a step left out is not summed over
        distinct = distinct.masked_fill(~PATTERNS[:, 1] & (torch.arange(C) > 0)[:, None, None], -inf)
        distinct = distinct.masked_fill(~PATTERNS[:, 2] & (torch.arange(C) > 0)[:, None], -inf)
        same("log-probability", value, 0.5 * (distinct / 0.5).flatten(0, 1).logsumexp(0))
    if isinstance(omega, SquaredNorm):
        scores, chain = crf.scores(emissions, PATTERNS)
        other = (unknown != -100).unsqueeze(-1) & (unknown.unsqueeze(-1) != torch.arange(C))
        mean = structmax.smoothed_marginals(scores._replace(unary=scores.unary.masked_fill(other, -inf)), chain, omega)
        same("loss of the mean", value, -structmax.fenchel_young(scores, chain, mean, omega, reduction="none"))


@every_omega
def test_reductions(omega):
    crf, (emissions, tags) = model(omega=omega, ignore_index=-100), draw()
    tags[0, 0] = -100
    each = crf(emissions, tags, PATTERNS, "none")
    same("sum", crf(emissions, tags, PATTERNS), each.sum())
    same("mean", crf(emissions, tags, PATTERNS, "mean"), each.mean())
    same("token mean", crf(emissions, tags, PATTERNS, "token_mean"), each.sum() / (PATTERNS.sum() - 1))


@pytest.mark.parametrize("ignore_index", [None, -100])
@every_omega
def test_constraints_forbid(omega, ignore_index):
    rules = structmax.tag_constraints(LABELS)
    crf, (emissions, _) = model(omega=omega, constraints=rules, ignore_index=ignore_index), draw()
    emissions[..., 2] += 5
    emissions.requires_grad_()
    for path in crf.decode(emissions, PATTERNS):
        assert all((before, after) != (0, 2) for before, after in itertools.pairwise([0, *path]))
    assert (crf.marginals(emissions)[:, 0, 2] == 0).all()
    broken, fine = torch.tensor([[0, 2, 2, 2, 2]]), torch.tensor([[0, 1, 2, 2, 2]])
    assert crf(emissions[:1], broken) == -inf
    value = crf(emissions[:1], fine)
    assert value.isfinite()
    assert value <= 0
    assert all(gradient.isfinite().all() for gradient in gradients(crf, value, emissions))


@pytest.mark.parametrize("ignore_index", [None, -100])
@every_omega
def test_where_nothing_is_allowed(omega, ignore_index):
    crf, (emissions, tags) = model(omega=omega, ignore_index=ignore_index), draw()
    emissions[0, 1] = -inf
    emissions.requires_grad_()
    value = crf(emissions, tags, reduction="none")
    assert value[0] == -inf
    assert value[1:].isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(crf, value[1:].sum(), emissions))
    assert (crf.marginals(emissions)[0] == 0).all()


@pytest.mark.parametrize("junk", [math.nan, inf, -inf])
@every_omega
def test_steps_left_out_hold_anything(omega, junk):
    crf, (emissions, tags) = model(omega=omega), draw()
    spoilt = emissions.masked_fill(~PATTERNS.unsqueeze(-1), junk).requires_grad_()
    value = crf(spoilt, tags.masked_fill(~PATTERNS, -7), PATTERNS)
    assert value == crf(emissions, tags, PATTERNS)
    assert all(gradient.isfinite().all() for gradient in gradients(crf, value, spoilt))


@every_omega
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(omega, dtype):
    torch.manual_seed(0)
    crf, wide = CRF(C, True, omega=omega).to(dtype), CRF(C, True, omega=omega)
    wide.load_state_dict({name: value.float() for name, value in crf.state_dict().items()})
    emissions, tags = draw()
    emissions = (8 * emissions).to(dtype).requires_grad_()
    value = crf(emissions, tags, PATTERNS, "none")
    assert torch.equal(value, wide(emissions.float(), tags, PATTERNS, "none").to(dtype))
    value.sum().backward()
    assert emissions.grad.dtype == dtype


@every_omega
def test_any_batch_and_order(omega):
    plain, (emissions, tags) = model(omega=omega), draw()
    sideways = CRF(C, omega=omega).double()
    sideways.load_state_dict(plain.state_dict())
    want = plain(emissions, tags, PATTERNS, "none")
    same("time first", sideways(emissions.transpose(0, 1), tags.T, PATTERNS.T, "none"), want)
    same("no batch", plain(emissions[2], tags[2], PATTERNS[2], "none"), want[2])
    e, t, m = (x.unflatten(0, (2, 3)) for x in (emissions, tags, PATTERNS))
    same("two batch dimensions", plain(e, t, m, "none"), want.unflatten(0, (2, 3)))
    assert plain(emissions[:0], tags[:0]) == 0


@pytest.mark.parametrize("omega", [LocalL2(0.7), LocalTsallis(1.5), Entropy(0.5)], ids=repr)
def test_the_random_walk(omega):
    crf, (emissions, _) = model(omega=omega), draw()
    drawn = crf.sample(emissions, PATTERNS, (4000,), generator=torch.Generator().manual_seed(0))
    assert (drawn[:, ~PATTERNS] == -1).all()
    frequencies = (drawn.unsqueeze(-1) == torch.arange(C)).double().mean(0)
    torch.testing.assert_close(frequencies, crf.marginals(emissions, PATTERNS).detach(), atol=0.03, rtol=0)
    # all sequences of all instances
    tags, log_probs = crf.topk(emissions, C**5, PATTERNS)
    same("sum of probabilities", log_probs.exp().sum(0), torch.ones(6, dtype=torch.float64))
    assert (log_probs[:-1] >= log_probs[1:]).all()
    assert (tags[log_probs.isneginf()] == -1).all()
    expected = ((tags.unsqueeze(-1) == torch.arange(C)) * log_probs.exp()[..., None, None]).sum(0)
    same("marginals", expected, crf.marginals(emissions, PATTERNS))


@pytest.mark.parametrize("omega", [Zero(), SquaredNorm()], ids=repr)
def test_what_has_no_distribution_draws_nothing(omega):
    crf, (emissions, _) = model(omega=omega), draw()
    for ask in (lambda: crf.sample(emissions), lambda: crf.topk(emissions, 2)):
        with pytest.raises(NotImplementedError, match=r"does not define a random walk .* Try omega\.Entropy\(\)"):
            ask()


@pytest.mark.thorough
@pytest.mark.parametrize("omega", [LocalL2(0.7), Zero()], ids=repr)
def test_compiles_whole(omega):
    crf, (emissions, tags) = model(omega=omega), draw()
    emissions.requires_grad_()
    value = torch.compile(crf, fullgraph=True, backend="aot_eager")(emissions, tags, PATTERNS)
    want = crf(emissions, tags, PATTERNS)
    same("minus the loss", value, want)
    for a, b in zip(gradients(crf, value, emissions), gradients(crf, want, emissions), strict=True):
        same("gradient", a, b)


class Own(AbstractOmega):
    """The squared norm again, by functions that users have."""

    def value(self, problem):
        return SquaredNorm().value(problem)

    def point(self, problem):
        return SquaredNorm().point(problem)

    def at(self, problem, parts):
        return SquaredNorm().at(problem, parts)


def test_an_omega_of_your_own():
    ours, theirs, (emissions, tags) = model(omega=Own()), model(omega=SquaredNorm()), draw()
    same("minus the loss", ours(emissions, tags, PATTERNS, "none"), theirs(emissions, tags, PATTERNS, "none"))
    assert torch.equal(ours.marginals(emissions), theirs.marginals(emissions))


@every_omega
def test_travels_and_says_what_it_is(omega):
    crf, (emissions, tags) = CRF(C, omega=omega), draw()
    assert repr(crf) == f"CRF(num_tags=3, batch_first=False, ignore_index=None, omega={omega!r})"
    assert list(crf.state_dict()) == list(CRF(C).state_dict())
    for copied in (copy.deepcopy(crf), pickle.loads(pickle.dumps(crf))):
        assert torch.equal(copied(emissions.float(), tags), crf(emissions.float(), tags))


def test_what_is_no_omega_is_refused():
    with pytest.raises(TypeError, match=r"`omega` should be a regulariser such as omega.LocalL2\(1.0\), but is 'l2'"):
        CRF(C, omega="l2")


@pytest.mark.parametrize("omega", [None, Zero(), LocalL2(), SquaredNorm()], ids=repr)
def test_not_a_number_is_not_taken_for_nothing_allowed(omega):
    emissions = torch.zeros(2, 3, C)
    emissions[0, 1, 0] = math.nan
    likelihood = CRF(C, batch_first=True, omega=omega)(emissions, torch.zeros(2, 3, dtype=torch.long), reduction="none")
    assert likelihood.isnan().tolist() == [True, False]
    assert likelihood[1].isfinite()
