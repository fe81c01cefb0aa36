"""Monotone alignments on the CPU. Derivations: README.md in this folder.

Room functions take scores (B, N, M), or match (B, N, M), delete (B, N, M + 1) and insert (B, N + 1, M).
"""

import numpy as np
import torch
from torch import Tensor

from structmax.numerics.kernel_numba import compiled, over_rows
from structmax.structures.monotone_alignment.kernel_numba_strip import (
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
from structmax.structures.monotone_alignment.kernel_numba_sweep import (
    BROKEN,
    FOUND,
    WIDE,
    backward,
    end_once,
    forward,
    inside,
    set_goal_tangent,
)
from structmax.structures.monotone_alignment.kernel_numba_walk import sample_rows

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


@compiled()
def _expect_rows(first, stop, sources, rows, columns, local, band, best, wanted, value, wide, outs):
    """The value, expected parts where they are wanted, and which instances ask for wider floats."""
    tensors = len(sources)
    scratch = new_scratch(new_grid(tensors, sources[0].shape[1], sources[0].shape[2], band, local), sources[0], 0)
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
                read(source, grid, strip, np.inf, scratch)
                forward(grid, strip, best, True, False, scratch)
            if best and local:
                ended = end_once(grid, strip, ended, scratch)
            backward(grid, strip, False, scratch)
            _write(scratch.shares, out, grid, strip, scratch)


@compiled()
def _tangent_rows(first, stop, sources, directions, rows, columns, local, band, wide, outs):
    """The Hessian times the directions."""
    tensors = len(sources)
    scratch = new_scratch(new_grid(tensors, sources[0].shape[1], sources[0].shape[2], band, local), sources[0], 1)
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
                read(source, grid, strip, np.inf, scratch)
                read_directions(source, direction, grid, strip, scratch)
                forward(grid, strip, False, True, True, scratch)
            if s == grid.strips - 1:
                set_goal_tangent(grid, scratch)
            if s >= grid.strips:
                backward(grid, strip, True, scratch)
                _write(scratch.slopes, out, grid, strip, scratch)


# --- the questions -------------------------------------------------------------------------------------------------


def _work(tensors: tuple[Tensor, ...]) -> int:
    return VISITS * tensors[0].numel()


def _numpy(tensors: tuple[Tensor, ...]) -> tuple[np.ndarray, ...]:
    return tuple(t.numpy() for t in tensors)


def _expect(
    scores: tuple[Tensor, ...], rows: Tensor, columns: Tensor, local: bool, band: int, *, best: bool, parts: bool
) -> tuple[Tensor, ...]:
    """The value (B,), and the parts if wanted."""
    count = len(scores[0])
    value, wide = scores[0].new_empty(count), torch.zeros(count, dtype=torch.bool)
    outs = tuple(torch.empty_like(t) if parts else t for t in scores)
    fields = rows.numpy(), columns.numpy(), bool(local), int(band), best, parts
    arrays = value.numpy(), wide.numpy(), _numpy(outs)
    over_rows(_expect_rows, count, _work(scores), _numpy(scores), *fields, *arrays)
    return _again_in_float64(
        (value, *outs) if parts else (value,),
        wide,
        lambda at: _expect(
            tuple(t[at].double() for t in scores), rows[at], columns[at], local, band, best=best, parts=parts
        ),
    )


def _again_in_float64(answers, wide, ask):
    """Puts the answers for the instances whose scores are too large for float32 in their places."""
    if bool(wide.any()):
        at = wide.nonzero().squeeze(-1)
        for answer, wider in zip(answers, ask(at), strict=True):
            answer[at] = wider.to(answer.dtype)
    return answers


def log_partition(*scores: Tensor, rows: Tensor, columns: Tensor, local: bool, band: int) -> Tensor:
    return _expect(scores, rows, columns, local, band, best=False, parts=False)[0]


def log_partition_and_marginals(*scores, rows, columns, local, band):
    return _expect(scores, rows, columns, local, band, best=False, parts=True)


def argmax(*scores, rows, columns, local, band):
    return _expect(scores, rows, columns, local, band, best=True, parts=True)[1:]


def marginals_jvp(*scores_and_tangent, rows, columns, local, band):
    half = len(scores_and_tangent) // 2
    scores, tangent = scores_and_tangent[:half], scores_and_tangent[half:]
    wide = torch.zeros(len(scores[0]), dtype=torch.bool)
    outs = tuple(torch.empty_like(t) for t in scores)
    fields = rows.numpy(), columns.numpy(), bool(local), int(band)
    over_rows(_tangent_rows, len(wide), 2 * _work(scores), _numpy(scores), _numpy(tangent), *fields, wide.numpy(), _numpy(outs))

    def ask(at):
        return marginals_jvp(*(t[at].double() for t in scores_and_tangent), rows=rows[at], columns=columns[at], local=local, band=band)

    return _again_in_float64(outs, wide, ask)


def sample(*scores, noise, rows, columns, local, band):
    wide = torch.zeros(len(scores[0]), dtype=torch.bool)
    outs = tuple(t.new_empty(len(t), noise.shape[1], *t.shape[1:]) for t in scores)
    fields = rows.numpy(), columns.numpy(), bool(local), int(band)
    over_rows(sample_rows, len(wide), _work(scores), _numpy(scores), *fields, noise.numpy(), wide.numpy(), _numpy(outs))

    def ask(at):
        return sample(*(t[at].double() for t in scores), noise=noise[at].double(), rows=rows[at], columns=columns[at], local=local, band=band)

    return _again_in_float64(outs, wide, ask)
