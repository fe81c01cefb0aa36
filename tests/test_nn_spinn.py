"""SPINN equals a stack machine written for one instance at a time, outputs and gradients."""

import functools

import pytest
import torch
from torch import Tensor, nn

import structmax
from structmax.incremental import Policy, greedy, gumbel, sample, straight_through

LENGTHS = torch.tensor([4, 1, 6, 3])
N = 6


def machine(**sizes: int) -> structmax.nn.Spinn:
    torch.manual_seed(0)
    return structmax.nn.Spinn(3, 4, **sizes).double()


def normal(*shape: int, requires_grad: bool = False) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_(requires_grad)


def drawn(lengths: Tensor = LENGTHS, leaves: int = N) -> Tensor:
    """Actions of random trees."""
    even = torch.zeros(*lengths.shape, 2 * leaves - 1, 2, dtype=torch.float64)
    return Policy(even, lengths).sample(generator=torch.Generator().manual_seed(2))


def one_by_one(spinn: structmax.nn.Spinn, leaves: Tensor, given: Tensor | None = None, choose=None):
    """Root, scores and actions of one instance, with a Python list for its stack."""
    H, K = spinn.hidden_size, spinn.tracker_size
    empty = (leaves.new_zeros(H), leaves.new_zeros(H))
    buffer, stack = [row.split(H) for row in spinn.leaf(leaves)], []
    h, c = leaves.new_zeros(K), leaves.new_zeros(K)
    scores, actions = [], []
    for t in range(2 * len(leaves) - 1):
        ahead = buffer[0] if buffer else empty
        second, top = [empty, empty, *stack][-2:]
        sums = spinn.look_ahead(ahead[0]) + spinn.track(torch.cat([h, second[0], top[0]]))
        o, i, f, g = sums.split(K)
        c = i.sigmoid() * g.tanh() + f.sigmoid() * c
        h = o.sigmoid() * c.tanh()
        scores.append(spinn.score(h))
        allowed = torch.tensor([bool(buffer), len(stack) > 1])
        actions.append(choose(scores[t], allowed) if given is None else given[t] * allowed)
        new = [actions[t][0] * state for state in ahead]
        if len(stack) > 1:
            o, i, left, right, g = spinn.compose(torch.cat([second[0], top[0], h])).split(H)
            cell = i.sigmoid() * g.tanh() + left.sigmoid() * second[1] + right.sigmoid() * top[1]
            composed = (o.sigmoid() * cell.tanh(), cell)
            new = [n + actions[t][1] * state for n, state in zip(new, composed, strict=True)]
        if actions[t][0] > 0:
            buffer.pop(0)
        else:
            del stack[-2:]
        stack.append(new)
    return stack[0][0], torch.stack(scores), torch.stack(actions)


def close(found, wanted) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def compared(spinn: structmax.nn.Spinn, leaves: Tensor, given: Tensor | None = None, choose=None) -> None:
    """All outputs, and the gradients by everything of a random combination of them."""
    built = spinn(leaves, LENGTHS, given, choose or greedy)
    weights = [normal(*t.shape) for t in built]
    inputs = [leaves, *spinn.parameters(), *([given] if given is not None and given.requires_grad else [])]
    total = sum((w * t).sum() for w, t in zip(weights, built, strict=True))
    wanted_total = 0.0
    for b, n in enumerate(LENGTHS.tolist()):
        steps = 2 * n - 1
        wanted = one_by_one(spinn, leaves[b, :n], None if given is None else given[b, :steps], choose)
        for w, found, expected in zip(weights, built, wanted, strict=True):
            close(found[b, : len(expected)], expected)
            wanted_total = wanted_total + (w[b, : len(expected)] * expected).sum()
        assert not built.scores[b, steps:].any()
        assert not built.actions[b, steps:].any()
    close(torch.autograd.grad(total, inputs), torch.autograd.grad(wanted_total, inputs))


@pytest.mark.parametrize("tracker_size", [None, 5])
@pytest.mark.parametrize("choose", [greedy, straight_through, functools.partial(straight_through, temperature=0.3)])
def test_chosen(choose, tracker_size) -> None:
    compared(machine(tracker_size=tracker_size), normal(4, N, 3, requires_grad=True), choose=choose)


@pytest.mark.parametrize("learnt", [False, True])
def test_given(learnt) -> None:
    compared(machine(tracker_size=2), normal(4, N, 3, requires_grad=True), drawn().requires_grad_(learnt))


def test_gradcheck() -> None:
    spinn, parts = machine(tracker_size=2), drawn()
    names = list(dict(spinn.named_parameters()))

    def outputs(leaves: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(spinn, parameters, (leaves, LENGTHS, parts))[:2]

    assert torch.autograd.gradcheck(outputs, (normal(4, N, 3, requires_grad=True), *spinn.parameters()), fast_mode=True)


@pytest.mark.parametrize("choose", [sample, gumbel])
def test_chance(choose) -> None:
    """With the actions that were drawn it builds the same."""
    spinn, leaves = machine(), normal(4, N, 3)
    built = spinn(leaves, LENGTHS, choose=functools.partial(choose, generator=torch.Generator().manual_seed(0)))
    again = spinn(leaves, LENGTHS, built.actions)
    for found, wanted in zip(built, again, strict=True):
        close(found, wanted)
    assert Policy(built.scores, LENGTHS).log_prob(built.actions).isfinite().all()
    assert built.actions.requires_grad == (choose is gumbel)


def test_a_policy_learns_to_follow() -> None:
    torch.manual_seed(0)
    spinn, leaves, parts = structmax.nn.Spinn(3, 8), normal(4, N, 3).float(), drawn().float()
    optimiser = torch.optim.Adam(spinn.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        loss = -Policy(spinn(leaves, LENGTHS, parts).scores, LENGTHS).log_prob(parts).mean()
        loss.backward()
        optimiser.step()
    assert torch.equal(spinn(leaves, LENGTHS).actions, parts)


def test_surrogate_transitions_get_a_gradient() -> None:
    spinn, scores = machine(), normal(4, 2 * N - 1, 2, requires_grad=True)
    parts = structmax.surrogate(scores, structmax.ShiftReduce(LENGTHS), structmax.estimators.Spigot())
    spinn(normal(4, N, 3), LENGTHS, parts).root.sum().backward()
    past = torch.arange(2 * N - 1)[:, None] >= 2 * LENGTHS[:, None, None] - 1
    assert scores.grad is not None
    assert scores.grad.any()
    assert not scores.grad.masked_select(past.expand_as(scores)).any()


@pytest.mark.parametrize("choose", [greedy, straight_through])
def test_padding(choose) -> None:
    spinn, leaves = machine(), normal(4, N, 3)
    padding = torch.arange(N)[:, None] >= LENGTHS[:, None, None]
    junk = leaves.masked_fill(padding, torch.nan).requires_grad_()
    built = spinn(junk, LENGTHS, choose=choose)
    for found, wanted in zip(built, spinn(leaves, LENGTHS, choose=choose), strict=True):
        assert torch.equal(found, wanted)
    (built.root.sum() + built.scores.sum()).backward()
    assert junk.grad is not None
    assert not junk.grad.masked_select(padding.expand_as(junk)).any()
    assert junk.grad.isfinite().all()


def test_batch_shapes() -> None:
    spinn, leaves = machine(), normal(2, 2, N, 3)
    built = spinn(leaves, LENGTHS.reshape(2, 2))
    flat = spinn(leaves.flatten(0, 1), LENGTHS)
    for found, wanted in zip(built, flat, strict=True):
        assert torch.equal(found.flatten(0, 1), wanted)
    alone = spinn(leaves[1, 0])
    assert [tuple(t.shape) for t in alone] == [(4,), (11, 2), (11, 2)]
    close(alone.root, built.root[1, 0])
    nothing = spinn(leaves[:0].flatten(0, 1), LENGTHS[:0], choose=straight_through)
    assert [tuple(t.shape) for t in nothing] == [(0, 4), (0, 11, 2), (0, 11, 2)]
    nothing.root.sum().backward()


def test_one_leaf_and_none() -> None:
    spinn, leaves = machine(), normal(2, 1, 3)
    built = spinn(leaves, torch.tensor([1, 0]))
    close(built.root[0], spinn.leaf(leaves[0, 0])[:4])
    assert not built.root[1].any()
    assert built.actions.tolist() == [[[1.0, 0.0]], [[0.0, 0.0]]]


def test_half_precision() -> None:
    spinn, leaves = structmax.nn.Spinn(3, 4), normal(4, N, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        built = spinn(leaves, LENGTHS, drawn().float())
    assert built.root.dtype == torch.bfloat16
    close_enough = {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(built.root.float(), spinn(leaves, LENGTHS, drawn().float()).root, **close_enough)
    built.root.float().sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in spinn.parameters())


def test_backward_again_but_no_second_derivative() -> None:
    spinn, leaves = machine(), normal(4, N, 3, requires_grad=True)
    root = spinn(leaves, LENGTHS, choose=straight_through).root.sum()
    (first,) = torch.autograd.grad(root, leaves, retain_graph=True)
    (again,) = torch.autograd.grad(root, leaves, retain_graph=True)
    assert torch.equal(first, again)
    with pytest.raises(RuntimeError, match="should be taken once, but create_graph=True"):
        torch.autograd.grad(root, leaves, create_graph=True)


def test_errors() -> None:
    spinn, leaves = machine(), normal(4, N, 3)
    with pytest.raises(TypeError, match="`leaves` should be floating point"):
        spinn(leaves.long())
    with pytest.raises(ValueError, match=r"`leaves` should have shape \(…, N, D\) with N ≥ 1 and D = 3"):
        spinn(normal(4, N, 2))
    with pytest.raises(ValueError, match="`lengths` should be between 0 and 6, the number of leaves"):
        spinn(leaves, LENGTHS + 1)
    with pytest.raises(ValueError, match=r"`transitions` should have shape .* = \(4, 11, 2\), but have \(4, 11\)"):
        spinn(leaves, LENGTHS, torch.zeros(4, 11))
    for sizes in ((0, 4), (3, 0), (3, 4, 0)):
        with pytest.raises(ValueError, match="_size` should be a whole number ≥ 1, but is 0"):
            structmax.nn.Spinn(*sizes)
    wrong = drawn()
    wrong[2, -1] = 0
    with pytest.raises(ValueError, match=r"build one tree .* but instance \(2,\) does not"):
        spinn(leaves, LENGTHS, wrong)


def test_repr() -> None:
    assert repr(structmax.nn.Spinn(3, 4)).startswith("Spinn(\n  3, 4, tracker_size=4")
    assert isinstance(structmax.nn.Spinn(3, 4), nn.Module)
