"""Two scans of a row of scores, as LLVM vectors: all an assignment spends its time on.

Both look at scores[i, : m] in whole blocks, and at what is left of the row in fringe[i], a block of its own that ends
with −inf. All vectors over the columns are float64 (`before`: int64) and as long as whole blocks, `padded(m)`.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.vector import BLOCK

_INT = ir.IntType(64)
_LANE = ir.IntType(32)
_REALS = ir.VectorType(ir.DoubleType(), BLOCK)
_INTS = ir.VectorType(_INT, BLOCK)


@compiled()
def padded(m):
    return (m + BLOCK - 1) // BLOCK * BLOCK


def _block(builder, data, place, kind):
    """A pointer to BLOCK entries from `place` on."""
    return builder.bitcast(builder.gep(data, [place], inbounds=True), kind.as_pointer())


def _load(builder, data, place, kind):
    return builder.load(_block(builder, data, place, kind), align=4)


def _store(builder, values, data, place):
    builder.store(values, _block(builder, data, place, values.type), align=4)


def _splat(builder, kind, scalar):
    lone = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(lone, lone, ir.Constant(ir.VectorType(_LANE, BLOCK), [0] * BLOCK))


def _fill(kind, value):
    return ir.Constant(kind, [value] * BLOCK)


def _data(context, builder, array_type, array):
    return context.make_array(array_type)(context, builder, array).data


def _over_columns(context, builder, scores, fringe, i, m, initial, step):
    """Fold `step(accumulators, scores, place)` over the blocks of row i; `scores` and `fringe` are (type, array)."""
    slots = [cgutils.alloca_once_value(builder, value) for value in initial]
    for slot, value in zip(slots, initial, strict=True):
        builder.store(value, slot)

    def visit(values, place):
        for slot, value in zip(slots, step([builder.load(slot) for slot in slots], values, place), strict=True):
            builder.store(value, slot)

    block = ir.Constant(_INT, BLOCK)
    whole = builder.sdiv(m, block)
    array = context.make_array(scores[0])(context, builder, scores[1])
    row = builder.gep(array.data, [builder.mul(i, builder.extract_value(array.shape, 1))], inbounds=True)
    given = ir.VectorType(context.get_data_type(scores[0].dtype), BLOCK)
    with cgutils.for_range(builder, whole) as loop:
        place = builder.mul(loop.index, block)
        values = _load(builder, row, place, given)
        visit(values if given == _REALS else builder.fpext(values, _REALS), place)
    rest = _data(context, builder, *fringe)
    with builder.if_then(builder.icmp_signed("<", builder.mul(whole, block), m)):
        visit(_load(builder, rest, builder.mul(i, block), _REALS), builder.mul(whole, block))
    return [builder.load(slot) for slot in slots]


def _halves(builder, values, width):
    return [
        builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(_LANE, width), list(lanes)))
        for lanes in (range(width), range(width, 2 * width))
    ]


def _folded(builder, vectors, combine):
    """One number from the lanes of each vector; `combine` takes two tuples of half as many lanes."""
    width = BLOCK
    while width > 1:
        width //= 2
        vectors = combine(*zip(*(_halves(builder, values, width) for values in vectors), strict=True))
    return [builder.extract_element(values, ir.Constant(_LANE, 0)) for values in vectors]


@intrinsic
def best_two(typingctx, scores, fringe, i, m, price):
    """The largest of scores[i, j] − price[j] over j < m, its j, and the largest of the others: (best, j, second)."""

    def codegen(context, builder, signature, args):
        scores, fringe, i, m, price = args
        prices = _data(context, builder, signature.args[4], price)

        def step(accumulators, values, place):
            best, index, second = accumulators
            values = builder.fsub(values, _load(builder, prices, place, _REALS))
            better = builder.fcmp_ordered(">", values, best)
            # what loses against the best so far, or the best that is beaten
            loser = builder.select(better, best, values)
            return [
                builder.select(better, values, best),
                builder.select(better, _splat(builder, _INTS, place), index),
                builder.select(builder.fcmp_ordered(">", loser, second), loser, second),
            ]

        nothing = _fill(_REALS, float("-inf"))
        best, index, second = _over_columns(
            context,
            builder,
            (signature.args[0], scores),
            (signature.args[1], fringe),
            i,
            m,
            [nothing, _fill(_INTS, 0), nothing],
            step,
        )
        index = builder.add(index, ir.Constant(_INTS, list(range(BLOCK))))

        def combine(a, b):
            better = builder.fcmp_ordered(">", b[0], a[0])
            loser = builder.select(better, a[0], b[0])
            others = builder.select(builder.fcmp_ordered(">", a[2], b[2]), a[2], b[2])
            return (
                builder.select(better, b[0], a[0]),
                builder.select(better, b[1], a[1]),
                builder.select(builder.fcmp_ordered(">", loser, others), loser, others),
            )

        return context.make_tuple(builder, signature.return_type, _folded(builder, [best, index, second], combine))

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
            _data(context, builder, kind, array) for kind, array in zip(signature.args[5:], lanes, strict=True)
        )
        bases, rows = _splat(builder, _REALS, base), _splat(builder, _INTS, i)
        far, zeros = _fill(_REALS, float("inf")), _fill(_REALS, 0.0)

        def smaller(a, b):
            return builder.select(builder.fcmp_ordered("<", a, b), a, b)

        def step(accumulators, values, place):
            near, index, leave = accumulators
            ahead = builder.fadd(bases, builder.fsub(_load(builder, tolls, place, _REALS), values))
            known = _load(builder, reaches, place, _REALS)
            shorter = builder.fcmp_ordered("<", ahead, known)
            ahead = builder.select(shorter, ahead, known)
            _store(builder, ahead, reaches, place)
            _store(builder, builder.select(shorter, rows, _load(builder, befores, place, _INTS)), befores, place)
            fence = _load(builder, fences, place, _REALS)
            inside = builder.fadd(ahead, fence)
            nearer = builder.fcmp_ordered("<", inside, near)
            outside = builder.select(builder.fcmp_ordered(">", fence, zeros), ahead, far)
            return [
                builder.select(nearer, inside, near),
                builder.select(nearer, _splat(builder, _INTS, place), index),
                smaller(outside, leave),
            ]

        near, index, leave = _over_columns(
            context,
            builder,
            (signature.args[0], scores),
            (signature.args[1], fringe),
            i,
            m,
            [far, _fill(_INTS, 0), far],
            step,
        )
        index = builder.add(index, ir.Constant(_INTS, list(range(BLOCK))))

        def combine(a, b):
            nearer = builder.fcmp_ordered("<", b[0], a[0])
            return (
                builder.select(nearer, b[0], a[0]),
                builder.select(nearer, b[1], a[1]),
                smaller(a[2], b[2]),
            )

        return context.make_tuple(builder, signature.return_type, _folded(builder, [near, index, leave], combine))

    found = types.Tuple((types.float64, types.int64, types.float64))
    wanted = (scores, fringe, types.int64, types.int64, types.float64, toll, fence, reach, before)
    return found(*wanted), codegen
