"""Rows with α > 2, whose probabilities have infinite slope at 0: measured from the smallest supported score.

`_anchored` in reference.py explains why. That score and its own probability are found by bisection. A row is a tile in
registers, or is streamed once for each halving.
"""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.tile import slopes


@triton.jit
def steep(x, anchor, p_anchor, e):
    """For α > 2, the probabilities of scores, given the smallest supported one and its own."""
    u = tl.exp2(e * tl.log2(p_anchor)) + e * (x - anchor)
    p = tl.exp2(tl.log2(tl.where(u > 0, u, 1.0)) / e)
    return tl.where(x == anchor, p_anchor, tl.where((x > anchor) & (u > 0), p, 0.0))


@triton.jit
def anchored(x, peak, e, HALVINGS: tl.constexpr):
    """For α > 2, the smallest supported score of each row and its probability: (ROWS, 1) both."""
    low, high = peak - 1 / e, peak
    for _ in range(HALVINGS):
        # Halved one by one: the sum of two great scores is infinite.
        middle = low / 2 + high / 2
        fits = tl.sum(steep(x, middle, tl.zeros_like(middle), e), 1, keep_dims=True) < 1
        low, high = tl.where(fits, low, middle), tl.where(fits, middle, high)
    anchor = tl.min(tl.where(x >= high, x, float("inf")), 1, keep_dims=True)
    low, high = tl.zeros_like(peak), tl.zeros_like(peak) + 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = tl.sum(steep(x, anchor, middle, e), 1, keep_dims=True) >= 1
        low, high = tl.where(above, low, middle), tl.where(above, middle, high)
    return anchor, (low + high) / 2


@triton.jit
def _mass(p_row, n, anchor, p_anchor, e, LANES: tl.constexpr):
    b_mass = tl.zeros((1, LANES), p_anchor.dtype)
    for start in range(0, n, LANES):
        o_column = start + tl.arange(0, LANES)[None, :]
        b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf")).to(p_anchor.dtype)
        b_mass += steep(b_x, anchor, p_anchor, e)
    return tl.sum(b_mass, 1, keep_dims=True)


@triton.jit
def anchored_streamed(p_row, n, peak, e, HALVINGS: tl.constexpr, LANES: tl.constexpr):
    """`anchored` for one long row."""
    low, high = peak - 1 / e, peak
    for _ in range(HALVINGS):
        middle = low / 2 + high / 2
        fits = _mass(p_row, n, middle, tl.zeros_like(middle), e, LANES) < 1
        low, high = tl.where(fits, low, middle), tl.where(fits, middle, high)
    b_anchor = tl.full((1, LANES), float("inf"), peak.dtype)
    for start in range(0, n, LANES):
        o_column = start + tl.arange(0, LANES)[None, :]
        b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf")).to(peak.dtype)
        b_anchor = tl.minimum(b_anchor, tl.where(b_x >= high, b_x, float("inf")))
    anchor = tl.min(b_anchor, 1, keep_dims=True)
    low, high = tl.zeros_like(peak), tl.zeros_like(peak) + 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _mass(p_row, n, anchor, middle, e, LANES) >= 1
        low, high = tl.where(above, low, middle), tl.where(above, middle, high)
    return anchor, (low + high) / 2


@triton.jit
def steep_energy(p_row, n, anchor, p_anchor, e, LANES: tl.constexpr):
    """⟨p, x − anchor⟩ of one long row."""
    b_dot = tl.zeros((1, LANES), p_anchor.dtype)
    for start in range(0, n, LANES):
        o_column = start + tl.arange(0, LANES)[None, :]
        b_x = tl.load(p_row + o_column, mask=o_column < n, other=float("-inf")).to(p_anchor.dtype)
        b_p = steep(b_x, anchor, p_anchor, e)
        b_dot += tl.where(b_p == 0, 0.0, b_p * (b_x - anchor))
    return tl.sum(b_dot, 1, keep_dims=True)


@triton.jit
def pull_steep_rows(p_p, p_v, p_out, o_tile, o_column, m_tile, e, BLOCK: tl.constexpr):
    """The pullback of a tile of rows, with slopes in units of the largest, that of the lowest p.

    Its product, where v − mean would cancel, is what makes the products sum to 0.
    """
    b_p = tl.load(p_p + o_tile, mask=m_tile, other=0.0).to(e.dtype)
    # Off the support v has no say, not even where it is infinite.
    b_v = tl.load(p_v + o_tile, mask=m_tile & (b_p != 0), other=0.0).to(e.dtype)
    lowest = tl.min(tl.where(b_p == 0, 2.0, b_p), 1, keep_dims=True)
    b_share = tl.where(b_p == 0, 0.0, tl.exp2((1 - e) * tl.log2(b_p / lowest)))
    total = tl.sum(b_share, 1, keep_dims=True)
    mean = tl.sum(b_share * b_v, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    b_out = tl.where(b_p == 0, 0.0, slopes(b_p, e, "general") * (b_v - mean))
    first = tl.min(tl.where(b_p == lowest, o_column, BLOCK), 1, keep_dims=True)
    rest = tl.sum(tl.where(o_column == first, 0.0, b_out), 1, keep_dims=True)
    tl.store(p_out + o_tile, tl.where(o_column == first, -rest, b_out), mask=m_tile)


@triton.jit
def pull_steep(p_p, p_v, p_out, n, e, LANES: tl.constexpr, WORK: tl.constexpr):
    """`pull_steep_rows` for one long row."""
    e = e.to(WORK)
    o_lane = tl.arange(0, LANES)[None, :]
    b_lowest = tl.full((1, LANES), 2.0, WORK)
    for start in range(0, n, LANES):
        o_column = start + o_lane
        b_p = tl.load(p_p + o_column, mask=o_column < n, other=0.0).to(WORK)
        b_lowest = tl.minimum(b_lowest, tl.where(b_p == 0, 2.0, b_p))
    lowest = tl.min(b_lowest, 1, keep_dims=True)
    b_first = tl.full((1, LANES), 0, tl.int32) + n
    b_total, b_dot = tl.zeros((1, LANES), WORK), tl.zeros((1, LANES), WORK)
    for start in range(0, n, LANES):
        o_column = start + o_lane
        b_p = tl.load(p_p + o_column, mask=o_column < n, other=0.0).to(WORK)
        b_v = tl.load(p_v + o_column, mask=b_p != 0, other=0.0).to(WORK)
        b_share = tl.where(b_p == 0, 0.0, tl.exp2((1 - e) * tl.log2(b_p / lowest)))
        b_total += b_share
        b_dot += b_share * b_v
        b_first = tl.where(b_p == lowest, tl.minimum(b_first, o_column), b_first)
    total, first = tl.sum(b_total, 1, keep_dims=True), tl.min(b_first, 1, keep_dims=True)
    mean = tl.sum(b_dot, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    b_rest = tl.zeros((1, LANES), WORK)
    for start in range(0, n, LANES):
        o_column = start + o_lane
        b_p = tl.load(p_p + o_column, mask=o_column < n, other=0.0).to(WORK)
        b_v = tl.load(p_v + o_column, mask=b_p != 0, other=0.0).to(WORK)
        b_out = tl.where(b_p == 0, 0.0, slopes(b_p, e, "general") * (b_v - mean))
        b_rest += tl.where(o_column == first, 0.0, b_out)
        tl.store(p_out + o_column, b_out, mask=(o_column < n) & (o_column != first))
    tl.store(p_out + first, -tl.sum(b_rest, 1, keep_dims=True), mask=first < n)
