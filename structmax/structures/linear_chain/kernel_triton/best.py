"""The best sequence of few labels in one launch: forwards by the best way to each label, and back by pointers.

Where labels are many, choosing them beside the walk and writing matrices along the way back would take longer than
doing so for all positions at once (walks.py).
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.logs import broken, parts
from structmax.numerics.kernel_triton.paths import first_best
from structmax.numerics.kernel_triton.transitions import store_row
from structmax.structures.linear_chain.kernel_triton.inside import forwards


@triton.jit
def _store_matrix(p_matrix, b_matrix, o_label, C: tl.constexpr):
    mask = (o_label < C)[:, None] & (o_label < C)[None, :]
    tl.store(p_matrix + o_label[:, None] * C + o_label[None, :], b_matrix, mask=mask)


@triton.jit(do_not_specialize=["N"])
def best_sequences(
    p_unary, p_pairwise, p_lengths, p_pointer, p_y_unary, p_y_pairwise, N,
    SHARED: tl.constexpr, DOUBLE: tl.constexpr, C: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One best structure of each instance. Grid (B,)."""
    WORK: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i_b = tl.program_id(0).to(tl.int64)
    o_label = tl.arange(0, SPAN)
    length = tl.load(p_lengths + i_b)
    p_unary += i_b * N * C
    p_y_unary += i_b * N * C
    p_pointer += i_b * N * C
    o_matrices = i_b * C * C if SHARED else i_b * (N - 1) * C * C
    p_pairwise += o_matrices
    p_y_pairwise += o_matrices
    value = tl.full((), 0.0, WORK)
    b_count = tl.zeros((SPAN, SPAN), WORK)
    if length > 0:
        b_a, score = forwards(
            p_unary, p_pairwise, p_unary, None, None, None, p_pointer, 0, length - 1, 0,
            SHARED, True, WORK, C, SPAN, SPAN, STAGES,
        )  # fmt: skip
        # a score below all numbers is that of nothing feasible
        value = tl.where(broken(b_a, 0) > 0, float("nan"), score).to(WORK)
        label = tl.min(first_best(b_a[:, None], o_label, SPAN), 0)
        # threads read what others wrote
        tl.debug_barrier()
        for back in tl.range(1, length, num_stages=STAGES):
            t = length - back
            b_pointer = tl.load(p_pointer + t * C + o_label, mask=o_label < C, other=0)
            before = tl.sum(tl.where(o_label == label, b_pointer, 0), 0)
            b_step = ((o_label == before)[:, None] & (o_label == label)[None, :]).to(WORK)
            store_row(p_y_unary + t * C, o_label, parts(value, (o_label == label).to(WORK), t > 0), C)
            if SHARED:
                b_count += b_step
            else:
                _store_matrix(p_y_pairwise + (t - 1) * C * C, parts(value, b_step, t > 0), o_label, C)
            label = before
        store_row(p_y_unary, o_label, parts(value, (o_label == label).to(WORK), length > 0), C)
    if SHARED:
        _store_matrix(p_y_pairwise, parts(value, b_count, length > 1), o_label, C)
    b_nothing = tl.zeros((SPAN,), WORK)
    for t in tl.range(length, N):
        store_row(p_y_unary + t * C, o_label, b_nothing, C)
        if not SHARED:
            if t > 0:
                _store_matrix(p_y_pairwise + (t - 1) * C * C, b_count, o_label, C)
