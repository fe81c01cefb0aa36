"""Between scores (B, P, P, C) and tables by width, and the value of an instance. One program for each head."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import mean, shares
from structmax.structures.projective_tree.kernel_triton.chart import (
    ALONG,
    ARC_LEFT,
    ARC_RIGHT,
    TREE_LEFT,
    TREE_RIGHT,
)


@triton.jit
def _cells(h, o_m, P, size):
    """Where the arcs from h lie in the tables of arcs."""
    return tl.abs(o_m - h) * P + tl.minimum(o_m, h) + tl.where(o_m < h, ARC_LEFT, ARC_RIGHT) * size


@triton.jit(do_not_specialize=["P", "size", "C"])
def read_arcs(
    p_x, p_tangent, p_lengths, p_tables, P, size: tl.int64, C,
    BEST: tl.constexpr, TANGENT: tl.constexpr, COLUMNS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """The score of each arc, log Σ exp or the best of its labels, and its tangent; and trees without an arc.

    The cell of the arc from h to itself, which does not exist, is NaN if a score from h is NaN or +inf, and else 0.
    """
    i_b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    words = tl.where(h <= n, n, -1)
    o_label = tl.arange(0, LABELS)[None, :]
    p_tables += i_b * P * P
    broken = 0
    for start in range(0, words + 1, COLUMNS):
        o_m = start + tl.arange(0, COLUMNS)
        m_arc = (o_m > 0) & (o_m <= n) & (o_m != h)
        m_x = m_arc[:, None] & (o_label < C)
        o_x = ((i_b * P + h) * P + o_m)[:, None] * C + o_label
        b_x = tl.load(p_x + o_x, mask=m_x, other=float("-inf"))
        broken = tl.maximum(broken, tl.max(tl.max((b_x < float("inf")).to(tl.int32) ^ 1, 1), 0))
        b_share, b_score = shares(b_x)
        if BEST:
            b_score = tl.max(b_x, 1, keep_dims=True)
        p_cell = (p_tables + _cells(h, o_m, P, size))[:, None]
        m_cell = ((o_m <= n) & (o_m != h))[:, None]
        tl.store(p_cell, b_score, mask=m_cell)
        if TANGENT:
            b_tangent = tl.load(p_tangent + o_x, mask=m_x, other=0.0)
            tl.store(p_cell + ALONG * size, mean(b_share, b_tangent), mask=m_cell)
    tl.store(p_tables + ARC_RIGHT * size + h, tl.where(broken > 0, float("nan"), 0.0))
    tl.store(p_tables + TREE_RIGHT * size + h, 0.0)
    tl.store(p_tables + TREE_LEFT * size + h, 0.0)
    if TANGENT:
        tl.store(p_tables + (TREE_RIGHT + ALONG) * size + h, 0.0)
        tl.store(p_tables + (TREE_LEFT + ALONG) * size + h, 0.0)


@triton.jit(do_not_specialize=["P", "size"])
def value_of(p_tables, p_lengths, p_value, P, size: tl.int64, COLUMNS: tl.constexpr):
    """The tree of the root over all words; NaN if a score is."""
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    p_tables += i_b * P * P
    b_sound = tl.zeros((COLUMNS,), tl.float64)
    for start in range(0, n + 1, COLUMNS):
        o_h = start + tl.arange(0, COLUMNS)
        b_sound += tl.load(p_tables + ARC_RIGHT * size + o_h, mask=o_h <= n, other=0.0)
    tl.store(p_value + i_b, tl.sum(b_sound, 0) + tl.load(p_tables + TREE_RIGHT * size + n * P))


@triton.jit(do_not_specialize=["P", "size", "C"])
def write_arcs(
    p_x, p_tangent, p_tables, p_value, p_lengths, p_out, P, size: tl.int64, C,
    TANGENT: tl.constexpr, COLUMNS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Marginals of the arcs from a head, shared out among labels; or their tangents.

    They are NaN where the value is, 0 where nothing is feasible, and 0 where there is no arc.
    """
    i_b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    value = tl.load(p_value + i_b)
    nothing = tl.where(value == value, 0.0, value)
    words = tl.where(h <= n, n, 0)
    # how many words have marginals
    feasible = tl.where(value > float("-inf"), words, 0)
    o_label = tl.arange(0, LABELS)[None, :]
    p_tables += i_b * P * P
    for start in range(0, P, COLUMNS):
        o_m = start + tl.arange(0, COLUMNS)
        m_arc = (o_m > 0) & (o_m <= words) & (o_m != h)
        m_x = (o_m < P)[:, None] & (o_label < C)
        b_out = tl.where(m_arc[:, None] & m_x, nothing, 0.0)
        m_cell = m_arc & (o_m <= feasible)
        o_x = ((i_b * P + h) * P + o_m)[:, None] * C + o_label
        b_share, _ = shares(tl.load(p_x + o_x, mask=m_x & m_cell[:, None], other=float("-inf")))
        p_cell = p_tables + _cells(h, o_m, P, size)
        b_mu = tl.load(p_cell, mask=m_cell, other=0.0)[:, None]
        if TANGENT:
            b_tangent = tl.load(p_tangent + o_x, mask=m_x & m_cell[:, None], other=0.0)
            b_d_mu = tl.load(p_cell + ALONG * size, mask=m_cell, other=0.0)[:, None]
            b_along = b_d_mu + b_mu * (b_tangent - mean(b_share, b_tangent))
            b_out += tl.where(b_share == 0, 0.0, b_share * b_along)
        else:
            b_out += b_share * b_mu
        tl.store(p_out + o_x, b_out, mask=m_x)
