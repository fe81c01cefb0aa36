"""The dependents of one head on one side of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


class HeadAutomatonParts(NamedTuple):
    """The parts of a choice of dependents."""

    # (…, n): candidate m is a dependent
    arc: Tensor
    # (…, n + 1, n + 1): after row s, the head (0) or candidate s − 1, comes column m, candidate m or the stop (n)
    sibling: Tensor


@dataclass(frozen=True)
class HeadAutomaton(AbstractStructure):
    """Dependents of one head on one side: a subset of n candidates in order, with scores for neighbours in it.

    The candidates are the words on one side of the head, the nearest first. A member is a path from the head through
    the chosen candidates, in order, to a stop. Scores `Parts(arc, sibling)`: arc (…, n), where arc[m] scores candidate
    m; sibling (…, n + 1, n + 1), where sibling[s, m] scores that candidate m comes right after candidate s − 1. Row 0
    is the head, for the first dependent, and column n the stop, for the last one; sibling[0, n] scores that there is
    none. Entries below the diagonal are ignored, since candidates never go back.

    Args:
        lengths: the number of candidates of each instance, at most n; integers that broadcast to the batch. The stop is
            the last column for all.

    Examples:
        Both candidates are good, but not together:

        >>> import torch, structmax
        >>> arc = torch.tensor([1.0, 2.0, -1.0])
        >>> sibling = torch.zeros(4, 4)
        >>> sibling[1, 1] = -5.0
        >>> automaton = structmax.HeadAutomaton()
        >>> best = structmax.argmax((arc, sibling), automaton)
        >>> best.arc
        tensor([0., 1., 0.])
        >>> automaton.decode(best)
        tensor([ 1,  3, -1, -1])

    Reference:
        Smith and Eisner 2008, Dependency parsing by belief propagation; Koo, Rush, Collins, Jaakkola and Sontag 2010,
        Dual decomposition for parsing with non-projective head automata.
    """

    lengths: Tensor | None = None

    Parts: ClassVar[Any] = HeadAutomatonParts
    event_dim: ClassVar[int] = 1
    per_instance: ClassVar[tuple[str, ...]] = ("lengths",)
    regularised: ClassVar[tuple[str, ...] | None] = ("arc",)

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or len(scores) != 2:
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a HeadAutomaton should be two tensors (arc, sibling), but are {got}. Without preferences "
                "for neighbours, let sibling be torch.zeros(n + 1, n + 1)."
            )
        arc, sibling = scores
        if arc.dim() < 1 or arc.shape[-1] < 1:
            raise ValueError(
                f"`arc` should have shape (…, n) with n ≥ 1, one for each candidate, but has {tuple(arc.shape)}. "
                "Instances without candidates have length 0."
            )
        *batch, n = arc.shape
        wanted = (*batch, n + 1, n + 1)
        if tuple(sibling.shape) != wanted:
            raise ValueError(
                f"`sibling` should have shape {wanted}, a row for the head and a column for the stop, to match `arc` "
                f"{tuple(arc.shape)}, but has {tuple(sibling.shape)}. Try sibling.expand(*arc.shape[:-1], -1, -1)."
            )
        check.same_kind("sibling", sibling, "arc", arc)
        self.check_fields(batch, arc.shape[-1:])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"lengths": (event[0], "candidates")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"lengths": self.expanded("lengths", tensors, default=tensors[0].shape[-1])}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arc = tensors[0]
        n = arc.shape[-1]
        row, column = torch.arange(n + 1, device=arc.device).unsqueeze(-1), torch.arange(n + 1, device=arc.device)
        lengths = self.fields(tensors)["lengths"][..., None, None]
        here = (row <= lengths) & (row <= column) & ((column < lengths) | (column == n))
        return column[:n] < lengths[..., 0], here

    def enumerate(self, scores: Scores) -> HeadAutomatonParts:
        arc, sibling = self.tensors(scores)
        n = len(arc)
        length = n if self.lengths is None else int(self.lengths)
        chosen = ([m for m, on in enumerate(row) if on] for row in product((0, 1), repeat=length))
        every = check.few("HeadAutomaton", (path + [n] * (n + 1 - len(path)) for path in chosen), (n + 1) ** 2 + n)
        parts = self.encode(torch.tensor(every), n)
        return HeadAutomatonParts(parts.arc.to(arc), parts.sibling.to(sibling))

    def decode(self, parts: Scores) -> Tensor:
        """The dependents in order, then n, the stop, padded with −1: (…, n + 1) int64."""
        arc, sibling = self.fitting(parts)
        n = arc.shape[-1]
        column = torch.arange(n + 1, device=arc.device)
        reached = torch.where((sibling > 0).any(-2), column, n + 1).sort(-1).values
        return torch.where(reached <= n, reached, -1)

    def encode(self, path: Tensor, n: int) -> HeadAutomatonParts:  # type: ignore[override]
        """Parts of a path (…, L) among n candidates, as `decode` returns it: ascending, and then n, the stop.

        What follows the stop is padding and may hold anything.
        """
        check.whole_numbers("path", path)
        length = n if self.lengths is None else self.lengths.to(path.device).unsqueeze(-1)
        before = torch.nn.functional.pad(path[..., :-1], (1, 0), value=-1)
        stops = path == n
        real = stops.cumsum(-1) - stops.long() == 0
        valid = stops | ((path > before) & (path < length))
        # a path without an end is none
        valid = valid & stops.any(-1, keepdim=True)
        wanted = (
            f"be candidates from 0 to {n - 1}, ascending"
            + ("" if self.lengths is None else " and below the lengths")
            + f", and then {n}, the stop"
        )
        hint = f" Try a row such as [0, {n}] for the first candidate alone."
        here = check.encodable("path", path, valid, real, wanted, hint)
        size, dtype = n + 1, torch.get_default_dtype()
        place = torch.where(here, (before + 1) * size + path, size * size)
        zeros = torch.zeros(*path.shape[:-1], size * size + 1, device=path.device, dtype=dtype)
        sibling = zeros.scatter(-1, place, 1.0)[..., :-1].unflatten(-1, (size, size))
        return HeadAutomatonParts(sibling[..., :n].sum(-2), sibling)
