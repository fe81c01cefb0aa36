"""What the proximal maps ask of a row: how many entries, how far apart, in which order."""

import numpy as np

from structmax.numerics.kernel_numba import compiled

# As in reference.py: where rounding cannot tell whether two values meet, they meet.
SLACK = 2.0**-43
# Up to this many entries, counting the greater ones for each entry (vectorised) sorts faster than distributing digits.
COUNTING_ENTRIES = 128
DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS


@compiled()
def count(x):
    """How many entries are kept: −1 if one is NaN or +inf."""
    kept, unsound = 0, 0
    for i in range(len(x)):
        kept += x[i] > -np.inf
        unsound += not x[i] < np.inf
    return -1 if unsound else kept


@compiled("nnan", "nsz")
def extent(x):
    """Least and greatest kept entry of a row without NaN."""
    low, high = x.dtype.type(np.inf), x.dtype.type(-np.inf)
    for i in range(len(x)):
        low = min(low, x[i] if x[i] > -np.inf else x.dtype.type(np.inf))
        high = max(high, x[i])
    return np.float64(low), np.float64(high)


@compiled()
def _sort_by_counting(keys, order):
    order[:] = -1
    for i in range(len(keys)):
        rank = 0
        for j in range(len(keys)):
            rank += keys[j] > keys[i]
        # Equal keys have the same rank and take the next free places.
        while order[rank] >= 0:
            rank += 1
        order[rank] = i


@compiled()
def _sort_by_digits(keys, order, spare, places):
    """Digit by digit from the lowest."""
    for i in range(len(keys)):
        order[i] = i
        # As digits, negative keys would come first.
        keys[i] ^= np.iinfo(keys.dtype).min
    source, target = order, spare
    # The number of digits is even, so the last target is `order`.
    for shift in range(0, 8 * keys.itemsize, DIGIT_BITS):
        places[:] = 0
        for i in range(len(keys)):
            places[(keys[i] >> shift) & (DIGITS - 1)] += 1
        place = 0
        for digit in range(DIGITS - 1, -1, -1):
            count = places[digit]
            places[digit] = place
            place += count
        for k in range(len(keys)):
            i = source[k]
            digit = (keys[i] >> shift) & (DIGITS - 1)
            target[places[digit]] = i
            places[digit] += 1
        source, target = target, source


@compiled()
def sort_scratch(n):
    return np.empty(n, np.int32), np.empty(n, np.int32), np.empty(DIGITS, np.int32)


@compiled()
def sort_descending(keys, scratch):
    """The index of the k-th greatest key, for each k: equal keys keep their order. The keys are destroyed."""
    order, spare, places = scratch
    m = len(keys)
    if m <= COUNTING_ENTRIES:
        _sort_by_counting(keys, order[:m])
    else:
        _sort_by_digits(keys, order[:m], spare[:m], places)
    return order[:m]
