"""Monotone alignments of two sequences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from structmax import check
from structmax.contract import AbstractStructure, Scores

Place = tuple[int, int]
# By the number of its tensor in Parts; how far it leads in (rows, columns).
MOVES: tuple[Place, ...] = ((1, 1), (1, 0), (0, 1))


class GapParts(NamedTuple):
    """The parts of an alignment with gaps: which move leaves the boundary (i, j), of (N + 1) × (M + 1)."""

    # (…, N, M): item i of the one sequence is matched with item j of the other
    match: Tensor
    # (…, N, M + 1): item i is matched with nothing, before item j
    delete: Tensor
    # (…, N + 1, M): item j is matched with nothing, before item i
    insert: Tensor


@dataclass(frozen=True)
class MonotoneAlignment(AbstractStructure):
    """Monotone alignments of a sequence of N items with one of M.

    Time warping, the default: paths of cells from (0, 0) to (N − 1, M − 1) by steps down, right or diagonal, so that
    every item is aligned with at least one. Scores (…, N, M), one for each visited cell.

    With `gaps`: global alignments (Needleman and Wunsch). Scores `Parts(match, delete, insert)` of shapes (…, N, M),
    (…, N, M + 1) and (…, N + 1, M): a path leads over the boundaries between items, from (0, 0) to (N, M), and leaves
    boundary (i, j) by match[i, j] to (i + 1, j + 1), by delete[i, j] to (i + 1, j), or by insert[i, j] to (i, j + 1).
    `delete` and `insert` may have any shape that broadcasts to these, so also be a single number for every gap.

    With `gaps` and `local`: local alignments (Smith and Waterman). The path may start and end anywhere, but does so
    with a match; or it is empty, at score 0.

    Args:
        rows: the true N of each instance, at most N; integers that broadcast to the batch.
        columns: the true M of each instance.
        gaps: whether items may be left unaligned, at a score.
        local: whether a part of each sequence may be aligned.
        band: allows only cells (boundaries, with gaps) with |i − j| ≤ band (Sakoe and Chiba). An end outside the band
            cannot be reached.

    Examples:
        >>> import torch, structmax
        >>> scores = torch.tensor([[0.0, 0.0, -9.0], [-9.0, -9.0, 0.0]])
        >>> structure = structmax.MonotoneAlignment()
        >>> best = structmax.argmax(scores, structure)
        >>> best
        tensor([[1., 1., 0.],
                [0., 0., 1.]])
        >>> structure.decode(best)
        tensor([[ 0,  0],
                [ 0,  1],
                [ 1,  2],
                [-1, -1]])

    References:
        Sakoe and Chiba 1978, Dynamic programming algorithm optimization for spoken word recognition. Needleman and
        Wunsch 1970, A general method applicable to the search for similarities in the amino acid sequence of two
        proteins. Smith and Waterman 1981, Identification of common molecular subsequences.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None
    gaps: bool = field(default=False, kw_only=True)
    local: bool = field(default=False, kw_only=True)
    band: int | None = field(default=None, kw_only=True)

    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("rows", "columns")

    def __post_init__(self) -> None:
        if self.local and not self.gaps:
            raise ValueError("`local` alignments have gaps: `gaps` should be True, but is False. Try gaps=True.")
        if self.band is not None:
            check.whole("band", self.band, 0)

    @property
    def Parts(self) -> type[GapParts] | None:  # type: ignore[override]  # noqa: N802
        """The named tuple of parts with gaps; None without, where scores and parts are one tensor."""
        return GapParts if self.gaps else None

    def check(self, scores: Scores) -> None:
        named = self._named(scores)
        for name, tensor in named.items():
            check.floating(name, tensor)
        first_name, first = next(iter(named.items()))
        if first.dim() < 2:
            raise ValueError(
                f"`{first_name}` of a MonotoneAlignment should have shape (…, N, M), but has {tuple(first.shape)}."
            )
        for name, wanted in self._shapes(first).items():
            tensor = named[name]
            check.same_kind(name, tensor, "match", first)
            if not check.broadcasts(tensor.shape, wanted):
                raise ValueError(
                    f"`{name}` should broadcast to {tuple(wanted)} to fit `match` {tuple(first.shape)}, but has shape "
                    f"{tuple(tensor.shape)}. It scores moves between boundaries, of which there is one more than items."
                )

        self.check_fields(first.shape[:-2], first.shape[-2:])

    def _named(self, scores: Scores) -> dict[str, Tensor]:
        if not self.gaps:
            if not isinstance(scores, Tensor):
                raise TypeError(
                    f"`scores` of a MonotoneAlignment without gaps should be one tensor (…, N, M), but are a "
                    f"{type(scores).__name__}. Try gaps=True for scores (match, delete, insert)."
                )
            return {"scores": scores}
        if isinstance(scores, Tensor) or len(scores) != len(GapParts._fields):
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a MonotoneAlignment with gaps should be three tensors (match, delete, insert), but are "
                f"{got}. A single gap score is allowed: (match, torch.tensor(-1.0), torch.tensor(-1.0))."
            )
        return dict(zip(GapParts._fields, scores, strict=True))

    def _shapes(self, match: Tensor) -> dict[str, tuple[int, ...]]:
        """The full shapes of the gap scores."""
        *batch, N, M = match.shape
        return {"delete": (*batch, N, M + 1), "insert": (*batch, N + 1, M)} if self.gaps else {}

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        if isinstance(scores, Tensor):
            return (scores,)
        first, *rest = scores
        return first, *(tensor.expand(shape) for tensor, shape in zip(rest, self._shapes(first).values(), strict=True))

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"rows": (event[0], "rows"), "columns": (event[1], "columns")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        N, M = tensors[0].shape[-2:]
        return {
            "rows": self.expanded("rows", tensors, default=N),
            "columns": self.expanded("columns", tensors, default=M),
            "local": self.local,
            # the widest band that leaves something out is N + M − 1
            "band": N + M if self.band is None else min(self.band, N + M),
        }

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        fields = self.fields(tensors)
        n, m = (fields[name][..., None, None] for name in ("rows", "columns"))
        # a whole path ends at a place in the band
        reaches = self.local | ((n - m).abs() <= fields["band"])
        found = []
        for tensor, (down, right) in zip(tensors, MOVES, strict=False):
            i = torch.arange(tensor.shape[-2], device=tensor.device).unsqueeze(-1)
            j = torch.arange(tensor.shape[-1], device=tensor.device)
            # A gap of a local alignment has matches on both sides.
            margin = int(self.local and (down, right) != MOVES[0])
            inside = (i >= margin) & (j >= margin) & (i + down + margin <= n) & (j + right + margin <= m)
            near = ((i - j).abs() <= fields["band"]) & ((i + down - j - right).abs() <= fields["band"])
            found.append(inside & near & reaches)
        return tuple(found)

    def noise_size(self, scores: Scores) -> int:
        N, M = self.tensors(scores)[0].shape[-2:]
        return max(1, N + M + self.local)

    def enumerate(self, scores: Scores) -> Any:
        tensors = self.tensors(scores)
        N, M = tensors[0].shape
        n = N if self.rows is None else int(self.rows)
        m = M if self.columns is None else int(self.columns)
        paths = check.few("MonotoneAlignment", self._paths(n, m), sum(t.numel() for t in tensors))
        members = tuple(t.new_zeros(len(paths), *t.shape) for t in tensors)
        for k, path in enumerate(paths):
            for part, i, j in path:
                members[part][k, i, j] = 1
        return self.parts(members)

    def _paths(self, n: int, m: int) -> Iterator[list[tuple[int, int, int]]]:
        """Every member, as the parts (tensor, i, j) it has."""
        if not self.gaps:
            if n == 0 and m == 0:
                yield []
            for moves in self._walks((0, 0), (n - 1, m - 1)) if n and m else ():
                yield [(0, i, j) for _, i, j in moves] + [(0, n - 1, m - 1)]
        elif not self.local:
            yield from self._walks((0, 0), (n, m))
        else:
            yield []
            boundaries = [(i, j) for i in range(n + 1) for j in range(m + 1)]
            for start in boundaries:
                for end in boundaries:
                    for moves in self._walks(start, end):
                        if moves and moves[0][0] == 0 and moves[-1][0] == 0:
                            yield moves

    def _walks(self, start: Place, end: Place) -> Iterator[list[tuple[int, int, int]]]:
        """All ways from one place to another: lists of (move, i, j), the place being the one the move leaves."""
        i, j = start
        if i > end[0] or j > end[1] or (self.band is not None and abs(i - j) > self.band):
            return
        if start == end:
            yield []
        for move, (down, right) in enumerate(MOVES):
            for rest in self._walks((i + down, j + right), end):
                yield [(move, i, j), *rest]

    def decode(self, parts: Scores) -> Tensor:
        """The path in order, padded with −1.

        Time warping: the cells (i, j), (…, N + M − 1, 2). With gaps: (i, j, move), (…, N + M, 3), where the move from
        boundary (i, j) is 0 for match, 1 for delete and 2 for insert: the number of the tensor whose [i, j] is 1.
        """
        tensors = self.tensors(self.fitting(parts))
        N, M = tensors[0].shape[-2:]
        # All on one grid, 0 where there is no part: a path meets its places in the order of rows, then columns.
        grid = torch.zeros_like(pad(tensors[0], (0, self.gaps, 0, self.gaps)), dtype=torch.int64)
        for number, tensor in enumerate(tensors, 1):
            grid[..., : tensor.shape[-2], : tensor.shape[-1]] += number * (tensor > 0)
        width, longest = grid.shape[-1], max(0, N + M - (not self.gaps))
        flat = grid.flatten(-2)
        rank = (flat > 0).cumsum(-1) - 1
        place = torch.arange(flat.shape[-1], device=flat.device)
        columns = [place // max(1, width), place % max(1, width)]
        found = torch.stack([c.expand_as(flat) for c in columns] + ([flat - 1] if self.gaps else []), -1)
        # One row more, for the places off the path.
        path = found.new_full((*flat.shape[:-1], longest + 1, found.shape[-1]), -1)
        path.scatter_(-2, torch.where(flat > 0, rank, longest).unsqueeze(-1).expand_as(found), found)
        return path[..., :longest, :]

    def encode(self, path: Tensor, N: int, M: int) -> Any:  # type: ignore[override]
        """Parts from a path as `decode` returns it, for sequences of N and M items.

        Rows after the one that reaches the end are padding and may hold anything. A `local` alignment ends anywhere,
        and −1 stands for nothing.
        """
        check.whole_numbers("path", path)
        marks = self._marks(path, N, M)
        shapes = [(N, M), (N, M + 1), (N + 1, M)] if self.gaps else [(N, M)]
        parts = []
        for number, (height, width) in enumerate(shapes):
            here = marks & (path[..., 2] == number) if self.gaps else marks
            # One entry more, for what is not of this tensor.
            place = torch.where(here, path[..., 0] * width + path[..., 1], height * width)
            flat = torch.zeros(*place.shape[:-1], height * width + 1, device=path.device).scatter_(-1, place, 1.0)
            parts.append(flat[..., :-1].unflatten(-1, (height, width)))
        return self.parts(tuple(parts))

    def _marks(self, path: Tensor, N: int, M: int) -> Tensor:
        """Which rows of a path are steps of it; raises an error for those that are not connected."""
        n, m = (
            torch.full((1,), size, device=path.device) if given is None else given.to(path.device).unsqueeze(-1)
            for given, size in ((self.rows, N), (self.columns, M))
        )
        i, j = path[..., 0], path[..., 1]
        move = path[..., 2] if self.gaps else torch.zeros_like(i)
        # where the step leads: a cell counts as left for the one after it
        down, right = i + (move != 2).long(), j + (move != 1).long()
        valid = (i >= 0) & (j >= 0) & (down <= n) & (right <= m) & (move >= 0) & (move <= 2)
        wanted = f"be steps (row, column{', move' if self.gaps else ''}) inside of {N} × {M} items and the true sizes"
        if self.local:
            none = (path == -1).all(-1)
            hint = " −1 stands for nothing."
            return check.encodable("path", path, valid | none, None, wanted, hint, columns=True) & ~none
        ended = ((down == n) & (right == m)).long().cumsum(-1) > 0
        real = ~torch.nn.functional.pad(ended[..., :-1], (1, 0)) & ((n > 0) | (m > 0))
        hint = " Try `rows` and `columns`, which tell where the path ends and padding begins."
        return check.encodable("path", path, valid, real, wanted, hint, columns=True)
