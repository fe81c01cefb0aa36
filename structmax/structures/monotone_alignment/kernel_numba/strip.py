"""The chart of one instance in strips of rows. Derivation: ../README.md.

In a strip, row r of column j stands at lane r of anti-diagonal t = j − left + r, so that all lanes of an anti-diagonal
are found at once. Of the other strips only the last rows are kept: what is needed twice is computed twice.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.inner import stay_apart
from structmax.numerics.kernel_numba.llvm import BLOCK
from structmax.numerics.kernel_numba.vector import block_transpose

# Rows in a strip, at most: few strips leave little to compute twice, and one should stay in the cache.
STRIP = 80
# Planes of a state, and of the goal, as step.py has them.
STATE, GOAL = 3, 6


class Grid(NamedTuple):
    """The places of an instance, cells or boundaries, and how they are cut."""

    height: int
    width: int
    band: int
    # rows in a strip, a multiple of BLOCK, and the lanes of a plane, which has room for the row above or below
    lanes: int
    plane: int
    # how many tensors of scores there are: one for cells, three for moves
    tensors: int
    # how many planes of shares there are: three, or five for local alignments
    shares: int
    strips: int


class Strip(NamedTuple):
    """Rows top … top + rows − 1; the columns left … left + columns − 1 have all of the band that is in them."""

    number: int
    top: int
    rows: int
    left: int
    columns: int
    diagonals: int


class Scratch(NamedTuple):
    """Room for one strip, and for what strips hand on. The first ones are offsets in `tape`."""

    rows: int
    scores: int
    directions: int
    state: int
    shares: int
    slopes: int
    goal: int
    tape: np.ndarray
    # (strips + 1, STATE · columns): the state of the row above each strip, from column −1
    columns: int
    above: np.ndarray
    # (4, columns): what flows up from the strip below by diagonal and vertical moves, and its derivative
    below: np.ndarray


@compiled()
def at(tensors, index):
    """The tensors of one instance, or of one draw."""
    return (tensors[0][index],) if len(tensors) == 1 else (tensors[0][index], tensors[1][index], tensors[2][index])


@compiled()
def _whole(n):
    return (n + BLOCK - 1) // BLOCK * BLOCK


@compiled()
def new_grid(tensors, n, m, band, local):
    # There is one boundary more than there are items.
    height, width = (n, m) if tensors == 1 else (n + 1, m + 1)
    strips = max(1, (height + STRIP - 1) // STRIP)
    lanes = max(BLOCK, _whole((height + strips - 1) // strips))
    return Grid(height, width, band, lanes, lanes + BLOCK, tensors, 5 if local else 3, strips)


@compiled()
def new_scratch(sources, local, tangents):
    """For every instance of a batch; `tangents` is 1 where they are wanted, 0 elsewhere."""
    x, tensors = sources[0], len(sources)
    grid = new_grid(tensors, x.shape[1], x.shape[2], 0, local)
    # A smaller instance may have fewer strips, with more lanes.
    lanes = max(BLOCK, min(STRIP, _whole(grid.height)))
    plane = lanes + BLOCK
    diagonals = _whole(grid.width + lanes)
    rows = 0
    scores = rows + lanes * (lanes + diagonals)
    directions = scores + diagonals * tensors * plane
    state = directions + tangents * diagonals * tensors * plane
    shares = state + STATE * 3 * plane
    slopes = shares + (diagonals + 2) * grid.shares * plane
    goal = slopes + tangents * (diagonals + 2) * grid.shares * plane
    tape = np.empty(goal + GOAL * plane, x.dtype)
    columns = grid.width + lanes + 2
    above = np.empty((grid.strips + 1, STATE * columns), x.dtype)
    below = np.empty((4, grid.width), x.dtype)
    return Scratch(rows, scores, directions, state, shares, slopes, goal, tape, columns, above, below)


@compiled()
def strip_at(grid, number):
    top = number * grid.lanes
    rows = min(grid.lanes, grid.height - top)
    # A local instance may be so long that the band has left it.
    left = min(max(0, top - grid.band), grid.width)
    columns = max(0, min(grid.width, top + rows + grid.band) - left)
    return Strip(number, top, rows, left, columns, columns + rows - 1)


# --- in and out ----------------------------------------------------------------------------------------------------


@compiled()
def origin(grid, k):
    """How far up and to the left of a place the entry of the k-th tensor is that scores the move to it."""
    if grid.tensors == 1:
        return 0, 0
    return (0, 1) if k == 2 else (1, 1 - k)


@compiled()
def span(grid, strip, i, down, right):
    """The columns of row i that a move from (i − down, j − right) may lead to: first, and one past the last."""
    # A match comes before and after every gap of a local path.
    margin = 1 if grid.shares == 5 and down + right == 1 else 0
    if i < down + margin or i >= grid.height - margin:
        return right, right
    first = max(max(strip.left, right + margin), max(i, i - down + right) - grid.band)
    stop = min(min(strip.left + strip.columns, grid.width - margin), min(i, i - down + right) + grid.band + 1)
    return first, max(first, stop)


@compiled()
def _copy(row, out, limit):
    """How many entries are neither −inf nor within ±limit, and how many are NaN or +inf."""
    wild, broken = 0, 0
    for j in range(row.size):
        x = row[j]
        out[j] = x
        wild += 0 if (abs(x) <= limit or x == -np.inf) else 1
        broken += 0 if x < np.inf else 1
    return wild, broken


@compiled()
def _stride(grid, strip):
    """From row to row: as many places before the first column as there are lanes, and all anti-diagonals after."""
    return grid.lanes + _whole(strip.diagonals)


@compiled()
def _skew(grid, strip, scratch, out, step):
    stride = _stride(grid, strip)
    for r in range(0, grid.lanes, BLOCK):
        for t in range(0, strip.diagonals, BLOCK):
            row = scratch.rows + grid.lanes + r * (stride - 1) + t
            block_transpose(scratch.tape, row, stride - 1, scratch.tape, out + t * step + r, step)


@compiled()
def read(sources, grid, strip, limit, scratch):
    """Scores of a strip to their anti-diagonals, −inf where there are none; returns what `_copy` counts."""
    stay_apart()
    stride = _stride(grid, strip)
    wild, broken = 0, 0
    for k in range(grid.tensors):
        down, right = origin(grid, k)
        for r in range(grid.lanes):
            i = strip.top + r
            row = scratch.tape[scratch.rows + r * stride : scratch.rows + (r + 1) * stride]
            first, stop = span(grid, strip, i, down, right)
            begin = grid.lanes + first - strip.left
            end = begin + stop - first
            if stop > first:
                row[:begin] = -np.inf
                more = _copy(sources[k][i - down, first - right : stop - right], row[begin:end], limit)
                row[end:] = -np.inf
                wild, broken = wild + more[0], broken + more[1]
            else:
                row[:] = -np.inf
        if grid.tensors == 3 and grid.shares == 3 and k == 0 and strip.top == 0:
            # The path comes to the first boundary as if by a match at score 0.
            scratch.tape[scratch.rows + grid.lanes] = 0
        _skew(grid, strip, scratch, scratch.scores + k * grid.plane, grid.tensors * grid.plane)
    return wild, broken


@compiled()
def read_directions(sources, directions, grid, strip, scratch):
    """Directions of a strip to their anti-diagonals, 0 where there are none or where a score is −inf."""
    stride = _stride(grid, strip)
    for k in range(grid.tensors):
        down, right = origin(grid, k)
        for r in range(grid.lanes):
            i = strip.top + r
            row = scratch.tape[scratch.rows + r * stride : scratch.rows + (r + 1) * stride]
            row[:] = 0
            first, stop = span(grid, strip, i, down, right)
            for j in range(first, stop):
                if sources[k][i - down, j - right] > -np.inf:
                    row[grid.lanes + j - strip.left] = directions[k][i - down, j - right]
        _skew(grid, strip, scratch, scratch.directions + k * grid.plane, grid.tensors * grid.plane)


@compiled()
def write(planes, step, k, out, grid, strip, scratch):
    """What stands on the anti-diagonals of a plane, `step` apart, to the k-th tensor's rows of this strip."""
    stay_apart()
    stride = _stride(grid, strip)
    tape = scratch.tape
    for r in range(0, grid.lanes, BLOCK):
        for t in range(0, strip.diagonals, BLOCK):
            row = scratch.rows + grid.lanes + r * (stride - 1) + t
            block_transpose(tape, planes + t * step + r, step, tape, row, stride - 1)
    down, right = origin(grid, k)
    for r in range(strip.rows):
        i = strip.top + r
        if i >= down:
            first, stop = span(grid, strip, i, down, right)
            begin = scratch.rows + r * stride + grid.lanes + first - strip.left
            row = out[i - down]
            row[: first - right] = 0
            for j in range(stop - first):
                row[first - right + j] = tape[begin + j]
            row[stop - right :] = 0


@compiled()
def fill(outs, grid, number):
    """The same number for every part of an instance, 0 where there is none."""
    stay_apart()
    for k in range(grid.tensors):
        down, right = origin(grid, k)
        outs[k][:] = 0
        for s in range(grid.strips):
            strip = strip_at(grid, s)
            for r in range(strip.rows):
                first, stop = span(grid, strip, strip.top + r, down, right)
                if stop > first:
                    outs[k][strip.top + r - down, first - right : stop - right] = number
