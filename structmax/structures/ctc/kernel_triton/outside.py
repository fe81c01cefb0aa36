"""Posteriors after the walk, and their derivatives along a tangent: mass 1 at the end flows back. See ../README.md."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import floored
from structmax.structures.ctc.kernel_triton.frames import ends, layout, load_ways


@triton.jit
def _after(b_x, o_place, SPAN: tl.constexpr):
    """The entries one place after."""
    return tl.where(o_place < SPAN - 1, tl.gather(b_x, tl.minimum(o_place + 1, SPAN - 1), 0), 0.0)


@triton.jit(do_not_specialize=["T", "L"])
def flow(
    p_labels, p_counts, p_lengths, p_value, p_alpha, p_alpha_t, p_arrived, p_label_mass, p_blank_mass, T, L,
    TANGENT: tl.constexpr, DOUBLE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """The masses of labels (B, T, L + 1) and of all blanks (B, T) in each frame, or their derivatives. Grid (B,).

    Only of instances in which something is feasible.
    """
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    length = tl.load(p_lengths + i_b)
    count = tl.load(p_counts + i_b).to(tl.int32)
    o_place = tl.arange(0, SPAN)
    m_place = o_place <= L
    _, m_skip, _, _, _ = layout(p_labels + i_b * L, count, o_place)
    if (tl.load(p_value + i_b) > float("-inf")) & (length > 0):
        o_last = (i_b * T + length - 1) * (2 * (L + 1)) + o_place
        b_a = tl.load(p_alpha + o_last, mask=m_place, other=float("-inf"))
        l_a = tl.load(p_alpha + o_last + (L + 1), mask=m_place, other=float("-inf"))
        label, last = ends(b_a, l_a, count, o_place)
        base = floored(tl.maximum(label, last))
        total = tl.exp(label - base) + tl.exp(last - base)
        b_mass = tl.where(o_place == count, tl.exp(last - base) / total, 0.0).to(WORK)
        l_mass = tl.where(o_place == count - 1, tl.exp(label - base) / total, 0.0).to(WORK)
        b_flow = b_mass.to(tl.float64)
        l_flow = l_mass.to(tl.float64)
        if TANGENT:
            b_t = tl.load(p_alpha_t + o_last, mask=m_place, other=0.0)
            l_t = tl.load(p_alpha_t + o_last + (L + 1), mask=m_place, other=0.0)
            mean = tl.sum(b_flow * b_t + l_flow * l_t, 0)
            b_flow = b_flow * (b_t - mean)
            l_flow = l_flow * (l_t - mean)
        for back in tl.range(1, length + 1):
            t = length - back
            o_frame = i_b * T + t
            o_label = o_frame * (L + 1) + o_place
            if TANGENT:
                tl.store(p_label_mass + o_label, l_flow, mask=m_place)
                tl.store(p_blank_mass + o_frame, tl.sum(b_flow, 0))
            else:
                tl.store(p_label_mass + o_label, l_mass, mask=m_place)
                tl.store(p_blank_mass + o_frame, tl.sum(b_mass, 0))
            if t > 0:
                o_cell = o_frame * (2 * (L + 1)) + o_place
                o_tail = o_cell - 2 * (L + 1)
                b_step, b_stay, b_share, l_skip, l_step, l_stay, l_share = load_ways(
                    p_alpha, o_tail, o_place, m_skip, L, WORK
                )
                if TANGENT:
                    b_arrived = tl.load(p_arrived + o_cell, mask=m_place, other=0.0)
                    l_arrived = tl.load(p_arrived + o_cell + (L + 1), mask=m_place, other=0.0)
                    b_head = b_share.to(tl.float64) * (b_flow - b_arrived * b_mass.to(tl.float64))
                    l_head = l_share.to(tl.float64) * (l_flow - l_arrived * l_mass.to(tl.float64))
                    b_flow = b_stay.to(tl.float64) * b_head + l_step.to(tl.float64) * l_head
                    x_flow = b_step.to(tl.float64) * b_head + l_skip.to(tl.float64) * l_head
                    l_flow = l_stay.to(tl.float64) * l_head + _after(x_flow, o_place, SPAN)
                b_from = b_share * b_mass
                l_from = l_share * l_mass
                b_mass = b_stay * b_from + l_step * l_from
                l_mass = l_stay * l_from + _after(b_step * b_from + l_skip * l_from, o_place, SPAN)
                if TANGENT:
                    b_t = tl.load(p_alpha_t + o_tail, mask=m_place, other=0.0)
                    l_t = tl.load(p_alpha_t + o_tail + (L + 1), mask=m_place, other=0.0)
                    b_flow += b_t * b_mass.to(tl.float64)
                    l_flow += l_t * l_mass.to(tl.float64)


@triton.jit(do_not_specialize=["T", "V", "L", "blank"])
def scatter(
    p_labels, p_counts, p_lengths, p_value, p_label_mass, p_blank_mass, p_out, T, V, L, blank,
    SPAN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The masses of symbols, into a cleared answer. Grid (B · T).

    Labels that are the same symbol each store the sum over all of them: whichever comes last, it is the same.
    """
    o_frame = tl.program_id(0).to(tl.int64)
    i_b = o_frame // T
    if (tl.load(p_value + i_b) > float("-inf")) & (o_frame % T < tl.load(p_lengths + i_b)):
        count = tl.load(p_counts + i_b).to(tl.int32)
        o_place = tl.arange(0, SPAN)
        b_symbol = tl.load(p_labels + i_b * L + o_place, mask=o_place < count, other=-1)
        b_sum = tl.zeros((SPAN,), p_label_mass.dtype.element_ty)
        for first in tl.range(0, count, CHUNK):
            o_other = first + tl.arange(0, CHUNK)
            m_other = o_other < count
            b_other = tl.load(p_labels + i_b * L + o_other, mask=m_other, other=-2)
            b_mass = tl.load(p_label_mass + o_frame * (L + 1) + o_other, mask=m_other, other=0.0)
            b_sum += tl.sum(tl.where(b_symbol[:, None] == b_other[None, :], b_mass[None, :], 0.0), 1)
        tl.store(p_out + o_frame * V + b_symbol, b_sum, mask=o_place < count)
        tl.store(p_out + o_frame * V + blank, tl.load(p_blank_mass + o_frame))
