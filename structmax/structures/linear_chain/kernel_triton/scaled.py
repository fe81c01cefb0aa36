"""The same walks where one matrix W serves all positions: exp(W) is computed once, and a step is a product with it.

A column of W is taken next to its largest entry, `cap`, and a next to its own, so nothing overflows. What underflows is
nothing beside a sum that is not tiny. If the sum of a label that W allows is, the walk says so, and the instance is
walked again in the log domain (inside.py). So it is where a likely label has a `cap` so large that a + W has no digits
left for a: the sums have, and what is made of both would not sum to 1.

Sums run along the axis in which memory is not contiguous, so that few threads share one. Backwards that takes the
matrix turned around.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import floored, positive
from structmax.numerics.kernel_triton.transitions import load_row, store_row

# The largest logarithms that are added to others, in float32 and in float64: their rounding is what may be lost.
FAR_SINGLE, FAR_DOUBLE = tl.constexpr(2.0**10), tl.constexpr(2.0**16)


@triton.jit
def _weights(p_matrix, C: tl.constexpr, SPAN: tl.constexpr, WORK: tl.constexpr):
    """exp(W) next to the largest entry of each column, with columns along the second axis, and these entries."""
    o_to, o_from = tl.arange(0, SPAN)[:, None], tl.arange(0, SPAN)[None, :]
    m_matrix = (o_from < C) & (o_to < C)
    b_w = tl.load(p_matrix + o_from * C + o_to, mask=m_matrix, other=float("-inf")).to(WORK)
    b_cap = tl.max(b_w, 1)
    return tl.exp(b_w - floored(b_cap)[:, None]), b_cap


@triton.jit
def _is_exact(b_least, WORK: tl.constexpr):
    """Whether no sum that matters was tiny."""
    # as far from 1 as from the smallest number, about
    TINY: tl.constexpr = 1e-20 if WORK == tl.float32 else 1e-150
    return tl.min(b_least, 0) > TINY


@triton.jit
def start(p_start, o_label, C: tl.constexpr, WORK: tl.constexpr):
    """Logarithms to walk on from, with 0 for the largest, and by how much they were shifted."""
    b_a = load_row(p_start, o_label, C, WORK)
    peak = tl.max(b_a, 0)
    return b_a - floored(peak), peak.to(tl.float64)


@triton.jit
def start_back(p_start, o_label, C: tl.constexpr, SPAN: tl.constexpr, WORK: tl.constexpr):
    """Logarithms to walk back from, or zeros."""
    if p_start is None:
        b_b = tl.zeros((SPAN,), WORK)
    else:
        b_b = load_row(p_start, o_label, C, WORK)
    return b_b


@triton.jit
def scaled_forwards(
    p_unary, p_pairwise, p_start, p_alpha, p_reach, p_share, first, last, kept,
    WORK: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Does what `forwards` does, with `cap` for `reach`, and returns whether it is exact, too."""
    o_label = tl.arange(0, SPAN)
    b_weight, b_cap = _weights(p_pairwise, C, SPAN, WORK)
    b_reach = floored(b_cap)
    m_allowed = b_cap > float("-inf")
    FAR: tl.constexpr = FAR_SINGLE if WORK == tl.float32 else FAR_DOUBLE
    m_coarse = m_allowed & (tl.abs(b_cap) > FAR)
    b_a, value = start(p_start, o_label, C, WORK)
    b_least = tl.full((SPAN,), 1.0, WORK)
    for t in tl.range(first + 1, last + 1, num_stages=STAGES):
        b_u = load_row(p_unary + t * C, o_label, C, WORK)
        b_sum = tl.sum(b_weight * tl.exp(b_a)[None, :], 1)
        b_least = tl.minimum(b_least, tl.where(m_allowed, b_sum, 1.0))
        b_total = positive(b_sum)
        b_new = (b_cap + b_u) + tl.log(b_total)
        peak = tl.max(b_new, 0)
        value += peak.to(tl.float64)
        b_a = b_new - floored(peak)
        b_least = tl.where(m_coarse & (b_a > -FAR), 0.0, b_least)
        if p_alpha is not None:
            store_row(p_alpha + t * C, o_label, b_a, tl.where(t <= kept, C, 0))
        if p_reach is not None:
            store_row(p_reach + t * C, o_label, b_reach, C)
            store_row(p_share + t * C, o_label, 1 / b_total, C)
    return b_a, value, _is_exact(b_least, WORK)


@triton.jit
def scaled_backwards(
    p_unary, p_flipped, p_start, p_beta, first, last,
    WORK: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fills what `_backwards` does, by the matrix turned around, and returns whether it is exact."""
    o_label = tl.arange(0, SPAN)
    b_weight, b_cap = _weights(p_flipped, C, SPAN, WORK)
    m_allowed = b_cap > float("-inf")
    b_b = start_back(p_start, o_label, C, SPAN, WORK)
    b_least = tl.full((SPAN,), 1.0, WORK)
    for back in tl.range(0, last - first, num_stages=STAGES):
        t = last - back
        b_in = load_row(p_unary + t * C, o_label, C, WORK) + b_b
        b_in = b_in - floored(tl.max(b_in, 0))
        b_sum = tl.sum(b_weight * tl.exp(b_in)[None, :], 1)
        b_least = tl.minimum(b_least, tl.where(m_allowed, b_sum, 1.0))
        b_b = b_cap + tl.log(positive(b_sum))
        store_row(p_beta + (t - 1) * C, o_label, b_b - floored(tl.max(b_b, 0)), C)
    return _is_exact(b_least, WORK)
