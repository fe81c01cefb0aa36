"""Parses of a context-free grammar."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


class PCFGParts(NamedTuple):
    """The parts of a parse."""

    # (…, N, T): the preterminal of each word
    terms: Tensor
    # (…, K, S, S), or (K, S, S) for all: rules[a, b, c] for a → b c, where S = K + T
    rules: Tensor
    # (…, K), or (K,) for all: the nonterminal of the whole
    roots: Tensor
    # (…, N, N, K): a nonterminal over the words i … j, i < j; None for zeros
    spans: Tensor = None  # type: ignore[assignment]


@dataclass(frozen=True)
class PCFG(AbstractStructure):
    """Parses of a sentence with a grammar of binary rules over K nonterminals and T preterminals.

    Scores `Parts(terms, rules, roots, spans)`. Symbols 0 … K − 1 are nonterminals and K … K + T − 1 are preterminals;
    S = K + T. terms (…, N, T) scores each preterminal at each word, rules (…, K, S, S) or (K, S, S) the rules a → b c,
    roots (…, K) or (K,) the nonterminal of the whole sentence, and spans (…, N, N, K), which may be left out, a
    nonterminal over the words from i to j, both included, i < j; other entries of spans are ignored. Preterminals stand
    over single words and nonterminals over two or more, so a sentence of one word has no parse. With
    log-probabilities as scores, the log-partition is the log-likelihood of the sentence; any other scores are allowed.
    A rule that is used several times counts as often.

    Args:
        lengths: the number of words of each sentence, at most N; integers that broadcast to the batch.

    Examples:
        The one nonterminal S (0) is made of two words, or of a word and an S:

        >>> import torch, structmax
        >>> rules = torch.full((1, 2, 2), -torch.inf)
        >>> rules[0, 1, 1] = rules[0, 1, 0] = 0.0
        >>> structure = structmax.PCFG()
        >>> best = structmax.argmax((torch.zeros(3, 1), rules, torch.zeros(1)), structure)
        >>> structure.decode(best)
        [(0, 2, 0), (0, 0, 1), (1, 2, 0), (1, 1, 1), (2, 2, 1)]
        >>> best.rules.int().tolist()
        [[[0, 0], [1, 1]]]

    Reference:
        Baker 1979, Trainable grammars for speech recognition; Kim, Dyer and Rush 2019, Compound probabilistic
        context-free grammars for grammar induction.
    """

    lengths: Tensor | None = None

    Parts: ClassVar[Any] = PCFGParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    regularised: ClassVar[tuple[str, ...] | None] = ("terms", "spans")

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or len(scores) not in (3, 4):
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a PCFG should be (terms, rules, roots) or (terms, rules, roots, spans), but are {got}."
            )
        named = PCFGParts(*scores)
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
        K = named.roots.shape[-1] if named.roots.dim() else 0
        wanted = {
            "roots": [(K,), (*batch, K)],
            "rules": [(K, K + T, K + T), (*batch, K, K + T, K + T)],
            "spans": [(*batch, N, N, K)],
        }
        for name, shapes in wanted.items():
            tensor = getattr(named, name)
            if tensor is not None and (tuple(tensor.shape) not in shapes or K == 0):
                said = " or ".join(map(str, dict.fromkeys(shapes)))
                raise ValueError(
                    f"`{name}` should have shape {said} to match `terms` {tuple(named.terms.shape)} and K = {K} "
                    f"nonterminals in `roots`, but has {tuple(tensor.shape)}. Symbols are the K nonterminals, then the "
                    f"{T} preterminals."
                )
        self.check_fields(batch, named.terms.shape[-2:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        terms, rules, roots, *rest = scores
        *batch, N, _ = terms.shape
        K = roots.shape[-1]
        spans = rest[0] if rest and rest[0] is not None else terms.new_zeros(*batch, N, N, K)
        if rules.dim() == 3:
            rules = rules.expand(*batch, *rules.shape)
        if roots.dim() == 1:
            roots = roots.expand(*batch, K)
        return terms, rules, roots, spans

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "words")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-2])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        terms, rules, roots, _ = tensors
        word = torch.arange(terms.shape[-2], device=terms.device)
        lengths = self.fields(tensors)["lengths"].unsqueeze(-1)
        some = lengths > 1
        # as many words as a rule takes: two under a nonterminal, one under a preterminal
        fewest = 1 + (torch.arange(rules.shape[-1], device=terms.device) < roots.shape[-1]).long()
        enough = fewest.unsqueeze(-1) + fewest <= lengths[..., None, None]
        within = (word.unsqueeze(-1) < word) & (word < lengths.unsqueeze(-1))
        return ((word < lengths) & some).unsqueeze(-1), enough, some, within.unsqueeze(-1)

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        return False, True, False, False

    def noise_size(self, scores: Scores) -> int:
        # One number for the root, then for each of N − 1 spans one for its rule and one for its split.
        return 2 * self.tensors(scores)[0].shape[-2] - 1

    def enumerate(self, scores: Scores) -> PCFGParts:
        tensors = self.tensors(scores)
        (N, T), K = tensors[0].shape, tensors[2].shape[0]
        length = N if self.lengths is None else int(self.lengths)
        every = _parses(0, length - 1, K, T) if length > 1 else [[]] * (length == 0)
        parses = check.few("PCFG", every, sum(t.numel() for t in tensors))
        terms, rules, roots, spans = (t.new_zeros(len(parses), *t.shape) for t in tensors)
        for m, parse in enumerate(parses):
            for i, j, symbol, *children in parse:
                if i == j:
                    terms[m, i, symbol - K] = 1
                else:
                    rules[(m, symbol, *children)] += 1
                    spans[m, i, j, symbol] = 1
            if parse:
                roots[m, parse[0][2]] = 1
        return PCFGParts(terms, rules, roots, spans)

    def decode(self, parts: Scores) -> Any:
        """The nodes (first word, last word, symbol) of each parse, parents first and left before right.

        Returns:
            A list of them for one instance, nested lists of such lists over the leading dimensions of `parts`.
        """
        terms, _, roots, spans = self.tensors(self.fitting(parts))
        if terms.dim() > 2:
            return [self.decode(PCFGParts(*one)) for one in zip(*self.tensors(parts), strict=True)]
        K = roots.shape[0]
        nodes = [(i, j, a) for i, j, a in spans.nonzero().tolist() if i < j]
        nodes += [(i, i, K + t) for i, t in terms.nonzero().tolist()]
        return sorted(nodes, key=lambda node: (node[0], -node[1]))

    def encode(self, nodes: Any, scores: Scores) -> PCFGParts:  # type: ignore[override]
        """Parts of nodes as `decode` returns them, in any order, shaped for `scores`, whose values do not matter."""
        tensors = self.tensors(scores)
        terms, rules, roots, spans = (
            t.new_zeros(t.shape[t.dim() - d :]) for t, d in zip(tensors, (2, 3, 1, 3), strict=True)
        )
        if nodes and isinstance(nodes[0], list):
            one = PCFGParts(terms, rules, roots, spans)
            lengths = [None] * len(nodes) if self.lengths is None else self.lengths.expand(_sizes(nodes))
            every = [replace(self, lengths=n).encode(parse, one) for parse, n in zip(nodes, lengths, strict=True)]
            return PCFGParts(*(torch.stack(column) for column in zip(*every, strict=True)))
        K = roots.shape[0]
        symbol = {(i, j): a for i, j, a in nodes}
        self._check_nodes(symbol, terms.shape[0], terms.shape[1], K)
        for (i, j), a in symbol.items():
            if i == j:
                terms[i, a - K] = 1
            else:
                k = next(k for k in range(i, j) if (i, k) in symbol and (k + 1, j) in symbol)
                rules[a, symbol[i, k], symbol[k + 1, j]] += 1
                spans[i, j, a] = 1
        if symbol:
            roots[symbol[min(symbol, key=lambda span: (span[0], -span[1]))]] = 1
        return PCFGParts(terms, rules, roots, spans)

    def _check_nodes(self, symbol: dict[tuple[int, int], int], N: int, T: int, K: int) -> None:
        """Nodes inside of the sentence, with symbols of their kind, each over two others: a whole parse, or nothing."""
        n = N if self.lengths is None else int(self.lengths)
        for (i, j), a in symbol.items():
            low, high, kind = (K, K + T, "preterminals") if i == j else (0, K, "nonterminals")
            if not (0 <= i <= j < n and low <= a < high):
                raise ValueError(
                    f"`nodes` should be (first word, last word, symbol) with words from 0 to {n - 1} and, over "
                    f"{'one word' if i == j else 'several words'}, {kind} from {low} to {high - 1}, "
                    f"but hold {(i, j, a)}. Try PCFG(lengths) for shorter sentences."
                )
        bare = [
            (i, j)
            for i, j in symbol
            if i < j and not any((i, k) in symbol and (k + 1, j) in symbol for k in range(i, j))
        ]
        if symbol and (bare or (0, n - 1) not in symbol or len(symbol) != 2 * n - 1):
            missing = f"{bare[0]} has no two children" if bare else f"{len(symbol)} nodes are no parse of {n} words"
            raise ValueError(
                f"`nodes` should be the 2n − 1 nodes of a binary tree over n words, but {missing}. "
                "Try the nodes `decode` returns."
            )


def _sizes(nested: Any) -> list[int]:
    """How long lists of lists are, down to the nodes."""
    return [len(nested), *_sizes(nested[0])] if nested and isinstance(nested[0], list) else []


def _parses(i: int, j: int, K: int, T: int) -> Iterator[list[tuple[int, ...]]]:
    """All parses of the words i … j: nodes (i, j, symbol) with, above single words, the symbols of their children."""
    if i == j:
        for t in range(T):
            yield [(i, i, K + t)]
        return
    for k in range(i, j):
        for left, right, a in product(list(_parses(i, k, K, T)), list(_parses(k + 1, j, K, T)), range(K)):
            yield [(i, j, a, left[0][2], right[0][2]), *left, *right]
