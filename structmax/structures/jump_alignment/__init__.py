"""Monotone alignments whose steps go over to the next column, and down by several rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractStructure, Scores

Place = tuple[int, int]


class JumpParts(NamedTuple):
    """The parts of an alignment with jumps."""

    # (…, N, M): the path visits cell (i, j)
    cell: Tensor
    # (…, K, N, M): it enters cell (i, j) from (i − k, j − 1)
    step: Tensor
    # (…, N, M): it enters cell (i, j) from (i − 1, j); None if it may not
    down: Tensor = None  # type: ignore[assignment]


@dataclass(frozen=True)
class JumpAlignment(AbstractStructure):
    """Monotone alignments of M columns with N rows, in which a step to the next column goes down by 0 … K − 1 rows.

    Paths of cells from (0, 0) to (N − 1, M − 1). Scores `Parts(cell, step, down)`: cell (…, N, M) scores the cells of
    the path, and step[k, i, j], (…, K, N, M), a step into cell (i, j) from (i − k, j − 1). Without `down` each column
    has one cell: with K = 2 every frame of speech stays at its token or goes on to the next, and with K = 3 a token may
    be left out. With `down`, (…, N, M), steps from (i − 1, j) to (i, j) are possible too. `step` and `down` may have
    any shape that broadcasts to these, of which `step` says K: a number for each jump is (K, 1, 1).

    Args:
        rows: the true N of each instance, at most N; integers that broadcast to the batch.
        columns: the true M of each instance.

    Examples:
        The second row is left out, by a jump of two:

        >>> import torch, structmax
        >>> cell = torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 1.0]])
        >>> structure = structmax.JumpAlignment()
        >>> best = structmax.argmax((cell, torch.zeros(3, 1, 1)), structure)
        >>> best.cell
        tensor([[1., 1., 0., 0.],
                [0., 0., 0., 0.],
                [0., 0., 1., 1.]])
        >>> structure.decode(best)
        tensor([[0, 0],
                [0, 1],
                [2, 2],
                [2, 3]])

    References:
        McCallum, Bellare and Pereira 2005, A conditional random field for discriminatively-trained finite-state string
        edit distance. Kim et al. 2020, Glow-TTS: a generative flow for text-to-speech via monotonic alignment search.
    """

    rows: Tensor | None = None
    columns: Tensor | None = None

    Parts: ClassVar[Any] = JumpParts
    event_dim: ClassVar[int] = 2  # type: ignore[misc]
    per_instance: ClassVar[tuple[str, ...]] = ("rows", "columns")
    # the cells say which steps lead to them
    regularised: ClassVar[tuple[str, ...] | None] = ("cell",)

    def check(self, scores: Scores) -> None:
        if isinstance(scores, Tensor) or len(scores) not in (2, 3):
            got = "one tensor" if isinstance(scores, Tensor) else f"{len(scores)} tensors"
            raise TypeError(
                f"`scores` of a JumpAlignment should be (cell, step) or (cell, step, down), but are {got}. "
                "Without preferences for jumps of 0 … K − 1 rows, let step be torch.zeros(K, 1, 1)."
            )
        cell, step, down = JumpParts(*scores)
        if cell.dim() < 2 or 0 in cell.shape[-2:]:
            raise ValueError(f"`cell` should have shape (…, N, M) with N, M ≥ 1, but has {tuple(cell.shape)}.")
        if step.dim() < 3 or step.shape[-3] == 0:
            raise ValueError(
                f"`step` should have a dimension K ≥ 1 for jumps of 0 … K − 1 rows before its last two, but has shape "
                f"{tuple(step.shape)}. A score for each jump is `step[:, None, None]`."
            )
        for name, tensor, wanted in zip(("step", "down"), (step, down), _shapes(cell, step), strict=True):
            if tensor is None:
                continue
            check.same_kind(name, tensor, "cell", cell)
            if not check.broadcasts(tensor.shape, wanted):
                raise ValueError(
                    f"`{name}` should broadcast to {wanted} to fit `cell` {tuple(cell.shape)}, but has shape "
                    f"{tuple(tensor.shape)}."
                )
        self.check_fields(cell.shape[:-2], cell.shape[-2:])

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        cell, step, down = JumpParts(*scores)
        steps, downs = _shapes(cell, step)
        return (cell, step.expand(steps)) if down is None else (cell, step.expand(steps), down.expand(downs))

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {"rows": (event[0], "rows"), "columns": (event[1], "columns")}

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        N, M = tensors[0].shape[-2:]
        sizes = {"rows": N, "columns": M}
        return {name: self.expanded(name, tensors, default=size) for name, size in sizes.items()}

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        cell, step, *down = tensors
        N, M = cell.shape[-2:]
        n, m = (length[..., None, None] for length in self.fields(tensors).values())
        i, j = torch.arange(N, device=cell.device).unsqueeze(-1), torch.arange(M, device=cell.device)
        k = torch.arange(step.shape[-3], device=cell.device)[:, None, None]
        most = step.shape[-3] - 1

        def begins(i: Tensor, j: Tensor) -> Tensor:
            """Whether a path leads to a cell."""
            return (i >= 0) & (j >= 0) & (bool(down) | (i <= most * j))

        # whether one leads on from there
        ends = (i < n) & (j < m) & (bool(down) | (n - 1 - i <= most * (m - 1 - j)))
        found = begins(i, j) & ends, begins(i - k, j - 1) & ends.unsqueeze(-3)
        return (*found, begins(i - 1, j) & ends) if down else found

    def noise_size(self, scores: Scores) -> int:
        # A number for each step.
        return sum(self.tensors(scores)[0].shape[-2:])

    def enumerate(self, scores: Scores) -> JumpParts:
        tensors = self.tensors(scores)
        (N, M), (K, *_) = tensors[0].shape, tensors[1].shape
        n = N if self.rows is None else int(self.rows)
        m = M if self.columns is None else int(self.columns)
        found = _paths((n - 1, m - 1), K, len(tensors) == 3) if n and m else [[]] * (n == m)
        paths = check.few("JumpAlignment", found, sum(t.numel() for t in tensors))
        members = tuple(t.new_zeros(len(paths), *t.shape) for t in tensors)
        for number, path in enumerate(paths):
            for place in path:
                members[0][(number, *place)] = 1
            for (above, before), (i, j) in pairwise(path):
                if before < j:
                    members[1][number, i - above, i, j] = 1
                else:
                    members[2][number, i, j] = 1
        return self.parts(members)

    def decode(self, parts: Scores) -> Tensor:
        """The cells (i, j) of the path in order, padded with −1: (…, M, 2), or (…, N + M − 1, 2) with `down`."""
        cell, _, *down = self.tensors(self.fitting(parts))
        N, M = cell.shape[-2:]
        # A path meets its cells in the order of rows, then columns: those off it come last.
        place = torch.where(cell.flatten(-2) > 0, torch.arange(N * M, device=cell.device), N * M)
        place = place.sort(-1).values[..., : N + M - 1 if down else M]
        return torch.stack([place // M, place % M], -1).masked_fill((place == N * M).unsqueeze(-1), -1)

    def encode(self, path: Tensor, scores: Scores) -> JumpParts:  # type: ignore[override]
        """Parts of a path as `decode` returns it, shaped for `scores`, whose values do not matter.

        Rows after the one that reaches the end are padding and may hold anything.
        """
        check.whole_numbers("path", path)
        tensors = self.tensors(scores)
        cell, step, *down = tensors
        (N, M), K = cell.shape[-2:], step.shape[-3]
        n, m = (
            torch.full((1,), size, device=path.device) if given is None else given.to(path.device).unsqueeze(-1)
            for given, size in ((self.rows, N), (self.columns, M))
        )
        i, j = path.unbind(-1)
        # what was before the first cell makes it a step
        above, before = (torch.cat([start, x[..., :-1]], -1) for start, x in ((i[..., :1], i), (0 * j[..., :1] - 1, j)))
        jump, over = i - above, j - before
        stepped = (over == 1) & (jump >= 0) & (jump < K)
        went_down = (over == 0) & (jump == 1) & bool(down)
        first = torch.arange(path.shape[-2], device=path.device) == 0
        inside = (i >= 0) & (j >= 0) & (i < n) & (j < m) & (~first | ((i == 0) & (j == 0)))
        ended = ((i == n - 1) & (j == m - 1)).long().cumsum(-1) > 0
        real = ~torch.nn.functional.pad(ended[..., :-1], (1, 0)) & (n > 0) & (m > 0)
        wanted = (
            f"be cells (row, column) from (0, 0) to the last, each one column on and 0 to {K - 1} rows down"
            f"{', or one row down' if down else ''}"
        )
        hint = " Try `rows` and `columns`, which tell where the path ends and padding begins."
        here = check.encodable("path", path, inside & (stepped | went_down), real, wanted, hint, columns=True)
        place, later = i * M + j, here & ~first
        marked = [(here, place), (later & stepped, jump * N * M + place), (later & went_down, place)]
        events = (tensor.shape[cell.dim() - 2 :] for tensor in tensors)
        return self.parts(tuple(_marked(*mark, event, cell) for mark, event in zip(marked, events, strict=False)))


def _shapes(cell: Tensor, step: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The full shapes of `step` and `down`."""
    *batch, N, M = cell.shape
    return (*batch, step.shape[-3], N, M), tuple(cell.shape)


def _paths(end: Place, jumps: int, down: bool, start: Place = (0, 0)) -> Iterator[list[Place]]:
    """All paths from one cell to another."""
    i, j = start
    if start == end:
        yield [start]
    elif i <= end[0] and j <= end[1]:
        following = [(i + k, j + 1) for k in range(jumps)] + [(i + 1, j)] * down
        for place in following:
            for rest in _paths(end, jumps, down, place):
                yield [start, *rest]


def _marked(where: Tensor, place: Tensor, event: torch.Size, like: Tensor) -> Tensor:
    """Ones at places of a flattened event, at the entries `where`: (…, *event)."""
    size = event.numel()
    # One entry more, for what is nowhere.
    flat = like.new_zeros(*place.shape[:-1], size + 1).scatter_(-1, torch.where(where, place, size), 1.0)
    return flat[..., :size].unflatten(-1, event)
