"""The loss of a small batch with its gradient: one program, hence one launch, which is what the host waits for."""

import triton
import triton.language as tl

from structmax.structures.simplex.kernel_triton.forward import loss, solve_tile
from structmax.structures.simplex.kernel_triton.tile import load_e, products, quotient, threshold


@triton.jit(do_not_specialize=["B", "ignored"])
def lose(
    p_x, p_target, p_total, p_gradient, ignored, n, B, e: tl.float64,
    KIND: tl.constexpr, MEAN: tl.constexpr, DOUBLE: tl.constexpr, DIGITS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of all losses or their mean over the rows that count, and its gradient; α ≤ 2."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    o_row, o_column = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    m_row = o_row < B
    m_tile = m_row & (o_column < n)
    e = load_e(p_x, e, o_row, m_row, False)
    target = tl.load(p_target + o_row, mask=m_row, other=ignored)
    m_used = m_row & (target != ignored)
    b_x = tl.load(p_x + o_row * n + o_column, mask=m_tile, other=float("-inf")).to(WORK)
    origin, peak, unknown, b_p = solve_tile(b_x, e, KIND, WORK, DIGITS, DOUBLE)
    tau = threshold(unknown, e, KIND)
    energy = e * tl.sum(products(b_p, b_x - peak), 1, keep_dims=True)
    b_loss = loss(p_x, p_target, ignored, n, o_row, m_row, origin, tau, energy, e, True)
    count = tl.sum(m_used.to(tl.float64)) if MEAN else tl.full((), 1.0, tl.float64)
    tl.store(p_total, tl.sum(tl.where(m_used, b_loss, 0.0).to(tl.float64)) / count)
    b_gradient = b_p - tl.where(o_column == target, 1.0, 0.0)
    still = (origin == float("-inf")) | (target == ignored)
    b_gradient = tl.where(still, 0.0, quotient(b_gradient, count.to(WORK) + tl.zeros_like(b_gradient)))
    tl.store(p_gradient + o_row * n + o_column, b_gradient, mask=m_tile)
