"""Tree-LSTMs against a recursion over each tree by itself."""

import functools
import itertools

import pytest
import torch

import structmax
from structmax import incremental
from structmax.nn import BinaryTreeLSTM, MergeParser, PyramidTreeLSTM

LENGTHS = torch.tensor([7, 1, 3, 0, 5, 2])
B, N, D, H = 6, 7, 4, 3


@pytest.fixture
def lstm():
    torch.manual_seed(0)
    return BinaryTreeLSTM(D, H).double()


@pytest.fixture
def inputs():
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def scores():
    return torch.randn(B, N, N, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def recursive(lstm, inputs, spans, i, j):
    """h and c of span [i, j] of one tree, by the formula."""
    if i == j:
        return lstm.leaf(inputs[i]).chunk(2)
    (split,) = [k for k in range(i, j) if spans[i, k] > 0 and spans[k + 1, j] > 0]
    left, right = recursive(lstm, inputs, spans, i, split), recursive(lstm, inputs, spans, split + 1, j)
    entry, keep_left, keep_right, out, new = lstm.pair(torch.cat([left[0], right[0]])).chunk(5)
    c = entry.sigmoid() * new.tanh() + keep_left.sigmoid() * left[1] + keep_right.sigmoid() * right[1]
    return out.sigmoid() * c.tanh(), c


def by_itself(lstm, inputs, spans, lengths):
    rows = zip(inputs, spans, lengths.tolist(), strict=True)
    return torch.stack([recursive(lstm, x, z, 0, n - 1)[0] if n else x.new_zeros(H) for x, z, n in rows])


@pytest.mark.parametrize("relaxed", [False, True])
def test_many_trees_at_once_are_as_each_by_itself(lstm, inputs, scores, relaxed):
    spans = structmax.argmax(scores, structmax.BinaryTree(LENGTHS))
    inputs.requires_grad_()
    leaves = (inputs, *lstm.parameters())
    weight = torch.randn(B, H, dtype=torch.float64)
    answers = [lstm(inputs, spans, relaxed=relaxed), by_itself(lstm, inputs, spans, LENGTHS)]
    torch.testing.assert_close(*answers)
    ours, wanted = (torch.autograd.grad((answer * weight).sum(), leaves) for answer in answers)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_deep_trees(lstm):
    for chain in ("left", "right"):
        spans = torch.eye(60, dtype=torch.float64)[None].clone()
        spans[0, 0, :] = 1.0
        spans = spans if chain == "left" else spans.mT.flip(-1).flip(-2)
        inputs = torch.randn(1, 60, D, dtype=torch.float64)
        torch.testing.assert_close(lstm(inputs, spans), by_itself(lstm, inputs, spans, torch.tensor([60])))


def test_gradients_of_relaxed_trees(lstm, inputs, scores):
    soft = structmax.marginals(scores[:1], structmax.BinaryTree()).requires_grad_()
    words = inputs[:1].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, z, *_: lstm(x, z, relaxed=True), (words, soft, *lstm.parameters()), fast_mode=True
    )


def test_a_mixture_of_trees_that_differ_in_one_rotation(lstm, inputs):
    # ((0 1) 2) and (0 (1 2)): the root's halves are averages of theirs
    trees = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    trees[:, 0, 2] = trees[0, 0, 1] = trees[1, 1, 2] = 1.0
    x = inputs[:1, :3]
    leaves = lstm.leaves(x[0])
    state = structmax.nn.tree_cell.State
    pair = [lstm.compose(state(leaves.h[i], leaves.c[i]), state(leaves.h[i + 1], leaves.c[i + 1])) for i in range(2)]
    # the shares of both splits of [0, 2] are z[0, 1] z[2, 2] and z[0, 0] z[1, 2]
    soft = 0.3 * trees[0] + 0.7 * trees[1]
    left = state(*(0.7 * leaf[0] + 0.3 * joint for leaf, joint in zip(leaves, pair[0], strict=True)))
    right = state(*(0.7 * joint + 0.3 * leaf[2] for leaf, joint in zip(leaves, pair[1], strict=True)))
    torch.testing.assert_close(lstm(x, soft[None], relaxed=True)[0], lstm.compose(left, right).h)


@pytest.mark.parametrize("relaxed", [False, True])
def test_padding_may_hold_anything(lstm, inputs, scores, relaxed):
    spans = structmax.argmax(scores, structmax.BinaryTree(LENGTHS))
    outside = torch.arange(N) >= LENGTHS.unsqueeze(-1)
    spoilt = inputs.masked_fill(outside.unsqueeze(-1), torch.nan).requires_grad_()
    out = lstm(spoilt, spans, relaxed=relaxed)
    torch.testing.assert_close(out, lstm(inputs, spans))
    (gradient,) = torch.autograd.grad(out.sum(), spoilt)
    assert (gradient[outside] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("relaxed", [False, True])
def test_any_batch_shape(lstm, inputs, scores, relaxed):
    spans = structmax.argmax(scores, structmax.BinaryTree(LENGTHS))
    out = lstm(inputs, spans, relaxed=relaxed)
    torch.testing.assert_close(
        lstm(inputs.unflatten(0, (2, 3)), spans.unflatten(0, (2, 3)), relaxed=relaxed).flatten(0, 1), out
    )
    torch.testing.assert_close(lstm(inputs[0], spans[0], relaxed=relaxed), out[0])
    assert lstm(inputs[:0], spans[:0], relaxed=relaxed).shape == (0, H)


def test_nodes_come_in_the_order_of_decode(lstm, inputs, scores):
    trees = structmax.BinaryTree(LENGTHS)
    spans = structmax.argmax(scores, trees)
    nodes = lstm.nodes(inputs, spans)
    for row, places in enumerate(trees.decode(spans).tolist()):
        for state, (i, j) in zip(nodes[row], places, strict=True):
            wanted = recursive(lstm, inputs[row], spans[row], i, j)[0] if i >= 0 else torch.zeros_like(state)
            torch.testing.assert_close(state, wanted)


def test_half_precision_around_it(scores):
    lstm = BinaryTreeLSTM(D, H)
    words, spans = torch.randn(B, N, D), structmax.argmax(scores.float(), structmax.BinaryTree(LENGTHS))
    with torch.autocast("cpu", torch.bfloat16):
        for relaxed in (False, True):
            out = lstm(words, spans, relaxed=relaxed)
            assert out.dtype == torch.float32
            out.sum().backward()
        choosing, parser = PyramidTreeLSTM(D, H), MergeParser(D, H)
        seen = []
        choosing(words, LENGTHS, choose=lambda x, there: (seen.append(x.dtype), incremental.greedy(x, there))[1])
        built = choosing(words, LENGTHS)
        steps = parser(words, parser.derive(words, LENGTHS, incremental.sample))
    assert built.root.dtype == steps.log_probs.dtype == torch.float32
    assert set(seen) == {torch.float32}
    (built.root.sum() + steps.log_probs.sum()).backward()
    assert all(p.grad is not None for module in (choosing, parser) for p in module.parameters())


@pytest.mark.parametrize("relaxed", [False, True])
def test_trees_in_another_precision(scores, relaxed):
    torch.manual_seed(0)
    lstm, words = BinaryTreeLSTM(D, H), torch.randn(B, N, D)
    spans = structmax.argmax(scores, structmax.BinaryTree(LENGTHS))
    out = lstm(words, spans.float(), relaxed=relaxed)
    assert torch.equal(lstm(words, spans, relaxed=relaxed), out)
    half = lstm.to(torch.bfloat16)(words.bfloat16(), spans.bfloat16(), relaxed=relaxed)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), out, rtol=0.1, atol=0.1)


def test_errors(lstm, inputs, scores):
    trees = structmax.BinaryTree(LENGTHS)
    with pytest.raises(ValueError, match=r"should hold binary trees.*relaxed=True"):
        lstm(inputs, structmax.marginals(scores, trees))
    with pytest.raises(ValueError, match="are neither 0 nor 1"):
        lstm(inputs, 0.5 * structmax.argmax(scores, trees))
    crossing = torch.eye(3, dtype=torch.float64)
    crossing[0, 1] = crossing[1, 2] = 1.0
    with pytest.raises(ValueError, match="should hold binary trees"):
        lstm(inputs[0, :3], crossing)
    with pytest.raises(ValueError, match="should hold binary trees"):
        lstm(inputs[0, :3], torch.eye(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"require a gradient.*detach"):
        lstm(inputs, structmax.argmax(scores, trees).requires_grad_())
    with pytest.raises(ValueError, match=r"`spans` should have shape .* = \(6, 7, 7\) .* but have \(6, 7, 6\)"):
        lstm(inputs, scores[..., :-1])
    with pytest.raises(ValueError, match=r"Labelled spans are summed .* `spans.sum\(-1\)`"):
        lstm(inputs, scores.unsqueeze(-1))
    for sizes in ((0, 3), (4, 0)):
        with pytest.raises(ValueError, match="_size` should be a whole number ≥ 1, but is 0"):
            BinaryTreeLSTM(*sizes)


def test_errors_of_leaves(lstm, inputs, scores):
    pyramid, parser = PyramidTreeLSTM(D, H).double(), MergeParser(D, H).double()
    drawn = parser.derive(inputs, LENGTHS, incremental.greedy)
    calls = [
        lambda x, n: lstm(x, scores),
        pyramid,
        lambda x, n: parser.derive(x, n, incremental.greedy),
        lambda x, n: parser(x, drawn),
    ]
    for call in calls:
        for wrong in (inputs[0, 0], inputs[..., 1:], inputs[:, :0]):
            with pytest.raises(ValueError, match=r"`inputs` should have shape \(…, N, D\) with N ≥ 1 and D = 4"):
                call(wrong, None)
    for call in calls[1:3]:
        with pytest.raises(ValueError, match="`lengths` should be between 0 and 7, the number of leaves"):
            call(inputs, LENGTHS + 1)
        with pytest.raises(ValueError, match=r"`lengths` should broadcast to the batch shape \(6,\)"):
            call(inputs, LENGTHS[:2])
    with pytest.raises(ValueError, match=r"`derivation` should be of the leaves of `inputs` \(6, 6, 4\), .* `derive`"):
        parser(inputs[:, 1:], drawn)


# ---------------------------------------------------------------- built from the leaves up


def test_a_pyramid_is_the_state_of_its_tree(inputs):
    torch.manual_seed(0)
    pyramid = PyramidTreeLSTM(D, H).double()
    pyramid.query.data.mul_(100.0)
    for choose in (incremental.greedy, incremental.sample):
        built = pyramid(inputs, LENGTHS, choose=choose)
        torch.testing.assert_close(built.root, pyramid.tree(inputs, built.spans))


def test_a_pyramid_learns_its_choices(inputs):
    torch.manual_seed(0)
    pyramid = PyramidTreeLSTM(D, H).double()
    spoilt = inputs.masked_fill((torch.arange(N) >= LENGTHS.unsqueeze(-1)).unsqueeze(-1), torch.nan).requires_grad_()
    built = pyramid(spoilt, LENGTHS, generator=torch.Generator().manual_seed(0))
    built.root.sum().backward()
    assert pyramid.query.grad.abs().sum() > 0
    assert spoilt.grad.isfinite().all()
    again = pyramid(inputs, LENGTHS, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(again.root, built.root)
    pyramid.eval()
    best, same = pyramid(inputs, LENGTHS), pyramid(inputs, LENGTHS, choose=incremental.greedy)
    torch.testing.assert_close(best.root, same.root)


def every_derivation(parser, x):
    """Spans, and the log-probability, of all orders of merges, by the definition."""
    n = len(x)
    for order in itertools.permutations(range(n - 1)):
        leaves = parser.tree.leaves(x)
        layer = [(i, i, structmax.nn.tree_cell.State(leaves.h[i], leaves.c[i])) for i in range(n)]
        log_p, spans = 0.0, set()
        for leaf in order:
            at = [last for _, last, _ in layer].index(leaf)
            pairs = [parser.tree.compose(a[2], b[2]) for a, b in itertools.pairwise(layer)]
            log_p = log_p + torch.stack([parser.query(p.h).squeeze() for p in pairs]).log_softmax(0)[at]
            layer[at : at + 2] = [(layer[at][0], layer[at + 1][1], pairs[at])]
            spans.add(layer[at][:2])
        yield order, spans, log_p


def test_merges_are_as_probable_as_they_should_be(inputs):
    torch.manual_seed(0)
    parser = MergeParser(D, H).double()
    parser.query.weight.data.mul_(10.0)
    x = inputs[0, :4]
    wanted = {order: (spans, log_p) for order, spans, log_p in every_derivation(parser, x)}
    rows = 300
    generator = torch.Generator().manual_seed(0)
    drawn = parser.derive(
        x.expand(rows, 4, D), torch.full((rows,), 4), functools.partial(incremental.sample, generator=generator)
    )
    steps = parser(x.expand(rows, 4, D), drawn)
    for row in range(rows):
        spans, log_p = wanted[tuple(drawn.chosen[row].tolist())]
        torch.testing.assert_close(steps.log_probs[row].sum(), log_p)
        off_diagonal = drawn.spans[row].triu(1).nonzero().tolist()
        assert {tuple(span) for span in off_diagonal} == spans
    assert len({tuple(c) for c in drawn.chosen.tolist()}) == 6
    one = torch.autograd.grad(steps.log_probs[0].sum(), parser.parameters())
    two = torch.autograd.grad(wanted[tuple(drawn.chosen[0].tolist())][1], parser.parameters())
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b)


def test_merges_of_sentences_of_all_lengths(inputs):
    torch.manual_seed(0)
    parser = MergeParser(D, H).double()
    lengths = LENGTHS.clamp_min(1)
    taken = []

    def choose(scores, there):
        action = incremental.sample(scores, there, generator=generator)
        taken.append(incremental.log_probs(scores, there).masked_fill(action == 0, 0.0).sum(-1))
        return action

    generator = torch.Generator().manual_seed(0)
    outside = (torch.arange(N) >= lengths.unsqueeze(-1)).unsqueeze(-1)
    drawn = parser.derive(inputs.masked_fill(outside, torch.nan), lengths, choose)
    steps = parser(inputs, drawn)
    torch.testing.assert_close(steps.log_probs, torch.stack(taken, -1))
    assert (drawn.spans.sum((1, 2)) == 2 * lengths - 1).all()
    assert ((drawn.chosen >= 0).sum(-1) == lengths - 1).all()
    # no pair has a leaf of the padding
    assert (drawn.pairs.flatten(1).max(1).values < lengths).all()
    assert (steps.entropies[drawn.chosen < 0] == 0).all()
    assert steps.entropies[0, 0] <= torch.tensor(6.0).log() + 1e-6


def test_what_is_built_has_any_batch_shape(inputs):
    torch.manual_seed(0)
    pyramid, parser = PyramidTreeLSTM(D, H).double(), MergeParser(D, H).double()

    def answers(x, lengths):
        drawn = parser.derive(x, lengths, incremental.greedy)
        return *pyramid(x, lengths, choose=incremental.greedy), *drawn, *parser(x, drawn)

    wanted = answers(inputs, LENGTHS)
    folded = answers(inputs.unflatten(0, (2, 3)), LENGTHS.unflatten(0, (2, 3)))
    for ours, each in zip(folded, wanted, strict=True):
        torch.testing.assert_close(ours.flatten(0, 1), each)
    for ours, each in zip(answers(inputs[0], None), wanted, strict=True):
        torch.testing.assert_close(ours, each[0])
    for ours, each in zip(answers(inputs[:0], LENGTHS[:0]), wanted, strict=True):
        assert ours.shape == (0, *each.shape[1:])
    for found in answers(inputs, torch.tensor(0))[:2]:
        assert not found.any()


def test_second_derivatives_are_refused(lstm, inputs, scores):
    spans = structmax.argmax(scores, structmax.BinaryTree(LENGTHS))
    leaves = lstm.leaves(inputs)
    for out in (lstm(inputs, spans), lstm(inputs, spans, relaxed=True), lstm.compose(leaves, leaves).h):
        with pytest.raises(RuntimeError, match="should be taken once, but create_graph=True"):
            torch.autograd.grad(out.sum(), lstm.pair.weight, create_graph=True)
