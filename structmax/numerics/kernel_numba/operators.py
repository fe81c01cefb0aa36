"""Compiled functions from Python functions over `Lanes`, vectors of BLOCK numbers whose operators emit instructions."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.llvm import BLOCK, constant, data_of, fill, load, store


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
        return other.value if isinstance(other, Lanes) else fill(self.form.type, float(other))

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
        return fill(self.form.bits, number)


class Memory:
    """A flat array while code is made. A place is an offset, moved by whole planes and by lanes."""

    def __init__(self, context, builder, array_type, array, plane) -> None:
        self.builder, self.plane = builder, plane
        self.data = data_of(context, builder, array_type, array)
        self.form = Format(array_type.dtype.bitwidth)

    def _moved(self, offset, planes, lanes):
        shift = self.builder.mul(self.plane, constant(planes))
        return self.builder.add(self.builder.add(offset, shift), constant(lanes))

    def load(self, offset, planes=0, lanes=0):
        values = load(self.builder, self.data, self._moved(offset, planes, lanes), self.form.type)
        return Lanes(self.builder, self.form, values)

    def store(self, values, offset, planes=0, lanes=0):
        store(self.builder, values.value, self.data, self._moved(offset, planes, lanes))


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
