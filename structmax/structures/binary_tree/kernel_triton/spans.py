"""Between scores (B, N, N, C) and tables by width, and the value of an instance. One program for each row of spans."""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.choice import mean, shares
from structmax.structures.binary_tree.kernel_triton.chart import ALONG, CHART, SCORE


@triton.jit(do_not_specialize=["N", "size", "C"])
def read_spans(
    p_x, p_tangent, p_lengths, p_tables, N, size: tl.int64, C,
    BEST: tl.constexpr, TANGENT: tl.constexpr, COLUMNS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """The score of each span, log Σ exp or the best of its labels, and its tangent; and the cells of leaves.

    A score of NaN or +inf makes that of the leaf NaN with which its span begins, and so the value.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    o_label = tl.arange(0, LABELS)[None, :]
    p_tables += i_b * N * N + i
    o_row = (i_b * N + i) * N + i
    broken = 0
    for start in range(0, n - i, COLUMNS):
        o_w = start + tl.arange(0, COLUMNS)
        m_w = o_w < n - i
        o_x = (o_row + o_w)[:, None] * C + o_label
        m_x = m_w[:, None] & (o_label < C)
        b_x = tl.load(p_x + o_x, mask=m_x, other=float("-inf"))
        broken = tl.maximum(broken, tl.max(tl.max((b_x < float("inf")).to(tl.int32) ^ 1, 1), 0))
        b_share, b_score = shares(b_x)
        if BEST:
            b_score = tl.max(b_x, 1, keep_dims=True)
        tl.store(p_tables + SCORE * size + (o_w * N)[:, None], b_score, mask=m_w[:, None])
        if TANGENT:
            b_tangent = tl.load(p_tangent + o_x, mask=m_x, other=0.0)
            tl.store(
                p_tables + (SCORE + ALONG) * size + (o_w * N)[:, None], mean(b_share, b_tangent), mask=m_w[:, None]
            )
    # Leaves are left out of the chart.
    tl.store(p_tables + CHART * size, 0.0)
    if TANGENT:
        tl.store(p_tables + (CHART + ALONG) * size, 0.0)
    if broken > 0:
        tl.debug_barrier()
        tl.store(p_tables + SCORE * size, float("nan"))


@triton.jit(do_not_specialize=["N", "size"])
def value_of(p_tables, p_lengths, p_value, N, size: tl.int64, COLUMNS: tl.constexpr):
    """The scores of all leaves, and the cell of the whole."""
    i_b = tl.program_id(0).to(tl.int64)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    p_tables += i_b * N * N
    b_leaves = tl.zeros((COLUMNS,), tl.float64)
    for start in range(0, n, COLUMNS):
        o_i = start + tl.arange(0, COLUMNS)
        b_leaves += tl.load(p_tables + SCORE * size + o_i, mask=o_i < n, other=0.0)
    whole = tl.load(p_tables + CHART * size + (n - 1) * N, mask=n > 0, other=0.0)
    tl.store(p_value + i_b, tl.sum(b_leaves, 0) + whole)


@triton.jit(do_not_specialize=["N", "size", "C"])
def write_spans(
    p_x, p_tangent, p_tables, p_value, p_lengths, p_out, N, size: tl.int64, C,
    TANGENT: tl.constexpr, COLUMNS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Marginals of the spans that begin with a leaf, shared out among labels; or their tangents.

    They are NaN where the value is, 0 where nothing is feasible, and 0 outside of the spans.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1)
    n = tl.load(p_lengths + i_b).to(tl.int32)
    value = tl.load(p_value + i_b)
    nothing = tl.where(value == value, 0.0, value)
    # how many leaves have marginals
    feasible = tl.where(value > float("-inf"), n, 0)
    o_label = tl.arange(0, LABELS)[None, :]
    p_tables += i_b * N * N + i
    for start in range(0, N, COLUMNS):
        o_j = start + tl.arange(0, COLUMNS)
        m_span = (o_j >= i) & (o_j < n)
        m_x = (o_j < N)[:, None] & (o_label < C)
        b_out = tl.where(m_span[:, None] & m_x, nothing, 0.0)
        m_cell = (o_j >= i) & (o_j < feasible)
        o_x = ((i_b * N + i) * N + o_j)[:, None] * C + o_label
        b_x = tl.load(p_x + o_x, mask=m_x & m_cell[:, None], other=float("-inf"))
        b_share, _ = shares(b_x)
        o_cell = (o_j - i) * N
        # Leaves are in every tree.
        b_mu = tl.load(p_tables + SCORE * size + o_cell, mask=m_cell & (o_j > i), other=0.0)
        b_mu = tl.where(o_j == i, 1.0, b_mu)[:, None]
        if TANGENT:
            b_tangent = tl.load(p_tangent + o_x, mask=m_x & m_cell[:, None], other=0.0)
            b_d_mu = tl.load(p_tables + (SCORE + ALONG) * size + o_cell, mask=m_cell & (o_j > i), other=0.0)[:, None]
            b_along = b_d_mu + b_mu * (b_tangent - mean(b_share, b_tangent))
            b_out += tl.where(b_share == 0, 0.0, b_share * b_along)
        else:
            b_out += b_share * b_mu
        tl.store(p_out + o_x, b_out, mask=m_x)
