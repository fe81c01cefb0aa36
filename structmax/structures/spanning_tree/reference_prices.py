"""Scores of moderate size that have the same trees, by the prices of the best one. Derivation: README.md here."""

import itertools
import math

import torch
from torch import Tensor

from structmax import check
from structmax.numerics.arcs import as_arcs
from structmax.numerics.exact_sum import in_dtype
from structmax.structures.spanning_tree.reference_trees import tables

# Logarithms beyond may lack the digits of a count.
FAR = 1e3
# exp(−800) is 0 in float64.
NOTHING = 800.0


def brought_near(
    arc: Tensor, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Arcs in float64, words, and what all trees have lost: (B, …), (B,), (B,).

    Where no score is far, arcs are as they are, and nothing is lost: None. Values are only checked on the CPU.
    """
    arcs, words = as_arcs(arc, lengths, directed)
    if not check.readable(arcs) or not bool((arcs.isfinite() & (arcs.abs() > FAR)).any()):
        return arcs, words, None
    near = arcs.double().clone()
    lost = near.new_zeros(len(near))
    labelled = near if arcs.dim() == 4 else near.unsqueeze(-1)
    for b, table in enumerate(tables(arc, lengths, directed)[2]):
        if table is None:
            continue
        peak = [[max(of) for of in row] for row in table]
        reach = NOTHING + len(table) * math.log(len(table) * labelled.shape[-1])
        found = _prices(peak, single_root, reach)
        if found is None or in_dtype(found[1], arc.dtype) == -math.inf:
            near[b] = -math.inf
            continue
        size = len(table)
        by_head, best = (torch.tensor(rows, dtype=torch.float64).mT for rows in (found[0], peak))
        apart = labelled[b, :size, :size] - torch.where(best == -math.inf, 0.0, best).unsqueeze(-1)
        labelled[b, :size, :size] = by_head.unsqueeze(-1) + apart
        lost[b] = found[1]
    return near, words, lost


def _prices(score: list[list[float]], single_root: bool, reach: float) -> tuple[list[list[float]], float] | None:
    """Near scores [m][h] and what trees lost by them; None if there is no tree."""
    nodes = range(len(score))
    below, near = [list(row) for row in score], [[0.0 for _ in nodes] for _ in nodes]
    group = {node: frozenset([node]) for node in nodes}
    head: dict[frozenset[int], int] = {}
    worth: dict[frozenset[int], float] = {}
    waiting = [group[m] for m in nodes[1:]]
    lost, below_root = 0.0, frozenset[int]()
    while waiting:
        inside = waiting.pop()
        into = [(h, m) for m in inside for h in nodes if h not in inside]
        arcs = [(h, m) for h, m in into if below[m][h] > -math.inf]
        # a root that may have one word only is the last resort
        arcs = [arc for arc in arcs if arc[0] or not single_root] or arcs
        if not arcs:
            return None
        head[inside], m = max(arcs, key=lambda arc: below[arc[1]][arc[0]])
        if single_root and head[inside] == 0:
            if below_root:
                return None
            below_root = inside
            continue
        worth[inside] = below[m][head[inside]]
        price = max(worth[inside], -reach) if len(inside) > 1 else 0.0
        lost -= price
        for h, m in into:
            below[m][h] -= worth[inside]
            near[m][h] += price
        path, end = [inside], group[head[inside]]
        while end in head and end != inside:
            path.append(end)
            end = group[head[end]]
        if end == inside:
            whole = frozenset[int]().union(*path)
            group |= dict.fromkeys(whole, whole)
            waiting.append(whole)
    if single_root:
        # With each word below the root: its arc, and the worth of all groups that this does not enter.
        own = {m: score[m][0] + sum(worth[some] for some in worth if m not in some) for m in below_root}
        lost += max(own.values(), default=0.0)
        for m in nodes[1:]:
            below[m][0] = own[m] - max(own.values()) if m in own else -math.inf
    else:
        lost += sum(worth.values())
    for m, h in itertools.product(nodes, nodes):
        near[m][h] = near[m][h] + below[m][h] if below[m][h] >= -reach else -math.inf
    return near, lost
