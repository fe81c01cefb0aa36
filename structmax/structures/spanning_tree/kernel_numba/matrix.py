"""Two products of a part of a matrix and a vector, in blocks of LANES columns. All the work of an elimination is here.

Matrices are float64 with rows of a whole number of blocks. LLVM would spend short rows on its scalar remainder loop;
blocks have none. Nothing is bounds-checked.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# One AVX-512 register, and one cache line, of float64.
LANES = 8
# How many blocks or rows are held in registers at once.
TILE = 4

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INDEX = ir.IntType(64)


def _address(context, builder, array_type, array, place):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place], inbounds=True), _VECTOR.as_pointer())


def _load(context, builder, array_type, array, place):
    return builder.load(_address(context, builder, array_type, array, place), align=8)


def _number(context, builder, array_type, array, place):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.load(builder.gep(data, [place], inbounds=True))


def _splat(builder, number):
    lone = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _multiply_add(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])


def _fold(builder, width, start, stop, step):
    """`width` vectors, each 0 at first, after `step(index, vectors)` for every index from start to stop."""
    zeros = ir.Constant(_VECTOR, [0.0] * LANES)
    # These become registers.
    slots = [cgutils.alloca_once_value(builder, zeros) for _ in range(width)]
    for slot in slots:
        builder.store(zeros, slot)
    with cgutils.for_range(builder, stop, start=start) as loop:
        for slot, value in zip(slots, step(loop.index, [builder.load(slot) for slot in slots]), strict=True):
            builder.store(value, slot)
    return [builder.load(slot) for slot in slots]


def _in_tiles(builder, start, stop, body):
    """`body(first, width)` for tiles of width TILE from start on, and of width 1 for the rest."""
    count = builder.sub(stop, start)
    tiles = builder.sdiv(count, ir.Constant(_INDEX, TILE))
    whole = builder.add(start, builder.mul(tiles, ir.Constant(_INDEX, TILE)))
    with cgutils.for_range(builder, tiles) as loop:
        body(builder.add(start, builder.mul(loop.index, ir.Constant(_INDEX, TILE))), TILE)
    with cgutils.for_range(builder, stop, start=whole) as loop:
        body(loop.index, 1)


@intrinsic
def combine(typingctx, matrix, start, stop, factors, columns, out):
    """out[:columns] += Σ over rows i from start to stop of factors[i] · matrix[i, :columns], up to a whole block."""

    def codegen(context, builder, signature, args):
        matrix, start, stop, factors, columns, out = args
        matrix_type, _, _, factors_type, _, out_type = signature.args
        stride = builder.extract_value(context.make_array(matrix_type)(context, builder, matrix).shape, 1)
        lanes = ir.Constant(_INDEX, LANES)
        blocks = builder.sdiv(builder.add(columns, ir.Constant(_INDEX, LANES - 1)), lanes)

        def body(first, width):
            place = builder.mul(first, lanes)

            def step(i, sums):
                factor = _splat(builder, _number(context, builder, factors_type, factors, i))
                begin = builder.add(builder.mul(i, stride), place)
                return [
                    _multiply_add(
                        builder,
                        factor,
                        _load(
                            context, builder, matrix_type, matrix, builder.add(begin, ir.Constant(_INDEX, t * LANES))
                        ),
                        total,
                    )
                    for t, total in enumerate(sums)
                ]

            for t, total in enumerate(_fold(builder, width, start, stop, step)):
                address = _address(context, builder, out_type, out, builder.add(place, ir.Constant(_INDEX, t * LANES)))
                builder.store(builder.fadd(builder.load(address, align=8), total), address, align=8)

        _in_tiles(builder, ir.Constant(_INDEX, 0), blocks, body)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp, factors, types.intp, out), codegen


@intrinsic
def products(typingctx, matrix, start, stop, vector, low, high, out):
    """out[i] += Σ of matrix[i, c] · vector[c], for rows i from start to stop; c from low to high, in whole blocks."""

    def codegen(context, builder, signature, args):
        matrix, start, stop, vector, low, high, out = args
        matrix_type, _, _, vector_type, _, _, out_type = signature.args
        stride = builder.extract_value(context.make_array(matrix_type)(context, builder, matrix).shape, 1)
        lanes = ir.Constant(_INDEX, LANES)
        begin = builder.sdiv(low, lanes)
        end = builder.sdiv(builder.add(high, ir.Constant(_INDEX, LANES - 1)), lanes)
        data = context.make_array(out_type)(context, builder, out).data
        shape = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), _VECTOR])
        add_lanes = cgutils.get_or_insert_function(builder.module, shape, f"llvm.vector.reduce.fadd.v{LANES}f64")

        def body(first, width):
            rows = [builder.mul(builder.add(first, ir.Constant(_INDEX, t)), stride) for t in range(width)]

            def step(block, sums):
                place = builder.mul(block, lanes)
                values = _load(context, builder, vector_type, vector, place)
                return [
                    _multiply_add(
                        builder, values, _load(context, builder, matrix_type, matrix, builder.add(row, place)), total
                    )
                    for row, total in zip(rows, sums, strict=True)
                ]

            for t, total in enumerate(_fold(builder, width, begin, end, step)):
                address = builder.gep(data, [builder.add(first, ir.Constant(_INDEX, t))])
                number = builder.call(add_lanes, [ir.Constant(ir.DoubleType(), -0.0), total], fastmath=["reassoc"])
                builder.store(builder.fadd(builder.load(address), number), address)

        _in_tiles(builder, start, stop, body)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, types.intp, vector, types.intp, types.intp, out), codegen
