"""The entries of a row that have a probability, listed: few of very many."""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.tile import power


@triton.jit
def list_streamed(
    p_x, p_state, p_count, p_index, p_p, n, most, e: tl.float64,
    KIND: tl.constexpr, DOUBLE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Counts no further than one chunk past `most`."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    o_lane = tl.arange(0, LANES)
    origin = tl.load(p_state + 2 * i_row)
    level = tl.load(p_state + 2 * i_row + 1)
    slope = tl.full((), e, WORK)
    count = 0
    start = 0
    # nothing is feasible where −inf leads the state
    end = tl.where(origin == float("-inf"), 0, n)
    while start < end:
        o_column = start + o_lane
        b_x = tl.load(p_x + i_row * n + o_column, mask=o_column < n, other=float("-inf")).to(WORK)
        b_t = b_x - origin - level
        # not "above": a NaN counts
        b_in = (o_column < n) & ~(1 + slope * b_t <= 0)
        found = tl.sum(b_in.to(tl.int32))
        if found > 0:
            if KIND == "entmax15":
                b_u = 1 + 0.5 * b_t
                b_p = b_u * b_u
            elif KIND == "sparsemax":
                b_p = 1 + b_t
            else:
                b_p, _ = power(b_t, slope, slope, slope, False)
            o_place = count + tl.cumsum(b_in.to(tl.int32)) - 1
            b_in &= o_place < most
            tl.store(p_index + i_row * most + o_place, o_column, mask=b_in)
            tl.store(p_p + i_row * most + o_place, b_p, mask=b_in)
            count += found
        start = tl.where(count > most, n, start + LANES)
    tl.store(p_count + i_row, count)
