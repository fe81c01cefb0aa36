"""The chart of binary trees in Triton: spans by width, filled from narrow to wide and read from wide to narrow.

Cell w · N + i of a table belongs to the span [i, i + w]. Its two children, and the parents and siblings of a span, are
then neighbours for neighbouring i, so every tile is (splits or parents, spans) and its lanes read contiguous memory.
Spans of one width do not wait for each other. A program does every `chunks`-th tile of them for the widths from `first`
up to `last`: all widths in one launch with one chunk, where the tiles of a width wait for those before at a barrier; or
one width in a launch with many.

Leaves are in every tree and are left out: their cells are 0, and their scores are added in the end.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import above, log_of, reciprocal

# The tables. Without tangents the first four; on the way down marginals take the place of scores.
SCORE = tl.constexpr(0)
CHART = tl.constexpr(1)
PEAK = tl.constexpr(2)
SHARE = tl.constexpr(3)
D_SCORE = tl.constexpr(4)
D_CHART = tl.constexpr(5)
D_SPLITS = tl.constexpr(6)
TABLES, TABLES_ALONG = 4, 7


@triton.jit
def _split(p_table, N, w, t, o_i, m_split, other):
    """Cells of both children of the spans [i, i + w], split after t + 1 leaves."""
    b_left = tl.load(p_table + t * N + o_i, mask=m_split, other=other)
    b_right = tl.load(p_table + (w - t - 1) * N + o_i + t + 1, mask=m_split, other=other)
    return b_left, b_right


@triton.jit(do_not_specialize=["N", "size", "first", "last", "chunks"])
def inside(
    p_tables, p_lengths, N, size, first, last, chunks,
    BEST: tl.constexpr, TANGENT: tl.constexpr, SPLITS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """log Σ exp, or the best, over the trees of each span; PEAK and SHARE make shares of its splits."""
    WORK: tl.constexpr = p_tables.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    p_tables += i_b * N * N
    p_chart = p_tables + CHART * size
    p_d_chart = p_tables + D_CHART * size
    for w in range(first, tl.minimum(last, n)):
        for start in range(i_chunk * SPANS, n - w, chunks * SPANS):
            o_i = start + tl.arange(0, SPANS)
            m_i = o_i < n - w
            o_here = w * N + o_i
            b_score = tl.load(p_tables + SCORE * size + o_here, mask=m_i, other=float("-inf"))
            b_peak = tl.full((SPLITS, SPANS), float("-inf"), WORK)
            for begin in range(0, w, SPLITS):
                o_t = begin + tl.arange(0, SPLITS)[:, None]
                m_split = (o_t < w) & m_i[None, :]
                b_left, b_right = _split(p_chart, N, w, o_t, o_i[None, :], m_split, float("-inf"))
                b_peak = tl.maximum(b_peak, b_left + b_right)
            peak = tl.max(b_peak, 0)
            if BEST:
                tl.store(p_chart + o_here, peak + b_score, mask=m_i)
            else:
                peak = above(peak)
                b_total = tl.zeros((SPLITS, SPANS), WORK)
                b_moment = tl.zeros((SPLITS, SPANS), WORK)
                for begin in range(0, w, SPLITS):
                    o_t = begin + tl.arange(0, SPLITS)[:, None]
                    m_split = (o_t < w) & m_i[None, :]
                    b_left, b_right = _split(p_chart, N, w, o_t, o_i[None, :], m_split, float("-inf"))
                    b_term = tl.exp((b_left + b_right) - peak[None, :])
                    b_total += b_term
                    if TANGENT:
                        b_left, b_right = _split(p_d_chart, N, w, o_t, o_i[None, :], m_split, 0.0)
                        b_moment += b_term * (b_left + b_right)
                total = tl.sum(b_total, 0)
                share = reciprocal(total)
                tl.store(p_chart + o_here, (peak + log_of(total)) + b_score, mask=m_i)
                tl.store(p_tables + PEAK * size + o_here, peak, mask=m_i)
                tl.store(p_tables + SHARE * size + o_here, share, mask=m_i)
                if TANGENT:
                    d_splits = tl.sum(b_moment, 0) * share
                    b_slope = tl.load(p_tables + D_SCORE * size + o_here, mask=m_i, other=0.0)
                    tl.store(p_tables + D_SPLITS * size + o_here, d_splits, mask=m_i)
                    tl.store(p_d_chart + o_here, d_splits + b_slope, mask=m_i)
        # The next width reads what other threads have written.
        tl.debug_barrier()


@triton.jit
def _from_parents(p_tables, size, o_parent, o_sibling, m_parent, b_own, b_d_own, TANGENT: tl.constexpr):
    """What parents hand down to their children, and its derivative: (parents, spans)."""
    b_peak = tl.load(p_tables + PEAK * size + o_parent, mask=m_parent, other=0.0)
    b_amount = tl.load(p_tables + SHARE * size + o_parent, mask=m_parent, other=0.0)
    b_sibling = tl.load(p_tables + CHART * size + o_sibling, mask=m_parent, other=float("-inf"))
    b_term = tl.exp((b_own[None, :] + b_sibling) - b_peak)
    b_along = b_term
    if TANGENT:
        b_d_amount = tl.load(p_tables + D_SPLITS * size + o_parent, mask=m_parent, other=0.0)
        b_d_sibling = tl.load(p_tables + D_CHART * size + o_sibling, mask=m_parent, other=0.0)
        b_along = b_term * (b_d_amount + b_amount * (b_d_own[None, :] + b_d_sibling))
    return b_term * b_amount, b_along


@triton.jit(do_not_specialize=["N", "size", "first", "last", "chunks"])
def outside(
    p_tables, p_lengths, N, size, first, last, chunks,
    TANGENT: tl.constexpr, SPLITS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Marginals of spans, from the width last − 1 down to `first`: each collects its share of its parents'.

    On the way SHARE becomes the marginal over the sum over splits, and D_SPLITS what the tangent needs of a parent.
    """
    WORK: tl.constexpr = p_tables.dtype.element_ty
    i_b = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    p_tables += i_b * N * N
    top = tl.minimum(last, n) - 1
    for down in range(0, top + 1 - first):
        w = top - down
        for start in range(i_chunk * SPANS, n - w, chunks * SPANS):
            o_i = start + tl.arange(0, SPANS)
            m_i = o_i < n - w
            o_here = w * N + o_i
            b_own = tl.load(p_tables + CHART * size + o_here, mask=m_i, other=float("-inf"))
            b_d_own = b_own
            if TANGENT:
                b_d_own = tl.load(p_tables + D_CHART * size + o_here, mask=m_i, other=0.0)
            b_sum = tl.zeros((SPLITS, SPANS), WORK)
            b_d_sum = tl.zeros((SPLITS, SPANS), WORK)
            for begin in range(1, n - w, SPLITS):
                o_u = begin + tl.arange(0, SPLITS)[:, None]
                # [i, j + u] has the children [i, j] and [j + 1, j + u]
                o_parent = (w + o_u) * N + o_i[None, :]
                o_sibling = (o_u - 1) * N + o_i[None, :] + w + 1
                m_parent = m_i[None, :] & (o_u < n - w - o_i[None, :])
                b_part, b_d_part = _from_parents(p_tables, size, o_parent, o_sibling, m_parent, b_own, b_d_own, TANGENT)
                b_sum += b_part
                if TANGENT:
                    b_d_sum += b_d_part
                # [i − u, j] has the children [i − u, i − 1] and [i, j]
                m_parent = m_i[None, :] & (o_u <= o_i[None, :])
                o_sibling = (o_u - 1) * N + o_i[None, :] - o_u
                b_part, b_d_part = _from_parents(
                    p_tables, size, o_parent - o_u, o_sibling, m_parent, b_own, b_d_own, TANGENT
                )
                b_sum += b_part
                if TANGENT:
                    b_d_sum += b_d_part
            mu = tl.where(w == n - 1, 1.0, tl.sum(b_sum, 0)).to(WORK)
            share = tl.load(p_tables + SHARE * size + o_here, mask=m_i, other=0.0)
            tl.store(p_tables + SCORE * size + o_here, mu, mask=m_i)
            tl.store(p_tables + SHARE * size + o_here, mu * share, mask=m_i)
            if TANGENT:
                d_mu = tl.sum(b_d_sum, 0)
                d_splits = tl.load(p_tables + D_SPLITS * size + o_here, mask=m_i, other=0.0)
                tl.store(p_tables + D_SCORE * size + o_here, d_mu, mask=m_i)
                tl.store(p_tables + D_SPLITS * size + o_here, (d_mu - mu * d_splits) * share, mask=m_i)
        tl.debug_barrier()
