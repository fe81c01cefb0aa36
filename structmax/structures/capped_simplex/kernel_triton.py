"""Probabilities with bounds on CUDA, in one launch: a program for each row, in float64. Derivations: README.md.

Nothing is sorted. The breakpoint at which the mass passes the total is found as in quickselect: of those between the
last known to have more mass and the first known to have less, the one nearest to their mean is looked at next, so that
about half of them go. Where entries are then follows from the order of breakpoints alone.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from structmax.contract import returns
from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.lanes import first_lane, pick

# As in reference.py: below this fraction of their size, a gap between a mass and the total is none.
SLACK = tl.constexpr(2.0**-46)
# Longest row that a program has lanes for, and how many a warp has.
LARGEST, PER_WARP = 4096, 256


@triton.jit
def _breakpoints(x, bound, SOFT: tl.constexpr):
    """Offset and place of the breakpoint x − offset, and what rounding took from the place."""
    offset = bound
    if SOFT:
        offset = tl.where(bound > 0, tl.log(tl.where(bound > 0, bound, 1.0)), float("-inf"))
    place = x - offset
    taken = x - place
    lost = (x - (place + taken)) + (taken - offset)
    # nothing where the offset is infinite
    return offset, place, tl.where(lost == lost, lost, 0.0)


@triton.jit
def _after(place, lost, at, at_lost):
    """Whether a breakpoint comes after another."""
    return (place > at) | ((place == at) & (lost > at_lost))


@triton.jit
def _before(place, lost, at, at_lost):
    return (place < at) | ((place == at) & (lost < at_lost))


@triton.jit
def _share(m_open, place, count):
    """What the finite places of open breakpoints add to their mean."""
    m_finite = m_open & (tl.abs(place) < float("inf"))
    return tl.sum(tl.where(m_finite, place, 0.0) / count)


@triton.jit
def _distance(m_open, place, mean):
    """From the mean, finite for every open breakpoint."""
    return tl.where(m_open, tl.minimum(tl.abs(place - mean), 1.7e308), float("inf"))


@triton.jit
def _last_above(
    x, lower, upper, limit, low, low_lost,
    upper_offset, upper_place, upper_lost, lower_offset, lower_place, lower_lost, m_lane,
    SOFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Place of the last breakpoint with more mass than `limit`, and what rounding took; it is not before (low, …)."""
    o_lane = tl.arange(0, BLOCK)
    high = limit * 0.0 + float("inf")
    high_lost = high
    m_upper = m_lane & _after(upper_place, upper_lost, low, low_lost)
    m_lower = m_lane & _after(lower_place, lower_lost, low, low_lost)
    left = tl.sum(tl.where(m_upper, 1, 0)) + tl.sum(tl.where(m_lower, 1, 0))
    while left > 0:
        mean = _share(m_upper, upper_place, left) + _share(m_lower, lower_place, left)
        far_upper, far_lower = _distance(m_upper, upper_place, mean), _distance(m_lower, lower_place, mean)
        nearest, other = tl.min(far_upper), tl.min(far_lower)
        of_upper = nearest <= other
        far = tl.where(of_upper, far_upper, far_lower)
        m_open = tl.where(of_upper, m_upper, m_lower)
        j = first_lane(m_open & (far == tl.minimum(nearest, other)), o_lane, BLOCK)
        score, offset = pick(x, o_lane, j), pick(tl.where(of_upper, upper_offset, lower_offset), o_lane, j)
        place = pick(tl.where(of_upper, upper_place, lower_place), o_lane, j)
        lost = pick(tl.where(of_upper, upper_lost, lower_lost), o_lane, j)
        inner = (x - score) + offset
        if SOFT:
            inner = tl.exp(inner)
        mass = tl.sum(tl.where(m_lane, tl.minimum(tl.maximum(inner, lower), upper), 0.0))
        above = mass > limit
        low, low_lost = tl.where(above, place, low), tl.where(above, lost, low_lost)
        high, high_lost = tl.where(above, high, place), tl.where(above, high_lost, lost)
        m_upper &= _after(upper_place, upper_lost, low, low_lost) & _before(upper_place, upper_lost, high, high_lost)
        m_lower &= _after(lower_place, lower_lost, low, low_lost) & _before(lower_place, lower_lost, high, high_lost)
        left = tl.sum(tl.where(m_upper, 1, 0)) + tl.sum(tl.where(m_lower, 1, 0))
    return low, low_lost


@triton.jit(do_not_specialize=["n"])
def _solve(p_x, p_lower, p_upper, p_total, p_out, p_bound, n, SOFT: tl.constexpr, BLOCK: tl.constexpr):
    i_row = tl.program_id(0).to(tl.int64)
    o_lane = tl.arange(0, BLOCK)
    m_lane = o_lane < n
    place_in = i_row * n + o_lane
    x = tl.load(p_x + place_in, mask=m_lane, other=0.0).to(tl.float64)
    lower = tl.load(p_lower + place_in, mask=m_lane, other=0.0).to(tl.float64)
    upper = tl.load(p_upper + place_in, mask=m_lane, other=0.0).to(tl.float64)
    total = tl.load(p_total + i_row).to(tl.float64)
    broken = tl.max(tl.where(x < float("inf"), 0, 1)) > 0
    # Differences of scores stay finite.
    largest = 4.4e307
    x = tl.where(broken | (x == float("-inf")), 0.0, tl.minimum(tl.maximum(x, -largest), largest))
    upper_offset, upper_place, upper_lost = _breakpoints(x, upper, SOFT)
    lower_offset, lower_place, lower_lost = _breakpoints(x, lower, SOFT)

    # τ is where rounding cannot tell: just after the last breakpoint with more mass than the total, until just after
    # the last with as much.
    size = tl.sum(tl.where(tl.abs(lower) < float("inf"), tl.abs(lower), 0.0)) + tl.abs(total)
    none = total * 0.0 + float("-inf")
    first, first_lost = _last_above(
        x, lower, upper, total + SLACK * size, none, none,
        upper_offset, upper_place, upper_lost, lower_offset, lower_place, lower_lost, m_lane, SOFT, BLOCK,
    )  # fmt: skip
    last, last_lost = _last_above(
        x, lower, upper, total - SLACK * size, first, first_lost,
        upper_offset, upper_place, upper_lost, lower_offset, lower_place, lower_lost, m_lane, SOFT, BLOCK,
    )  # fmt: skip
    m_upper = m_lane & _after(upper_place, upper_lost, first, first_lost)
    m_lower = m_lane & (m_upper == 0) & (_after(lower_place, lower_lost, last, last_lost) == 0)
    m_free = m_lane & (m_upper == 0) & (m_lower == 0)
    held = tl.where(m_upper, upper, tl.where(m_lower, lower, 0.0))
    rest = total - tl.sum(held)

    # Measured from the greatest free score, nothing overflows, and not all underflows.
    peak = tl.max(tl.where(m_free, x, float("-inf")))
    z = tl.where(m_free, x - tl.where(peak > float("-inf"), peak, 0.0), 0.0)
    if SOFT:
        weight = tl.where(m_free, tl.exp(z), 0.0)
        mass = tl.sum(weight)
        inner = weight * rest / tl.where(mass > 0, mass, 1.0)
    else:
        count = tl.maximum(tl.sum(tl.where(m_free, 1, 0)), 1)
        inner = tl.where(m_free, z - (tl.sum(z) - rest) / count, 0.0)
        # once more on the residual: scores far apart have cost digits above
        inner = inner - (tl.sum(inner) - rest) / count
    p = tl.where(m_free, tl.minimum(tl.maximum(inner, lower), upper), held)
    p = tl.where(broken, float("nan"), p)
    tl.store(p_out + place_in, p.to(p_out.dtype.element_ty), mask=m_lane)
    bound = tl.where(m_upper, 1, 0) - tl.where(m_lower, 1, 0)
    tl.store(p_bound + place_in, bound.to(tl.int8), mask=m_lane)


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    return f"a program has lanes for {LARGEST} entries" if tensors[0].shape[1] > LARGEST else None


def _capped(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor, soft: bool) -> tuple[Tensor, Tensor]:
    B, n = x.shape
    p, bound = torch.empty_like(x), torch.empty_like(x, dtype=torch.int8)
    if x.numel():
        block = max(32, 1 << (n - 1).bit_length())
        launch(_solve, (B,), (x, lower, upper, total, p, bound, n), (soft, block), max(1, block // PER_WARP))
    return p, bound


@returns("parts", "parts:int8")
def csparsemax(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return _capped(x, lower, upper, total, soft=False)


@returns("parts", "parts:int8")
def csoftmax(x: Tensor, lower: Tensor, upper: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    return _capped(x, lower, upper, total, soft=True)
