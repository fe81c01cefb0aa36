"""The walk over frames, and its derivative along a tangent. Derivation: ../README.md.

A program has one instance. Blank k stands before label k, and the last one behind all labels: two rows of L + 1 places.
Blank k is entered from label k − 1 and from itself; label k from label k − 1 if they differ, from blank k and from
itself. So only labels move by one place. Values are float64, so that long inputs lose nothing; what is left of them
after a peak is taken off, and all weights, have the working precision. SPAN is a power of two that holds the places.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import floored, positive


@triton.jit
def layout(p_labels, count, o_place):
    """The symbols of labels, where one may follow the one before at once, and the first frames of labels and blanks.

    All may be later by as many frames as there are to spare: `length − shortest`.
    """
    b_symbol = tl.load(p_labels + o_place, mask=o_place < count, other=-1)
    b_before = tl.load(p_labels + o_place - 1, mask=(o_place >= 1) & (o_place < count), other=-2)
    m_again = ((b_symbol == b_before) & (o_place < count)).to(tl.int32)
    m_skip = (b_symbol != b_before) & (o_place >= 1) & (o_place < count)
    b_again = tl.cumsum(m_again, 0)
    b_first = o_place + b_again
    return b_symbol, m_skip, b_first, b_first - m_again, count + tl.sum(m_again, 0)


@triton.jit
def scores_at(p_frame, t, blank, b_symbol, b_first, b_blank_first, count, spare, o_place, PAST: tl.constexpr):
    """The scores of blanks and of labels in frame t; past the first and the last frame a string can be there, PAST.

    A blank's first frame is that of its label less the blank that a repeated label takes, its last the one before.
    """
    m_blank = (o_place <= count) & (t >= b_blank_first) & (t < b_first + spare)
    m_label = (o_place < count) & (t >= b_first) & (t <= b_first + spare)
    b_blank = tl.load(p_frame + blank + o_place * 0, mask=m_blank, other=PAST).to(tl.float64)
    b_label = tl.load(p_frame + b_symbol, mask=m_label, other=PAST).to(tl.float64)
    return b_blank, b_label


@triton.jit
def before(b_x, o_place, PAST: tl.constexpr):
    """The entries one place before."""
    return tl.where(o_place > 0, tl.gather(b_x, tl.maximum(o_place - 1, 0), 0), PAST)


@triton.jit
def ways(b_blank, b_label, b_moved, m_skip, BEST: tl.constexpr, WORK: tl.constexpr):
    """Of each blank and each label: the best way in, the weights of the ways next to it, and their sum.

    Ways into a blank: from the label before, `moved`, and from itself. Into a label: from the label before, from its
    blank, and from itself. Without weights, in place of the sums 1, or NaN beside a broken score.
    """
    b_skip = tl.where(m_skip, b_moved, float("-inf"))
    b_peak = tl.maximum(b_moved, b_blank)
    l_peak = tl.maximum(tl.maximum(b_skip, b_blank), b_label)
    b_base, l_base = floored(b_peak), floored(l_peak)
    b_step, b_stay = tl.exp((b_moved - b_base).to(WORK)), tl.exp((b_blank - b_base).to(WORK))
    l_skip, l_step = tl.exp((b_skip - l_base).to(WORK)), tl.exp((b_blank - l_base).to(WORK))
    l_stay = tl.exp((b_label - l_base).to(WORK))
    b_total, l_total = b_step + b_stay, l_skip + l_step + l_stay
    if BEST:
        b_total = tl.where(b_total == b_total, 1.0, b_total)
        l_total = tl.where(l_total == l_total, 1.0, l_total)
    return b_peak, b_step, b_stay, b_total, l_peak, l_skip, l_step, l_stay, l_total


@triton.jit
def ends(b_blank, b_label, count, o_place):
    """The values of strings that end in the last label, and in the blank behind it. Sums, which keep a NaN."""
    label = tl.sum(tl.where(o_place == count - 1, b_label, 0.0), 0)
    return tl.where(count > 0, label, float("-inf")), tl.sum(tl.where(o_place == count, b_blank, 0.0), 0)


@triton.jit(do_not_specialize=["T", "V", "L", "blank"])
def walk(
    p_scores, p_labels, p_counts, p_lengths, p_value, p_alpha, T, V, L, blank,
    BEST: tl.constexpr, CHART: tl.constexpr, DOUBLE: tl.constexpr,
    SPAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The values of all states, into `alpha` (B, T, 2, L + 1) if wanted: log Σ exp, or the best. Grid (B,)."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    count = tl.load(p_counts + i_b).to(tl.int32)
    o_place = tl.arange(0, SPAN)
    b_symbol, m_skip, b_first, b_blank_first, shortest = layout(p_labels + i_b * L, count, o_place)
    spare = length - shortest
    p_scores += i_b * T * V
    b_blank = tl.where(o_place == 0, 0.0, float("-inf")).to(tl.float64)
    b_label = tl.full((SPAN,), float("-inf"), tl.float64)
    # The first frame is entered as if from a blank before it.
    for t in tl.range(0, length, num_stages=STAGES):
        b_score, l_score = scores_at(
            p_scores + t * V, t, blank, b_symbol, b_first, b_blank_first, count, spare, o_place, float("-inf")
        )
        b_moved = before(b_label, o_place, float("-inf"))
        b_peak, _, _, b_total, l_peak, _, _, _, l_total = ways(b_blank, b_label, b_moved, m_skip, BEST, WORK)
        b_blank = (b_peak + tl.log(positive(b_total)).to(tl.float64)) + b_score
        b_label = (l_peak + tl.log(positive(l_total)).to(tl.float64)) + l_score
        if CHART:
            o_cell = (i_b * T + t) * (2 * (L + 1)) + o_place
            tl.store(p_alpha + o_cell, b_blank, mask=o_place <= L)
            tl.store(p_alpha + o_cell + (L + 1), b_label, mask=o_place <= L)
    label, last = ends(b_blank, b_label, count, o_place)
    peak = tl.maximum(label, last)
    base = floored(peak)
    value = peak
    if not BEST:
        value = base + tl.log(tl.exp(label - base) + tl.exp(last - base))
    value = tl.where((label != label) | (last != last), float("nan"), value)
    # as a number of the scores' dtype; without frames and labels there is the empty string
    tl.store(p_value + i_b, tl.where(length > 0, value, tl.where(count > 0, float("-inf"), 0.0)).to(WORK))


@triton.jit(do_not_specialize=["T", "V", "L", "blank"])
def push(
    p_scores_t, p_labels, p_counts, p_lengths, p_alpha, p_alpha_t, p_arrived, T, V, L, blank,
    DOUBLE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The derivatives of all values along a tangent, `alpha_t`, and what arrives of them from the frame before.

    Both (B, T, 2, L + 1), float64: they grow with the frames, and only their differences count. Grid (B,).
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    count = tl.load(p_counts + i_b).to(tl.int32)
    o_place = tl.arange(0, SPAN)
    m_place = o_place <= L
    b_symbol, m_skip, b_first, b_blank_first, shortest = layout(p_labels + i_b * L, count, o_place)
    spare = length - shortest
    p_scores_t += i_b * T * V
    b_t = tl.zeros((SPAN,), tl.float64)
    l_t = tl.zeros((SPAN,), tl.float64)
    for t in tl.range(0, length):
        o_cell = (i_b * T + t) * (2 * (L + 1)) + o_place
        b_arrived = tl.zeros((SPAN,), tl.float64)
        l_arrived = tl.zeros((SPAN,), tl.float64)
        if t > 0:
            b_step, b_stay, b_share, l_skip, l_step, l_stay, l_share = load_ways(
                p_alpha, o_cell - 2 * (L + 1), o_place, m_skip, L, WORK
            )
            b_moved = before(l_t, o_place, 0.0)
            b_arrived = (b_step.to(tl.float64) * b_moved + b_stay.to(tl.float64) * b_t) * b_share.to(tl.float64)
            l_arrived = l_skip.to(tl.float64) * b_moved + l_step.to(tl.float64) * b_t + l_stay.to(tl.float64) * l_t
            l_arrived = l_arrived * l_share.to(tl.float64)
        b_a = tl.load(p_alpha + o_cell, mask=m_place, other=float("-inf"))
        l_a = tl.load(p_alpha + o_cell + (L + 1), mask=m_place, other=float("-inf"))
        b_score, l_score = scores_at(
            p_scores_t + t * V, t, blank, b_symbol, b_first, b_blank_first, count, spare, o_place, 0.0
        )
        # No tangent is read of what cannot be reached.
        b_t = tl.where(b_a > float("-inf"), b_arrived + b_score, 0.0)
        l_t = tl.where(l_a > float("-inf"), l_arrived + l_score, 0.0)
        tl.store(p_alpha_t + o_cell, b_t, mask=m_place)
        tl.store(p_alpha_t + o_cell + (L + 1), l_t, mask=m_place)
        tl.store(p_arrived + o_cell, b_arrived, mask=m_place)
        tl.store(p_arrived + o_cell + (L + 1), l_arrived, mask=m_place)


@triton.jit
def load_ways(p_alpha, o_cell, o_place, m_skip, L, WORK: tl.constexpr):
    """Weights of the ways from a frame into the next, and one over their sums, of blanks and of labels."""
    m_place = o_place <= L
    b_blank = tl.load(p_alpha + o_cell, mask=m_place, other=float("-inf"))
    b_label = tl.load(p_alpha + o_cell + (L + 1), mask=m_place, other=float("-inf"))
    b_moved = tl.load(p_alpha + o_cell + L, mask=m_place & (o_place > 0), other=float("-inf"))
    _, b_step, b_stay, b_total, _, l_skip, l_step, l_stay, l_total = ways(
        b_blank, b_label, b_moved, m_skip, False, WORK
    )
    return b_step, b_stay, 1 / positive(b_total), l_skip, l_step, l_stay, 1 / positive(l_total)
