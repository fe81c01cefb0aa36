"""Sparse maps of sequences with few labels: a program does the whole search of an instance, without the host.

Its turns are those of numerics/kernel_triton/active_set.py, a best sequence for g and a step of the active set. Done by
two launches each, they would wait for the slowest instance every time. A sequence is listed from its labels, and never
written as all of its parts: y is 0 but for the sequence that is offered.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.active_set_step import OPEN, STATE, fill_up, free_place, own, take
from structmax.numerics.kernel_triton.lists import LISTED, at
from structmax.numerics.kernel_triton.transitions import load_matrix, load_row


@triton.jit
def _best_labels(
    p_unary, p_pairwise, p_pointer, p_label, length,
    SHARED: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Stores the labels of a best sequence, and returns its score. NaN is passed over.

    Where nothing is feasible, the labels are any.
    """
    o_label = tl.arange(0, SPAN)
    b_a = load_row(p_unary, o_label, C, tl.float64)
    if SHARED:
        b_w = load_matrix(p_pairwise, o_label, o_label, C, tl.float64)
    for t in tl.range(1, length, num_stages=STAGES):
        b_u = load_row(p_unary + t * C, o_label, C, tl.float64)
        if not SHARED:
            b_w = load_matrix(p_pairwise + (t - 1) * C * C, o_label, o_label, C, tl.float64)
        b_best, b_from = tl.max(b_a[:, None] + b_w, 0, return_indices=True, return_indices_tie_break_left=False)
        b_a = b_best + b_u
        # A tie of −inf may be won by a lane past the last label, where no pointer is.
        tl.store(p_pointer + t * C + o_label, tl.minimum(b_from, C - 1), mask=o_label < C)
    value, label = tl.max(b_a, 0, return_indices=True, return_indices_tie_break_left=False)
    label = tl.minimum(label, C - 1)
    # threads read what others wrote
    tl.debug_barrier()
    for back in range(1, length):
        tl.store(p_label + length - back, label)
        label = tl.load(p_pointer + (length - back) * C + label)
    tl.store(p_label, label)
    tl.debug_barrier()
    return value


@triton.jit
def _parts_of(p_label, o_part, length, split, SHARED: tl.constexpr, C: tl.constexpr):
    """The parts of a sequence: first its labels, then its pairs of labels. Those of one matrix may come repeatedly."""
    is_pair = o_part >= length
    o_t = tl.where(is_pair, o_part - length, o_part)
    m_part = o_part < 2 * length - 1
    b_label = tl.load(p_label + o_t, mask=m_part, other=0)
    b_next = tl.load(p_label + o_t + 1, mask=m_part & is_pair, other=0)
    o_matrix = split if SHARED else split + o_t * C * C
    return tl.where(is_pair, o_matrix + b_label * C + b_next, o_t * C + b_label), m_part


@triton.jit
def _list_labels(
    p_label, size, length, p_y, p_more, split, p_regular, p_list, p_inner, P, L, SHARED: tl.constexpr, C: tl.constexpr
):
    """Lists the parts of a sequence, and counts them in y. Returns how many are regularised."""
    inner = 0
    for first in range(0, size, LISTED):
        o_part = first + tl.arange(0, LISTED)
        b_part, m_part = _parts_of(p_label, o_part, length, split, SHARED, C)
        b_regular = tl.load(p_regular + b_part, mask=m_part, other=0).to(tl.int32)
        b_end = inner + tl.cumsum(b_regular, 0)
        tl.atomic_add(at(p_y, p_more, split, b_part), 1.0, mask=m_part, sem="relaxed")
        tl.store(p_list + o_part, b_part, mask=m_part & (o_part < L))
        tl.store(p_inner + b_end - 1, b_part, mask=(b_regular > 0) & (b_end <= L))
        inner += tl.sum(b_regular, 0)
    fill_up(p_list, size, P, L)
    fill_up(p_inner, inner, P, L)
    tl.debug_barrier()
    return inner


@triton.jit
def _clear(p_label, size, length, p_y, p_more, split, SHARED: tl.constexpr, C: tl.constexpr):
    """y is 0 again."""
    tl.debug_barrier()
    for first in range(0, size, LISTED):
        b_part, m_part = _parts_of(p_label, first + tl.arange(0, LISTED), length, split, SHARED, C)
        tl.store(at(p_y, p_more, split, b_part), 0.0, mask=m_part)


@triton.jit
def _has_nan(p_x, size, BLOCK: tl.constexpr):
    b_broken = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, size, BLOCK):
        o_x = first + tl.arange(0, BLOCK)
        b_x = tl.load(p_x + o_x, mask=o_x < size, other=0.0)
        b_broken |= (b_x != b_x).to(tl.int32)
    return tl.max(b_broken, 0)


@triton.jit(do_not_specialize=["N", "B", "max_iter", "turns"])
def search_sequences(
    p_y, p_more, p_g, p_g_more, p_theta, p_regular, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts,
    p_notes, p_lengths, p_pointer, p_label, N, B, P, split, L, max_iter, turns, tol: tl.float64,
    SHARED: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_LISTS: tl.constexpr,
):  # fmt: skip
    """Up to so many turns of each instance, until it is done or needs the host. Grid (B,)."""
    i_b = tl.program_id(0).to(tl.int64)
    p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts, p_notes = own(
        i_b, p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts, p_notes, P, L, K
    )
    first, rest = i_b * split, i_b * (P - split)
    p_y, p_more, p_g, p_g_more, p_pointer = p_y + first, p_more + rest, p_g + first, p_g_more + rest, p_pointer + first
    p_label += i_b * N
    length = tl.load(p_lengths + i_b).to(tl.int32)
    going = (tl.load(p_notes + STATE * B) >= OPEN).to(tl.int32)
    is_broken = 0
    if (going > 0) & (length > 0):
        pairs = C * C * (tl.minimum(length - 1, 1) if SHARED else length - 1)
        is_broken = tl.maximum(_has_nan(p_g, length * C, BLOCK), _has_nan(p_g_more, pairs, BLOCK))
    left = turns
    while going > 0:
        slot = free_place(p_columns, K)
        p_list, p_own = p_lists + slot * L, p_inner + slot * L
        size = 0
        if length > 0:
            value = _best_labels(p_g, p_g_more, p_pointer, p_label, length, SHARED, C, SPAN, STAGES)
            # nothing is feasible where the best score is −inf
            size = tl.where(value > float("-inf"), 2 * length - 1, 0)
        inner = _list_labels(p_label, size, length, p_y, p_more, split, p_regular, p_list, p_own, P, L, SHARED, C)
        take(
            p_y, p_more, p_g, p_g_more, p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts,
            p_notes, None, slot, size, inner, is_broken, B, P, split, L, max_iter, 0, tol, K, ROWS, BLOCK_LISTS,
        )  # fmt: skip
        _clear(p_label, size, length, p_y, p_more, split, SHARED, C)
        # threads read what others wrote
        tl.debug_barrier()
        left -= 1
        going = ((tl.load(p_notes + STATE * B) == OPEN) & (left > 0)).to(tl.int32)
