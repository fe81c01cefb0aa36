"""Arithmetic on vectors of BLOCK lanes, with numbers of any magnitude.

A number is mantissa · 2^exponent, with both as floats: the exponent is whole, the mantissa is 0 or in [1, 2). Sums and
products of such numbers neither overflow nor underflow, and ask for no logarithm.

`step` makes a compiled function of a Python function over `Lanes`, whose operators emit vector instructions. Loops are
not left to LLVM, which cannot know that arrays do not overlap, and would not vectorise them.
"""

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.vector import BLOCK

# The exponent of 0 in float32 and in float64: below any other, also after some steps.
NOTHING = {32: -1e30, 64: -1e300}
# Scores in float64 are cut here, so that their sums stay above the exponent of 0.
LARGEST = 1e290


class Format:
    """What depends on the width of a float."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.bits = ir.VectorType(ir.IntType(width), BLOCK)
        self.type = ir.VectorType(ir.FloatType() if width == 32 else ir.DoubleType(), BLOCK)
        self.fraction = 23 if width == 32 else 52
        self.bias = 127 if width == 32 else 1023
        # Adding this leaves a whole number in the low bits of the pattern.
        self.round = 1.5 * 2.0**self.fraction
        # log 2 in two parts: the first has few bits, so that its product with a small whole number is exact.
        self.log_2_high = 0.693359375 if width == 32 else 0.693147180369123816490
        self.log_2_low = -2.12194440054690583e-4 if width == 32 else 1.90821492927058770002e-10
        # exp f as a power series for |f| ≤ log(2)/2
        self.series = [1 / math.factorial(n) for n in range(8 if width == 32 else 14)]
        # Shares below 2^lowest count as 0, so that no product of two of them is a denormal number.
        self.lowest = -60.0 if width == 32 else -500.0
        self.nothing = NOTHING[width]


class Lanes:
    """A vector while code is made: its operators emit instructions."""

    def __init__(self, builder, form, value) -> None:
        self.builder, self.form, self.value = builder, form, value

    def _of(self, value):
        return Lanes(self.builder, self.form, value)

    def like(self, number):
        """The same number in all lanes."""
        return self._of(self._other(number))

    def _other(self, other):
        return other.value if isinstance(other, Lanes) else ir.Constant(self.form.type, [float(other)] * BLOCK)

    def __add__(self, other):
        return self._of(self.builder.fadd(self.value, self._other(other), flags=["contract"]))

    def __sub__(self, other):
        return self._of(self.builder.fsub(self.value, self._other(other), flags=["contract"]))

    def __mul__(self, other):
        return self._of(self.builder.fmul(self.value, self._other(other), flags=["contract"]))

    def over(self, other):
        return self._of(self.builder.fdiv(self.value, self._other(other)))

    def above(self, other):
        return self.builder.fcmp_ordered(">", self.value, self._other(other))

    def reaches(self, other):
        return self.builder.fcmp_ordered(">=", self.value, self._other(other))

    def where(self, mask, other):
        """These lanes where the mask is set, the others elsewhere."""
        return self._of(self.builder.select(mask, self.value, self._other(other)))

    def at_least(self, other):
        return self.where(self.above(other), other)

    def at_most(self, other):
        return self.where(self.builder.fcmp_ordered("<", self.value, self._other(other)), other)

    def rounded_sum(self, other):
        """A sum that nothing may be contracted into."""
        return self._of(self.builder.fadd(self.value, self._other(other)))

    def pattern(self):
        return self.builder.bitcast(self.value, self.form.bits)

    def from_pattern(self, bits):
        return self._of(self.builder.bitcast(bits, self.form.type))

    def integer(self, number):
        return ir.Constant(self.form.bits, [number] * BLOCK)


def power(d):
    """2^d for whole numbers d ≤ 1; 0 below the lowest."""
    form = d.form
    biased = d.rounded_sum(form.round + form.bias)
    bits = d.builder.shl(biased.pattern(), d.integer(form.fraction))
    return d.from_pattern(bits).where(d.above(form.lowest), 0.0)


def exp(x):
    """e^x as (mantissa, exponent), the mantissa near 1; that of 0 for −inf."""
    form = x.form
    some = x.above(-math.inf)
    x = x.where(some, 0.0)
    if form.width == 64:
        x = x.at_least(-LARGEST).at_most(LARGEST)
    k = (x * math.log2(math.e)).rounded_sum(form.round).rounded_sum(-form.round)
    f = (x - k * form.log_2_high) - k * form.log_2_low
    if form.width == 64:
        # Where x is so large that it has no fraction, f has no meaning.
        f = f.at_least(-0.4).at_most(0.4)
    series = f * form.series[-1]
    for coefficient in form.series[-2:0:-1]:
        series = (series + coefficient) * f
    return (series + form.series[0]).where(some, 0.0), k.where(some, form.nothing)


def normal(m, e):
    """(m, e) with the mantissa brought to [1, 2), or (0, the exponent of 0)."""
    form, builder = m.form, m.builder
    bits = m.pattern()
    # The biased exponent as a float: in the low bits of 2^fraction.
    unit = 2.0**form.fraction
    one, large = m.like(1.0).pattern(), m.like(unit).pattern()
    exponent = m.from_pattern(builder.or_(builder.lshr(bits, m.integer(form.fraction)), large))
    fraction = builder.and_(bits, m.integer((1 << form.fraction) - 1))
    some = m.above(0.0)
    mantissa = m.from_pattern(builder.or_(fraction, one))
    return mantissa.where(some, 0.0), (e + exponent.rounded_sum(-(unit + form.bias))).where(some, form.nothing)


def largest(a, *rest):
    for b in rest:
        a = a.at_least(b)
    return a


class Memory:
    """A flat array while code is made. A place is an offset, moved by whole planes and by lanes."""

    def __init__(self, context, builder, array_type, array, plane) -> None:
        self.builder, self.plane = builder, plane
        self.data = context.make_array(array_type)(context, builder, array).data
        self.form = Format(array_type.dtype.bitwidth)

    def moved(self, offset, planes=0, lanes=0):
        shift = self.builder.mul(self.plane, ir.Constant(self.plane.type, planes))
        return self.builder.add(self.builder.add(offset, shift), ir.Constant(self.plane.type, lanes))

    def _pointer(self, place):
        lone = self.builder.gep(self.data, [place], inbounds=True)
        return self.builder.bitcast(lone, self.form.type.as_pointer())

    def load(self, offset, planes=0, lanes=0):
        pointer = self._pointer(self.moved(offset, planes, lanes))
        return Lanes(self.builder, self.form, self.builder.load(pointer, align=self.form.width // 8))

    def store(self, values, offset, planes=0, lanes=0):
        pointer = self._pointer(self.moved(offset, planes, lanes))
        self.builder.store(values.value, pointer, align=self.form.width // 8)


def step(emit):
    """A compiled function (array, (plane, *offsets)) that does what `emit(memory, *offsets)` says."""

    @intrinsic
    def run(typingctx, array, places):
        def codegen(context, builder, signature, args):
            plane, *offsets = cgutils.unpack_tuple(builder, args[1])
            emit(Memory(context, builder, signature.args[0], args[0], plane), *offsets)
            return context.get_dummy_value()

        return types.void(array, places), codegen

    return run


@intrinsic
def stay_apart(typingctx):
    """Keeps the function it stands in out of its callers, each of which would compile it anew."""

    def codegen(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen
