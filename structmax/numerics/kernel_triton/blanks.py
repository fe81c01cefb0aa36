"""Answers of which only few parts are not 0: cleared before those are marked."""

import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.logs import parts

BLOCK = 4096


@triton.jit(do_not_specialize=["cells", "each", "rows", "first"])
def _clear(
    p_out, p_lengths, p_value, cells, each, rows, first,
    INNER: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    o_cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m_cell = o_cell < cells
    i_b = o_cell // each
    length = tl.load(p_lengths + i_b, mask=m_cell, other=0)
    value = tl.load(p_value + i_b, mask=m_cell, other=0.0)
    last = first + o_cell // INNER % rows + o_cell // C % W
    tl.store(p_out + o_cell, parts(value, tl.zeros((BLOCK,), value.dtype), last < length), mask=m_cell)


def clear(
    out: Tensor, lengths: Tensor, value: Tensor, rows: int, inner: int, first: int = 0, widths: int = 1, labels: int = 1
) -> Tensor:
    """Fills with zeros an answer (B, …, rows, inner), or with NaN where that of an instance is and a part exists.

    Row n belongs to the position first + n; a part of it exists if that, plus the width in `inner` (widths, labels),
    is below the length.
    """
    cells = out.numel()
    each = cells // max(1, len(lengths))
    launch(_clear, (-(-cells // BLOCK),), (out, lengths, value, cells, each, rows, first), (inner, widths, labels, BLOCK))
    return out
