"""A vector times a small matrix, exponentials of that, and its pullback: each goes through the matrix once.

Matrices have a column for each outcome, and whole blocks of them; arrays are contiguous. Nothing is bounds-checked.
"""

import math

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.exp import emit_exp
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
    multiply_add,
    offset,
    size_of,
    splat,
    store,
    sum_lanes,
    vector_of,
)


def _arrays(context, builder, signature, args):
    """Where each array begins, and how many numbers it has."""
    given = list(zip(signature.args[: len(args)], args, strict=True))
    return tuple([of(context, builder, *array) for array in given] for of in (data_of, size_of))


def _emit_affine(context, builder, signature, args, change):
    """Stores change(bias + x · matrix), a vector at a time; the largest of the products that is a number, or −inf."""
    (p_x, p_matrix, p_bias, p_z), (rows, _, columns, _) = _arrays(context, builder, signature, args)
    kind = vector_of(context, signature.args[1])

    def block(peaks, index):
        place = builder.mul(index, constant(BLOCK))

        def add_row(totals, k):
            factor = splat(builder, kind, builder.load(offset(builder, p_x, k)))
            weights = load(builder, p_matrix, builder.add(builder.mul(k, columns), place), kind)
            return [multiply_add(builder, factor, weights, totals[0])]

        (values,) = fold(builder, constant(0), rows, [load(builder, p_bias, place, kind)], add_row)
        store(builder, change(kind, values), p_z, place)
        return [larger(builder, values, peaks[0])]

    (peaks,) = fold(builder, constant(0), blocks_in(builder, columns), [fill(kind, -math.inf)], block)
    return choose_lane(builder, peaks, larger)


@intrinsic
def affine(typingctx, x, matrix, bias, z):
    """z = bias + x · matrix; returns the largest entry that is a number, −inf if there is none."""

    def codegen(context, builder, signature, args):
        return _emit_affine(context, builder, signature, args, lambda _, values: values)

    return x.dtype(x, matrix, bias, z), codegen


@intrinsic
def affine_exp(typingctx, x, matrix, bias, z, peak, scale):
    """z = scale · exp(bias + x · matrix − peak); returns what `affine` does."""

    def codegen(context, builder, signature, args):
        *arrays, peak, scale = args

        def change(kind, values):
            power = emit_exp(builder, builder.fsub(values, splat(builder, kind, peak)))
            return builder.fmul(power, splat(builder, kind, scale))

        return _emit_affine(context, builder, signature, arrays, change)

    return x.dtype(x, matrix, bias, z, peak, scale), codegen


@intrinsic
def sum_of_exp(typingctx, z, peak):
    """Σ exp(z − peak)"""

    def codegen(context, builder, signature, args):
        (p_z,), (size,) = _arrays(context, builder, signature, args[:1])
        kind = vector_of(context, signature.args[0])
        peaks = splat(builder, kind, args[1])

        def block(totals, index):
            values = load(builder, p_z, builder.mul(index, constant(BLOCK)), kind)
            return [builder.fadd(totals[0], emit_exp(builder, builder.fsub(values, peaks)))]

        (totals,) = fold(builder, constant(0), blocks_in(builder, size), [fill(kind, 0.0)], block)
        return sum_lanes(builder, totals)

    return z.dtype(z, peak), codegen


@intrinsic
def affine_pullback(typingctx, d_z, x, matrix, d_x, d_matrix, d_bias):
    """d_x = matrix · d_z; d_matrix += x ⊗ d_z; d_bias += d_z"""

    def codegen(context, builder, signature, args):
        (p_d_z, p_x, p_matrix, p_d_x, p_d_matrix, p_d_bias), sizes = _arrays(context, builder, signature, args)
        columns, rows = sizes[:2]
        kind = vector_of(context, signature.args[0])
        blocks = blocks_in(builder, columns)
        with cgutils.for_range(builder, blocks) as loop:
            place = builder.mul(loop.index, constant(BLOCK))
            total = builder.fadd(load(builder, p_d_bias, place, kind), load(builder, p_d_z, place, kind))
            store(builder, total, p_d_bias, place)
        with cgutils.for_range(builder, rows) as loop:
            row = builder.mul(loop.index, columns)
            factor = splat(builder, kind, builder.load(offset(builder, p_x, loop.index)))

            def block(totals, index, row=row, factor=factor):
                place = builder.mul(index, constant(BLOCK))
                entry = builder.add(row, place)
                values = load(builder, p_d_z, place, kind)
                grown = multiply_add(builder, factor, values, load(builder, p_d_matrix, entry, kind))
                store(builder, grown, p_d_matrix, entry)
                return [multiply_add(builder, values, load(builder, p_matrix, entry, kind), totals[0])]

            (totals,) = fold(builder, constant(0), blocks, [fill(kind, 0.0)], block)
            builder.store(sum_lanes(builder, totals), offset(builder, p_d_x, loop.index))
        return context.get_dummy_value()

    return types.void(d_z, x, matrix, d_x, d_matrix, d_bias), codegen
