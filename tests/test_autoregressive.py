"""Models that score the next action, against all their sequences, listed one by one."""

import itertools
import math

import pytest
import torch

import structmax
from structmax.incremental import Autoregressive, Distinct, Policy, Sequences
from structmax.testing.chance import chi_squared

A, STEPS, END = 3, 3, 2
LENGTHS = torch.tensor([3, 2, 0, 1])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


class Network:
    """A recurrent network with random weights, that keeps in its state what it was given too."""

    def __init__(self, forbid=()) -> None:
        self.table, self.matrix, self.out = normal(1, A, 5), normal(2, 5, 5), normal(3, 5, A).requires_grad_()
        self.forbid, self.calls = forbid, []

    def step(self, actions, state):
        hidden = (self.table[actions] + state["hidden"] @ self.matrix).tanh()
        seen = torch.cat([state["more"][0], actions.unsqueeze(-1)], -1)
        scores = 2 * hidden @ self.out
        for history, action in self.forbid:
            if seen.shape[1] == 1 + len(history):
                here = (seen[:, 1:] == torch.tensor(history)).all(-1, keepdim=True)
                scores = torch.where(here & (torch.arange(A) == action), -math.inf, scores)
        self.calls.append(len(actions))
        return scores, {"hidden": hidden, "more": (seen, state["more"][1] + 1, None)}


def model(lengths=LENGTHS, end=END, network=None, rows=None) -> Autoregressive:
    network = Network() if network is None else network
    hidden = normal(4, 4, 5) if rows is None else normal(4, 4, 5)[rows]
    count = len(hidden)
    state = {"hidden": hidden, "more": (torch.empty(count, 0, dtype=torch.long), 0, None)}
    return Autoregressive(network.step, torch.zeros(count, dtype=torch.long), state, STEPS, end=end, lengths=lengths)


def listed(of: Autoregressive):
    """For each instance its sequences (n, steps) and their log p, a prefix after the other."""
    most = of.most.tolist()
    for b in range(len(of.begin)):
        found, values = [], []

        def go_on(prefix, state, last, value, b=b, found=found, values=values):
            if len(prefix) == most[b] or (prefix and prefix[-1] == of.end):
                found.append(prefix + [-1] * (STEPS - len(prefix)))
                values.append(value)
                return
            scores, after = of.step(last, state)
            for action, log_p in enumerate(scores[0].log_softmax(-1)):
                go_on([*prefix, action], after, torch.tensor([action]), value + log_p)

        hidden, (seen, number, none) = of.state["hidden"][b : b + 1], of.state["more"]
        state = {"hidden": hidden, "more": (seen[b : b + 1], number, none)}
        go_on([], state, of.begin[b : b + 1], torch.zeros((), dtype=torch.float64))
        yield torch.tensor(found), torch.stack(values)


each_kind = pytest.mark.parametrize(
    ("lengths", "end"),
    [(None, None), (None, END), (LENGTHS, None), (LENGTHS, END)],
    ids=["all", "end", "lengths", "both"],
)


@each_kind
def test_log_prob(lengths, end):
    of = model(lengths, end)
    for b, (every, wanted) in enumerate(listed(of)):
        found = of.log_prob(every.unsqueeze(1).expand(-1, 4, -1))
        torch.testing.assert_close(found[:, b], wanted)
        torch.testing.assert_close(found[:, b].exp().sum(), torch.ones((), dtype=torch.float64))
    # all sequences there could be: those that are none have probability 0
    anything = torch.tensor(list(itertools.product(range(-1, A), repeat=STEPS)))
    found = of.log_prob(anything.unsqueeze(1).expand(-1, 4, -1))
    for b, (every, _) in enumerate(listed(of)):
        is_one = (anything.unsqueeze(1) == every).all(-1).any(1)
        assert torch.equal(~found[:, b].isneginf(), is_one)


def test_shorter_tensors_of_actions():
    of = model(torch.tensor([1, 0, 1, 1]))
    actions = torch.tensor([[0], [-1], [2], [-1]])
    found = of.log_prob(actions)
    assert found.isneginf().tolist() == [False, False, False, True]
    torch.testing.assert_close(found, of.log_prob(torch.nn.functional.pad(actions, (0, 2), value=-1)))


@each_kind
@pytest.mark.parametrize("k", [1, 2, 27, 30])
def test_beam(lengths, end, k):
    """With room for every prefix it is the list of all sequences, best first; never more than there are."""
    of = model(lengths, end)
    best = of.beam(k)
    assert type(best) is Sequences
    torch.testing.assert_close(
        of.log_prob(best.actions)[~best.log_probs.isneginf()], best.log_probs[best.log_probs > -math.inf]
    )
    for b, (every, wanted) in enumerate(listed(of)):
        values, actions = best.log_probs[:, b], best.actions[:, b]
        filled = ~values.isneginf()
        assert bool((actions[~filled] == -1).all())
        assert bool((values[filled].diff() <= 0).all())
        assert len(actions[filled].unique(dim=0)) == int(filled.sum()) <= len(every)
        if k >= 27:
            ordered = wanted.sort(descending=True)
            assert int(filled.sum()) == len(every)
            torch.testing.assert_close(values[filled], ordered.values)
            assert torch.equal(actions[filled], every[ordered.indices])


@each_kind
def test_greedy(lengths, end):
    of = model(lengths, end)
    found = of.greedy()
    torch.testing.assert_close(found.log_probs, of.log_prob(found.actions))
    best = of.beam(1)
    assert torch.equal(best.actions[0], found.actions)
    torch.testing.assert_close(best.log_probs[0], found.log_probs)
    # by hand, for the first instance
    first = model(rows=[0], lengths=None, end=end)
    last, state = first.begin, first.state
    for action in found.actions[0]:
        scores, state = first.step(last, state)
        assert action == scores.argmax()
        last = action.reshape(1)
        if action == end:
            break


def test_draws_have_their_frequencies():
    of = model()
    drawn = of.sample((50, 80), generator=seeded(1))
    assert drawn.actions.shape == (50, 80, 4, STEPS)
    torch.testing.assert_close(of.log_prob(drawn.actions), drawn.log_probs)
    for b, (every, wanted) in enumerate(listed(of)):
        index = (drawn.actions[:, :, b].flatten(0, 1).unsqueeze(1) == every).all(-1)
        assert bool((index.sum(1) == 1).all())
        chi_squared("sample", index.unsqueeze(1), wanted.detach().exp().unsqueeze(0))


@each_kind
def test_without_replacement_all_are_drawn_once(lengths, end):
    of = model(lengths, end)
    drawn = of.sample_without_replacement(30, generator=seeded(2))
    assert type(drawn) is Distinct
    for b, (every, wanted) in enumerate(listed(of)):
        filled = ~drawn.log_probs[:, b].isneginf()
        assert int(filled.sum()) == len(every)
        same = (drawn.actions[:, b][filled].unsqueeze(1) == every).all(-1)
        assert bool((same.sum(0) == 1).all())
        torch.testing.assert_close(drawn.log_probs[:, b][filled], wanted[same.long().argmax(1)])
        assert bool((drawn.perturbed[:, b][filled].diff() <= 0).all())
        assert bool(drawn.perturbed[:, b][~filled].isneginf().all())


@pytest.mark.parametrize("kept", [2, 5])
def test_without_replacement_the_first_two_are_distributed_as_they_should(kept):
    """Many copies of an instance; a wide beam draws the same as a narrow one."""
    draws = 4000
    of = model(lengths=None, rows=[0] * draws)
    drawn = of.sample_without_replacement(kept, generator=seeded(3))
    every, wanted = next(listed(model(lengths=None, rows=[0])))
    prob = wanted.detach().exp()
    first, second = ((drawn.actions[i].unsqueeze(1) == every).all(-1) for i in range(2))
    chi_squared("the first", first.unsqueeze(1), prob.unsqueeze(0))
    pairs = (prob[:, None] * prob / (1 - prob[:, None])).fill_diagonal_(0.0).flatten()
    joint = (first.unsqueeze(-1) & second.unsqueeze(-2)).flatten(1)
    chi_squared("the first two", joint.unsqueeze(1), pairs.unsqueeze(0))
    # the highest of all is a standard Gumbel, whatever it belongs to: mean 0.5772, variance π² / 6
    highest = drawn.perturbed[0]
    assert abs(highest.mean() - 0.5772) < 4 * math.pi / math.sqrt(6 * draws)
    assert abs(highest.var() - math.pi**2 / 6) < 0.25


def test_what_is_forbidden_and_dead_ends():
    """After 0 nothing is possible, after 1 not 1: probability is lost, and what breaks off is not returned."""
    network = Network([([0], 0), ([0], 1), ([0], 2), ([1], 1)])
    of = model(lengths=torch.tensor([3, 3, 3, 1]), network=network)
    broken = torch.tensor([[0, 0, 0], [1, 1, 1]]).unsqueeze(1).expand(-1, 4, -1)
    assert of.log_prob(broken).isneginf().all()
    drawn = of.sample((200,), generator=seeded(4))
    lost = drawn.log_probs.isneginf()
    assert lost.any(0).tolist() == [True, True, True, False]
    assert bool((drawn.actions[lost] == -1).all())
    kept = drawn.actions[:, :3][~lost[:, :3]]
    assert bool((kept[:, 0] > 0).all())
    assert not bool((kept[:, :2] == 1).all(-1).any())
    for found in (of.beam(30), of.sample_without_replacement(30, generator=seeded(5))):
        there = ~found.log_probs.isneginf()
        torch.testing.assert_close(of.log_prob(found.actions)[there], found.log_probs[there])
        assert there.sum(0).tolist() == [1 + 1 + A, 1 + 1 + A, 1 + 1 + A, A]
    loss = found.log_probs[there].sum()
    assert torch.autograd.grad(loss, network.out)[0].isfinite().all()


def test_gradients():
    network = Network()
    of = model(network=network)
    actions = of.beam(4).actions

    def log_prob(out):
        network.out = out
        return of.log_prob(actions).clamp_min(-1e3)

    out = network.out.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(log_prob, out)
    assert torch.autograd.gradgradcheck(log_prob, out)
    for found in (
        of.beam(4),
        of.sample((4,), generator=seeded()),
        of.sample_without_replacement(4, generator=seeded()),
    ):
        there = ~found.log_probs.isneginf()
        slopes = [torch.autograd.grad(t[there].sum(), out)[0] for t in (found.log_probs, of.log_prob(found.actions))]
        torch.testing.assert_close(*slopes)


def test_the_state_goes_with_the_beam_and_the_model_is_called_once_a_step():
    network = Network()
    of = model(lengths=None, end=None, network=network)
    states = []

    def step(actions, state):
        scores, after = network.step(actions, state)
        states.append(after["more"])
        return scores, after

    found = Autoregressive(step, of.begin, of.state, STEPS).beam(5)
    # 1, then 3, then 5 prefixes of each of four instances
    assert network.calls == [4, 12, 20]
    seen, number, none = states[-1]
    assert (number, none) == (STEPS, None)
    # what the last step had seen: the begin symbol, and the prefixes that were kept
    prefixes = {tuple(row) for row in seen[:, 1:].tolist()}
    assert {tuple(row) for row in found.actions[..., :-1].flatten(0, 1).tolist()} <= prefixes


def test_it_stops_when_all_is_over():
    network = Network()
    of = model(lengths=torch.tensor([1, 1, 0, 1]), network=network)
    for ask in (of.greedy, of.sample, lambda: of.beam(2), lambda: of.sample_without_replacement(2)):
        network.calls.clear()
        assert ask().actions.shape[-1] == STEPS
        assert len(network.calls) == 1


def test_best_of():
    of = model()
    drawn, best = of.sample((20,), generator=seeded(6)), of.best_of(20, generator=seeded(6))
    torch.testing.assert_close(best.log_probs, drawn.log_probs.amax(0))
    torch.testing.assert_close(of.log_prob(best.actions), best.log_probs)
    longest = of.best_of(20, lambda actions: (actions >= 0).sum(-1), generator=seeded(6))
    assert torch.equal((longest.actions >= 0).sum(-1), (drawn.actions >= 0).sum(-1).amax(0))


def test_a_policy_is_a_model():
    lengths = torch.tensor([[4, 2], [0, 3]])
    policy = Policy(normal(7, 2, 2, 7, 2), lengths)
    drawn = policy.sample_without_replacement(6, generator=seeded())
    torch.testing.assert_close(
        policy.log_prob(drawn.parts)[~drawn.log_probs.isneginf()], drawn.log_probs[drawn.log_probs > -math.inf]
    )
    # Catalan numbers
    assert (~drawn.log_probs.isneginf()).sum(0).tolist() == [[5, 1], [1, 2]]
    actions = structmax.ShiftReduce().decode(drawn.parts)
    there = ~drawn.log_probs.isneginf()
    torch.testing.assert_close(
        policy.model.log_prob(actions.reshape(6, 4, 7)).reshape(6, 2, 2)[there], drawn.log_probs[there]
    )


def test_nobody_there_and_half_precision():
    of = Autoregressive(lambda actions, state: (torch.zeros(len(actions), 3), state), torch.zeros(0).long(), None, 4)
    assert of.greedy().actions.shape == (0, 4)
    assert of.sample((2,)).log_probs.shape == (2, 0)
    assert of.beam(3).actions.shape == of.sample_without_replacement(3).actions.shape == (3, 0, 4)
    assert of.log_prob(torch.zeros(2, 0, 4).long()).shape == (2, 0)
    half = Autoregressive(
        lambda actions, state: (torch.zeros(len(actions), 3).bfloat16(), state), torch.zeros(1).long(), None, 4
    )
    torch.testing.assert_close(half.greedy().log_probs, torch.tensor([-4 * math.log(3)]))


def test_not_a_number_stays_in_its_instance():
    def step(actions, state):
        return torch.where(state.unsqueeze(-1) == 0, math.nan, torch.zeros(len(actions), 3)), state

    of = Autoregressive(step, torch.zeros(2).long(), torch.arange(2), 2)
    found = of.log_prob(torch.tensor([[0, 1], [0, 1]]))
    assert found.isnan().tolist() == [True, False]
    for log_probs in (of.greedy().log_probs, of.beam(2).log_probs[0], of.sample().log_probs):
        torch.testing.assert_close(log_probs[1], torch.tensor(-2 * math.log(3)))


def test_it_prints_in_a_line():
    assert repr(model()) == "Autoregressive(step; batch (4,), at most 3 steps, end 2)"
    assert repr(model().beam(2)).startswith("Sequences(actions: (2, 4, 3)")
    assert repr(model().sample_without_replacement(2)).startswith("Distinct(actions: (2, 4, 3)")


def scored(*shape):
    return lambda actions, state: (torch.zeros(shape), state)


ONE = torch.zeros(1).long()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: Autoregressive(lambda actions: None, ONE, None, 2),
            TypeError,
            r"`step` is called as step\(actions, st",
        ),
        (lambda: Autoregressive(scored(1, 2), torch.zeros(1), None, 2), TypeError, "`begin` should be an integer"),
        (lambda: Autoregressive(scored(1, 2), ONE[0], None, 2), ValueError, r"`begin` should have shape \(B,\)"),
        (lambda: Autoregressive(scored(1, 2), ONE, None, 0), ValueError, "`steps` should be a whole number ≥ 1"),
        (lambda: Autoregressive(scored(1, 2), ONE, None, 2, end=-1), ValueError, "`end` should be a whole number ≥ 0"),
        (
            lambda: Autoregressive(scored(1, 2), ONE, None, 2, lengths=ONE + 3),
            ValueError,
            "`lengths` should be between",
        ),
        (
            lambda: Autoregressive(scored(1, 2), ONE, torch.zeros(2, 1, 4), 2),
            ValueError,
            r"tensors of `state` should have the 1 sequences in front, but one has the shape \(2, 1, 4\)\. Try tra",
        ),
        (lambda: Autoregressive(scored(2, 2), ONE, None, 2).greedy(), ValueError, r"scores of shape \(1, A\)"),
        (
            lambda: Autoregressive(lambda a, s: (torch.zeros(1, 2), ONE.expand(2)), ONE, None, 2).greedy(),
            ValueError,
            "the state that `step` returns should have the 1 sequences",
        ),
        (lambda: Autoregressive(scored(1, 2), ONE, None, 2).beam(0), ValueError, "`k`"),
        (lambda: Autoregressive(scored(1, 2), ONE, None, 2).sample_without_replacement(0), ValueError, "`k`"),
        (lambda: Autoregressive(scored(1, 2), ONE, None, 2).best_of(0), ValueError, "`n`"),
        (
            lambda: Autoregressive(scored(3, 2), ONE, None, 1).best_of(3, lambda a: a.sum()),
            ValueError,
            r"`value` should return numbers of shape \(3, 1\)",
        ),
        (lambda: model().log_prob(torch.zeros(3, 3).long()), ValueError, r"`actions` should have shape \(…, 4, T\)"),
        (lambda: model().log_prob(torch.zeros(4, 3)), TypeError, "`actions` should be an integer tensor"),
        (lambda: model().log_prob(torch.full((4, 3), 7)), ValueError, "`actions` should be below 3"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()


def constant(actions, state):
    return torch.zeros(len(actions), A), state


def test_actions_of_any_integers():
    model = Autoregressive(constant, torch.tensor([0, 0]), None, 2)
    actions = torch.tensor([[0, 1], [2, 0]])
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(model.log_prob(actions.to(dtype)), model.log_prob(actions))


def test_best_of_those_that_pass_a_test():
    model = Autoregressive(constant, torch.tensor([0, 0]), None, 2)
    best = model.best_of(50, lambda actions: actions[..., 0] == 1, generator=seeded())
    assert best.actions[:, 0].tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"`value` should return a tensor, .* but returned a float"):
        model.best_of(2, lambda actions: 1.0)


def test_a_sample_shape_is_a_tuple():
    model = Autoregressive(constant, torch.tensor([0, 0]), None, 2)
    with pytest.raises(TypeError, match=r"`sample_shape` should be a tuple of sizes, but is 3. Try \(3,\)"):
        model.sample(3)
    with pytest.raises(TypeError, match="`sample_shape` should be a tuple of sizes"):
        Policy(torch.zeros(3, 2)).sample(3)
