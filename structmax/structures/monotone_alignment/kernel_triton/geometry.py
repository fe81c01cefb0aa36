"""Which parts there are."""

import triton
import triton.language as tl


@triton.jit
def exists(o_i, o_j, n, m, band, DOWN: tl.constexpr, RIGHT: tl.constexpr, LOCAL: tl.constexpr):
    """Whether some path has the move from (i, j) by DOWN and RIGHT, or the cell, which counts as a diagonal move."""
    # A gap of a local alignment has matches on both sides.
    margin = 1 if LOCAL and DOWN + RIGHT == 1 else 0
    if not LOCAL:
        # a whole path ends at a place in the band
        n = tl.where(tl.abs(n - m) <= band, n, -1)
    m_inside = (o_i >= margin) & (o_j >= margin) & (o_i + (DOWN + margin) <= n) & (o_j + (RIGHT + margin) <= m)
    m_near = (tl.abs(o_i - o_j) <= band) & (tl.abs(o_i - o_j + (DOWN - RIGHT)) <= band)
    return m_inside & m_near
