"""Long chains of few instances: their segments are walked side by side.

1. `cross` walks a segment from each label of its first position: a matrix of logarithms from there to the next segment.
2. These matrices make a short chain over the first positions of segments, and `walk` gives a and b there.
3. `fill` walks all segments from these.

That takes C times the arithmetic, and a fraction of the steps.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.transitions import load_row, store_row
from structmax.structures.linear_chain.kernel_triton.inside import walk_backwards, walk_forwards
from structmax.structures.linear_chain.kernel_triton.scaled import start


@triton.jit(do_not_specialize=["N", "T", "S"])
def cross(
    p_unary, p_pairwise, p_lengths, p_first, p_matrix, p_count, N, T, S,
    SHARED: tl.constexpr, BEST: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The short chain over segments of T positions, in float64: matrices (B, S, C, C), `first` (B, S + 1, C), `count`.

    Only its first position has scores of labels; those of others are in the matrices. Grid (B · S · C,).
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    i_segment, label = i_row // C, i_row % C
    i_b, s = i_segment // S, i_segment % S
    length = tl.load(p_lengths + i_b)
    first = s * T
    last = tl.minimum(first + T, length - 1)
    p_unary += i_b * N * C
    o_label = tl.arange(0, SPAN)
    p_first += i_b * (S + 1) * C
    store_row(p_first + (s + 1) * C, o_label, tl.zeros((SPAN,), tl.float64), tl.where(label == 0, C, 0))
    if (s == 0) & (label == 0):
        store_row(p_first, o_label, load_row(p_unary, o_label, C, tl.float64), C)
        tl.store(p_count + i_b, tl.where(length > 0, tl.cdiv(length - 1, T) + 1, 0))
    if first < last:
        # from this label alone
        p_matrix += i_row * C
        store_row(p_matrix, o_label, tl.where(o_label == label, 0.0, float("-inf")), C)
        tl.debug_barrier()
        b_a, value = walk_forwards(
            p_unary, p_pairwise + (i_b * C * C if SHARED else i_b * (N - 1) * C * C), p_matrix,
            None, None, None, first, last, last, SHARED, BEST, WORK, C, SPAN, TILE, STAGES,
        )  # fmt: skip
        store_row(p_matrix, o_label, b_a.to(tl.float64) + value, C)


@triton.jit(do_not_specialize=["N", "T", "S"])
def fill(
    p_unary, p_pairwise, p_flipped, p_lengths, p_a, p_b, p_alpha, p_reach, p_share, p_beta, N, T, S,
    SHARED: tl.constexpr, BEST: tl.constexpr, DOUBLE: tl.constexpr,
    C: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fills what `walk` fills, from a and b at the first positions of segments, (B, S + 1, C). Grid (B · S, 1 or 2)."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_segment = tl.program_id(0).to(tl.int64)
    i_b, s = i_segment // S, i_segment % S
    length = tl.load(p_lengths + i_b)
    first = s * T
    last = tl.minimum(first + T, length - 1)
    o_row, o_start = i_b * N * C, (i_b * (S + 1) + s) * C
    o_label = tl.arange(0, SPAN)
    p_unary += o_row
    p_pairwise += i_b * C * C if SHARED else i_b * (N - 1) * C * C
    if p_flipped is not None:
        p_flipped += i_b * C * C
    if first <= last:
        if tl.program_id(1) == 0:
            p_alpha += o_row
            if p_reach is not None:
                p_reach += o_row
                p_share += o_row
            # A segment has its first position from its own start, of which the next ones are shares.
            store_row(p_alpha + first * C, o_label, start(p_a + o_start, o_label, C, WORK)[0], C)
            kept = tl.where(last < length - 1, last - 1, last)
            walk_forwards(
                p_unary, p_pairwise, p_a + o_start, p_alpha, p_reach, p_share, first, last, kept,
                SHARED, BEST, WORK, C, SPAN, TILE, STAGES,
            )  # fmt: skip
        elif p_beta is not None:
            p_beta += o_row
            if last == length - 1:
                store_row(p_beta + last * C, o_label, tl.zeros((SPAN,), WORK), C)
            walk_backwards(
                p_unary, p_pairwise, p_flipped, p_b + o_start + C, p_beta, first, last,
                SHARED, WORK, C, SPAN, TILE, STAGES,
            )  # fmt: skip
