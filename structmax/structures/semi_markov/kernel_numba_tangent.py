"""The Hessian of the log-partition times a tangent: derivatives of the inside pass, then of the outside pass.

With q the probability of an edge given its head, μ its marginal and δ a derivative along the tangent,

    δvalue(head) = Σ q (tangent + δvalue(tail))
    δμ(edge) = q ((tangent + δvalue(tail) − δvalue(head)) μ(head) + δμ(head))

δ grows with the position, and only its differences count: it is float64 throughout, and so are the sums over edges that
make weights probabilities. Where q is 0, no tangent is read.
"""

from typing import NamedTuple

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.structures.semi_markov.kernel_numba_inside import finish, inside, new_chart, new_matrix, open_exactly


class Tangents(NamedTuple):
    """Scratch for one instance, float64."""

    # δ of the values
    start: np.ndarray  # (N, C)
    end: np.ndarray  # (N + 1, C)
    # 1 / Σ of the weights of the edges into start and end, 0 where there is none
    start_share: np.ndarray  # (N, C)
    end_share: np.ndarray  # (N + 1, C)
    # masses and, as flows, their δ
    start_mass: np.ndarray  # (N, C)
    start_flow: np.ndarray  # (N, C)
    end_mass: np.ndarray  # (C,)
    end_flow: np.ndarray  # (C,)
    # δ of the factors, and what masses and flows sum to beside a factor and beside its δ
    factor: np.ndarray  # (C, C)
    beside_factor: np.ndarray  # (C, C)
    beside_tangent: np.ndarray  # (C, C)


@compiled()
def _new_tangents(segment):
    _, n, _, c = segment.shape
    return Tangents(
        np.empty((n, c)),
        np.empty((n + 1, c)),
        np.empty((n, c)),
        np.empty((n + 1, c)),
        np.empty((n, c)),
        np.empty((n, c)),
        np.empty(c),
        np.empty(c),
        np.empty((c, c)),
        np.empty((c, c)),
        np.empty((c, c)),
    )


@compiled("contract")
def _normalise(value, share):
    """From a sum over edges and the sum of their weights to the mean, and 1 / that sum."""
    for c in range(value.size):
        share[c] = 1 / share[c] if share[c] != 0 else 0.0
    for c in range(value.size):
        value[c] *= share[c]


@compiled("contract")
def _push_segments(kept, tangent, d, p):
    """δ of end(p, ·)."""
    widths, labels = min(kept.shape[1], p), kept.shape[2]
    start, end, share = d.start, d.end, d.end_share
    for c in range(labels):
        end[p, c] = 0
        share[p, c] = 0
    for w in range(widths):
        n = p - 1 - w
        for c in range(labels):
            weight = np.float64(kept[n, w, c])
            end[p, c] += weight * (tangent[n, w, c] + start[n, c]) if weight != 0 else 0.0
        for c in range(labels):
            share[p, c] += kept[n, w, c]
    _normalise(end[p], share[p])


@compiled("contract")
def _push_scaled(chart, d, p):
    """δ of start(p, ·) from end(p, ·), by factors."""
    labels = len(chart.factor)
    start, factor, d_factor, share = d.start, chart.factor, d.factor, d.start_share
    for c in range(labels):
        start[p, c] = 0
        share[p, c] = 0
    for i in range(labels):
        mass, slope = np.float64(chart.mass[p, i]), d.end[p, i]
        for c in range(labels):
            start[p, c] += mass * (d_factor[i, c] + slope * factor[i, c])
        for c in range(labels):
            share[p, c] += mass * factor[i, c]
    _normalise(start[p], share[p])


@compiled("contract")
def _push_exactly(enter, tangent, d, p):
    """δ of start(p, ·) from end(p, ·), by the probabilities of transitions."""
    start, share = d.start, d.start_share
    for c in range(len(enter)):
        start[p, c] = 0
        share[p, c] = 0
    for i in range(len(enter)):
        slope = d.end[p, i]
        for c in range(len(enter)):
            q = np.float64(enter[i, c])
            start[p, c] += q * (tangent[i, c] + slope) if q != 0 else 0.0
        for c in range(len(enter)):
            share[p, c] += enter[i, c]
    _normalise(start[p], share[p])


@compiled("contract")
def _weigh(mass, flow, value, share):
    """Masses and flows of heads, ready to be multiplied by the weights of their edges."""
    for c in range(mass.size):
        flow[c] = share[c] * (flow[c] - value[c] * mass[c])
    for c in range(mass.size):
        mass[c] *= share[c]


@compiled("contract")
def _split_segments(kept, tangent, d, p):
    """δμ of the segments that end before p, in place of their weights; masses and flows go on to their starts."""
    widths, labels = min(kept.shape[1], p), kept.shape[2]
    start, start_mass, start_flow, mass, flow = d.start, d.start_mass, d.start_flow, d.end_mass, d.end_flow
    _weigh(mass, flow, d.end[p], d.end_share[p])
    for w in range(widths):
        n = p - 1 - w
        for c in range(labels):
            start_mass[n, c] += kept[n, w, c] * mass[c]
        for c in range(labels):
            weight = np.float64(kept[n, w, c])
            kept[n, w, c] = weight * ((tangent[n, w, c] + start[n, c]) * mass[c] + flow[c]) if weight != 0 else 0.0
        for c in range(labels):
            start_flow[n, c] += kept[n, w, c]


@compiled("contract", "reassoc")
def _leave_scaled(chart, d, p):
    """Masses and flows of start(p, ·) go on to end(p, ·) and are counted beside the factors."""
    labels = len(chart.factor)
    factor, d_factor, on_factor, on_tangent = chart.factor, d.factor, d.beside_factor, d.beside_tangent
    mass, flow = d.start_mass[p], d.start_flow[p]
    _weigh(mass, flow, d.start[p], d.start_share[p])
    for i in range(labels):
        m, slope = np.float64(chart.mass[p, i]), d.end[p, i]
        carried, by_tangent, by_flow = 0.0, 0.0, 0.0
        for c in range(labels):
            carried += factor[i, c] * mass[c]
            by_tangent += d_factor[i, c] * mass[c]
            by_flow += factor[i, c] * flow[c]
        d.end_mass[i] = m * carried
        d.end_flow[i] = m * (by_tangent + slope * carried + by_flow)
        for c in range(labels):
            on_tangent[i, c] += m * mass[c]
        for c in range(labels):
            on_factor[i, c] += m * (slope * mass[c] + flow[c])


@compiled("contract", "reassoc")
def _leave_exactly(enter, tangent, d, p):
    """δμ of the transitions into p, in place of their probabilities; masses and flows go on to end(p, ·)."""
    mass, flow = d.start_mass[p], d.start_flow[p]
    _weigh(mass, flow, d.start[p], d.start_share[p])
    for i in range(len(enter)):
        slope = d.end[p, i]
        carried, changed = 0.0, 0.0
        for c in range(len(enter)):
            q = np.float64(enter[i, c])
            delta = q * ((tangent[i, c] + slope) * mass[c] + flow[c]) if q != 0 else 0.0
            carried += q * mass[c]
            changed += delta
            enter[i, c] = delta
        d.end_mass[i] = carried
        d.end_flow[i] = changed


@compiled()
def _scale_tangent(chart, tangent, d):
    for i in range(len(tangent)):
        for c in range(len(tangent)):
            f = np.float64(chart.factor[i, c])
            d.factor[i, c] = f * tangent[i, c] if f != 0 else 0.0
            d.beside_factor[i, c] = 0
            d.beside_tangent[i, c] = 0


@compiled()
def _finish(chart, d, length):
    """Masses and flows of the last labels."""
    finish(chart, length)
    total, mean = 0.0, 0.0
    for c in range(d.end_mass.size):
        total += chart.total[c]
        mean += chart.total[c] * d.end[length, c]
    share = 1 / total if total != 0 else 0.0
    for c in range(d.end_mass.size):
        d.end_mass[c] = chart.total[c] * share
        d.end_flow[c] = d.end_mass[c] * (d.end[length, c] - mean * share)


@compiled()
def _clear(d, length):
    for n in range(length):
        for c in range(d.end_mass.size):
            d.start_mass[n, c] = 0
            d.start_flow[n, c] = 0


@compiled()
def _add(rows, out):
    for i in range(len(rows)):
        for c in range(rows.shape[1]):
            out[i, c] += rows[i, c]


@compiled()
def _gather_scaled(chart, d, out):
    """δμ of the transitions, whose sums stand beside their factors."""
    for i in range(len(out)):
        for c in range(len(out)):
            by_tangent = d.factor[i, c] * d.beside_tangent[i, c]
            out[i, c] = by_tangent + chart.factor[i, c] * d.beside_factor[i, c]


@compiled()
def tangent_rows(first, last, segment, pairwise, lengths, d_segment, d_pairwise, out_segment, out_pairwise):
    """Outputs are zeros at first."""
    chart, d, scratch = new_chart(segment), _new_tangents(segment), new_matrix(pairwise)
    shared, labels = pairwise.shape[1] == 1, segment.shape[3]
    for b in range(first, last):
        length, kept, tangent, d_matrix, out = lengths[b], out_segment[b], d_segment[b], d_pairwise[b], out_pairwise[b]
        if length == 0:
            continue
        enter = scratch if shared else out
        scaled = inside(segment[b], pairwise[b], length, chart, kept, enter)
        if scaled:
            _scale_tangent(chart, d_matrix[0], d)
        for c in range(labels):
            d.start[0, c] = 0
        for p in range(1, length + 1):
            _push_segments(kept, tangent, d, p)
            if p < length and scaled:
                _push_scaled(chart, d, p)
            elif p < length:
                k = min(p, len(enter)) - 1
                if shared:
                    open_exactly(pairwise[b], chart, p, enter)
                _push_exactly(enter[k], d_matrix[k], d, p)
        _finish(chart, d, length)
        _clear(d, length)
        for p in range(length, 0, -1):
            _split_segments(kept, tangent, d, p)
            if p > 1 and scaled:
                _leave_scaled(chart, d, p - 1)
            elif p > 1:
                k = min(p - 1, len(enter)) - 1
                if shared:
                    open_exactly(pairwise[b], chart, p - 1, enter)
                _leave_exactly(enter[k], d_matrix[k], d, p - 1)
                if shared:
                    _add(enter[0], out[0])
        if scaled:
            _gather_scaled(chart, d, out[0])
