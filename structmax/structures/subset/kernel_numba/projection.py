"""The nearest point of {0 ≤ μ ≤ 1, Σ μ = k}, or ≤ k: μ = clip(x − τ, 0, 1), and its derivative. ../README.md."""

import numpy as np

from structmax.numerics.kernel_numba import compiled, kernel
from structmax.numerics.kernel_numba.select import kth_largest
from structmax.structures.subset.kernel_numba.row import load, usable

# Bisections that exhaust the interval of τ; Newton's method needs a few steps.
STEPS = 100
# τ lies within 1 of 0: closer it cannot be had.
ROUNDING = 4 * np.finfo(np.float64).eps


@compiled("contract", "reassoc", "nsz")
def _pieces(z, tau):
    """How many items are at 1, how many are free, and the sum of these, as τ grows from here."""
    ones, above, total = 0, 0, 0.0
    for i in range(z.size):
        ones += z[i] - 1 > tau
        above += z[i] > tau
        total += z[i] if tau < z[i] <= tau + 1 else 0.0
    return ones, above - ones, total


@compiled()
def _threshold(z, k):
    """τ with Σ clip(z − τ, 0, 1) = k, for scores z less the k-th best: Newton's method in a bracket.

    The sum is piecewise linear in τ: a step from the piece of the solution ends at the solution. At −1 the best k are
    at 1, and at 0 fewer than k are above 0.
    """
    low, high, tau = -1.0, 0.0, -1.0
    for _ in range(STEPS):
        ones, free, total = _pieces(z, tau)
        if free == 0 and ones == k:
            break
        moved = (total + (ones - k)) / free if free > 0 else np.inf
        if abs(moved - tau) <= ROUNDING:
            return moved
        if total - free * tau >= k - ones:
            low = tau
        else:
            high = tau
        tau = moved if low < moved < high else (low + high) / 2
    return tau


@compiled("contract", "reassoc", "nsz")
def _cube_sum(x):
    total = 0.0
    for i in range(x.size):
        total += min(max(x[i], 0.0), 1.0)
    return total


@kernel()
def project_rows(first, last, scores, lengths, sizes, exact, point):
    n = scores.shape[1]
    items, place, work = np.empty(n), np.empty(n, np.int64), np.empty(n)
    for b in range(first, last):
        length = usable(lengths[b], sizes[b], exact)
        m = load(scores[b, :length], items, place)
        point[b] = 0
        if m < 0:
            point[b, :length] = np.nan
        elif m > 0 and (not exact or m >= sizes[b]):
            x = items[:m]
            anchor = tau = 0.0
            if exact or _cube_sum(x) > sizes[b]:
                anchor = kth_largest(x, sizes[b], work)
                x -= anchor
                tau = _threshold(x, sizes[b])
            for i in range(m):
                point[b, place[i]] = min(max(x[i] - tau, 0.0), 1.0)


@kernel()
def project_tangent_rows(first, last, point, lengths, sizes, exact, tangent, slack, out):
    """On the free items the tangent less its mean, if the budget is spent: if Σ μ reaches k up to `slack`."""
    for b in range(first, last):
        mu = point[b]
        total, free, mean = 0.0, 0, 0.0
        for i in range(mu.size):
            total += mu[i]
            if 0 < mu[i] < 1:
                free += 1
                mean += tangent[b, i]
        spent = exact or total >= sizes[b] * (1 - slack)
        mean = mean / free if spent and free > 0 else 0.0
        for i in range(mu.size):
            # 0 · μ: what is NaN stays so
            out[b, i] = tangent[b, i] - mean if 0 < mu[i] < 1 else 0 * mu[i]
