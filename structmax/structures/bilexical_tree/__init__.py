"""Constituency trees whose spans have head words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores
from structmax.numerics.arcs import decode_arcs, encode_arcs, usable
from structmax.numerics.spans import decode_spans, encode_spans, real_spans


class BilexicalTreeParts(NamedTuple):
    """The parts of a bilexical tree."""

    # (…, N + 1, N + 1): arc[h, m] for h as the head of m; node 0 is the root, words are 1 … N
    arc: Tensor
    # (…, N, N): the span of the words i … j, counted from 0, i ≤ j
    span: Tensor
    # (…, N, N, N): head[i, j, h] for word h, counted from 0, as the head of the span; None for zeros
    head: Tensor = None  # type: ignore[assignment]


@dataclass(frozen=True)
class BilexicalTree(AbstractStructure):
    """Binary bracketings of N words in which every span has a head word, and with it a dependency tree of the words.

    A single word is the head of its span. A larger span is split into two and inherits the head of one of them; the
    head of the other becomes its dependent. The head of the whole hangs on the root. So constituents and dependencies
    are found together: a span is exactly what its head governs at some point of the way up.

    Scores `Parts(arc, span, head)`: arc (…, N + 1, N + 1) as those of `ProjectiveTree`, arc[h, m] is the score of h as
    the head of m, node 0 is the root and words are 1 … N; span (…, N, N) as those of `BinaryTree`, the span from word i
    to word j, both included, i ≤ j, counted from 0; and head (…, N, N, N), which may be left out, of word h, counted
    from 0 too, as the head of the span [i, j]. Other entries are ignored. A tree over n words has n arcs, 2n − 1 spans,
    and a head for each span; there are 2ⁿ⁻¹ times as many as bracketings. Bracketing and arcs tell all heads.

    Time and memory are O(N⁴).

    Args:
        lengths: the number of words of each instance, at most N; integers that broadcast to the batch.

    Examples:
        The second of two words governs the first:

        >>> import torch, structmax
        >>> arc = torch.zeros(3, 3)
        >>> arc[2, 1] = 1.0
        >>> structure = structmax.BilexicalTree()
        >>> heads, spans = structure.decode(structmax.argmax((arc, torch.zeros(2, 2)), structure))
        >>> heads.tolist(), spans.tolist()
        ([2, 0], [[0, 1], [0, 0], [1, 1]])
        >>> structmax.log_count((torch.zeros(4, 4), torch.zeros(3, 3)), structure).exp().round().item()
        8.0

    References:
        Eisner and Satta 1999, Efficient parsing for bilexical context-free grammars and head automaton grammars; Yang,
        Zhao and Tu 2021, Neural bi-lexicalized PCFG induction.
    """

    lengths: Tensor | None = None

    Parts: ClassVar[Any] = BilexicalTreeParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    regularised: ClassVar[tuple[str, ...] | None] = ("arc", "span")

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or len(scores) not in (2, 3):
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(f"`scores` of a BilexicalTree should be (arc, span) or (arc, span, head), but are {got}.")
        named = BilexicalTreeParts(*scores)
        for name, tensor in named._asdict().items():
            if tensor is not None:
                check.floating(name, tensor)
                check.same_kind(name, tensor, "arc", named.arc)
        if named.arc.dim() < 2 or named.arc.shape[-1] != named.arc.shape[-2] or named.arc.shape[-1] < 2:
            raise ValueError(
                "`arc` should have shape (…, N + 1, N + 1), row 0 for the root and N ≥ 1 words, "
                f"but has {tuple(named.arc.shape)}."
            )
        *batch, _, nodes = named.arc.shape
        N = nodes - 1
        for name, shape in {"span": (*batch, N, N), "head": (*batch, N, N, N)}.items():
            tensor = getattr(named, name)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ValueError(
                    f"`{name}` should have shape {shape} to match `arc` {tuple(named.arc.shape)}, which has a row for "
                    f"the root, but has {tuple(tensor.shape)}."
                )
        self.check_fields(batch, named.arc.shape[-2:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        arc, span, *rest = scores
        head = rest[0] if rest and rest[0] is not None else span.new_zeros(*span.shape, span.shape[-1])
        return arc, span, head

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0] - 1, "words without the root")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-1] - 1)}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nodes, lengths = tensors[0].shape[-1], self.fields(tensors)["lengths"]
        spans = real_spans(nodes - 1, lengths)
        return usable(nodes, lengths), spans, spans.unsqueeze(-1) & _inside(nodes - 1, lengths.device)

    def noise_size(self, scores: Scores) -> int:
        # One number for the word below the root, then for each of N − 1 spans one for its split and one for its
        # dependent.
        return 2 * self.tensors(scores)[0].shape[-1] - 3

    def enumerate(self, scores: Scores) -> BilexicalTreeParts:
        tensors = self.tensors(scores)
        N = tensors[1].shape[0]
        length = N if self.lengths is None else int(self.lengths)
        every = _trees(0, length - 1) if length else [([], [])]
        trees = check.few("BilexicalTree", every, sum(t.numel() for t in tensors))
        arc, span, head = (t.new_zeros(len(trees), *t.shape) for t in tensors)
        for member, (spans, arcs) in enumerate(trees):
            for i, j, h in spans:
                span[member, i, j] = head[member, i, j, h] = 1
            for h, m in arcs:
                arc[member, h + 1, m + 1] = 1
            if spans:
                arc[member, 0, spans[0][2] + 1] = 1
        return BilexicalTreeParts(arc, span, head)

    def decode(self, parts: Scores) -> tuple[Tensor, Tensor]:
        """The heads of words and the spans, both padded with −1.

        Returns:
            Heads (…, N) int64, word m at m − 1, 0 for the root; and spans (…, 2N − 1, 2) int64, rows (first word, last
            word) counted from 0, a parent before its children and the left child before the right.
        """
        arc, span, _ = self.tensors(self.fitting(parts))
        heads = decode_arcs(arc, False)
        assert isinstance(heads, Tensor)
        return heads, decode_spans(span)

    def encode(self, heads: Tensor, spans: Tensor, scores: Scores) -> BilexicalTreeParts:  # type: ignore[override]
        """Parts of heads and spans as `decode` returns them, shaped for `scores`, whose values do not matter.

        The heads of spans follow: the one word in it whose head is not. Words past the length may have any head.
        """
        like = self.tensors(scores)[1]
        N = like.shape[-1]
        if heads.shape[-1] != N:
            raise ValueError(
                f"`heads` should have shape (…, {N}), one for each word of the scores, but have {tuple(heads.shape)}."
            )
        arc = encode_arcs(heads, False, None, None, self.lengths).to(like)
        span = encode_spans(spans, like, self.lengths, "BilexicalTree")
        # (…, N, N, N): whether the head of word h, counted from 1, is a word of the span [i, j]
        word = torch.arange(N, device=heads.device)
        above = (heads.unsqueeze(-1).unsqueeze(-1) - 1).movedim(-3, -1)
        governed = (word.reshape(N, 1, 1) <= above) & (above <= word.reshape(N, 1))
        own = _inside(N, heads.device) & ~governed & (span > 0).unsqueeze(-1)
        self._check_heads(own, span)
        return BilexicalTreeParts(arc, span, own.to(like.dtype))

    @staticmethod
    def _check_heads(own: Tensor, span: Tensor) -> None:
        """Every span has one word whose head is not in it."""
        wrong = (own.sum(-1) != 1) & (span > 0)
        if check.readable(wrong) and bool(wrong.any()):
            *_, i, j = wrong.nonzero()[0].tolist()
            found = int(own.sum(-1)[wrong][0])
            raise ValueError(
                f"`heads` should be such that each span has one word whose head is not in it, but the span {[i, j]} "
                f"has {found}. Try the spans of a tree whose arcs do not cross its brackets."
            )


def _inside(size: int, device: torch.device) -> Tensor:
    """Whether word h is one of i … j: (size, size, size)."""
    word = torch.arange(size, device=device)
    return (word.reshape(-1, 1, 1) <= word) & (word <= word.reshape(-1, 1))


def _trees(i: int, j: int) -> Iterator[tuple[list[tuple[int, int, int]], list[tuple[int, int]]]]:
    """Every tree of the words i … j: its spans with their heads, the whole first, and its arcs from words."""
    if i == j:
        yield [(i, j, i)], []
    for k in range(i, j):
        for (left, some), (right, others) in product(_trees(i, k), list(_trees(k + 1, j))):
            for h, m in ((left[0][2], right[0][2]), (right[0][2], left[0][2])):
                yield [(i, j, h), *left, *right], [(h, m), *some, *others]
