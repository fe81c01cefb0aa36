"""The walks over positions, in the log domain: a = log α forwards and b = log β backwards, or the best way to a label.

A program has one instance and one direction: neither needs the other. The logarithms of a position stay in registers,
shifted such that the largest is at least 0 and at most log C, and matrices are loaded some positions ahead. A matrix of
more labels than a tile has comes in strips; then each position's logarithms go through memory.

SPAN is the power of two that holds C labels, TILE the width of a strip; they are equal where a matrix is one tile.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import broken, floored, log_sum, positive
from structmax.numerics.kernel_triton.transitions import load_matrix, load_row, store_row
from structmax.structures.linear_chain.kernel_triton.scaled import scaled_backwards, scaled_forwards


@triton.jit
def _gather(b_x, AXIS: tl.constexpr, BEST: tl.constexpr):
    """The largest score along an axis, as it is and as a shift; the sum of the exp of all next to it; its logarithm.

    Without the sum, in place of its logarithm 0, or NaN beside a broken score.
    """
    b_peak = tl.max(b_x, AXIS)
    b_base = floored(b_peak)
    if BEST:
        b_total = tl.full(b_base.shape, 1.0, b_base.dtype)
        b_log = tl.where(broken(b_x, AXIS) > 0, float("nan"), 0.0).to(b_base.dtype)
    else:
        b_total = positive(tl.sum(tl.exp(b_x - tl.expand_dims(b_base, AXIS)), AXIS))
        b_log = tl.log(b_total)
    return b_peak, b_base, b_total, b_log


@triton.jit
def _shifted(p_row, o_label, shift, C: tl.constexpr, WORK: tl.constexpr):
    """A row that strips have written, after its shift, also in memory."""
    # Threads read what others wrote, and several may read the same before one of them writes.
    tl.debug_barrier()
    b_row = load_row(p_row, o_label, C, WORK) - shift
    tl.debug_barrier()
    store_row(p_row, o_label, b_row, C)
    return b_row


@triton.jit
def _forwards(
    p_unary, p_pairwise, p_value, p_alpha, p_reach, p_share, o_row, length,
    SHARED: tl.constexpr, BEST: tl.constexpr, CHART: tl.constexpr, WORK: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Walks from the first position to the last.

    Fills `alpha`, a; `reach`, the best way to a label before its own score, 0 if there is none; and `share`, one over
    the sum of all ways next to it: shares sum to 1 even where logarithms have no digits left for their number.
    """
    SHARES: tl.constexpr = p_reach is not None
    if CHART:
        p_alpha += o_row
        if SHARES:
            p_reach += o_row
            p_share += o_row
    STEP: tl.constexpr = 0 if SHARED else C * C
    o_label = tl.arange(0, SPAN)
    m_label = o_label < tl.where(length > 0, C, 0)
    b_a = tl.load(p_unary + o_label, mask=m_label, other=float("-inf")).to(WORK)
    peak = tl.max(b_a, 0)
    b_a = b_a - floored(peak)
    value = peak.to(tl.float64)
    if CHART:
        tl.store(p_alpha + o_label, b_a, mask=m_label)
    if TILE == SPAN:
        if SHARED:
            b_w = load_matrix(p_pairwise, o_label, o_label, C, WORK)
        for t in tl.range(1, length, num_stages=STAGES):
            b_u = load_row(p_unary + t * C, o_label, C, WORK)
            if not SHARED:
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_label, o_label, C, WORK)
            b_peak, b_base, b_total, b_log = _gather(b_a[:, None] + b_w, 0, BEST)
            # Beside the sum, not after it: the shift does not wait for the logarithm.
            b_top = b_peak + b_u
            peak = tl.max(b_top, 0)
            value += peak.to(tl.float64)
            b_a = (b_top - floored(peak)) + b_log
            if CHART:
                store_row(p_alpha + t * C, o_label, b_a, C)
                if SHARES:
                    store_row(p_reach + t * C, o_label, b_base, C)
                    store_row(p_share + t * C, o_label, 1 / b_total, C)
    else:
        for t in tl.range(1, length):
            peak = tl.full((), float("-inf"), WORK)
            for first in tl.range(0, C, TILE, num_stages=STAGES):
                o_to = first + tl.arange(0, TILE)
                b_u = load_row(p_unary + t * C, o_to, C, WORK)
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_label, o_to, C, WORK)
                b_peak, b_base, b_total, b_log = _gather(b_a[:, None] + b_w, 0, BEST)
                b_top = b_peak + b_u
                peak = tl.maximum(peak, tl.max(b_top, 0))
                store_row(p_alpha + t * C, o_to, b_top + b_log, C)
                if SHARES:
                    store_row(p_reach + t * C, o_to, b_base, C)
                    store_row(p_share + t * C, o_to, 1 / b_total, C)
            value += peak.to(tl.float64)
            b_a = _shifted(p_alpha + t * C, o_label, floored(peak), C, WORK)
    if BEST:
        value += tl.max(b_a, 0).to(tl.float64)
        value = tl.where(broken(b_a, 0) > 0, float("nan"), value)
    else:
        value += log_sum(b_a).to(tl.float64)
    # as a number of the scores' dtype; the empty sequence scores 0
    tl.store(p_value, tl.where(length > 0, value, 0.0).to(WORK))


@triton.jit
def _backwards(
    p_unary, p_pairwise, p_beta, length,
    SHARED: tl.constexpr, WORK: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Walks from the last position to the first, and fills `beta`, b."""
    STEP: tl.constexpr = 0 if SHARED else C * C
    o_label = tl.arange(0, SPAN)
    b_b = tl.zeros((SPAN,), WORK)
    tl.store(p_beta + (length - 1) * C + o_label, b_b, mask=o_label < tl.where(length > 0, C, 0))
    if TILE == SPAN:
        if SHARED:
            b_w = load_matrix(p_pairwise, o_label, o_label, C, WORK)
        for back in tl.range(1, length, num_stages=STAGES):
            t = length - back
            b_u = load_row(p_unary + t * C, o_label, C, WORK)
            if not SHARED:
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_label, o_label, C, WORK)
            b_peak, _, _, b_log = _gather(b_w + (b_u + b_b)[None, :], 1, False)
            b_b = (b_peak - floored(tl.max(b_peak, 0))) + b_log
            store_row(p_beta + (t - 1) * C, o_label, b_b, C)
    else:
        for back in tl.range(1, length):
            t = length - back
            b_in = load_row(p_unary + t * C, o_label, C, WORK) + b_b
            peak = tl.full((), float("-inf"), WORK)
            for first in tl.range(0, C, TILE, num_stages=STAGES):
                o_from = first + tl.arange(0, TILE)
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_from, o_label, C, WORK)
                b_peak, _, _, b_log = _gather(b_w + b_in[None, :], 1, False)
                peak = tl.maximum(peak, tl.max(b_peak, 0))
                store_row(p_beta + (t - 1) * C, o_from, b_peak + b_log, C)
            b_b = _shifted(p_beta + (t - 1) * C, o_label, floored(peak), C, WORK)


@triton.jit(do_not_specialize=["N", "across", "along"])
def walk(
    p_unary, p_pairwise, p_lengths, p_value, p_alpha, p_reach, p_share, p_beta, N, across, along,
    SHARED: tl.constexpr, BEST: tl.constexpr, CHART: tl.constexpr, BOTH: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (B,), or (B, 2) where it goes both ways. Rows behind the length stay as they are.

    `across` and `along` are the strides of a matrix.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    o_row = i_b * N * C
    p_unary += o_row
    p_pairwise += i_b * C * C if SHARED else i_b * (N - 1) * C * C
    # One matrix in one tile: most instances need no logarithms of it.
    SCALED: tl.constexpr = SHARED and TILE == SPAN
    if tl.program_id(1) == 0:
        if SCALED and not BEST:
            is_exact = scaled_forwards(
                p_unary, p_pairwise, p_value + i_b, p_alpha, p_reach, p_share, o_row, length, across, along,
                CHART, WORK, C, SPAN, STAGES,
            )  # fmt: skip
        else:
            is_exact = length < 0
        if not is_exact:
            _forwards(
                p_unary, p_pairwise, p_value + i_b, p_alpha, p_reach, p_share, o_row, length,
                SHARED, BEST, CHART, WORK, C, SPAN, TILE, STAGES,
            )  # fmt: skip
    elif BOTH:
        if SCALED:
            is_exact = scaled_backwards(
                p_unary, p_pairwise, p_beta + o_row, length, across, along, WORK, C, SPAN, STAGES
            )
        else:
            is_exact = length < 0
        if not is_exact:
            _backwards(p_unary, p_pairwise, p_beta + o_row, length, SHARED, WORK, C, SPAN, TILE, STAGES)
