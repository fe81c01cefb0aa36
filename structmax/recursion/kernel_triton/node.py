"""What the passes have in common: the scores of a tile of edges, and their probabilities at their heads.

A tile is (rows, edges, instances). Arrays of numbers are (rows, B), instances innermost: lanes that hold neighbouring
instances read neighbouring cells, and all of them share the tables.
"""

import triton
import triton.language as tl


@triton.jit
def edge_scores(
    p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B,
    PARTS: tl.constexpr, TAILS: tl.constexpr, WORK: tl.constexpr,
):  # fmt: skip
    """Σ x(parts) + Σ value(tails) for edges (R, E, 1) and instances (1, 1, N): (R, E, N), 0 outside the mask."""
    b_s = tl.zeros(m_tile.shape, WORK)
    m_edge = o_edge >= 0
    for j in tl.static_range(PARTS):
        o_part = tl.load(p_parts + o_edge * PARTS + j, mask=m_edge, other=-1).to(tl.int64)
        b_s += tl.load(p_x + o_part * B + o_batch, mask=m_tile & (o_part >= 0), other=0.0)
    for j in tl.static_range(TAILS):
        o_tail = tl.load(p_tails + o_edge * TAILS + j, mask=m_edge, other=-1).to(tl.int64)
        b_s += tl.load(p_value + o_tail * B + o_batch, mask=m_tile & (o_tail >= 0), other=0.0)
    return b_s


@triton.jit
def probabilities(b_s, b_peak, b_level, o_edge, b_scale, KIND: tl.constexpr):
    """q of edges that score s, from what `ascend` has stored for their heads. What is −inf has none."""
    if KIND == "max":
        return tl.where(b_level == o_edge, tl.full(b_s.shape, 1.0, b_s.dtype), 0.0)
    elif KIND == "softmax":
        return tl.exp((b_s - b_peak) * b_scale) * b_level
    else:
        b_q = (b_s - b_peak) * b_scale - b_level
        return tl.where(b_q > 0, b_q, 0.0)


@triton.jit
def slopes(b_q, b_ds, b_centre, b_scale, KIND: tl.constexpr):
    """The change of q when the scores of the edges change by ds: w (ds − Σ w ds / Σ w) / γ with w = q^(2−α)."""
    if KIND == "softmax":
        return tl.where(b_q > 0, b_q * (b_ds - b_centre) * b_scale, 0.0)
    else:
        return tl.where(b_q > 0, (b_ds - b_centre) * b_scale, 0.0)
