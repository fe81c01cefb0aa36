"""Sums of products over two or three rows of float64, and their like, on whole vectors.

Arrays are two-dimensional: of each there is a row and a first column. Up to a whole vector, what is past `count` is
read too: there one of the rows should hold the zero.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.exp import emit_positive_exp
from structmax.numerics.kernel_numba.llvm import (
    LANES,
    MAXIMA,
    SUMS,
    blocks_in,
    columns_of,
    constant,
    data_of,
    fill,
    fold,
    load,
    multiply_add,
    offset,
    splat,
    store,
    sum_lanes,
)

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


def _start(context, builder, array_type, array, row, column):
    """The address of array[row, column]."""
    place = builder.add(builder.mul(row, columns_of(context, builder, array_type, array)), column)
    return offset(builder, data_of(context, builder, array_type, array), place)


def _fold_rows(builder, starts, count, firsts, step):
    """Folds `step(accumulators, *vectors)` over the vectors that cover `count` cells from each of `starts`."""

    def body(accumulators, index):
        place = builder.mul(index, constant(LANES))
        return step(accumulators, *(load(builder, start, place, _VECTOR) for start in starts))

    initial = [fill(_VECTOR, first) for first in firsts]
    return fold(builder, constant(0), blocks_in(builder, count, LANES), initial, body)


def _of_two_rows(semiring, across):
    """An intrinsic: ⊕ over k < count of a[i, x + k] ⊗ b[j, y + k]; `across(builder, vector)` does the lanes."""

    @intrinsic
    def dot(typingctx, a, i, x, b, j, y, count):
        def codegen(context, builder, signature, args):
            a, i, x, b, j, y, count = args
            starts = [
                _start(context, builder, signature.args[0], a, i, x),
                _start(context, builder, signature.args[3], b, j, y),
            ]

            def step(accumulators, left, right):
                return [semiring.absorb(builder, left, right, accumulators[0])]

            (total,) = _fold_rows(builder, starts, count, [semiring.zero], step)
            return across(builder, total)

        return types.float64(a, types.intp, types.intp, b, types.intp, types.intp, types.intp), codegen

    return dot


def _of_three_rows(semiring, times, across):
    """The same with a third factor, c[h, z + k]."""

    @intrinsic
    def dot(typingctx, a, i, x, b, j, y, c, h, z, count):
        def codegen(context, builder, signature, args):
            *rows, count = args
            starts = [_start(context, builder, signature.args[k], *rows[k : k + 3]) for k in (0, 3, 6)]

            def step(accumulators, left, middle, right):
                return [semiring.absorb(builder, times(builder, left, middle), right, accumulators[0])]

            (total,) = _fold_rows(builder, starts, count, [semiring.zero], step)
            return across(builder, total)

        place = types.intp, types.intp
        return types.float64(a, *place, b, *place, c, *place, types.intp), codegen

    return dot


def _largest_lane(builder, values):
    shape = ir.FunctionType(ir.DoubleType(), [_VECTOR])
    function = cgutils.get_or_insert_function(builder.module, shape, f"llvm.vector.reduce.fmax.v{LANES}f64")
    return builder.call(function, [values], fastmath=["nnan", "nsz"])


# Of (a, i, x, b, j, y, count), over k < count:
# Σ a[i, x + k] · b[j, y + k]
row_dot = _of_two_rows(SUMS, sum_lanes)
# the largest a[i, x + k] + b[j, y + k]
row_best = _of_two_rows(MAXIMA, _largest_lane)
# Of (a, i, x, b, j, y, c, h, z, count): the same with a third factor, c[h, z + k]
row_dot_three = _of_three_rows(SUMS, ir.IRBuilder.fmul, sum_lanes)
row_best_three = _of_three_rows(MAXIMA, ir.IRBuilder.fadd, _largest_lane)


def _emit_spread(builder, count, amount, a, to_a, b, to_b):
    """to_a += amount(place) · b and to_b += amount(place) · a, at `count` cells; others stay as they are."""
    lanes = ir.VectorType(ir.IntType(64), LANES)
    within = ir.Constant(lanes, list(range(LANES)))
    with cgutils.for_range(builder, blocks_in(builder, count, LANES)) as loop:
        place = builder.mul(loop.index, constant(LANES))
        used = builder.icmp_signed("<", within, splat(builder, lanes, builder.sub(count, place)))
        x = builder.select(used, amount(place), fill(_VECTOR, 0.0))
        for factor, out in ((b, to_a), (a, to_b)):
            before = load(builder, out, place, _VECTOR)
            after = multiply_add(builder, x, load(builder, factor, place, _VECTOR), before)
            store(builder, builder.select(used, after, before), out, place)


@intrinsic
def row_spread(typingctx, amount, a, to_a, i, x, b, to_b, j, y, count):
    """Adds amount · b[j, y + k] to to_a[i, x + k], and amount · a[i, x + k] to to_b[j, y + k], for k < count."""

    def codegen(context, builder, signature, args):
        amount, *rows, count = args
        starts = _spread_starts(context, builder, signature, rows)
        amounts = splat(builder, _VECTOR, amount)
        _emit_spread(builder, count, lambda place: amounts, *starts)
        return context.get_dummy_value()

    place = types.intp, types.intp
    return types.none(types.float64, a, to_a, *place, b, to_b, *place, types.intp), codegen


@intrinsic
def row_spread_three(typingctx, amount, a, to_a, i, x, b, to_b, j, y, c, h, z, count):
    """`row_spread` with amount · c[h, z + k] for the amount."""

    def codegen(context, builder, signature, args):
        amount, *rows, c, h, z, count = args
        starts = _spread_starts(context, builder, signature, rows)
        factor = _start(context, builder, signature.args[9], c, h, z)
        amounts = splat(builder, _VECTOR, amount)
        _emit_spread(
            builder, count, lambda place: builder.fmul(amounts, load(builder, factor, place, _VECTOR)), *starts
        )
        return context.get_dummy_value()

    place = types.intp, types.intp
    return types.none(types.float64, a, to_a, *place, b, to_b, *place, c, *place, types.intp), codegen


def _spread_starts(context, builder, signature, rows):
    """The addresses of a and to_a at [i, x], and of b and to_b at [j, y]; types follow that of the amount."""
    a, to_a, i, x, b, to_b, j, y = rows
    arrays = (1, a, i, x), (2, to_a, i, x), (5, b, j, y), (6, to_b, j, y)
    return [_start(context, builder, signature.args[number], *cell) for number, *cell in arrays]


def _emit_moments(context, builder, signature, args, term):
    """Σ term(left, right), and Σ term(left, right) (d_left + d_right)."""
    a, d_a, i, x, b, d_b, j, y, count = args
    starts = [
        _start(context, builder, signature.args[0], a, i, x),
        _start(context, builder, signature.args[1], d_a, i, x),
        _start(context, builder, signature.args[4], b, j, y),
        _start(context, builder, signature.args[5], d_b, j, y),
    ]

    def step(accumulators, left, d_left, right, d_right):
        total, moment = accumulators
        product = term(left, right)
        return [
            builder.fadd(total, product),
            multiply_add(builder, product, builder.fadd(d_left, d_right), moment),
        ]

    lanes = _fold_rows(builder, starts, count, [0.0, 0.0], step)
    return context.make_tuple(builder, signature.return_type, [sum_lanes(builder, each) for each in lanes])


_PAIR = types.UniTuple(types.float64, 2)


@intrinsic
def row_moments(typingctx, a, d_a, i, x, b, d_b, j, y, count):
    """Σ a b, and Σ a b (d_a + d_b), at [i, x + k] and [j, y + k] over k < count."""

    def codegen(context, builder, signature, args):
        return _emit_moments(context, builder, signature, args, builder.fmul)

    return _PAIR(a, d_a, types.intp, types.intp, b, d_b, types.intp, types.intp, types.intp), codegen


@intrinsic
def row_exp_moments(typingctx, a, d_a, i, x, b, d_b, j, y, count, peak):
    """`row_moments` of the exponentials of a and b, divided by that of `peak`."""

    def codegen(context, builder, signature, args):
        peaks = splat(builder, _VECTOR, args[-1])

        def term(left, right):
            return emit_positive_exp(builder, builder.fsub(builder.fadd(left, right), peaks))

        return _emit_moments(context, builder, signature, args[:-1], term)

    return _PAIR(a, d_a, types.intp, types.intp, b, d_b, types.intp, types.intp, types.intp, types.float64), codegen
