"""The best matching of n rows with m ≥ n columns, by prices of columns. Derivations: ../README.md."""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import BLOCK, whole
from structmax.numerics.kernel_numba.scans import best_two, relax

# The column of a row, or the row of a column, that has none.
NONE = -1
# Rows bid at most this many times each, on average: a war over few columns is left to the shortest paths.
BIDS = 4


@compiled()
def fill(out, count, value):
    """Loops, here and below: assignments of slices take Numba long to compile."""
    for k in range(count):
        out[k] = value


@compiled()
def copy(source, count, out):
    for k in range(count):
        out[k] = source[k]


@compiled()
def workspace(n, m):
    """What `assign` fills and works on, for up to n rows and m columns.

    fringe (n, BLOCK); price (m,), column (n,) and owner (m,): its answer; four vectors over the columns, toll, fence,
    reach and depth; three of integers, before, closed and waiting.
    """
    size = whole(m)
    price, column, owner = np.empty(size), np.empty(n, np.int64), np.empty(m, np.int64)
    return np.empty((n, BLOCK)), price, column, owner, np.empty((4, size)), np.empty((3, size), np.int64)


@compiled()
def read_fringe(scores, n, m, fringe):
    """What whole blocks leave of each row, followed by −inf."""
    start = m // BLOCK * BLOCK
    if start < m:
        for i in range(n):
            for lane in range(BLOCK):
                fringe[i, lane] = scores[i, start + lane] if start + lane < m else -np.inf


@compiled()
def assign(scores, n, m, partial, work):
    """Fills `column` and `owner` of the workspace with a best matching, `price` with its prices; False if none exists.

    All rows are matched, or with `partial` any of them.
    """
    fringe, price, column, owner, lanes, links = work
    fence, waiting = lanes[1], links[2]
    read_fringe(scores, n, m, fringe)
    fill(price, whole(m), 0.0)
    fill(column, n, NONE)
    fill(owner, m, NONE)
    count = _by_bidding(scores, n, m, partial, work)
    for j in range(whole(m)):
        fence[j] = 0.0 if j < m and owner[j] != NONE else np.inf
    done = 0
    while done < count and _by_shortest_path(scores, waiting[done], m, partial, work):
        done += 1
    return done == count


@compiled()
def _by_bidding(scores, n, m, partial, work):
    """Rows take their best column at the price at which the second is as good; how many are left `waiting`."""
    fringe, price, column, owner, _, links = work
    waiting = links[2]
    for i in range(n):
        waiting[i] = i
    count, k, bids = 0, 0, 0
    while k < n:
        i = waiting[k]
        k += 1
        bids += 1
        best, j, second = best_two(scores, fringe, i, m, price)
        if partial:
            if best <= 0:
                # prices only rise: it will stay single
                continue
            second = max(second, 0.0)
        rival = owner[j]
        raised = price[j] + (best - second)
        if rival != NONE and not raised > price[j]:
            # a tie: nobody is displaced, and what is free stays free of charge
            j, rival, raised = _free_alternative(scores, i, m, best, price, owner), NONE, 0.0
        if j == NONE or second == -np.inf or bids > BIDS * n:
            waiting[count] = i
            count += 1
            continue
        price[j] = raised
        column[i] = j
        owner[j] = i
        if rival != NONE:
            column[rival] = NONE
            # it bids again at once
            k -= 1
            waiting[k] = rival
    return count


@compiled()
def _free_alternative(scores, i, m, best, price, owner):
    """A free column that is as good as the best, or NONE."""
    for j in range(m):
        if owner[j] == NONE and scores[i, j] - price[j] == best:
            return j
    return NONE


@compiled()
def _by_shortest_path(scores, start, m, partial, work):
    """Matches one more row at the least loss, by Dijkstra's algorithm over alternating paths; False if none is left."""
    fringe, price, column, owner, lanes, links = work
    toll, fence, reach, depth = lanes
    before, closed, _ = links
    copy(price, whole(m), toll)
    fill(reach, whole(m), np.inf)
    count = 0
    i, base = start, 0.0
    single, leaver = np.inf, NONE
    while True:
        if partial and base < single:
            single, leaver = base, i
        near, j, free = relax(scores, fringe, i, m, base, toll, fence, reach, before)
        end = min(free, single)
        if near >= end:
            break
        closed[count], depth[count] = j, near
        count += 1
        toll[j] = reach[j] = np.inf
        i = owner[j]
        base = near + (scores[i, j] - price[j])
    if end == np.inf:
        return False
    for k in range(count):
        price[closed[k]] += end - depth[k]
    if single <= free:
        j = column[leaver]
        column[leaver] = NONE
        i = leaver
    else:
        j = 0
        while fence[j] == 0 or reach[j] != free:
            j += 1
        fence[j] = 0
        i = NONE
    while i != start:
        i = before[j]
        owner[j] = i
        column[i], j = j, column[i]
    return True
