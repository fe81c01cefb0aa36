"""What the passes have in common: the scores of a tile of edges, and their probabilities at their heads.

A tile is (rows, edges, instances). Arrays of numbers are (rows, B), instances innermost: lanes that hold neighbouring
instances read neighbouring cells, and all of them share the tables.

Values are float64 whatever the dtype of the scores: they grow with the structure, and what counts are differences. What
is made of these, exponentials, probabilities and expected counts, has the dtype of the scores, WORK.
"""

import triton
import triton.language as tl


@triton.jit
def edge_scores(
    p_x, p_value, p_parts, p_tails, o_edge, m_tile, o_batch, B,
    PARTS: tl.constexpr, TAILS: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Σ x(parts) + Σ value(tails) for edges (R, E, 1) and instances (1, 1, N): (R, E, N), 0 outside the mask."""
    b_s = tl.zeros(m_tile.shape, SUMS)
    m_edge = o_edge >= 0
    for j in tl.static_range(PARTS):
        o_part = tl.load(p_parts + o_edge * PARTS + j, mask=m_edge, other=-1).to(tl.int64)
        b_s += tl.load(p_x + o_part * B + o_batch, mask=m_tile & (o_part >= 0), other=0.0).to(SUMS)
    for j in tl.static_range(TAILS):
        o_tail = tl.load(p_tails + o_edge * TAILS + j, mask=m_edge, other=-1).to(tl.int64)
        b_s += tl.load(p_value + o_tail * B + o_batch, mask=m_tile & (o_tail >= 0), other=0.0).to(SUMS)
    return b_s


@triton.jit
def probabilities(b_s, b_peak, b_level, o_edge, b_scale, b_e, KIND: tl.constexpr, WORK: tl.constexpr):
    """q of edges that score s, from what `ascend` has stored for their heads. What is −inf has none.

    With e = α − 1 and z = (s − peak)/γ it is [e (z − τ)]₊^(1/e); its limit at α = 1 is exp(z) over their sum.
    """
    if KIND == "max":
        return (b_level == o_edge).to(WORK)
    elif KIND == "softmax":
        return tl.exp(((b_s - b_peak) * b_scale).to(WORK)) * b_level
    else:
        return raised(((b_s - b_peak) * b_scale).to(WORK) - b_level, b_e, KIND)


@triton.jit
def raised(b_above, b_e, KIND: tl.constexpr):
    """[e (z − τ)]₊^(1/e) of z − τ."""
    if KIND == "sparsemax":
        return tl.where(b_above > 0, b_above, 0.0)
    else:
        b_log = tl.log(tl.where(b_above > 0, b_e * b_above, 1.0))
        return tl.where(b_above > 0, tl.exp(b_log / b_e), 0.0)


@triton.jit
def weights(b_q, b_e, KIND: tl.constexpr):
    """How strongly q follows the score of its edge: q^(2−α) on the support."""
    if KIND == "softmax":
        return b_q
    elif KIND == "sparsemax":
        return tl.where(b_q > 0, tl.full(b_q.shape, 1.0, b_q.dtype), 0.0)
    else:
        return tl.where(b_q > 0, tl.exp(tl.log(tl.where(b_q > 0, b_q, 1.0)) * (1 - b_e)), 0.0)
