"""Single strings: the best one, and draws. Both walk back from the last frame."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.ctc.kernel_numba.frames import (
    PAD,
    enter_first,
    finish,
    inside,
    lay_out,
    look_up,
    new_edges,
    new_lattice,
)


@compiled()
def _enter_best(row, lattice, states, out):
    """The best values of the next frame from those of a `row`."""
    skip, score = lattice.skip, lattice.score
    out[:PAD] = -np.inf
    for s in range(states):
        skipped, stepped, stayed = row[s] + skip[s], row[s + 1], row[s + 2]
        best = skipped if skipped > stepped else stepped
        best = stayed if stayed > best else best
        out[PAD + s] = best + score[s]


@kernel()
def argmax_rows(first, last, scores, labels, label_lengths, lengths, blank, y):
    most = 2 * labels.shape[1] + 1
    lattice = new_lattice(scores, labels)
    rows = np.empty((scores.shape[1], PAD + most))
    for b in range(first, last):
        length = lengths[b]
        if length == 0:
            continue
        states = lay_out(labels[b], label_lengths[b], length, blank, lattice)
        enter_first(scores[b], lattice, states, rows[0])
        for t in range(1, length):
            look_up(scores[b], t, lattice, states)
            _enter_best(rows[t - 1], lattice, states, rows[t])
        s = states - 1
        # With a tie, as everywhere, the lower state.
        s -= rows[length - 1, s + 1] >= rows[length - 1, s + 2]
        if not scores.dtype.type(rows[length - 1, PAD + s]) > -np.inf:
            continue
        for t in range(length - 1, -1, -1):
            y[b, t, lattice.symbol[s]] = 1
            if t > 0:
                row = rows[t - 1]
                skipped, stepped, stayed = row[s] + lattice.skip[s], row[s + 1], row[s + 2]
                s -= 2 if skipped >= stepped and skipped >= stayed else (1 if stepped >= stayed else 0)


@compiled()
def _drawn(skip, step, stay, uniform):
    """How many states to go back: by the first of the three weights at which their sum exceeds uniform · total."""
    level = uniform * (skip + step + stay)
    if skip > level and skip > 0:
        return 2
    if skip + step > level and step > 0:
        return 1
    # uniform · total may round up to total
    return 0 if stay > 0 else (1 if step > 0 else 2)


@kernel()
def sample_rows(first, last, scores, labels, label_lengths, lengths, blank, noise, y):
    most = 2 * labels.shape[1] + 1
    lattice, edges = new_lattice(scores, labels), new_edges(scores.shape[1], most, scores)
    rows = np.empty((2, PAD + most))
    for b in range(first, last):
        length = lengths[b]
        if length == 0:
            continue
        states = lay_out(labels[b], label_lengths[b], length, blank, lattice)
        row = inside(scores[b], length, lattice, states, rows, edges)
        _, in_label, in_blank = finish(row, states, lattice.score)
        if not in_label + in_blank > 0:
            continue
        for draw in range(noise.shape[1]):
            s, drawn = states - 1, 0
            for t in range(length - 1, -1, -1):
                # The first state has one way in, and so has the end of a string without labels: nothing to draw.
                if s > 0:
                    uniform = noise[b, draw, drawn]
                    drawn += 1
                    if t == length - 1:
                        s -= _drawn(0.0, in_label, in_blank, uniform)
                    else:
                        s -= _drawn(edges.skip[t + 1, s], edges.step[t + 1, s], edges.stay[t + 1, s], uniform)
                y[b, draw, t, lattice.symbol[s]] = 1
