"""A positive definite matrix and its inverse in memory, which gain and lose rows: the work of one program.

Both are (K, K) in float64, symmetric, and zero outside the rows in use, all of which are among the first `used`. They
stay in memory, where the L1 cache has them, and are read in tiles of ROWS rows: registers would not hold large ones.
Vectors are blocks (K,); `p_work` has room for two, so that every thread can read what others computed. Each function
begins with a barrier, behind which it sees what the ones before it wrote.
"""

import triton
import triton.language as tl


@triton.jit
def times(p_matrix, p_work, b_v, used, K: tl.constexpr, ROWS: tl.constexpr):
    """Matrix times vector."""
    o_k, o_row = tl.arange(0, K), tl.arange(0, ROWS)
    tl.debug_barrier()
    tl.store(p_work + o_k, b_v)
    tl.debug_barrier()
    b_sum = tl.zeros((ROWS, K), tl.float64)
    for first in range(0, used, ROWS):
        m_tile = (first + o_row < used)[:, None] & (o_k < used)[None, :]
        b_tile = tl.load(p_matrix + (first + o_row)[:, None] * K + o_k[None, :], mask=m_tile, other=0.0)
        b_sum += b_tile * tl.load(p_work + first + o_row)[:, None]
    return tl.sum(b_sum, 0)


@triton.jit
def times_both(p_matrix, p_work, b_v, b_w, used, K: tl.constexpr, ROWS: tl.constexpr):
    """Matrix times two vectors, in one pass over it."""
    o_k, o_row = tl.arange(0, K), tl.arange(0, ROWS)
    tl.debug_barrier()
    tl.store(p_work + o_k, b_v)
    tl.store(p_work + K + o_k, b_w)
    tl.debug_barrier()
    b_first, b_second = tl.zeros((ROWS, K), tl.float64), tl.zeros((ROWS, K), tl.float64)
    for first in range(0, used, ROWS):
        m_tile = (first + o_row < used)[:, None] & (o_k < used)[None, :]
        b_tile = tl.load(p_matrix + (first + o_row)[:, None] * K + o_k[None, :], mask=m_tile, other=0.0)
        b_first += b_tile * tl.load(p_work + first + o_row)[:, None]
        b_second += b_tile * tl.load(p_work + K + first + o_row)[:, None]
    return tl.sum(b_first, 0), tl.sum(b_second, 0)


@triton.jit
def add_square(p_matrix, p_work, b_v, factor, used, K: tl.constexpr, ROWS: tl.constexpr):
    """Matrix += factor · v vᵀ."""
    o_k, o_row = tl.arange(0, K), tl.arange(0, ROWS)
    tl.debug_barrier()
    tl.store(p_work + o_k, b_v)
    tl.debug_barrier()
    for first in range(0, used, ROWS):
        m_tile = (first + o_row < used)[:, None] & (o_k < used)[None, :]
        p_tile = p_matrix + (first + o_row)[:, None] * K + o_k[None, :]
        b_rows = factor * tl.load(p_work + first + o_row)
        tl.store(p_tile, tl.load(p_tile, mask=m_tile, other=0.0) + b_rows[:, None] * b_v[None, :], mask=m_tile)


@triton.jit
def clear(p_matrix, used, K: tl.constexpr, ROWS: tl.constexpr):
    """Matrix = 0."""
    o_k, o_row = tl.arange(0, K), tl.arange(0, ROWS)
    tl.debug_barrier()
    for first in range(0, used, ROWS):
        m_tile = (first + o_row < used)[:, None] & (o_k < used)[None, :]
        tl.store(p_matrix + (first + o_row)[:, None] * K + o_k[None, :], tl.zeros((ROWS, K), tl.float64), mask=m_tile)


@triton.jit
def border(p_inverse, p_work, b_v, rest, k, used, K: tl.constexpr, ROWS: tl.constexpr):
    """The inverse gains row k. v is the inverse times the new row, `rest` what v leaves of its diagonal entry."""
    b_v = tl.where(tl.arange(0, K) == k, -1.0, b_v)
    add_square(p_inverse, p_work, b_v, 1 / rest, used, K, ROWS)


@triton.jit
def write_row(p_matrix, b_row, k, K: tl.constexpr):
    """Row and column k of the matrix."""
    o_k = tl.arange(0, K)
    tl.debug_barrier()
    tl.store(p_matrix + k * K + o_k, b_row)
    tl.store(p_matrix + o_k * K + k, b_row)


@triton.jit
def drop(p_gram, p_inverse, p_work, b_v, b_w, k, used, K: tl.constexpr, ROWS: tl.constexpr):
    """Matrix and inverse lose row k. Returns what becomes of the inverse times two vectors, v and w before."""
    o_k = tl.arange(0, K)
    tl.debug_barrier()
    b_row = tl.load(p_inverse + k * K + o_k)
    factor = 1 / entry(b_row, k, K)
    b_v -= b_row * (factor * entry(b_v, k, K))
    b_w -= b_row * (factor * entry(b_w, k, K))
    add_square(p_inverse, p_work, b_row, -factor, used, K, ROWS)
    write_row(p_inverse, tl.zeros((K,), tl.float64), k, K)
    write_row(p_gram, tl.zeros((K,), tl.float64), k, K)
    return tl.where(o_k == k, 0.0, b_v), tl.where(o_k == k, 0.0, b_w)


@triton.jit
def entry(b_v, k, K: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, K) == k, b_v, 0.0), 0)


@triton.jit
def rebuild(p_gram, p_inverse, p_work, used, K: tl.constexpr, ROWS: tl.constexpr):
    """The inverse from the matrix alone, row by row."""
    o_k = tl.arange(0, K)
    clear(p_inverse, used, K, ROWS)
    for k in range(0, used):
        b_row = tl.load(p_gram + k * K + o_k)
        own = entry(b_row, k, K)
        if own > 0:
            b_row = tl.where(o_k < k, b_row, 0.0)
            b_v = times(p_inverse, p_work, b_row, used, K, ROWS)
            border(p_inverse, p_work, b_v, own - tl.sum(b_row * b_v, 0), k, used, K, ROWS)
