"""Two scans of a row of scores: all an assignment spends its time on.

Both look at scores[i, : m] in whole blocks, and at what is left of the row in fringe[i], a block of its own that ends
with −inf. All vectors over the columns are float64 (`before`: int64) and as long as whole blocks.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from structmax.numerics.kernel_numba.llvm import (
    BLOCK,
    INDEX,
    blocks_in,
    columns_of,
    constant,
    data_of,
    fill,
    fold,
    fold_lanes,
    larger,
    load,
    offset,
    smaller,
    splat,
    store,
    vector_of,
)

_REALS = ir.VectorType(ir.DoubleType(), BLOCK)
_INTS = ir.VectorType(INDEX, BLOCK)


def _over_columns(context, builder, scores, fringe, i, m, initial, step):
    """Folds `step(accumulators, scores, place)` over the blocks of row i; `scores` and `fringe` are (type, array)."""
    width = columns_of(context, builder, *scores)
    row = offset(builder, data_of(context, builder, *scores), builder.mul(i, width))
    rest = data_of(context, builder, *fringe)
    given = vector_of(context, scores[0])

    def of_row(accumulators, index):
        place = builder.mul(index, constant(BLOCK))
        values = load(builder, row, place, given)
        return step(accumulators, values if given == _REALS else builder.fpext(values, _REALS), place)

    def of_fringe(accumulators, index):
        values = load(builder, rest, builder.mul(i, constant(BLOCK)), _REALS)
        return step(accumulators, values, builder.mul(index, constant(BLOCK)))

    whole = builder.sdiv(m, constant(BLOCK))
    accumulators = fold(builder, constant(0), whole, initial, of_row)
    return fold(builder, whole, blocks_in(builder, m), accumulators, of_fringe)


@intrinsic
def best_two(typingctx, scores, fringe, i, m, price):
    """The largest of scores[i, j] − price[j] over j < m, its j, and the largest of the others: (best, j, second)."""

    def codegen(context, builder, signature, args):
        scores, fringe, i, m, price = args
        prices = data_of(context, builder, signature.args[4], price)

        def step(accumulators, values, place):
            best, index, second = accumulators
            values = builder.fsub(values, load(builder, prices, place, _REALS))
            better = builder.fcmp_ordered(">", values, best)
            # what loses against the best so far, or the best that is beaten
            loser = builder.select(better, best, values)
            return [
                builder.select(better, values, best),
                builder.select(better, splat(builder, _INTS, place), index),
                larger(builder, loser, second),
            ]

        nothing = fill(_REALS, float("-inf"))
        best, index, second = _over_columns(
            context,
            builder,
            (signature.args[0], scores),
            (signature.args[1], fringe),
            i,
            m,
            [nothing, fill(_INTS, 0), nothing],
            step,
        )
        index = builder.add(index, ir.Constant(_INTS, list(range(BLOCK))))

        def combine(a, b):
            better = builder.fcmp_ordered(">", b[0], a[0])
            loser = builder.select(better, a[0], b[0])
            others = larger(builder, a[2], b[2])
            return (
                builder.select(better, b[0], a[0]),
                builder.select(better, b[1], a[1]),
                larger(builder, loser, others),
            )

        return context.make_tuple(builder, signature.return_type, fold_lanes(builder, [best, index, second], combine))

    found = types.Tuple((types.float64, types.int64, types.float64))
    return found(scores, fringe, types.int64, types.int64, price), codegen


@intrinsic
def relax(typingctx, scores, fringe, i, m, base, toll, fence, reach, before):
    """Where row i gets from `base`: reach[j] = the smaller of itself and base + toll[j] − scores[i, j].

    before[j] = i where that is new. Returns the smallest reach[j] + fence[j] and its j, and the smallest reach[j] where
    fence[j] is not 0: (near, j, exit).
    """

    def codegen(context, builder, signature, args):
        scores, fringe, i, m, base, *lanes = args
        tolls, fences, reaches, befores = (
            data_of(context, builder, kind, array) for kind, array in zip(signature.args[5:], lanes, strict=True)
        )
        bases, rows = splat(builder, _REALS, base), splat(builder, _INTS, i)
        far, zeros = fill(_REALS, float("inf")), fill(_REALS, 0.0)

        def step(accumulators, values, place):
            near, index, leave = accumulators
            ahead = builder.fadd(bases, builder.fsub(load(builder, tolls, place, _REALS), values))
            known = load(builder, reaches, place, _REALS)
            shorter = builder.fcmp_ordered("<", ahead, known)
            ahead = builder.select(shorter, ahead, known)
            store(builder, ahead, reaches, place)
            store(builder, builder.select(shorter, rows, load(builder, befores, place, _INTS)), befores, place)
            fence = load(builder, fences, place, _REALS)
            inside = builder.fadd(ahead, fence)
            nearer = builder.fcmp_ordered("<", inside, near)
            outside = builder.select(builder.fcmp_ordered(">", fence, zeros), ahead, far)
            return [
                builder.select(nearer, inside, near),
                builder.select(nearer, splat(builder, _INTS, place), index),
                smaller(builder, outside, leave),
            ]

        near, index, leave = _over_columns(
            context,
            builder,
            (signature.args[0], scores),
            (signature.args[1], fringe),
            i,
            m,
            [far, fill(_INTS, 0), far],
            step,
        )
        index = builder.add(index, ir.Constant(_INTS, list(range(BLOCK))))

        def combine(a, b):
            nearer = builder.fcmp_ordered("<", b[0], a[0])
            return (
                builder.select(nearer, b[0], a[0]),
                builder.select(nearer, b[1], a[1]),
                smaller(builder, a[2], b[2]),
            )

        return context.make_tuple(builder, signature.return_type, fold_lanes(builder, [near, index, leave], combine))

    found = types.Tuple((types.float64, types.int64, types.float64))
    wanted = (scores, fringe, types.int64, types.int64, types.float64, toll, fence, reach, before)
    return found(*wanted), codegen
