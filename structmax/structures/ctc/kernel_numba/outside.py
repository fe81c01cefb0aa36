"""The log-partition and its gradient, the posterior of each frame: mass 1 at the end flows back over the edges."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.ctc.kernel_numba.frames import (
    PAD,
    finish,
    inside,
    lay_out,
    new_edges,
    new_lattice,
)


@compiled()
def scatter(mass, symbol, states, blank, out):
    """Adds the states' masses at their symbols."""
    blanks = 0.0
    for s in range(0, states, 2):
        blanks += mass[s]
    for s in range(1, states, 2):
        out[symbol[s]] += mass[s]
    out[blank] += blanks


@compiled("contract")
def _flow_back(edges, t, states, mass, heads, before):
    """The masses of the states in the frame before t; `heads` is scratch."""
    skip, step, stay, share = edges.skip[t], edges.step[t], edges.stay[t], edges.share[t]
    for s in range(states):
        heads[s] = mass[s] * share[s]
    for s in range(states):
        before[s] = stay[s] * heads[s]
    for s in range(states - 1):
        before[s] += step[s + 1] * heads[s + 1]
    for s in range(states - 2):
        before[s] += skip[s + 2] * heads[s + 2]


@kernel()
def posterior_rows(first, last, scores, labels, label_lengths, lengths, blank, value, out):
    most = 2 * labels.shape[1] + 1
    lattice, edges = new_lattice(scores, labels), new_edges(scores.shape[1], most, scores)
    rows, masses = np.empty((2, PAD + most)), np.empty((3, most), scores.dtype)
    heads = masses[2]
    for b in range(first, last):
        length = lengths[b]
        out[b] = 0
        if length == 0:
            value[b] = 0 if label_lengths[b] == 0 else -np.inf
            continue
        states = lay_out(labels[b], label_lengths[b], length, blank, lattice)
        row = inside(scores[b], length, lattice, states, rows, edges)
        value[b], in_label, in_blank = finish(row, states, lattice.score)
        masses[0, :states] = 0
        masses[0, max(0, states - 2)] = in_label
        masses[0, states - 1] = in_blank
        here = 0
        for t in range(length - 1, -1, -1):
            scatter(masses[here], lattice.symbol, states, blank, out[b, t])
            if t > 0:
                _flow_back(edges, t, states, masses[here], heads, masses[1 - here])
                here = 1 - here


@kernel()
def value_rows(first, last, scores, labels, label_lengths, lengths, blank, value):
    most = 2 * labels.shape[1] + 1
    lattice, edges = new_lattice(scores, labels), new_edges(1, most, scores)
    rows = np.empty((2, PAD + most))
    for b in range(first, last):
        if lengths[b] == 0:
            value[b] = 0 if label_lengths[b] == 0 else -np.inf
            continue
        states = lay_out(labels[b], label_lengths[b], lengths[b], blank, lattice)
        row = inside(scores[b], lengths[b], lattice, states, rows, edges)
        value[b] = finish(row, states, lattice.score)[0]
