"""One step of the active-set method of sparse maps, for all instances at once. Derivation: structures/sparse_support.

A program is an instance. It is offered a structure, the best of g = θ − μ, and does what kernel_numba/active_set.py
does with it: it is done, or takes the structure in, moves to the best weights, dropping what comes to nothing, and
writes the g to search next. Instead of a factor, in which every row waits for the one before, it keeps the inverse of
H = G + 1: rows that come and go are squares added to it, without any order among threads. H itself is whole numbers,
free of rounding, so that one step of refinement makes what the inverse gives as exact as a factor would; where the
inverse has become too inexact for that, it is made anew.

A structure keeps its place (of K) while it is in the support. In memory, for each instance:

    lists    (K + 1, L) int32   the parts of each structure, filled up with P; the last is for one that finds no place
    inner    (K + 1, L) int32   those that are regularised
    gram     (K, K)             H
    inverse  (K, K)             its inverse
    columns  (5, K)             see below
    facts    (4,)               see below
    work     (2, K)             nothing that is kept

and `notes` (6, B) int32, see below. A vector of parts, y or g, has the first `split` of its P parts in one tensor and
the rest in another: those of a chain are never copied into one.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.inverse import (
    border,
    clear,
    drop,
    entry,
    rebuild,
    times,
    times_both,
    write_row,
)
from structmax.numerics.kernel_triton.lists import LISTED, add_listed, at

# WEIGHT, and SCORE less that of the first structure; ONE where there is a structure; H⁻¹ times the latter two.
WEIGHT, SCORE, ONE, OF_SCORE, OF_ONE = (tl.constexpr(i) for i in range(5))
BASE, LEVEL, SCALE, GAP = (tl.constexpr(i) for i in range(4))
# LONGEST is the most parts of a structure that was found, WIDEST the most regularised ones of a support's, COUNT how
# many it has, CALLS how many were found, FEASIBLE whether the best one may be empty: unknown, no, yes.
STATE, LONGEST, COUNT, WIDEST, CALLS, FEASIBLE = (tl.constexpr(i) for i in range(6))
UNKNOWN, NO, YES = (tl.constexpr(i) for i in range(3))
# What is said of an instance: done; nothing is feasible; rounding or `max_iter` stops it; a score is none; go on; there
# is no room for the structure; it has no parts, so ask whether any is feasible. The last three are offered more.
CONVERGED, LOST, STOPPED, BROKEN, OPEN, FULL, ASK = (tl.constexpr(i) for i in range(7))
# As in the compiled twin.
DEPENDENT, NOTHING, ROUNDING = tl.constexpr(1e-9), tl.constexpr(1e-14), tl.constexpr(1e-14)
# A residual above which the inverse is made anew: refinement squares it.
INEXACT = tl.constexpr(1e-8)


@triton.jit
def fill_up(p_list, size, P, L):
    """No part behind the first `size` of a list."""
    for first in range(0, L, LISTED):
        o_list = first + tl.arange(0, LISTED)
        b_none = tl.zeros((LISTED,), tl.int32) + P
        tl.store(p_list + o_list, b_none, mask=(o_list >= size) & (o_list < L))


@triton.jit
def list_parts(p_y, p_more, split, p_regular, p_list, p_inner, P, L, BLOCK: tl.constexpr):
    """Writes the parts of y (P,) as often as they count, and the regularised ones by themselves.

    Returns how many there are of both, and whether one is NaN.
    """
    size = 0
    inner = 0
    b_broken = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, P, BLOCK):
        o_part = first + tl.arange(0, BLOCK)
        b_y = tl.load(at(p_y, p_more, split, o_part), mask=o_part < P, other=0.0)
        b_regular = tl.load(p_regular + o_part, mask=o_part < P, other=0).to(tl.int32)
        b_broken |= (b_y != b_y).to(tl.int32)
        b_times = tl.where(b_y > 0, b_y, 0.0).to(tl.int32)
        b_end = size + tl.cumsum(b_times, 0)
        b_inner_end = inner + tl.cumsum(b_times * b_regular, 0)
        most = tl.max(b_times, 0)
        turn = 1
        while turn <= most:
            m_turn = (turn <= b_times) & (b_end - turn < L)
            tl.store(p_list + b_end - turn, o_part, mask=m_turn)
            tl.store(p_inner + b_inner_end - turn, o_part, mask=m_turn & (b_regular > 0))
            turn += 1
        size += tl.sum(b_times, 0)
        inner += tl.sum(b_times * b_regular, 0)
    fill_up(p_list, size, P, L)
    fill_up(p_inner, inner, P, L)
    tl.debug_barrier()
    return size, inner, tl.max(b_broken, 0)


@triton.jit
def _measure(p_list, p_inner, p_theta, p_y, p_more, split, P, L):
    """The score of a listed structure, the scale of scores, and its own entry of H."""
    b_score, b_scale = tl.zeros((LISTED,), tl.float64), tl.full((LISTED,), 1.0, tl.float64)
    b_own = tl.zeros((LISTED,), tl.float64)
    for first in range(0, L, LISTED):
        o_list = first + tl.arange(0, LISTED)
        b_part = tl.load(p_list + o_list, mask=o_list < L, other=P)
        b_theta = tl.load(p_theta + b_part, mask=b_part < P, other=0.0)
        b_score += b_theta
        b_scale = tl.maximum(b_scale, tl.abs(b_theta))
        b_part = tl.load(p_inner + o_list, mask=o_list < L, other=P)
        b_own += tl.load(at(p_y, p_more, split, b_part), mask=b_part < P, other=0.0)
    return tl.sum(b_score, 0), tl.max(b_scale, 0), tl.sum(b_own, 0) + 1


@triton.jit
def _overlaps(p_inner, p_y, p_more, split, b_one, widest, P, L, K: tl.constexpr, BLOCK: tl.constexpr):
    """H between y and the support: (K,)."""
    o_k = tl.arange(0, K)
    b_sum = tl.zeros((K, BLOCK), tl.float64)
    for first in range(0, widest, BLOCK):
        o_list = first + tl.arange(0, BLOCK)
        m_list = (b_one > 0)[:, None] & (o_list < widest)[None, :]
        b_part = tl.load(p_inner + o_k[:, None] * L + o_list[None, :], mask=m_list, other=P)
        b_sum += tl.load(at(p_y, p_more, split, b_part), mask=b_part < P, other=0.0)
    return tl.where(b_one > 0, tl.sum(b_sum, 1) + 1, 0.0)


@triton.jit
def _refresh(
    p_inner, p_columns, p_theta, p_g, p_g_more, split, used, widest, P, L, K: tl.constexpr, BLOCK: tl.constexpr
):
    """g = θ − μ where parts are regularised. What has left the support is still listed, and g is θ there again."""
    o_k = tl.arange(0, K)
    tl.debug_barrier()
    for first in range(0, widest, BLOCK):
        o_list = first + tl.arange(0, BLOCK)
        m_list = (o_k < used)[:, None] & (o_list < widest)[None, :]
        b_part = tl.load(p_inner + o_k[:, None] * L + o_list[None, :], mask=m_list, other=P)
        b_theta = tl.load(p_theta + b_part, mask=b_part < P, other=0.0)
        tl.store(at(p_g, p_g_more, split, b_part), b_theta, mask=b_part < P)
    add_listed(p_g, p_g_more, split, p_inner, p_columns + WEIGHT * K, -1.0, used, widest, P, L)


@triton.jit
def own(
    i_row, p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts, p_notes, P, L, K: tl.constexpr
):
    """What belongs to an instance."""
    lists, matrix = i_row * (K + 1) * L, i_row * (K * K)
    p_lists, p_inner = p_lists + lists, p_inner + lists
    p_columns, p_work = p_columns + i_row * (5 * K), p_work + i_row * (2 * K)
    return (
        p_theta + i_row * P, p_lists, p_inner, p_gram + matrix, p_inverse + matrix, p_columns, p_work,
        p_facts + i_row * 4, p_notes + i_row,
    )  # fmt: skip


@triton.jit
def free_place(p_columns, K: tl.constexpr):
    """The first place without a structure, K if there is none."""
    o_k = tl.arange(0, K)
    return tl.min(tl.where(tl.load(p_columns + ONE * K + o_k) > 0, K, o_k), 0)


@triton.jit
def take(
    p_y, p_more, p_g, p_g_more, p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts, p_notes,
    p_length, slot, size, inner, broken, B, P, split, L, max_iter, is_start, tol,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK_LISTS: tl.constexpr,
):  # fmt: skip
    """Offers an instance its y (P,), counts of parts that are listed in a free place: so many, so many regularised.

    One to start from that is broken or forbidden is passed over.
    """
    o_k = tl.arange(0, K)
    b_one = tl.load(p_columns + ONE * K + o_k)
    score, scale, own = _measure(p_lists + slot * L, p_inner + slot * L, p_theta, p_y, p_more, split, P, L)
    widest = tl.minimum(tl.maximum(inner, tl.load(p_notes + WIDEST * B)), L)
    b_weight = tl.load(p_columns + WEIGHT * K + o_k)
    base = tl.load(p_facts + BASE)

    # One that scores more than its size above the first shows that this is in no best support: begin anew.
    is_far = (tl.max(b_one, 0) > 0) & (score - base > inner + 1)
    is_first = (tl.max(b_one, 0) == 0) | is_far
    base = tl.where(is_first, score, base)
    scale = tl.where(is_first, scale, tl.maximum(scale, tl.load(p_facts + SCALE)))
    b_h = _overlaps(p_inner, p_y, p_more, split, b_one, widest, P, L, K, BLOCK_LISTS)
    mean = tl.sum(tl.where(b_one > 0, b_weight * (b_h - 1), 0.0), 0)
    gap = score - base - mean - tl.load(p_facts + LEVEL)
    gap = tl.where(is_first, float("inf"), gap)
    bar = tl.maximum(tol, ROUNDING * size.to(tl.float64)) * scale

    # What is found.
    fits = (size <= L) & (broken == 0)
    is_sound = fits & (score < float("inf"))
    feasible = tl.load(p_notes + FEASIBLE * B)
    is_known = (size > 0) | (feasible == YES) | (is_start > 0)
    is_offered = is_sound & is_known & (score > float("-inf"))
    is_new = is_offered & (gap > bar)
    takes = is_new & (slot < K)
    if is_start == 0:
        state = tl.where(is_new, tl.where(slot < K, OPEN, FULL), CONVERGED)
        state = tl.where(is_offered, state, LOST)
        state = tl.where((size == 0) & (feasible == UNKNOWN), ASK, state)
        state = tl.where(is_sound, state, tl.where(size > L, FULL, BROKEN))
        state = tl.where(broken > 0, BROKEN, state)
        is_done = is_offered & (state != FULL)
        calls = tl.load(p_notes + CALLS * B) + is_done.to(tl.int32)
        state = tl.where((state == OPEN) & (calls >= max_iter), STOPPED, state)
        tl.debug_barrier()
        tl.store(p_notes + STATE * B, state)
        if p_length is not None:
            tl.store(p_length, 0, mask=state < OPEN)
        tl.store(p_notes + CALLS * B, calls)
        tl.store(p_facts + GAP, gap, mask=is_offered)
        if (state == LOST) | (state == BROKEN):
            tl.store(p_columns + ONE * K + o_k, tl.zeros((K,), tl.float64))
            tl.store(p_columns + WEIGHT * K + o_k, tl.zeros((K,), tl.float64))
            tl.store(p_notes + COUNT * B, 0)
    tl.store(p_notes + LONGEST * B, tl.maximum(size, tl.load(p_notes + LONGEST * B)))

    if takes:
        used = tl.maximum(tl.max(tl.where(b_one > 0, o_k + 1, 0), 0), slot + 1)
        if is_far:
            clear(p_gram, used, K, ROWS)
            clear(p_inverse, used, K, ROWS)
        kept = tl.where(is_first, 0.0, b_one)
        b_one = kept
        b_weight *= kept
        b_h *= kept
        b_score = tl.load(p_columns + SCORE * K + o_k) * kept
        b_of_score = tl.load(p_columns + OF_SCORE * K + o_k) * kept
        b_of_one = tl.load(p_columns + OF_ONE * K + o_k) * kept

        # While it is an affine combination of others, its regularised parts at least, they give it their weight:
        # that leaves μ there, and gains in the free parts alone, until one of them has nothing left.
        given = own * 0.0
        rest = own
        b_v = tl.zeros((K,), tl.float64)
        going = 1
        while going > 0:
            b_v = times(p_inverse, p_work, b_h, used, K, ROWS)
            b_v += times(p_inverse, p_work, b_h - times(p_gram, p_work, b_v, used, K, ROWS), used, K, ROWS)
            rest = own - tl.sum(b_h * b_v, 0)
            going = (rest <= DEPENDENT * own).to(tl.int32)
            if going > 0:
                b_ratio = tl.where(b_v > 0, b_weight / tl.where(b_v > 0, b_v, 1.0), float("inf"))
                step = tl.min(b_ratio, 0)
                k = tl.min(tl.where(b_ratio == step, o_k, K - 1), 0)
                b_weight = tl.maximum(b_weight - step * b_v, 0.0)
                given += step
                b_of_score, b_of_one = drop(p_gram, p_inverse, p_work, b_of_score, b_of_one, k, used, K, ROWS)
                b_one = tl.where(o_k == k, 0.0, b_one)
                b_weight *= b_one
                b_score *= b_one
                b_h *= b_one

        # It enters.
        weight = tl.where(tl.max(b_one, 0) > 0, given, 1.0)
        write_row(p_gram, tl.where(o_k == slot, own, b_h), slot, K)
        border(p_inverse, p_work, b_v, rest, slot, used, K, ROWS)
        b_v = tl.where(o_k == slot, -1.0, b_v)
        b_one = tl.where(o_k == slot, 1.0, b_one)
        b_score = tl.where(o_k == slot, score - base, b_score)
        b_weight = tl.where(o_k == slot, weight, b_weight)
        b_of_score += b_v * (tl.sum(b_v * b_score, 0) / rest)
        b_of_one += b_v * (tl.sum(b_v * b_one, 0) / rest)

        # To the best weights, dropping what comes to nothing.
        way = given
        level = given
        is_fresh = 0
        going = 1
        while going > 0:
            b_s, b_o = times_both(p_gram, p_work, b_of_score, b_of_one, used, K, ROWS)
            b_s, b_o = b_score - b_s, b_one - b_o
            wrong = tl.maximum(tl.max(tl.abs(b_o), 0), tl.max(tl.abs(b_s), 0) / (1 + tl.max(tl.abs(b_score), 0)))
            is_poor = (wrong > INEXACT) & (is_fresh == 0)
            if is_poor:
                # What was computed with it is forgotten, and this turn only finds what the next one refines.
                rebuild(p_gram, p_inverse, p_work, used, K, ROWS)
                b_of_score, b_of_one = b_of_score * 0.0, b_of_one * 0.0
                b_s, b_o = b_score, b_one
            is_fresh = is_poor.to(tl.int32)
            b_s, b_o = times_both(p_inverse, p_work, b_s, b_o, used, K, ROWS)
            b_of_score += b_s
            b_of_one += b_o
            level = (tl.sum(b_of_score, 0) - 1) / tl.sum(b_of_one, 0)
            b_target = b_of_score - level * b_of_one
            m_nothing = (b_one > 0) & (b_target <= NOTHING)
            is_blocked = (tl.max(m_nothing.to(tl.int32), 0) > 0) & (tl.sum(b_one, 0) > 1)
            m_falls = b_weight > b_target
            b_share = tl.where(m_falls, b_weight / tl.where(m_falls, b_weight - b_target, 1.0), 0.0)
            b_share = tl.where(m_nothing, tl.minimum(b_share, 1.0), 2.0)
            going = (is_poor | is_blocked).to(tl.int32)
            if is_poor == 0:
                step = tl.where(is_blocked, tl.min(b_share, 0), 1.0)
                way += step
                b_weight = tl.where(is_blocked, b_weight + step * (b_target - b_weight), b_target)
                if is_blocked:
                    k = tl.min(tl.where(b_share == step, o_k, K - 1), 0)
                    b_of_score, b_of_one = drop(p_gram, p_inverse, p_work, b_of_score, b_of_one, k, used, K, ROWS)
                    b_one = tl.where(o_k == k, 0.0, b_one)
                    b_score *= b_one
                b_weight *= b_one

        tl.debug_barrier()
        tl.store(p_columns + WEIGHT * K + o_k, b_weight)
        tl.store(p_columns + SCORE * K + o_k, b_score)
        tl.store(p_columns + ONE * K + o_k, b_one)
        tl.store(p_columns + OF_SCORE * K + o_k, b_of_score)
        tl.store(p_columns + OF_ONE * K + o_k, b_of_one)
        tl.store(p_facts + BASE, base)
        tl.store(p_facts + LEVEL, level + 1)
        tl.store(p_facts + SCALE, scale)
        tl.store(p_notes + COUNT * B, tl.sum(b_one, 0).to(tl.int32))
        tl.store(p_notes + WIDEST * B, widest)
        if is_start == 0:
            tl.store(p_notes + STATE * B, STOPPED, mask=(way > 0) == 0)
            if p_length is not None:
                tl.store(p_length, 0, mask=(way > 0) == 0)
        _refresh(p_inner, p_columns, p_theta, p_g, p_g_more, split, used, widest, P, L, K, BLOCK_LISTS)


@triton.jit(do_not_specialize=["B", "max_iter", "is_start"])
def advance(
    p_y, p_more, p_g, p_g_more, p_theta, p_regular, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts,
    p_notes, p_lengths, B, P, split, L, max_iter, is_start, tol: tl.float64,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_LISTS: tl.constexpr,
):  # fmt: skip
    """A step of each instance that is not done. Grid (B,)."""
    i_row = tl.program_id(0).to(tl.int64)
    if tl.load(p_notes + STATE * B + i_row) >= OPEN:
        p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts, p_notes = own(
            i_row, p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts, p_notes, P, L, K
        )
        first, rest = i_row * split, i_row * (P - split)
        p_y, p_more, p_g, p_g_more = p_y + first, p_more + rest, p_g + first, p_g_more + rest
        p_length = p_lengths
        if p_length is not None:
            p_length += i_row
        slot = free_place(p_columns, K)
        size, inner, broken = list_parts(
            p_y, p_more, split, p_regular, p_lists + slot * L, p_inner + slot * L, P, L, BLOCK
        )
        take(
            p_y, p_more, p_g, p_g_more, p_theta, p_lists, p_inner, p_gram, p_inverse, p_columns, p_work, p_facts,
            p_notes, p_length, slot, size, inner, broken, B, P, split, L, max_iter, is_start, tol,
            K, ROWS, BLOCK_LISTS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["B", "K_out", "L_out"])
def finish(
    p_lists, p_gram, p_inverse, p_columns, p_facts, p_notes, p_out_lists, p_out_weights, p_out_factor, p_value, p_gap,
    B, P, L, K_out, L_out,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK_LISTS: tl.constexpr,
):  # fmt: skip
    """The outcome of each instance, its structures in the order of their places: see the README of sparse_support.

    The value is ⟨a, p⟩ − ½ pᵀ G p, where G p = a − level. R, by rows, takes the place of the inverse.
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_k, o_row = tl.arange(0, K), tl.arange(0, ROWS)
    p_lists += i_row * (K + 1) * L
    p_gram += i_row * (K * K)
    p_inverse += i_row * (K * K)
    p_columns += i_row * (5 * K)
    p_facts += i_row * 4
    p_out_lists += i_row * K_out * L_out
    p_out_factor += i_row * K_out * K_out
    b_one = tl.load(p_columns + ONE * K + o_k)
    m_one = b_one > 0
    b_weight = tl.load(p_columns + WEIGHT * K + o_k, mask=m_one, other=0.0)
    b_score = tl.load(p_columns + SCORE * K + o_k, mask=m_one, other=0.0)
    o_out = tl.cumsum(m_one.to(tl.int32), 0) - 1
    used = tl.max(tl.where(m_one, o_k + 1, 0), 0)

    state = tl.load(p_notes + i_row + STATE * B)
    value = tl.load(p_facts + BASE) + 0.5 * (tl.sum(b_weight * b_score, 0) + tl.load(p_facts + LEVEL))
    value = tl.where(state == LOST, float("-inf"), tl.where(state == BROKEN, float("nan"), value))
    gap = tl.maximum(tl.load(p_facts + GAP), 0.0)
    gap = tl.where(state == LOST, 0.0, tl.where(state == BROKEN, float("nan"), gap))
    tl.store(p_value + i_row, value)
    tl.store(p_gap + i_row, gap)
    tl.store(p_out_weights + i_row * K_out + o_out, b_weight, mask=m_one)
    for first in range(0, L_out, BLOCK_LISTS):
        o_list = first + tl.arange(0, BLOCK_LISTS)
        m_list = m_one[:, None] & (o_list < L_out)[None, :]
        b_part = tl.load(p_lists + o_k[:, None] * L + o_list[None, :], mask=m_list & (o_list < L)[None, :], other=P)
        tl.store(p_out_lists + o_out[:, None] * L_out + o_list[None, :], b_part, mask=m_list)

    clear(p_inverse, used, K, ROWS)
    for j in range(0, used):
        tl.debug_barrier()
        own = tl.load(p_gram + j * K + j)
        if own > 0:
            b_sum = tl.zeros((ROWS, K), tl.float64)
            for first in range(0, j, ROWS):
                m_row = first + o_row < j
                p_tile = p_inverse + (first + o_row)[:, None] * K
                b_tile = tl.load(p_tile + o_k[None, :], mask=m_row[:, None] & (o_k < used)[None, :], other=0.0)
                b_sum += b_tile * tl.load(p_tile + j, mask=m_row[:, None], other=0.0)
            b_row = tl.where(o_k >= j, tl.load(p_gram + j * K + o_k) - tl.sum(b_sum, 0), 0.0)
            b_row = b_row / tl.sqrt(entry(b_row, j, K))
            tl.store(p_inverse + j * K + o_k, b_row)
            place = tl.sum(tl.where(o_k == j, o_out, 0), 0)
            tl.store(p_out_factor + place * K_out + o_out, b_row, mask=m_one & (o_k >= j))
