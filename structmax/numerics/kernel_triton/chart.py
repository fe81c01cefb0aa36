"""Charts of spans in Triton: sums over the splits of spans, and over the parents of spans, for neighbouring spans.

A table holds spans by width: cell w · pitch + i belongs to the span from i to i + w. The two parts into which spans are
split, and the parents and siblings of spans, are then neighbours for neighbouring i, and one step further for the next
split or parent: tiles are (TERMS, SPANS), and their lanes read contiguous memory. The tangent of a table lies `along`
cells behind it.

Tables are float64 whatever the dtype of the scores: in float32 a logarithm of some hundreds has few digits left for the
ratios that it stands for. Exponentials, the bulk of the work, are WORK, the dtype of the scores.

A sum of terms exp(a + b) is kept by its peak, the largest a + b, and its share, one over the sum relative to the peak:
what reaches a span is shared out by shares that sum to 1, however large the logarithms. At −1e15 these have no digits
left for the number of terms.
"""

import triton
import triton.language as tl


@triton.jit
def best_of_sums(p_a, p_b, step_a, step_b, count, m_span, TERMS: tl.constexpr, SPANS: tl.constexpr):
    """The largest a + b of `count` terms, −inf without any: (SPANS,). Pointers (SPANS,) are to the first terms."""
    b_best = tl.full((TERMS, SPANS), float("-inf"), p_a.dtype.element_ty)
    for begin in range(0, count, TERMS):
        o_t = begin + tl.arange(0, TERMS)[:, None]
        m_term = (o_t < count) & m_span[None, :]
        b_a = tl.load(p_a[None, :] + o_t * step_a, mask=m_term, other=float("-inf"))
        b_b = tl.load(p_b[None, :] + o_t * step_b, mask=m_term, other=float("-inf"))
        b_best = tl.maximum(b_best, b_a + b_b)
    return tl.max(b_best, 0)


@triton.jit
def exp_moments(
    p_a, p_b, step_a, step_b, count, m_span, peak, along,
    WORK: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """Σ exp(a + b − peak) over the same terms, and the sum of these times the tangent of a + b, or 0: (SPANS,) both."""
    b_total = tl.zeros((TERMS, SPANS), WORK)
    b_moment = tl.zeros((TERMS, SPANS), WORK)
    for begin in range(0, count, TERMS):
        o_t = begin + tl.arange(0, TERMS)[:, None]
        m_term = (o_t < count) & m_span[None, :]
        b_a = tl.load(p_a[None, :] + o_t * step_a, mask=m_term, other=float("-inf"))
        b_b = tl.load(p_b[None, :] + o_t * step_b, mask=m_term, other=float("-inf"))
        b_term = tl.exp(((b_a + b_b) - peak[None, :]).to(WORK))
        b_total += b_term
        if TANGENT:
            b_a = tl.load(p_a[None, :] + o_t * step_a + along, mask=m_term, other=0.0)
            b_b = tl.load(p_b[None, :] + o_t * step_b + along, mask=m_term, other=0.0)
            b_moment += b_term * (b_a + b_b).to(WORK)
    return tl.sum(b_total, 0), tl.sum(b_moment, 0)


@triton.jit
def from_parents(
    p_peak, p_amount, p_sibling, step_parent, step_sibling, count, most, own, d_own, m_span, along,
    WORK: tl.constexpr, TANGENT: tl.constexpr, TERMS: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """What `count` (SPANS,) parents, at most `most`, hand down to spans, and its derivative, or 0: (SPANS,) both.

    `own` is the cell of a span. The amount of a parent is what has reached it, μ, times its share; the tangent of the
    amount, of which its terms are multiples, is (dμ − μ t̄) · share with the mean t̄ of the tangents of these terms.
    """
    b_sum = tl.zeros((TERMS, SPANS), WORK)
    b_d_sum = tl.zeros((TERMS, SPANS), WORK)
    for begin in range(0, most, TERMS):
        o_u = begin + tl.arange(0, TERMS)[:, None]
        m_term = (o_u < count[None, :]) & m_span[None, :]
        b_peak = tl.load(p_peak[None, :] + o_u * step_parent, mask=m_term, other=0.0)
        b_amount = tl.load(p_amount[None, :] + o_u * step_parent, mask=m_term, other=0.0).to(WORK)
        b_sibling = tl.load(p_sibling[None, :] + o_u * step_sibling, mask=m_term, other=float("-inf"))
        b_term = tl.exp(((own[None, :] + b_sibling) - b_peak).to(WORK))
        b_sum += b_term * b_amount
        if TANGENT:
            b_d_amount = tl.load(p_amount[None, :] + o_u * step_parent + along, mask=m_term, other=0.0).to(WORK)
            b_d_sibling = tl.load(p_sibling[None, :] + o_u * step_sibling + along, mask=m_term, other=0.0)
            b_d_sum += b_term * (b_d_amount + b_amount * (d_own[None, :] + b_d_sibling).to(WORK))
    return tl.sum(b_sum, 0), tl.sum(b_d_sum, 0)
