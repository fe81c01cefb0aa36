"""Which pairs some matching has, where scores of −inf forbid others."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.structures.matching.kernel_numba.assignment import NONE, assign, workspace


@compiled()
def keep_usable(table):
    """Forbids, in a table (m, n) of scores, every pair that no matching of all n items has; False if there is none.

    Beside one such matching, item i can take the line of item k if and only if k, thrown out, can go on throwing out
    others until the line of i is taken or a line is that nobody has: if i and k are strongly connected. All lines that
    nobody has are one more node, which every item can replace.
    """
    m, n = table.shape
    allowed = np.empty((n, m))
    for i in range(n):
        for j in range(m):
            allowed[i, j] = 0.0 if table[j, i] > -np.inf else -np.inf
    work = workspace(n, m)
    if not assign(allowed, n, m, False, work):
        return False
    owner = work[3]
    reach = np.zeros((n + 1, n + 1), np.bool_)
    for j in range(m):
        k = n if owner[j] == NONE else owner[j]
        for i in range(n):
            reach[i, k] |= allowed[i, j] == 0
    for i in range(n + 1):
        reach[n, i] = m > n
    for k in range(n + 1):
        for i in range(n + 1):
            if reach[i, k]:
                for end in range(n + 1):
                    reach[i, end] |= reach[k, end]
    for j in range(m):
        k = n if owner[j] == NONE else owner[j]
        for i in range(n):
            if not (reach[i, k] and reach[k, i]):
                table[j, i] = -np.inf
    return True
