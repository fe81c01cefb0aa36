"""The best matching by prices of columns: one program for each instance. Derivations: ../README.md.

The search is that of kernel_numba/assignment.py, with the same names. Prices, owners and distances of all columns are
in registers, one lane for each column; scores stay in memory, and each bid and each step of a path reads one row.
"""

import triton
import triton.language as tl

from structmax.numerics.kernel_triton.lanes import first_lane, pick

NONE = tl.constexpr(-1)
# Rows bid at most this many times each, on average: a war over few columns is left to the shortest paths.
BIDS = tl.constexpr(4)
# Scores are divided by this where sums and differences of them may overflow, which changes no order.
ROOM = tl.constexpr(1024.0)


@triton.jit
def _row(p_scores, i, down, across, scale, o_lane, m_lane):
    score = tl.load(p_scores + i * down + o_lane * across, mask=m_lane, other=float("-inf"))
    return score.to(tl.float64) * scale


@triton.jit
def _by_bidding(p_scores, down, across, scale, n, m, PARTIAL: tl.constexpr, BLOCK: tl.constexpr):
    """Rows take their best column at the price at which the second is as good: prices, owners, rows that are done."""
    o_lane = tl.arange(0, BLOCK)
    m_lane = o_lane < m
    price = tl.zeros((BLOCK,), tl.float64)
    owner = tl.full((BLOCK,), NONE, tl.int32)
    done = tl.where(o_lane < n, 0, 1)
    i, bids = n * 0, n * 0
    following = i + 1
    while i < n:
        bids += 1
        b_profit = _row(p_scores, i, down, across, scale, o_lane, m_lane) - price
        best = tl.max(b_profit)
        j = first_lane(b_profit == best, o_lane, BLOCK)
        second = tl.max(tl.where(o_lane == j, float("-inf"), b_profit))
        rival, before = pick(owner, o_lane, j), pick(price, o_lane, j)
        single = n * 0
        if PARTIAL:
            # Prices only rise: it will stay single.
            single = tl.where(best <= 0, 1, 0)
            second = tl.maximum(second, 0.0)
        raised = before + (tl.where(best == float("-inf"), 0.0, best) - second)
        # A tie: nobody is displaced, and what is free stays free of charge.
        tie = (rival >= 0) & (raised <= before)
        free = first_lane((owner == NONE) & m_lane & (b_profit == best), o_lane, BLOCK)
        j = tl.where(tie, free, j)
        rival = tl.where(tie, NONE, rival)
        raised = tl.where(tie, 0.0, raised)
        waits = (single > 0) | (j == BLOCK) | (second == float("-inf")) | (bids > BIDS * n)
        rival = tl.where(waits, NONE, rival)
        j = tl.where(waits, BLOCK, j)
        price = tl.where(o_lane == j, raised, price)
        owner = tl.where(o_lane == j, i, owner)
        done = tl.where((o_lane == i) & ((j < BLOCK) | (single > 0)), 1, done)
        done = tl.where(o_lane == rival, 0, done)
        # Who was displaced bids again at once.
        i = tl.where(rival >= 0, rival, following)
        following = tl.where(rival >= 0, following, following + 1)
    return price, owner, done


@triton.jit
def _assign(p_scores, down, across, scale, n, m, PARTIAL: tl.constexpr, BLOCK: tl.constexpr):
    """The owner of each column in a best matching of n rows with m ≥ n columns, and whether there is one."""
    o_lane = tl.arange(0, BLOCK)
    m_lane = o_lane < m
    price, owner, done = _by_bidding(p_scores, down, across, scale, n, m, PARTIAL, BLOCK)
    feasible = n * 0 + 1
    start = first_lane(done == 0, o_lane, BLOCK)
    while start < BLOCK:
        # What each owner has: rows on a path come from there.
        m_owned = owner != NONE
        gain = tl.load(p_scores + owner * down + o_lane * across, mask=m_owned, other=0.0).to(tl.float64) * scale
        reach = tl.full((BLOCK,), float("inf"), tl.float64)
        before = tl.full((BLOCK,), NONE, tl.int32)
        closed = tl.zeros((BLOCK,), tl.int32)
        i, base = start, tl.sum(price * 0.0)
        single, leaver = base + float("inf"), start
        free, end = single, single
        going = n * 0 + 1
        while going > 0:
            if PARTIAL:
                leaver = tl.where(base < single, i, leaver)
                single = tl.minimum(single, base)
            b_ahead = (base + price) - _row(p_scores, i, down, across, scale, o_lane, m_lane)
            m_better = (b_ahead < reach) & (closed == 0)
            reach = tl.where(m_better, b_ahead, reach)
            before = tl.where(m_better, i, before)
            free = tl.min(tl.where(m_owned, float("inf"), reach))
            near = tl.min(tl.where(m_owned & (closed == 0), reach, float("inf")))
            end = tl.minimum(free, single)
            going = tl.where(near < end, 1, 0)
            j = first_lane(m_owned & (closed == 0) & (reach == near), o_lane, BLOCK)
            j = tl.where(going > 0, j, BLOCK)
            closed = tl.where(o_lane == j, 1, closed)
            i = tl.where(going > 0, pick(owner, o_lane, j), i)
            base = near + (pick(gain, o_lane, j) - pick(price, o_lane, j))
        feasible = tl.where(end == float("inf"), 0, feasible)
        price = tl.where(closed > 0, price + (end - reach), price)
        # The path back: whoever looked at a column from its row takes it.
        turns_single = single <= free
        i = tl.where(turns_single, leaver, NONE)
        j = tl.where(
            turns_single,
            first_lane(owner == leaver, o_lane, BLOCK),
            first_lane((owner == NONE) & m_lane & (reach == free), o_lane, BLOCK),
        )
        i = tl.where(feasible > 0, i, start)
        while i != start:
            i = pick(before, o_lane, j)
            left = first_lane(owner == i, o_lane, BLOCK)
            owner = tl.where(o_lane == j, i, owner)
            j = left
        done = tl.where(o_lane == start, 1, done)
        start = tl.where(feasible > 0, first_lane(done == 0, o_lane, BLOCK), BLOCK)
    return owner, feasible


@triton.jit(do_not_specialize=["N", "M"])
def best_matchings(
    p_scores, p_rows, p_columns, p_out, N, M, limit: tl.float64,
    PARTIAL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ones at the pairs of a best matching. `limit` is the largest score that needs no room."""
    i_instance = tl.program_id(0).to(tl.int64)
    r, c = tl.load(p_rows + i_instance).to(tl.int32), tl.load(p_columns + i_instance).to(tl.int32)
    p_scores += i_instance * N * M
    p_out += i_instance * N * M
    # The smaller side is made the rows: how far apart rows are in memory, and columns.
    turned = r > c
    n, m = tl.minimum(r, c), tl.maximum(r, c)
    down, across = tl.where(turned, 1, M), tl.where(turned, M, 1)
    every, width = tl.where(turned, M, N), tl.where(turned, N, M)
    o_lane = tl.arange(0, BLOCK)[None, :]
    broken, far = n * 0, n * 0
    for start in range(0, n, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        m_inside = (o_row < n) & (o_lane < m)
        b_score = tl.load(p_scores + o_row * down + o_lane * across, mask=m_inside, other=0.0).to(tl.float64)
        broken += tl.sum(tl.where(b_score < float("inf"), 0, 1))
        far += tl.sum(tl.where((tl.abs(b_score) > limit) & (b_score > float("-inf")), 1, 0))
    scale = tl.where(far > 0, 1.0 / ROOM, 1.0).to(tl.float64)
    sound = tl.where(broken > 0, 0, n)
    owner, feasible = _assign(p_scores, down, across, scale, sound, m, PARTIAL, BLOCK)
    o_flat = tl.arange(0, BLOCK)
    b_score = tl.load(p_scores + owner * down + o_flat * across, mask=owner != NONE, other=0.0).to(tl.float64) * scale
    # A sum of finite scores may be −inf in their dtype.
    score = (tl.sum(b_score) / scale).to(p_scores.dtype.element_ty)
    feasible = tl.where(score > float("-inf"), feasible, 0)
    owner = tl.where(feasible > 0, owner, NONE)[None, :]
    for start in range(0, every, ROWS):
        o_row = start + tl.arange(0, ROWS)[:, None]
        b_out = tl.where(owner == o_row, 1.0, 0.0)
        b_out = tl.where((o_row < n) & (o_lane < m) & (broken > 0), float("nan"), b_out)
        tl.store(p_out + o_row * down + o_lane * across, b_out, mask=(o_row < every) & (o_lane < width))
