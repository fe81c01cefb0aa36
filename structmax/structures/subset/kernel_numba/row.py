"""One instance: its usable items side by side."""

import numpy as np

from structmax.numerics.kernel_numba import compiled


@compiled()
def usable(length, size, exact):
    """How many of the first items may be in a subset: none if none is wanted, or more than there are."""
    return 0 if size <= 0 or (exact and size > length) else length


@compiled()
def load(row, x, place):
    """The scores that are not −inf, and where they stand; returns how many, −1 if there is NaN or +inf."""
    m, broken = 0, 0
    for i in range(row.size):
        score = float(row[i])
        x[m], place[m] = score, i
        m += score > -np.inf
        # NaN is no greater than −inf, either
        broken += not score < np.inf
    return -1 if broken > 0 else m
