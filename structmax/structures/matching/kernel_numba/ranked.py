"""The k best matchings in order (Murty). Derivations: ../README.md.

A *branch* is a set of matchings: rows before `fixed` have the columns of its best member, and row `fixed` none of those
that are barred, bar m standing for being single. Every branch keeps its best member and the prices that prove it, so
that a part of it is solved by one shortest path.
"""

import numpy as np

from structmax.numerics.kernel_numba import compiled
from structmax.numerics.kernel_numba.llvm import whole
from structmax.numerics.kernel_numba.scans import relax
from structmax.structures.matching.kernel_numba.assignment import NONE, assign, copy, fill
from structmax.structures.matching.kernel_numba.cycles import profit


@compiled()
def branches(k, n, m):
    """Scratch for the k best branches and the one being parted: value, fixed, column, price, barred."""
    size = whole(m)
    columns, barred = np.empty((k + 1, n), np.int64), np.empty((k + 1, m + 1), np.int64)
    return np.empty(k + 1), np.empty(k + 1, np.int64), columns, np.empty((k + 1, size)), barred


@compiled()
def rank(scores, n, m, partial, k, work, branch, values, ranked):
    """values[q] and ranked[q], the column of each row, of the q-th best matching; the number of matchings found."""
    value, fixed, columns, prices, barred = branch
    price, column = work[1], work[2]
    fill(value, k, -np.inf)
    if not assign(scores, n, m, partial, work):
        return 0
    value[0], fixed[0] = _total(scores, n, column), 0
    copy(column, n, columns[0])
    copy(price, whole(m), prices[0])
    fill(barred[0], m + 1, 0)
    for q in range(k):
        best = value[:k].argmax()
        if value[best] == -np.inf:
            return q
        values[q] = value[best]
        copy(columns[best], n, ranked[q])
        # the branch being parted stands last
        _move(branch, best, k, n, m)
        value[best] = -np.inf
        for t in range(fixed[k], n):
            # the worst makes place; an empty one is the worst
            worst = value[:k].argmin()
            if t > fixed[k]:
                fill(barred[k], m + 1, 0)
            barred[k, columns[k, t] if columns[k, t] != NONE else m] = 1
            if _reroute(scores, n, m, partial, t, value[k] - value[worst], columns[k], prices[k], barred[k], work):
                total = _total(scores, n, column)
                if total > value[worst]:
                    value[worst], fixed[worst] = total, t
                    copy(column, n, columns[worst])
                    copy(price, whole(m), prices[worst])
                    copy(barred[k], m + 1, barred[worst])
    return k


@compiled()
def _move(branch, source, to, n, m):
    value, fixed, columns, prices, barred = branch
    value[to], fixed[to] = value[source], fixed[source]
    copy(columns[source], n, columns[to])
    copy(prices[source], whole(m), prices[to])
    copy(barred[source], m + 1, barred[to])


@compiled()
def _total(scores, n, column):
    total = 0.0
    for i in range(n):
        if column[i] != NONE:
            total += scores[i, column[i]]
    return total


@compiled()
def _prepare(n, m, start, column, price, work):
    """The parent's matching and prices without its row `start`, and with the rows before taken out."""
    _, work_price, work_column, owner, (toll, fence, reach, _), _ = work
    copy(column, n, work_column)
    copy(price, whole(m), work_price)
    copy(price, whole(m), toll)
    fill(reach, whole(m), np.inf)
    fill(fence, whole(m), np.inf)
    fill(owner, m, NONE)
    for i in range(n):
        j = column[i]
        if j != NONE:
            # what `start` leaves is the goal: it is met like a column that has an owner
            fence[j] = 0.0
            if i < start:
                toll[j] = np.inf
            elif i > start:
                owner[j] = i
    work_column[start] = NONE


@compiled()
def _reroute(scores, n, m, partial, start, limit, parent_column, parent_price, barred, work):
    """The best matching of the branch in which `start` may have none of the barred; False if it loses over `limit`.

    One shortest path from `start` to what it leaves behind. It may lead through what is free: somebody leaves there,
    and *nobody* goes on, who can take any column for its price.
    """
    _prepare(n, m, start, parent_column, parent_price, work)
    fringe, price, column, owner, (toll, fence, reach, depth), (before, closed, _) = work
    goal = parent_column[start]
    for j in range(m):
        if barred[j]:
            toll[j] = np.inf
    i, base = start, profit(scores, start, parent_price, parent_column)
    count = 0
    # where the path comes to what is free: at which distance, by which free column, or by which row that turns single
    is_open, opened, door, leaver = False, np.inf, NONE, NONE
    single = np.inf
    while True:
        if partial and not is_open and base < single and (i != start or not barred[m]):
            single, leaver = base, i
        near, j, free = relax(scores, fringe, i, m, base, toll, fence, reach, before)
        if i == start:
            # others may have them: in a branch no row before `start` does
            for b in range(m):
                if barred[b]:
                    toll[b] = price[b]
        leave = min(free, single)
        if not is_open and leave <= near and leave < np.inf:
            is_open, opened = True, leave
            if free < single:
                door = _door(m, free, fence, reach)
            if goal == NONE:
                end = opened
                break
            near, j = _from_nobody(scores, n, m, start, opened, toll, fence, reach, before, fringe, column)
        if near == np.inf or near > limit:
            return False
        if j == goal:
            end = near
            break
        closed[count], depth[count] = j, near
        count += 1
        toll[j] = reach[j] = np.inf
        i = owner[j]
        base = near + (scores[i, j] - price[j])
    for k in range(count):
        price[closed[k]] += end - depth[k]
    if is_open and end > opened:
        # what is free keeps the price 0
        for j in range(m):
            price[j] = max(0.0, price[j] - (end - opened)) if fence[j] == 0 else 0.0
    _flip(start, goal, door, leaver, before, column, owner)
    return end <= limit


@compiled()
def _door(m, free, fence, reach):
    """The free column at that distance."""
    for j in range(m):
        if fence[j] != 0 and reach[j] == free:
            return j
    return NONE


@compiled()
def _from_nobody(scores, n, m, start, base, toll, fence, reach, before, fringe, column):
    """Steps from nobody: to any column for its price, to rows that are single for nothing. The nearest, and its j."""
    near, at = np.inf, 0
    for j in range(m):
        if fence[j] != 0:
            # settled
            toll[j] = np.inf
            continue
        if base + toll[j] < reach[j]:
            reach[j] = base + toll[j]
            before[j] = NONE
        if reach[j] < near:
            near, at = reach[j], j
    for i in range(start + 1, n):
        if column[i] == NONE:
            near, at, _ = relax(scores, fringe, i, m, base, toll, fence, reach, before)
    return near, at


@compiled()
def _flip(start, goal, door, leaver, before, column, owner):
    """Moves everybody on the path, from its goal back to `start`."""
    j = goal
    while True:
        if j == NONE:
            # nobody took it over, and came by the door
            if door == NONE:
                i, j = leaver, column[leaver]
                column[i] = NONE
                if i == start:
                    return
            else:
                j = door
        i = before[j]
        if i == NONE:
            owner[j] = NONE
            j = NONE
        else:
            owner[j] = i
            column[i], j = j, column[i]
            if i == start:
                return
