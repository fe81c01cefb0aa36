"""Tables for `descend`: scores over the temperature, a line for each item of the larger side. See ../README.md.

Most instances are only copied. Those with scores far from 0 are brought within reach (../range.py), and those with
forbidden pairs lose the pairs that no matching has (kernel_numba/support.py). Both begin with a best matching, so there
are three launches: which instances need one, the matchings of these, the tables.
"""

import triton
import triton.language as tl

from structmax.structures.matching.kernel_triton.assignment import NONE, ROOM
from structmax.structures.matching.kernel_triton.laplacian import SHARE
from structmax.structures.matching.kernel_triton.newton import BROKEN, INFEASIBLE, SOUND

# What an instance needs a matching for: pairs are forbidden, or scores are far.
FORBIDDEN, FAR = tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _sizes(p_rows, p_columns, i_instance, M):
    """Items, lines, and how far apart in memory those are: lines are rows, or columns where these are more."""
    r, c = tl.load(p_rows + i_instance).to(tl.int32), tl.load(p_columns + i_instance).to(tl.int32)
    return tl.minimum(r, c), tl.maximum(r, c), tl.where(r < c, M, 1), tl.where(r < c, 1, M)


@triton.jit
def _scores(p_scores, o_line, o_item, n, m, of_item, of_line):
    m_inside = (o_line < m) & (o_item < n)
    b_score = tl.load(p_scores + o_line * of_line + o_item * of_item, mask=m_inside, other=float("-inf"))
    return b_score.to(tl.float64)


@triton.jit
def _is_far(score, limit):
    return (tl.abs(score) > limit) & (tl.abs(score) < float("inf"))


@triton.jit
def _less_shared(score, best, limit):
    """Less the best of a line, where that is far below 0."""
    return score - tl.where(_is_far(best, limit) & (best < 0), best, 0.0)


@triton.jit(do_not_specialize=["N", "M"])
def survey(
    p_scores, p_rows, p_columns, p_shared, p_needs, p_kinds, p_needy_rows, p_needy_columns, N, M, limit: tl.float64,
    PARTIAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Which instances need a best matching, and scores that have the same one; sizes of the others become 0."""
    i_instance = tl.program_id(0).to(tl.int64)
    n, m, of_item, of_line = _sizes(p_rows, p_columns, i_instance, M)
    p_scores += i_instance * N * M
    p_shared += i_instance * N * M
    o_item = tl.arange(0, BLOCK)[None, :]
    b_flag = tl.zeros((ROWS, BLOCK), tl.int32)
    for start in range(0, m, ROWS):
        o_line = start + tl.arange(0, ROWS)[:, None]
        b_score = _scores(p_scores, o_line, o_item, n, m, of_item, of_line)
        m_inside = (o_line < m) & (o_item < n)
        b_flag |= tl.where(m_inside & (b_score == float("-inf")), FORBIDDEN, 0)
        b_flag |= tl.where(m_inside & _is_far(b_score, limit), FAR, 0)
        b_flag |= tl.where(b_score < float("inf"), 0, 4)
    far = tl.max(b_flag & FAR)
    broken = tl.max(b_flag & 4)
    needs = far
    if not PARTIAL:
        needs += tl.max(b_flag & FORBIDDEN)
    needs = tl.where(broken > 0, 0, needs)
    tl.store(p_needs + i_instance, needs)
    tl.store(p_kinds + i_instance, tl.where(broken > 0, BROKEN, SOUND))
    tl.store(p_needy_rows + i_instance, tl.where(needs > 0, tl.load(p_rows + i_instance), 0))
    tl.store(p_needy_columns + i_instance, tl.where(needs > 0, tl.load(p_columns + i_instance), 0))
    if needs > 0:
        b_best = tl.full((ROWS, BLOCK), float("-inf"), tl.float64)
        # whether the best of a line, and of an item, can be taken off
        lines, items = n * 0, n * 0
        if not PARTIAL:
            lines, items = tl.where(m == n, far, 0), far
        for start in range(0, m, ROWS):
            o_line = start + tl.arange(0, ROWS)[:, None]
            b_score = _scores(p_scores, o_line, o_item, n, m, of_item, of_line)
            own = _less_shared(b_score, tl.max(b_score, 1, keep_dims=True), limit)
            b_best = tl.maximum(b_best, tl.where(lines > 0, own, b_score))
        best = tl.max(b_best, 0, keep_dims=True)
        for start in range(0, m, ROWS):
            o_line = start + tl.arange(0, ROWS)[:, None]
            b_score = _scores(p_scores, o_line, o_item, n, m, of_item, of_line)
            own = _less_shared(b_score, tl.max(b_score, 1, keep_dims=True), limit)
            b_score = tl.where(lines > 0, own, b_score)
            b_score = tl.where(items > 0, _less_shared(b_score, best, limit), b_score)
            m_inside = (o_line < m) & (o_item < n)
            tl.store(p_shared + o_line * of_line + o_item * of_item, b_score, mask=m_inside)


@triton.jit
def _prices(p_scores, p_v, own, line, n, m, of_item, of_line, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The least prices of lines, at p_v, at which every item keeps the line it has; and what items pay: (1, BLOCK)."""
    o_item = tl.arange(0, BLOCK)[None, :]
    m_has = line != NONE
    held = tl.zeros((1, BLOCK), tl.float64)
    steps = n * 0
    changed = steps + 1
    # Another line costs what the item would gain by it.
    while (changed > 0) & (steps < m):
        changed = n * 0
        for start in range(0, m, ROWS):
            o_line = start + tl.arange(0, ROWS)[:, None]
            b_gain = _scores(p_scores, o_line, o_item, n, m, of_item, of_line) / ROOM - own + held
            price = tl.load(p_v + o_line, mask=o_line < m, other=0.0)
            raised = tl.maximum(price, tl.max(b_gain, 1, keep_dims=True))
            changed += tl.sum(tl.where(raised > price, 1, 0))
            tl.debug_barrier()
            tl.store(p_v + o_line, raised, mask=o_line < m)
        tl.debug_barrier()
        held = tl.load(p_v + line, mask=m_has, other=0.0)
        steps += 1
    return held


@triton.jit
def _forbid_unusable(
    p_table, p_couplings, p_lines, p_owner, line, n, m, pitch, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """−inf for the pairs that no matching has, beside one in which items have these lines.

    An item can take the line of another that can go on throwing out others until the line of the first is taken, or one
    that nobody has: that is the same as any other of these.
    """
    o_item = tl.arange(0, BLOCK)[None, :]
    m_item = o_item < n
    b_free = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, m, ROWS):
        o_line = start + tl.arange(0, ROWS)[:, None]
        m_inside = (o_line < m) & m_item
        b_score = tl.load(p_table + o_line * pitch + o_item, mask=m_inside, other=float("-inf"))
        owner = tl.load(p_owner + o_line, mask=o_line < m, other=0.0)
        b_free = tl.where((b_score > float("-inf")) & (owner < 0), 1.0, b_free)
    free = tl.max(b_free, 0, keep_dims=True)
    for start in range(0, n, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        m_pair = (o_row < n) & m_item
        b_score = tl.load(p_table + line * pitch + o_row, mask=m_pair, other=float("-inf"))
        tl.store(p_couplings + o_row * pitch + o_item, tl.where(b_score > float("-inf"), 1.0, 0.0), mask=m_pair)
    tl.debug_barrier()
    for k in range(n):
        row = tl.load(p_couplings + k * pitch + o_item, mask=m_item, other=0.0)
        for start in range(0, n, ROWS):
            o_row = start + tl.arange(0, ROWS)[:, None]
            m_pair = (o_row < n) & m_item
            to_k = tl.load(p_couplings + o_row * pitch + k, mask=o_row < n, other=0.0)
            b_reach = tl.load(p_couplings + o_row * pitch + o_item, mask=m_pair, other=0.0)
            tl.store(p_couplings + o_row * pitch + o_item, tl.maximum(b_reach, to_k * row), mask=m_pair)
        tl.debug_barrier()
    for start in range(0, n, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        b_reach = tl.load(p_couplings + o_row * pitch + o_item, mask=(o_row < n) & m_item, other=0.0)
        tl.store(p_lines + o_row, tl.max(b_reach * free, 1, keep_dims=True), mask=o_row < n)
    tl.debug_barrier()
    # Everybody is reached from there.
    escapes = tl.load(p_lines + o_item, mask=m_item, other=0.0)
    for start in range(0, m, ROWS):
        o_line = start + tl.arange(0, ROWS)[:, None]
        m_inside = (o_line < m) & m_item
        owner = tl.load(p_owner + o_line, mask=o_line < m, other=-1.0).to(tl.int32)
        m_owned = m_inside & (owner >= 0)
        there = tl.load(p_couplings + o_item * pitch + owner, mask=m_owned, other=0.0)
        back = tl.load(p_couplings + owner * pitch + o_item, mask=m_owned, other=0.0)
        back = tl.maximum(back, tl.load(p_lines + owner, mask=owner >= 0, other=0.0))
        m_usable = (tl.maximum(there, escapes) > 0) & ((back > 0) | (owner < 0))
        tl.store(p_table + o_line * pitch + o_item, float("-inf"), mask=m_inside & (m_usable == 0))
    tl.debug_barrier()


@triton.jit(do_not_specialize=["N", "M", "pitch", "longest"])
def prepare(
    p_scores, p_rows, p_columns, p_shared, p_best, p_needs, p_kinds, p_tables, p_numbers, p_couplings, p_lines, N, M,
    pitch, longest, temperature: tl.float64, reach: tl.float64, greatest: tl.float64,
    PARTIAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes the tables, and the least and the greatest score of each, and what its value has lost on the way.

    `greatest` is the largest number of the dtype of the scores.
    """
    i_instance = tl.program_id(0).to(tl.int64)
    n, m, of_item, of_line = _sizes(p_rows, p_columns, i_instance, M)
    needs = tl.load(p_needs + i_instance)
    p_scores += i_instance * N * M
    p_shared += i_instance * N * M
    p_best += i_instance * N * M
    p_tables += i_instance * longest * pitch
    p_couplings += i_instance * pitch * pitch
    p_lines += i_instance * (SHARE * BLOCK + 5 * longest)
    p_owner = p_lines + SHARE * BLOCK
    p_v = p_owner + longest
    o_item = tl.arange(0, BLOCK)[None, :]
    feasible, far = n * 0 + 1, needs & FAR
    line = tl.full((1, BLOCK), NONE, tl.int32)
    own, held = tl.zeros((1, BLOCK), tl.float64), tl.zeros((1, BLOCK), tl.float64)
    if needs > 0:
        b_line = tl.full((ROWS, BLOCK), NONE, tl.int32)
        b_own, b_given = tl.zeros((ROWS, BLOCK), tl.float64), tl.zeros((ROWS, BLOCK), tl.float64)
        for start in range(0, m, ROWS):
            o_line = start + tl.arange(0, ROWS)[:, None]
            m_inside = (o_line < m) & (o_item < n)
            m_best = tl.load(p_best + o_line * of_line + o_item * of_item, mask=m_inside, other=0.0) > 0
            b_line = tl.where(m_best, o_line, b_line)
            b_own = tl.where(m_best, _scores(p_shared, o_line, o_item, n, m, of_item, of_line), b_own)
            b_given = tl.where(m_best, _scores(p_scores, o_line, o_item, n, m, of_item, of_line), b_given)
            owner = tl.max(tl.where(m_best, o_item, NONE), 1, keep_dims=True)
            tl.store(p_owner + o_line, owner.to(tl.float64), mask=o_line < m)
            tl.store(p_v + o_line, tl.zeros((ROWS, 1), tl.float64), mask=o_line < m)
        line = tl.max(b_line, 0, keep_dims=True)
        own = tl.sum(b_own, 0, keep_dims=True) / ROOM
        # A sum of finite scores may be −inf in their dtype.
        feasible = tl.where(tl.sum(b_given / ROOM) >= -greatest / ROOM, 1, 0)
        if not PARTIAL:
            feasible = tl.where(tl.sum(tl.where(line != NONE, 1, 0)) == n, feasible, 0)
        tl.debug_barrier()
        if (far > 0) & (feasible > 0):
            held = _prices(p_shared, p_v, own, line, n, m, of_item, of_line, ROWS, BLOCK)
    u = tl.where(line != NONE, own - held, 0.0)
    low_u = tl.zeros((1, BLOCK), tl.float64)
    if PARTIAL:
        low_u = tl.minimum(u * ROOM, 2 * reach)
    b_low = tl.full((ROWS, BLOCK), float("inf"), tl.float64)
    b_high = tl.full((ROWS, BLOCK), float("-inf"), tl.float64)
    b_lost = tl.zeros((ROWS, BLOCK), tl.float64)
    for start in range(0, m, ROWS):
        o_line = start + tl.arange(0, ROWS)[:, None]
        m_inside = (o_line < m) & (o_item < n)
        b_score = _scores(p_scores, o_line, o_item, n, m, of_item, of_line)
        if (far > 0) & (feasible > 0):
            # Prices round to their own last digit, but what is chosen is not below them, and nothing is above.
            v = tl.load(p_v + o_line, mask=o_line < m, other=0.0)
            m_best = line == o_line
            b_shared = _scores(p_shared, o_line, o_item, n, m, of_item, of_line)
            b_below = tl.where(m_best, 0.0, tl.minimum(b_shared / ROOM - u - v, 0.0)) * ROOM
            b_near = tl.where(b_below < -reach, float("-inf"), b_below) + low_u + tl.minimum(v * ROOM, 2 * reach)
            b_lost += tl.where(m_best & m_inside, b_score - b_near, 0.0)
            b_score = b_near
        b_score = b_score / temperature
        b_low = tl.minimum(b_low, tl.where(m_inside & (b_score > float("-inf")), b_score, float("inf")))
        b_high = tl.maximum(b_high, tl.where(m_inside, b_score, float("-inf")))
        tl.store(p_tables + o_line * pitch + o_item, b_score, mask=m_inside)
    if not PARTIAL:
        if (needs > 0) & (feasible > 0):
            tl.debug_barrier()
            _forbid_unusable(p_tables, p_couplings, p_lines, p_owner, line, n, m, pitch, ROWS, BLOCK)
    tl.store(p_numbers + i_instance * 3, tl.min(b_low))
    tl.store(p_numbers + i_instance * 3 + 1, tl.max(b_high))
    tl.store(p_numbers + i_instance * 3 + 2, tl.sum(b_lost))
    if feasible == 0:
        tl.store(p_kinds + i_instance, INFEASIBLE)
