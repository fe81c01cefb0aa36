"""Single trees, slow but correct: the best ones. Derivations: README.md in this folder.

An instance is a table score[m][h], the scores of the labels of arc h → m, one where there are no labels; −inf where an
arc cannot be. A tree is a list of parts (h, m, label), one for each word m.
"""

import heapq
import math
from collections.abc import Iterable
from itertools import count

import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs, usable
from structmax.numerics.exact_sum import exact_sum, in_dtype

Table = list[list[list[float]]]
Tree = list[tuple[int, int, int]]


# --- tensors and tables --------------------------------------------------------------------------------------------


def tables(arc: Tensor, lengths: Tensor, directed: bool) -> tuple[Tensor, Tensor, list[Table | None]]:
    """Arcs and the usable ones, (B, N + 1, N + 1, labels), and for each instance its table; None if it is not sound."""
    arc, words = as_arcs(arc, lengths, directed)
    labelled = arc if arc.dim() == 4 else arc.unsqueeze(-1)
    used = usable(arc.shape[1], words).unsqueeze(-1).expand(labelled.shape)
    scores = labelled.masked_fill(~used, -math.inf).double()
    sound = (scores < math.inf).flatten(1).all(1).tolist()
    every = scores.transpose(1, 2).tolist()
    sizes = (words + 1).tolist()
    cut = [[row[:size] for row in table[:size]] for table, size in zip(every, sizes, strict=True)]
    return arc, used, [table if good else None for table, good in zip(cut, sound, strict=True)]


def parts_of(arc: Tensor, used: Tensor, trees: list[list[Tree] | None], number: int, directed: bool) -> Tensor:
    """Ones at the parts of up to `number` trees of each instance, NaN where it is not sound: (B, number, …)."""
    parts = torch.zeros(len(arc), number, *used.shape[1:], dtype=arc.dtype)
    for b, some in enumerate(trees):
        if some is None:
            parts[b].masked_fill_(used[b].cpu(), math.nan)
            continue
        for s, tree in enumerate(some):
            for part in tree:
                parts[(b, s, *part)] = 1.0
    shaped = parts.to(arc.device).reshape(len(arc), number, *arc.shape[1:])
    return from_arcs(shaped, directed, arc.dim() == 4)


def best_of_both(best: Tensor, directed: bool) -> Tensor:
    """Max-marginals of edges from those of arcs (B, N, N) or (B, N, N, L): the better direction, at i < j."""
    if directed:
        return best
    node = torch.arange(best.shape[1], device=best.device)
    upper = (node.unsqueeze(-1) < node).reshape(len(node), len(node), *(1,) * (best.dim() - 3))
    return torch.where(upper, torch.maximum(best, best.transpose(1, 2)), -math.inf)


# --- the best tree -------------------------------------------------------------------------------------------------


def _arborescence(arcs: dict[tuple[int, int], float], nodes: Iterable[int]) -> set[tuple[int, int]] | None:
    """The best arcs (h, m) of which one ends at each of `nodes` and none is on a cycle; None if there are none."""
    into = {m: [arc for arc in arcs if arc[1] == m] for m in nodes}
    if not all(into.values()):
        return None
    best = {m: max(some, key=lambda arc: arcs[arc])[0] for m, some in into.items()}
    cycle = _cycle(best)
    if not cycle:
        return {(h, m) for m, h in best.items()}
    whole = max(max(arc) for arc in arcs) + 1
    merged: dict[tuple[int, int], float] = {}
    origin: dict[tuple[int, int], tuple[int, int]] = {}
    for (h, m), score in arcs.items():
        if h in cycle and m in cycle:
            continue
        key = (whole if h in cycle else h, whole if m in cycle else m)
        worth = score - arcs[best[m], m] if m in cycle else score
        if worth > merged.get(key, -math.inf):
            merged[key], origin[key] = worth, (h, m)
    tree = _arborescence(merged, [m for m in best if m not in cycle] + [whole])
    if tree is None:
        return None
    chosen = {origin[arc] for arc in tree}
    return chosen | {(best[m], m) for m in cycle if m not in {end for _, end in chosen}}


def _cycle(head: dict[int, int]) -> list[int]:
    for start in head:
        path = [start]
        while path[-1] in head and head[path[-1]] not in path:
            path.append(head[path[-1]])
        if path[-1] in head:
            return path[path.index(head[path[-1]]) :]
    return []


def _best_tree(table: Table, single_root: bool) -> Tree | None:
    words = range(1, len(table))
    label = {(h, m): max(range(len(of)), key=of.__getitem__) for m in words for h, of in enumerate(table[m])}
    arcs = {(h, m): table[m][h][i] for (h, m), i in label.items() if table[m][h][i] > -math.inf}
    # Where the root has one word only, each is tried.
    tries = [{arc: s for arc, s in arcs.items() if arc[0] or arc[1] == r} for r in words] if single_root else [arcs]
    found = [tree for some in tries or [arcs] if (tree := _arborescence(some, words)) is not None]
    if not found:
        return None
    trees = [sorted(((h, m, label[h, m]) for h, m in tree), key=lambda part: part[1]) for tree in found]
    best = max(trees, key=lambda tree: score_of(table, tree))
    return best if score_of(table, best) > -math.inf else None


def score_of(table: Table, tree: Tree) -> float:
    return exact_sum([table[m][h][i] for h, m, i in tree])


def _constrained(table: Table, required: Tree, forbidden: Tree) -> Table:
    """The table with −inf at forbidden parts, and at the rivals of required ones."""
    fixed = {part[1]: part for part in required}

    def score(part: tuple[int, int, int], given: float) -> float:
        return given if fixed.get(part[1], part) == part and part not in forbidden else -math.inf

    return [
        [[score((h, m, i), s) for i, s in enumerate(of)] for h, of in enumerate(row)] for m, row in enumerate(table)
    ]


# --- the questions -------------------------------------------------------------------------------------------------


def argmax(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, used, every = tables(arc, lengths, directed)
    best = [table if table is None else [_best_tree(table, single_root) or []] for table in every]
    for table, trees in zip(every, best, strict=True):
        if table is not None and trees is not None and in_dtype(score_of(table, trees[0]), arc.dtype) == -math.inf:
            trees[0] = []
    return parts_of(arc, used, best, 1, directed).squeeze(1)


def topk(arc: Tensor, *, k: int, lengths: Tensor, single_root: bool, directed: bool) -> tuple[Tensor, Tensor]:
    arc, used, every = tables(arc, lengths, directed)
    trees = [table if table is None else _k_best(table, k, single_root) for table in every]
    value = torch.full((len(arc), k), -math.inf, dtype=arc.dtype)
    for b, (table, some) in enumerate(zip(every, trees, strict=True)):
        if table is None or some is None:
            value[b] = math.nan
            continue
        for rank, tree in enumerate(some):
            value[b, rank] = in_dtype(score_of(table, tree), arc.dtype)
        # a sum of finite scores may be −inf in their dtype
        del some[int(value[b].isfinite().sum()) :]
    return value.to(arc.device), parts_of(arc, used, trees, k, directed)


def _k_best(table: Table, k: int, single_root: bool) -> list[Tree]:
    """Each tree found parts the rest of its set: those that first differ from it at word 1, at word 2, and so on."""
    waiting: list[tuple[float, int, int, Table, Tree]] = []
    age = count()

    def wait(first: int, some: Table) -> None:
        tree = _best_tree(some, single_root)
        if tree is not None:
            heapq.heappush(waiting, (-score_of(some, tree), next(age), first, some, tree))

    wait(0, table)
    found: list[Tree] = []
    while waiting and len(found) < k:
        _, _, first, some, tree = heapq.heappop(waiting)
        found.append(tree)
        for place in range(first, len(tree)):
            wait(place, _constrained(some, tree[:place], [tree[place]]))
    return found


def max_marginals(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, used, every = tables(arc, lengths, directed)
    best = torch.full(used.shape, -math.inf, dtype=arc.dtype)
    for b, table in enumerate(every):
        if table is None:
            best[b].masked_fill_(used[b].cpu(), math.nan)
            continue
        for h, m, label in used[b].nonzero().tolist():
            some = _constrained(table, [(h, m, label)], [])
            tree = _best_tree(some, single_root)
            if tree is not None:
                best[b, h, m, label] = in_dtype(score_of(some, tree), arc.dtype)
    return best_of_both(best.to(arc.device).reshape(arc.shape), directed)
