"""Which parts of a factor graph can be on at all: not what a mask leaves out, nor what a structure's lengths do.

It looks at one factor at a time: what follows from several together would take a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structmax.contract import AbstractStructure
from structmax.factor_graph.layout import KINDS, Layout


class Index(NamedTuple):
    """Where to look."""

    # of each copy: its variable, its factor, and whether it is negated
    variable: Tensor
    factor: Tensor
    negated: Tensor
    # of each pair: its copies (P, 2); of each joint choice: its copies (M, L), E for none; the factors of both
    pairs: Tensor
    choices: Tensor
    owners: Tensor
    # for each structure, of each variable: its place among the parts, the number of parts for none
    parts: tuple[Tensor, ...]
    # of each free score: its place among those of pairs, choices and structures, and their number for none
    own: Tensor


def _index(layout: Layout) -> Index:
    arrays, tables = layout.arrays, layout.tables
    E, n = len(arrays.variable), len(arrays.degree)
    begin, count = arrays.start[:-1], np.diff(tables.begin)
    pairs = np.flatnonzero(arrays.kind == KINDS["pair"])
    choices = np.repeat(begin[tables.number], count)[:, None] + tables.states
    choices[tables.states < 0] = E
    parts, owned = [], [arrays.part[pairs], tables.own]
    for outside in layout.outside:
        place, first = np.full(n, sum(len(p) for p in outside.places)), 0
        for where, is_free, negated in zip(outside.places, outside.free, outside.negated, strict=True):
            if not (is_free or negated):
                place[where] = first + np.arange(len(where))
            first += len(where)
        parts.append(torch.from_numpy(place))
        owned += [where for where, is_free in zip(outside.places, outside.free, strict=True) if is_free]
    order = np.concatenate(owned)
    own = np.full(sum(v.size for v in layout.free.values()), len(order))
    own[order] = np.arange(len(order))
    factor = np.repeat(np.arange(len(arrays.kind)), np.diff(arrays.start))
    owners = np.concatenate([pairs, np.repeat(tables.number, count)])
    return Index(
        torch.from_numpy(arrays.variable),
        torch.from_numpy(factor),
        torch.from_numpy(arrays.sign < 0),
        torch.from_numpy(begin[pairs][:, None] + np.arange(2)),
        torch.from_numpy(choices),
        torch.from_numpy(owners),
        tuple(parts),
        torch.from_numpy(own),
    )


def speaking(layout: Layout, mask: Tensor) -> Tensor:
    """Which factors have a variable that is present, for a mask (…, n): (…, F). The others have no effect."""
    index = layout.remembered("existence", _index)
    there = mask[..., index.variable].to(torch.int64)
    none = there.new_zeros((*there.shape[:-1], len(layout.arrays.kind)))
    return none.index_add(-1, index.factor, there) > 0


def existing(layout: Layout, mask: Tensor, structures: Sequence[AbstractStructure]) -> tuple[Tensor, Tensor]:
    """Variables (…, n) and free scores (…, m) that can be on, for a mask (…, n) and structures of the same batch."""
    index, batch = layout.remembered("existence", _index), mask.shape[:-1]
    speaks, on, free = speaking(layout, mask), mask, []
    for outside, structure, place in zip(layout.outside, structures, index.parts, strict=True):
        like = tuple(torch.zeros(()).expand((*batch, *shape)) for shape in outside.shapes)
        found = structure.exists(like) or (torch.ones((), dtype=torch.bool),) * len(like)
        whole = zip(found, like, outside.places, strict=True)
        flat = [e.expand(t.shape).reshape((*batch, len(where))) for e, t, where in whole]
        says = speaks[..., outside.number, None]
        on = on & (_ended(flat, True)[..., place] | ~says)
        free += [t & says for t, is_free in zip(flat, outside.free, strict=True) if is_free]
    # a literal that can be on
    copies = _ended([on[..., index.variable] | index.negated], True)
    said = speaks[..., index.owners]
    ours = torch.cat([copies[..., index.pairs].all(-1), copies[..., index.choices].all(-1)], -1) & said
    return on, _ended([ours, *free], False)[..., index.own]


def _ended(pieces: Sequence[Tensor], last: bool) -> Tensor:
    """Pieces (…, k) one after the other, and one more entry."""
    first = pieces[0]
    return torch.cat([*pieces, torch.full((*first.shape[:-1], 1), last, dtype=torch.bool, device=first.device)], -1)
