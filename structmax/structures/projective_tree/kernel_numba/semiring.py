"""Sums of products over two contiguous rows, in three semirings: what every cell of the chart is made of.

LINEAR: numbers as they are, sums of products. LOG: logarithms, sums and logsumexp. BEST: scores, sums and maxima. Each
is a type of its own, so that a pass is compiled for each and asks nothing at run time.

Rows have PAD cells that hold the semiring's zero before their first and after their last cell. LINEAR and BEST work on
whole blocks and read past one end of the range they are given, where one of the two rows holds zeros: past the high end
in `dot`, past the low end in `dot_below`.
"""

import math
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from structmax.numerics.kernel_numba import compiled

# One cache line of float64; what a block may read too much.
PAD = 8


class Linear(NamedTuple):
    zero: float
    one: float


class Log(NamedTuple):
    zero: float
    one: float


class Best(NamedTuple):
    zero: float
    one: float


LINEAR, LOG, BEST = Linear(0.0, 1.0), Log(-math.inf, 0.0), Best(-math.inf, 0.0)

_VECTOR = ir.VectorType(ir.DoubleType(), PAD)

# --- exp in float64, of a number or of a block ---------------------------------------------------------------------

_LOG2_E = 1.4426950408889634
# log 2 in two parts: the first has few bits, so that its product with a small integer is exact.
_LOG_2_HIGH = 0.693147180369123816490
_LOG_2_LOW = 1.90821492927058770002e-10
# Adding 1.5 · 2⁵² leaves the nearest integer in the low bits of the pattern.
_ROUND = 6755399441055744.0
_ROUND_BITS = 0x4338000000000000
_EXPONENT_OF_ONE = 1023
_MANTISSA = 52
# 2^k stays a normal number.
_EXP_LOWEST = -700.0
# 1/k! for k = 13, 12, …, 2: the next term is below 4e-18 on |f| ≤ log(2)/2.
_SERIES = tuple(1 / math.factorial(k) for k in range(13, 1, -1))


def _multiply_add(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])


def _exp(builder, x):
    lanes = isinstance(x.type, ir.VectorType)
    integer = ir.VectorType(ir.IntType(64), PAD) if lanes else ir.IntType(64)

    def constant(value, kind=x.type):
        return ir.Constant(kind, [value] * PAD if lanes else value)

    lowest = constant(_EXP_LOWEST)
    y = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    shifted = _multiply_add(builder, y, constant(_LOG2_E), constant(_ROUND))
    k = builder.fsub(shifted, constant(_ROUND))
    f = _multiply_add(builder, k, constant(-_LOG_2_HIGH), y)
    f = _multiply_add(builder, k, constant(-_LOG_2_LOW), f)
    series = constant(_SERIES[0])
    for coefficient in _SERIES[1:]:
        series = _multiply_add(builder, f, series, constant(coefficient))
    series = builder.fadd(constant(1.0), _multiply_add(builder, builder.fmul(f, f), series, f))
    exponent = builder.sub(builder.bitcast(shifted, integer), constant(_ROUND_BITS - _EXPONENT_OF_ONE, integer))
    power = builder.bitcast(builder.shl(exponent, constant(_MANTISSA, integer)), x.type)
    forbidden = builder.fcmp_ordered("==", x, constant(-math.inf))
    return builder.select(forbidden, constant(0.0), builder.fmul(series, power))


@intrinsic
def exp(typingctx, x):
    """exp x for x ≤ 700; 0 at −inf, and exp(−700) below −700: never 0 for a finite x. LLVM can vectorise it."""

    def codegen(context, builder, signature, args):
        return _exp(builder, args[0])

    return types.float64(types.float64), codegen


# --- blocks --------------------------------------------------------------------------------------------------------


def _start(context, builder, array_type, array, row, column):
    """The address of array[row, column], as that of a block."""
    view = context.make_array(array_type)(context, builder, array)
    width = builder.extract_value(view.shape, 1)
    place = builder.add(builder.mul(row, width), column)
    return builder.bitcast(builder.gep(view.data, [place], inbounds=True), _VECTOR.as_pointer())


def _fold(context, builder, starts, count, firsts, step):
    """Fold `step(accumulators, *blocks)` over the blocks that cover `count` cells from each of `starts`."""
    initial = [ir.Constant(_VECTOR, [first] * PAD) for first in firsts]
    # Accumulators become registers.
    slots = [cgutils.alloca_once_value(builder, value) for value in initial]
    for slot, value in zip(slots, initial, strict=True):
        builder.store(value, slot)
    blocks = builder.sdiv(builder.add(count, ir.Constant(count.type, PAD - 1)), ir.Constant(count.type, PAD))
    with cgutils.for_range(builder, blocks) as loop:
        values = [builder.load(builder.gep(start, [loop.index]), align=8) for start in starts]
        for slot, value in zip(slots, step([builder.load(slot) for slot in slots], *values), strict=True):
            builder.store(value, slot)
    return [builder.load(slot) for slot in slots]


def _sum_of_lanes(builder, lanes):
    shape = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), _VECTOR])
    function = cgutils.get_or_insert_function(builder.module, shape, f"llvm.vector.reduce.fadd.v{PAD}f64")
    return builder.call(function, [ir.Constant(ir.DoubleType(), -0.0), lanes], fastmath=["reassoc"])


def _splat(builder, number):
    lone = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), PAD), [0] * PAD))


@intrinsic
def _block_dot(typingctx, a, i, x, b, j, y, count):
    """Σ a[i, x + k] · b[j, y + k] over k < count, rounded up to whole blocks."""

    def codegen(context, builder, signature, args):
        a, i, x, b, j, y, count = args
        starts = [
            _start(context, builder, signature.args[0], a, i, x),
            _start(context, builder, signature.args[3], b, j, y),
        ]

        def step(accumulators, left, right):
            return [_multiply_add(builder, left, right, accumulators[0])]

        (total,) = _fold(context, builder, starts, count, [0.0], step)
        return _sum_of_lanes(builder, total)

    return types.float64(a, types.intp, types.intp, b, types.intp, types.intp, types.intp), codegen


@intrinsic
def _block_dual_dot(typingctx, a, d_a, i, x, b, d_b, j, y, count):
    """Σ a b, and Σ a b (d_a + d_b), at [i, x + k] and [j, y + k] over k < count, rounded up to whole blocks."""

    def codegen(context, builder, signature, args):
        a, d_a, i, x, b, d_b, j, y, count = args
        starts = [
            _start(context, builder, signature.args[0], a, i, x),
            _start(context, builder, signature.args[1], d_a, i, x),
            _start(context, builder, signature.args[4], b, j, y),
            _start(context, builder, signature.args[5], d_b, j, y),
        ]

        def step(accumulators, left, d_left, right, d_right):
            total, moment = accumulators
            product = builder.fmul(left, right)
            return [
                builder.fadd(total, product),
                _multiply_add(builder, product, builder.fadd(d_left, d_right), moment),
            ]

        lanes = _fold(context, builder, starts, count, [0.0, 0.0], step)
        return context.make_tuple(builder, signature.return_type, [_sum_of_lanes(builder, each) for each in lanes])

    pair = types.UniTuple(types.float64, 2)
    return pair(a, d_a, types.intp, types.intp, b, d_b, types.intp, types.intp, types.intp), codegen


@intrinsic
def _block_exp_dot(typingctx, a, d_a, i, x, b, d_b, j, y, peak, count):
    """`_block_dual_dot` of the exponentials of a and b, divided by that of `peak`."""

    def codegen(context, builder, signature, args):
        a, d_a, i, x, b, d_b, j, y, peak, count = args
        starts = [
            _start(context, builder, signature.args[0], a, i, x),
            _start(context, builder, signature.args[1], d_a, i, x),
            _start(context, builder, signature.args[4], b, j, y),
            _start(context, builder, signature.args[5], d_b, j, y),
        ]
        peaks = _splat(builder, peak)

        def step(accumulators, left, d_left, right, d_right):
            total, moment = accumulators
            term = _exp(builder, builder.fsub(builder.fadd(left, right), peaks))
            return [
                builder.fadd(total, term),
                _multiply_add(builder, term, builder.fadd(d_left, d_right), moment),
            ]

        lanes = _fold(context, builder, starts, count, [0.0, 0.0], step)
        return context.make_tuple(builder, signature.return_type, [_sum_of_lanes(builder, each) for each in lanes])

    pair = types.UniTuple(types.float64, 2)
    return pair(a, d_a, types.intp, types.intp, b, d_b, types.intp, types.intp, types.float64, types.intp), codegen


@intrinsic
def _block_best(typingctx, a, i, x, b, j, y, count):
    """The largest of a[i, x + k] + b[j, y + k] over k < count, rounded up to whole blocks."""

    def codegen(context, builder, signature, args):
        a, i, x, b, j, y, count = args
        starts = [
            _start(context, builder, signature.args[0], a, i, x),
            _start(context, builder, signature.args[3], b, j, y),
        ]

        def step(accumulators, left, right):
            (best,) = accumulators
            total = builder.fadd(left, right)
            return [builder.select(builder.fcmp_ordered(">", total, best), total, best)]

        (best,) = _fold(context, builder, starts, count, [-math.inf], step)
        shape = ir.FunctionType(ir.DoubleType(), [_VECTOR])
        function = cgutils.get_or_insert_function(builder.module, shape, f"llvm.vector.reduce.fmax.v{PAD}f64")
        return builder.call(function, [best], fastmath=["nnan", "nsz"])

    return types.float64(a, types.intp, types.intp, b, types.intp, types.intp, types.intp), codegen


# --- the semirings -------------------------------------------------------------------------------------------------


@compiled()
def _log_dot(a, i, x, b, j, y, count):
    peak = _block_best(a, i, x, b, j, y, count)
    if peak == -np.inf:
        return peak
    # The cells serve as slopes that nobody asks for: LLVM leaves them out.
    total, _ = _block_exp_dot(a, a, i, x, b, b, j, y, peak, count)
    return peak + math.log(total)


@compiled()
def _log_dual_dot(a, d_a, i, x, b, d_b, j, y, count):
    peak = _block_best(a, i, x, b, j, y, count)
    if peak == -np.inf:
        return peak, 0.0
    total, moment = _block_exp_dot(a, d_a, i, x, b, d_b, j, y, peak, count)
    return peak + math.log(total), moment / total


@compiled()
def _linear_dual_dot(a, d_a, i, x, b, d_b, j, y, count):
    total, moment = _block_dual_dot(a, d_a, i, x, b, d_b, j, y, count)
    return total, moment / total if total > 0 else 0.0


def dot(semiring, a, i, x, b, j, y, count):
    """⊕ over k < count of a[i, x + k] ⊗ b[j, y + k], where cells past the high end may be read."""


def dual_dot(semiring, a, d_a, i, x, b, d_b, j, y, count):
    """`dot`, and the derivative of its logarithm from those of the cells."""


def times(semiring, a, b):
    """a ⊗ b"""


@overload(dot)
def _dot(semiring, a, i, x, b, j, y, count):
    if semiring.instance_class is Linear:
        return lambda semiring, a, i, x, b, j, y, count: _block_dot(a, i, x, b, j, y, count)
    if semiring.instance_class is Best:
        return lambda semiring, a, i, x, b, j, y, count: _block_best(a, i, x, b, j, y, count)
    return lambda semiring, a, i, x, b, j, y, count: _log_dot(a, i, x, b, j, y, count)


@overload(dual_dot)
def _dual_dot(semiring, a, d_a, i, x, b, d_b, j, y, count):
    if semiring.instance_class is Linear:
        return lambda semiring, a, d_a, i, x, b, d_b, j, y, count: _linear_dual_dot(a, d_a, i, x, b, d_b, j, y, count)
    return lambda semiring, a, d_a, i, x, b, d_b, j, y, count: _log_dual_dot(a, d_a, i, x, b, d_b, j, y, count)


@overload(times)
def _times(semiring, a, b):
    return (lambda semiring, a, b: a * b) if semiring.instance_class is Linear else (lambda semiring, a, b: a + b)


@compiled()
def dot_below(semiring, a, i, b, j, x, count):
    """⊕ over k < count of a[i, x + k] ⊗ b[j, x + k], where cells past the low end may be read."""
    spare = -count & (PAD - 1)
    return dot(semiring, a, i, x - spare, b, j, x - spare, count + spare)


@compiled()
def dual_dot_below(semiring, a, d_a, i, b, d_b, j, x, count):
    """`dot_below`, and the derivative of its logarithm from those of the cells."""
    spare = -count & (PAD - 1)
    return dual_dot(semiring, a, d_a, i, x - spare, b, d_b, j, x - spare, count + spare)
