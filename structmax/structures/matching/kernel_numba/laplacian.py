"""The linear system of a transport problem: L (a, b) = sums of x, for a bipartite graph with weights D ≥ 0.

    Σ_j D_ji (a_i + b_j) = Σ_j x_ji   for each item i of the short side that is held      (a_i = 0 for the others)
    Σ_i D_ji (a_i + b_j) = Σ_i x_ji   for each line j of the long side that is held       (b_j = 0 for the others)

The lines are eliminated first. What is left is again a Laplacian: weights w ≥ 0 between items, and a weight to the
ground for what leaves towards those not held. Its elimination adds positive numbers and never subtracts, so that even
couplings of 1e-300 keep all their digits; a pivot is 0 only where a component has no ground, and there a = 0 is as good
as any other value.
"""

from structmax.numerics.kernel_numba import compiled

# Below this fraction of the weights of an item, a pivot is smaller than the rounding of what it divides: the item, and
# those joined in it, count as a component without ground.
NO_PIVOT = 2.0**-46


@compiled("contract")
def _add(factor, d, w):
    for i in range(len(w)):
        w[i] += factor * d[i]


@compiled("contract", "reassoc")
def _dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@compiled("reassoc")
def _sum(a):
    total = 0.0
    for i in range(len(a)):
        total += a[i]
    return total


@compiled()
def eliminate_lines(d, sums, held, w, ground, least):
    """Weights w[i, :i] between the items, and to the ground, with the lines that are held eliminated.

    `d` (m, n) holds the weights, `sums` (m) their sums over each line. `least` (n) is what pivots should exceed.
    """
    m, n = d.shape
    for i in range(n):
        ground[i] = least[i] = 0.0
        for k in range(i):
            w[i, k] = 0.0
    for j in range(m):
        _add(NO_PIVOT, d[j], least)
        if held[j] and sums[j] > 0:
            for i in range(1, n):
                if d[j, i] > 0:
                    _add(d[j, i] / sums[j], d[j], w[i, :i])
        else:
            _add(1.0, d[j], ground)


@compiled()
def release_items(held, u, w, ground, right):
    """Items that are not held become ground, at the height −u."""
    for i in range(len(held)):
        if not held[i]:
            for k in range(i):
                ground[k] += w[i, k]
                right[k] -= w[i, k] * u[i]
                w[i, k] = 0.0
            ground[i], right[i] = 0.0, 0.0
    for i in range(len(held)):
        for k in range(i):
            if not held[k]:
                ground[i] += w[i, k]
                right[i] -= w[i, k] * u[k]
                w[i, k] = 0.0


@compiled()
def factorise(w, ground, pivot):
    """From the last item to the first: its neighbours are joined, in proportion. Row i of w stays as it was then.

    `pivot` has the least pivots and gets the pivots, 0 for a component without ground.
    """
    for k in range(len(ground) - 1, -1, -1):
        row = w[k, :k]
        whole = ground[k] + _sum(row)
        if whole <= pivot[k]:
            pivot[k] = 0.0
            continue
        pivot[k] = whole
        for i in range(k):
            if row[i] > 0:
                share = row[i] / whole
                ground[i] += share * ground[k]
                _add(share, row, w[i, :i])


@compiled()
def solve(w, pivot, a):
    """Overwrites the right-hand side a with the solution."""
    n = len(a)
    for k in range(n - 1, -1, -1):
        if pivot[k] > 0:
            _add(a[k] / pivot[k], w[k, :k], a[:k])
    for k in range(n):
        a[k] = (a[k] + _dot(w[k, :k], a[:k])) / pivot[k] if pivot[k] > 0 else 0.0
