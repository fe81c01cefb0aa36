"""Answers of which few parts are not 0: cleared before those are marked, or filled with counts."""

import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.logs import parts


@triton.jit(do_not_specialize=["draws", "cells", "blocks", "rows", "first"])
def _fill(
    p_out, p_count, p_lengths, p_value, draws, cells, blocks, rows, first,
    COUNTED: tl.constexpr, INNER: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i_draw = tl.program_id(0).to(tl.int64) // blocks
    # of the draw: short numbers are quickly divided
    o_cell = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(p_lengths + i_draw // draws)
    value = tl.load(p_value + i_draw // draws)
    last = first + o_cell // INNER % rows + o_cell // C % W
    m_cell = o_cell < cells
    b_count = tl.zeros((BLOCK,), value.dtype)
    if COUNTED:
        b_count = tl.load(p_count + i_draw * cells + o_cell, mask=m_cell, other=0).to(value.dtype)
    tl.store(p_out + i_draw * cells + o_cell, parts(value, b_count, last < length), mask=m_cell)


def fill(
    out: Tensor,
    lengths: Tensor,
    value: Tensor,
    rows: int,
    inner: int,
    first: int = 0,
    widths: int = 1,
    labels: int = 1,
    counts: Tensor | None = None,
) -> Tensor:
    """Fills an answer (B, S, rows, inner) with zeros or counts, or with NaN where that of an instance is.

    Row n belongs to the position first + n; a part of it exists if that, plus the width in `inner` (widths, labels),
    is below the length. The rest is 0.
    """
    draws, cells = out.shape[1], out[:1, :1].numel()
    block = min(1024, 1 << max(0, cells - 1).bit_length())
    blocks = -(-cells // block)
    arguments = out, counts, lengths, value, draws, cells, blocks, rows, first
    constants = counts is not None, inner, widths, labels, block
    launch(_fill, (len(out) * draws * blocks,), arguments, constants)
    return out
