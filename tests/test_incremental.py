"""Policies normalised at each step: probabilities sum to 1, and every way to choose keeps to what is allowed."""

import itertools

import pytest
import torch

import structmax
from structmax.incremental import (
    Policy,
    Transitions,
    greedy,
    gumbel,
    log_probs,
    sample,
    straight_through,
    straight_through_beam,
)

LENGTHS = torch.tensor([[4, 2, 1], [0, 3, 4]])


def policy(lengths=LENGTHS, leaves=4, forbid=()):
    """Scores of a batch, with junk where no sequence goes: after its end, and for what is not possible there."""
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(*lengths.shape, 2 * leaves - 1, 2, generator=g, dtype=torch.float64)
    scores = scores.masked_fill(torch.arange(2 * leaves - 1)[:, None] >= 2 * lengths[..., None, None] - 1, torch.nan)
    scores[..., 0, 1] = torch.nan
    for at in forbid:
        scores[at] = -torch.inf
    return Policy(scores, lengths)


def derivations(of):
    """For each instance all its sequences, and their log p by a walk in plain Python."""
    for at in itertools.product(*map(range, of.lengths.shape)):
        n, scores = int(of.lengths[at]), of.scores[at].detach()
        every = structmax.ShiftReduce(of.lengths[at]).enumerate(scores)
        values = []
        for actions in structmax.ShiftReduce().decode(every).tolist():
            read, height, value = 0, 0, 0.0
            for step, action in enumerate(actions[: max(0, 2 * n - 1)]):
                open_to = [a for a, may in enumerate((read < n, height >= 2)) if may]
                value += float(scores[step, action] - torch.logsumexp(scores[step, open_to], 0))
                read, height = (read + 1, height + 1) if action == 0 else (read, height - 1)
            values.append(value)
        yield at, every, torch.tensor(values, dtype=torch.float64)


def test_log_prob():
    of = policy()
    of.scores.requires_grad_()
    for at, every, wanted in derivations(of):
        everywhere = every.reshape(len(every), 1, 1, 7, 2).expand(-1, 2, 3, -1, -1)
        found = of.log_prob(everywhere)
        torch.testing.assert_close(found[(slice(None), *at)], wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found[(slice(None), *at)].exp().sum(), torch.tensor(1.0).double())
        # Elsewhere, with another number of leaves, they are no sequences at all.
        assert (found.isneginf() == (of.lengths != of.lengths[at])).all()
        (slope,) = torch.autograd.grad(found[(slice(None), *at)].sum(), of.scores)
        assert slope.isfinite().all()


@pytest.mark.parametrize(
    "actions",
    [[0, 0, 0, 1, -1], [0, 0, -1, 0, 1], [0, 1, 0, 0, 1], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1], [-1, -1, -1, -1, -1]],
)
def test_what_is_no_sequence(actions):
    # `encode` would refuse most of them
    parts = (torch.tensor(actions).unsqueeze(-1) == torch.arange(2)).float()
    assert Policy(torch.zeros(5, 2)).log_prob(parts).isneginf()


def test_both_actions_at_once_are_no_sequence():
    parts = structmax.ShiftReduce().encode(torch.tensor([0, 0, 1, 0, 1]))
    parts[2] = 1.0
    assert Policy(torch.zeros(5, 2)).log_prob(parts).isneginf()


def test_greedy():
    """The best of each step by hand; what a state says goes with what `ShiftReduce.allowed` says of the actions."""
    of = policy()
    found = of.greedy()
    actions = structmax.ShiftReduce().decode(found)
    for step in range(7):
        allowed = structmax.ShiftReduce().allowed(actions[..., :step], LENGTHS)
        best = of.scores[..., step, :].masked_fill(~allowed, -torch.inf).argmax(-1)
        assert torch.equal(actions[..., step], torch.where(allowed.any(-1), best, -1))
    structure = structmax.ShiftReduce(LENGTHS)
    assert torch.equal(structure.from_spans(structure.to_spans(found)), found)


@pytest.mark.parametrize("k", [1, 3, 5, 9])
def test_beam(k):
    """With room for every prefix it is the list of all sequences, best first; never more than there are."""
    of = policy()
    of.scores.requires_grad_()
    best = of.beam(k)
    for at, every, wanted in derivations(of):
        values, parts = best.values[(slice(None), *at)], best.parts[(slice(None), *at)]
        filled = ~values.isneginf()
        torch.testing.assert_close(of.log_prob(best.parts)[(slice(None), *at)][filled], values[filled])
        assert not parts[~filled].any()
        assert (values[filled].diff() <= 0).all()
        if k >= 5:
            ordered = wanted.sort(descending=True)
            count = min(k, len(every))
            assert int(filled.sum()) == count
            torch.testing.assert_close(values[:count].detach(), ordered.values[:count])
            assert torch.equal(parts[:count], every[ordered.indices[:count]])
    (found,) = torch.autograd.grad(best.values[0].sum(), of.scores, retain_graph=True)
    (wanted,) = torch.autograd.grad(of.log_prob(best.parts[0]).sum(), of.scores)
    torch.testing.assert_close(found, wanted)


def test_a_beam_of_one_is_greedy():
    of = policy()
    assert torch.equal(of.beam(1).parts[0], of.greedy())


def test_draws_have_their_frequencies():
    of, count = policy(), 20000
    draws = of.sample((count,), generator=torch.Generator().manual_seed(1))
    assert draws.shape == (count, 2, 3, 7, 2)
    for at, every, wanted in derivations(of):
        same = (draws[(slice(None), *at)].unsqueeze(1) == every).all(-1).all(-1)
        assert same.any(1).all()
        p = wanted.exp()
        spread = (p * (1 - p) / count).sqrt()
        assert ((same.double().mean(0) - p).abs() <= 4 * spread + 1e-12).all()


def test_dead_ends():
    """Where −inf leaves nothing to do the sequence is no more, and its probability is lost."""
    # After three shifts of instance (0, 0) only a reduction before the fourth is left; after two of (1, 1), nothing.
    of = policy(forbid=[(0, 0, 3, 0), (1, 1, 2, 0), (1, 1, 2, 1)])
    of.scores.requires_grad_()
    for parts in (of.greedy(), of.sample(generator=torch.Generator().manual_seed(0)), of.beam(2).parts[0]):
        assert not parts[1, 1].any()
        assert parts[0, 0].sum() == 7
        assert of.log_prob(parts)[1, 1].isneginf()
    assert of.beam(4).values[:, 1, 1].isneginf().all()
    value = of.log_prob(of.greedy())[0, 0]
    assert torch.autograd.grad(value, of.scores)[0].isfinite().all()


@pytest.mark.parametrize("choose", [straight_through, gumbel])
def test_gradients_of_choices(choose):
    """One-hot, allowed, and with the slope of a softmax over the allowed ones; none where there is no choice."""
    given = {} if choose is straight_through else {"generator": torch.Generator().manual_seed(5)}
    scores = torch.tensor([[1.0, 0.3], [2.0, torch.nan], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    allowed = torch.tensor([[True, True], [True, False], [False, False]])
    action = choose(scores, allowed, temperature=0.5, **given)
    noisy = scores.detach()
    if choose is gumbel:
        noisy = noisy + structmax.noise.Gumbel().like(noisy, torch.Generator().manual_seed(5))
        assert torch.equal(action, sample(scores, allowed, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(action, greedy(noisy, allowed))
    assert action[1:].tolist() == [[1, 0], [0, 0]]
    (slope,) = torch.autograd.grad(action[:, 0].sum(), scores)
    p = torch.softmax(noisy[0] / 0.5, -1)
    wanted = p[0] * p[1] / 0.5
    torch.testing.assert_close(slope, torch.stack([torch.stack([wanted, -wanted]), *torch.zeros(2, 2).double()]))


def test_a_policy_that_looks_at_its_stack():
    """Scores by the height of the stack, step by step; straight-through gradients reach what made them."""
    lengths = torch.tensor([5, 2, 0, 7])
    weights = torch.zeros(8, 2, dtype=torch.float64, requires_grad=True)
    state, actions = Transitions(lengths), []
    g = torch.Generator().manual_seed(0)
    for _ in range(13):
        actions.append(gumbel(weights[state.height], state.allowed(), generator=g))
        state = state.step(actions[-1])
    assert state.done().all()
    assert torch.equal(state.read, lengths)
    assert torch.equal(state.height, lengths.clamp_max(1))
    parts = torch.stack(actions, -2)
    structure = structmax.ShiftReduce(lengths)
    assert torch.equal(structmax.argmax(parts.detach(), structure), parts)
    parts[..., 1].mul(torch.arange(13)).sum().backward()
    assert weights.grad[2:].any()
    # With fewer than two trees there is no choice.
    assert not weights.grad[:2].any()


def test_whole_sequences_by_any_chooser():
    of = policy()
    of.scores.requires_grad_()
    parts = of.derive(straight_through)
    assert torch.equal(parts, of.greedy())
    (slope,) = torch.autograd.grad((parts * torch.arange(7).unsqueeze(-1))[..., 0].sum(), of.scores)
    assert slope.isfinite().all()
    assert slope.any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    ("structure", "shape"), [(structmax.ShiftReduce(), (7, 2)), (structmax.ProjectiveTree(single_root=True), (4, 4))]
)
def test_a_beam_of_all_is_the_straight_through_of_the_entropy(structure, shape, temperature):
    """Globally normalised: the values are the scores of all structures."""
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(3, *shape, generator=g, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, *shape, generator=g, dtype=torch.float64)
    every = structure.enumerate(scores[0].detach())
    # what no structure has is padding
    weights = weights * every.amax(0)
    estimator = structmax.estimators.StraightThrough(structmax.omega.Entropy(temperature))
    for k in (len(every), len(every) + 3):
        found = straight_through_beam(structmax.topk(scores, structure, k), temperature=temperature)
        wanted = structmax.surrogate(scores, structure, estimator)
        assert torch.equal(found, wanted)
        slopes = [torch.autograd.grad((z * weights).sum(), scores)[0] for z in (found, wanted)]
        torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("k", [2, 9])
def test_the_gradient_of_a_beam_is_that_of_its_mean(k, alpha):
    """By hand over the sequences that the beam has found, all of them for a wide one; and by finite differences."""
    of = policy()
    of.scores.requires_grad_()
    beam = of.beam(k)
    found = straight_through_beam(beam, alpha=alpha, temperature=0.7)
    assert torch.equal(found, beam.parts[0])
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (slope,) = torch.autograd.grad((found * weights).sum(), of.scores)
    wanted = torch.zeros_like(slope)
    for at, every, _ in derivations(of):
        kept = beam.parts[(slice(None), *at)][~beam.values[(slice(None), *at)].isneginf()]
        assert k < 5 or len(kept) == len(every)
        one = of.scores[at].detach().requires_grad_()
        values = Policy(one, of.lengths[at]).log_prob(kept)
        mean = (structmax.entmax(values / 0.7, alpha)[:, None, None] * kept).sum(0)
        (wanted[at],) = torch.autograd.grad((mean * weights[at]).sum(), one)
    assert slope.isfinite().all()
    assert slope.abs().sum() > 0.1
    torch.testing.assert_close(slope, wanted)


def test_the_backward_rule_of_a_beam():
    """gradcheck of the mean whose derivative is taken, which the values and constant parts alone decide."""
    g = torch.Generator().manual_seed(0)
    parts = (torch.rand(4, 3, 5, generator=g, dtype=torch.float64) < 0.5).double()
    values = torch.randn(4, 3, generator=g, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(3, 5, generator=g, dtype=torch.float64)

    def mean(values):
        return (structmax.softmax(values / 0.5, 0).unsqueeze(-1) * parts).sum(0)

    assert torch.autograd.gradcheck(mean, values)
    (wanted,) = torch.autograd.grad(mean(values), values, cotangent)
    (found,) = torch.autograd.grad(straight_through_beam((parts, values), temperature=0.5), values, cotangent)
    torch.testing.assert_close(found, wanted)


def test_a_beam_of_several_part_tensors_and_of_nothing():
    chain = structmax.LinearChain()
    unary = torch.zeros(2, 3, 2, requires_grad=True)
    forbidden = torch.stack([torch.zeros(3, 2), torch.full((3, 2), -torch.inf)])
    z = straight_through_beam(structmax.topk(chain.Parts(unary + forbidden, torch.zeros(2, 2)), chain, 9))
    assert type(z) is chain.Parts
    assert z.unary.shape == (2, 3, 2)
    assert z.unary.sum((1, 2)).tolist() == [3, 0]
    z.unary[0, 0, 0].backward()
    assert unary.grad[0].any()
    assert not unary.grad[1].any()


def test_a_stack_machine_learns_through_a_beam():
    spinn, leaves = structmax.nn.Spinn(3, 4), torch.randn(2, 4, 3)
    scores = spinn(leaves).scores
    actions = straight_through_beam(Policy(scores).beam(3))
    spinn(leaves, transitions=actions).root.sum().backward()
    assert spinn.score.weight.grad.any()


def test_nobody_there():
    of = Policy(torch.zeros(0, 5, 2))
    assert of.greedy().shape == of.sample().shape == (0, 5, 2)
    assert of.beam(3).parts.shape == (3, 0, 5, 2)
    assert of.log_prob(torch.zeros(0, 5, 2)).shape == (0,)


def test_not_a_number_stays_in_its_instance():
    scores = torch.zeros(2, 5, 2)
    scores[0, 2, 0] = torch.nan
    parts = structmax.ShiftReduce().encode(torch.tensor([0, 0, 1, 0, 1]))
    assert Policy(scores).log_prob(parts.expand(2, 5, 2)).isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Policy(torch.zeros(4, 2)), ValueError, r"\(…, 2N − 1, 2\)"),
        (lambda: Policy(torch.zeros(5, 2), torch.tensor(4)), ValueError, "leaves"),
        (lambda: Policy(torch.zeros(5, 2)).beam(0), ValueError, "`k`"),
        (lambda: Transitions(torch.tensor([1.5])), TypeError, "`lengths` should be an integer tensor"),
        (lambda: Transitions(3).step(torch.tensor([0.0, 1.0])), ValueError, "reduces fewer than two trees. Try"),
        (lambda: log_probs(torch.zeros(2), torch.ones(2)), TypeError, "`allowed` should be a bool tensor"),
        (lambda: straight_through_beam(Policy(torch.zeros(5, 2)).beam(2), temperature=0), ValueError, "`temperature`"),
        (
            lambda: straight_through(torch.zeros(2), torch.ones(2, dtype=torch.bool), temperature=0.0),
            ValueError,
            "`temperature`",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_straight_through_a_beam_of_named_parts_and_what_is_no_beam():
    y, values = torch.eye(3), torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    found = straight_through_beam(({"word": y}, values))
    torch.testing.assert_close(found["word"], torch.tensor([1.0, 0.0, 0.0]))
    with pytest.raises(TypeError, match="`parts` should be floating point"):
        straight_through_beam((torch.zeros(3, 2, dtype=torch.long), values))
    with pytest.raises(ValueError, match=r"begin with the shape \(3,\) of its values"):
        straight_through_beam((torch.zeros(2, 2), values))
