"""Products of a row and a matrix, block by block of columns, whose sums stay in registers.

Matrices are flat, their rows `stride` apart. The functions for *rows* know no padding: reading the last block of a
matrix row runs on into the next row, and past the last one, so matrices have `SLACK` finite entries behind them. Those
for *columns*, in float64, take rows of a matrix that has a whole number of vectors to a row.
"""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.llvm import (
    BLOCK,
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
    size_of,
    splat,
    store,
    sum_lanes,
    vector_of,
)

SLACK = BLOCK
# A fused multiply-add takes about four cycles: so many sums, independent of each other, keep the unit busy.
TOTALS = 4


def _combine_rows(builder, semiring, adds, vector, p_weights, step, rows, p_matrix, stride, p_out, blocks):
    """out[j] = ⊕ over k < rows of weights[step · k] ⊗ matrix[stride · k + j], ⊕ out[j] where it `adds`."""
    lanes = vector.count

    def strip(column, width):
        """`width` vectors from `column`; row k goes to one of TOTALS / width sums of each."""
        ways = TOTALS // width
        places = [builder.add(column, constant(i * lanes)) for i in range(width)]

        def row(sums, k):
            weight = splat(builder, vector, load(builder, p_weights, builder.mul(step, k), vector.element))
            start = builder.mul(stride, k)
            values = [load(builder, p_matrix, builder.add(start, place), vector) for place in places]
            return [semiring.absorb(builder, weight, each, total) for each, total in zip(values, sums, strict=True)]

        def rows_together(sums, index):
            first = builder.mul(index, constant(ways))
            return [
                value
                for way in range(ways)
                for value in row(sums[way * width : (way + 1) * width], builder.add(first, constant(way)))
            ]

        neutral = [fill(vector, semiring.zero)] * width
        head = [load(builder, p_out, place, vector) for place in places] if adds else neutral
        groups = builder.sdiv(rows, constant(ways))
        sums = fold(builder, constant(0), groups, head + neutral * (ways - 1), rows_together)
        sums[:width] = fold(builder, builder.mul(groups, constant(ways)), rows, sums[:width], row)
        while len(sums) > width:
            half = len(sums) // 2
            sums = [semiring.join(builder, a, b) for a, b in zip(sums[:half], sums[half:], strict=True)]
        for value, place in zip(sums, places, strict=True):
            store(builder, value, p_out, place)

    done, width = constant(0), TOTALS
    while width:
        strips = builder.sdiv(builder.sub(blocks, done), constant(width))
        with cgutils.for_range(builder, strips) as loop:
            first = builder.add(done, builder.mul(loop.index, constant(width)))
            strip(builder.mul(first, constant(lanes)), width)
        done = builder.add(done, builder.mul(strips, constant(width)))
        width //= 2


def _of_rows(semiring, adds):
    @intrinsic
    def combine(typingctx, weights, step, rows, matrix, stride, out):
        def codegen(context, builder, signature, args):
            _, step, rows, _, stride, out = args
            p_weights, p_matrix, p_out = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 3, 5))
            vector = vector_of(context, signature.args[5])
            blocks = builder.sdiv(size_of(context, builder, signature.args[5], out), constant(BLOCK))
            _combine_rows(builder, semiring, adds, vector, p_weights, step, rows, p_matrix, stride, p_out, blocks)
            return context.get_dummy_value()

        return types.void(weights, types.intp, types.intp, matrix, types.intp, out), codegen

    return combine


# Of (weights, step, rows, matrix, stride, out), for all j of a row `out`:
# out[j] = Σ over k < rows of weights[step · k] · matrix[stride · k + j]
weigh_rows = _of_rows(SUMS, False)
# out[j] += the same
add_rows = _of_rows(SUMS, True)
# out[j] = max over k < rows of weights[step · k] + matrix[stride · k + j]
best_row = _of_rows(MAXIMA, False)


@intrinsic
def add_columns(typingctx, matrix, start, stop, factors, columns, out):
    """out[:columns] += Σ over rows i from start to stop of factors[i] · matrix[i, :columns], up to a whole vector."""

    def codegen(context, builder, signature, args):
        matrix, start, stop, _, columns, _ = args
        p_matrix, p_factors, p_out = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 3, 5))
        stride = columns_of(context, builder, signature.args[0], matrix)
        p_matrix, p_factors = offset(builder, p_matrix, builder.mul(start, stride)), offset(builder, p_factors, start)
        vector, rows = vector_of(context, signature.args[5], LANES), builder.sub(stop, start)
        blocks = blocks_in(builder, columns, LANES)
        _combine_rows(builder, SUMS, True, vector, p_factors, constant(1), rows, p_matrix, stride, p_out, blocks)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp, factors, types.intp, out), codegen


def _dot_rows(builder, adds, vector, p_matrix, stride, start, stop, p_row, first_block, last_block, p_out):
    """out[k] = Σ of matrix[stride · k + j] · row[j], + out[k] where it `adds`; k from start to stop, j by blocks."""

    def some(first, width):
        rows = [builder.add(first, constant(t)) for t in range(width)]
        starts = [builder.mul(row, stride) for row in rows]

        def step(sums, block):
            place = builder.mul(block, constant(vector.count))
            values = load(builder, p_row, place, vector)
            pairs = zip(starts, sums, strict=True)
            return [
                multiply_add(builder, values, load(builder, p_matrix, builder.add(begin, place), vector), total)
                for begin, total in pairs
            ]

        sums = fold(builder, first_block, last_block, [fill(vector, 0.0)] * width, step)
        for row, total in zip(rows, sums, strict=True):
            number = sum_lanes(builder, total)
            store(builder, builder.fadd(load(builder, p_out, row, number.type), number) if adds else number, p_out, row)

    tiles = builder.sdiv(builder.sub(stop, start), constant(TOTALS))
    with cgutils.for_range(builder, tiles) as loop:
        some(builder.add(start, builder.mul(loop.index, constant(TOTALS))), TOTALS)
    with cgutils.for_range(builder, stop, start=builder.add(start, builder.mul(tiles, constant(TOTALS)))) as loop:
        some(loop.index, 1)


@intrinsic
def dot_rows(typingctx, row, rows, matrix, stride, out):
    """out[k] = Σ over j of matrix[stride · k + j] · row[j], for k < rows"""

    def codegen(context, builder, signature, args):
        row, rows, _, stride, _ = args
        p_row, p_matrix, p_out = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 2, 4))
        blocks = builder.sdiv(size_of(context, builder, signature.args[0], row), constant(BLOCK))
        vector, zero = vector_of(context, signature.args[4]), constant(0)
        _dot_rows(builder, False, vector, p_matrix, stride, zero, rows, p_row, zero, blocks, p_out)
        return context.get_dummy_value()

    return types.void(row, types.intp, matrix, types.intp, out), codegen


@intrinsic
def add_dots(typingctx, matrix, start, stop, row, low, high, out):
    """out[i] += Σ of matrix[i, c] · row[c], for rows i from start to stop; c from low to high, in whole vectors."""

    def codegen(context, builder, signature, args):
        matrix, start, stop, _, low, high, _ = args
        p_matrix, p_row, p_out = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 3, 6))
        stride = columns_of(context, builder, signature.args[0], matrix)
        vector = vector_of(context, signature.args[6], LANES)
        first, last = builder.sdiv(low, constant(LANES)), blocks_in(builder, high, LANES)
        _dot_rows(builder, True, vector, p_matrix, stride, start, stop, p_row, first, last, p_out)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp, row, types.intp, types.intp, out), codegen


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
        vector = vector_of(context, signature.args[0])
        blocks = builder.sdiv(size, constant(BLOCK))
        covered = builder.mul(blocks, constant(BLOCK))
        with cgutils.for_range(builder, size) as loop:
            start = builder.mul(loop.index, size)
            weight = builder.fmul(scale, load(builder, p_left, loop.index, number))

            def product(place, kind, start=start):
                values = load(builder, p_matrix, builder.add(start, place), kind)
                return builder.fmul(values, load(builder, p_right, place, kind))

            def write(place, kind, values, start=start, weight=weight):
                store(builder, builder.fmul(values, splat(builder, kind, weight)), p_out, builder.add(start, place))

            def block(sums, index):
                place = builder.mul(index, constant(BLOCK))
                values = product(place, vector)
                write(place, vector, values)
                return [builder.fadd(sums[0], values)]

            (total,) = fold(builder, constant(0), blocks, [fill(vector, 0.0)], block)
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
            total = sum_lanes(builder, builder.load(slot))
            store(builder, total, p_sums, loop.index)
        return context.get_dummy_value()

    return types.void(left, left.dtype, matrix, right, types.intp, sums, out), codegen
