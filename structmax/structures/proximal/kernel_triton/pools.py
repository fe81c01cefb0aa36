"""Projections onto permutahedra in Triton: a program for each row, a lane for each entry. Derivations: ../README.md."""

import triton
import triton.language as tl

from structmax.structures.proximal.kernel_triton.runs import _smaller


@triton.jit
def _add_in_block(head, a, b, other_head, c, d):
    m_new = other_head != 0
    return head | other_head, tl.where(m_new, c, a + c), tl.where(m_new, d, b + d)


@triton.jit
def _log_add(a, b):
    high = tl.maximum(a, b)
    return high + tl.log(tl.exp(a - high) + tl.exp(b - high))


@triton.jit
def _log_add_in_block(head, a, b, other_head, c, d):
    m_new = other_head != 0
    return head | other_head, tl.where(m_new, c, _log_add(a, c)), tl.where(m_new, d, _log_add(b, d))


@triton.jit(do_not_specialize=["n", "weight_rows"])
def pool(p_x, p_weights, p_scale, p_lines, p_groups, n, weight_rows, ENTROPIC: tl.constexpr, BLOCK: tl.constexpr):
    """Neighbouring blocks pool while the right one has the greater level.

    Whatever violates the order ends in one block, so all neighbours that do are pooled at once. A block has Σ (scale x
    − weights) and its size, or log Σ exp(scale x) and log Σ exp(weights).
    """
    i_row = tl.program_id(0).to(tl.int64)
    p_heads = p_lines + i_row * 3 * BLOCK
    p_one, p_two = p_heads + BLOCK, p_heads + 2 * BLOCK
    o = tl.arange(0, BLOCK)
    x = tl.load(p_x + i_row * n + o, mask=o < n, other=0.0).to(tl.float64) * tl.load(p_scale)
    w = tl.load(p_weights + (i_row % weight_rows) * n + o, mask=o < n, other=0.0).to(tl.float64)
    one, two = x, w
    if not ENTROPIC:
        one, two = x - w, tl.full((BLOCK,), 1.0, tl.float64)
    head = tl.where((o > 0) & (o < n), 1, 0)
    going = tl.where(n > 1, 1, 0)
    while going > 0:
        tl.store(p_heads + o, head.to(tl.float64))
        if ENTROPIC:
            _, upto_one, upto_two = tl.associative_scan((head, one, two), 0, _log_add_in_block)
        else:
            _, upto_one, upto_two = tl.associative_scan((head, one, two), 0, _add_in_block)
        tl.store(p_one + o, upto_one)
        tl.store(p_two + o, upto_two)
        tl.debug_barrier()
        m_after = tl.load(p_heads + o + 1, mask=o + 1 < n, other=0.0) != 0
        after = tl.associative_scan(tl.where(m_after, o + 1, n), 0, _smaller, reverse=True)
        m_head = head != 0
        a, b = (tl.load(p_one + after - 1, mask=m_head, other=0.0), tl.load(p_two + after - 1, mask=m_head, other=0.0))
        c, d = tl.load(p_one + o - 1, mask=m_head, other=0.0), tl.load(p_two + o - 1, mask=m_head, other=0.0)
        if ENTROPIC:
            m_pooled = m_head & (c - d < a - b)
        else:
            m_pooled = m_head & (c * b < a * d)
        head = tl.where(m_pooled, 0, head)
        going = tl.max(tl.where(m_pooled, 1, 0))
        tl.debug_barrier()
    tl.store(p_groups + i_row * n + o, tl.cumsum(head, 0), mask=o < n)
