"""The products of rows and matrices of one step along a chain, as LLVM vectors whose sums stay in registers.

A *matrix* is flat, its rows `stride` apart and not padded. Reading the last block of a matrix row runs on into the next
row, and past the last one: matrices have `SLACK` finite entries behind them.
"""

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.vector import BLOCK
from structmax.structures.linear_chain.kernel_numba.row import (
    constant,
    data_of,
    fill,
    fold_lanes,
    larger,
    load,
    over,
    size_of,
    splat,
    spread,
    store,
)

SLACK = BLOCK
# A fused multiply-add takes about four cycles: so many sums, independent of each other, keep the unit busy.
SUMS = 4


def _multiply_add(builder, total, weight, values):
    return builder.fadd(total, builder.fmul(weight, values, flags=["contract"]), flags=["contract"])


def _add_maximise(builder, best, weight, values):
    return larger(builder, builder.fadd(weight, values), best)


def _combine_rows(fold, start_from, join, context, builder, signature, args):
    """out[j] = start ⊕ the fold of weights[step · k] and matrix[stride · k + j] over k < rows, block by block."""
    weights, step, rows, matrix, stride, out = args
    weights_type, _, _, matrix_type, _, out_type = signature.args
    p_weights = data_of(context, builder, weights_type, weights)
    p_matrix = data_of(context, builder, matrix_type, matrix)
    p_out = data_of(context, builder, out_type, out)
    vector = ir.VectorType(context.get_data_type(out_type.dtype), BLOCK)

    def strip(column, width):
        """`width` blocks from `column`; row k goes to one of SUMS / width sums of each."""
        ways = SUMS // width
        places = [builder.add(column, constant(i * BLOCK)) for i in range(width)]

        def row(sums, k):
            weight = splat(builder, vector, builder.load(builder.gep(p_weights, [builder.mul(step, k)], inbounds=True)))
            start = builder.mul(stride, k)
            blocks = [load(builder, p_matrix, builder.add(start, place), vector) for place in places]
            return [fold(builder, total, weight, block) for total, block in zip(sums, blocks, strict=True)]

        def rows_together(sums, index):
            first = builder.mul(index, constant(ways))
            return [
                value
                for way in range(ways)
                for value in row(sums[way * width : (way + 1) * width], builder.add(first, constant(way)))
            ]

        head = [start_from(builder, p_out, place, vector) for place in places]
        neutral = [start_from(builder, None, place, vector) for place in places]
        groups = builder.sdiv(rows, constant(ways))
        sums = over(builder, groups, constant(0), vector, head + neutral * (ways - 1), rows_together)
        sums[:width] = over(builder, rows, builder.mul(groups, constant(ways)), vector, sums[:width], row)
        while len(sums) > width:
            half = len(sums) // 2
            sums = [join(builder, a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
        for value, place in zip(sums, places, strict=True):
            store(builder, value, p_out, place)

    columns = size_of(context, builder, out_type, out)
    done = constant(0)
    width = SUMS
    while width:
        size = constant(width * BLOCK)
        strips = builder.sdiv(builder.sub(columns, done), size)
        with cgutils.for_range(builder, strips) as loop:
            strip(builder.add(done, builder.mul(loop.index, size)), width)
        done = builder.add(done, builder.mul(strips, size))
        width //= 2
    return context.get_dummy_value()


def _from_zero(builder, p_out, place, vector):
    return fill(vector, 0.0)


def _from_out(builder, p_out, place, vector):
    return fill(vector, 0.0) if p_out is None else load(builder, p_out, place, vector)


def _from_nothing(builder, p_out, place, vector):
    return fill(vector, float("-inf"))


def _of_rows(weights, matrix, out):
    return types.void(weights, types.intp, types.intp, matrix, types.intp, out)


@intrinsic
def weigh_rows(typingctx, weights, step, rows, matrix, stride, out):
    """out[j] = Σ over k < rows of weights[step · k] · matrix[stride · k + j]"""
    return _of_rows(weights, matrix, out), partial(_combine_rows, _multiply_add, _from_zero, ir.IRBuilder.fadd)


@intrinsic
def add_rows(typingctx, weights, step, rows, matrix, stride, out):
    """out[j] += Σ over k < rows of weights[step · k] · matrix[stride · k + j]"""
    return _of_rows(weights, matrix, out), partial(_combine_rows, _multiply_add, _from_out, ir.IRBuilder.fadd)


@intrinsic
def best_row(typingctx, weights, step, rows, matrix, stride, out):
    """out[j] = max over k < rows of weights[step · k] + matrix[stride · k + j]"""
    return _of_rows(weights, matrix, out), partial(_combine_rows, _add_maximise, _from_nothing, larger)


@intrinsic
def dot_rows(typingctx, row, rows, matrix, stride, out):
    """out[k] = Σ over j of matrix[stride · k + j] · row[j], for k < rows"""

    def codegen(context, builder, signature, args):
        row, rows, matrix, stride, out = args
        row_type, _, matrix_type, _, out_type = signature.args
        p_row = data_of(context, builder, row_type, row)
        p_matrix = data_of(context, builder, matrix_type, matrix)
        p_out = data_of(context, builder, out_type, out)
        vector = ir.VectorType(context.get_data_type(out_type.dtype), BLOCK)
        blocks = builder.sdiv(size_of(context, builder, row_type, row), constant(BLOCK))
        with cgutils.for_range(builder, rows) as loop:
            start = builder.mul(stride, loop.index)

            def add(sums, index, start=start):
                place = builder.mul(index, constant(BLOCK))
                left = load(builder, p_row, place, vector)
                right = load(builder, p_matrix, builder.add(start, place), vector)
                return [_multiply_add(builder, sums[0], left, right)]

            (total,) = over(builder, blocks, constant(0), vector, [fill(vector, 0.0)], add)
            builder.store(fold_lanes(builder, total, builder.fadd), builder.gep(p_out, [loop.index], inbounds=True))
        return context.get_dummy_value()

    return types.void(row, types.intp, matrix, types.intp, out), codegen


@intrinsic
def share_rows(typingctx, left, scale, matrix, right, size, sums, out):
    """out[i, j] = scale · left[i] · matrix[i, j] · right[j], and sums[i] = Σ over j of matrix[i, j] · right[j].

    For i and j below `size`; `out` is flat and has no slack.
    """

    def codegen(context, builder, signature, args):
        _, scale, _, _, size, _, _ = args
        p_left, p_matrix, p_right, p_sums, p_out = (
            data_of(context, builder, signature.args[i], args[i]) for i in (0, 2, 3, 5, 6)
        )
        number = context.get_data_type(signature.args[0].dtype)
        vector = ir.VectorType(number, BLOCK)
        blocks = builder.sdiv(size, constant(BLOCK))
        covered = builder.mul(blocks, constant(BLOCK))
        with cgutils.for_range(builder, size) as loop:
            start = builder.mul(loop.index, size)
            weight = builder.fmul(scale, builder.load(builder.gep(p_left, [loop.index], inbounds=True)))

            def product(place, kind, start=start):
                values = load(builder, p_matrix, builder.add(start, place), kind)
                return builder.fmul(values, load(builder, p_right, place, kind))

            def write(place, kind, values, start=start, weight=weight):
                store(builder, builder.fmul(values, spread(builder, kind, weight)), p_out, builder.add(start, place))

            def block(sums, index):
                place = builder.mul(index, constant(BLOCK))
                values = product(place, vector)
                write(place, vector, values)
                return [builder.fadd(sums[0], values)]

            (total,) = over(builder, blocks, constant(0), vector, [fill(vector, 0.0)], block)
            slot = cgutils.alloca_once(builder, vector)
            builder.store(total, slot)
            with builder.if_then(builder.icmp_signed("<", covered, size)):
                # Behind the row's end `right` holds zeros, but `out` the next row.
                builder.store(builder.fadd(total, product(covered, vector)), slot)
                with builder.if_else(builder.icmp_signed(">", covered, constant(0))) as (many, few):
                    with many:
                        last = builder.sub(size, constant(BLOCK))
                        write(last, vector, product(last, vector))
                    with few, cgutils.for_range(builder, size) as column:
                        write(column.index, number, product(column.index, number))
            total = fold_lanes(builder, builder.load(slot), builder.fadd)
            builder.store(total, builder.gep(p_sums, [loop.index], inbounds=True))
        return context.get_dummy_value()

    return types.void(left, left.dtype, matrix, right, types.intp, sums, out), codegen
