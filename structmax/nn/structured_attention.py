"""Attention whose weights are an answer of a structure: which keys are read is decided together, not row by row.

    scores S = Q Kᵀ / √d  →  scores θ of a structure  →  an answer, such as its marginals  →  weights

How S becomes θ, and the answer weights, is the layout's business: `Pairs`, `Segments`, `Steps` or `Trees`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.estimators.surrogate import AbstractSurrogate, surrogate
from structmax.nn.attention import AbstractAttention, Attended
from structmax.outline import name_of
from structmax.questions.log_partition import marginals
from structmax.structures.linear_chain import LinearChain

Answer = Callable[[Scores, AbstractStructure], Any]
Lengths = Tensor | None


class AbstractLayout(nn.Module, ABC):
    """How a structure lies over queries and keys."""

    @abstractmethod
    def keys(self, key: Tensor) -> Tensor:
        """What can be read: the keys (…, K, size), with anything the layout puts in front of them."""

    @abstractmethod
    def forward(self, scores: Tensor, answer: Answer, query_lengths: Lengths, lengths: Lengths) -> Tensor:
        """Weights (…, Q, K) of scores (…, Q, K)."""


class Pairs(AbstractLayout):
    """A structure whose parts are pairs of a query and a key: scores and parts are (…, Q, K), as they are.

    Args:
        structure: from the lengths of queries and keys, each None or integers that broadcast to the batch, to the
            structure: `Matching`, `MonotoneAlignment`, or `lambda queries, keys: Subset(3)` for a set of keys for each
            query. Pairs past the lengths are forbidden, for structures that know no lengths too.

    Examples:
        >>> import structmax
        >>> structmax.nn.StructuredAttention(16, structmax.nn.Pairs(structmax.Matching), structmax.sparse_marginals)
        StructuredAttention(
          16, heads=1, answer=sparse_marginals
          (out_proj): Linear(in_features=16, out_features=16, bias=True)
          (layout): Pairs(Matching)
        )
    """

    def __init__(self, structure: Callable[[Lengths, Lengths], AbstractStructure]) -> None:
        super().__init__()
        _check_function(structure)
        self.structure = structure

    def extra_repr(self) -> str:
        return name_of(self.structure)

    def keys(self, key: Tensor) -> Tensor:
        return key

    def forward(self, scores: Tensor, answer: Answer, query_lengths: Lengths, lengths: Lengths) -> Tensor:
        if query_lengths is not None:
            scores = scores.masked_fill(~check.prefix(query_lengths, scores[..., 0]).unsqueeze(-1), -torch.inf)
        return answer(_readable(scores, lengths), self.structure(query_lengths, lengths))


class Segments(AbstractLayout):
    """Each query selects keys, and prefers to select neighbours: a `LinearChain` over the keys with the tags out, in.

    θ.unary[k] = [0, S[k]], and θ.pairwise is learnt, one for all queries. The weight of a key is that of the tag "in".
    Weights lie in [0, 1], but need not sum to 1.

    Examples:
        >>> import torch, structmax
        >>> attention = structmax.nn.StructuredAttention(16, structmax.nn.Segments())
        >>> attention(torch.randn(2, 1, 16), torch.randn(2, 7, 16)).weights.shape
        torch.Size([2, 1, 1, 7])
    """

    def __init__(self) -> None:
        super().__init__()
        self.pairwise = nn.Parameter(torch.zeros(2, 2))

    def keys(self, key: Tensor) -> Tensor:
        return key

    def forward(self, scores: Tensor, answer: Answer, query_lengths: Lengths, lengths: Lengths) -> Tensor:
        unary = torch.stack([torch.zeros_like(scores), scores], -1)
        keys = None if lengths is None else lengths.unsqueeze(-1)
        if query_lengths is not None:
            # A query that is padding has nothing to read.
            keys = (scores.shape[-1] if keys is None else keys) * check.prefix(query_lengths, scores[..., 0])
        chain = LinearChain(keys)
        return answer(chain.Parts(unary, self.pairwise.to(scores.dtype)), chain).unary[..., 1]


class Steps(AbstractLayout):
    """Queries read keys in learnt steps, such as to the next key: a `LinearChain` over the queries, labelled with keys.

    θ.unary = S, and θ.pairwise[i, j] is the score of the step from key i to key j, which depends on j − i. To begin at
    the first key and to end at the last have scores of their own. All of these are learnt, and 0 at first. The weights
    of a query sum to 1, or are all 0 where there is no key or no query.

    Args:
        reach: the steps −reach … reach have a score each; longer ones have that of the longest in their direction.

    Examples:
        >>> import torch, structmax
        >>> attention = structmax.nn.StructuredAttention(16, structmax.nn.Steps(), structmax.sparse_marginals)
        >>> weights = attention(torch.randn(2, 4, 16), torch.randn(2, 7, 16), lengths=torch.tensor([7, 5])).weights
        >>> weights.shape, weights[1, ..., 5:].any()
        (torch.Size([2, 1, 4, 7]), tensor(False))

    Reference: Niculae, Martins, Blondel & Cardie 2018, section 5.2, https://arxiv.org/abs/1802.04223.
    """

    def __init__(self, reach: int = 2) -> None:
        super().__init__()
        check.whole("reach", reach, 1)
        self.reach = reach
        self.steps = nn.Parameter(torch.zeros(2 * reach + 1))
        self.ends = nn.Parameter(torch.zeros(2))

    def extra_repr(self) -> str:
        return f"reach={self.reach}"

    def keys(self, key: Tensor) -> Tensor:
        return key

    def forward(self, scores: Tensor, answer: Answer, query_lengths: Lengths, lengths: Lengths) -> Tensor:
        *batch, _, K = scores.shape
        steps, (first, last) = self.steps.to(scores.dtype), self.ends.to(scores.dtype)
        place = torch.arange(K, device=scores.device)
        pairwise = steps[(place - place.unsqueeze(-1)).clamp(-self.reach, self.reach) + self.reach]
        count = K if lengths is None else lengths.to(scores.device).unsqueeze(-1)
        begin, end = first * (place == 0), last * (place + 1 == count)
        chain = LinearChain(query_lengths)
        parts = chain.Parts(_readable(scores, lengths), pairwise, begin, end.expand(*batch, K))
        return answer(parts, chain).unary


class Trees(AbstractLayout):
    """Each word reads its head in a dependency tree: self-attention of N words over N + 1 keys, the root in front.

    θ[h, m] = S[m, h], and the weight with which word m reads node h is that of the arc from h to m. The root is a
    vector that is learnt, as if it were one more word.

    Args:
        size: of a word.
        structure: from the lengths, None or integers that broadcast to the batch, to the structure:
            `lambda lengths: SpanningTree(lengths, single_root=True)`, or the same of `ProjectiveTree`.

    Examples:
        >>> import torch, structmax
        >>> layout = structmax.nn.Trees(16, lambda lengths: structmax.SpanningTree(lengths, single_root=True))
        >>> attention = structmax.nn.StructuredAttention(16, layout)
        >>> weights = attention(torch.randn(2, 6, 16), lengths=torch.tensor([6, 3])).weights
        >>> weights.shape, weights[1, 0].sum(-1).round(decimals=3)
        (torch.Size([2, 1, 6, 7]), tensor([1., 1., 1., 0., 0., 0.], grad_fn=<RoundBackward1>))
    """

    def __init__(self, size: int, structure: Callable[[Lengths], AbstractStructure]) -> None:
        super().__init__()
        check.whole("size", size, 1)
        _check_function(structure)
        self.structure = structure
        self.root = nn.Parameter(torch.randn(size) * size**-0.5)

    def extra_repr(self) -> str:
        return f"{len(self.root)}, {name_of(self.structure)}"

    def keys(self, key: Tensor) -> Tensor:
        if len(self.root) != key.shape[-1]:
            raise ValueError(
                f"`size` of Trees should be {key.shape[-1]}, as of the attention, but is {len(self.root)}."
            )
        root = self.root.to(key.dtype).expand(*key.shape[:-2], 1, key.shape[-1])
        return torch.cat([root, key], -2)

    def forward(self, scores: Tensor, answer: Answer, query_lengths: Lengths, lengths: Lengths) -> Tensor:
        if scores.shape[-1] != scores.shape[-2] + 1:
            raise ValueError(
                "`key` should be left out with Trees, where words read one another, but there are "
                f"{scores.shape[-1] - 1} keys for {scores.shape[-2]} queries."
            )
        # (…, N + 1, N + 1): nothing leads to the root
        arcs = functional.pad(scores.mT, (1, 0))
        return answer(arcs, self.structure(lengths))[..., 1:].mT


def _readable(scores: Tensor, lengths: Lengths) -> Tensor:
    """Scores (…, Q, K) with keys past the lengths forbidden."""
    if lengths is None:
        return scores
    return scores.masked_fill(~check.prefix(lengths.unsqueeze(-1), scores), -torch.inf)


def _check_function(structure: object) -> None:
    if not callable(structure):
        raise TypeError(
            f"`structure` should be a function from lengths to a structure, but is {structure!r}. Try the class, such "
            "as Matching, or a lambda."
        )


class StructuredAttention(AbstractAttention):
    """Multi-head attention whose weights are an answer of a structure over queries and keys.

    Args:
        size: of queries, keys, values and outputs; the heads share it evenly.
        layout: how the structure uses scores: `Pairs(structure)`, `Segments()`, `Steps()`, `Trees(size, structure)`,
            or your own.
        answer: any question of scores and a structure to parts, such as `structmax.marginals` (the default) or
            `structmax.sparse_marginals`; or an estimator for `structmax.surrogate`, such as `StraightThrough()`,
            `Spigot()`, `PerturbAndMAP()`: then each query reads a discrete structure.
        heads: how many; each has its own structure.
        dropout: the share of weights that training leaves out; the weights that are returned are whole.

    Examples:
        >>> import torch, structmax
        >>> aligned = structmax.nn.StructuredAttention(
        ...     16, structmax.nn.Pairs(structmax.Matching), structmax.estimators.StraightThrough(), heads=2)
        >>> output, weights = aligned(torch.randn(3, 4, 16), torch.randn(3, 5, 16))
        >>> weights.shape, weights.sum(-1).unique()
        (torch.Size([3, 2, 4, 5]), tensor([1.], grad_fn=<Unique2Backward0>))

    Reference: Kim, Denton, Hoang & Rush 2017, Structured attention networks, https://arxiv.org/abs/1702.00887; sparse
    Niculae, Martins, Blondel & Cardie 2018, https://arxiv.org/abs/1802.04223.
    """

    def __init__(
        self,
        size: int,
        layout: AbstractLayout,
        answer: Answer | AbstractSurrogate = marginals,
        heads: int = 1,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(size, heads, dropout)
        if not isinstance(layout, AbstractLayout):
            raise TypeError(
                "`layout` should relate the structure to queries and keys, but is "
                f"{layout!r}. Try Pairs(Matching), Segments(), Steps() or Trees(size, lambda lengths: …)."
            )
        if isinstance(answer, type):
            raise TypeError(f"`answer` should be a question or an estimator, but is a class. Try {answer.__name__}().")
        self.layout = layout
        self.answer = answer

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, answer={name_of(self.answer)}"

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        query_lengths: Tensor | None = None,
    ) -> Attended:
        """What each query reads.

        Args:
            query: (…, Q, size), with any leading batch dimensions.
            key: (…, K, size); by default the query: self-attention.
            value: (…, K, size); by default the key. `Trees` reads words alone.
            lengths: how many keys each instance has, at most K; integers that broadcast to the batch. Entries
                past them have weight and gradient 0, whatever they hold.
            query_lengths: the same of queries; in self-attention either stands for both.

        Returns:
            `Attended(output, weights)`: (…, Q, size) and (…, heads, Q, K), for `Trees` (…, heads, N, N + 1).
        """
        if key is None and lengths is None:
            lengths = query_lengths
        of_query = lengths if key is None and query_lengths is None else query_lengths
        query, key, value = self.sequences(query, key, value, lengths, query_lengths)
        readable = self.layout.keys(key)
        q, k, v = self.projected(query, readable, readable if value is key else self.layout.keys(value))
        # one structure for each head
        per_head = (None if n is None else n.to(q.device).unsqueeze(-1) for n in (of_query, lengths))
        weights = self.layout(q @ k.mT, self._ask, *per_head)
        return self.read(weights, v)

    def _ask(self, scores: Scores, structure: AbstractStructure) -> Any:
        if isinstance(self.answer, AbstractSurrogate):
            return surrogate(scores, structure, self.answer)
        return self.answer(scores, structure)
