"""The k largest of many numbers, by partition: no sorting."""

import numpy as np

from structmax.numerics.kernel_numba import compiled


@compiled("nnan", "nsz")
def _greatest(x):
    greatest = x[0]
    for i in range(1, x.size):
        greatest = max(greatest, x[i])
    return greatest


@compiled()
def _candidates(x, k, work):
    """Copies what may be among the k largest: each of k runs of items has one as large as the least of their maxima."""
    least = -np.inf
    if 8 * k <= x.size:
        least = np.inf
        for run in range(k):
            least = min(least, _greatest(x[run * x.size // k : (run + 1) * x.size // k]))
    count = 0
    for i in range(x.size):
        work[count] = x[i]
        count += x[i] >= least
    return count


@compiled()
def kth_largest(x, k, work):
    """The k-th largest of x, 1 ≤ k ≤ its size, by repeated partition of the candidates."""
    first, last, target = 0, _candidates(x, k, work) - 1, k - 1
    while first < last:
        low, middle, high = work[first], work[(first + last) // 2], work[last]
        pivot = max(min(low, middle), min(max(low, middle), high))
        i, j = first, last
        while i <= j:
            while work[i] > pivot:
                i += 1
            while work[j] < pivot:
                j -= 1
            if i <= j:
                work[i], work[j] = work[j], work[i]
                i += 1
                j -= 1
        if target <= j:
            last = j
        elif target >= i:
            first = i
        else:
            break
    return work[target]


@compiled()
def keep_best(x, place, m, count, work):
    """Moves the `count` largest of m numbers to the front, with all that equal the last of them; returns how many."""
    if count <= 0 or count >= m:
        return min(max(count, 0), m)
    least, kept = kth_largest(x[:m], count, work), 0
    for i in range(m):
        if x[i] >= least:
            x[kept], place[kept] = x[i], place[i]
            kept += 1
    return kept
