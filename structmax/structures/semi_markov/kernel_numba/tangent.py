"""The Hessian of the log-partition times a tangent: derivatives of the inside pass, then of the outside pass.

With q the probability of an edge given its head, μ its marginal and δ a derivative along the tangent,

    δvalue(head) = Σ q (tangent + δvalue(tail))
    δμ(edge) = q ((tangent + δvalue(tail) − δvalue(head)) μ(head) + δμ(head))

δ grows with the position, and only its differences count: it is float64 throughout, and so are the sums over edges that
make weights probabilities. Where q is 0, no tangent is read.

`start` and `end` are the δ of the values, `…_share` is 1 / Σ of the weights of the edges into a node (0 where there is
none), `…_mass` is μ of a node, and `…_flow` its δ. What has no position is a row of labels.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.semi_markov.kernel_numba.inside import finish, inside, new_chart, new_matrix, open_exactly


@compiled()
def _clear(row):
    for c in range(row.size):
        row[c] = 0


@compiled("contract")
def _normalise(value, share):
    """From a sum over edges and the sum of their weights to the mean, and 1 / that sum."""
    for c in range(value.size):
        share[c] = 1 / share[c] if share[c] != 0 else 0.0
    for c in range(value.size):
        value[c] *= share[c]


@compiled("contract")
def _push_segments(kept, tangent, p, start, end, share):
    """δ of end(p, ·)."""
    _clear(end)
    _clear(share)
    for w in range(min(kept.shape[1], p)):
        n = p - 1 - w
        for c in range(end.size):
            weight = np.float64(kept[n, w, c])
            end[c] += weight * (tangent[n, w, c] + start[n, c]) if weight != 0 else 0.0
        for c in range(end.size):
            share[c] += kept[n, w, c]
    _normalise(end, share)


@compiled("contract")
def _push_scaled(factor, d_factor, weight, end, start, share):
    """δ of start(p, ·) from end(p, ·), whose weights are multiplied by factors."""
    _clear(start)
    _clear(share)
    for i in range(end.size):
        w, slope = np.float64(weight[i]), end[i]
        for c in range(end.size):
            start[c] += w * (d_factor[i, c] + slope * factor[i, c])
        for c in range(end.size):
            share[c] += w * factor[i, c]
    _normalise(start, share)


@compiled("contract")
def _push_exactly(enter, tangent, end, start, share):
    """δ of start(p, ·) from end(p, ·), by the probabilities of transitions."""
    _clear(start)
    _clear(share)
    for i in range(end.size):
        slope = end[i]
        for c in range(end.size):
            q = np.float64(enter[i, c])
            start[c] += q * (tangent[i, c] + slope) if q != 0 else 0.0
        for c in range(end.size):
            share[c] += enter[i, c]
    _normalise(start, share)


@compiled("contract")
def _weigh(value, share, mass, flow):
    """Masses and flows of heads, ready to be multiplied by the weights of their edges."""
    for c in range(mass.size):
        flow[c] = share[c] * (flow[c] - value[c] * mass[c])
    for c in range(mass.size):
        mass[c] *= share[c]


@compiled("contract")
def _split_segments(kept, tangent, p, start, mass, flow, start_mass, start_flow):
    """δμ of the segments that end before p, in place of their weights; masses and flows go on to their starts."""
    for w in range(min(kept.shape[1], p)):
        n = p - 1 - w
        for c in range(mass.size):
            start_mass[n, c] += kept[n, w, c] * mass[c]
        for c in range(mass.size):
            weight = np.float64(kept[n, w, c])
            kept[n, w, c] = weight * ((tangent[n, w, c] + start[n, c]) * mass[c] + flow[c]) if weight != 0 else 0.0
        for c in range(mass.size):
            start_flow[n, c] += kept[n, w, c]


@compiled("contract", "reassoc")
def _leave_scaled(factor, d_factor, weight, end, mass, flow, end_mass, end_flow):
    """Masses and flows of start(p, ·) go on to end(p, ·)."""
    for i in range(end.size):
        carried, by_tangent, by_flow = 0.0, 0.0, 0.0
        for c in range(end.size):
            carried += factor[i, c] * mass[c]
            by_tangent += d_factor[i, c] * mass[c]
            by_flow += factor[i, c] * flow[c]
        end_mass[i] = weight[i] * carried
        end_flow[i] = weight[i] * (by_tangent + end[i] * carried + by_flow)


@compiled("contract")
def _count_scaled(weight, end, mass, flow, beside_factor, beside_tangent):
    """Adds the masses and flows that pass from end to start(p, ·), to be multiplied by factors and by their δ."""
    for i in range(end.size):
        w, slope = np.float64(weight[i]), end[i]
        for c in range(end.size):
            beside_tangent[i, c] += w * mass[c]
        for c in range(end.size):
            beside_factor[i, c] += w * (slope * mass[c] + flow[c])


@compiled("contract", "reassoc")
def _leave_exactly(enter, tangent, end, mass, flow, end_mass, end_flow):
    """δμ of the transitions into p, in place of their probabilities; masses and flows go on to end(p, ·)."""
    for i in range(end.size):
        slope = end[i]
        carried, changed = 0.0, 0.0
        for c in range(end.size):
            q = np.float64(enter[i, c])
            delta = q * ((tangent[i, c] + slope) * mass[c] + flow[c]) if q != 0 else 0.0
            carried += q * mass[c]
            changed += delta
            enter[i, c] = delta
        end_mass[i] = carried
        end_flow[i] = changed


@compiled()
def _start_flow(probability, end, mass, flow):
    """Masses and flows of the last labels."""
    total, mean = 0.0, 0.0
    for c in range(end.size):
        total += probability[c]
        mean += probability[c] * end[c]
    share = 1 / total if total != 0 else 0.0
    for c in range(end.size):
        mass[c] = probability[c] * share
        flow[c] = mass[c] * (end[c] - mean * share)


@compiled()
def _products(a, b, out):
    """out += a b, where a is not 0."""
    for k in range(out.size):
        out[k] += a[k] * b[k] if a[k] != 0 else 0.0


@compiled()
def _add(values, out):
    for k in range(out.size):
        out[k] += values[k]


@kernel()
def tangent_rows(first, last, segment, pairwise, lengths, d_segment, d_pairwise, out_segment, out_pairwise):
    """Outputs are zeros at first."""
    shared = pairwise.shape[1] == 1
    _, positions, _, labels = segment.shape
    chart, scratch = new_chart(segment), new_matrix(pairwise)
    start, start_share = np.empty((positions, labels)), np.empty((positions, labels))
    end, end_share = np.empty((positions + 1, labels)), np.empty((positions + 1, labels))
    start_mass, start_flow = np.empty((positions, labels)), np.empty((positions, labels))
    end_mass, end_flow = np.empty(labels), np.empty(labels)
    d_factor = np.empty((labels, labels))
    beside_factor, beside_tangent = np.empty((labels, labels)), np.empty((labels, labels))
    for b in range(first, last):
        length, kept, tangent, d_matrix, out = lengths[b], out_segment[b], d_segment[b], d_pairwise[b], out_pairwise[b]
        if length == 0:
            continue
        enter = scratch if shared else out
        scaled = inside(segment[b], pairwise[b], length, chart, kept, enter)
        factor, weight = chart.factor, chart.mass
        for row in (d_factor, beside_factor, beside_tangent, start_mass, start_flow):
            _clear(row.reshape(-1))
        if scaled:
            _products(factor.reshape(-1), d_matrix.reshape(-1), d_factor.reshape(-1))
        _clear(start[0])
        for p in range(1, length + 1):
            _push_segments(kept, tangent, p, start, end[p], end_share[p])
            if p < length and scaled:
                _push_scaled(factor, d_factor, weight[p], end[p], start[p], start_share[p])
            elif p < length:
                k = min(p, len(enter)) - 1
                if shared:
                    open_exactly(pairwise[b], chart, p, enter)
                _push_exactly(enter[k], d_matrix[k], end[p], start[p], start_share[p])
        finish(chart, length)
        _start_flow(chart.total, end[length], end_mass, end_flow)
        for p in range(length - 1, -1, -1):
            _weigh(end[p + 1], end_share[p + 1], end_mass, end_flow)
            _split_segments(kept, tangent, p + 1, start, end_mass, end_flow, start_mass, start_flow)
            if p == 0:
                break
            mass, flow = start_mass[p], start_flow[p]
            _weigh(start[p], start_share[p], mass, flow)
            if scaled:
                _leave_scaled(factor, d_factor, weight[p], end[p], mass, flow, end_mass, end_flow)
                _count_scaled(weight[p], end[p], mass, flow, beside_factor, beside_tangent)
                continue
            k = min(p, len(enter)) - 1
            if shared:
                open_exactly(pairwise[b], chart, p, enter)
            _leave_exactly(enter[k], d_matrix[k], end[p], mass, flow, end_mass, end_flow)
            if shared:
                _add(enter.reshape(-1), out.reshape(-1))
        if scaled:
            _products(d_factor.reshape(-1), beside_tangent.reshape(-1), out.reshape(-1))
            _products(factor.reshape(-1), beside_factor.reshape(-1), out.reshape(-1))
