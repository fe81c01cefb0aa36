"""Answers of which only few parts are not 0: cleared before those are marked."""

import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.logs import parts


@triton.jit(do_not_specialize=["cells", "blocks", "rows", "first"])
def _clear(
    p_out, p_lengths, p_value, cells, blocks, rows, first,
    INNER: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i_b = tl.program_id(0).to(tl.int64) // blocks
    # of the instance: short numbers are quickly divided
    o_cell = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(p_lengths + i_b)
    value = tl.load(p_value + i_b)
    last = first + o_cell // INNER % rows + o_cell // C % W
    b_none = parts(value, tl.zeros((BLOCK,), value.dtype), last < length)
    tl.store(p_out + i_b * cells + o_cell, b_none, mask=o_cell < cells)


def clear(
    out: Tensor, lengths: Tensor, value: Tensor, rows: int, inner: int, first: int = 0, widths: int = 1, labels: int = 1
) -> Tensor:
    """Fills with zeros an answer (B, …, rows, inner), or with NaN where that of an instance is and a part exists.

    Row n belongs to the position first + n; a part of it exists if that, plus the width in `inner` (widths, labels),
    is below the length.
    """
    cells = out[:1].numel()
    block = min(1024, 1 << max(0, cells - 1).bit_length())
    blocks = -(-cells // block)
    arguments = out, lengths, value, cells, blocks, rows, first
    launch(_clear, (len(out) * blocks,), arguments, (inner, widths, labels, block))
    return out
