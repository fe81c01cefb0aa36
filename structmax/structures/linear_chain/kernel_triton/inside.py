"""The walks over positions, in the log domain: a = log α forwards and b = log β backwards, or the best way to a label.

A program has one instance, or a segment of one, and one direction: neither needs the other. The logarithms of a
position stay in registers, shifted such that the largest is at least 0 and at most log C, and matrices are loaded some
positions ahead. A matrix of more labels than a tile has comes in strips; then each position's logarithms go through
memory.

SPAN is the power of two that holds C labels, TILE the width of a strip; they are equal where a matrix is one tile.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import broken, floored, log_sum, positive
from structmax.numerics.kernel_triton.paths import first_best
from structmax.numerics.kernel_triton.transitions import load_matrix, load_row, store_row
from structmax.structures.linear_chain.kernel_triton.scaled import (
    scaled_backwards,
    scaled_forwards,
    start,
    start_back,
)


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
def forwards(
    p_unary, p_pairwise, p_start, p_alpha, p_reach, p_share, p_pointer, first, last, kept,
    SHARED: tl.constexpr, BEST: tl.constexpr, WORK: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Walks from position `first`, with the logarithms at `p_start`, to position `last`.

    Fills, after `first`, `alpha`, a, up to position `kept`; `reach`, the best way to a label before its own score, 0 if
    there is none; and `share`, one over the sum of all ways next to it: shares sum to 1 even where logarithms have no
    digits left for their number. And `pointer`, where a matrix is one tile: the label before, on the best way. Returns
    a of the last position, and by how much it was shifted.
    """
    STEP: tl.constexpr = 0 if SHARED else C * C
    o_label = tl.arange(0, SPAN)
    b_a, value = start(p_start, o_label, C, WORK)
    if TILE == SPAN:
        if SHARED:
            b_w = load_matrix(p_pairwise, o_label, o_label, C, WORK)
        for t in tl.range(first + 1, last + 1, num_stages=STAGES):
            b_u = load_row(p_unary + t * C, o_label, C, WORK)
            if not SHARED:
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_label, o_label, C, WORK)
            b_x = b_a[:, None] + b_w
            b_peak, b_base, b_total, b_log = _gather(b_x, 0, BEST)
            # Beside the sum, not after it: the shift does not wait for the logarithm.
            b_top = b_peak + b_u
            peak = tl.max(b_top, 0)
            value += peak.to(tl.float64)
            b_a = (b_top - floored(peak)) + b_log
            if p_alpha is not None:
                store_row(p_alpha + t * C, o_label, b_a, tl.where(t <= kept, C, 0))
            if p_reach is not None:
                store_row(p_reach + t * C, o_label, b_base, C)
                store_row(p_share + t * C, o_label, 1 / b_total, C)
            if p_pointer is not None:
                store_row(p_pointer + t * C, o_label, first_best(b_x, o_label, SPAN), C)
    else:
        for t in tl.range(first + 1, last + 1):
            peak = tl.full((), float("-inf"), WORK)
            for left in tl.range(0, C, TILE, num_stages=STAGES):
                o_to = left + tl.arange(0, TILE)
                b_u = load_row(p_unary + t * C, o_to, C, WORK)
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_label, o_to, C, WORK)
                b_peak, b_base, b_total, b_log = _gather(b_a[:, None] + b_w, 0, BEST)
                b_top = b_peak + b_u
                peak = tl.maximum(peak, tl.max(b_top, 0))
                store_row(p_alpha + t * C, o_to, b_top + b_log, C)
                if p_reach is not None:
                    store_row(p_reach + t * C, o_to, b_base, C)
                    store_row(p_share + t * C, o_to, 1 / b_total, C)
            value += peak.to(tl.float64)
            b_a = _shifted(p_alpha + t * C, o_label, floored(peak), C, WORK)
    return b_a, value


@triton.jit
def _backwards(
    p_unary, p_pairwise, p_start, p_beta, first, last,
    SHARED: tl.constexpr, WORK: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Walks from position `last`, with the logarithms at `p_start` or zeros, to `first`; fills `beta`, b, before it."""
    STEP: tl.constexpr = 0 if SHARED else C * C
    o_label = tl.arange(0, SPAN)
    b_b = start_back(p_start, o_label, C, SPAN, WORK)
    if TILE == SPAN:
        if SHARED:
            b_w = load_matrix(p_pairwise, o_label, o_label, C, WORK)
        for back in tl.range(0, last - first, num_stages=STAGES):
            t = last - back
            b_u = load_row(p_unary + t * C, o_label, C, WORK)
            if not SHARED:
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_label, o_label, C, WORK)
            b_peak, _, _, b_log = _gather(b_w + (b_u + b_b)[None, :], 1, False)
            b_b = (b_peak - floored(tl.max(b_peak, 0))) + b_log
            store_row(p_beta + (t - 1) * C, o_label, b_b, C)
    else:
        for back in tl.range(0, last - first):
            t = last - back
            b_in = load_row(p_unary + t * C, o_label, C, WORK) + b_b
            peak = tl.full((), float("-inf"), WORK)
            for left in tl.range(0, C, TILE, num_stages=STAGES):
                o_from = left + tl.arange(0, TILE)
                b_w = load_matrix(p_pairwise + (t - 1) * STEP, o_from, o_label, C, WORK)
                b_peak, _, _, b_log = _gather(b_w + b_in[None, :], 1, False)
                peak = tl.maximum(peak, tl.max(b_peak, 0))
                store_row(p_beta + (t - 1) * C, o_from, b_peak + b_log, C)
            b_b = _shifted(p_beta + (t - 1) * C, o_label, floored(peak), C, WORK)


@triton.jit
def walk_forwards(
    p_unary, p_pairwise, p_start, p_alpha, p_reach, p_share, first, last, kept,
    SHARED: tl.constexpr, BEST: tl.constexpr, WORK: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`forwards`, by products where one matrix fits into a tile and they are exact."""
    if SHARED and TILE == SPAN and not BEST:
        b_a, value, is_exact = scaled_forwards(
            p_unary, p_pairwise, p_start, p_alpha, p_reach, p_share, first, last, kept,
            WORK, C, SPAN, STAGES,
        )  # fmt: skip
        if not is_exact:
            b_a, value = forwards(
                p_unary, p_pairwise, p_start, p_alpha, p_reach, p_share, None, first, last, kept,
                SHARED, BEST, WORK, C, SPAN, TILE, STAGES,
            )  # fmt: skip
    else:
        b_a, value = forwards(
            p_unary, p_pairwise, p_start, p_alpha, p_reach, p_share, None, first, last, kept,
            SHARED, BEST, WORK, C, SPAN, TILE, STAGES,
        )  # fmt: skip
    return b_a, value


@triton.jit
def walk_backwards(
    p_unary, p_pairwise, p_flipped, p_start, p_beta, first, last,
    SHARED: tl.constexpr, WORK: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`_backwards`, likewise."""
    is_exact = last < 0
    if SHARED and TILE == SPAN:
        is_exact = scaled_backwards(p_unary, p_flipped, p_start, p_beta, first, last, WORK, C, SPAN, STAGES)
    if not is_exact:
        _backwards(p_unary, p_pairwise, p_start, p_beta, first, last, SHARED, WORK, C, SPAN, TILE, STAGES)


@triton.jit(do_not_specialize=["N"])
def walk(
    p_unary, p_pairwise, p_flipped, p_lengths, p_value, p_alpha, p_reach, p_share, p_beta, N,
    SHARED: tl.constexpr, BEST: tl.constexpr, BOTH: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (B,), or (B, 2) where it goes both ways. Rows behind the length stay as they are.

    `flipped` are the matrices turned around, where one serves all positions.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    o_row = i_b * N * C
    p_unary += o_row
    p_pairwise += i_b * C * C if SHARED else i_b * (N - 1) * C * C
    if p_flipped is not None:
        p_flipped += i_b * C * C
    o_label = tl.arange(0, SPAN)
    if tl.program_id(1) == 0:
        value = tl.full((), 0.0, tl.float64)
        # the empty sequence scores 0
        if length > 0:
            if p_alpha is not None:
                p_alpha += o_row
                store_row(p_alpha, o_label, start(p_unary, o_label, C, WORK)[0], C)
            if p_reach is not None:
                p_reach += o_row
                p_share += o_row
            b_a, value = walk_forwards(
                p_unary, p_pairwise, p_unary, p_alpha, p_reach, p_share, 0, length - 1, length - 1,
                SHARED, BEST, WORK, C, SPAN, TILE, STAGES,
            )  # fmt: skip
            if BEST:
                value += tl.max(b_a, 0).to(tl.float64)
                value = tl.where(broken(b_a, 0) > 0, float("nan"), value)
            else:
                value += log_sum(b_a).to(tl.float64)
        tl.store(p_value + i_b, value.to(WORK))
    elif BOTH:
        if length > 0:
            p_beta += o_row
            store_row(p_beta + (length - 1) * C, o_label, tl.zeros((SPAN,), WORK), C)
            walk_backwards(
                p_unary, p_pairwise, p_flipped, None, p_beta, 0, length - 1,
                SHARED, WORK, C, SPAN, TILE, STAGES,
            )  # fmt: skip
