"""Label sequences in which one label has a budget. Derivation: README.md in this folder."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.contract import Scores
from structmax.recursion.edges import Hyperedges, Recursion
from structmax.structures.linear_chain import LinearChain, LinearChainParts


@dataclass(frozen=True)
class BudgetChain(LinearChain):
    """Sequences of N labels out of C in which one label occurs exactly k times, or at most `at_most` times.

    Scores, lengths and gaps are those of `LinearChain`: `Parts(unary, pairwise, start, end)`. With two labels, off and
    on, it is a sequence from which k positions are taken: a summary, or a compressed sentence, whose neighbours have
    scores.

    Args:
        k: how often the label occurs. An instance with fewer positions has no member.
        at_most: instead of k, how often it may occur.
        label: which of the C labels has the budget.
        lengths: the number of positions of each instance, at most N; integers that broadcast to the batch.
        keep: instead of lengths, which positions count, (…, N) bool.

    Examples:
        Two words of five, which are better together:

        >>> import torch, structmax
        >>> unary = torch.stack([torch.zeros(5), torch.tensor([1.0, 0.0, 2.0, 1.5, 0.0])], -1)
        >>> pairwise = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
        >>> chain = structmax.BudgetChain(2)
        >>> chain.decode(structmax.argmax((unary, pairwise), chain))
        tensor([0, 0, 1, 1, 0])
        >>> structmax.log_count((unary, pairwise), chain).exp()
        tensor(10.0000, dtype=torch.float64)

    Reference:
        Almeida and Martins 2013, Fast and robust compressive summarization with dual decomposition and multi-task
        learning.
    """

    k: int | None = None
    at_most: int | None = field(default=None, kw_only=True)
    label: int = field(default=1, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True)
    keep: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.k is None) == (self.at_most is None):
            given = "both" if self.k is not None else "none"
            raise TypeError(
                "a BudgetChain should be given either `k`, how often the label occurs, or `at_most`, but is given "
                f"{given}. Try BudgetChain(k) or BudgetChain(at_most=k)."
            )
        check.whole("k" if self.at_most is None else "at_most", self.size, 0)
        check.whole("label", self.label, 0)

    @property
    def size(self) -> Any:
        return self.k if self.at_most is None else self.at_most

    def check(self, scores: Scores) -> None:
        super().check(scores)
        if scores[0].shape[-1] <= self.label:
            raise ValueError(
                f"`label` should be one of the {scores[0].shape[-1]} labels of `unary` {tuple(scores[0].shape)}, "
                f"counted from 0, but is {self.label}."
            )

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return super().fields(tensors) | {"size": self.size, "exact": self.at_most is None, "label": self.label}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        unary, pairwise = tensors
        lengths = super().fields(tensors)["lengths"]
        here, pairs = super().exists(tensors)
        on = (torch.arange(unary.shape[-1], device=unary.device) == self.label).long()
        both = on.unsqueeze(-1) + on
        one = self._possible(on, 1, lengths[..., None, None])
        two = self._possible(both, 2, lengths[..., None, None])
        return here & one, pairs & (two.unsqueeze(-3) if pairwise.dim() > unary.dim() else two)

    def _possible(self, on: Tensor, given: int, lengths: Tensor) -> Tensor:
        """Whether a sequence has so many given labels, `on` of which are the one with the budget."""
        most = lengths - given + on
        least = on if on.shape[-1] > 1 else most
        return (least <= self.size) & ((most >= self.size) | (self.at_most is not None))

    def enumerate(self, scores: Scores) -> Any:
        every = super().enumerate(scores)
        counts = every.unary[..., self.label].sum(-1)
        return LinearChainParts(*(t[self._within(counts)] for t in every[:2]))

    def _within(self, counts: Tensor) -> Tensor:
        return counts == self.size if self.at_most is None else counts <= self.size

    def encode(self, labels: Tensor, scores: Scores) -> LinearChainParts:  # type: ignore[override]
        """Parts of labels (…, N), as for a `LinearChain`; the label with a budget should keep to it."""
        parts = super().encode(labels, scores)
        counts = parts.unary[..., self.label].sum(-1)
        # nothing is feasible where there is no label
        wrong = ~self._within(counts) & parts.unary.flatten(-2).any(-1)
        if check.readable(wrong) and bool(wrong.any()):
            raise ValueError(
                f"`labels` should hold label {self.label} {'exactly' if self.at_most is None else 'at most'} "
                f"{self.size} times, but hold it {int(counts[wrong][0])} times."
            )
        return parts

    @staticmethod
    def recursion(unary: Tensor, pairwise: Tensor, *, lengths: Tensor, size: int, exact: bool, label: int) -> Recursion:
        """The goal of length n + 1 is end(n); that of length 0 the empty sequence, or nothing where labels are due."""
        N, C = unary.shape[1:]
        edges = _edges(N, C, pairwise.dim() == 4, size, exact, label)
        empty = NOTHING if exact and size else EMPTY
        return Recursion(edges, torch.where(lengths > 0, len(edges.first) - 2 - N + lengths, empty))

    @staticmethod
    def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
        """A call, from which others follow."""
        fields = {"lengths": torch.full((1,), 2, device=x.device), "size": 1, "exact": True, "label": 1}
        yield "log_partition", (x.new_zeros(1, 2, 2), x.new_zeros(1, 2, 2)), fields


# The empty sequence, and what cannot be derived.
EMPTY, NOTHING = 0, 1


@lru_cache(maxsize=8)
def _edges(N: int, C: int, per_position: bool, size: int, exact: bool, label: int) -> Hyperedges:
    """Nodes state(n, c, k) for position, label and how often the label with the budget occurs so far, then end(n)."""
    S = min(size, N) + 1

    def state(n: Tensor, c: Tensor, k: Tensor) -> Tensor:
        return NOTHING + 1 + (n * C + c) * S + k

    def reached(n: Tensor, c: Tensor, k: Tensor) -> Tensor:
        """Whether some sequence ends so."""
        on = (c == label).long()
        return (k >= (on if C > 1 else n + 1)) & (k <= n + on)

    every, none = torch.arange(C), torch.tensor([-1])
    first = (every == label).long()
    here = every[first < S]
    start = torch.zeros_like(here)
    edges = [
        (torch.tensor([EMPTY]), none, none, none),
        (state(start, here, first[here]), none.expand(len(here)), here, none.expand(len(here))),
    ]
    # state(n, c, k) from state(n − 1, i, k), or k − 1 where c has the budget
    counts = torch.arange(S)
    n, c, k, i = (t.flatten() for t in torch.meshgrid(torch.arange(1, N), every, counts, every, indexing="ij"))
    before = k - (c == label).long()
    takes = reached(n - 1, i, before)
    n, c, k, i, before = (t[takes] for t in (n, c, k, i, before))
    matrix = (n - 1) * C * C if per_position else 0
    edges.append((state(n, c, k), state(n - 1, i, before), n * C + c, N * C + matrix + i * C + c))
    # end(n) from state(n, c, k)
    n, c, k = (t.flatten() for t in torch.meshgrid(torch.arange(N), every, counts, indexing="ij"))
    ends = reached(n, c, k) & (k == size if exact else k <= size)
    n, c, k = (t[ends] for t in (n, c, k))
    last = NOTHING + 1 + N * C * S
    edges.append((last + n, state(n, c, k), none.expand(len(n)), none.expand(len(n))))
    head, tail, one, pair = (torch.cat(column) for column in zip(*edges, strict=True))
    return Hyperedges.of(head, tail.unsqueeze(1), torch.stack([one, pair], 1), last + N)
