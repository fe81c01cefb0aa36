"""The chart of binary trees in Triton: filled from narrow to wide, and read from wide to narrow.

Spans of one width do not wait for each other. A program does every `chunks`-th tile of them for the widths from `first`
up to `last`: all widths in one launch with one chunk, where each width waits at a barrier for the one before; or one
width in a launch with many chunks.

Leaves are in every tree and are left out: their cells are 0, and their scores are added in the end.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.chart import best_of_sums, exp_moments, from_parents
from structmax.numerics.kernel_triton.choice import above, log_of, reciprocal

# The tables. The tangent of a table is ALONG tables behind it.
SCORE = tl.constexpr(0)
CHART = tl.constexpr(1)
SHARE = tl.constexpr(2)
PEAK = tl.constexpr(3)
ALONG = tl.constexpr(4)
# How many there are; the peak has no tangent.
TABLES, TABLES_ALONG = 4, 7


@triton.jit(do_not_specialize=["N", "size", "first", "last", "chunks"])
def inside(
    p_tables, p_lengths, N, size: tl.int64, first, last, chunks,
    WORK: tl.constexpr, BEST: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """CHART, log Σ exp or the best over the trees of each span. With tangents, that of SHARE is the mean of terms."""
    i_b = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    along = ALONG * size
    p_tables += i_b * N * N
    p_chart = p_tables + CHART * size
    for w in range(first, tl.minimum(last, n)):
        for start in range(i_chunk * SPANS, n - w, chunks * SPANS):
            o_i = start + tl.arange(0, SPANS)
            m_i = o_i < n - w
            p_here = p_tables + w * N + o_i
            b_score = tl.load(p_here + SCORE * size, mask=m_i, other=float("-inf"))
            # [i, i + t] and [i + t + 1, i + w]
            p_left = p_chart + o_i
            p_right = p_chart + (w - 1) * N + o_i + 1
            peak = best_of_sums(p_left, p_right, N, 1 - N, w, m_i, TERMS, SPANS)
            if BEST:
                tl.store(p_here + CHART * size, peak + b_score, mask=m_i)
            else:
                peak = above(peak)
                total, moment = exp_moments(p_left, p_right, N, 1 - N, w, m_i, peak, along, WORK, TANGENT, TERMS, SPANS)
                share = reciprocal(total)
                tl.store(p_here + CHART * size, (peak + log_of(total)) + b_score, mask=m_i)
                tl.store(p_here + PEAK * size, peak, mask=m_i)
                tl.store(p_here + SHARE * size, share, mask=m_i)
                if TANGENT:
                    b_d_score = tl.load(p_here + SCORE * size + along, mask=m_i, other=0.0)
                    tl.store(p_here + SHARE * size + along, moment * share, mask=m_i)
                    tl.store(p_here + CHART * size + along, moment * share + b_d_score, mask=m_i)
        # The next width reads what other threads have written.
        tl.debug_barrier()


@triton.jit(do_not_specialize=["N", "size", "first", "last", "chunks"])
def outside(
    p_tables, p_lengths, N, size: tl.int64, first, last, chunks,
    WORK: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Marginals in place of scores, from the width last − 1 down to `first`: each span collects from its parents.

    SHARE becomes the span's marginal times its share, which is what its children need.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    along = ALONG * size
    p_tables += i_b * N * N
    p_chart = p_tables + CHART * size
    top = tl.minimum(last, n) - 1
    for down in range(0, top + 1 - first):
        w = top - down
        for start in range(i_chunk * SPANS, n - w, chunks * SPANS):
            o_i = start + tl.arange(0, SPANS)
            m_i = o_i < n - w
            p_here = p_tables + w * N + o_i
            own = tl.load(p_here + CHART * size, mask=m_i, other=float("-inf"))
            d_own = own
            if TANGENT:
                d_own = tl.load(p_here + CHART * size + along, mask=m_i, other=0.0)
            # [i, j + 1 + u] = [i, j] [j + 1, j + 1 + u]
            p_parent = p_here + N
            mu, d_mu = from_parents(
                p_parent + PEAK * size, p_parent + SHARE * size, p_chart + o_i + w + 1, N, N,
                n - 1 - w - o_i, n - 1 - w - start, own, d_own, m_i, along, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            # [i − 1 − u, j] = [i − 1 − u, i − 1] [i, j]
            p_parent = p_here + N - 1
            most = tl.minimum(start + SPANS, n - w) - 1
            mu_left, d_mu_left = from_parents(
                p_parent + PEAK * size, p_parent + SHARE * size, p_chart + o_i - 1, N - 1, N - 1,
                o_i, most, own, d_own, m_i, along, WORK, TANGENT, TERMS, SPANS,
            )  # fmt: skip
            mu = tl.where(w == n - 1, 1.0, mu + mu_left)
            share = tl.load(p_here + SHARE * size, mask=m_i, other=0.0)
            tl.store(p_here + SCORE * size, mu, mask=m_i)
            tl.store(p_here + SHARE * size, mu * share, mask=m_i)
            if TANGENT:
                d_mu += d_mu_left
                b_mean = tl.load(p_here + SHARE * size + along, mask=m_i, other=0.0)
                tl.store(p_here + SCORE * size + along, d_mu, mask=m_i)
                tl.store(p_here + SHARE * size + along, (d_mu - mu * b_mean) * share, mask=m_i)
        tl.debug_barrier()
