"""What all code written as LLVM shares: vectors, where they lie, and loops that keep their sums in registers.

Such code is for loops that LLVM does not vectorise by itself: it cannot know that two arrays never overlap, nor that an
index is never negative, and it spends short rows on a scalar remainder. Nothing is bounds-checked. A *kind* is a number
or a vector of numbers; arrays are contiguous. Only this folder writes LLVM.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from llvmlite import ir
from numba.core import cgutils

from structmax.numerics.kernel_numba import compiled

# One cache line, and one AVX-512 register, of float32.
BLOCK = 16
# The same of float64.
LANES = 8

INDEX = ir.IntType(64)
_LANE = ir.IntType(32)


@compiled()
def whole(size):
    """`size` rounded up to whole blocks."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


# --- numbers and vectors --------------------------------------------------------------------------------------------


def constant(value):
    return ir.Constant(INDEX, value)


def vector_of(context, array_type, lanes=BLOCK):
    return ir.VectorType(context.get_data_type(array_type.dtype), lanes)


def fill(kind, value):
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def splat(builder, kind, number):
    """The number in all lanes, or the number itself."""
    if not isinstance(kind, ir.VectorType):
        return number
    lone = builder.insert_element(ir.Constant(kind, ir.Undefined), number, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(lone, lone, fill(ir.VectorType(_LANE, kind.count), 0))


def shuffle(builder, a, b, lanes):
    """A vector of these lanes of a and b, one after the other."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_LANE, len(lanes)), list(lanes)))


def multiply_add(builder, a, b, total):
    return builder.fadd(builder.fmul(a, b, flags=["contract"]), total, flags=["contract"])


def _choose(sign, builder, a, b):
    return builder.select(builder.fcmp_ordered(sign, a, b), a, b)


larger, smaller = partial(_choose, ">"), partial(_choose, "<")


def _raise_to_sum(builder, a, b, best):
    return larger(builder, builder.fadd(a, b), best)


class Semiring(NamedTuple):
    """⊕ as `join(builder, a, b)`, its zero, and total ⊕ (a ⊗ b) as `absorb(builder, a, b, total)`."""

    zero: float
    join: Callable
    absorb: Callable


SUMS = Semiring(0.0, ir.IRBuilder.fadd, multiply_add)
MAXIMA = Semiring(-math.inf, larger, _raise_to_sum)

# --- memory ---------------------------------------------------------------------------------------------------------


def _array(context, builder, array_type, array):
    return context.make_array(array_type)(context, builder, array)


def data_of(context, builder, array_type, array):
    return _array(context, builder, array_type, array).data


def size_of(context, builder, array_type, array):
    return _array(context, builder, array_type, array).nitems


def columns_of(context, builder, array_type, array):
    return builder.extract_value(_array(context, builder, array_type, array).shape, 1)


def offset(builder, data, place):
    return builder.gep(data, [place], inbounds=True)


def _address(builder, data, place, kind):
    """Where a number or vector stands, and what its address is a multiple of."""
    number = kind.element if isinstance(kind, ir.VectorType) else kind
    width = number.width // 8 if isinstance(number, ir.IntType) else 4 if isinstance(number, ir.FloatType) else 8
    return builder.bitcast(offset(builder, data, place), kind.as_pointer()), width


def load(builder, data, place, kind):
    address, width = _address(builder, data, place, kind)
    return builder.load(address, align=width)


def store(builder, values, data, place):
    address, width = _address(builder, data, place, values.type)
    builder.store(values, address, align=width)


# --- loops ----------------------------------------------------------------------------------------------------------


def fold(builder, start, stop, initial, body):
    """Folds `body(accumulators, index)` over start … stop − 1; the accumulators become registers."""
    slots = [cgutils.alloca_once(builder, value.type) for value in initial]
    for slot, value in zip(slots, initial, strict=True):
        builder.store(value, slot)
    with cgutils.for_range(builder, stop, start=start) as loop:
        for slot, value in zip(slots, body([builder.load(slot) for slot in slots], loop.index), strict=True):
            builder.store(value, slot)
    return [builder.load(slot) for slot in slots]


def blocks_in(builder, size, lanes=BLOCK):
    """How many vectors cover so many numbers."""
    return builder.sdiv(builder.add(size, constant(lanes - 1)), constant(lanes))


# --- across the lanes -----------------------------------------------------------------------------------------------


def fold_lanes(builder, vectors, combine):
    """A number from the lanes of each vector; `combine` makes one list of vectors of two, half as wide."""
    width = vectors[0].type.count
    while width > 1:
        width //= 2
        low, high = (
            [shuffle(builder, values, values, lanes) for values in vectors]
            for lanes in (range(width), range(width, 2 * width))
        )
        vectors = combine(low, high)
    return [builder.extract_element(values, ir.Constant(_LANE, 0)) for values in vectors]


def choose_lane(builder, values, choose):
    """The lane that is left when two by two are compared, by `larger` or `smaller`."""
    return fold_lanes(builder, [values], lambda a, b: [choose(builder, a[0], b[0])])[0]


def sum_lanes(builder, values):
    number = values.type.element
    width = 32 if isinstance(number, ir.FloatType) else 64
    name = f"llvm.vector.reduce.fadd.v{values.type.count}f{width}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(number, [number, values.type]), name)
    return builder.call(function, [ir.Constant(number, -0.0), values], fastmath=["reassoc"])


def any_lane(builder, mask):
    bits = ir.IntType(mask.type.count)
    return builder.icmp_unsigned("!=", builder.bitcast(mask, bits), ir.Constant(bits, 0))
