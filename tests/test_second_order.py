"""Graphs of second-order parsing: which arcs and spans their scores couple, and what is asked of them."""

import math

import pytest
import torch
from test_belief_propagation import draw
from torch import Tensor

import structmax
from structmax import FactorGraph, belief_propagation, mean_field, sparsemap
from structmax.factor_graph.layout import KINDS
from structmax.factors import second_order_arcs, second_order_spans

SPANNING, PROJECTIVE = structmax.SpanningTree(single_root=True), structmax.ProjectiveTree(single_root=False)
EVERY = {"siblings": True, "coparents": True, "grandparents": True, "several_heads": True}
ARCS = {
    "one head": {"grandparents": True},
    "no order": {"siblings": False},
    "several heads": EVERY,
    "spanning tree": {"grandparents": True, "tree": SPANNING},
    "projective tree": {"tree": PROJECTIVE},
}
SPANS = {
    "spans": {},
    "both boundaries": {"ends": True},
    "brackets": {"starts": False, "ends": True, "tree": structmax.BinaryTree()},
}


def scores_of(graph: FactorGraph, *batch: int, scale: float = 1.0) -> dict[str, Tensor]:
    shapes = {variables.name: variables.shape for variables in graph.layout.variables}
    return {name: scale * draw(*batch, *shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}


def test_what_arcs_are_coupled():
    """Two arcs are both on where the entry of their score is, by the definition of each name."""
    graph = second_order_arcs(3, **EVERY)
    parts = graph.enumerate(scores_of(graph))
    arc, node = parts["arc"], torch.arange(4)
    assert len(arc) == 2**9
    distinct = (node[:, None, None] != node[:, None]) & (node[:, None, None] != node) & (node[:, None] != node)
    later, earlier = node[:, None] < node, node[:, None, None] < node[:, None]
    torch.testing.assert_close(parts["sibling"], torch.einsum("yhm,yhs->yhms", arc, arc) * (distinct & later))
    torch.testing.assert_close(parts["coparent"], torch.einsum("yhm,ygm->yhgm", arc, arc) * (distinct & earlier))
    torch.testing.assert_close(parts["grandparent"], torch.einsum("ygh,yhm->yghm", arc, arc) * distinct)


def test_what_spans_are_coupled():
    graph = second_order_spans(3, ends=True)
    parts = graph.enumerate(scores_of(graph))
    span, word = parts["span"], torch.arange(3)
    assert len(span) == 2**6
    later, earlier = word[:, None] < word, word[:, None, None] < word[:, None]
    torch.testing.assert_close(parts["start"], torch.einsum("yij,yik->yijk", span, span) * later)
    torch.testing.assert_close(parts["end"], torch.einsum("yij,ykj->yikj", span, span) * earlier)


@pytest.mark.parametrize(("name", "count"), [("one head", 27), ("spanning tree", 9), ("projective tree", 12)])
def test_members(name, count):
    graph = second_order_arcs(3, **ARCS[name])
    arc = graph.enumerate(scores_of(graph))["arc"]
    assert len(arc) == count
    assert (arc.sum(1)[:, 1:] == 1).all()
    spans = second_order_spans(3, tree=structmax.BinaryTree())
    assert len(spans.enumerate(scores_of(spans))["span"]) == 2


GRAPHS = [*((second_order_arcs, name, options) for name, options in ARCS.items())]
GRAPHS += [(second_order_spans, name, options) for name, options in SPANS.items()]


@pytest.mark.parametrize(("make", "options"), [(m, o) for m, _, o in GRAPHS], ids=[n for _, n, _ in GRAPHS])
def test_lengths(make, options):
    """Padding is 0, whatever its scores are, and all else is as in the graph of a shorter sentence."""
    lengths = torch.tensor([4, 2])
    graph, short = make(4, lengths=lengths, **options), make(2, **options)
    scores = scores_of(graph, 2, scale=0.5)
    extra = scores[graph.names[0]].shape[-1] - 4
    for tensor in scores.values():
        for dim in range(1, tensor.dim()):
            tensor.movedim(dim, 0)[2 + extra :, 1] = math.nan
    cut = {name: t[(1, *(slice(2 + extra),) * (t.dim() - 1))] for name, t in scores.items()}
    for ask in (mean_field, belief_propagation, sparsemap):
        found, alone = ask(scores, graph).marginals, ask(cut, short).marginals
        for name, tensor in found.items():
            inside = (1, *(slice(2 + extra),) * (tensor.dim() - 1))
            torch.testing.assert_close(tensor[inside], alone[name], atol=1e-6, rtol=0)
            tensor[inside] = 0.0
            assert not tensor[1].any()
            assert tensor.isfinite().all()


def test_mean_field_is_a_softmax_over_heads():
    """Written with dense tensors, for siblings and grandparents."""
    graph = second_order_arcs(4, grandparents=True)
    scores = scores_of(graph, 2, scale=0.5)
    node = torch.arange(5)
    ignored = (node == 0) | (node[:, None] == node)
    arc = scores["arc"].masked_fill(ignored, -math.inf)
    kept = (node[:, None] < node) & (node[:, None] > 0)
    distinct = (node[:, None, None] != node[:, None]) & (node[:, None, None] != node)
    sibling = scores["sibling"] * (kept & distinct)
    sibling = sibling + sibling.mT
    grandparent = scores["grandparent"] * (distinct & (node[:, None] != node))

    def means(fields: Tensor) -> Tensor:
        return torch.cat([torch.zeros(2, 5, 1, dtype=torch.float64), fields[..., 1:].softmax(1)], -1)

    q = means(arc)
    for _ in range(3):
        fields = torch.einsum("bhms,bhs->bhm", sibling, q) + torch.einsum("bghm,bgh->bhm", grandparent, q)
        q = means(arc + fields + torch.einsum("bghm,bhm->bgh", grandparent, q))
    found = mean_field(scores, graph, max_iter=3, tol=0, parallel=True)
    torch.testing.assert_close(found.marginals["arc"], q)


def test_beliefs_of_few_words_are_nearly_exact():
    """Two words: mean field is below log Z, and belief propagation is exact where there is one pair."""
    graph = second_order_arcs(2)
    scores = scores_of(graph)
    parts = graph.enumerate(scores)
    worth = sum((parts[name] * scores[name]).flatten(1).sum(1) for name in graph.names)
    exact = worth.logsumexp(0)
    torch.testing.assert_close(belief_propagation(scores, graph).log_partition, exact)
    assert mean_field(scores, graph).log_partition <= exact


def test_a_graph_is_described_once():
    first, second = (second_order_arcs(4, lengths=torch.tensor(n), tree=SPANNING) for n in ([4], [2, 3]))
    assert first.layout is second.layout
    assert second_order_spans(4).layout is second_order_spans(4).layout


def test_a_sentence_of_twenty_words():
    """Thousands of pairs: all answers are found, and gradients."""
    graph = second_order_arcs(20, **EVERY)
    # unordered pairs of dependents and of heads, and chains of two arcs
    assert (graph.layout.arrays.kind == KINDS["pair"]).sum() == 3610 + 3800 + 7220
    scores = scores_of(graph, 2, scale=0.1)
    scores["sibling"].requires_grad_()
    found = mean_field(scores, graph, max_iter=3, tol=0, parallel=True)
    assert found.marginals["arc"].shape == (2, 21, 21)
    assert torch.autograd.grad(found.log_partition.sum(), scores["sibling"])[0].isfinite().all()


def test_refusals():
    with pytest.raises(ValueError, match="`words`"):
        second_order_arcs(1)
    with pytest.raises(ValueError, match="`coparents` should go with several_heads=True"):
        second_order_arcs(3, coparents=True)
    with pytest.raises(ValueError, match="`tree` should not go with several_heads=True"):
        second_order_arcs(3, tree=SPANNING, several_heads=True)
    with pytest.raises(ValueError, match=r"`tree` should have no lengths of its own\. Try lengths="):
        second_order_arcs(3, tree=structmax.SpanningTree(torch.tensor([2]), single_root=True))
    with pytest.raises(TypeError, match="`tree` should be a structure such as"):
        second_order_spans(3, tree=structmax.BinaryTree)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`lengths`"):
        second_order_arcs(3, lengths=torch.tensor([4]))
    with pytest.raises(TypeError, match="`lengths`"):
        second_order_spans(3, lengths=torch.tensor([2.0]))
    with pytest.raises(ValueError, match="`words`"):
        second_order_spans(1)
