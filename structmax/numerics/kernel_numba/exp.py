"""exp in float64 that LLVM can vectorise: a polynomial and a bit pattern instead of a call into libm."""

import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import fill, larger, multiply_add

_LOG2_E = 1.4426950408889634
# log 2 in two parts: the first has few bits, so that its product with a small integer is exact.
_LOG_2_HIGH = 0.693147180369123816490
_LOG_2_LOW = 1.90821492927058770002e-10
# Adding 1.5 · 2⁵² leaves the nearest integer in the low bits of the pattern.
_ROUND = 6755399441055744.0
_ROUND_BITS = 0x4338000000000000
# 2^k stays a normal number above.
_LOWEST = -708.0
_LOWEST_POSITIVE = -700.0
_MANTISSA = 52
_EXPONENT_OF_ONE = 1023
# 1/n!: the terms from f² to f¹³ of |f| ≤ log(2)/2, the rest is below 2⁻⁵⁸
_SERIES = [1 / math.factorial(n) for n in range(2, 14)]


def _exp(builder, x):
    """exp x for −708 ≤ x ≤ 709, a number or a vector."""
    integer = ir.VectorType(ir.IntType(64), x.type.count) if isinstance(x.type, ir.VectorType) else ir.IntType(64)

    def add(a, b, c):
        return multiply_add(builder, a, b, c)

    shifted = add(x, fill(x.type, _LOG2_E), fill(x.type, _ROUND))
    k = builder.fsub(shifted, fill(x.type, _ROUND))
    f = add(k, fill(x.type, -_LOG_2_LOW), add(k, fill(x.type, -_LOG_2_HIGH), x))
    ff = builder.fmul(f, f)
    # Pairs of terms, so that fewer multiplications wait for one another.
    pairs = [
        add(f, fill(x.type, odd), fill(x.type, even)) for even, odd in zip(_SERIES[::2], _SERIES[1::2], strict=True)
    ]
    low, high = (add(ff, add(ff, third, second), first) for first, second, third in (pairs[:3], pairs[3:]))
    sixth = builder.fmul(builder.fmul(ff, ff), ff)
    series = builder.fadd(fill(x.type, 1.0), add(ff, add(sixth, high, low), f))
    exponent = builder.sub(builder.bitcast(shifted, integer), fill(integer, _ROUND_BITS - _EXPONENT_OF_ONE))
    return builder.fmul(series, builder.bitcast(builder.shl(exponent, fill(integer, _MANTISSA)), x.type))


def emit_positive_exp(builder, x):
    """See `positive_exp`; x is a number or a vector."""
    power = _exp(builder, larger(builder, fill(x.type, _LOWEST_POSITIVE), x))
    return builder.select(builder.fcmp_ordered("==", x, fill(x.type, -math.inf)), fill(x.type, 0.0), power)


def _emit_exp(builder, x):
    below = builder.fcmp_ordered("<", x, fill(x.type, _LOWEST))
    return builder.select(below, fill(x.type, 0.0), _exp(builder, x))


def _of_a_number(emit):
    @intrinsic
    def of_a_number(typingctx, x):
        def codegen(context, builder, signature, args):
            return emit(builder, args[0])

        return types.float64(types.float64), codegen

    return of_a_number


_exp_number, _positive_exp_number = _of_a_number(_emit_exp), _of_a_number(emit_positive_exp)

# Functions of their own: what the caller allows LLVM, such as "reassoc", would undo the rounding by a large constant.


@compiled()
def exp(x):
    """exp x for x ≤ 709, −inf too; 0 below −708."""
    return _exp_number(x)


@compiled()
def positive_exp(x):
    """exp x for x ≤ 700; 0 at −inf, and exp(−700) below −700: never 0 for a finite x."""
    return _positive_exp_number(x)
