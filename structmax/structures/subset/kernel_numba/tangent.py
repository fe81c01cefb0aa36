"""The Hessian of log Z times a tangent: the chart and what is above it, each with its derivative. ../README.md."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.subset.kernel_numba.chart import begin, close, copy, fill_block, new_chart, recall
from structmax.structures.subset.kernel_numba.marginal import new_items, trivial
from structmax.structures.subset.kernel_numba.row import load, usable
from structmax.structures.subset.kernel_numba.tilt import tilt


@compiled("contract")
def _fill_block(first, last, p, q, d_p, rows, spans, d_rows):
    """Derivatives of a block's rows from that of its first."""
    zero = spans[first, 2]
    for i in range(first, last):
        p_in, p_out, d_in = p[i], q[i], d_p[i]
        lo, hi, new_zero = spans[i + 1]
        old, d_old = rows[i - first, zero + lo - 1 : zero + hi + 1], d_rows[i - first, zero + lo - 1 : zero + hi + 1]
        zero = new_zero
        # with the 0 before the row
        d_new = d_rows[i - first + 1, zero + lo - 1 :]
        d_new[0] = 0
        for j in range(old.size - 1):
            d_new[j + 1] = p_out * d_old[j + 1] + p_in * d_old[j] + d_in * (old[j] - old[j + 1])
        d_new[old.size] = 0


@compiled()
def _fill(p, q, d_p, k, exact, rows, starts, spans, d_rows, d_starts):
    """All rows and their derivatives; the last block stays in memory. Returns its number."""
    begin(rows, spans)
    d_rows[0] = 0
    last_block = (p.size - 1) // (len(rows) - 1)
    for block in range(last_block + 1):
        copy(rows[0], starts[block])
        copy(d_rows[0], d_starts[block])
        first, last = fill_block(block, p, q, k, exact, rows, spans)
        _fill_block(first, last, p, q, d_p, rows, spans, d_rows)
        if block < last_block:
            copy(rows[last - first], rows[0])
            copy(d_rows[last - first], d_rows[0])
    return last_block


@compiled()
def _close(row, d_row, span, k, share, above, d_above):
    """As `close`, scaled so that row · above sums to 1, and the derivative of that scaling."""
    total = close(row, span, k, share, above)
    d_total = 0.0
    for c in range(span[0], span[1] + 1):
        above[c] /= total
        d_total += d_row[span[2] + c] * above[c]
    for c in range(k + 2):
        d_above[c] = -d_total * above[c]


@compiled("contract", "reassoc", "nsz")
def _descend(first, last, p, q, d_p, rows, spans, d_rows, above, d_above, d_marginal):
    """As `descend`, with the derivative of what is above, and of p Σ row · above."""
    for i in range(last - 1, first - 1, -1):
        p_in, p_out, d_in = p[i], q[i], d_p[i]
        lo, hi, zero = spans[i]
        row, d_row = rows[i - first, zero + lo : zero + hi + 1], d_rows[i - first, zero + lo : zero + hi + 1]
        up, d_up = above[lo : hi + 2], d_above[lo : hi + 2]
        total, d_total = 0.0, 0.0
        # Sums apart, as in `descend`; one loop for both updates would not be vectorised.
        for j in range(row.size):
            d_total += d_row[j] * up[j + 1] + row[j] * d_up[j + 1]
            total += row[j] * up[j + 1]
        for j in range(row.size):
            d_up[j] = p_out * d_up[j] + p_in * d_up[j + 1] + d_in * (up[j + 1] - up[j])
        for j in range(row.size):
            up[j] = p_out * up[j] + p_in * up[j + 1]
        up[row.size] = 0
        d_up[row.size] = 0
        d_marginal[i] = p_in * d_total + d_in * total


@kernel()
def tangent_rows(first, last, scores, lengths, sizes, exact, tangent, out):
    n = scores.shape[1]
    items, place, p, q, work = new_items(n)
    rows, starts, spans = new_chart(n, sizes)
    d_rows, d_starts, d_p = np.empty_like(rows), np.empty_like(starts), np.empty(n)
    above, d_above = np.empty(n + 2), np.empty(n + 2)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        x, k = items[: max(m, 0)], sizes[b] if exact else min(sizes[b], m)
        out[b] = 0
        if m < 0:
            out[b, :length] = np.nan
        elif not trivial(x, k, exact):
            log_normaliser, share = tilt(x, k, exact, p[:m], q[:m], work)
            # A sum of finite scores may be −inf in their dtype.
            if out.dtype.type(log_normaliser) == -np.inf:
                continue
            for i in range(m):
                variance = p[i] * q[i]
                d_p[i] = variance * tangent[b, place[i]] if variance > 0 else 0.0
            block = _fill(p[:m], q[:m], d_p[:m], k, exact, rows, starts, spans, d_rows, d_starts)
            start, stop = block * (len(rows) - 1), m
            _close(rows[m - start], d_rows[m - start], spans[m], k, share, above, d_above)
            while True:
                _descend(start, stop, p, q, d_p, rows, spans, d_rows, above, d_above, work)
                if start == 0:
                    break
                block -= 1
                start, stop = recall(block, p[:m], q[:m], k, exact, rows, starts, spans)
                copy(d_starts[block], d_rows[0])
                _fill_block(start, stop, p, q, d_p, rows, spans, d_rows)
            for i in range(m):
                out[b, place[i]] = work[i]
