"""Operations on one row of numbers, and on rows side by side: short rows leave LLVM's own vectoriser no room.

A *row* is padded to whole blocks, `whole(size)` long. What the padding holds is finite and never counts, unless a
function says so.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.llvm import (
    BLOCK,
    blocks_in,
    choose_lane,
    constant,
    data_of,
    fill,
    fold,
    larger,
    load,
    size_of,
    smaller,
    splat,
    store,
    sum_lanes,
    vector_of,
)


def _cover_blocks(builder, size):
    """How many blocks cover 0 … size − 1, and where block i starts; the last may overlap the one before."""
    last = builder.sub(size, constant(BLOCK))

    def place_of(index):
        place = builder.mul(index, constant(BLOCK))
        return builder.select(builder.icmp_signed("<", place, last), place, last)

    return blocks_in(builder, size), place_of


def _cover(builder, size, number, body):
    """`body(place, kind)` for all of 0 … size − 1: block by block, or one by one where they are few."""
    with builder.if_else(builder.icmp_signed("<", size, constant(BLOCK))) as (few, many):
        with few, cgutils.for_range(builder, size) as loop:
            body(loop.index, number)
        with many:
            blocks, place_of = _cover_blocks(builder, size)
            with cgutils.for_range(builder, blocks) as loop:
                body(place_of(loop.index), ir.VectorType(number, BLOCK))


@intrinsic
def scale_row(typingctx, row, scale, out):
    """out = scale · row; `out` need not be padded. It may be `row`, which is."""

    def codegen(context, builder, signature, args):
        row, scale, out = args
        row_type, _, out_type = signature.args
        p_row, p_out = data_of(context, builder, row_type, row), data_of(context, builder, out_type, out)

        def body(place, kind):
            values = builder.fmul(load(builder, p_row, place, kind), splat(builder, kind, scale))
            store(builder, values, p_out, place)

        _cover(builder, size_of(context, builder, out_type, out), context.get_data_type(out_type.dtype), body)
        return context.get_dummy_value()

    return types.void(row, row.dtype, out), codegen


@intrinsic
def shift_row(typingctx, row, shift, out):
    """out = row − shift; `row` is not padded, and the padding of `out` is left alone."""

    def codegen(context, builder, signature, args):
        row, shift, out = args
        row_type, _, out_type = signature.args
        p_row, p_out = data_of(context, builder, row_type, row), data_of(context, builder, out_type, out)

        def body(place, kind):
            store(builder, builder.fsub(load(builder, p_row, place, kind), splat(builder, kind, shift)), p_out, place)

        _cover(builder, size_of(context, builder, row_type, row), context.get_data_type(row_type.dtype), body)
        return context.get_dummy_value()

    return types.void(row, row.dtype, out), codegen


@intrinsic
def climb(typingctx, reach, row, shift, out):
    """out = reach + (row − shift); `row` is not padded, and the padding of `out` is left alone. Returns the largest."""

    def codegen(context, builder, signature, args):
        p_reach, p_row, p_out = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 1, 3))
        number = context.get_data_type(signature.args[1].dtype)
        peak = cgutils.alloca_once(builder, number)
        builder.store(ir.Constant(number, float("-inf")), peak)

        def body(place, kind):
            gain = builder.fsub(load(builder, p_row, place, kind), splat(builder, kind, args[2]))
            values = builder.fadd(load(builder, p_reach, place, kind), gain)
            store(builder, values, p_out, place)
            best = values if kind is number else choose_lane(builder, values, larger)
            builder.store(larger(builder, best, builder.load(peak)), peak)

        _cover(builder, size_of(context, builder, signature.args[1], args[1]), number, body)
        return builder.load(peak)

    return row.dtype(reach, row, row.dtype, out), codegen


@intrinsic
def arrive(typingctx, reach, factor, scale, alpha, lowest):
    """α = factor · scale · reach, and factor · scale where α > 0 in place of factor; returns Σ α.

    `lowest` keeps, lane by lane, the smallest α > 0 met so far.
    """

    def codegen(context, builder, signature, args):
        reach, _, scale, _, _ = args
        p_reach, p_factor, p_alpha, p_lowest = (
            data_of(context, builder, signature.args[i], args[i]) for i in (0, 1, 3, 4)
        )
        vector = vector_of(context, signature.args[0])
        blocks = builder.sdiv(size_of(context, builder, signature.args[0], reach), constant(BLOCK))
        scales, zeros = splat(builder, vector, scale), fill(vector, 0.0)

        def step(sums, index):
            total, low = sums
            place = builder.mul(index, constant(BLOCK))
            weight = builder.fmul(load(builder, p_factor, place, vector), scales)
            here = builder.fmul(weight, load(builder, p_reach, place, vector))
            some = builder.fcmp_ordered(">", here, zeros)
            store(builder, here, p_alpha, place)
            store(builder, builder.select(some, weight, zeros), p_factor, place)
            lower = builder.and_(some, builder.fcmp_ordered("<", here, low))
            return [builder.fadd(total, here), builder.select(lower, here, low)]

        low = load(builder, p_lowest, constant(0), vector)
        total, low = fold(builder, constant(0), blocks, [zeros, low], step)
        store(builder, low, p_lowest, constant(0))
        return sum_lanes(builder, total)

    return reach.dtype(reach, factor, reach.dtype, alpha, lowest), codegen


@intrinsic
def meet(typingctx, beta, alpha, factor, mass):
    """mass = α β, and factor · β in place of factor; returns Σ mass."""

    def codegen(context, builder, signature, args):
        p_beta, p_alpha, p_factor, p_mass = (
            data_of(context, builder, array_type, array) for array_type, array in zip(signature.args, args, strict=True)
        )
        vector = vector_of(context, signature.args[0])
        blocks = builder.sdiv(size_of(context, builder, signature.args[0], args[0]), constant(BLOCK))

        def step(sums, index):
            place = builder.mul(index, constant(BLOCK))
            below = load(builder, p_beta, place, vector)
            both = builder.fmul(load(builder, p_alpha, place, vector), below)
            gate = builder.fmul(load(builder, p_factor, place, vector), below)
            store(builder, both, p_mass, place)
            store(builder, gate, p_factor, place)
            return [builder.fadd(sums[0], both)]

        (total,) = fold(builder, constant(0), blocks, [fill(vector, 0.0)], step)
        return sum_lanes(builder, total)

    return beta.dtype(beta, alpha, factor, mass), codegen


@intrinsic
def extremes(typingctx, row):
    """The largest entry, NaN if there is NaN or +inf; the smallest above −inf; whether −inf is among them."""

    def codegen(context, builder, signature, args):
        array_type = signature.args[0]
        p_row = data_of(context, builder, array_type, args[0])
        size = size_of(context, builder, array_type, args[0])
        number = context.get_data_type(array_type.dtype)
        infinity = float("inf")
        found = [cgutils.alloca_once(builder, number) for _ in range(4)]

        def look(kind, sums, place):
            peak, floor, lowest, strange = sums
            values = load(builder, p_row, place, kind)
            higher = builder.fcmp_ordered(">", values, peak)
            lower = builder.fcmp_ordered("<", values, lowest)
            allowed = builder.fcmp_ordered(">", values, fill(kind, -infinity))
            lower_allowed = builder.and_(allowed, builder.fcmp_ordered("<", values, floor))
            plain = builder.fcmp_ordered("<", values, fill(kind, infinity))
            return [
                builder.select(higher, values, peak),
                builder.select(lower_allowed, values, floor),
                builder.select(lower, values, lowest),
                builder.select(plain, strange, fill(kind, 1.0)),
            ]

        def search(kind, count, place_of):
            initial = [fill(kind, value) for value in (-infinity, infinity, infinity, 0.0)]
            return fold(builder, constant(0), count, initial, lambda sums, index: look(kind, sums, place_of(index)))

        with builder.if_else(builder.icmp_signed("<", size, constant(BLOCK))) as (few, many):
            with few:
                for slot, value in zip(found, search(number, size, lambda index: index), strict=True):
                    builder.store(value, slot)
            with many:
                blocks, place_of = _cover_blocks(builder, size)
                values = search(ir.VectorType(number, BLOCK), blocks, place_of)
                for slot, lanes, choose in zip(found, values, (larger, smaller, smaller, larger), strict=True):
                    builder.store(choose_lane(builder, lanes, choose), slot)
        peak, floor, lowest, strange = (builder.load(slot) for slot in found)
        broken = builder.fcmp_ordered(">", strange, ir.Constant(number, 0.0))
        peak = builder.select(broken, ir.Constant(number, float("nan")), peak)
        forbids = builder.fcmp_ordered("==", lowest, ir.Constant(number, -infinity))
        forbids = builder.zext(forbids, context.get_value_type(types.boolean))
        return context.make_tuple(builder, signature.return_type, [peak, floor, forbids])

    return types.Tuple((row.dtype, row.dtype, types.boolean))(row), codegen
