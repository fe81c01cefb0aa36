"""Sparse maps of sequences with few labels: a program does the whole search of an instance, without the host.

Its turns are those of numerics/kernel_triton/active_set.py, a best sequence for g and a step of the active set. Done by
two launches each, they would wait for the slowest instance every time.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.active_set_step import OPEN, STATE, offer
from structmax.structures.linear_chain.kernel_triton.best import best_sequence


@triton.jit(do_not_specialize=["N", "B", "max_iter", "turns"])
def search_sequences(
    p_y, p_more, p_g, p_g_more, p_theta, p_regular, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts,
    p_notes, p_lengths, p_pointer, N, B, P, split, L, max_iter, turns, tol: tl.float64,
    SHARED: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_LISTS: tl.constexpr,
):  # fmt: skip
    """Up to so many turns of each instance, until it is done or needs the host. Grid (B,)."""
    i_b = tl.program_id(0).to(tl.int64)
    p_state = p_notes + STATE * B + i_b
    length = tl.load(p_lengths + i_b)
    o_labels, o_matrices = i_b * split, i_b * (P - split)
    going = (tl.load(p_state) >= OPEN).to(tl.int32)
    left = turns
    while going > 0:
        best_sequence(
            p_g + o_labels, p_g_more + o_matrices, p_pointer + o_labels, p_y + o_labels, p_more + o_matrices, length, N,
            SHARED, tl.float64, C, SPAN, STAGES,
        )  # fmt: skip
        # threads read what others wrote, here and below
        tl.debug_barrier()
        offer(
            i_b, p_y, p_more, p_g, p_g_more, p_theta, p_regular, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work,
            p_facts, p_notes, None, B, P, split, L, max_iter, 0, tol, K, ROWS, BLOCK, BLOCK_LISTS,
        )  # fmt: skip
        tl.debug_barrier()
        left -= 1
        going = ((tl.load(p_state) == OPEN) & (left > 0)).to(tl.int32)
