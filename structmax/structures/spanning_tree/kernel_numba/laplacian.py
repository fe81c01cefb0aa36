"""log Z of a batch, its gradient, and the derivative of that along a tangent. Derivations: ../README.md.

The fast kernels compute in linear numbers, and clear `exact[b]` where these may not suffice: such instances are left to
`logarithmic`. Tables are float64 (N + 1, stride), with a whole number of blocks to a row; they start as zeros, because
what is read beyond an instance should be finite.
"""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.exp import exp
from structmax.numerics.kernel_numba.llvm import LANES
from structmax.structures.spanning_tree.kernel_numba import log
from structmax.structures.spanning_tree.kernel_numba.edmonds import new_search, read_columns
from structmax.structures.spanning_tree.kernel_numba.labels import (
    add_other_labels,
    clear,
    read,
    read_tangent,
    refuse,
    write,
    write_along,
)
from structmax.structures.spanning_tree.kernel_numba.linear import eliminate, eliminate_along, pull, pull_along
from structmax.structures.spanning_tree.kernel_numba.prices import bring_near

# With columns that sum to 1, a log Z above this is exact in linear numbers; the reason is in ../README.md.
SMALLEST_LOG = -500.0

_log_tables, _log_solve = log.TABLES, log.solve
_log_weight, _log_out = log.WEIGHT, log.OUT


@compiled("contract")
def _weights(n, table, weight, peak, total):
    """Weights of arcs, scaled such that columns sum to 1; the logarithm of the scale in two parts, of which the first
    may be large, and −inf for want of heads.
    """
    for m in range(1, n + 1):
        peak[m], total[m] = -np.inf, 0.0
    for h in range(n + 1):
        row = table[h]
        for m in range(1, n + 1):
            peak[m] = row[m] if row[m] > peak[m] else peak[m]
    for m in range(1, n + 1):
        if peak[m] == -np.inf:
            return -np.inf, 0.0
    for h in range(n + 1):
        row, out = table[h], weight[h]
        for m in range(1, n + 1):
            out[m] = exp(row[m] - peak[m])
            total[m] += out[m]
    peaks = logs = 0.0
    for m in range(1, n + 1):
        peaks += peak[m]
        logs += math.log(total[m])
        total[m] = 1 / total[m]
    for h in range(n + 1):
        out = weight[h]
        for m in range(1, n + 1):
            out[m] *= total[m]
    return peaks, logs


@compiled()
def _decompose(n, single_root, table, weight, plan, vectors):
    """log Z by linear numbers, and whether it is exact."""
    peaks, logs = _weights(n, table, weight, vectors[1], vectors[2])
    if peaks == -np.inf:
        return peaks, True
    value = eliminate(n, single_root, weight, plan, vectors[0], vectors[1:])
    return peaks + (logs + value), value > SMALLEST_LOG


@compiled()
def _zeros(tables, size, columns):
    """(tables, size, stride), from the start of a cache line on, so that no block lies across two."""
    stride = (columns + LANES - 1) // LANES * LANES
    count = tables * size * stride
    cells = np.zeros(count + LANES)
    start = -(cells.ctypes.data // cells.itemsize) % LANES
    return cells[start : start + count].reshape((tables, size, stride))


@kernel()
def values(start, stop, arc, lengths, single_root, value, exact):
    size = arc.shape[1]
    labels = arc.shape[2] // size
    tables, vectors = _zeros(3, size, size), _zeros(1, 5, size)[0]
    table, weight, plan = tables[0], tables[1], tables[2]
    for b in range(start, stop):
        n = lengths[b]
        value[b], exact[b] = np.nan, True
        if read(arc[b], n, labels, table):
            value[b], exact[b] = _decompose(n, single_root, table, weight, plan, vectors)


@kernel("contract")
def values_and_marginals(start, stop, arc, lengths, single_root, value, marginals, exact):
    size = arc.shape[1]
    labels = arc.shape[2] // size
    tables, vectors = _zeros(4, size, size), _zeros(1, 5, size)[0]
    table, weight, plan, slope = tables[0], tables[1], tables[2], tables[3]
    for b in range(start, stop):
        n = lengths[b]
        value[b], exact[b] = np.nan, True
        if not read(arc[b], n, labels, table):
            refuse(n, labels, marginals[b])
            continue
        value[b], exact[b] = _decompose(n, single_root, table, weight, plan, vectors)
        if not exact[b]:
            continue
        feasible = value[b] > -np.inf
        if feasible:
            pull(n, single_root, plan, vectors[0], slope, vectors[1:])
        for h in range(n + 1):
            for m in range(1, n + 1):
                slope[h, m] = slope[h, m] * weight[h, m] if feasible else 0.0
        write(arc[b], n, labels, slope, marginals[b])


@kernel("contract")
def derivatives(start, stop, arc, tangent, lengths, single_root, d_marginals, exact):
    size = arc.shape[1]
    labels = arc.shape[2] // size
    tables, vectors = _zeros(8, size, size), _zeros(1, 10, size)[0]
    table, weight, plan, slope = tables[0], tables[1], tables[2], tables[3]
    d_table, d_weight, d_plan, d_slope = tables[4], tables[5], tables[6], tables[7]
    d_pivot, pivot, scratch = vectors[0], vectors[1], vectors[2:]
    for b in range(start, stop):
        n = lengths[b]
        exact[b] = True
        if not read(arc[b], n, labels, table):
            refuse(n, labels, d_marginals[b])
            continue
        value, exact[b] = _decompose(n, single_root, table, weight, plan, vectors[1:])
        if not exact[b]:
            continue
        bound = read_tangent(arc[b], tangent[b], n, labels, d_table)
        feasible = value > -np.inf
        if feasible:
            for h in range(n + 1):
                for m in range(1, n + 1):
                    d_weight[h, m] = weight[h, m] * d_table[h, m]
            eliminate_along(n, single_root, weight, d_weight, plan, pivot, d_plan, d_pivot, scratch)
            pull_along(n, single_root, plan, pivot, d_plan, d_pivot, bound, slope, d_slope, scratch)
        for h in range(n + 1):
            for m in range(1, n + 1):
                d_slope[h, m] = d_slope[h, m] * weight[h, m] + slope[h, m] * d_weight[h, m] if feasible else 0.0
                slope[h, m] = slope[h, m] * weight[h, m] if feasible else 0.0
        write_along(arc[b], tangent[b], n, labels, slope, d_slope, d_marginals[b])


@kernel()
def logarithmic(start, stop, rows, arc, tangent, lengths, single_root, value, marginals, d_marginals):
    """All three of the instances b in `rows`, in logarithms."""
    size = arc.shape[1]
    labels = arc.shape[2] // size
    tables, d_tables = np.zeros((_log_tables, size, size)), np.zeros((_log_tables, size, size))
    column, below, search = np.zeros((size, size)), np.zeros((size, size)), new_search(size)
    weight, mu, d_mu = tables[_log_weight], tables[_log_out], d_tables[_log_out]
    for b in rows[start:stop]:
        n = lengths[b]
        read_columns(arc[b], n, labels, column)
        lost = bring_near(column, n, labels, single_root, search, below, weight)
        # as a number of the scores' dtype
        value[b] = lost
        if value[b] == -np.inf:
            clear(marginals[b])
            clear(d_marginals[b])
            continue
        add_other_labels(arc[b], n, labels, weight)
        read_tangent(arc[b], tangent[b], n, labels, d_tables[_log_weight])
        value[b] = lost + _log_solve(n, single_root, tables, d_tables)
        write(arc[b], n, labels, mu, marginals[b])
        write_along(arc[b], tangent[b], n, labels, mu, d_mu, d_marginals[b])
