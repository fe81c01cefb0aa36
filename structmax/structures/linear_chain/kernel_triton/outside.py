"""Marginals after the walks, and their derivatives along a tangent. Derivation: ../README.md.

P(t, j) is the softmax of a + b. A transition has its share of it, P(i → j at t) = P(t, j) · q(i | j), with
q(i | j) = exp(a(i) + W(i, j) − reach(j)) · share(j); so all positions are written at once.

Where logarithms on probable ways are so large that a and b have lost their digits, each position would round for
itself, and the marginals be those of no distribution. Such an instance takes its P from the last position backwards by
these shares alone, as derivatives always do: `flow`.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import floored, parts, positive, softmax
from structmax.numerics.kernel_triton.transitions import changes, load_matrix, load_row, store_row

# How many entries of an answer a program clears at once.
CLEARED = tl.constexpr(1024)


@triton.jit(do_not_specialize=["N", "rows"])
def meet(
    p_unary, p_lengths, p_value, p_alpha, p_reach, p_share, p_beta, p_scale, p_spread, p_d_unary, N, rows,
    DOUBLE: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The marginals of labels; `scale`, the factor of each label's transitions; and of each position its `spread`.

    That is the largest logarithm or score, in absolute value, of a label with some probability. A program has ROWS
    positions, of any instances.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o_label = tl.arange(0, SPAN)[None, :]
    m_row = o_row < rows
    i_b, t = o_row // N, o_row % N
    length = tl.load(p_lengths + i_b, mask=m_row, other=0)
    value = tl.load(p_value + i_b, mask=m_row, other=0.0)[:, None]
    m_exists = (t < length)[:, None] & (o_label < C)
    m_reached = m_exists & (t > 0)[:, None]
    o_cell = o_row[:, None] * C + o_label
    b_a = tl.load(p_alpha + o_cell, mask=m_exists, other=float("-inf"))
    b_b = tl.load(p_beta + o_cell, mask=m_exists, other=float("-inf"))
    b_x = b_a + b_b
    b_p = tl.exp(b_x - floored(tl.max(b_x, 1, keep_dims=True)))
    b_p = b_p / positive(tl.sum(b_p, 1, keep_dims=True))
    b_share = tl.load(p_share + o_cell, mask=m_reached, other=0.0)
    tl.store(p_scale + o_cell, b_share * b_p, mask=m_reached)
    b_parts = parts(value, b_p, m_exists)
    tl.store(p_d_unary + o_cell, b_parts, mask=m_row[:, None] & (o_label < C))
    b_u = tl.load(p_unary + o_cell, mask=m_exists, other=0.0).to(WORK)
    b_reach = tl.load(p_reach + o_cell, mask=m_reached, other=0.0)
    b_size = tl.maximum(tl.maximum(tl.abs(b_a), tl.abs(b_b)), tl.maximum(tl.abs(b_u), tl.abs(b_reach)))
    tl.store(p_spread + o_row, tl.max(tl.where(b_p > 0, b_size, 0.0), 1), mask=m_row)


@triton.jit
def _clear(p_parts, value, start, length, N, C: tl.constexpr):
    """Rows of an answer from `start` on where nothing is computed."""
    for first in tl.range(start * C, N * C, CLEARED):
        o_cell = first + tl.arange(0, CLEARED)
        b_none = parts(value, tl.zeros((CLEARED,), value.dtype), o_cell < length * C)
        tl.store(p_parts + o_cell, b_none, mask=o_cell < N * C)


@triton.jit(do_not_specialize=["N"])
def push(
    p_unary_t, p_pairwise, p_pairwise_t, p_lengths, p_alpha, p_reach, p_share, p_alpha_t, p_reach_t, N,
    SHARED: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fills the derivatives `alpha_t` of a, centred at each position, and `reach_t` of what reaches a label. Grid (B,).

    Only differences of labels count: centred by the probabilities of α, nothing grows along the chain.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    STEP: tl.constexpr = 0 if SHARED else C * C
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    o_row = i_b * N * C
    o_matrix = i_b * C * C if SHARED else i_b * (N - 1) * C * C
    p_unary_t += o_row
    p_alpha += o_row
    p_reach += o_row
    p_share += o_row
    p_alpha_t += o_row
    p_reach_t += o_row
    p_pairwise += o_matrix
    p_pairwise_t += o_matrix
    o_label = tl.arange(0, SPAN)
    if length > 0:
        b_before = load_row(p_alpha, o_label, C, WORK)
        b_t = _centred(load_row(p_unary_t, o_label, C, WORK, 0.0), b_before)
        store_row(p_alpha_t, o_label, b_t, C)
        if TILE == SPAN:
            for t in tl.range(1, length, num_stages=STAGES):
                b_before = load_row(p_alpha + (t - 1) * C, o_label, C, WORK)
                b_a = load_row(p_alpha + t * C, o_label, C, WORK)
                b_u_t = load_row(p_unary_t + t * C, o_label, C, WORK, 0.0)
                b_r_t = _arrive(
                    b_before, b_t, p_pairwise + (t - 1) * STEP, p_pairwise_t + (t - 1) * STEP,
                    p_reach + t * C, p_share + t * C, p_reach_t + t * C, o_label, o_label, C, WORK,
                )  # fmt: skip
                b_t = _centred(b_r_t + b_u_t, b_a)
                store_row(p_alpha_t + t * C, o_label, b_t, C)
        else:
            for t in tl.range(1, length):
                b_before = load_row(p_alpha + (t - 1) * C, o_label, C, WORK)
                for first in tl.range(0, C, TILE, num_stages=STAGES):
                    o_to = first + tl.arange(0, TILE)
                    _arrive(
                        b_before, b_t, p_pairwise + (t - 1) * STEP, p_pairwise_t + (t - 1) * STEP,
                        p_reach + t * C, p_share + t * C, p_reach_t + t * C, o_label, o_to, C, WORK,
                    )  # fmt: skip
                # Threads read what others wrote.
                tl.debug_barrier()
                b_a = load_row(p_alpha + t * C, o_label, C, WORK)
                b_u_t = load_row(p_unary_t + t * C, o_label, C, WORK, 0.0)
                b_t = _centred(load_row(p_reach_t + t * C, o_label, C, WORK, 0.0) + b_u_t, b_a)
                store_row(p_alpha_t + t * C, o_label, b_t, C)


@triton.jit
def _centred(b_t, b_a):
    """Derivatives of logarithms less their mean under the softmax of these; 0 for what is forbidden."""
    b_t = tl.where(b_a > float("-inf"), b_t, 0.0)
    return b_t - tl.sum(softmax(b_a) * b_t, 0)


@triton.jit
def _arrive(
    b_before, b_t, p_matrix, p_matrix_t, p_reach, p_share, p_reach_t, o_from, o_to, C: tl.constexpr, WORK: tl.constexpr
):
    """The derivative of what reaches the labels `o_to`, also into memory."""
    b_w = load_matrix(p_matrix, o_from, o_to, C, WORK)
    b_w_t = load_matrix(p_matrix_t, o_from, o_to, C, WORK, 0.0)
    b_reach = load_row(p_reach, o_to, C, WORK, 0.0)
    b_share = load_row(p_share, o_to, C, WORK, 0.0)
    b_q = tl.exp(b_before[:, None] + b_w - b_reach[None, :]) * b_share[None, :]
    b_r_t = tl.sum(tl.where(b_q > 0, b_q * (b_t[:, None] + b_w_t), 0.0), 0)
    store_row(p_reach_t, o_to, b_r_t, C)
    return b_r_t


@triton.jit(do_not_specialize=["N"])
def flow(
    p_pairwise, p_pairwise_t, p_lengths, p_value, p_alpha, p_reach, p_share, p_alpha_t, p_reach_t,
    p_scale, p_slope, p_spread, p_d_unary, N, limit,
    SHARED: tl.constexpr, TANGENT: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Shares out the mass of each label among those before it, from the last position to the first. Grid (B,).

    Without a tangent: the marginals of labels and `scale`, only of instances with a spread above the limit. With one:
    the derivatives of these marginals, `scale`, and its derivative `slope`.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    STEP: tl.constexpr = 0 if SHARED else C * C
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    value = tl.load(p_value + i_b)
    o_row = i_b * N * C
    p_alpha += o_row
    p_reach += o_row
    p_share += o_row
    p_scale += o_row
    p_d_unary += o_row
    o_matrix = i_b * C * C if SHARED else i_b * (N - 1) * C * C
    p_pairwise += o_matrix
    feasible = (value > float("-inf")) & (length > 0)
    if TANGENT:
        p_pairwise_t += o_matrix
        p_alpha_t += o_row
        p_reach_t += o_row
        p_slope += o_row
        start = tl.where(feasible, length, 0)
        _clear(p_d_unary, value, start, length, N, C)
    else:
        worst = tl.full((), 0.0, WORK)
        for first in tl.range(0, N, CLEARED):
            o_position = first + tl.arange(0, CLEARED)
            worst = tl.maximum(
                worst, tl.max(tl.load(p_spread + i_b * N + o_position, mask=o_position < N, other=0.0), 0)
            )
        feasible = feasible & (worst > limit)
    if feasible:
        o_label = tl.arange(0, SPAN)
        b_p = softmax(load_row(p_alpha + (length - 1) * C, o_label, C, WORK))
        b_p_t = b_p
        if TANGENT:
            b_p_t = b_p * load_row(p_alpha_t + (length - 1) * C, o_label, C, WORK, 0.0)
        store_row(p_d_unary + (length - 1) * C, o_label, b_p_t, C)
        for back in tl.range(1, length, num_stages=STAGES if TILE == SPAN else 1):
            t = length - back
            b_reach = load_row(p_reach + t * C, o_label, C, WORK, 0.0)
            b_share = load_row(p_share + t * C, o_label, C, WORK, 0.0)
            b_scale = b_share * b_p
            b_slope = b_scale
            store_row(p_scale + t * C, o_label, b_scale, C)
            if TANGENT:
                b_slope = b_share * (b_p_t - b_p * load_row(p_reach_t + t * C, o_label, C, WORK, 0.0))
                store_row(p_slope + t * C, o_label, b_slope, C)
            p_w = p_pairwise + (t - 1) * STEP
            p_before = p_alpha + (t - 1) * C
            p_before_t = p_before
            p_w_t = p_w
            if TANGENT:
                p_before_t = p_alpha_t + (t - 1) * C
                p_w_t = p_pairwise_t + (t - 1) * STEP
            if TILE == SPAN:
                b_p, b_p_t = _leave(
                    p_before, p_before_t, p_w, p_w_t, b_reach, b_scale, b_slope, o_label, o_label, TANGENT, C, WORK
                )
            else:
                # Rows of scale and slope are free until the next position.
                for first in tl.range(0, C, TILE, num_stages=STAGES):
                    o_from = first + tl.arange(0, TILE)
                    b_mass, b_change = _leave(
                        p_before, p_before_t, p_w, p_w_t, b_reach, b_scale, b_slope, o_from, o_label, TANGENT, C, WORK
                    )
                    store_row(p_scale + (t - 1) * C, o_from, b_mass, C)
                    if TANGENT:
                        store_row(p_slope + (t - 1) * C, o_from, b_change, C)
                tl.debug_barrier()
                b_p = load_row(p_scale + (t - 1) * C, o_label, C, WORK, 0.0)
                b_p_t = b_p
                if TANGENT:
                    b_p_t = load_row(p_slope + (t - 1) * C, o_label, C, WORK, 0.0)
                tl.debug_barrier()
            b_p = b_p / tl.sum(b_p, 0)
            b_p_t = b_p_t - tl.sum(b_p_t, 0) * b_p if TANGENT else b_p
            store_row(p_d_unary + (t - 1) * C, o_label, b_p_t, C)


@triton.jit
def _leave(
    p_before, p_before_t, p_matrix, p_matrix_t, b_reach, b_scale, b_slope, o_from, o_to,
    TANGENT: tl.constexpr, C: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """The mass that goes back to the labels `o_from`, and its derivative."""
    b_a = load_row(p_before, o_from, C, WORK)
    b_w = load_matrix(p_matrix, o_from, o_to, C, WORK)
    b_weight = tl.exp(b_a[:, None] + b_w - b_reach[None, :])
    b_mass = tl.sum(b_weight * b_scale[None, :], 1)
    b_change = b_mass
    if TANGENT:
        b_a_t = load_row(p_before_t, o_from, C, WORK, 0.0)
        b_tangent = b_a_t[:, None] + load_matrix(p_matrix_t, o_from, o_to, C, WORK, 0.0)
        b_change = tl.sum(changes(b_weight, b_scale[None, :], b_slope[None, :], b_tangent), 1)
    return b_mass, b_change
