"""The inside pass over the frames of one instance. Derivation: ../README.md.

States s = 0 … 2L: even ones are the blanks around the labels, odd ones the labels. A frame's values stand in a row with
two −inf before them, so that the states s − 2, s − 1 and s, from which a frame is entered, are three windows of one
array. Values are float64, so that long inputs lose nothing; what is left of them after the peak is taken off, and all
weights, have the dtype of the scores. A loop writes one or two arrays: LLVM vectorises these.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.math import exp, log

# Places before the first state.
PAD = 2


class Lattice(NamedTuple):
    """What one instance allows, and the scores of its states in the frame at hand."""

    symbol: np.ndarray  # (S,) int64
    # 0 where state s may follow s − 2, −inf where not
    skip: np.ndarray  # (S,) float64
    score: np.ndarray  # (S,)
    # The first and the last frame in which some string is in the state. Scores of other frames may be anything.
    early: np.ndarray  # (S,) int64
    late: np.ndarray  # (S,) int64


class Edges(NamedTuple):
    """Weights of the ways into each state of each frame, the greatest at 1, and 1 / their sum (0 if all are 0)."""

    skip: np.ndarray  # (T, S), from s − 2
    step: np.ndarray  # (T, S), from s − 1
    stay: np.ndarray  # (T, S), from s
    share: np.ndarray  # (T, S)


@compiled()
def new_lattice(scores, labels):
    states = 2 * labels.shape[1] + 1
    early, late = np.empty(states, np.int64), np.empty(states, np.int64)
    return Lattice(np.empty(states, np.int64), np.empty(states), np.empty(states, scores.dtype), early, late)


@compiled()
def new_edges(frames, states, scores):
    dtype = scores.dtype
    shape = frames, states
    return Edges(np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape, dtype))


@compiled()
def lay_out(labels, count, length, blank, lattice):
    """Symbols, skips and frames for the first `count` labels; returns the number of states."""
    symbol, skip, early, late = lattice.symbol, lattice.skip, lattice.early, lattice.late
    skip[:] = -np.inf
    symbol[::2] = blank
    # If nothing stays: a label in each frame, and a blank before those that repeat the one before.
    frame = 0
    for k in range(count):
        symbol[2 * k + 1] = labels[k]
        early[2 * k] = frame
        if k > 0:
            if labels[k] != labels[k - 1]:
                skip[2 * k + 1] = 0
            else:
                frame += 1
        late[2 * k] = frame - 1
        early[2 * k + 1] = late[2 * k + 1] = frame
        frame += 1
    early[2 * count], late[2 * count] = frame, frame - 1
    # All may happen later by the frames that are left.
    late[: 2 * count + 1] += length - frame
    return 2 * count + 1


@compiled()
def enter_first(scores, lattice, states, row):
    """The first frame: only the first blank and the first label can be entered."""
    look_up(scores, 0, lattice, states)
    row[: PAD + states] = -np.inf
    for s in range(min(2, states)):
        row[PAD + s] = lattice.score[s]


@compiled()
def look_up(scores, t, lattice, states):
    """The states' scores in frame t, −inf where no string can be."""
    symbol, score, early, late = lattice.symbol, lattice.score, lattice.early, lattice.late
    for s in range(states):
        score[s] = scores[t, symbol[s]] if early[s] <= t <= late[s] else -np.inf


@compiled()
def _peak(row, skip, s):
    """The greatest of the values state s is entered from, 0 if all are −inf."""
    skipped, stepped, stayed = row[s] + skip[s], row[s + 1], row[s + 2]
    peak = skipped if skipped > stepped else stepped
    peak = stayed if stayed > peak else peak
    return peak if peak > -np.inf else 0.0


@compiled("contract")
def _enter(row, lattice, states, edges, t, out):
    """Values of the next frame from those of a `row`; the weights of the ways go to `edges` at t."""
    skip, score = lattice.skip, lattice.score
    skipping, stepping, staying, share = edges.skip[t], edges.step[t], edges.stay[t], edges.share[t]
    dtype = score.dtype.type
    zero, one = dtype(0), dtype(1)
    for s in range(states):
        peak = _peak(row, skip, s)
        skipping[s] = exp(dtype(row[s] + skip[s] - peak))
        stepping[s] = exp(dtype(row[s + 1] - peak))
    for s in range(states):
        staying[s] = exp(dtype(row[s + 2] - _peak(row, skip, s)))
    for s in range(states):
        total = skipping[s] + stepping[s] + staying[s]
        share[s] = one / total if total != zero else zero
    for s in range(states):
        value = _peak(row, skip, s) + score[s] - log(share[s])
        out[PAD + s] = value if share[s] > zero else share[s] - np.inf


@compiled()
def inside(scores, length, lattice, states, rows, edges):
    """Fills the edges of one instance of length ≥ 1 (the last is used for all frames beyond); returns the last row.

    `rows` (2, PAD + S) takes turns.
    """
    enter_first(scores, lattice, states, rows[0])
    for s in range(PAD):
        rows[1, s] = -np.inf
    for t in range(1, length):
        look_up(scores, t, lattice, states)
        _enter(rows[(t - 1) % 2], lattice, states, edges, min(t, len(edges.share) - 1), rows[t % 2])
    return rows[(length - 1) % 2]


@compiled()
def finish(row, states, score):
    """The log-partition, and the probabilities that the last frame is in the last label and in the blank behind it.

    −inf and 0 where the dtype of `score` cannot hold the sum of any string.
    """
    label = row[states] if states > 1 else -np.inf
    blank = row[states + 1]
    peak = max(label, blank)
    if score.dtype.type(peak) == -np.inf:
        return -np.inf, 0.0, 0.0
    mass = np.exp(label - peak) + np.exp(blank - peak)
    return peak + np.log(mass), np.exp(label - peak) / mass, np.exp(blank - peak) / mass
