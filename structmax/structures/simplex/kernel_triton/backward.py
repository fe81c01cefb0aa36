"""Pullbacks of probabilities and of losses, in registers where rows are short, streamed where they are long."""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.forward import NOTHING
from structmax.structures.simplex.kernel_triton.steep import pull_steep, pull_steep_rows, steep
from structmax.structures.simplex.kernel_triton.tile import LOG2_E, load_e, power, products, quotient, slopes


@triton.jit(do_not_specialize=["B"])
def pull_rows(
    p_p, p_v, p_alpha, p_out, n, B, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, DOUBLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = load_e(p_alpha, e, o_row, m_row, PER_ROW)
    o_tile = o_row * n + o_column
    b_p = tl.load(p_p + o_tile, mask=m_tile, other=0.0).to(WORK)
    b_v = tl.load(p_v + o_tile, mask=m_tile, other=0.0).to(WORK)
    b_s = slopes(b_p, e, KIND)
    # Off the support v has no say, not even where it is infinite.
    b_v = tl.where(b_s == 0, 0.0, b_v)
    total = tl.sum(b_s, 1, keep_dims=True)
    mean = tl.sum(b_s * b_v, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    b_out = tl.where(b_s == 0, 0.0, b_s * (b_v - mean))
    m_steep = m_row & (e > 1) if STEEP else o_row < 0
    tl.store(p_out + o_tile, b_out, mask=m_tile & ~m_steep)
    if STEEP:
        # Read once more: what a rare branch keeps in registers, every row would have to.
        if tl.max(m_steep.to(tl.int32)) > 0:
            pull_steep_rows(p_p, p_v, p_out, o_tile, o_column, m_tile & m_steep, e.to(WORK), BLOCK)


@triton.jit
def _pull(
    p_p, p_v, p_out, n, e,
    KIND: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """The pullback of one long row."""
    o_lane = tl.arange(0, LANES)[None, :]
    b_total = tl.zeros((1, LANES), WORK)
    b_dot = tl.zeros((1, LANES), WORK)
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        b_p = tl.load(p_p + o_column, mask=o_column < n, other=0.0, eviction_policy="evict_last").to(WORK)
        b_s = slopes(b_p, e, KIND)
        # Sparse rows read hardly any of v; a softmax reads it whole, in wide loads.
        m_v = (o_column < n) if KIND == "softmax" else (b_s != 0)
        b_v = tl.load(p_v + o_column, mask=m_v, other=0.0).to(WORK)
        b_total += b_s
        b_dot += products(b_s, b_v)
    total = tl.sum(b_total, 1, keep_dims=True)
    mean = tl.sum(b_dot, 1, keep_dims=True) / tl.where(total == 0, 1.0, total)
    for start in tl.range(0, n, LANES, num_stages=STAGES):
        o_column = start + o_lane
        m_column = o_column < n
        b_p = tl.load(p_p + o_column, mask=m_column, other=0.0, eviction_policy="evict_first").to(WORK)
        b_s = slopes(b_p, e, KIND)
        m_v = m_column if KIND == "softmax" else (b_s != 0)
        b_v = tl.load(p_v + o_column, mask=m_v, other=0.0).to(WORK)
        b_out = tl.where(b_s == 0, 0.0, b_s * (b_v - mean))
        tl.store(p_out + o_column, b_out, mask=m_column, eviction_policy="evict_first")


@triton.jit
def pull_streamed(
    p_p, p_v, p_alpha, p_out, n, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, DOUBLE: tl.constexpr,
    LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_row = tl.program_id(0).to(tl.int64)
    o_row = tl.full((1, 1), 0, tl.int64) + i_row
    e = load_e(p_alpha, e, o_row, o_row >= 0, PER_ROW)
    p_p += i_row * n
    p_v += i_row * n
    p_out += i_row * n
    if STEEP:
        if tl.max(tl.where(e > 1, 1, 0)) > 0:
            pull_steep(p_p, p_v, p_out, n, e, LANES, WORK)
        else:
            _pull(p_p, p_v, p_out, n, e, KIND, LANES, STAGES, WORK)
    else:
        _pull(p_p, p_v, p_out, n, e, KIND, LANES, STAGES, WORK)


@triton.jit(do_not_specialize=["B", "tiles", "ignored"])
def gradient(
    p_x, p_state, p_target, p_d_value, p_count, p_alpha, p_out, ignored, n, B, tiles, e: tl.float64,
    KIND: tl.constexpr, STEEP: tl.constexpr, PER_ROW: tl.constexpr, TOTAL: tl.constexpr, DOUBLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of the value of each row; if TOTAL, of their sum divided by the count."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_tile = tl.program_id(0)
    o_row = (i_tile // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    o_column = (i_tile % tiles) * BLOCK + tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = load_e(p_alpha, e, o_row, m_row, PER_ROW).to(WORK)
    origin = tl.load(p_state + 2 * o_row, mask=m_row, other=0.0)
    level = tl.load(p_state + 2 * o_row + 1, mask=m_row, other=0.0)
    target = tl.load(p_target + o_row, mask=m_row, other=NOTHING)
    if TOTAL:
        d_value = tl.zeros((ROWS, 1), WORK) + quotient(tl.load(p_d_value).to(WORK), tl.load(p_count).to(WORK))
    else:
        d_value = tl.load(p_d_value + o_row, mask=m_row, other=0.0).to(WORK)
    still = (d_value == 0) | (origin == float("-inf")) | (target == ignored)
    b_x = tl.load(p_x + o_row * n + o_column, mask=m_tile & ~still, other=0.0).to(WORK)
    b_t = b_x - origin - level
    if KIND == "softmax":
        b_p = tl.exp2(b_t * LOG2_E)
    elif KIND == "entmax15":
        b_u = 1 + 0.5 * b_t
        b_p = tl.where(b_u <= 0, 0.0, b_u * b_u)
    elif KIND == "sparsemax":
        b_p = tl.where(b_t <= -1, 0.0, 1 + b_t)
    else:
        b_p, _ = power(b_t, e, e, e, False)
    if STEEP:
        e_steep = tl.where(e > 1, e, 2.0)
        b_steep = tl.where(level == level, steep(b_x, origin, level, e_steep), level)
        b_p = tl.where(e > 1, b_steep, b_p)
    b_out = d_value * (b_p - tl.where(o_column == target, 1.0, 0.0))
    tl.store(p_out + o_row * n + o_column, tl.where(still, 0.0, b_out), mask=m_tile)
