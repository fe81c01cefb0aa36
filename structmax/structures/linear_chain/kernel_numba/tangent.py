"""The Hessian of log Z times a tangent, in both domains: forward mode through inside and outside. See ../README.md."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.math import exp
from structmax.numerics.kernel_numba.matrix import add_rows, dot_rows, weigh_rows
from structmax.structures.linear_chain.kernel_numba.log import ceilings, last_marginals, transitions
from structmax.structures.linear_chain.kernel_numba.scaled import (
    add_outer_products,
    exp_shifted,
    rows_of,
    sum_of,
)

# --- scaled domain: x_t is the derivative of x ----------------------------------------------------------------------


@compiled()
def _times_tangent(values, tangent, out):
    """values · tangent; 0 where a score is forbidden, whatever its tangent."""
    zero = values.dtype.type(0)
    for i in range(tangent.size):
        out[i] = values[i] * tangent[i] if values[i] > 0 else zero


@compiled("contract")
def _normalise(share, centre, x, x_t):
    for i in range(x.size):
        x_t[i] = share * (x_t[i] - centre * x[i])
        x[i] *= share


@compiled("contract")
def _subtract(multiple, x, out):
    for i in range(x.size):
        out[i] -= multiple * x[i]


@compiled()
def _set_transitions(t, pairwise, t_pairwise, peaks, matrix, slopes):
    exp_shifted(pairwise[t - 1], peaks[t - 1], matrix)
    _times_tangent(matrix, t_pairwise[t - 1], slopes)


@compiled()
def inside_tangent(pairwise, length, alpha, factor, matrix, peaks, t_unary, t_pairwise, slopes, alpha_t):
    """Fills α′, up to a multiple of α at each position, such that Σ α′ = 0."""
    size = t_unary.shape[1]
    own = rows_of(1, alpha.shape[1], peaks)[0]
    _times_tangent(alpha[0], t_unary[0], alpha_t[0])
    for t in range(length):
        here = alpha_t[t]
        if t > 0:
            if t <= len(pairwise):
                _set_transitions(t, pairwise, t_pairwise, peaks, matrix, slopes)
            weigh_rows(alpha_t[t - 1], 1, size, matrix, size, here)
            add_rows(alpha[t - 1], 1, size, slopes, size, here)
            _times_tangent(alpha[t], t_unary[t], own)
            for c in range(here.size):
                here[c] = factor[t, c] * here[c] + own[c]
        _subtract(sum_of(here) / sum_of(alpha[t]), alpha[t], here)


@compiled("contract")
def _write_each(alpha, alpha_t, gate, gate_t, matrix, slopes, size, out):
    """The derivatives of α e^pairwise gate."""
    for i in range(size):
        for j in range(size):
            k = i * size + j
            out[k] = alpha_t[i] * matrix[k] * gate[j] + alpha[i] * (matrix[k] * gate_t[j] + slopes[k] * gate[j])


@compiled()
def _write_shared(length, alpha, alpha_t, gate, gate_t, matrix, slopes, size, out):
    """The derivatives of Σ α e^pairwise gate over all positions."""
    counts, counts_t = rows_of(size, alpha.shape[1], out), rows_of(size, alpha.shape[1], out)
    add_outer_products(alpha, gate, 0, length - 1, counts)
    add_outer_products(alpha, gate_t, 0, length - 1, counts_t)
    add_outer_products(alpha_t, gate, 0, length - 1, counts_t)
    for i in range(size):
        for j in range(size):
            k = i * size + j
            # The count of a forbidden transition may have overflowed.
            out[k] = matrix[k] * counts_t[i, j] + slopes[k] * counts[i, j] if matrix[k] > 0 else 0


@compiled()
def outside_tangent(
    pairwise, length, alpha, factor, matrix, peaks, t_unary, t_pairwise, slopes, alpha_t, d_unary, d_pairwise
):
    """The derivatives of the marginals, after `inside` and `inside_tangent`. The factors become gates, factor · β."""
    dtype = alpha.dtype.type
    size, width = t_unary.shape[1], alpha.shape[1]
    gate_t = rows_of(length, width, peaks)
    beta, beta_t, other = rows_of(3, width, peaks)
    beta[:size] = dtype(1)
    for t in range(length - 1, -1, -1):
        mass, mass_t = dtype(0), dtype(0)
        for c in range(size):
            mass += alpha[t, c] * beta[c]
            mass_t += alpha_t[t, c] * beta[c] + alpha[t, c] * beta_t[c]
        # Σ α β = 1, and its derivative is 0; the same for the transitions to the next position.
        share, centre = dtype(1) / mass, mass_t / mass
        _normalise(share, centre, beta, beta_t)
        if t < length - 1:
            _normalise(share, centre, factor[t + 1], gate_t[t + 1])
            if len(pairwise) > 1:
                _write_each(alpha[t], alpha_t[t], factor[t + 1], gate_t[t + 1], matrix, slopes, size, d_pairwise[t])
                if t > 0:
                    _set_transitions(t, pairwise, t_pairwise, peaks, matrix, slopes)
        _times_tangent(factor[t], t_unary[t], other)
        for c in range(size):
            d_unary[t, c] = alpha_t[t, c] * beta[c] + alpha[t, c] * beta_t[c]
            gate_t[t, c] = factor[t, c] * beta_t[c] + other[c] * beta[c]
            factor[t, c] *= beta[c]
        if t > 0:
            dot_rows(factor[t], size, matrix, size, beta)
            dot_rows(gate_t[t], size, matrix, size, beta_t)
            dot_rows(factor[t], size, slopes, size, other)
            for c in range(size):
                beta_t[c] += other[c]
    if len(pairwise) == 1 and length > 1:
        _write_shared(length, alpha, alpha_t, factor, gate_t, matrix, slopes, size, d_pairwise[0])


# --- log domain: a_t is the derivative of a = log α -----------------------------------------------------------------


@compiled("contract")
def _reach_tangent(before, before_t, block, t_block, reach, share, out):
    """out[j] = Σ over i of P(i before j) · (a′[i] + pairwise′[i, j])"""
    size = before.size
    zero = block.dtype.type(0)
    out[:] = 0
    for i in range(size):
        if before[i] > -np.inf:
            for j in range(size):
                weight = exp(block.dtype.type(before[i] + block[i * size + j] - reach[j]))
                slope = share[j] * weight * (before_t[i] + t_block[i * size + j])
                # The tangent of a forbidden transition may be anything.
                out[j] += slope if weight > zero else 0.0


@compiled()
def _log_inside_tangent(pairwise, length, a, ceiling, share, t_unary, t_pairwise, a_t, reach_t):
    """Fills a′, up to a constant at each position, and the derivative of what reaches it before its unary score."""
    size = a.shape[1]
    p = np.empty(size)
    for t in range(length):
        if t > 0:
            block, t_block = transitions(pairwise, t), transitions(t_pairwise, t)
            _reach_tangent(a[t - 1], a_t[t - 1], block, t_block, ceiling[t], share[t], reach_t[t])
        last_marginals(a[t], p)
        centre = 0.0
        for c in range(size):
            a_t[t, c] = reach_t[t, c] + t_unary[t, c] if a[t, c] > -np.inf else 0.0
            centre += p[c] * a_t[t, c]
        for c in range(size):
            a_t[t, c] -= centre


@compiled("contract", "reassoc")
def _share_tangent(a, a_t, row, t_row, ceiling, share, reach_t, p, p_t, out):
    """Adds the derivatives of p(j) · P(i before j) to `out`; returns the sum of both."""
    total, total_t = 0.0, 0.0
    for j in range(row.size):
        weight = exp(row.dtype.type(a + row[j] - ceiling[j])) * share[j]
        slope = weight * (p_t[j] + p[j] * (a_t + t_row[j] - reach_t[j]))
        slope = slope if weight > 0 else 0.0
        out[j] += slope
        total += weight * p[j]
        total_t += slope
    return total, total_t


@compiled()
def log_tangent(pairwise, length, a, reach, share, t_unary, t_pairwise, d_unary, d_pairwise):
    """The derivatives of the marginals, after `log_inside`."""
    size = a.shape[1]
    a_t, reach_t = np.zeros((length, size)), np.zeros((length, size))
    p, p_t = np.empty((length, size)), np.empty((length, size))
    ceiling = np.empty((length, size))
    for t in range(length):
        ceilings(reach[t], a[t], -np.inf, ceiling[t])
    _log_inside_tangent(pairwise, length, a, ceiling, share, t_unary, t_pairwise, a_t, reach_t)
    last = length - 1
    last_marginals(a[last], p[last])
    for c in range(size):
        p_t[last, c] = p[last, c] * a_t[last, c]
    for t in range(last, 0, -1):
        block, t_block, out = transitions(pairwise, t), transitions(t_pairwise, t), transitions(d_pairwise, t)
        mass, mass_t = 0.0, 0.0
        for i in range(size):
            p[t - 1, i], p_t[t - 1, i] = 0.0, 0.0
            if a[t - 1, i] > -np.inf:
                row = slice(i * size, (i + 1) * size)
                reached = ceiling[t], share[t], reach_t[t], p[t], p_t[t]
                p[t - 1, i], p_t[t - 1, i] = _share_tangent(
                    a[t - 1, i], a_t[t - 1, i], block[row], t_block[row], *reached, out[row]
                )
            mass += p[t - 1, i]
            mass_t += p_t[t - 1, i]
        for i in range(size):
            p[t - 1, i] /= mass
            p_t[t - 1, i] -= mass_t * p[t - 1, i]
    for t in range(length):
        for c in range(size):
            d_unary[t, c] = p_t[t, c]
