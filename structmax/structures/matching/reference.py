"""Best matchings in plain Python: slow but correct, on any device. Derivations: README.md in this folder.

Scores of an instance are a table, a list of rows; a matching is the list of its pairs.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.numerics.exact_sum import exact_sum
from structmax.structures.matching.range import (
    best_with_room,
    projected_within_reach,
    ranked_with_room,
    sinkhorn_within_reach,
    with_room,
)
from structmax.structures.matching.transport import examples as transport_examples
from structmax.structures.matching.transport import potentials as potentials
from structmax.structures.matching.transport import project as _project
from structmax.structures.matching.transport import project_jvp as project_jvp
from structmax.structures.matching.transport import sinkhorn as _sinkhorn

Table = list[list[float]]
Pairs = list[tuple[int, int]]
# The column of a row, or the row of a column, that has none.
NONE = -1


@best_with_room
def argmax(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    def one(table: Table, out: Tensor) -> None:
        _mark(out, _best(table, partial) or [])

    return _each(scores, rows, columns, torch.zeros_like(scores), one)


@ranked_with_room
def topk(scores: Tensor, *, k: int, rows: Tensor, columns: Tensor, partial: bool) -> tuple[Tensor, Tensor]:
    values = scores.new_full((len(scores), k), -math.inf)
    parts = scores.new_zeros(len(scores), k, *scores.shape[1:])
    for b in range(len(scores)):
        r, c = int(rows[b]), int(columns[b])
        table = scores[b, :r, :c].tolist()
        if not _is_sound(table):
            values[b], parts[b, :, :r, :c] = math.nan, math.nan
            continue
        for q, pairs in zip(range(k), _ranked(table, r, c, partial), strict=False):
            values[b, q] = _score(table, pairs)
            _mark(parts[b, q], pairs)
    return values, parts


@with_room
def max_marginals(scores: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    def one(table: Table, out: Tensor) -> None:
        for i, row in enumerate(table):
            for j, score in enumerate(row):
                others = [[s for b, s in enumerate(r) if b != j] for a, r in enumerate(table) if a != i]
                pairs = _best(others, partial)
                if pairs is not None:
                    out[i, j] = score + _score(others, pairs)

    return _each(scores, rows, columns, torch.full_like(scores, -math.inf), one)


def _each(scores: Tensor, rows: Tensor, columns: Tensor, out: Tensor, one: Callable[[Table, Tensor], None]) -> Tensor:
    """`one` for every instance, NaN for those with NaN or +inf."""
    for b in range(len(scores)):
        r, c = int(rows[b]), int(columns[b])
        table = scores[b, :r, :c].tolist()
        if _is_sound(table):
            one(table, out[b])
        else:
            out[b, :r, :c] = math.nan
    return out


def _is_sound(table: Table) -> bool:
    return all(score < math.inf for row in table for score in row)


def _mark(out: Tensor, pairs: Pairs) -> None:
    for i, j in pairs:
        out[i, j] = 1


def _score(table: Table, pairs: Pairs) -> float:
    return exact_sum([table[i][j] for i, j in pairs])


def _best(table: Table, partial: bool) -> Pairs | None:
    """A best matching, or None if the smaller side cannot be matched. A row that may stay single has its own column."""
    r, c = len(table), len(table[0]) if table else 0
    if partial:
        wide = [row + [0.0 if a == i else -math.inf for a in range(r)] for i, row in enumerate(table)]
        found = _hungarian(wide)
        return None if found is None else [(i, j) for i, j in enumerate(found) if j < c]
    if r > c:
        turned = _best([list(column) for column in zip(*table, strict=True)], partial)
        return None if turned is None else [(i, j) for j, i in turned]
    found = _hungarian(table)
    return None if found is None else list(enumerate(found))


def _hungarian(table: Table) -> list[int] | None:
    """The column of each row in a best matching of all rows with as many columns or more; None if there is none.

    Rows enter one by one, along the shortest alternating path for the costs profit[i] + price[j] − table[i][j].
    """
    r, c = len(table), len(table[0]) if table else 0
    profit, price = [0.0] * r, [0.0] * c
    column, owner = [NONE] * r, [NONE] * c
    for start in range(r):
        reach, before = [math.inf] * c, [start] * c
        tree: dict[int, float] = {}
        i, distance = start, 0.0
        while True:
            for j in set(range(c)) - tree.keys():
                ahead = distance + profit[i] + price[j] - table[i][j]
                if ahead < reach[j]:
                    reach[j], before[j] = ahead, i
            j = min((j for j in range(c) if j not in tree), key=lambda j: reach[j], default=-1)
            if j < 0 or reach[j] == math.inf:
                return None
            distance = tree[j] = reach[j]
            i = owner[j]
            if i == NONE:
                break
        profit[start] -= distance
        for k, depth in tree.items():
            price[k] += distance - depth
            if owner[k] != NONE:
                profit[owner[k]] -= distance - depth
        while i != start:
            owner[j] = i = before[j]
            column[i], j = j, column[i]
    return column


def _ranked(table: Table, r: int, c: int, partial: bool) -> Iterator[Pairs]:
    """All matchings, best first, each from the part of the set whose best it is (Lawler).

    A part is given by the pairs that its members have and those they have not; what has been given out parts it again.
    """
    parts: list[tuple[float, Pairs, set[tuple[int, int]], set[tuple[int, int]]]] = []

    def add(inside: set[tuple[int, int]], outside: set[tuple[int, int]]) -> None:
        pairs = _best_between(table, r, c, partial, inside, outside)
        if pairs is not None:
            parts.append((_score(table, pairs), pairs, inside, outside))

    add(set(), set())
    while parts:
        parts.sort(key=lambda part: part[0])
        _, best, inside, outside = parts.pop()
        yield best
        # a different matching differs first at the first of these pairs it has not, or has one more
        for t, pair in enumerate(pairs := [p for p in best if p not in inside]):
            add(inside | set(pairs[:t]), outside | {pair})
        if partial:
            _add_larger(best, inside, outside, r, c, add)


def _add_larger(
    best: Pairs,
    inside: set[tuple[int, int]],
    outside: set[tuple[int, int]],
    r: int,
    c: int,
    add: Callable[[set[tuple[int, int]], set[tuple[int, int]]], None],
) -> None:
    """The parts whose members have all pairs of `best` and one more at least, by the first they have."""
    rows, columns = {i for i, _ in best}, {j for _, j in best}
    left = [(i, j) for i in range(r) for j in range(c) if i not in rows and j not in columns]
    left = [pair for pair in left if pair not in outside]
    for t, pair in enumerate(left):
        add(inside | set(best) | {pair}, outside | set(left[:t]))


def _best_between(
    table: Table, r: int, c: int, partial: bool, inside: set[tuple[int, int]], outside: set[tuple[int, int]]
) -> Pairs | None:
    """The best matching with all pairs `inside` and none `outside`."""
    rows = [i for i in range(r) if all(i != a for a, _ in inside)]
    columns = [j for j in range(c) if all(j != b for _, b in inside)]
    rest = [[-math.inf if (i, j) in outside else table[i][j] for j in columns] for i in rows]
    pairs = _best(rest, partial)
    if pairs is None or any(table[i][j] == -math.inf for i, j in inside):
        return None
    return sorted([*inside, *((rows[i], columns[j]) for i, j in pairs)])


project = projected_within_reach(_project, argmax)
sinkhorn = sinkhorn_within_reach(_sinkhorn, argmax)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    scores, size = x.new_zeros(2, 3, 3), torch.full((2,), 3, device=x.device)
    fields = {"rows": size, "columns": size, "partial": False}
    yield "argmax", (scores,), fields
    yield "topk", (scores,), {"k": 2, **fields}
    yield "max_marginals", (scores,), fields
    yield from transport_examples(x)
