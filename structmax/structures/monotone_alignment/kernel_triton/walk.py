"""The recursions over anti-diagonals: one warp for a strip of LANES rows of an instance, one lane for a row of places.

A lane takes what comes from its upper neighbour from the lane before it, by registers; what comes along the diagonal
it took a step ago, what comes from the left is its own. Backward the rows are reversed, and the rest is the same. What
does not depend on the step before is read several steps at a time, while those before are taken: a number that is moved
from one register to another has to be there.

Strips go side by side, each on its own multiprocessor: a launch, or wave, takes every strip on by LANES steps, and a
strip is two waves behind the one above. `p_edge` hands the last row of a strip to the next, in place: a strip reads
what it needs of a wave at once, and writes behind that. `p_state` keeps what the last step of a strip has left.
"""

import triton
import triton.language as tl


@triton.jit
def segment(h, w, first, wave, LANES: tl.constexpr):
    """The strip of this program, its first row, and its steps from `start` to before `stop`; it begins with step 0."""
    strip = first + tl.program_id(1)
    top = strip * LANES
    start = (wave - 2 * strip) * LANES
    steps = tl.where((top < h) & (w > 0), tl.minimum(LANES, h - top) + w - 1, 0)
    return strip, top, start, tl.minimum(steps, start + LANES)


@triton.jit
def read_edge(p_edge, top, start, stop, w, o_lane, nothing):
    """What the strip above wrote for the columns of the coming steps: a lane for each."""
    o_column = start + o_lane
    return tl.load(p_edge + o_column, mask=o_column < tl.where((top > 0) & (start < stop), w, 0), other=nothing)


@triton.jit
def from_above(b_x, b_edge, step, o_lane):
    """What the lanes before have; for the first lane, the entry of the edge for this step."""
    b_before = tl.gather(b_x, tl.maximum(o_lane - 1, 0), 0)
    return tl.where(o_lane == 0, tl.gather(b_edge, step + 0 * o_lane, 0), b_before)
