"""Sums of products, and maxima of sums, over many terms at once: so many entries of the outcome stay in registers.

Arrays are flat and float64. Of small matrices, ROWS × LANES entries at a time,

    out[r, c] ⊕= ⊕ over t of a[r, t] ⊗ b[t, c]

with entry [r, t] of a at a0 + r · row_a + t · step_a, entry [t, c] of b at b0 + t · step_b + c, and entry [r, c] of out
at o + r · row_o + c. The number of columns is a multiple of LANES: rows are padded. Of two rows that slide,

    out[o + l] ⊕= ⊕ over t of a[a0 + t · step_a + l] ⊗ b[b0 + t · step_b + l]          for all l < LANES
"""

from numba import types
from numba.extending import intrinsic

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import (
    LANES,
    MAXIMA,
    SUMS,
    constant,
    data_of,
    fill,
    fold,
    load,
    splat,
    store,
    vector_of,
)

# As many rows as hide the latency of an addition, and as many terms side by side, so that none waits for another.
ROWS = 4
CHAINS = 2


def _tile(semiring, rows, chains, slides):
    """An intrinsic that does `rows` rows and LANES columns, `chains` terms side by side; what a has is a vector, if it
    `slides`, or a number.
    """

    @intrinsic
    def tile(typingctx, out, o, row_o, a, a0, row_a, step_a, b, b0, step_b, count):
        def codegen(context, builder, signature, args):
            _, o, row_o, _, a0, row_a, step_a, _, b0, step_b, count = args
            p_out, p_a, p_b = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 3, 7))
            vector = vector_of(context, signature.args[0], LANES)
            given = vector if slides else vector.element

            def row_from(start, step, r):
                return builder.add(start, builder.mul(step, constant(r)))

            def term(totals, t):
                right = load(builder, p_b, builder.add(b0, builder.mul(t, step_b)), vector)
                first = builder.add(a0, builder.mul(t, step_a))
                lefts = (load(builder, p_a, row_from(first, row_a, r), given) for r in range(rows))
                wide = (left if slides else splat(builder, vector, left) for left in lefts)
                return [semiring.absorb(builder, left, right, each) for left, each in zip(wide, totals, strict=True)]

            def terms(totals, index):
                t = builder.mul(index, constant(chains))
                return [
                    total
                    for k in range(chains)
                    for total in term(totals[k * rows : (k + 1) * rows], builder.add(t, constant(k)))
                ]

            groups = builder.sdiv(count, constant(chains))
            totals = fold(builder, constant(0), groups, [fill(vector, semiring.zero)] * (rows * chains), terms)
            if chains > 1:
                totals[:rows] = fold(builder, builder.mul(groups, constant(chains)), count, totals[:rows], term)
            for r in range(rows):
                place = row_from(o, row_o, r)
                total = load(builder, p_out, place, vector)
                for other in totals[r::rows]:
                    total = semiring.join(builder, total, other)
                store(builder, total, p_out, place)
            return context.get_dummy_value()

        index = types.intp
        return types.void(out, index, index, a, index, index, index, b, index, index, index), codegen

    return tile


_add_rows, _add_row = _tile(SUMS, ROWS, 1, False), _tile(SUMS, 1, 1, False)
_raise_rows, _raise_row = _tile(MAXIMA, ROWS, 1, False), _tile(MAXIMA, 1, 1, False)
_add_sliding, _raise_sliding = _tile(SUMS, 1, CHAINS, True), _tile(MAXIMA, 1, CHAINS, True)


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


@compiled()
def add_products(out, o, a, a0, step_a, b, b0, step_b, count):
    """out[o + l] += Σ over t < count of a[a0 + t · step_a + l] · b[b0 + t · step_b + l], for all l < LANES."""
    _add_sliding(out, o, 0, a, a0, 0, step_a, b, b0, step_b, count)


@compiled()
def raise_to_sums(out, o, a, a0, step_a, b, b0, step_b, count):
    """out[o + l] = the larger of itself and the largest a[a0 + t · step_a + l] + b[b0 + t · step_b + l], t < count."""
    _raise_sliding(out, o, 0, a, a0, 0, step_a, b, b0, step_b, count)
