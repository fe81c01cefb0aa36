"""Head automata, chains with a budget and labelled trees as factors: alone, and together with others."""

import itertools

import pytest
import torch

import structmax
from structmax import FactorGraph
from structmax.factors import Budget, Factor, Imply, Variables, Xor

# Structures, and the shapes of their part tensors: the first is bound, the second free.
STRUCTURES = {
    "head automaton": (structmax.HeadAutomaton(), (4,), (5, 5)),
    "budget chain": (structmax.BudgetChain(2), (4, 2), (2, 2)),
    "budget chain of at most": (structmax.BudgetChain(at_most=1, label=2), (3, 3), (2, 3, 3)),
    "labelled tree": (structmax.LabelledTree(torch.tensor([2, 0, -1, 2])), (4, 2), (4, 2, 2)),
    "labelled tree, one matrix": (structmax.LabelledTree(torch.tensor([-1, 0, 0])), (3, 2), (2, 2)),
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", STRUCTURES)
def test_alone(name):
    """A graph of one factor answers as the structure does."""
    structure, bound, free = STRUCTURES[name]
    graph = FactorGraph(Factor(structure, Variables("x", bound), Variables("own", free, free=True)))
    scores = {"x": random(3, *bound), "own": random(3, *free, seed=1)}
    parts = scores["x"], scores["own"]
    want = structmax.sparsemap(parts, structure)
    got = structmax.sparsemap(scores, graph)
    for one, other in zip((got.marginals["x"], got.marginals["own"]), want.marginals[:2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=0)
    best = structmax.argmax(scores, graph)
    torch.testing.assert_close(best["x"], structmax.argmax(parts, structure)[0])
    beliefs = structmax.belief_propagation(scores, graph)
    torch.testing.assert_close(beliefs.log_partition, structmax.log_partition(parts, structure))
    torch.testing.assert_close(beliefs.marginals["x"], structmax.marginals(parts, structure)[0])


@pytest.mark.parametrize("name", STRUCTURES)
def test_with_logic(name):
    """A rule between two variables, against a list of all members; and marginals that keep it."""
    structure, bound, free = STRUCTURES[name]
    x, own, z = Variables("x", bound), Variables("own", free, free=True), Variables("z", (2,))
    last = (-1,) * len(bound)
    graph = FactorGraph(Factor(structure, x, own), Imply(x[last], z[0]), Xor(z))
    scores = {"x": random(3, *bound, seed=2), "own": random(3, *free, seed=3), "z": random(3, 2, seed=4)}
    best = structmax.argmax(scores, graph)
    beliefs = structmax.belief_propagation(scores, graph)
    for b in range(3):
        one = {key: value[b] for key, value in scores.items()}
        members = graph.enumerate(one)
        worth = sum((one[key] * members[key]).flatten(1).sum(-1) for key in graph.names)
        top = worth.argmax()
        for key in graph.names:
            torch.testing.assert_close(best[key][b], members[key][top])
        # no two factors are joined by two paths: sums are exact
        torch.testing.assert_close(beliefs.log_partition[b], worth.logsumexp(0))
        p = worth.softmax(0)
        torch.testing.assert_close(beliefs.marginals["x"][b], torch.einsum("m,m...->...", p, members["x"]))
    mu = structmax.sparsemap(scores, graph).marginals
    assert (mu["x"][(..., *last)] <= mu["z"][:, 0] + 1e-7).all()


def second_order_parser(words: int) -> FactorGraph:
    """A tree over arcs, and for each head an automaton to its left and one to its right, the nearest word first."""
    arc = Variables("arc", (words + 1, words + 1))
    factors = [Factor(structmax.SpanningTree(single_root=True), arc)]
    for head in range(words + 1):
        sides = {"left": list(range(head - 1, 0, -1)), "right": list(range(head + 1, words + 1))}
        for side, candidates in sides.items():
            if candidates:
                size = len(candidates) + 1
                sibling = Variables(f"{side} of {head}", (size, size), free=True)
                factors.append(Factor(structmax.HeadAutomaton(), arc[head, torch.tensor(candidates)], sibling))
    return FactorGraph(*factors)


def test_second_order_parser():
    """The best of all trees with scores for siblings; sparse marginals are no better, and have gradients."""
    words = 3
    graph = second_order_parser(words)
    scores = {v.name: random(4, *v.shape, seed=k) for k, v in enumerate(graph.layout.variables)}
    best = structmax.argmax(scores, graph)
    trees = structmax.SpanningTree(single_root=True).enumerate(torch.zeros(words + 1, words + 1, dtype=torch.float64))
    for b in range(4):
        values = []
        for tree in trees:
            value = (scores["arc"][b] * tree).sum()
            for name in graph.free:
                side, head = name.split(" of ")
                step = -1 if side == "left" else 1
                ends = 0 if side == "left" else words + 1
                chosen = [k for k, m in enumerate(range(int(head) + step, ends, step)) if tree[int(head), m]]
                sibling = scores[name][b]
                path = [*chosen, len(sibling) - 1]
                rows = [0, *(k + 1 for k in chosen)]
                value = value + sum(sibling[s, m] for s, m in zip(rows, path, strict=True))
            values.append(value)
        top = torch.stack(values).max()
        got = sum((scores[name][b] * best[name][b]).sum() for name in graph.names)
        torch.testing.assert_close(got, top)
    scores["left of 3"].requires_grad_()
    out = structmax.sparsemap(scores, graph)
    assert out.converged.all()
    # relaxed trees still have one head for each word
    torch.testing.assert_close(out.marginals["arc"][:, :, 1:].sum(1), torch.ones(4, words, dtype=torch.float64))
    out.marginals["arc"].square().sum().backward()
    assert scores["left of 3"].grad.abs().sum() > 0


def test_trees_that_differ_from_instance_to_instance():
    """A labelled tree with a tree for each instance, and lengths, under a budget for a label."""
    parents, lengths = torch.tensor([[-1, 0, 1], [1, -1, 9]]), torch.tensor([3, 2])
    tag, pair = Variables("tag", (3, 2)), Variables("pair", (2, 2), free=True)
    graph = FactorGraph(Factor(structmax.LabelledTree(parents, lengths), tag, pair), Budget(tag[:, 1], at_most=1))
    scores = {"tag": random(2, 3, 2), "pair": random(2, 2)}
    best = structmax.argmax(scores, graph)["tag"]
    for b, length in enumerate(lengths.tolist()):
        every = [labels for labels in itertools.product((0, 1), repeat=length) if sum(labels) <= 1]

        def worth(labels, b=b):
            pairs = sum(
                scores["pair"][labels[parents[b, n]], labels[n]] for n in range(len(labels)) if parents[b, n] >= 0
            )
            return float(sum(scores["tag"][b, n, c] for n, c in enumerate(labels)) + pairs)

        wanted = max(every, key=worth)
        assert best[b, :length].argmax(-1).tolist() == list(wanted)
        assert not best[b, length:].any()
