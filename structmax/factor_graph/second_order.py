"""Factor graphs of second-order parsing: arcs or spans, and scores for two of them that share a word or a boundary."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure
from structmax.factor_graph import FactorGraph
from structmax.factor_graph.factors import AbstractFactor, Factor, Pair
from structmax.factor_graph.layout import field_name
from structmax.factor_graph.logic import Xor
from structmax.factor_graph.variables import Variables
from structmax.numerics.arcs import usable

# As many graphs are kept, so that each batch of a size does not describe its own again.
KEPT = 64


def second_order_arcs(
    words: int,
    *,
    lengths: Tensor | None = None,
    siblings: bool = True,
    coparents: bool = False,
    grandparents: bool = False,
    tree: AbstractStructure | None = None,
    several_heads: bool = False,
) -> FactorGraph:
    """The factor graph of second-order dependency parsing: arcs, and scores of two arcs that share a word.

    Its scores have these names and, with W = N + 1 for N words and the root 0, these shapes:

    | name | shape | score of |
    |---|---|---|
    | `arc` | (…, W, W) | [h, m]: h is the head of m; column 0 and the diagonal are ignored |
    | `sibling` | (…, W, W, W) | [h, m, s]: h is the head of m and of s; m < s, other entries are ignored |
    | `coparent` | (…, W, W, W) | [h, g, m]: m has the heads h and g; h < g, other entries are ignored |
    | `grandparent` | (…, W, W, W) | [g, h, m]: g is the head of h, and h that of m; g ≠ m |

    Without `tree` and `several_heads` each word has exactly one head, and cycles are allowed: `mean_field` is then a
    softmax over the heads of each word. With `several_heads` arcs are independent, as in semantic dependency graphs.
    With `tree` they are a tree; `belief_propagation` and `sparsemap` know it as one factor.

    Args:
        words: N, at least 2; shorter sentences have `lengths`.
        lengths: how many words each instance has, the root not counted; integers that broadcast to the batch.
        siblings: whether two dependents of a head have a score.
        coparents: whether two heads of a word have a score. Only with `several_heads`.
        grandparents: whether the head of a head has a score.
        tree: `SpanningTree` or `ProjectiveTree`, without lengths. None: no constraint beyond the number of heads.
        several_heads: whether a word may have none or several heads.

    Returns:
        A `FactorGraph`, masked to the arcs that exist. It is described once for a size, so that asking for one in each
        batch costs little.

    Examples:
        >>> import torch, structmax
        >>> graph = structmax.factors.second_order_arcs(3)
        >>> graph
        FactorGraph(arc (4, 4), sibling (4, 4, 4) free; 3 × Xor, 1 × Pair; masked)
        >>> scores = {"arc": torch.zeros(4, 4), "sibling": torch.full((4, 4, 4), 2.0)}
        >>> structmax.mean_field(scores, graph).marginals["arc"][:, 1:]
        tensor([[0.9564, 0.9564, 0.9564],
                [0.0000, 0.0218, 0.0218],
                [0.0218, 0.0000, 0.0218],
                [0.0218, 0.0218, 0.0000]])

    Reference: Smith & Eisner 2008, Dependency parsing by belief propagation; Wang, Huang & Tu 2019, Second-order
    semantic dependency parsing with end-to-end neural networks; Wang & Tu 2020, Second-order neural dependency parsing
    with message passing and end-to-end training.
    """
    check.whole("words", words, 2)
    if coparents and not several_heads:
        raise ValueError("`coparents` should go with several_heads=True, since a word with one head has no two.")
    if tree is not None and several_heads:
        raise ValueError("`tree` should not go with several_heads=True, since in a tree a word has one head.")
    kinds = ("sibling", siblings), ("coparent", coparents), ("grandparent", grandparents)
    names = tuple(name for name, wanted in kinds if wanted)
    graph = _of_arcs(words, names, _without_lengths(tree), lengths is not None, several_heads)
    arcs = usable(words + 1, _checked(lengths, words))
    return _of_lengths(graph.masked({"arc": arcs}), tree, lengths)


def second_order_spans(
    words: int,
    *,
    lengths: Tensor | None = None,
    starts: bool = True,
    ends: bool = False,
    tree: AbstractStructure | None = None,
) -> FactorGraph:
    """The factor graph of second-order constituency parsing: spans, and scores of two spans that share a boundary.

    Its scores have these names and, for N words, these shapes:

    | name | shape | score of |
    |---|---|---|
    | `span` | (…, N, N) | [i, j]: the span from word i to word j, i ≤ j; other entries are ignored |
    | `start` | (…, N, N, N) | [i, j, k]: the spans [i, j] and [i, k]; i ≤ j < k, other entries are ignored |
    | `end` | (…, N, N, N) | [i, k, j]: the spans [i, j] and [k, j]; i < k ≤ j, other entries are ignored |

    Args:
        words: N, at least 2; shorter sentences have `lengths`.
        lengths: how many words each instance has; integers that broadcast to the batch.
        starts: whether two spans with the same first word have a score.
        ends: whether two spans with the same last word have a score.
        tree: `BinaryTree`, without lengths. None: spans are independent.

    Returns:
        A `FactorGraph`, masked to the spans that exist. It is described once for a size, so that asking for one in each
        batch costs little.

    Examples:
        >>> import torch, structmax
        >>> graph = structmax.factors.second_order_spans(2)
        >>> scores = {"span": torch.zeros(2, 2), "start": torch.ones(2, 2, 2)}
        >>> structmax.belief_propagation(scores, graph).marginals["span"]
        tensor([[0.6502, 0.6502],
                [0.0000, 0.5000]])
    """
    check.whole("words", words, 2)
    names = tuple(name for name, wanted in (("start", starts), ("end", ends)) if wanted)
    graph = _of_spans(words, names, _without_lengths(tree), lengths is not None)
    count = _checked(lengths, words)
    word = torch.arange(words, device=count.device)
    spans = (word.unsqueeze(-1) <= word) & (word < count[..., None, None])
    return _of_lengths(graph.masked({"span": spans}), tree, lengths)


def _checked(lengths: Tensor | None, words: int) -> Tensor:
    """How many words each instance has."""
    if lengths is None:
        return torch.tensor(words)
    check.whole_numbers("lengths", lengths)
    check.between("lengths", lengths, words, "the number of words")
    return lengths


def _without_lengths(tree: AbstractStructure | None) -> AbstractStructure | None:
    if tree is None:
        return None
    check.instance("tree", tree, AbstractStructure, "a structure such as SpanningTree(single_root=True)")
    if getattr(tree, "lengths", None) is not None:
        raise ValueError("`tree` should have no lengths of its own. Try lengths=… beside it.")
    return tree


def _of_lengths(graph: FactorGraph, tree: AbstractStructure | None, lengths: Tensor | None) -> FactorGraph:
    """The graph with these lengths of its tree, the only structure among its factors."""
    return graph if tree is None or lengths is None else graph.changed({field_name(0, "lengths"): lengths})


def _of_tree(tree: AbstractStructure, words: int, with_lengths: bool, over: Variables) -> AbstractFactor:
    # with lengths for each instance, which are replaced by those of a batch
    return Factor(tree.changed({"lengths": torch.tensor([words])}) if with_lengths else tree, over)


@functools.lru_cache(KEPT)
def _of_arcs(
    words: int, names: tuple[str, ...], tree: AbstractStructure | None, with_lengths: bool, several_heads: bool
) -> FactorGraph:
    W = words + 1
    arc = Variables("arc", (W, W))
    factors: list[AbstractFactor] = []
    if tree is not None:
        factors.append(_of_tree(tree, words, with_lengths, arc))
    elif not several_heads:
        factors += [Xor(arc[[h for h in range(W) if h != m], m]) for m in range(1, W)]
    a, b, c = torch.unbind(torch.cartesian_prod(*(torch.arange(W),) * 3), -1)
    # which entries [a, b, c] of the scores stand for two arcs, and which arcs
    pairs = {
        "sibling": ((b > 0) & (b < c) & (a != b) & (a != c), (a, b), (a, c)),
        "coparent": ((a < b) & (c > 0) & (a != c) & (b != c), (a, c), (b, c)),
        "grandparent": ((b > 0) & (c > 0) & (a != b) & (b != c) & (a != c), (a, b), (b, c)),
    }
    for name in names:
        chosen, first, second = pairs[name]
        score = Variables(name, (W, W, W), free=True)
        one, two, three = ([t[chosen] for t in group] for group in (first, second, (a, b, c)))
        factors.append(Pair(arc[tuple(one)], arc[tuple(two)], score=score[tuple(three)]))
    return FactorGraph(arc, *factors)


@functools.lru_cache(KEPT)
def _of_spans(words: int, names: tuple[str, ...], tree: AbstractStructure | None, with_lengths: bool) -> FactorGraph:
    span = Variables("span", (words, words))
    factors = [] if tree is None else [_of_tree(tree, words, with_lengths, span)]
    a, b, c = torch.unbind(torch.cartesian_prod(*(torch.arange(words),) * 3), -1)
    # which entries [a, b, c] of the scores stand for two spans, and which spans
    pairs = {"start": ((a <= b) & (b < c), (a, b), (a, c)), "end": ((a < b) & (b <= c), (a, c), (b, c))}
    for name in names:
        chosen, first, second = pairs[name]
        score = Variables(name, (words, words, words), free=True)
        one, two, three = ([t[chosen] for t in group] for group in (first, second, (a, b, c)))
        factors.append(Pair(span[tuple(one)], span[tuple(two)], score=score[tuple(three)]))
    return FactorGraph(span, *factors)
