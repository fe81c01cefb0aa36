"""Operations on one row of a chain's chart, as LLVM vectors: short rows leave LLVM's own vectoriser no room.

A *row* is a contiguous vector padded to whole blocks, `whole(C)` long. What the padding holds is finite and never
counts, unless a function says so.
"""

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.vector import BLOCK

INT = ir.IntType(64)
LANE = ir.IntType(32)

# --- what the generators of code share: a `kind` is a number or a vector of BLOCK numbers ----------------------------


def constant(value):
    return ir.Constant(INT, value)


def _array(context, builder, array_type, array):
    return context.make_array(array_type)(context, builder, array)


def data_of(context, builder, array_type, array):
    return _array(context, builder, array_type, array).data


def size_of(context, builder, array_type, array):
    return _array(context, builder, array_type, array).nitems


def _block(builder, data, place, kind):
    return builder.bitcast(builder.gep(data, [place], inbounds=True), kind.as_pointer())


def load(builder, data, place, kind):
    return builder.load(_block(builder, data, place, kind), align=4)


def store(builder, values, data, place):
    builder.store(values, _block(builder, data, place, values.type), align=4)


def splat(builder, vector, scalar):
    lone = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(LANE, 0))
    return builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(LANE, BLOCK), [0] * BLOCK))


def fill(kind, value):
    return ir.Constant(kind, [value] * BLOCK if isinstance(kind, ir.VectorType) else value)


def fold_lanes(builder, values, combine):
    """One number from the lanes of a vector."""
    width = BLOCK
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(LANE, width), list(lanes)))
            for lanes in (range(width), range(width, 2 * width))
        ]
        values = combine(*halves)
    return builder.extract_element(values, ir.Constant(LANE, 0))


def _choose(builder, sign, a, b):
    return builder.select(builder.fcmp_ordered(sign, a, b), a, b)


def larger(builder, a, b):
    return _choose(builder, ">", a, b)


def over(builder, count, start, kind, initial, body):
    """Fold `body(accumulators, index)` over start … count − 1; the accumulators become registers."""
    slots = [cgutils.alloca_once(builder, kind) for _ in initial]
    for slot, value in zip(slots, initial, strict=True):
        builder.store(value, slot)
    with cgutils.for_range(builder, count, start=start) as loop:
        for slot, value in zip(slots, body([builder.load(slot) for slot in slots], loop.index), strict=True):
            builder.store(value, slot)
    return [builder.load(slot) for slot in slots]


def _cover_blocks(builder, size):
    """How many blocks cover 0 … size − 1, and where block i starts; the last may overlap the one before."""
    blocks = builder.sdiv(builder.add(size, constant(BLOCK - 1)), constant(BLOCK))
    last = builder.sub(size, constant(BLOCK))

    def place_of(index):
        place = builder.mul(index, constant(BLOCK))
        return builder.select(builder.icmp_signed("<", place, last), place, last)

    return blocks, place_of


def cover(builder, size, number, body):
    """`body(place, kind)` for all of 0 … size − 1: block by block, or one by one where they are few."""
    with builder.if_else(builder.icmp_signed("<", size, constant(BLOCK))) as (few, many):
        with few, cgutils.for_range(builder, size) as loop:
            body(loop.index, number)
        with many:
            blocks, place_of = _cover_blocks(builder, size)
            with cgutils.for_range(builder, blocks) as loop:
                body(place_of(loop.index), ir.VectorType(number, BLOCK))


def spread(builder, kind, scalar):
    return splat(builder, kind, scalar) if isinstance(kind, ir.VectorType) else scalar


# --- rows -----------------------------------------------------------------------------------------------------------


@compiled()
def whole(size):
    """`size` rounded up to whole blocks."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


@intrinsic
def scale_row(typingctx, row, scale, out):
    """out = scale · row; `out` need not be padded. It may be `row`, which is."""

    def codegen(context, builder, signature, args):
        row, scale, out = args
        row_type, _, out_type = signature.args
        p_row, p_out = data_of(context, builder, row_type, row), data_of(context, builder, out_type, out)

        def body(place, kind):
            values = builder.fmul(load(builder, p_row, place, kind), spread(builder, kind, scale))
            store(builder, values, p_out, place)

        cover(builder, size_of(context, builder, out_type, out), context.get_data_type(out_type.dtype), body)
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
            store(builder, builder.fsub(load(builder, p_row, place, kind), spread(builder, kind, shift)), p_out, place)

        cover(builder, size_of(context, builder, row_type, row), context.get_data_type(row_type.dtype), body)
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
        best_of = partial(larger, builder)

        def body(place, kind):
            gain = builder.fsub(load(builder, p_row, place, kind), spread(builder, kind, args[2]))
            values = builder.fadd(load(builder, p_reach, place, kind), gain)
            store(builder, values, p_out, place)
            best = values if kind is number else fold_lanes(builder, values, best_of)
            builder.store(best_of(best, builder.load(peak)), peak)

        cover(builder, size_of(context, builder, signature.args[1], args[1]), number, body)
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
        vector = ir.VectorType(context.get_data_type(signature.args[0].dtype), BLOCK)
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
        total, low = over(builder, blocks, constant(0), vector, [zeros, low], step)
        store(builder, low, p_lowest, constant(0))
        return fold_lanes(builder, total, builder.fadd)

    return reach.dtype(reach, factor, reach.dtype, alpha, lowest), codegen


@intrinsic
def meet(typingctx, beta, alpha, factor, mass):
    """mass = α β, and factor · β in place of factor; returns Σ mass."""

    def codegen(context, builder, signature, args):
        p_beta, p_alpha, p_factor, p_mass = (
            data_of(context, builder, array_type, array) for array_type, array in zip(signature.args, args, strict=True)
        )
        vector = ir.VectorType(context.get_data_type(signature.args[0].dtype), BLOCK)
        blocks = builder.sdiv(size_of(context, builder, signature.args[0], args[0]), constant(BLOCK))

        def step(sums, index):
            place = builder.mul(index, constant(BLOCK))
            below = load(builder, p_beta, place, vector)
            both = builder.fmul(load(builder, p_alpha, place, vector), below)
            gate = builder.fmul(load(builder, p_factor, place, vector), below)
            store(builder, both, p_mass, place)
            store(builder, gate, p_factor, place)
            return [builder.fadd(sums[0], both)]

        (total,) = over(builder, blocks, constant(0), vector, [fill(vector, 0.0)], step)
        return fold_lanes(builder, total, builder.fadd)

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
            return over(
                builder, count, constant(0), kind, initial, lambda sums, index: look(kind, sums, place_of(index))
            )

        highest, lowest_of = (partial(_choose, builder, sign) for sign in "><")
        with builder.if_else(builder.icmp_signed("<", size, constant(BLOCK))) as (few, many):
            with few:
                for slot, value in zip(found, search(number, size, lambda index: index), strict=True):
                    builder.store(value, slot)
            with many:
                blocks, place_of = _cover_blocks(builder, size)
                values = search(ir.VectorType(number, BLOCK), blocks, place_of)
                for slot, lanes, choose in zip(found, values, (highest, lowest_of, lowest_of, highest), strict=True):
                    builder.store(fold_lanes(builder, lanes, choose), slot)
        peak, floor, lowest, strange = (builder.load(slot) for slot in found)
        broken = builder.fcmp_ordered(">", strange, ir.Constant(number, 0.0))
        peak = builder.select(broken, ir.Constant(number, float("nan")), peak)
        forbids = builder.fcmp_ordered("==", lowest, ir.Constant(number, -infinity))
        forbids = builder.zext(forbids, context.get_value_type(types.boolean))
        return context.make_tuple(builder, signature.return_type, [peak, floor, forbids])

    return types.Tuple((row.dtype, row.dtype, types.boolean))(row), codegen
