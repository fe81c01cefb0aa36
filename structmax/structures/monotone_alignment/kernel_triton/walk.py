"""The recursions over anti-diagonals: one warp for a strip of LANES rows of an instance, one lane for a row of places.

A lane takes what comes from its upper neighbour from the lane before it, by registers; what comes along the diagonal
it took a step ago, what comes from the left is its own. Backward the rows are reversed, and the rest is the same. What
does not depend on the step before is read several steps at a time, while those before are taken: a number that is moved
from one register to another has to be there.

Strips go side by side, each on its own multiprocessor. `p_edge` hands the last row of a strip to the next, in place: a
strip reads what it needs of LANES steps at once, and writes behind that. `p_turns` counts the programs that have
started, and then the columns that each strip has written. A program takes the next strip in turn, so the strip above is
always finished or under way, and waiting for its columns comes to an end however many programs run at a time.
"""

import triton
import triton.language as tl

# Columns of a strip that has finished, with those above.
FINISHED = tl.constexpr(2**31 - 1)


@triton.jit
def take_turn(p_turns, B, strips):
    """The instance and the strip of this program, and where its columns are counted, behind those of the one above."""
    turn = tl.atomic_add(p_turns, 1)
    i_b, strip = turn % B, turn // B
    return i_b.to(tl.int64), strip, p_turns + 1 + i_b * strips + strip


@triton.jit
def await_columns(p_columns, columns):
    """Waits until the strip above has written so many columns."""
    written = tl.atomic_add(p_columns - 1, 0, sem="acquire")
    while written < columns:
        written = tl.atomic_add(p_columns - 1, 0, sem="acquire")


@triton.jit
def announce_columns(p_columns, columns):
    """Tells the strip below how many columns are written."""
    # by all lanes
    tl.debug_barrier()
    tl.atomic_xchg(p_columns, columns, sem="release")


@triton.jit
def read_edge(p_edge, start, top, w, o_lane, nothing):
    """What the strip above wrote for the columns of the coming steps: a lane for each."""
    o_column = start + o_lane
    # past the cache of the multiprocessor, which does not see what others write
    return tl.load(p_edge + o_column, mask=o_column < tl.where(top > 0, w, 0), other=nothing, cache_modifier=".cg")


@triton.jit
def from_above(b_x, b_edge, step, o_lane):
    """What the lanes before have; for the first lane, the entry of the edge for this step."""
    b_before = tl.gather(b_x, tl.maximum(o_lane - 1, 0), 0)
    return tl.where(o_lane == 0, tl.gather(b_edge, step + 0 * o_lane, 0), b_before)
