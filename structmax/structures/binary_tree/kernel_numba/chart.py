"""The chart by width, and sums over the splits of many spans at once.

Entry w · pitch + i of a chart, after LANES of margin, belongs to the span [i, i + w]. Its splits pair

    [i, i + t]      entry t · pitch + i                        of step pitch       in t
    [i + t + 1, i + w]      entry (w − t − 1) · pitch + i + t + 1      of step 1 − pitch

so LANES neighbouring spans of one width are one vector, and sums over t stay in registers. A row of width w has n − w
entries; from there to the next row are spans that cannot be built, whose entries count nothing.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.labels import (
    best_label,
    log_sum,
    mean_over_labels,
    share_out,
    share_out_along,
)

# One AVX-512 register of float64.
LANES = 8
# Terms that are summed side by side, so that no addition waits for the one before.
CHAINS = 2


@compiled()
def pitch_of(n):
    return n + LANES


@compiled()
def chart_size(n):
    return LANES + n * pitch_of(n)


@compiled()
def new_chart(n):
    """Each chart is memory of its own: LLVM vectorises loops over two of them only if it can tell them apart."""
    return np.empty(chart_size(n))


@compiled()
def row_of(w, n):
    """Where the spans of width w begin."""
    return LANES + w * pitch_of(n)


@compiled()
def spans(chart, w, n):
    """The spans of width w by where they begin, and on to a whole number of vectors."""
    row = row_of(w, n)
    return chart[row : row + (n - w + LANES - 1) // LANES * LANES]


# --- sums over splits ------------------------------------------------------------------------------------------------


def _fold(context, builder, signature, args, initial, step):
    """out[o + l] = fold of step(total, a[a0 + t·da + l], b[b0 + t·db + l]) over t < count, for all l < LANES."""
    arrays = [(signature.args[k], args[k]) for k in (0, 2, 5)]
    out, a, b = (context.make_array(kind)(context, builder, array).data for kind, array in arrays)
    o, a0, da, b0, db, count = (args[k] for k in (1, 3, 4, 6, 7, 8))
    vector = ir.VectorType(ir.DoubleType(), LANES)

    def place(data, offset):
        return builder.bitcast(builder.gep(data, [offset], inbounds=True), vector.as_pointer())

    def advance(t, slot):
        left = builder.load(place(a, builder.add(a0, builder.mul(t, da))), align=8)
        right = builder.load(place(b, builder.add(b0, builder.mul(t, db))), align=8)
        builder.store(step(builder.load(slot), left, right), slot)

    start = ir.Constant(vector, [initial] * LANES)
    slots = [cgutils.alloca_once_value(builder, start) for _ in range(CHAINS)]
    for slot in slots:
        builder.store(start, slot)
    chains = ir.Constant(count.type, CHAINS)
    rounds = builder.sdiv(count, chains)
    with cgutils.for_range(builder, rounds) as loop:
        t = builder.mul(loop.index, chains)
        for k, slot in enumerate(slots):
            advance(builder.add(t, ir.Constant(t.type, k)), slot)
    with cgutils.for_range(builder, count, start=builder.mul(rounds, chains)) as loop:
        advance(loop.index, slots[0])
    return [builder.load(slot) for slot in slots], place(out, o)


@intrinsic
def add_products(typingctx, out, o, a, a0, da, b, b0, db, count):
    """out[o + l] += Σ over t < count of a[a0 + t·da + l] · b[b0 + t·db + l], for all l < LANES."""

    def codegen(context, builder, signature, args):
        def step(total, left, right):
            return builder.fadd(total, builder.fmul(left, right, flags=["contract"]), flags=["contract"])

        totals, place = _fold(context, builder, signature, args, 0.0, step)
        total = builder.load(place, align=8)
        for other in totals:
            total = builder.fadd(total, other)
        builder.store(total, place, align=8)
        return context.get_dummy_value()

    index = types.intp
    return types.void(out, index, a, index, index, b, index, index, index), codegen


@intrinsic
def raise_to_sums(typingctx, out, o, a, a0, da, b, b0, db, count):
    """out[o + l] = max(out[o + l], max over t < count of a[a0 + t·da + l] + b[b0 + t·db + l]), for all l < LANES."""

    def codegen(context, builder, signature, args):
        def greater(x, y):
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        def step(best, left, right):
            return greater(builder.fadd(left, right), best)

        bests, place = _fold(context, builder, signature, args, -np.inf, step)
        best = builder.load(place, align=8)
        for other in bests:
            best = greater(best, other)
        builder.store(best, place, align=8)
        return context.get_dummy_value()

    index = types.intp
    return types.void(out, index, a, index, index, b, index, index, index), codegen


# --- between scores (N, N, C) and charts -----------------------------------------------------------------------------


@compiled()
def read(x, n, soft, scores):
    """The score of each span by width: log Σ exp over its labels if `soft`, else the best. False if NaN or +inf."""
    pitch, sound = pitch_of(n), True
    scores[: chart_size(n)] = -np.inf
    for i in range(n):
        for w in range(n - i):
            for c in range(x.shape[2]):
                sound &= x[i, i + w, c] < np.inf
        for w in range(n - i):
            place = LANES + w * pitch + i
            if x.shape[2] == 1:
                scores[place] = x[i, i + w, 0]
            else:
                scores[place] = log_sum(x[i, i + w]) if soft else best_label(x[i, i + w])
    return sound


@compiled()
def read_tangent(x, tangent, n, out):
    """The tangent of each span's score, the mean over its labels, by width; 0 at a score of −inf."""
    pitch = pitch_of(n)
    out[: chart_size(n)] = 0.0
    for i in range(n):
        for w in range(n - i):
            place = LANES + w * pitch + i
            out[place] = mean_over_labels(x[i, i + w], tangent[i, i + w])


@compiled()
def write(x, mu, n, out):
    """Marginals of labels from those of spans: out[i, j, c] = μ · p(c), for i ≤ j < n."""
    pitch = pitch_of(n)
    for i in range(n):
        for w in range(n - i):
            place = LANES + w * pitch + i
            if x.shape[2] == 1:
                out[i, i + w, 0] = mu[place]
            else:
                share_out(x[i, i + w], mu[place], out[i, i + w])


@compiled()
def write_tangent(x, mu, tangent, d_mu, n, out):
    """The tangent of `write`: out[i, j, c] = p(c) · (dμ + μ · (tangent − its mean)), 0 at a score of −inf."""
    pitch = pitch_of(n)
    for i in range(n):
        for w in range(n - i):
            place = LANES + w * pitch + i
            if x.shape[2] == 1:
                out[i, i + w, 0] = d_mu[place]
            else:
                share_out_along(x[i, i + w], tangent[i, i + w], mu[place], d_mu[place], out[i, i + w])
