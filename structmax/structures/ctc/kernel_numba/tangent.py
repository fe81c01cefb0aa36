"""The Hessian of the log-partition times a tangent: derivatives of the inside pass, then of the outside pass.

With q the probability of an edge given its head, μ the probability of a state and δ a derivative along the tangent,

    δvalue(head) = tangent + arrived,  arrived = Σ q δvalue(tail)
    δμ(edge) = q ((δvalue(tail) − arrived) μ(head) + δμ(head))

δ grows with the frames, and only its differences count: it is float64 throughout. No tangent is read at a state that
cannot be reached.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.ctc.kernel_numba.frames import PAD, finish, inside, lay_out, new_edges, new_lattice
from structmax.structures.ctc.kernel_numba.outside import scatter


@compiled("contract")
def _arrive(edges, t, states, before, out, share):
    """Σ q δvalue(tail) over the ways into each state of frame t, and 1 / the sum of their weights, in float64."""
    skip, step, stay = edges.skip[t], edges.step[t], edges.stay[t]
    for s in range(states):
        total = np.float64(skip[s]) + step[s] + stay[s]
        share[s] = 1 / total if total != 0 else 0.0
    for s in range(states):
        out[s] = stay[s] * before[s]
    for s in range(1, states):
        out[s] += step[s] * before[s - 1]
    for s in range(2, states):
        out[s] += skip[s] * before[s - 2]
    for s in range(states):
        out[s] *= share[s]


@compiled()
def _push(scores, tangent, length, symbol, states, edges, arrived, shares, values):
    """δ of all values (T, S), and what arrives of it from the frame before. 0 at states that cannot be reached."""
    for s in range(states):
        arrived[0, s] = 0
        shares[0, s] = s < 2
    for t in range(length):
        if t > 0:
            _arrive(edges, t, states, values[t - 1], arrived[t], shares[t])
        for s in range(states):
            reached = shares[t, s] != 0 and scores[t, symbol[s]] != -np.inf
            values[t, s] = arrived[t, s] + tangent[t, symbol[s]] if reached else 0.0


@compiled()
def _start(states, in_label, in_blank, values, mass, flow):
    """Masses and flows of the last frame, which ends in the last label or the blank behind it."""
    mass[:states] = 0
    mass[max(0, states - 2)] = in_label
    mass[states - 1] = in_blank
    mean = 0.0
    for s in range(max(0, states - 2), states):
        mean += mass[s] * values[s]
    for s in range(states):
        flow[s] = mass[s] * (values[s] - mean)


@compiled("contract")
def _flow_back(edges, t, states, arrived, share, values, mass, flow, new_mass, new_flow):
    """Masses and their δ, the flow, of the states in the frame before t, where `values` are the δ of their values."""
    skip, step, stay = edges.skip[t], edges.step[t], edges.stay[t]
    for s in range(states):
        flow[s] = share[s] * (flow[s] - arrived[s] * mass[s])
    for s in range(states):
        mass[s] *= share[s]
    for s in range(states):
        new_mass[s] = stay[s] * mass[s]
    for s in range(states):
        new_flow[s] = stay[s] * flow[s]
    for s in range(states - 1):
        new_mass[s] += step[s + 1] * mass[s + 1]
    for s in range(states - 1):
        new_flow[s] += step[s + 1] * flow[s + 1]
    for s in range(states - 2):
        new_mass[s] += skip[s + 2] * mass[s + 2]
    for s in range(states - 2):
        new_flow[s] += skip[s + 2] * flow[s + 2]
    for s in range(states):
        new_flow[s] += values[s] * new_mass[s]


@kernel()
def tangent_rows(first, last, scores, labels, label_lengths, lengths, blank, tangent, out):
    frames, most = scores.shape[1], 2 * labels.shape[1] + 1
    lattice, edges = new_lattice(scores, labels), new_edges(frames, most, scores)
    rows = np.empty((2, PAD + most))
    arrived, shares, values = np.empty((frames, most)), np.empty((frames, most)), np.empty((frames, most))
    mass, flow = np.empty((2, most)), np.empty((2, most))
    for b in range(first, last):
        length = lengths[b]
        out[b] = 0
        if length == 0:
            continue
        states = lay_out(labels[b], label_lengths[b], length, blank, lattice)
        row = inside(scores[b], length, lattice, states, rows, edges)
        _, in_label, in_blank = finish(row, states, lattice.score)
        symbol = lattice.symbol
        _push(scores[b], tangent[b], length, symbol, states, edges, arrived, shares, values)
        here = 0
        _start(states, in_label, in_blank, values[length - 1], mass[here], flow[here])
        for t in range(length - 1, -1, -1):
            scatter(flow[here], symbol, states, blank, out[b, t])
            if t > 0:
                now, before = (mass[here], flow[here]), (mass[1 - here], flow[1 - here])
                _flow_back(edges, t, states, arrived[t], shares[t], values[t - 1], *now, *before)
                here = 1 - here
