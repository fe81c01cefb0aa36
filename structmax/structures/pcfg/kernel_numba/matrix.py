"""Products of small matrices, in sums of products or in maxima of sums, over flat arrays with strides.

    out[r, c] ⊕= ⊕ over t of a[r, t] ⊗ b[t, c]          ROWS × LANES entries of out at a time, in registers

Entry [r, t] of a lies at a0 + r · row_a + t · step_a, entry [t, c] of b at b0 + t · step_b + c, entry [r, c] of out at
o + r · row_o + c. The number of columns is a multiple of LANES: rows are padded.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled

# One AVX-512 register of float64, and as many rows as hide the latency of an addition.
LANES = 8
ROWS = 4


def _tile(rows, initial, combine):
    """An intrinsic that does `rows` rows and LANES columns; `combine(builder, total, left, right)` does a term."""

    @intrinsic
    def tile(typingctx, out, o, row_o, a, a0, row_a, step_a, b, b0, step_b, count):
        def codegen(context, builder, signature, args):
            kinds = signature.args
            arrays = ((kinds[k], args[k]) for k in (0, 3, 7))
            data_o, data_a, data_b = (context.make_array(kind)(context, builder, array).data for kind, array in arrays)
            o, row_o, a0, row_a, step_a, b0, step_b, count = (args[k] for k in (1, 2, 4, 5, 6, 8, 9, 10))
            vector = ir.VectorType(ir.DoubleType(), LANES)
            lanes = ir.VectorType(ir.IntType(32), LANES)

            def at(data, offset):
                return builder.gep(data, [offset], inbounds=True)

            def times(offset, factor):
                return builder.mul(offset, ir.Constant(offset.type, factor))

            def splat(scalar):
                undefined = ir.Constant(vector, ir.Undefined)
                lone = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(lone, lone, ir.Constant(lanes, [0] * LANES))

            start = ir.Constant(vector, [initial] * LANES)
            slots = [cgutils.alloca_once_value(builder, start) for _ in range(rows)]
            for slot in slots:
                builder.store(start, slot)
            with cgutils.for_range(builder, count) as loop:
                t = loop.index
                place = at(data_b, builder.add(b0, builder.mul(t, step_b)))
                right = builder.load(builder.bitcast(place, vector.as_pointer()), align=8)
                first = builder.add(a0, builder.mul(t, step_a))
                for r, slot in enumerate(slots):
                    left = splat(builder.load(at(data_a, builder.add(first, times(row_a, r)))))
                    builder.store(combine(builder, builder.load(slot), left, right), slot)
            one = ir.Constant(vector, [1.0 if initial == 0 else 0.0] * LANES)
            for r, slot in enumerate(slots):
                place = builder.bitcast(at(data_o, builder.add(o, times(row_o, r))), vector.as_pointer())
                builder.store(combine(builder, builder.load(slot), one, builder.load(place, align=8)), place, align=8)
            return context.get_dummy_value()

        index = types.intp
        return types.void(out, index, index, a, index, index, index, b, index, index, index), codegen

    return tile


def _product(builder, total, left, right):
    return builder.fadd(total, builder.fmul(left, right, flags=["contract"]), flags=["contract"])


def _best(builder, total, left, right):
    score = builder.fadd(left, right)
    return builder.select(builder.fcmp_ordered(">", score, total), score, total)


_add_rows, _add_row = _tile(ROWS, 0.0, _product), _tile(1, 0.0, _product)
_raise_rows, _raise_row = _tile(ROWS, -np.inf, _best), _tile(1, -np.inf, _best)


@compiled()
def add_product(out, o, row_o, a, a0, row_a, step_a, b, b0, step_b, rows, columns, count):
    """out[r, c] += Σ over t < count of a[r, t] · b[t, c], for r < rows and c < columns."""
    whole = rows // ROWS * ROWS
    for c in range(0, columns, LANES):
        for r in range(0, whole, ROWS):
            _add_rows(out, o + r * row_o + c, row_o, a, a0 + r * row_a, row_a, step_a, b, b0 + c, step_b, count)
        for r in range(whole, rows):
            _add_row(out, o + r * row_o + c, row_o, a, a0 + r * row_a, row_a, step_a, b, b0 + c, step_b, count)


@compiled()
def raise_to_sum(out, o, row_o, a, a0, row_a, step_a, b, b0, step_b, rows, columns, count):
    """out[r, c] = max(out[r, c], max over t < count of a[r, t] + b[t, c]), for r < rows and c < columns."""
    whole = rows // ROWS * ROWS
    for c in range(0, columns, LANES):
        for r in range(0, whole, ROWS):
            _raise_rows(out, o + r * row_o + c, row_o, a, a0 + r * row_a, row_a, step_a, b, b0 + c, step_b, count)
        for r in range(whole, rows):
            _raise_row(out, o + r * row_o + c, row_o, a, a0 + r * row_a, row_a, step_a, b, b0 + c, step_b, count)
