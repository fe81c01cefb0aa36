"""The chart of projective trees in Triton: filled from narrow to wide, and read from wide to narrow.

A table holds pairs of nodes i < j by width, as numerics/kernel_triton/chart.py explains: `_RIGHT` is about the head i,
`_LEFT` about the head j. Pairs of one width do not wait for each other. A program does every `chunks`-th tile of them
for the widths from `first` up to `last`: all widths in one launch with one chunk, where each width waits at a barrier
for the one before; or one width in a launch with many chunks.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.chart import best_of_sums, exp_moments, from_parents
from structmax.numerics.kernel_triton.choice import above, log_of, reciprocal

# The tables: scores of arcs, which marginals replace; trees and links; and for the sums of trees and gaps the share and
# the peak. The tangent of a table is ALONG tables behind it.
ARC_RIGHT = tl.constexpr(0)
ARC_LEFT = tl.constexpr(1)
TREE_RIGHT = tl.constexpr(2)
TREE_LEFT = tl.constexpr(3)
LINK_RIGHT = tl.constexpr(4)
LINK_LEFT = tl.constexpr(5)
SHARE_RIGHT = tl.constexpr(6)
SHARE_LEFT = tl.constexpr(7)
SHARE_GAP = tl.constexpr(8)
# from the share of a sum to its peak
TO_PEAK = tl.constexpr(3)
ALONG = tl.constexpr(12)
# How many there are; peaks have no tangents.
TABLES, TABLES_ALONG = 12, 21


@triton.jit
def _tree(
    p_here, p_a, p_b, tree, share, b_link, b_d_link, w, m_i, m_some, P, size, along,
    WORK: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Stores trees of one side: the widest link, whose dependent has nothing on that side, and those of memory."""
    peak = tl.maximum(best_of_sums(p_a, p_b, P, 1 - P, w - 1, m_i, TERMS, SPANS), b_link)
    if BEST:
        tl.store(p_here + tree * size, tl.where(m_some, peak, float("-inf")), mask=m_i)
    else:
        peak = above(peak)
        total, moment = exp_moments(p_a, p_b, P, 1 - P, w - 1, m_i, peak, along, WORK, TANGENT, TERMS, SPANS)
        b_term = tl.exp(b_link - peak)
        # What is not to be has the peak of its terms, but no share.
        total = tl.where(m_some, total + b_term, 0.0)
        b_share = reciprocal(total)
        tl.store(p_here + tree * size, peak + log_of(total), mask=m_i)
        tl.store(p_here + share * size, b_share, mask=m_i)
        tl.store(p_here + (share + TO_PEAK) * size, peak, mask=m_i)
        if TANGENT:
            tl.store(p_here + tree * size + along, (moment + b_term * b_d_link) * b_share, mask=m_i)


@triton.jit(do_not_specialize=["P", "size", "first", "last", "chunks"])
def inside(
    p_tables, p_lengths, P, size: tl.int64, first, last, chunks,
    SINGLE_ROOT: tl.constexpr, WORK: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr,
    TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Trees and links, log Σ exp or the best of what they can be made of. P counts the nodes, the root among them."""
    i_b = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    along = ALONG * size
    p_tables += i_b * P * P
    for w in range(first, tl.minimum(last, n + 1)):
        for start in range(i_chunk * SPANS, n + 1 - w, chunks * SPANS):
            o_i = start + tl.arange(0, SPANS)
            m_i = o_i < n + 1 - w
            p_here = p_tables + w * P + o_i
            # what i governs up to i + t meets what j governs from i + t + 1
            p_a = p_tables + TREE_RIGHT * size + o_i
            p_b = p_tables + TREE_LEFT * size + (w - 1) * P + o_i + 1
            peak = best_of_sums(p_a, p_b, P, 1 - P, w, m_i, TERMS, SPANS)
            b_gap = peak
            b_d_gap = peak
            if not BEST:
                peak = above(peak)
                total, moment = exp_moments(p_a, p_b, P, 1 - P, w, m_i, peak, along, WORK, TANGENT, TERMS, SPANS)
                b_share = reciprocal(total)
                b_gap = peak + log_of(total)
                b_d_gap = moment * b_share
                tl.store(p_here + SHARE_GAP * size, b_share, mask=m_i)
                tl.store(p_here + (SHARE_GAP + TO_PEAK) * size, peak, mask=m_i)
            b_right = tl.load(p_here + ARC_RIGHT * size, mask=m_i, other=float("-inf")) + b_gap
            b_left = tl.load(p_here + ARC_LEFT * size, mask=m_i, other=float("-inf")) + b_gap
            tl.store(p_here + LINK_RIGHT * size, b_right, mask=m_i)
            tl.store(p_here + LINK_LEFT * size, b_left, mask=m_i)
            b_d_right = b_d_gap
            b_d_left = b_d_gap
            if TANGENT:
                tl.store(p_here + SHARE_GAP * size + along, b_d_gap, mask=m_i)
                b_d_right += tl.load(p_here + ARC_RIGHT * size + along, mask=m_i, other=0.0)
                b_d_left += tl.load(p_here + ARC_LEFT * size + along, mask=m_i, other=0.0)
                tl.store(p_here + LINK_RIGHT * size + along, b_d_right, mask=m_i)
                tl.store(p_here + LINK_LEFT * size + along, b_d_left, mask=m_i)
            # A root with one word has no tree but the whole one: none that a second arc could build on.
            m_some = m_i
            if SINGLE_ROOT:
                m_some = m_i & (o_i + tl.where(w == n, 1, 0) > 0)
            # i → i + t, and what i + t governs up to j
            p_a = p_tables + LINK_RIGHT * size + P + o_i
            p_b = p_tables + TREE_RIGHT * size + (w - 1) * P + o_i + 1
            _tree(
                p_here, p_a, p_b, TREE_RIGHT, SHARE_RIGHT, b_right, b_d_right, w, m_i, m_some, P, size, along,
                WORK, BEST, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            # j → i + t, and what i + t governs down to i
            p_a = p_tables + TREE_LEFT * size + P + o_i
            p_b = p_tables + LINK_LEFT * size + (w - 1) * P + o_i + 1
            _tree(
                p_here, p_a, p_b, TREE_LEFT, SHARE_LEFT, b_left, b_d_left, w, m_i, m_i, P, size, along,
                WORK, BEST, TANGENT, TERMS, SPANS,
            )  # fmt: skip
        # The next width reads what other threads have written.
        tl.debug_barrier()


@triton.jit
def _collect(
    p_here, share, cell, p_sibling, w, o_i, m_i, count, most, P, size, along,
    RIGHTWARDS: tl.constexpr, WORK: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """What a cell receives from parents that reach further, to the right or the left, and its tangent."""
    step = P if RIGHTWARDS else P - 1
    own = tl.load(p_here + cell * size, mask=m_i, other=float("-inf"))
    d_own = own
    if TANGENT:
        d_own = tl.load(p_here + cell * size + along, mask=m_i, other=0.0)
    p_parent = p_here + step + share * size
    return from_parents(
        p_parent + TO_PEAK * size, p_parent, p_sibling, step, step, count, most, own, d_own, m_i, along,
        WORK, TANGENT, TERMS, SPANS,
    )  # fmt: skip


@triton.jit
def _pass_on(p_here, share, tree, link, mu, d_mu, m_i, size, along, TANGENT: tl.constexpr):
    """Stores what reached trees times their share, and returns what their widest link receives of it."""
    b_share = tl.load(p_here + share * size, mask=m_i, other=0.0)
    b_peak = tl.load(p_here + (share + TO_PEAK) * size, mask=m_i, other=0.0)
    b_link = tl.load(p_here + link * size, mask=m_i, other=float("-inf"))
    b_amount = mu * b_share
    b_term = tl.exp(b_link - b_peak)
    tl.store(p_here + share * size, b_amount, mask=m_i)
    b_d_part = b_term
    if TANGENT:
        b_d_amount = (d_mu - mu * tl.load(p_here + tree * size + along, mask=m_i, other=0.0)) * b_share
        tl.store(p_here + share * size + along, b_d_amount, mask=m_i)
        b_d_link = tl.load(p_here + link * size + along, mask=m_i, other=0.0)
        b_d_part = b_term * (b_d_amount + b_amount * b_d_link)
    return b_term * b_amount, b_d_part


@triton.jit(do_not_specialize=["P", "size", "first", "last", "chunks"])
def outside(
    p_tables, p_lengths, P, size: tl.int64, first, last, chunks,
    WORK: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Marginals of arcs in place of their scores, from the width last − 1 down to `first`.

    Each cell collects its shares from those that are made of it. SHARE becomes what reached a sum times its share.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    along = ALONG * size
    p_tables += i_b * P * P
    top = tl.minimum(last, n + 1) - 1
    for down in range(0, top + 1 - first):
        w = top - down
        for start in range(i_chunk * SPANS, n + 1 - w, chunks * SPANS):
            o_i = start + tl.arange(0, SPANS)
            m_i = o_i < n + 1 - w
            p_here = p_tables + w * P + o_i
            # From here on cells of the nodes after j, or before i. There are so many of them, and at most:
            after, most_after = n - w - o_i, n - w - start
            before, most_before = o_i, tl.minimum(start + SPANS - 1, n - w)
            p_after, p_before = p_tables + o_i + w, p_tables + o_i - 1

            # tree[i, j] meets a tree of j + 1 + u under an arc with i, and is outermost in a tree of i − 1 − u
            mu, d_mu = _collect(
                p_here, SHARE_GAP, TREE_RIGHT, p_after + TREE_LEFT * size + 1, w, o_i, m_i, after, most_after,
                P, size, along, True, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            mu_more, d_mu_more = _collect(
                p_here, SHARE_RIGHT, TREE_RIGHT, p_before + LINK_RIGHT * size + P, w, o_i, m_i, before, most_before,
                P, size, along, False, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            mu = tl.where(w == n, 1.0, mu + mu_more)
            d_mu += d_mu_more
            right, d_right = _pass_on(p_here, SHARE_RIGHT, TREE_RIGHT, LINK_RIGHT, mu, d_mu, m_i, size, along, TANGENT)
            # tree[j, i] meets a tree of i − 1 − u under an arc with j, and is outermost in a tree of j + 1 + u
            mu, d_mu = _collect(
                p_here, SHARE_GAP, TREE_LEFT, p_before + TREE_RIGHT * size, w, o_i, m_i, before, most_before,
                P, size, along, False, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            mu_more, d_mu_more = _collect(
                p_here, SHARE_LEFT, TREE_LEFT, p_after + LINK_LEFT * size + P, w, o_i, m_i, after, most_after,
                P, size, along, True, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            left, d_left = _pass_on(
                p_here, SHARE_LEFT, TREE_LEFT, LINK_LEFT, mu + mu_more, d_mu + d_mu_more, m_i, size, along, TANGENT
            )
            # the arcs between i and j in trees that reach further
            mu, d_mu = _collect(
                p_here, SHARE_RIGHT, LINK_RIGHT, p_after + TREE_RIGHT * size + P, w, o_i, m_i, after, most_after,
                P, size, along, True, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            mu_more, d_mu_more = _collect(
                p_here, SHARE_LEFT, LINK_LEFT, p_before + TREE_LEFT * size + P, w, o_i, m_i, before, most_before,
                P, size, along, False, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            right, d_right = right + mu, d_right + d_mu
            left, d_left = left + mu_more, d_left + d_mu_more
            tl.store(p_here + ARC_RIGHT * size, right, mask=m_i)
            tl.store(p_here + ARC_LEFT * size, left, mask=m_i)
            b_share = tl.load(p_here + SHARE_GAP * size, mask=m_i, other=0.0)
            tl.store(p_here + SHARE_GAP * size, (right + left) * b_share, mask=m_i)
            if TANGENT:
                tl.store(p_here + ARC_RIGHT * size + along, d_right, mask=m_i)
                tl.store(p_here + ARC_LEFT * size + along, d_left, mask=m_i)
                b_mean = tl.load(p_here + SHARE_GAP * size + along, mask=m_i, other=0.0)
                d_amount = (d_right + d_left - (right + left) * b_mean) * b_share
                tl.store(p_here + SHARE_GAP * size + along, d_amount, mask=m_i)
        tl.debug_barrier()
