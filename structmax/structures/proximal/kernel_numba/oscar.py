"""OSCAR on the simplex, on the CPU: clusters from a histogram of the scores. Derivation: ../README.md."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.structures.proximal.kernel_numba.row import SLACK, count, extent, sort_descending, sort_scratch

# Up to this many intervals of length λ per entry, a histogram is faster than a sort.
CELLS_PER_ENTRY = 4


@compiled("nnan", "nsz", "reassoc")
def _one_cluster(x, low, peak, lam, m):
    """Surely the m kept entries pool: for each k, the k greatest do not stand out enough from the rest.

    They exceed the mean together by at most k (peak − mean), (m − k)(mean − low) and the sum of positive deviations.
    """
    total, spread, margin = 0.0, 0.0, lam
    for i in range(len(x)):
        total += np.float64(x[i]) - peak if x[i] > -np.inf else 0.0
    mean = total / m
    for i in range(len(x)):
        spread += max(np.float64(x[i]) - peak - mean, 0.0)
    for k in range(1, m):
        excess = min(min(k * -mean, (m - k) * (mean + peak - low)), spread)
        margin = min(margin, lam * k * (m - k) - 2 * excess)
    return margin > 0


@compiled()
def _collect(x, peak, reach, index):
    """The indices of the entries less than `reach` below the greatest: returns how many there are."""
    m = 0
    for i in range(len(x)):
        index[m] = i
        m += peak - x[i] < reach
    return m


@compiled()
def _cells_by_value(x, index, peak, scale, cell):
    """Entries in the same interval of length λ = 1 / scale share a cell: they pool, whatever their order."""
    for k in range(len(index)):
        cell[k] = int((peak - x[index[k]]) * scale)


@compiled()
def _cells_by_rank(patterns, index, keys, sorting, cell):
    """Each entry has a cell of its own."""
    bits = patterns.dtype.type(8 * patterns.itemsize - 1)
    magnitude_bits = np.iinfo(patterns.dtype).max
    for k in range(len(index)):
        # With the magnitude of negative numbers reversed, bit patterns are ordered as the floats are.
        key = patterns[index[k]]
        key ^= (key >> bits) & magnitude_bits
        # −0 is 0.
        keys[k] = key + (key == -1)
    order = sort_descending(keys[: len(index)], sorting)
    for k in range(len(index)):
        cell[order[k]] = k


@compiled()
def _fill_cells(x, index, cell, cells, peak, lam, total, size, stop):
    """Sums and sizes of the cells that are not empty, λ added for each rank. Returns how many there are."""
    for k in range(cells):
        total[k], size[k] = 0.0, 0.0
    for k in range(len(index)):
        total[cell[k]] += x[index[k]] - peak
        size[cell[k]] += 1.0
    rank, filled = 0, 0
    for k in range(cells):
        t, s = total[k], size[k]
        total[filled], size[filled], stop[filled] = t + s * lam * (rank + 0.5 * (s - 1)), s, k + 1
        rank += int(s)
        filled += s > 0
    return filled


@compiled()
def _pool(total, size, stop, lam, slack):
    """Pool what ascends, in place. Returns how many blocks remain; `stop` is the first cell after each."""
    # The blocks before the last are a stack: it swallows them while its mean is not less.
    blocks = 0
    t, s, end = total[0], size[0], stop[0]
    for k in range(1, len(total)):
        if lam == 0 or t * size[k] > (total[k] + slack * size[k]) * s:
            total[blocks], size[blocks], stop[blocks] = t, s, end
            blocks += 1
            t, s, end = total[k], size[k], stop[k]
            continue
        t += total[k]
        s += size[k]
        end = stop[k]
        while blocks > 0 and total[blocks - 1] * s <= (t + slack * s) * size[blocks - 1]:
            blocks -= 1
            t += total[blocks]
            s += size[blocks]
    total[blocks], size[blocks], stop[blocks] = t, s, end
    return blocks + 1


@compiled()
def _oscar_row(x, index, cell, cells, peak, lam, slack, scratch, y, groups):
    total, size, stop, shown, block = scratch
    filled = _fill_cells(x, index, cell, cells, peak, lam, total, size, stop)
    blocks = _pool(total[:filled], size[:filled], stop[:filled], lam, slack)
    k = 0
    for b in range(blocks):
        mean = total[b] / size[b]
        while k < stop[b]:
            shown[k], block[k] = mean, b
            k += 1
    for i in range(len(x)):
        y[i], groups[i] = -np.inf, -1
    for k in range(len(index)):
        y[index[k]], groups[index[k]] = shown[cell[k]], block[cell[k]]


@kernel()
def oscar_rows(start, stop, x, patterns, lam, y, groups):
    n = x.shape[1]
    indices, cell, keys = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, patterns.dtype)
    sorting = sort_scratch(n)
    most = CELLS_PER_ENTRY * n
    scratch = np.empty(most), np.empty(most), np.empty(most, np.int32), np.empty(most), np.empty(most, np.int32)
    for row in range(start, stop):
        strength, kept = lam[row], count(x[row])
        if kept < 0 or not strength >= 0:
            y[row], groups[row] = np.nan, 0
            continue
        low, peak = extent(x[row])
        # Measured from the greatest entry, nothing is lost beside large scores.
        spread, reach = peak - low, 1 + strength * (kept - 1)
        # The first test follows from the second, and is quick.
        alike = 2 * spread < strength * kept
        if kept == 0 or alike or (spread < reach and _one_cluster(x[row], low, peak, strength, kept)):
            for i in range(n):
                inside = x[row, i] > -np.inf
                y[row, i], groups[row, i] = 0 if inside else -np.inf, 0 if inside else -1
            continue
        index = indices[: _collect(x[row], peak, reach, indices)]
        spread, m = min(spread, reach), len(index)
        scale = 1 / strength
        if spread * scale < CELLS_PER_ENTRY * m - 1:
            cells = int(spread * scale) + 1
            _cells_by_value(x[row], index, peak, scale, cell)
        else:
            cells = m
            _cells_by_rank(patterns[row], index, keys, sorting, cell)
        slack = SLACK * (spread + strength * m)
        _oscar_row(x[row], index, cell, cells, peak, strength, slack, scratch, y[row], groups[row])
