"""Draws of monotone alignments: walks back from the end, strip by strip, by the shares of the moves."""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.monotone_alignment.kernel_numba.step import CONTINUED, DIAGONAL, ENDED, HORIZONTAL, VERTICAL
from structmax.structures.monotone_alignment.kernel_numba.strip import at, fill, new_grid, new_scratch, read, strip_at
from structmax.structures.monotone_alignment.kernel_numba.sweep import BROKEN, FOUND, WIDE, forward, inside

# What a walk does next: leave a place by one of its moves; leave it by a match; find the column where it ends.
MOVE, MATCH, SEEK = range(3)


@compiled()
def _choose(u, first, second, third):
    """Which of three cumulated probabilities first exceeds u times their sum; never one that is 0."""
    x = u * (first + second + third)
    if first > x:
        return 0
    if first + second > x:
        return 1
    if third > 0:
        return 2
    return 1 if second > 0 else 0


@compiled()
def _share(grid, strip, scratch, i, j, k):
    r = i - strip.top
    t = j - strip.left + r
    return scratch.tape[scratch.shares + (t * grid.shares + k) * grid.plane + r]


@compiled()
def _leave(grid, strip, scratch, walk, noise, outs):
    """One of the moves that lead to this place; local paths come to no place of the first row or column."""
    i, j, used = walk[0], walk[1], walk[2]
    edge = 0 if grid.shares == 3 else 1
    diagonal = grid.shares == 5 or (i > edge and j > edge)
    above = i > edge and abs(i - 1 - j) <= grid.band
    left = j > edge and abs(i - j + 1) <= grid.band
    move = 0 if diagonal else (1 if above else 2)
    if int(diagonal) + int(above) + int(left) > 1:
        move = _choose(
            noise[used],
            _share(grid, strip, scratch, i, j, DIAGONAL),
            _share(grid, strip, scratch, i, j, VERTICAL),
            _share(grid, strip, scratch, i, j, HORIZONTAL),
        )
        walk[2] += 1
    if grid.shares == 5 and move == 0:
        walk[3] = MATCH
        return
    down, right = (0, 1) if move == 2 else (1, 1 - move)
    if grid.tensors == 3:
        outs[move][i - down, j - right] = 1
    walk[0], walk[1] = i - down, j - right


@compiled()
def _match(grid, strip, scratch, walk, noise, outs):
    """A match of a local path, which may have started with it."""
    i, j, used = walk[0], walk[1], walk[2]
    outs[0][i - 1, j - 1] = 1
    walk[0], walk[1], walk[3] = i - 1, j - 1, MOVE
    if i > 1 and j > 1:
        continued = _share(grid, strip, scratch, i, j, CONTINUED)
        walk[2] += 1
        if _choose(noise[used], 1 - continued, continued, continued * 0) == 1:
            return
    walk[0] = -1


@compiled()
def _add_ends(grid, strip, scratch, reached):
    """Continues reached[i], how probable it is that a local path ends in row i or above, or is empty."""
    for i in range(max(1, strip.top), strip.top + strip.rows):
        reached[i] = reached[i - 1]
        for j in range(max(1, i - grid.band), min(grid.width - 1, i + grid.band) + 1):
            reached[i] += _share(grid, strip, scratch, i, j, ENDED)


@compiled()
def _seek_row(grid, reached, walk, noise):
    """The row where a local path ends, from below; −1 for the empty path."""
    i, j = grid.height - 1, grid.width - 1
    walk[1], walk[2], walk[3] = j, 0, SEEK
    while i > 0:
        if max(1, i - grid.band) <= j:
            walk[2] += 1
            if _choose(noise[walk[2] - 1], reached[i - 1], reached[i] - reached[i - 1], 0.0) == 1:
                break
        i -= 1
    walk[0] = i if i > 0 else -1


@compiled()
def _seek_column(grid, strip, scratch, walk, noise, reached):
    """The column where a local path ends in its row, from the right."""
    i = walk[0]
    first, j = max(1, i - grid.band), min(walk[1], i + grid.band)
    reached[first - 1] = 0
    for column in range(first, j + 1):
        reached[column] = reached[column - 1] + _share(grid, strip, scratch, i, column, ENDED)
    while j > first:
        walk[2] += 1
        if _choose(noise[walk[2] - 1], reached[j - 1], reached[j] - reached[j - 1], 0.0) == 1:
            break
        j -= 1
    walk[1], walk[3] = j, MATCH


@compiled()
def _walk(grid, strip, scratch, walk, noise, outs, reached):
    """As far as this strip leads."""
    while walk[0] >= strip.top:
        if walk[3] == SEEK:
            _seek_column(grid, strip, scratch, walk, noise, reached)
        elif walk[3] == MATCH:
            _match(grid, strip, scratch, walk, noise, outs)
        else:
            if grid.tensors == 1:
                outs[0][walk[0], walk[1]] = 1
            if walk[0] == 0 and walk[1] == 0:
                walk[0] = -1
            else:
                _leave(grid, strip, scratch, walk, noise, outs)


@kernel()
def sample_rows(first, stop, sources, rows, columns, local, band, noise, wide, outs):
    tensors, draws = len(sources), noise.shape[1]
    scratch = new_scratch(sources, local, 0)
    # of each draw: row and column, row −1 when it is done; how many numbers it has used; what is next
    walks = np.empty((draws, 4), np.int64)
    row_reached, column_reached = np.empty(sources[0].shape[1] + 1), np.empty(sources[0].shape[2] + 1)
    for b in range(first, stop):
        grid = new_grid(tensors, rows[b], columns[b], band, local)
        source, out = at(sources, b), at(outs, b)
        value, status = inside(source, rows[b], columns[b], grid, False, scratch)
        wide[b] = status == WIDE
        for draw in range(draws):
            fill(at(out, draw), grid, np.nan if status == BROKEN else 0.0)
        if status != FOUND:
            continue
        if local:
            row_reached[0] = math.exp(-value)
            for s in range(grid.strips):
                strip = strip_at(grid, s)
                read(source, grid, strip, sources[0].dtype.type(np.inf), scratch)
                forward(grid, strip, False, True, False, scratch)
                _add_ends(grid, strip, scratch, row_reached)
        for draw in range(draws):
            walk = walks[draw]
            walk[0], walk[1], walk[2], walk[3] = grid.height - 1, grid.width - 1, 0, MOVE
            if local:
                _seek_row(grid, row_reached, walk, noise[b, draw])
        for s in range(grid.strips - 1, -1, -1):
            strip = strip_at(grid, s)
            if s < grid.strips - 1:
                read(source, grid, strip, sources[0].dtype.type(np.inf), scratch)
                forward(grid, strip, False, True, False, scratch)
            for draw in range(draws):
                _walk(grid, strip, scratch, walks[draw], noise[b, draw], at(out, draw), column_reached)
