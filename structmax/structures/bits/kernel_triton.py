"""Independent bits in Triton: one launch for a question, which reads each score twice. Derivations: README.md.

A program has some rows, and goes over their items twice: what they sum up to and whether one of them is NaN or +inf,
then what becomes of each. The second time they are in the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.numerics.kernel_triton import launch

# One operator of torch.
from structmax.structures.bits.reference import project_jvp  # noqa: F401

# Scores of a tile, and how many of them a warp has.
TILE, PER_WARP = 1024, 256


@triton.jit
def _items(
    p_x, p_other, p_lengths, p_value, p_out, rows, draws, n,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """What KIND asks of rows of scores (B, n), each of which stands for as many rows of the output as there are draws.

    Sums are float64, whatever the scores are.
    """
    WORK: tl.constexpr = p_x.dtype.element_ty
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    m_row = o_row < rows
    o_b = o_row // draws
    o_length = tl.load(p_lengths + o_b, mask=m_row, other=0)
    b_total = tl.zeros((ROWS, 1), tl.float64)
    b_broken = tl.zeros((ROWS, 1), tl.int32)
    for first in range(0, n, COLUMNS):
        o_item = first + tl.arange(0, COLUMNS)[None, :]
        m_item = o_item < o_length
        b_x = tl.load(p_x + o_b * n + o_item, mask=m_item, other=float("-inf"))
        b_broken = tl.maximum(b_broken, tl.max((~(b_x < float("inf"))).to(tl.int32), 1, keep_dims=True))
        b_part = tl.where(b_x > 0, b_x, 0.0).to(tl.float64)
        if KIND == "marginals" or KIND == "value":
            # log(1 + exp x)
            b_part += tl.log(1 + tl.exp(-tl.abs(b_x))).to(tl.float64)
        b_total += tl.sum(b_part, 1, keep_dims=True)
    b_total = tl.where(b_broken > 0, float("nan"), b_total)
    if KIND == "marginals" or KIND == "value":
        tl.store(p_value + o_row, b_total.to(WORK), mask=m_row)
    if KIND != "value":
        for first in range(0, n, COLUMNS):
            o_item = first + tl.arange(0, COLUMNS)[None, :]
            m_item = o_item < o_length
            m_out = m_row & (o_item < n)
            b_x = tl.load(p_x + o_b * n + o_item, mask=m_item, other=float("-inf"))
            b_low = tl.exp(-tl.abs(b_x))
            b_share = 1 / (1 + b_low)
            b_p = tl.where(b_x > 0, b_share, b_low * b_share)
            if KIND == "marginals":
                b_out = b_p
            elif KIND == "tangent":
                b_variance = b_low * b_share * b_share
                b_tangent = tl.load(p_other + o_row * n + o_item, mask=m_item, other=0.0)
                b_out = tl.where(b_variance > 0, b_variance * b_tangent, 0.0)
            elif KIND == "sample":
                b_noise = tl.load(p_other + o_row * n + o_item, mask=m_item, other=1.0)
                b_out = (b_noise < b_p).to(WORK)
            elif KIND == "max":
                b_out = (b_x > 0).to(WORK)
            elif KIND == "best":
                b_out = (b_total + tl.where(b_x > 0, 0.0, b_x)).to(WORK)
            else:
                b_out = tl.where(b_x > 0, tl.minimum(b_x, 1.0), 0.0)
            b_out = tl.where(m_item & (b_broken > 0), float("nan"), b_out)
            tl.store(p_out + o_row * n + o_item, b_out, mask=m_out)


def _ask(
    kind: str,
    x: Tensor,
    lengths: Tensor,
    other: Tensor | None = None,
    value: Tensor | None = None,
    out: Tensor | None = None,
) -> None:
    n = x.shape[1]
    rows = len(x) if out is None else out.numel() // n
    columns = min(TILE, triton.next_power_of_2(n))
    together = TILE // columns
    arguments = x, other, lengths, value, out, rows, rows // max(1, len(x)), n
    launch(_items, (-(-rows // together),), arguments, (kind, together, columns), TILE // PER_WARP)


def log_partition(x: Tensor, lengths: Tensor) -> Tensor:
    value = x.new_empty(len(x))
    _ask("value", x, lengths, value=value)
    return value


def log_partition_and_marginals(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    value, mu = x.new_empty(len(x)), torch.empty_like(x)
    _ask("marginals", x, lengths, value=value, out=mu)
    return value, mu


def marginals_jvp(x: Tensor, tangent: Tensor, lengths: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _ask("tangent", x, lengths, tangent, out=out)
    return out


def argmax(x: Tensor, lengths: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _ask("max", x, lengths, out=out)
    return out


def max_marginals(x: Tensor, lengths: Tensor) -> Tensor:
    """Every other item as it is best, and this one in."""
    out = torch.empty_like(x)
    _ask("best", x, lengths, out=out)
    return out


def sample(x: Tensor, noise: Tensor, lengths: Tensor) -> Tensor:
    """The item's own uniform number is below its probability: (B, S, n)."""
    out = x.new_empty(noise.shape)
    _ask("sample", x, lengths, noise, out=out)
    return out


def project(x: Tensor, lengths: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _ask("project", x, lengths, out=out)
    return out
