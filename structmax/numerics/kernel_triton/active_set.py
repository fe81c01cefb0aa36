"""The active-set method of sparse maps on CUDA, for any structure with `argmax` there: all instances advance together.

An iteration is a search, the structure's own `argmax` of g, and one launch that does the rest (active_set_step.py). The
host only asks every few iterations: whether all are done, whether a support or a list needs more room. It launches some
more before it looks at the answer. If that has been there for some time, the GPU waits for the host, which takes longer
to launch the kernels than they run; from then on they are replayed as a CUDA graph. An instance that is done has length
0 from then on, where the structure has lengths, so that no more is searched there.

A structure whose search one program can do fast has a kernel for whole turns instead: no instance waits for another.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax.numerics.active_set import from_lists
from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.active_set_step import (
    ASK,
    CALLS,
    COUNT,
    FEASIBLE,
    FULL,
    LOST,
    NO,
    OPEN,
    STATE,
    YES,
    advance,
    finish,
)
from structmax.numerics.kernel_triton.replay import recorded
from structmax.parts import flat, unflat

# How many iterations there are between two questions of the host.
UNSEEN = 4
# Of a program. Few wait less for one another, and leave room for a thousand programs at once.
WARPS = 2
# Room for structures, and for parts of each, at first: powers of two.
STRUCTURES, PARTS = 64, 64


def _power(size: int) -> int:
    """The first power of two that is as large."""
    return 1 << max(0, size - 1).bit_length()


def _tiles(capacity: int, parts: int) -> tuple[tuple[int, int], int, int]:
    """K and the rows of a matrix that are read together, the parts of y that are, and those of all lists."""
    together = max(1, 256 // capacity)
    return (capacity, min(capacity, together)), min(512, max(16, _power(parts))), together


class _Largest:
    """The largest notes of all instances, which the host asks for and need not wait for at once."""

    def __init__(self, notes: Tensor) -> None:
        self.numbers, self.event = notes.amax(1), None
        if notes.is_cuda:
            self.numbers, self.event = self.numbers.to("cpu", non_blocking=True), torch.cuda.Event()
            self.event.record()

    def is_known(self) -> bool:
        return self.event is None or self.event.query()

    def tolist(self) -> list[int]:
        if self.event is not None:
            self.event.synchronize()
        return self.numbers.tolist()


class Supports:
    """Structures and weights of each instance, on the device."""

    def __init__(
        self, scores: tuple[Tensor, ...], regular: Tensor, lengths: Tensor | None, structures: int, longest: int
    ) -> None:
        self.rows, self.like = scores[0].shape[0], scores
        self.lengths = None if lengths is None else lengths.clone()
        # (B, P)
        self.theta = flat(scores)
        self.width, self.split = self.theta.shape[1], math.prod(scores[0].shape[1:])
        # what the first part tensor has, and what the others have
        first = flat(scores[:1])
        self.g = first, flat(scores[1:]) if len(scores) > 1 else first
        # (P,)
        self.regular = regular.to(torch.uint8)
        self.facts, self.notes = self._zeros(4), self._zeros(6, dtype=torch.int32).reshape(6, self.rows)
        self.notes[STATE.value] = OPEN.value
        self._make(structures, longest)

    def direction(self) -> tuple[Tensor, ...]:
        """g as part tensors."""
        first, rest = self.g
        others = [piece.contiguous() for piece in unflat(rest, self.like[1:])] if len(self.like) > 1 else []
        return first.view_as(self.like[0]), *others

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(self.rows, *shape, dtype=dtype, device=self.theta.device)

    def _make(self, structures: int, longest: int) -> None:
        self.capacity, self.longest = structures, longest
        lists = (self.rows, structures + 1, longest)
        self.lists = torch.full(lists, self.width, dtype=torch.int32, device=self.theta.device)
        self.inner = self.lists.clone()
        self.gram, self.inverse = self._zeros(structures, structures), self._zeros(structures, structures)
        self.columns, self.work = self._zeros(5, structures), self._zeros(2, structures)

    def grow(self, structures: int, longest: int) -> bool:
        """Makes room for more structures, or for longer lists; says whether there was less."""
        K, L, former = self.capacity, self.longest, (self.lists, self.inner, self.gram, self.inverse, self.columns)
        if (structures, longest) == (K, L):
            return False
        self._make(structures, longest)
        self.lists[:, :K, :L], self.inner[:, :K, :L] = former[0][:, :K], former[1][:, :K]
        self.gram[:, :K, :K], self.inverse[:, :K, :K], self.columns[:, :, :K] = former[2:]
        return True

    def run(
        self,
        kernel: Any,
        parts: tuple[Tensor, ...],
        more: tuple[Any, ...],
        max_iter: int,
        count: int,
        tol: float,
        constants: tuple[Any, ...] = (),
        warps: int = WARPS,
    ) -> None:
        """Launches a kernel with a structure for each instance, the counts of its parts in part tensors.

        `more` stands behind what it reads and writes here, and `constants` in front of the sizes of tiles.
        """
        rest = parts[-1] if len(parts) <= 2 else flat(parts[1:])
        given = parts[0].contiguous(), rest.contiguous(), *self.g, self.theta, self.regular
        own = self.lists, self.inner, self.gram, self.inverse, self.columns, self.work, self.facts, self.notes
        numbers = self.rows, self.width, self.split, self.longest, max_iter, count, tol
        tile, block, listed = _tiles(self.capacity, self.width)
        launch(kernel, (self.rows,), (*given, *own, *more, *numbers), (*constants, *tile, block, listed), warps)

    def offer(self, parts: tuple[Tensor, ...], max_iter: int, tol: float, is_start: bool) -> None:
        """Offers each instance a structure."""
        self.run(advance, parts, (self.lengths,), max_iter, int(is_start), tol)

    def outcome(self, count: int, longest: int) -> tuple[Tensor, ...]:
        """What the contract says of `sparsemap`, for supports of up to `count` structures of up to `longest` parts."""
        shape = self.rows, count, max(1, longest)
        lists = torch.full(shape, self.width, dtype=torch.int32, device=self.theta.device)
        weights, factor, value, gap = self._zeros(count), self._zeros(count, count), self._zeros(), self._zeros()
        own = self.lists, self.gram, self.inverse, self.columns, self.facts, self.notes
        numbers = self.rows, self.width, self.longest, *shape[1:]
        tile, _, listed = _tiles(self.capacity, self.width)
        launch(finish, (self.rows,), (*own, lists, weights, factor, value, gap, *numbers), (*tile, listed), WARPS)
        state, _, counts, _, calls, _ = self.notes.long().unbind()
        return value, lists, weights, factor, counts, calls, gap, state <= LOST.value


def sparsemap(
    argmax: Callable[..., Any],
    is_feasible: Callable[..., Tensor] | None,
    *scores: Tensor,
    regularised: Tensor,
    start: Tensor,
    max_iter: int,
    tol: float,
    turns: Callable[[Supports], None] | None = None,
    **fields: Any,
) -> tuple[Tensor, ...]:
    """What the contract says of `sparsemap`, using the structure's `argmax`.

    A best structure without parts may be the empty one, or there is none: `is_feasible` tells, where it is given.
    `turns` takes the place of searches and steps: a launch in which each instance goes on by itself.
    """
    starts, longest_start = start.shape[1:]
    # More are not affinely independent, but for one that comes before another goes.
    most = _power(regularised.shape[1] + 2)
    capacity = min(most, max(STRUCTURES, _power(starts + UNSEEN)))
    longest = max(PARTS, _power(longest_start))
    supports = Supports(scores, regularised[:1].any(0), fields.get("lengths"), capacity, longest)
    open_fields = fields if supports.lengths is None else {**fields, "lengths": supports.lengths}
    if not len(start):
        return supports.outcome(0, 0)
    for k in range(starts):
        y = from_lists(start[:, k : k + 1], supports.theta)[:, 0]
        absent = (start[:, k] < 0).any(1, keepdim=True)
        supports.offer(unflat(y.masked_fill(absent, math.nan), scores), max_iter, tol, True)

    def search() -> None:
        found = argmax(*supports.direction(), **open_fields)
        supports.offer((found,) if isinstance(found, Tensor) else tuple(found), max_iter, tol, False)

    # A recursion of a user's may wait for the GPU, which cannot be recorded.
    is_kernel = "kernel_triton" in argmax.__module__
    first = search if turns is None else lambda: turns(supports)
    state, step, seen = OPEN.value, first, False
    questions: deque[_Largest] = deque()
    while state >= OPEN.value:
        for _ in range(UNSEEN if seen else 1):
            step()
        questions.append(_Largest(supports.notes[: COUNT.value + 1]))
        if seen and len(questions) == 1:
            continue
        question = questions.popleft()
        is_late = seen and question.is_known()
        seen = turns is None
        state, longest, count = question.tolist()
        if state == ASK.value:
            supports.notes[FEASIBLE.value] = _feasible(is_feasible, scores, fields, supports)
        if state < OPEN.value:
            break
        if count + 2 * UNSEEN > capacity and (capacity < most or state == FULL.value):
            capacity *= 2
        if supports.grow(capacity, max(supports.longest, _power(longest))):
            # which may compile another kernel
            step, seen = first, False
            questions.clear()
        elif is_late and is_kernel and step is search:
            step = recorded(search, supports.theta.device)
    return supports.outcome(count, longest)


def _feasible(
    is_feasible: Callable[..., Tensor] | None, scores: tuple[Tensor, ...], fields: dict[str, Any], supports: Supports
) -> Tensor:
    """Whether an instance in which no part is best has a structure at all: NO or YES, (B,) int32."""
    found = is_feasible(*scores, **fields) if is_feasible else supports.notes[CALLS.value] > 0
    return torch.where(found, YES.value, NO.value).int()
