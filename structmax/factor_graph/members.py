"""All members of a small factor graph: the members of its factors, joined where they share variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from structmax import check
from structmax.contract import AbstractStructure
from structmax.factor_graph.layout import KINDS, Layout, Outside

# Of a variable that no factor has constrained yet.
OPEN = -1.0


def members(
    layout: Layout, present: np.ndarray, speaks: np.ndarray, structures: Sequence[AbstractStructure]
) -> np.ndarray:
    """Variables and free parts (M, n + m) of all members of one instance.

    Args:
        layout: the graph.
        present: (n,), the variables that are not left out.
        speaks: (F,), the factors that have an effect.
        structures: those among the factors, for this instance.
    """
    n, m = len(present), sum(variables.size for variables in layout.free.values())
    every = np.zeros((1, n + m))
    every[:, :n] = np.where(present, OPEN, 0.0)
    arrays = layout.arrays
    outside = dict(zip((o.number for o in layout.outside), zip(layout.outside, structures, strict=True), strict=True))
    for f in np.flatnonzero(speaks).tolist():
        copies = slice(arrays.start[f], arrays.start[f + 1])
        literals, own, places = _of_structure(*outside[f]) if f in outside else _of_logic(layout, f)
        values = np.where(arrays.sign[copies] < 0, 1 - literals, literals)
        every = _joined(every, values, arrays.variable[copies], own, n + places)
    for i in np.flatnonzero((every[:, :n] == OPEN).any(0)):
        every = _joined(every, np.array([[0.0], [1.0]]), np.array([i]), np.zeros((2, 0)), np.zeros(0, np.int64))
    return every


def _joined(
    every: np.ndarray, values: np.ndarray, index: np.ndarray, own: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Rows of both that agree on the variables `index`."""
    known = every[:, None, index]
    row, member = np.nonzero(((known == OPEN) | (known == values)).all(-1))
    out = every[row]
    out[:, index], out[:, places] = values[member], own[member]
    return out


def _of_logic(layout: Layout, f: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Literals (M, k) and own parts (M, j) of the members of a factor, and where the own parts stand."""
    arrays, tables = layout.arrays, layout.tables
    kind, weight = arrays.kind[f], arrays.weight[arrays.start[f] : arrays.start[f + 1]]
    if kind == KINDS["table"]:
        t = int(np.flatnonzero(tables.number == f)[0])
        states, own = (a[tables.begin[t] : tables.begin[t + 1]] for a in (tables.states, tables.own))
        literals = np.zeros((len(states), len(weight)))
        literals[np.arange(len(states))[:, None], states[:, : tables.groups[t]]] = 1.0
        return literals, np.eye(len(states)), own
    every = itertools.product((0.0, 1.0), repeat=len(weight))
    literals = np.array(check.few("FactorGraph", every, len(weight)))
    if kind == KINDS["pair"]:
        return literals, literals.prod(1, keepdims=True), arrays.part[f : f + 1]
    if kind == KINDS["or_out"]:
        met = literals[:, :-1].max(1) == literals[:, -1]
    else:
        sums = literals @ weight
        met = (sums <= arrays.most[f] + 1e-9) & (sums >= arrays.least[f] - 1e-9)
    return literals[met], np.zeros((int(met.sum()), 0)), np.zeros(0, np.int64)


def _of_structure(outside: Outside, structure: AbstractStructure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    like = structure.parts(tuple(torch.zeros(shape, dtype=torch.float64) for shape in outside.shapes))
    listed = [t.flatten(1).numpy() for t in structure.tensors(structure.enumerate(like))]
    bound = [t for t, is_free in zip(listed, outside.free, strict=True) if not is_free]
    free = [t for t, is_free in zip(listed, outside.free, strict=True) if is_free]
    nothing = np.zeros((len(listed[0]), 0))
    return np.concatenate([nothing, *bound], 1), np.concatenate([nothing, *free], 1), outside.scores
