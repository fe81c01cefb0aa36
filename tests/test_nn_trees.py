"""Modules over dependency trees against plain definitions: a recursion, a sum over arcs, a form for each pair."""

import copy
import math
import pickle

import pytest
import torch
from torch.nn.functional import leaky_relu

import structmax
from structmax.nn import Biaffine, ChildSumTreeLSTM, TreeGCN, child_sum_tree_lstm
from structmax.testing import same

LENGTHS = torch.tensor([5, 3, 0, 1])


def draw(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def trees(single_root=True, lengths=LENGTHS):
    structure = structmax.SpanningTree(lengths, single_root=single_root)
    return structure, structmax.argmax(draw(len(lengths), 6, 6, seed=1), structure)


def chain_and_star():
    """The deepest and the flattest tree."""
    return structmax.SpanningTree(single_root=False).encode(torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]])).double()


# ---------------------------------------------------------------- the LSTM


@pytest.fixture
def lstm():
    torch.manual_seed(0)
    return ChildSumTreeLSTM(4, 3).double()


def recursion(lstm, x, heads):
    """By definition, for one tree: states of the words, and the sum over those on the root."""
    children = {j: [k for k, head in enumerate(heads, 1) if head == j] for j in range(len(heads) + 1)}

    def state(j):
        below = [state(k) for k in children[j]]
        i, o, u, f = lstm.input(x[j - 1]).chunk(4)
        s = sum((h for h, _ in below), torch.zeros(3, dtype=x.dtype))
        a, b, d = lstm.subtrees(s).chunk(3)
        c = (i + a).sigmoid() * (u + d).tanh() + sum((f + lstm.forget(h)).sigmoid() * c for h, c in below)
        return (o + b).sigmoid() * c.tanh(), c

    states = [state(j)[0] if head >= 0 else torch.zeros(3, dtype=x.dtype) for j, head in enumerate(heads, 1)]
    top = sum((states[k - 1] for k in children[0]), torch.zeros(3, dtype=x.dtype))
    return torch.stack([top, *states])


def dense_recursion(lstm, x, arcs):
    """As a fixed point over all pairs of words. From twice the depth on, the value and all derivatives stand."""
    between = arcs[..., 1:, 1:]
    own, forget = lstm.input(x).split([9, 3], -1)
    h = c = x.new_zeros(*x.shape[:-1], 3)
    for _ in range(2 * x.shape[-2] + 2):
        i, o, u = (own + lstm.subtrees(between @ h)).chunk(3, -1)
        f = (forget.unsqueeze(-2) + lstm.forget(h).unsqueeze(-3)).sigmoid()
        c = i.sigmoid() * u.tanh() + torch.einsum("...jk,...jkd,...kd->...jd", between, f, c)
        h = o.sigmoid() * c.tanh()
    return torch.cat([arcs[..., :1, 1:] @ h, h], -2)


@pytest.mark.parametrize("single_root", [True, False])
def test_lstm_is_the_recursion(lstm, single_root):
    structure, arcs = trees(single_root)
    x, weights = draw(4, 5, 4).requires_grad_(), draw(4, 6, 3, seed=2)
    heads = structure.decode(arcs)
    states = lstm(x, arcs)
    judge = torch.stack([recursion(lstm, x[b], heads[b].tolist()) for b in range(4)])
    same("states", states, judge)
    same("from heads", lstm(x, heads), judge)
    inputs = [x, *lstm.parameters()]
    got, want = (torch.autograd.grad((weights * value).sum(), inputs) for value in (states, judge))
    for name, a, b in zip(("words", *dict(lstm.named_parameters())), got, want, strict=True):
        same(name, a, b)


@pytest.mark.parametrize("block", [1, 40, 2**22])
def test_lstm_gives_all_arcs_their_gradient(lstm, block, monkeypatch):
    monkeypatch.setattr(child_sum_tree_lstm, "BLOCK", block)
    full = trees(lengths=torch.tensor([5, 5]))[1]
    arcs = torch.cat([full, chain_and_star()]).requires_grad_()
    x, weights = draw(4, 5, 4), draw(4, 6, 3, seed=2)
    got, want = (
        torch.autograd.grad((weights * value).sum(), arcs)[0]
        for value in (lstm(x, arcs), dense_recursion(lstm, x, arcs))
    )
    assert (want[..., 1:] != 0).all()
    same("arcs", got, want)


def test_lstm_padding_holds_anything(lstm):
    structure, arcs = trees()
    arcs.requires_grad_()
    pad = structure.decode(arcs) < 0
    x = draw(4, 5, 4)
    spoilt = x.masked_fill(pad.unsqueeze(-1), math.nan).requires_grad_()
    states = lstm(spoilt, arcs)
    assert torch.equal(states, lstm(x, arcs))
    assert (states[:, 1:][pad] == 0).all()
    d_x, d_arcs, *d_parameters = torch.autograd.grad(states.sum(), [spoilt, arcs, *lstm.parameters()])
    assert (d_x[pad] == 0).all()
    inside = torch.nn.functional.pad(~pad, (1, 0), value=True)
    assert (d_arcs[~(inside.unsqueeze(-1) & inside.unsqueeze(-2))] == 0).all()
    assert all(d.isfinite().all() for d in (d_x, d_arcs, *d_parameters))


def test_lstm_takes_any_batch(lstm):
    _, arcs = trees()
    x = draw(4, 5, 4)
    states = lstm(x, arcs)
    same("two batch dimensions", lstm(x.view(2, 2, 5, 4), arcs.view(2, 2, 6, 6)), states.view(2, 2, 6, 3))
    same("no batch", lstm(x[1], arcs[1]), states[1])
    empty = lstm(x[:0].requires_grad_(), arcs[:0].requires_grad_())
    assert empty.shape == (0, 6, 3)
    empty.sum().backward()
    one = lstm(x[:, :1], torch.zeros(4, 1, dtype=torch.int64))
    same("one word", one[:, 0], one[:, 1])
    assert lstm(x[:, :0], arcs[:, :1, :1]).shape == (4, 1, 3)


def test_lstm_of_a_long_chain(lstm):
    """More levels than Python would recurse through."""
    N = 3000
    states = lstm(draw(1, N, 4).requires_grad_(), torch.arange(N).unsqueeze(0))
    states[0, 0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in lstm.parameters())
    same("root", states[0, 0], states[0, 1])


@pytest.mark.parametrize("estimator", [structmax.estimators.Spigot(), structmax.estimators.StraightThrough()])
def test_lstm_trains_the_parser_behind_it(lstm, estimator):
    structure = structmax.SpanningTree(torch.tensor([5, 3]), single_root=True)
    scores = draw(2, 6, 6).requires_grad_()
    lstm(draw(2, 5, 4), structmax.surrogate(scores, structure, estimator))[:, 0].sum().backward()
    assert scores.grad.isfinite().all()
    assert scores.grad.any()
    assert (scores.grad[1, 4:] == 0).all()


def test_lstm_under_autocast(lstm):
    _, arcs = trees()
    lstm, x = lstm.float(), draw(4, 5, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        states = lstm(x, arcs)
    torch.testing.assert_close(states, lstm(x, arcs), atol=0.05, rtol=0)


# ---------------------------------------------------------------- graph convolution


def convolved(gcn, x, arcs):
    """By definition, arc by arc, for one instance without padding."""
    states = [gcn.root, *x]
    for layer, linear in enumerate(gcn.messages):
        sent = []
        for state in states:
            gates = [1.0, 1.0, 1.0] if gcn.gates is None else gcn.gates[layer](state).sigmoid()
            sent.append([gate * part for gate, part in zip(gates, linear(state).chunk(3), strict=True)])
        following = []
        for node in range(len(states)):
            total = sent[node][0]
            for other in range(len(states)):
                total = total + arcs[other, node] * sent[other][1] + arcs[node, other] * sent[other][2]
            following.append(total.relu())
        states = following
    return torch.stack(states)


def graph_convolution(**options):
    torch.manual_seed(0)
    return TreeGCN(4, **options).double()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_convolution_is_the_sum_over_arcs(layers, gated):
    gcn, x = graph_convolution(layers=layers, gated=gated), draw(2, 5, 4).requires_grad_()
    arcs = structmax.marginals(draw(2, 6, 6), structmax.SpanningTree(single_root=False)).requires_grad_()
    judge = torch.stack([convolved(gcn, x[b], arcs[b]) for b in range(2)])
    states, weights = gcn(x, arcs), draw(2, 6, 4, seed=2)
    same("states", states, judge)
    inputs = [x, arcs, *gcn.parameters()]
    got, want = (torch.autograd.grad((weights * value).sum(), inputs) for value in (states, judge))
    for name, a, b in zip(("words", "arcs", *dict(gcn.named_parameters())), got, want, strict=True):
        same(name, a, b)


def test_convolution_gradcheck():
    gcn, structure = graph_convolution(layers=2), structmax.SpanningTree(LENGTHS, single_root=True)

    def states(x, scores):
        return gcn(x, structmax.marginals(scores, structure))

    assert torch.autograd.gradcheck(states, (draw(4, 5, 4).requires_grad_(), draw(4, 6, 6).requires_grad_()))


def test_convolution_padding_holds_anything():
    gcn, (structure, arcs) = graph_convolution(layers=2), trees()
    arcs.requires_grad_()
    pad, x = structure.decode(arcs) < 0, draw(4, 5, 4)
    spoilt = x.masked_fill(pad.unsqueeze(-1), math.nan).requires_grad_()
    states = gcn(spoilt, arcs)
    assert torch.equal(states, gcn(x, arcs))
    assert (states[:, 1:][pad] == 0).all()
    alone = gcn(x[1, :3], arcs[1, :4, :4])
    same("without padding", states[1, :4], alone)
    gradients = torch.autograd.grad(states.sum(), [spoilt, arcs, *gcn.parameters()])
    assert (gradients[0][pad] == 0).all()
    assert (gradients[1][1, 4:] == 0).all()
    assert (gradients[1][1, :, 4:] == 0).all()
    assert all(d.isfinite().all() for d in gradients)


def test_convolution_takes_any_batch():
    gcn, (_, arcs), x = graph_convolution(layers=2), trees(), draw(4, 5, 4)
    states = gcn(x, arcs)
    same("two batch dimensions", gcn(x.view(2, 2, 5, 4), arcs.view(2, 2, 6, 6)), states.view(2, 2, 6, 4))
    same("no batch", gcn(x[0], arcs[0]), states[0])
    assert gcn(x[:0], arcs[:0]).shape == (0, 6, 4)
    assert gcn(x[:, :0], arcs[:, :1, :1]).shape == (4, 1, 4)


def test_convolution_compiles_whole():
    gcn, (_, arcs), x = graph_convolution(layers=2), trees(), draw(4, 5, 4)
    same("states", torch.compile(gcn, fullgraph=True, backend="aot_eager")(x, arcs), gcn(x, arcs))


# ---------------------------------------------------------------- scores of arcs


@pytest.mark.parametrize("labels", [None, 1, 3])
def test_biaffine_is_a_form_for_each_pair(labels):
    torch.manual_seed(0)
    biaffine, x = Biaffine(4, 3, labels).double(), draw(2, 5, 4)
    arcs = biaffine(x)
    assert arcs.shape == ((2, 6, 6) if labels is None else (2, 6, 6, labels))
    assert (arcs[:, :, 0] == 0).all()
    one = torch.ones(1, dtype=torch.float64)
    for b in range(2):
        head, dependent = leaky_relu(biaffine.project(x[b]), 0.1).chunk(2, -1)
        heads = [biaffine.root, *head]
        for h in range(6):
            for m in range(1, 6):
                left, right = torch.cat([heads[h], one]), torch.cat([dependent[m - 1], one])
                want = torch.einsum("i,icj,j->c", left, biaffine.weight, right)
                same("arc", arcs[b, h, m], want.squeeze(0) if labels is None else want)


@pytest.mark.parametrize("labels", [None, 3])
def test_biaffine_gradcheck(labels):
    biaffine, x = Biaffine(4, 3, labels).double(), draw(2, 5, 4)
    names = [name for name, _ in biaffine.named_parameters()]

    def scores(words, *parameters):
        return torch.func.functional_call(biaffine, dict(zip(names, parameters, strict=True)), (words,))

    inputs = tuple(t.detach().requires_grad_() for t in (x, *biaffine.parameters()))
    assert torch.autograd.gradcheck(scores, inputs)


def test_biaffine_takes_any_batch():
    biaffine, x = Biaffine(4, 3, 2).double(), draw(4, 5, 4)
    arcs = biaffine(x)
    same("two batch dimensions", biaffine(x.view(2, 2, 5, 4)), arcs.view(2, 2, 6, 6, 2))
    same("no batch", biaffine(x[0]), arcs[0])
    assert biaffine(x[:0]).shape == (0, 6, 6, 2)
    assert biaffine(x[:, :0]).shape == (4, 1, 1, 2)


def test_biaffine_drops_hidden_features_in_training():
    torch.manual_seed(0)
    biaffine, x = Biaffine(4, 3, dropout=0.5).double(), draw(2, 5, 4)
    assert not torch.equal(biaffine(x), biaffine(x))
    biaffine.eval()
    assert torch.equal(biaffine(x), biaffine(x))


@pytest.mark.parametrize("tree", [structmax.SpanningTree, structmax.ProjectiveTree])
def test_a_parser_learns_its_trees(tree):
    torch.manual_seed(0)
    biaffine, x = Biaffine(4, 8), torch.randn(3, 5, 4)
    structure = tree(torch.tensor([5, 4, 2]), single_root=True)
    gold = structmax.argmax(torch.randn(3, 6, 6), structure)
    optimiser = torch.optim.Adam(biaffine.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        (-structmax.log_prob(biaffine(x), structure, gold).mean()).backward()
        optimiser.step()
    assert torch.equal(structmax.argmax(biaffine(x), structure), gold)


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("make", [lambda: Biaffine(4, 3), lambda: ChildSumTreeLSTM(4, 3), lambda: TreeGCN(4)])
def test_modules_travel(make):
    module, x = make().double(), draw(4, 5, 4)
    given = (x,) if isinstance(module, Biaffine) else (x, trees()[1])
    other = make().double()
    other.load_state_dict(module.state_dict())
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), other):
        assert torch.equal(copied(*given), module(*given))


def test_lstm_without_words():
    arcs = torch.zeros(2, 1, 1, requires_grad=True)
    states = ChildSumTreeLSTM(4, 3)(torch.zeros(2, 0, 4), arcs)
    assert states.shape == (2, 1, 3)
    states.sum().backward()
    assert not arcs.grad.any()


SOFT = torch.full((5, 5), 0.25)
ARCS = torch.zeros(5, 5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: Biaffine(4, 3)(x[..., :2]), ValueError, r"`words` should have shape \(…, N, 4\), a row for each"),
        (lambda x: Biaffine(4, 3)(x.long()), TypeError, "`words` should be floating point"),
        (lambda x: Biaffine(0, 3), ValueError, "`input_size` should be a whole number ≥ 1"),
        (lambda x: Biaffine(4, 0), ValueError, "`hidden_size` should be a whole number ≥ 1"),
        (lambda x: Biaffine(4, 3, 0), ValueError, "`labels` should be a whole number ≥ 1"),
        (lambda x: TreeGCN(0), ValueError, "`size` should be a whole number ≥ 1"),
        (lambda x: TreeGCN(4, 0), ValueError, "`layers` should be a whole number ≥ 1"),
        (lambda x: TreeGCN(4)(x, ARCS[1:, 1:]), ValueError, r"`arcs` should have shape \(5, 5\), .* but have \(4, 4\)"),
        (lambda x: TreeGCN(4)(x, ARCS[..., None]), ValueError, "Labelled arcs are summed over their labels"),
        (lambda x: TreeGCN(4)(x, ARCS.long()), TypeError, "`arcs` should be floating point"),
        (lambda x: TreeGCN(4)(x[0], ARCS), ValueError, r"`words` should have shape"),
        (lambda x: ChildSumTreeLSTM(0, 3), ValueError, "`input_size` should be a whole number"),
        (lambda x: ChildSumTreeLSTM(4, 0), ValueError, "`hidden_size` should be a whole number"),
        (
            lambda x: ChildSumTreeLSTM(4, 3)(x, ARCS[1:]),
            ValueError,
            r"`tree` should have shape \(5, 5\), .* have \(4, 5\)",
        ),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, SOFT), ValueError, "`tree` should be discrete.* Try `argmax`.* TreeGCN"),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, ARCS + 1), ValueError, "`tree` should be discrete"),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, torch.tensor([2, 1, 0, 0])), ValueError, r"a cycle .* \[2, 1, 0, 0\]"),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, torch.tensor([0, 3, -1, 0])), ValueError, "a head that is padding"),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, torch.tensor([0, 5, 0, 0])), ValueError, "heads between −1, .* and N = 4"),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, torch.tensor([0])), ValueError, r"`tree` should be heads of shape \(4,\)"),
        (lambda x: ChildSumTreeLSTM(4, 3)(x, torch.ones(4) > 0), TypeError, "`tree` should be an integer tensor"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(torch.zeros(4, 4))
