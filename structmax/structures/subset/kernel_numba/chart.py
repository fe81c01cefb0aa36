"""How many of the first items are in, if each is in by itself: the distribution after every item. ../README.md."""

import math

import numpy as np

from structmax.numerics.kernel_numba import compiled

# Probabilities below this are dropped at both ends of a row: what they add is below 1e−30 of any result.
NEGLIGIBLE = 1e-40
# How many cells of the chart are kept at once. Beyond, only some rows are, and those between computed again.
CELLS = 1 << 18


@compiled()
def _width(items, most):
    """Cells of a row at most. By Bernstein's inequality counts further than r from their mean are negligible."""
    log_tail = -math.log(NEGLIGIBLE)
    # it is below the mean, which is within a standard deviation of the count that is wanted
    variance = min(items / 4, 2.0 * most + 2)
    r = log_tail / 3 + math.sqrt(2 * log_tail * variance + log_tail * log_tail / 9)
    return int(min(most + 1.0, 2 * r + 2)) + 4


@compiled()
def new_chart(items, sizes):
    """Rows in memory, the first row of each block of rows, and the spans of all rows."""
    most = 0
    for size in sizes:
        most = max(most, min(size, items))
    width = _width(items, most)
    stride = items if (items + 1) * width <= CELLS else max(CELLS // width, int(math.sqrt(items)))
    stride = max(1, min(stride, items))
    blocks = (items + stride - 1) // stride
    return np.empty((stride + 1, width)), np.empty((max(1, blocks), width)), np.empty((items + 1, 3), np.int64)


@compiled("contract")
def fill_block(block, p, q, k, exact, rows, spans):
    """Rows of a block from its first, which is there; returns its items, from first to before last.

    A row has counts lo … hi, and a 0 before and behind them: `spans` says which, and where count 0 is or would be.
    """
    m, stride = p.size, len(rows) - 1
    first = block * stride
    last = min(m, first + stride)
    lo, hi, zero = spans[first]
    for i in range(first, last):
        p_in, p_out = p[i], q[i]
        # Exactly k are reached only from counts the items to come can make up for.
        lo = max(lo, k - (m - i - 1)) if exact else lo
        hi = min(hi + 1, k)
        size = hi - lo + 1
        old, new = rows[i - first, zero + lo - 1 : zero + hi + 1], rows[i - first + 1]
        for j in range(size):
            new[j + 1] = p_out * old[j + 1] + p_in * old[j]
        zero = 1 - lo
        while lo < hi and new[zero + lo] < NEGLIGIBLE:
            lo += 1
        while lo < hi and new[zero + hi] < NEGLIGIBLE:
            hi -= 1
        new[zero + lo - 1] = 0
        new[zero + hi + 1] = 0
        spans[i + 1, 0], spans[i + 1, 1], spans[i + 1, 2] = lo, hi, zero
    return first, last


@compiled()
def copy(source, target):
    """As `target[:] = source`, which takes much longer to compile."""
    for i in range(target.size):
        target[i] = source[i]


@compiled()
def begin(rows, spans):
    """The row before all items: none is in."""
    rows[0, 0], rows[0, 1], rows[0, 2] = 0, 1, 0
    spans[0, 0], spans[0, 1], spans[0, 2] = 0, 0, 1


@compiled()
def fill(p, q, k, exact, rows, starts, spans):
    """All rows; the last block stays in memory. Returns its number."""
    begin(rows, spans)
    last_block = (p.size - 1) // (len(rows) - 1)
    for block in range(last_block + 1):
        copy(rows[0], starts[block])
        first, last = fill_block(block, p, q, k, exact, rows, spans)
        if block < last_block:
            copy(rows[last - first], rows[0])
    return last_block


@compiled()
def recall(block, p, q, k, exact, rows, starts, spans):
    """Brings a block back to memory; returns its items as `fill_block` does."""
    copy(starts[block], rows[0])
    return fill_block(block, p, q, k, exact, rows, spans)


@compiled()
def close(row, span, k, share, above):
    """above[c] = share^(k − c), what count c is worth at the end, and Σ row · above; 0⁰ = 1 stands for exactly k."""
    above[: k + 2] = 0
    total, power, c = 0.0, 1.0, k
    while c >= span[0] and power > 0:
        if c <= span[1]:
            above[c] = power
            total += power * row[span[2] + c]
        power *= share
        c -= 1
    return total


@compiled("contract", "reassoc", "nsz")
def descend(first, last, p, q, rows, spans, above, marginal):
    """Takes `above` from behind a block to before it; the marginal of an item is p Σ row · above, one more count up."""
    for i in range(last - 1, first - 1, -1):
        p_in, p_out = p[i], q[i]
        lo, hi, zero = spans[i]
        row, up = rows[i - first, zero + lo : zero + hi + 1], above[lo : hi + 2]
        total = 0.0
        # Two loops: as one, arrays that lie close together would be summed in another order than others.
        for j in range(row.size):
            total += row[j] * up[j + 1]
        for j in range(row.size):
            up[j] = p_out * up[j] + p_in * up[j + 1]
        up[row.size] = 0
        marginal[i] = p_in * total
