"""What the structures made of pairs share: the set of matchings, and how people read one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores


@dataclass(frozen=True)
class AbstractMatching(AbstractStructure):
    """Matchings of N rows with M columns. Subclasses answer the questions about them."""

    rows: Tensor | None = None
    columns: Tensor | None = None
    partial: bool = field(default=False, kw_only=True)

    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("rows", "columns")

    def __post_init__(self) -> None:
        if not isinstance(self.partial, bool):
            raise TypeError(
                f"`partial` should be True (anything may stay single) or False (the smaller side is matched entirely), "
                f"but is {self.partial!r}."
            )

    def check(self, scores: Scores) -> None:
        name = type(self).__name__
        if not isinstance(scores, Tensor):
            raise TypeError(
                f"`scores` of a {name} should be one tensor (…, N, M), one for each pair of a row and a column, "
                f"but are a {type(scores).__name__}."
            )
        if scores.dim() < 2:
            raise ValueError(f"`scores` of a {name} should have shape (…, N, M), but have {tuple(scores.shape)}.")
        self.check_fields(scores.shape[:-2], scores.shape[-2:])

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"rows": (event[0], "rows"), "columns": (event[1], "columns")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        N, M = tensors[0].shape[-2:]
        return {
            "rows": self.expanded("rows", tensors, default=N),
            "columns": self.expanded("columns", tensors, default=M),
            "partial": self.partial,
        }

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,), fields = tensors, self.fields(tensors)
        row, column = (torch.arange(size, device=x.device) for size in x.shape[-2:])
        rows, columns = (fields[name].unsqueeze(-1) for name in ("rows", "columns"))
        return ((row < rows).unsqueeze(-1) & (column < columns).unsqueeze(-2),)

    def log_bound(self, tensors: tuple[Tensor, ...]) -> float:
        """Each item of the smaller side takes another one of the larger side, or stays single."""
        few, many = sorted(tensors[0].shape[-2:])
        return few * math.log(many + 1) if self.partial else math.lgamma(many + 1) - math.lgamma(many - few + 1)

    def enumerate(self, scores: Scores) -> Tensor:
        (x,) = self.tensors(scores)
        N, M = x.shape
        n = N if self.rows is None else int(self.rows)
        m = M if self.columns is None else int(self.columns)
        singles = n if self.partial else max(n - m, 0)
        members = check.few(type(self).__name__, _injections(n, m, singles), x.numel())
        out = x.new_zeros(len(members), N, M)
        for member, pairs in zip(out, members, strict=True):
            for i, j in pairs:
                member[i, j] = 1
        return out

    def decode(self, parts: Scores) -> Tensor:
        """The column of each row, −1 where it is single or past its length: (…, N)."""
        (tensor,) = self.tensors(self.fitting(parts))
        if tensor.shape[-1] == 0:
            return torch.full(tensor.shape[:-1], -1, device=tensor.device)
        some, column = (tensor > 0).max(-1)
        return torch.where(some, column, -1)

    def encode(self, columns: Tensor, count: int) -> Tensor:  # type: ignore[override]
        """Parts (…, N, count) of the column of each row (…, N); `count` columns there are.

        −1 stands for none where a row may stay single. Rows past their number may hold anything.
        """
        check.whole_numbers("columns", columns)
        N = columns.shape[-1]
        n, m = (
            torch.full((1,), size, device=columns.device) if given is None else given.to(columns.device).unsqueeze(-1)
            for given, size in ((self.rows, N), (self.columns, count))
        )
        valid = (columns >= 0) & (columns < m)
        single = (columns == -1) & ((n > m) | self.partial)
        wanted = f"lie between 0 and {count - 1}, below the true number of columns"
        hint = f" Try {type(self).__name__}(rows, columns), or partial=True if rows may stay single, as −1."
        real = check.inside(self.rows, N, columns)
        here = (check.encodable("columns", columns, valid | single, real, wanted, hint) & valid).unsqueeze(-1)
        one_hot = columns.unsqueeze(-1) == torch.arange(count, device=columns.device)
        return (here & one_hot).to(torch.get_default_dtype())


def _injections(n: int, m: int, singles: int, taken: tuple[int, ...] = ()) -> Iterator[list[tuple[int, int]]]:
    """Every matching of rows 0 … n − 1 with columns that are not taken, as a list of pairs; some rows may be single."""
    if n == 0:
        yield []
        return
    if singles:
        yield from _injections(n - 1, m, singles - 1, taken)
    for j in range(m):
        if j not in taken:
            for rest in _injections(n - 1, m, singles, (*taken, j)):
                yield [*rest, (n - 1, j)]
