"""The recursions over anti-diagonals: one program for a strip of rows of an instance, one lane for a row of places.

A lane takes what comes from its upper neighbour from the lane before it, by memory that stays in the cache of the
multiprocessor; what comes along the diagonal it took a step ago, what comes from the left is its own. Backward the rows
are reversed, and the rest is the same. What does not depend on the step before is read some steps ahead.

Several strips go side by side, each on its own multiprocessor: a launch, or wave, takes every strip on by STEPS
anti-diagonals, and a strip is one wave behind the one above. `p_edge` hands the last row of a strip to the next, in
place: a strip writes behind where it reads, and what another strip writes meanwhile is read in the next wave. `p_lanes`
keeps what the last two steps of a strip have left.
"""

import triton
import triton.language as tl


@triton.jit
def segment(h, w, first, wave, STEPS, LANES: tl.constexpr):
    """The strip of this program, its first row, and the steps from `start` to before `stop` that it takes now."""
    strip = first + tl.program_id(1)
    top = strip * LANES
    begin = (wave - strip) * STEPS
    stop = tl.minimum(tl.minimum(top + LANES, h) + w - 1, begin + STEPS)
    return strip, top, tl.maximum(top, begin), tl.where((top < h) & (w > 0), stop, 0)


@triton.jit
def from_above(p_lanes, p_edge, t, top, w, o_lane, nothing, STRIPS: tl.constexpr, LANES: tl.constexpr):
    """What the lanes before wrote in the last step; for the first lane, what the strip before wrote for this column."""
    p_read = p_lanes + ((t + 1) % 2) * LANES + o_lane - 1
    m_read = o_lane >= tl.where(t > top, 1, LANES)
    if STRIPS:
        m_edge = o_lane < tl.where((top > 0) & (t >= top) & (t - top < w), 1, 0)
        p_read = tl.where(o_lane == 0, p_edge + (t - top) + o_lane, p_read)
        m_read = m_read | m_edge
    return tl.load(p_read, mask=m_read, other=nothing)
