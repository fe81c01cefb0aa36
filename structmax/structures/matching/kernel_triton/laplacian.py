"""The Laplacian system of a relaxed matching: one program for each instance. Derivations: ../README.md.

The steps are those of `_solve_sums` in transport.py: columns are eliminated at once, then rows from the last to the
first, and numbers are only ever added. All is in float64; couplings of rows are in memory, n steps read and write them.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.lanes import pick

# Below this fraction of the weights of a row, a pivot is smaller than the rounding of what it divides.
NO_PIVOT = tl.constexpr(2.0**-46)
# Lines of memory: what ties a row down, its right side and then its potential, the least pivot, whether its sum is
# held; and the share of each column.
GROUND, RIGHT, LEAST, HELD, SHARE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3), tl.constexpr(4)


@triton.jit
def _load(p_table, o_row, o_lane, M, r, c):
    """A tile of an instance in float64, 0 outside of it."""
    m_inside = (o_row < r) & (o_lane < c)
    return tl.load(p_table + o_row * M + o_lane, mask=m_inside, other=0.0).to(tl.float64)


@triton.jit
def eliminate(
    p_parts, of_item, of_line, n, m, heights, lift, p_couplings, pitch, p_lines, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Potentials of n items coupled by m lines, which the first five lines of memory describe: (1, BLOCK).

    Items and lines are so far apart among the parts. Items that are not held are ground at their heights; the others
    are tied to ground by `lift`, too. Potentials are left in memory as well.
    """
    o_lane = tl.arange(0, BLOCK)[None, :]
    held = tl.load(p_lines + HELD * BLOCK + o_lane, mask=o_lane < n, other=0.0)
    for start in range(0, n, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        m_line = o_row < n
        b_coupling = tl.zeros((ROWS, BLOCK), tl.float64)
        for j in range(m):
            share = tl.load(p_lines + SHARE * BLOCK + j)
            p_line = p_parts + j * of_line
            b_one = tl.load(p_line + o_row * of_item, mask=m_line, other=0.0).to(tl.float64)
            b_other = tl.load(p_line + o_lane * of_item, mask=o_lane < n, other=0.0).to(tl.float64)
            b_coupling += (b_one * share) * b_other
        own = tl.load(p_lines + HELD * BLOCK + o_row, mask=m_line, other=0.0)
        ground = tl.load(p_lines + GROUND * BLOCK + o_row, mask=m_line, other=0.0)
        right = tl.load(p_lines + RIGHT * BLOCK + o_row, mask=m_line, other=0.0)
        b_free = tl.where(held == 0, b_coupling, 0.0)
        ground += tl.sum(b_free, 1, keep_dims=True) + lift
        right += tl.sum(b_free * heights, 1, keep_dims=True)
        tl.debug_barrier()
        tl.store(p_lines + GROUND * BLOCK + o_row, own * ground, mask=m_line)
        tl.store(p_lines + RIGHT * BLOCK + o_row, own * right, mask=m_line)
        tl.store(p_couplings + o_row * pitch + o_lane, own * held * b_coupling, mask=m_line & (o_lane < n))
    tl.debug_barrier()

    # From the last to the first: neighbours of an item are joined in proportion.
    a = tl.zeros((1, BLOCK), tl.float64)
    pivots = tl.full((1, BLOCK), float("inf"), tl.float64)
    for i in range(n):
        k = n - 1 - i
        m_left = o_lane < k
        row = tl.load(p_couplings + k * pitch + o_lane, mask=m_left, other=0.0)
        ground, own = tl.load(p_lines + GROUND * BLOCK + k), tl.load(p_lines + RIGHT * BLOCK + k)
        whole = ground + tl.sum(row)
        # A component without ground: its last row stays at 0.
        pivot = tl.where(whole > tl.load(p_lines + LEAST * BLOCK + k), whole, float("inf"))
        grounds = tl.load(p_lines + GROUND * BLOCK + o_lane, mask=m_left, other=0.0)
        rights = tl.load(p_lines + RIGHT * BLOCK + o_lane, mask=m_left, other=0.0)
        tl.store(p_lines + GROUND * BLOCK + o_lane, grounds + row / pivot * ground, mask=m_left)
        tl.store(p_lines + RIGHT * BLOCK + o_lane, rights + row / pivot * own, mask=m_left)
        a = tl.where(o_lane == k, own, a)
        pivots = tl.where(o_lane == k, pivot, pivots)
        for start in range(0, k, ROWS):
            o_row = start + tl.arange(0, ROWS)[:, None]
            m_tile = (o_row < k) & m_left
            part = tl.load(p_couplings + k * pitch + o_row, mask=o_row < k, other=0.0) / pivot
            b_coupling = tl.load(p_couplings + o_row * pitch + o_lane, mask=m_tile, other=0.0)
            tl.store(p_couplings + o_row * pitch + o_lane, b_coupling + part * row, mask=m_tile)
        tl.debug_barrier()
    for k in range(n):
        row = tl.load(p_couplings + k * pitch + o_lane, mask=o_lane < k, other=0.0)
        found = (pick(a, o_lane, k) + tl.sum(row * a)) / tl.min(tl.where(o_lane == k, pivots, float("inf")))
        a = tl.where(o_lane == k, found, a)
    tl.store(p_lines + RIGHT * BLOCK + o_lane, a)
    tl.debug_barrier()
    return a


@triton.jit(do_not_specialize=["N", "M"])
def solve_sums(
    p_parts, p_x, p_rows, p_columns, p_couplings, p_lines, p_out, N, M, one: tl.float64,
    PARTIAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """a ⊕ b, such that D ∘ (a ⊕ b) has the sums of x where they are held. A sum above `one` counts as 1."""
    i_instance = tl.program_id(0).to(tl.int64)
    r, c = tl.load(p_rows + i_instance).to(tl.int32), tl.load(p_columns + i_instance).to(tl.int32)
    p_parts += i_instance * N * M
    p_x += i_instance * N * M
    p_out += i_instance * N * M
    p_couplings += i_instance * N * N
    p_lines += i_instance * 5 * BLOCK
    o_lane = tl.arange(0, BLOCK)[None, :]

    # Columns: their sums, which of these are held, and the potentials that they would have alone
    lines = tl.zeros((1, BLOCK), tl.float64)
    right = tl.zeros((1, BLOCK), tl.float64)
    broken = r * 0
    for start in range(0, r, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        b_part = _load(p_parts, o_row, o_lane, M, r, c)
        broken += tl.sum(tl.where(b_part == b_part, 0, 1))
        lines += tl.sum(b_part, 0, keep_dims=True)
        right += tl.sum(_load(p_x, o_row, o_lane, M, r, c), 0, keep_dims=True)
    m_held = (lines > one) & (o_lane < c)
    if not PARTIAL:
        m_held |= (o_lane < c) & (c <= r)
    m_held &= lines > 0
    share = tl.where(m_held, 1.0 / tl.where(m_held, lines, 1.0), 0.0)
    alone = right * share
    tl.store(p_lines + SHARE * BLOCK + o_lane, share)

    # Rows: what columns that are not held tie down, and the right sides that columns leave
    for start in range(0, r, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        b_part = _load(p_parts, o_row, o_lane, M, r, c)
        whole = tl.sum(b_part, 1, keep_dims=True)
        m_row = (whole > one) & (o_row < r)
        if not PARTIAL:
            m_row |= (o_row < r) & (r <= c)
        left = tl.sum(_load(p_x, o_row, o_lane, M, r, c) - b_part * alone, 1, keep_dims=True)
        tied = tl.sum(tl.where(share == 0, b_part, 0.0), 1, keep_dims=True)
        m_line = o_row < r
        tl.store(p_lines + GROUND * BLOCK + o_row, tied, mask=m_line)
        tl.store(p_lines + RIGHT * BLOCK + o_row, tl.where(m_row, left, 0.0), mask=m_line)
        tl.store(p_lines + LEAST * BLOCK + o_row, whole * NO_PIVOT, mask=m_line)
        tl.store(p_lines + HELD * BLOCK + o_row, tl.where(m_row, 1.0, 0.0), mask=m_line)
    tl.debug_barrier()

    eliminate(p_parts, M, 1, r, c, 0.0, 0.0, p_couplings, N, p_lines, ROWS, BLOCK)

    pull = tl.zeros((1, BLOCK), tl.float64)
    for start in range(0, r, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        own = tl.load(p_lines + RIGHT * BLOCK + o_row, mask=o_row < r, other=0.0)
        pull += tl.sum(_load(p_parts, o_row, o_lane, M, r, c) * own, 0, keep_dims=True)
    b = tl.where(share > 0, alone - pull * share, 0.0)
    nothing = tl.where(broken > 0, float("nan"), 0.0)
    for start in range(0, N, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        own = tl.load(p_lines + RIGHT * BLOCK + o_row, mask=o_row < r, other=0.0)
        b_out = tl.where((o_row < r) & (o_lane < c), own + b + nothing, 0.0)
        tl.store(p_out + o_row * M + o_lane, b_out.to(p_out.dtype.element_ty), mask=(o_row < N) & (o_lane < M))
