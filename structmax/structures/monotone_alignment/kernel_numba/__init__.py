"""Monotone alignments on the CPU. Derivations: ../README.md.

Room functions take scores (B, N, M), or match (B, N, M), delete (B, N, M + 1) and insert (B, N + 1, M).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, kernel, over_rows
from structmax.recursion import kernel_numba as engine
from structmax.recursion.edges import by_recursion
from structmax.structures.monotone_alignment import reference
from structmax.structures.monotone_alignment.kernel_numba.strip import (
    at,
    fill,
    new_grid,
    new_scratch,
    origin,
    read,
    read_directions,
    strip_at,
    write,
)
from structmax.structures.monotone_alignment.kernel_numba.sweep import (
    BROKEN,
    FOUND,
    WIDE,
    backward,
    end_once,
    forward,
    inside,
    set_goal_tangent,
)
from structmax.structures.monotone_alignment.kernel_numba.walks import sample_rows

# Visits per place, as `over_rows` counts them.
VISITS = 8


@compiled()
def _clear_padding(outs, grid):
    for k in range(grid.tensors):
        outs[k][grid.height - origin(grid, k)[0] :] = 0


@compiled()
def _write(planes, outs, grid, strip, scratch):
    """What `backward` has found: of cells, where their scores were; of moves, in their planes."""
    for k in range(grid.tensors):
        if grid.tensors == 1:
            write(scratch.scores, grid.plane, k, outs[k], grid, strip, scratch)
        else:
            write(planes + k * grid.plane, grid.shares * grid.plane, k, outs[k], grid, strip, scratch)


@kernel()
def _expect_rows(first, stop, sources, rows, columns, local, band, best, wanted, value, wide, outs):
    """The value, expected parts where they are wanted, and which instances ask for wider floats."""
    tensors = len(sources)
    scratch = new_scratch(sources, local, 0)
    for b in range(first, stop):
        grid = new_grid(tensors, rows[b], columns[b], band, local)
        source = at(sources, b)
        value[b], status = inside(source, rows[b], columns[b], grid, best, scratch)
        wide[b] = status == WIDE
        if not wanted or wide[b]:
            continue
        out = at(outs, b)
        if status != FOUND:
            fill(out, grid, np.nan if status == BROKEN else 0.0)
            continue
        _clear_padding(out, grid)
        ended = False
        for s in range(grid.strips - 1, -1, -1):
            strip = strip_at(grid, s)
            # Only in the last strip are the shares there; where local paths end could not be known then.
            if s < grid.strips - 1 or local:
                read(source, grid, strip, sources[0].dtype.type(np.inf), scratch)
                forward(grid, strip, best, True, False, scratch)
            if best and local:
                ended = end_once(grid, strip, ended, scratch)
            backward(grid, strip, False, scratch)
            _write(scratch.shares, out, grid, strip, scratch)


@kernel()
def _tangent_rows(first, stop, sources, directions, rows, columns, local, band, wide, outs):
    """The Hessian times the directions."""
    tensors = len(sources)
    scratch = new_scratch(sources, local, 1)
    for b in range(first, stop):
        grid = new_grid(tensors, rows[b], columns[b], band, local)
        source, direction, out = at(sources, b), at(directions, b), at(outs, b)
        _, status = inside(source, rows[b], columns[b], grid, False, scratch)
        wide[b] = status == WIDE
        if wide[b]:
            continue
        if status != FOUND:
            fill(out, grid, np.nan if status == BROKEN else 0.0)
            continue
        _clear_padding(out, grid)
        # Forward once more, for the tangents of the rows between the strips and of the goal; and then backward.
        for s in range(2 * grid.strips):
            strip = strip_at(grid, s if s < grid.strips else 2 * grid.strips - 1 - s)
            if s != grid.strips or local:
                read(source, grid, strip, sources[0].dtype.type(np.inf), scratch)
                read_directions(source, direction, grid, strip, scratch)
                forward(grid, strip, False, True, True, scratch)
            if s == grid.strips - 1:
                set_goal_tangent(grid, scratch)
            if s >= grid.strips:
                backward(grid, strip, True, scratch)
                _write(scratch.slopes, out, grid, strip, scratch)


# --- the questions -------------------------------------------------------------------------------------------------


def _widening(engine: Callable[..., Any]) -> Callable[..., Callable[..., tuple[Tensor, ...]]]:
    """Asks again in float64 for the instances whose scores are too large for float32, and then the engine.

    `ask(wide, *tensors, **fields)` says in `wide` (B,) which these are. Where every path is as bad as the smallest
    float64 its exponent of two is none; logarithms, which `engine` adds, just fit.
    """
    beyond = by_recursion("MonotoneAlignment", reference, engine.__name__, engine)

    def wrap(ask: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        @functools.wraps(ask)
        def answer(*tensors: Tensor, **fields: Any) -> tuple[Tensor, ...]:
            wide = torch.zeros(len(tensors[0]), dtype=torch.bool)
            out = ask(wide, *tensors, **fields)
            if bool(wide.any()):
                at = wide.nonzero().squeeze(-1)
                some = {name: value[at] if isinstance(value, Tensor) else value for name, value in fields.items()}
                again = answer
                if tensors[0].dtype == torch.float64:
                    again, some = beyond, {name: value for name, value in some.items() if name not in ("best", "parts")}
                for part, found in zip(out, again(*(t[at].double() for t in tensors), **some), strict=False):
                    part[at] = found.to(part.dtype)
            return out

        return answer

    return wrap


def _numpy(tensors: tuple[Tensor, ...]) -> tuple[np.ndarray, ...]:
    return tuple(t.numpy() for t in tensors)


def _expect(
    wide: Tensor, *scores: Tensor, rows: Tensor, columns: Tensor, local: bool, band: int, best: bool, parts: bool
) -> tuple[Tensor, ...]:
    """The value (B,), and the parts if wanted."""
    value = scores[0].new_empty(len(wide))
    outs = tuple(torch.empty_like(t) for t in scores) if parts else ()
    fields = rows.numpy(), columns.numpy(), bool(local), int(band), best, parts
    # where no parts are wanted the kernel does not touch the last argument
    arrays = value.numpy(), wide.numpy(), _numpy(outs or scores)
    over_rows(_expect_rows, len(wide), VISITS * scores[0].numel(), _numpy(scores), *fields, *arrays)
    return value, *outs


_widened = _widening(engine.log_partition_and_marginals)(_expect)


def _expected(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """The value (B,), and the parts if wanted: none where the value is −inf in the dtype of the scores."""
    value, *parts = _widened(*scores, **fields)
    lost = value == -math.inf
    if parts and bool(lost.any()):
        for part in parts:
            part[lost] = 0.0
    return value, *parts


def log_partition(*scores: Tensor, **fields: Any) -> Tensor:
    """log Σ exp⟨θ, y⟩: (B,)."""
    return _expected(*scores, **fields, best=False, parts=False)[0]


def log_partition_and_marginals(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """(B,), and the marginals like the scores."""
    return _expected(*scores, **fields, best=False, parts=True)


def argmax(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
    """The parts of one best path."""
    return _expected(*scores, **fields, best=True, parts=True)[1:]


@_widening(engine.marginals_jvp)
def marginals_jvp(
    wide: Tensor, *scores_and_tangent: Tensor, rows: Tensor, columns: Tensor, local: bool, band: int
) -> tuple[Tensor, ...]:
    """The Hessian of the log-partition times the tangent."""
    half = len(scores_and_tangent) // 2
    scores, tangent = scores_and_tangent[:half], scores_and_tangent[half:]
    outs = tuple(torch.empty_like(t) for t in scores)
    arrays = _numpy(scores), _numpy(tangent), rows.numpy(), columns.numpy()
    work = 2 * VISITS * scores[0].numel()
    over_rows(_tangent_rows, len(wide), work, *arrays, bool(local), int(band), wide.numpy(), _numpy(outs))
    return outs


@_widening(engine.sample)
def sample(
    wide: Tensor, *scores: Tensor, noise: Tensor, rows: Tensor, columns: Tensor, local: bool, band: int
) -> tuple[Tensor, ...]:
    """Draws by the rule of the recursion: (B, S, …), for noise (B, S, K)."""
    outs = tuple(t.new_empty(len(t), noise.shape[1], *t.shape[1:]) for t in scores)
    arrays = rows.numpy(), columns.numpy(), bool(local), int(band), noise.to(scores[0].dtype).numpy()
    work = VISITS * scores[0].numel() + outs[0].numel()
    over_rows(sample_rows, len(wide), work, _numpy(scores), *arrays, wide.numpy(), _numpy(outs))
    return outs
