"""Solves with R, upper triangular and stored by rows, and what keeps it triangular when a column leaves.

Only the first `count` rows and columns count. All inner loops run along rows.
"""

from structmax.numerics.kernel_numba import compiled


@compiled("contract", "reassoc")
def solve_transposed(factor, count, x):
    """x ← R⁻ᵀ x"""
    for i in range(count):
        value = x[i] / factor[i, i]
        x[i] = value
        for j in range(i + 1, count):
            x[j] -= value * factor[i, j]


@compiled("contract", "reassoc")
def solve(factor, count, x):
    """x ← R⁻¹ x"""
    for i in range(count - 1, -1, -1):
        total = 0.0
        for j in range(i + 1, count):
            total += factor[i, j] * x[j]
        x[i] = (x[i] - total) / factor[i, i]


@compiled("contract", "reassoc")
def dot(x, y, count):
    total = 0.0
    for i in range(count):
        total += x[i] * y[i]
    return total


@compiled("contract")
def rotate(c, s, row, x, start, stop):
    """Rotates row and x; the row goes one place to the left."""
    for j in range(start, stop):
        old = row[j]
        row[j - 1] = c * old + s * x[j]
        x[j] = c * x[j] - s * old


@compiled()
def shift(row, start, stop):
    """Moves what follows `start`, up to `stop`, one place to the left."""
    for j in range(start, stop):
        row[j] = row[j + 1]
