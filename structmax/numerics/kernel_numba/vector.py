"""A few operations on BLOCK neighbouring entries, written as LLVM vectors: one instruction each where the CPU has it.

Loops over blocks are left to these, because LLVM cannot know that two arrays never overlap, nor that an index is never
negative, and would not vectorise them. `row` and `out` are contiguous and one-dimensional; nothing is bounds-checked.
"""

from functools import partial

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.llvm import (
    BLOCK,
    any_lane,
    blocks_in,
    choose_lane,
    constant,
    data_of,
    fill,
    fold,
    larger,
    load,
    shuffle,
    splat,
    store,
    vector_of,
)


def _load(context, builder, array_type, array, start):
    return load(builder, data_of(context, builder, array_type, array), start, vector_of(context, array_type))


def _store(context, builder, values, array_type, array, start):
    store(builder, values, data_of(context, builder, array_type, array), start)


@intrinsic
def block_peak(typingctx, row, start):
    """The largest of row[start : start + BLOCK], NaN if any of them is NaN."""

    def codegen(context, builder, signature, args):
        values = _load(context, builder, signature.args[0], *args)
        invalid = any_lane(builder, builder.fcmp_unordered("uno", values, values))
        peak = choose_lane(builder, values, larger)
        return builder.select(invalid, ir.Constant(peak.type, float("nan")), peak)

    return row.dtype(row, types.intp), codegen


@intrinsic
def block_some(typingctx, row, start):
    """Whether any of row[start : start + BLOCK] is not zero."""

    def codegen(context, builder, signature, args):
        values = _load(context, builder, signature.args[0], *args)
        zeros = fill(values.type, 0.0)
        return any_lane(builder, builder.fcmp_unordered("!=", values, zeros))

    return types.boolean(row, types.intp), codegen


@intrinsic
def block_above(typingctx, row, start, origin, cut):
    """A mask with bit j set where row[start + j] − origin > cut."""

    def codegen(context, builder, signature, args):
        row, start, origin, cut = args
        values = _load(context, builder, signature.args[0], row, start)
        values = builder.fsub(values, splat(builder, values.type, origin))
        above = builder.fcmp_ordered(">", values, splat(builder, values.type, cut))
        return builder.zext(builder.bitcast(above, ir.IntType(BLOCK)), ir.IntType(64))

    return types.int64(row, types.intp, row.dtype, row.dtype), codegen


@intrinsic
def lowest_bit(typingctx, mask):
    """The index of the lowest bit set in a mask that is not 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), codegen


@intrinsic
def block_shift(typingctx, row, start, origin, scale, out, begin):
    """out[begin : begin + BLOCK] = (row[start : start + BLOCK] − origin) · scale"""

    def codegen(context, builder, signature, args):
        row, start, origin, scale, out, begin = args
        values = _load(context, builder, signature.args[0], row, start)
        values = builder.fsub(values, splat(builder, values.type, origin))
        values = builder.fmul(values, splat(builder, values.type, scale))
        _store(context, builder, values, signature.args[4], out, begin)
        return context.get_dummy_value()

    return types.void(row, types.intp, row.dtype, row.dtype, out, types.intp), codegen


@intrinsic
def block_copy(typingctx, row, start, out, begin):
    """out[begin : begin + BLOCK] = row[start : start + BLOCK]"""

    def codegen(context, builder, signature, args):
        row, start, out, begin = args
        values = _load(context, builder, signature.args[0], row, start)
        _store(context, builder, values, signature.args[2], out, begin)
        return context.get_dummy_value()

    return types.void(row, types.intp, out, types.intp), codegen


@intrinsic
def block_transpose(typingctx, row, start, stride, out, begin, step):
    """out[begin + step·j + i] = row[start + stride·i + j] for i and j below BLOCK: rows become lanes, or lanes rows."""

    def codegen(context, builder, signature, args):
        row, start, stride, out, begin, step = args
        vectors = []
        for i in range(BLOCK):
            offset = builder.add(start, builder.mul(stride, constant(i)))
            vectors.append(_load(context, builder, signature.args[0], row, offset))
        # Interleaving the first half of the vectors with the second moves one bit of i past j; four times do.
        half = BLOCK // 2
        low = [lane // 2 + BLOCK * (lane % 2) for lane in range(BLOCK)]
        high = [lane + half for lane in low]
        for _ in range(BLOCK.bit_length() - 1):
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [shuffle(builder, a, b, lanes) for a, b in pairs for lanes in (low, high)]
        for j, values in enumerate(vectors):
            offset = builder.add(begin, builder.mul(step, constant(j)))
            _store(context, builder, values, signature.args[3], out, offset)
        return context.get_dummy_value()

    return types.void(row, types.intp, types.intp, out, types.intp, types.intp), codegen


def _over_lanes(context, builder, tiles, start, stop, initial, step):
    """Folds `step(accumulators, *values)` over the vectors start … stop − 1 of `tiles`, types and arrays."""

    def body(accumulators, index):
        place = builder.mul(index, constant(BLOCK))
        return step(accumulators, *(_load(context, builder, tile_type, tile, place) for tile_type, tile in tiles))

    return fold(builder, start, stop, initial, body)


def _store_totals(context, builder, tiles, count, step, out_type, out):
    """Two sums over the lanes of `tiles` to out: of BLOCK terms, then of those, so that rounding errors stay small."""
    zeros = [fill(vector_of(context, out_type), 0.0)] * 2

    def group(totals, index):
        start = builder.mul(index, constant(BLOCK))
        stop = builder.add(start, constant(BLOCK))
        stop = builder.select(builder.icmp_signed("<", stop, count), stop, count)
        sums = _over_lanes(context, builder, tiles, start, stop, zeros, step)
        return [builder.fadd(total, values) for total, values in zip(totals, sums, strict=True)]

    for i, total in enumerate(fold(builder, constant(0), blocks_in(builder, count), zeros, group)):
        _store(context, builder, total, out_type, out, constant(i * BLOCK))


@intrinsic
def lane_peaks(typingctx, tile, count, out):
    """out[i] = the largest of tile[BLOCK·j + i] over j < count, NaN if any of them is NaN."""

    def codegen(context, builder, signature, args):
        tile, count, out = args

        def step(accumulators, values):
            (peak,) = accumulators
            stays = builder.or_(builder.fcmp_ordered(">", peak, values), builder.fcmp_unordered("uno", peak, peak))
            return [builder.select(stays, peak, values)]

        zero = constant(0)
        first = _load(context, builder, signature.args[0], tile, zero)
        (peak,) = _over_lanes(context, builder, [(signature.args[0], tile)], zero, count, [first], step)
        _store(context, builder, peak, signature.args[2], out, zero)
        return context.get_dummy_value()

    return types.void(tile, types.intp, out), codegen


@intrinsic
def lane_sums(typingctx, tile, count, top, square, out):
    """Σ u^b in out[i], Σ u^(b−1) in out[BLOCK + i]; u = [tile[BLOCK·j + i] + top[i]]₊, b = 2 or 1 by `square`."""

    def codegen(context, builder, signature, args):
        tile, count, top, square, out = args
        tile_type, _, top_type, _, out_type = signature.args
        threshold = _load(context, builder, top_type, top, constant(0))
        zeros = fill(threshold.type, 0.0)
        ones = fill(threshold.type, 1.0)

        def add(accumulators, values, squared):
            mass, slope = accumulators
            u = builder.fadd(values, threshold)
            inside = builder.fcmp_ordered(">", u, zeros)
            u = builder.select(inside, u, zeros)
            height = builder.fmul(u, u, flags=["contract"]) if squared else u
            weight = u if squared else builder.select(inside, ones, zeros)
            return [builder.fadd(mass, height, flags=["contract"]), builder.fadd(slope, weight)]

        with builder.if_else(square) as branches:
            for squared, branch in zip((True, False), branches, strict=True):
                with branch:
                    step = partial(add, squared=squared)
                    _store_totals(context, builder, [(tile_type, tile)], count, step, out_type, out)
        return context.get_dummy_value()

    return types.void(tile, types.intp, top, types.boolean, out), codegen


@intrinsic
def lane_moments(typingctx, weights, tile, count, scale, out):
    """Σ q u in out[i], Σ q in out[BLOCK + i]; q = weights[BLOCK·j + i], u = [1 + tile[BLOCK·j + i] · scale[i]]₊."""

    def codegen(context, builder, signature, args):
        weights, tile, count, scale, out = args
        weights_type, tile_type, _, scale_type, out_type = signature.args
        scales = _load(context, builder, scale_type, scale, constant(0))
        zeros, ones = (fill(scales.type, value) for value in (0.0, 1.0))

        def add(accumulators, q, values):
            mass, slope = accumulators
            u = builder.fadd(builder.fmul(values, scales, flags=["contract"]), ones, flags=["contract"])
            u = builder.select(builder.fcmp_ordered("<", u, zeros), zeros, u)
            height = builder.fmul(q, u, flags=["contract"])
            return [builder.fadd(mass, height, flags=["contract"]), builder.fadd(slope, q)]

        _store_totals(context, builder, [(weights_type, weights), (tile_type, tile)], count, add, out_type, out)
        return context.get_dummy_value()

    return types.void(weights, tile, types.intp, scale, out), codegen


@intrinsic
def lane_scale(typingctx, tile, count, scale, lowest, out):
    """out[BLOCK·j + i] = the larger of tile[BLOCK·j + i] · scale[i] and `lowest`, or NaN."""

    def codegen(context, builder, signature, args):
        tile, count, scale, lowest, out = args
        tile_type, _, scale_type, _, out_type = signature.args
        scales = _load(context, builder, scale_type, scale, constant(0))
        floor = splat(builder, scales.type, lowest)
        with cgutils.for_range(builder, count) as loop:
            start = builder.mul(loop.index, constant(BLOCK))
            values = builder.fmul(_load(context, builder, tile_type, tile, start), scales)
            values = builder.select(builder.fcmp_ordered("<", values, floor), floor, values)
            _store(context, builder, values, out_type, out, start)
        return context.get_dummy_value()

    return types.void(tile, types.intp, scale, tile.dtype, out), codegen


@intrinsic
def lane_shift(typingctx, tile, count, origin, scale):
    """tile[BLOCK·j + i] = (tile[BLOCK·j + i] − origin[i]) · scale, in place."""

    def codegen(context, builder, signature, args):
        tile, count, origin, scale = args
        tile_type, _, origin_type, _ = signature.args
        origins = _load(context, builder, origin_type, origin, constant(0))
        scales = splat(builder, origins.type, scale)
        with cgutils.for_range(builder, count) as loop:
            start = builder.mul(loop.index, constant(BLOCK))
            values = _load(context, builder, tile_type, tile, start)
            values = builder.fmul(builder.fsub(values, origins), scales)
            _store(context, builder, values, tile_type, tile, start)
        return context.get_dummy_value()

    return types.void(tile, types.intp, origin, tile.dtype), codegen


@intrinsic
def lane_step(typingctx, sums, square, tolerance, top):
    """Newton's step from the results of `lane_sums`, for the lanes whose mass exceeds 1; whether any of them moved."""

    def codegen(context, builder, signature, args):
        sums, square, tolerance, top = args
        sums_type, _, _, top_type = signature.args
        first, second = (constant(place) for place in (0, BLOCK))
        mass = _load(context, builder, sums_type, sums, first)
        slope = _load(context, builder, sums_type, sums, second)
        old = _load(context, builder, top_type, top, first)
        ones = fill(mass.type, 1.0)
        name = f"llvm.sqrt.v{BLOCK}f{sums_type.dtype.bitwidth}"
        signature_of_root = ir.FunctionType(mass.type, [mass.type])
        root = builder.call(cgutils.get_or_insert_function(builder.module, signature_of_root, name), [mass])
        norm = builder.select(square, root, ones)
        new = builder.fsub(old, builder.fdiv(builder.fsub(mass, norm), slope))
        excess = builder.fcmp_ordered(">", builder.fsub(mass, ones), splat(builder, mass.type, tolerance))
        moves = builder.and_(excess, builder.fcmp_ordered("<", new, old))
        _store(context, builder, builder.select(moves, new, old), top_type, top, first)
        return any_lane(builder, moves)

    return types.boolean(sums, types.boolean, sums.dtype, top), codegen
