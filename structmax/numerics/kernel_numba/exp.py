"""exp that LLVM can vectorise: a polynomial and a bit pattern instead of a call into libm."""

import math
from functools import reduce
from typing import NamedTuple

from llvmlite import ir
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import fill, larger, multiply_add

_LOG2_E = 1.4426950408889634


class _Format(NamedTuple):
    """Floating point of so many bits, of which `mantissa` are digits."""

    bits: int
    mantissa: int
    # log 2 in two parts: the first has few bits, so that its product with a small integer is exact
    log_2_high: float
    log_2_low: float
    # 2^k stays a normal number above
    lowest: float
    # exp f = 1 + f + f² P(f) on |f| ≤ log(2)/2
    series: list[float]

    @property
    def exponent_of_one(self) -> int:
        return (1 << (self.bits - self.mantissa - 2)) - 1

    @property
    def round(self) -> float:
        """1.5 · 2^mantissa: adding it leaves the nearest integer in the low bits of the pattern."""
        return 1.5 * 2.0**self.mantissa

    @property
    def round_bits(self) -> int:
        return (self.exponent_of_one + self.mantissa) << self.mantissa | 1 << (self.mantissa - 1)


# relative error 5e-9
_SHORT = [0.49999994, 0.16666515, 0.041668456, 0.0083694197, 0.0013813140]
# 1/n!: the terms up to f¹³, the rest is below 2⁻⁵⁸
_LONG = [1 / math.factorial(n) for n in range(2, 14)]
_FORMATS = {
    ir.FloatType: _Format(32, 23, 0.693359375, -2.12194440054690583e-4, -87.0, _SHORT),
    ir.DoubleType: _Format(64, 52, 0.693147180369123816490, 1.90821492927058770002e-10, -708.0, _LONG),
}
_LOWEST_POSITIVE = -700.0


def _format_of(kind):
    return _FORMATS[type(kind.element if isinstance(kind, ir.VectorType) else kind)]


def _exp(builder, x):
    """exp x for `lowest` ≤ x ≤ 88, in float64 ≤ 709; a number or a vector."""
    form = _format_of(x.type)
    word = ir.IntType(form.bits)
    integer = ir.VectorType(word, x.type.count) if isinstance(x.type, ir.VectorType) else word

    def add(a, b, c):
        return multiply_add(builder, a, b, c)

    shifted = add(x, fill(x.type, _LOG2_E), fill(x.type, form.round))
    k = builder.fsub(shifted, fill(x.type, form.round))
    f = add(k, fill(x.type, -form.log_2_low), add(k, fill(x.type, -form.log_2_high), x))
    series = builder.fadd(fill(x.type, 1.0), add(builder.fmul(f, f), _polynomial(builder, f, form.series), f))
    exponent = builder.sub(builder.bitcast(shifted, integer), fill(integer, form.round_bits - form.exponent_of_one))
    return builder.fmul(series, builder.bitcast(builder.shl(exponent, fill(integer, form.mantissa)), x.type))


def _polynomial(builder, f, coefficients):
    """Σ c fⁿ by pairs of terms, and three pairs at a time, so that fewer multiplications wait for one another."""
    constants = [fill(f.type, c) for c in coefficients]
    pairs = [multiply_add(builder, f, odd, even) for even, odd in zip(constants[::2], constants[1::2], strict=False)]
    pairs += constants[2 * len(pairs) :]
    square = builder.fmul(f, f)

    def combine(power, terms):
        return reduce(lambda total, term: multiply_add(builder, power, total, term), reversed(terms))

    threes = [combine(square, pairs[i : i + 3]) for i in range(0, len(pairs), 3)]
    return combine(builder.fmul(builder.fmul(square, square), square), threes)


def emit_positive_exp(builder, x):
    """See `positive_exp`; x is a number or a vector, in float64."""
    power = _exp(builder, larger(builder, fill(x.type, _LOWEST_POSITIVE), x))
    return builder.select(builder.fcmp_ordered("==", x, fill(x.type, -math.inf)), fill(x.type, 0.0), power)


def emit_exp(builder, x):
    """See `exp`; x is a number or a vector."""
    below = builder.fcmp_ordered("<", x, fill(x.type, _format_of(x.type).lowest))
    return builder.select(below, fill(x.type, 0.0), _exp(builder, x))


def _of_a_number(emit):
    @intrinsic
    def of_a_number(typingctx, x):
        def codegen(context, builder, signature, args):
            return emit(builder, args[0])

        return x(x), codegen

    return of_a_number


_exp_number, _positive_exp_number = _of_a_number(emit_exp), _of_a_number(emit_positive_exp)

# Functions of their own: what the caller allows LLVM, such as "reassoc", would undo the rounding by a large constant.


@compiled()
def exp(x):
    """exp x for x ≤ 709, −inf too; 0 below −708. In float32 for x ≤ 88, and 0 below −87."""
    return _exp_number(x)


@compiled()
def positive_exp(x):
    """exp x for x ≤ 700; 0 at −inf, and exp(−700) below −700: never 0 for a finite x."""
    return _positive_exp_number(x)
