"""A few operations on BLOCK neighbouring entries, written as LLVM vectors: one instruction each where the CPU has it.

Loops over blocks are left to these, because LLVM cannot know that two arrays never overlap, nor that an index is never
negative, and would not vectorise them. `row` and `out` are contiguous and one-dimensional; nothing is bounds-checked.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# One cache line, and one AVX-512 register, of float32.
BLOCK = 16

_INDEX = ir.IntType(32)


def _pointer(context, builder, array_type, array, start):
    data = context.make_array(array_type)(context, builder, array).data
    vector = ir.VectorType(context.get_data_type(array_type.dtype), BLOCK)
    return builder.bitcast(builder.gep(data, [start], inbounds=True), vector.as_pointer())


def _load(context, builder, array_type, array, start):
    return builder.load(_pointer(context, builder, array_type, array, start), align=array_type.dtype.bitwidth // 8)


def _splat(builder, vector_type, scalar):
    lone = builder.insert_element(ir.Constant(vector_type, ir.Undefined), scalar, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(_INDEX, BLOCK), [0] * BLOCK))


def _any(builder, mask):
    bits = ir.IntType(BLOCK)
    return builder.icmp_unsigned("!=", builder.bitcast(mask, bits), ir.Constant(bits, 0))


@intrinsic
def block_peak(typingctx, row, start):
    """The largest of row[start : start + BLOCK], NaN if any of them is NaN."""

    def codegen(context, builder, signature, args):
        values = _load(context, builder, signature.args[0], *args)
        invalid = _any(builder, builder.fcmp_unordered("uno", values, values))
        width = BLOCK
        while width > 1:
            width //= 2
            halves = [
                builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(_INDEX, width), list(lanes)))
                for lanes in (range(width), range(width, 2 * width))
            ]
            values = builder.select(builder.fcmp_ordered(">", *halves), *halves)
        peak = builder.extract_element(values, ir.Constant(_INDEX, 0))
        return builder.select(invalid, ir.Constant(peak.type, float("nan")), peak)

    return row.dtype(row, types.intp), codegen


@intrinsic
def block_some(typingctx, row, start):
    """Whether any of row[start : start + BLOCK] is not zero."""

    def codegen(context, builder, signature, args):
        values = _load(context, builder, signature.args[0], *args)
        zeros = ir.Constant(values.type, [0.0] * BLOCK)
        return _any(builder, builder.fcmp_unordered("!=", values, zeros))

    return types.boolean(row, types.intp), codegen


@intrinsic
def block_shift(typingctx, row, start, origin, scale, out, begin):
    """out[begin : begin + BLOCK] = (row[start : start + BLOCK] − origin) · scale"""

    def codegen(context, builder, signature, args):
        row, start, origin, scale, out, begin = args
        values = _load(context, builder, signature.args[0], row, start)
        values = builder.fsub(values, _splat(builder, values.type, origin))
        values = builder.fmul(values, _splat(builder, values.type, scale))
        size = signature.args[0].dtype.bitwidth // 8
        builder.store(values, _pointer(context, builder, signature.args[4], out, begin), align=size)
        return context.get_dummy_value()

    return types.void(row, types.intp, row.dtype, row.dtype, out, types.intp), codegen


@intrinsic
def block_copy(typingctx, row, start, out, begin):
    """out[begin : begin + BLOCK] = row[start : start + BLOCK]"""

    def codegen(context, builder, signature, args):
        row, start, out, begin = args
        values = _load(context, builder, signature.args[0], row, start)
        size = signature.args[0].dtype.bitwidth // 8
        builder.store(values, _pointer(context, builder, signature.args[2], out, begin), align=size)
        return context.get_dummy_value()

    return types.void(row, types.intp, out, types.intp), codegen
