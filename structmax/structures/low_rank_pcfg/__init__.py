"""Parses of a context-free grammar whose rules are a sum over ranks of products of three factors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


class LowRankPCFGParts(NamedTuple):
    """The parts of a parse with a rank at each of its rules."""

    # (…, N, T): the preterminal of each word
    terms: Tensor
    # (…, K), or (K,) for all: the nonterminal of the whole
    roots: Tensor
    # (…, K, R), or (K, R) for all: nonterminal a takes rank r
    heads: Tensor
    # (…, R, S), or (R, S) for all: rank r takes symbol b on the left, where S = K + T
    left: Tensor
    # (…, R, S), or (R, S) for all: rank r takes symbol c on the right
    right: Tensor
    # (…, N, N, K): a nonterminal over the words i … j, i < j; None for zeros
    spans: Tensor = None  # type: ignore[assignment]
    # (…, N, N, R): the rank of the rule that splits the words i … j, i < j; None for zeros
    ranks: Tensor = None  # type: ignore[assignment]


@dataclass(frozen=True)
class LowRankPCFG(AbstractStructure):
    """Parses with a grammar of K nonterminals and T preterminals whose rules factorise over R ranks.

    A rule a → b c scores log Σ over r of exp(heads[a, r] + left[r, b] + right[r, c]): the rank r is a choice of each
    node with children. A parse costs O(n³ R + n² S R), and no cube of K S S rules is ever built.

    Scores `Parts(terms, roots, heads, left, right, spans, ranks)`. Symbols 0 … K − 1 are nonterminals and K … K + T − 1
    are preterminals; S = K + T. terms (…, N, T) scores each preterminal at each word, roots (…, K) or (K,) the
    nonterminal of the whole sentence, heads (…, K, R) or (K, R) the rank of a nonterminal, left and right (…, R, S) or
    (R, S) the children of a rank. spans (…, N, N, K) and ranks (…, N, N, R) may be left out: a nonterminal over the
    words from i to j, both included, i < j, and the rank of its rule; their other entries are ignored. Preterminals
    stand over single words and nonterminals over two or more, so a sentence of one word has no parse. What is used
    several times counts as often: marginals of heads, left and right are expected numbers of uses.

    Args:
        lengths: the number of words of each sentence, at most N; integers that broadcast to the batch.

    Examples:
        With log-probabilities as scores, the log-partition is the log-likelihood of the sentence:

        >>> import torch, structmax
        >>> shapes = (5, 3), (2,), (2, 4), (4, 5), (4, 5)
        >>> scores = [torch.randn(shape).log_softmax(-1) for shape in shapes]
        >>> structure = structmax.LowRankPCFG()
        >>> bool(structmax.log_partition(scores, structure) < 0)
        True
        >>> structmax.marginals(scores, structure).heads.sum()  # a parse of five words has four rules
        tensor(4.0000)

    Reference:
        Cohen, Satta and Collins 2013, Approximate PCFG parsing using tensor decomposition; Yang, Zhao and Tu 2021,
        PCFGs can do better: inducing probabilistic context-free grammars with many symbols.
    """

    lengths: Tensor | None = None

    Parts: ClassVar[Any] = LowRankPCFGParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    regularised: ClassVar[tuple[str, ...] | None] = ("terms", "spans", "ranks")

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or not 5 <= len(scores) <= 7:
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                "`scores` of a LowRankPCFG should be (terms, roots, heads, left, right), and spans and ranks if there "
                f"are any, but are {got}."
            )
        named = LowRankPCFGParts(*scores)
        for name, tensor in named._asdict().items():
            if tensor is not None:
                check.floating(name, tensor)
                check.same_kind(name, tensor, "terms", named.terms)
        if named.terms.dim() < 2 or 0 in named.terms.shape[-2:]:
            raise ValueError(
                "`terms` should have shape (…, N, T) with N, T ≥ 1, a score for each preterminal at each word, "
                f"but has {tuple(named.terms.shape)}."
            )
        *batch, N, T = named.terms.shape
        K, R = (tensor.shape[-1] if tensor.dim() else 0 for tensor in (named.roots, named.heads))
        wanted = {
            "roots": [(K,), (*batch, K)],
            "heads": [(K, R), (*batch, K, R)],
            "left": [(R, K + T), (*batch, R, K + T)],
            "right": [(R, K + T), (*batch, R, K + T)],
            "spans": [(*batch, N, N, K)],
            "ranks": [(*batch, N, N, R)],
        }
        for name, shapes in wanted.items():
            tensor = getattr(named, name)
            if tensor is not None and (tuple(tensor.shape) not in shapes or 0 in (K, R)):
                said = " or ".join(map(str, dict.fromkeys(shapes)))
                raise ValueError(
                    f"`{name}` should have shape {said} to match `terms` {tuple(named.terms.shape)}, K = {K} "
                    f"nonterminals in `roots` and R = {R} ranks in `heads`, all at least 1, but has "
                    f"{tuple(tensor.shape)}. Symbols are the K nonterminals, then the {T} preterminals."
                )
        self.check_fields(batch, named.terms.shape[-2:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        terms, *grammar = scores[:5]
        *batch, N, _ = terms.shape
        sizes = grammar[1].shape[-2:]
        given = [*scores[5:], None, None][:2]
        charts = (terms.new_zeros(*batch, N, N, m) if t is None else t for t, m in zip(given, sizes, strict=True))
        wide = (
            t if t.dim() > event else t.expand(*batch, *t.shape) for t, event in zip(grammar, (1, 2, 2, 2), strict=True)
        )
        return terms, *wide, *charts

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "words")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-2])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        terms, roots, _, left, *_ = tensors
        word = torch.arange(terms.shape[-2], device=terms.device)
        lengths = self.fields(tensors)["lengths"].unsqueeze(-1)
        some = lengths > 1
        # a nonterminal has two words, and its neighbour one
        fewest = 2 + (torch.arange(left.shape[-1], device=terms.device) < roots.shape[-1]).long()
        child = (fewest <= lengths).unsqueeze(-2)
        within = ((word.unsqueeze(-1) < word) & (word < lengths.unsqueeze(-1))).unsqueeze(-1)
        return ((word < lengths) & some).unsqueeze(-1), some, some.unsqueeze(-1), child, child, within, within

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        return False, False, True, True, True, False, False

    def enumerate(self, scores: Scores) -> LowRankPCFGParts:
        tensors = self.tensors(scores)
        (N, T), (K, R) = tensors[0].shape, tensors[2].shape
        length = N if self.lengths is None else int(self.lengths)
        every = _parses(0, length - 1, K, T, R) if length > 1 else [[]] * (length == 0)
        parses = check.few("LowRankPCFG", every, sum(t.numel() for t in tensors))
        listed = [self._counted(parse, tensors) for parse in parses]
        if not listed:
            return LowRankPCFGParts(*(t.new_zeros(0, *t.shape) for t in tensors))
        return LowRankPCFGParts(*(torch.stack(column) for column in zip(*listed, strict=True)))

    @staticmethod
    def _counted(nodes: Sequence[tuple[int, ...]], like: Sequence[Tensor]) -> LowRankPCFGParts:
        """The parts of a parse, shaped like part tensors of one instance."""
        parts = LowRankPCFGParts(*(torch.zeros_like(t) for t in like))
        K, symbol = len(parts.roots), {(i, j): a for i, j, a, _ in nodes}
        for i, j, a, r in nodes:
            if i == j:
                parts.terms[i, a - K] = 1
                continue
            k = next(k for k in range(i, j) if (i, k) in symbol and (k + 1, j) in symbol)
            parts.heads[a, r] += 1
            parts.left[r, symbol[i, k]] += 1
            parts.right[r, symbol[k + 1, j]] += 1
            parts.spans[i, j, a] = 1
            parts.ranks[i, j, r] = 1
        if nodes:
            parts.roots[symbol[max(symbol, key=lambda span: span[1] - span[0])]] = 1
        return parts

    def decode(self, parts: Scores) -> Any:
        """The nodes (first word, last word, symbol, rank) of each parse, parents first and left before right.

        Returns:
            A list of them for one instance, nested lists of such lists over the leading dimensions of `parts`. The rank
            over a single word, which has no rule, is −1.
        """
        tensors = self.tensors(self.fitting(parts))
        if tensors[0].dim() > 2:
            return [self.decode(LowRankPCFGParts(*one)) for one in zip(*tensors, strict=True)]
        one = LowRankPCFGParts(*tensors)
        symbol = {(i, j): a for i, j, a in one.spans.nonzero().tolist()}
        nodes = [(i, j, symbol[i, j], r) for i, j, r in one.ranks.nonzero().tolist() if (i, j) in symbol]
        nodes += [(i, i, len(one.roots) + t, -1) for i, t in one.terms.nonzero().tolist()]
        return sorted(nodes, key=lambda node: (node[0], -node[1]))

    def encode(self, nodes: Any, scores: Scores) -> LowRankPCFGParts:  # type: ignore[override]
        """Parts of nodes as `decode` returns them, in any order, shaped for `scores`, whose values do not matter."""
        tensors = self.tensors(scores)
        events = (2, 1, 2, 2, 2, 3, 3)
        one = tuple(t.new_zeros(t.shape[t.dim() - d :]) for t, d in zip(tensors, events, strict=True))
        if nodes and isinstance(nodes[0], list):
            lengths = [None] * len(nodes) if self.lengths is None else self.lengths.expand(_sizes(nodes))
            every = [replace(self, lengths=n).encode(parse, one) for parse, n in zip(nodes, lengths, strict=True)]
            return LowRankPCFGParts(*(torch.stack(column) for column in zip(*every, strict=True)))
        self._check_nodes(nodes, one)
        return self._counted(nodes, one)

    def _check_nodes(self, nodes: Sequence[tuple[int, ...]], one: Sequence[Tensor]) -> None:
        """Nodes inside of the sentence, with symbols and ranks of their kind: a whole parse, or nothing."""
        (N, T), (K, R) = one[0].shape, one[2].shape
        n = N if self.lengths is None else int(self.lengths)
        for i, j, a, r in nodes:
            low, high, ranks, kind = (K, K + T, (-1, 0), "preterminals") if i == j else (0, K, (0, R), "nonterminals")
            if not (0 <= i <= j < n and low <= a < high and ranks[0] <= r < ranks[1]):
                raise ValueError(
                    f"`nodes` should be (first word, last word, symbol, rank) with words from 0 to {n - 1} and, over "
                    f"{'one word' if i == j else 'several words'}, {kind} from {low} to {high - 1} and ranks from "
                    f"{ranks[0]} to {ranks[1] - 1}, but hold {(i, j, a, r)}. Try LowRankPCFG(lengths) for shorter "
                    "sentences."
                )
        spans = {(i, j) for i, j, *_ in nodes}
        bare = sorted(
            (i, j) for i, j in spans if i < j and not any((i, k) in spans and (k + 1, j) in spans for k in range(i, j))
        )
        if nodes and (bare or (0, n - 1) not in spans or not len(nodes) == len(spans) == 2 * n - 1):
            missing = f"{bare[0]} has no two children" if bare else f"{len(nodes)} nodes are no parse of {n} words"
            raise ValueError(
                f"`nodes` should be the 2n − 1 nodes of a binary tree over n words, but {missing}. "
                "Try the nodes `decode` returns."
            )


def _sizes(nested: Any) -> list[int]:
    """How long lists of lists are, down to the nodes."""
    return [len(nested), *_sizes(nested[0])] if nested and isinstance(nested[0], list) else []


def _parses(i: int, j: int, K: int, T: int, R: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """All parses of the words i … j, as nodes (i, j, symbol, rank)."""
    if i == j:
        for t in range(T):
            yield [(i, i, K + t, -1)]
        return
    for k in range(i, j):
        children = list(_parses(i, k, K, T, R)), list(_parses(k + 1, j, K, T, R))
        for left, right, a, r in product(*children, range(K), range(R)):
            yield [(i, j, a, r), *left, *right]
