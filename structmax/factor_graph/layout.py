"""A factor graph as arrays: what its solver reads."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from structmax.contract import AbstractStructure, outside_transforms
from structmax.factor_graph.factors import AbstractFactor, Clause, Factor
from structmax.factor_graph.variables import Literals, Variables, entry

T = TypeVar("T")
# As the kernels know them.
KINDS = {"sum": 0, "or_out": 1, "pair": 2, "structure": 3, "table": 4}


class Arrays(NamedTuple):
    """F factors over E copies of n variables. Factor f has the copies start[f] : start[f + 1]."""

    # of each copy: its variable, −1 where it is negated and 1 elsewhere, its weight in a sum
    variable: np.ndarray
    sign: np.ndarray
    weight: np.ndarray
    # of each factor: where its copies begin (F + 1,), and its number among those whose faces are spanned by members,
    # tables first and then structures, −1 for a factor of logic
    start: np.ndarray
    spanned: np.ndarray
    # of each variable: in how many factors it is
    degree: np.ndarray
    # of each factor: its kind, the bounds of a sum, and the index of a pair's score
    kind: np.ndarray
    least: np.ndarray
    most: np.ndarray
    part: np.ndarray


class Tables(NamedTuple):
    """T tables among the factors, with M joint choices in all. Table t has the choices begin[t] : begin[t + 1]."""

    # of each table: its number among all factors, how many groups it has, where its choices begin (T + 1,)
    number: np.ndarray
    groups: np.ndarray
    begin: np.ndarray
    # of each choice: its state of each group, counted among the copies of its table (M, L), −1 past the last group;
    # and which of all free scores is its own
    states: np.ndarray
    own: np.ndarray


@dataclass(frozen=True)
class Outside:
    """A structure among the factors."""

    factor: Factor
    # its number among all factors
    number: int
    # of each of its part tensors: the shape, and whether it is free
    shapes: tuple[tuple[int, ...], ...]
    free: tuple[bool, ...]
    # which of all free scores are its own
    scores: np.ndarray
    # of each of its part tensors: places among the variables or among the free scores, and whether it is negated
    places: tuple[np.ndarray, ...]
    negated: tuple[bool, ...]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """What the structure has for each instance."""
        return instance_fields(self.factor.structure)


def instance_fields(structure: AbstractStructure) -> tuple[str, ...]:
    """The per-instance fields that are given with a batch; one without holds for every instance as it is."""
    given = [name for name in structure.per_instance if getattr(structure, name) is not None]
    return tuple(name for name in given if structure.field_batch_dim(name))


class TableRoom(NamedTuple):
    """What the faces of the tables may need."""

    # the most choices of a support, one that is about to enter among them
    most: int
    # where the directions of each table begin (T,), and how many numbers they are in all
    place: np.ndarray
    size: int


@dataclass(frozen=True, eq=False)
class Layout:
    """Names in the order in which their entries stand in flat vectors: n variables, and m free scores.

    The functions of a graph receive only numbers and tensors, so each layout is identified by a number.
    """

    bound: dict[str, Variables]
    free: dict[str, Variables]
    arrays: Arrays
    tables: Tables
    outside: tuple[Outside, ...]
    # (n,): how much the norm counts each variable
    norm: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", next(_numbers))
        _layouts[self.number] = self

    number: int = field(init=False, repr=False)
    notes: dict[str, Any] = field(init=False, repr=False, default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy, perhaps in another process, has a number of its own
        return Layout, (self.bound, self.free, self.arrays, self.tables, self.outside, self.norm)

    @staticmethod
    def of_number(number: int) -> Layout:
        return _layouts[int(number)]

    def remembered(self, name: str, make: Callable[[Layout], T]) -> T:
        """A value computed from a layout once, and kept."""
        if name not in self.notes:
            with outside_transforms():
                self.notes[name] = make(self)
        return self.notes[name]

    @cached_property
    def variables(self) -> tuple[Variables, ...]:
        """All names in the order of the part tensors."""
        return (*self.bound.values(), *self.free.values())

    @cached_property
    def table_room(self) -> TableRoom:
        start, number = self.arrays.start, self.tables.number
        size = start[number + 1] - start[number]
        # affinely independent choices, and one that is about to enter
        most = size - self.tables.groups + 2
        ends = np.cumsum([0, *((most - 1) * size)], dtype=np.int64)
        return TableRoom(int(most.max(initial=0)), ends[:-1], int(ends[-1]))

    def structures(self, fields: Mapping[str, Any]) -> tuple[AbstractStructure, ...]:
        """The structures among the factors, with fields named `field_name`."""
        found = []
        for k, outside in enumerate(self.outside):
            own = {name: fields[field_name(k, name)] for name in outside.fields}
            found.append(outside.factor.structure.changed(own))
        return tuple(found)

    def joined(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Flat vectors (B, n) and (B, m) from part tensors (B, …)."""
        rows, count = len(tensors[0]), len(self.bound)
        nothing = tensors[0].new_zeros(rows, 0)

        def flat(group: Sequence[Tensor]) -> Tensor:
            return torch.cat([nothing, *(t.reshape(rows, math.prod(t.shape[1:])) for t in group)], 1)

        return flat(tensors[:count]), flat(tensors[count:])

    def split(self, bound: Tensor, free: Tensor) -> tuple[Tensor, ...]:
        """The inverse; leading dimensions stay as they are."""
        return tuple(
            flat[..., place].reshape((*flat.shape[:-1], *names[name].shape))
            for names, flat in ((self.bound, bound), (self.free, free))
            for name, place in places(names).items()
        )


def field_name(number: int, name: str) -> str:
    """What the graph calls a field of one of its structures."""
    return f"{name}_{number}"


_numbers = itertools.count()
_layouts: MutableMapping[int, Layout] = weakref.WeakValueDictionary()


def places(names: dict[str, Variables]) -> dict[str, slice]:
    """Where the entries of each name stand in the flat vector of all."""
    ends = list(itertools.accumulate((variables.size for variables in names.values()), initial=0))
    return {name: slice(*pair) for name, pair in zip(names, itertools.pairwise(ends), strict=True)}


def lay_out(items: Iterable[AbstractFactor | Variables]) -> Layout:
    """The arrays of a graph of these factors, and of variables in no factor."""
    factors = [item for item in items if isinstance(item, AbstractFactor)]
    loose = [item for item in items if isinstance(item, Variables)]
    used = [one for factor in factors for one in factor.every()]
    names = _names([*(one.of for one in used), *loose])
    bound = {name: variables for name, variables in names.items() if not variables.free}
    free = {name: variables for name, variables in names.items() if variables.free}
    if not bound:
        raise ValueError("a FactorGraph should have variables, but has none.")
    _require_owners(free, [one for one in used if one.of.free])
    starts = {name: place.start for group in (bound, free) for name, place in places(group).items()}
    rows: list[Row] = []
    outside: list[Outside] = []
    for factor in factors:
        rows.extend(_row(clause, starts) for clause in factor.clauses())
        if isinstance(factor, Factor):
            own = tuple(one for one in factor.over if not one.of.free)
            others = [one for one in factor.over if one.of.free]
            shapes, kinds = tuple(one.shape for one in factor.over), tuple(one.of.free for one in factor.over)
            each, signs = tuple(_flat([one], starts) for one in factor.over), tuple(o.negated for o in factor.over)
            number = sum(row.factors for row in rows)
            outside.append(Outside(factor, number, shapes, kinds, _flat(others, starts), each, signs))
            rows.append(_row(Clause("structure", own), starts))
    arrays = _arrays(rows, sum(v.size for v in bound.values()))
    return Layout(bound, free, arrays, _tables(rows), tuple(outside), np.ones(len(arrays.degree)))


def _names(mentioned: Iterable[Variables]) -> dict[str, Variables]:
    names: dict[str, Variables] = {}
    for variables in mentioned:
        known = names.setdefault(variables.name, variables)
        if (known.shape, known.free) != (variables.shape, variables.free):
            said = [f"{'a free one' if v.free else 'one'} of shape {v.shape}" for v in (known, variables)]
            raise ValueError(f"`{variables.name}` should name one tensor of variables, but names {' and '.join(said)}.")
    return names


def _require_owners(free: dict[str, Variables], used: Sequence[Literals]) -> None:
    """Each free score belongs to one factor."""
    for name, variables in free.items():
        index = torch.cat([torch.zeros(0, dtype=torch.int64), *(o.index.flatten() for o in used if o.of.name == name)])
        counts = torch.bincount(index, minlength=variables.size)
        if not bool(counts.any()):
            raise ValueError(f"`{name}` is free, and should belong to a factor, but is in none.")
        if bool((counts > 1).any()):
            twice = entry(int((counts > 1).nonzero()[0]), variables.shape)
            raise ValueError(
                f"`{name}` is free: each entry should belong to one factor, but entry {twice} belongs to two."
            )


class Row(NamedTuple):
    """A factor, or several pairs: entries in the arrays."""

    # how many factors, of as many literals each
    factors: int
    variable: np.ndarray
    sign: np.ndarray
    weight: np.ndarray
    kind: int
    least: float
    most: float
    # its own scores, and the sizes of its groups
    own: np.ndarray
    sizes: tuple[int, ...]


def _row(clause: Clause, starts: dict[str, int]) -> Row:
    variable = _flat(clause.literals, starts)
    sign = np.concatenate([np.full(one.index.numel(), -1.0 if one.negated else 1.0) for one in clause.literals])
    count = 1
    if clause.kind == "pair":
        # one pair after the other
        count = len(variable) // 2
        variable, sign = (array.reshape(2, count).T.reshape(-1) for array in (variable, sign))
    weight = np.ones(len(variable)) if clause.weight is None else clause.weight.numpy()
    if clause.kind == "or_out":
        weight[-1] = -1.0
    own = _flat([] if clause.score is None else [clause.score], starts)
    sizes = tuple(one.index.numel() for one in clause.literals)
    return Row(count, variable, sign, weight, KINDS[clause.kind], clause.least, clause.most, own, sizes)


def _flat(ones: Sequence[Literals], starts: dict[str, int]) -> np.ndarray:
    pieces = [starts[one.of.name] + one.index.flatten().numpy() for one in ones]
    return np.concatenate([np.zeros(0, np.int64), *pieces])


def _arrays(rows: list[Row], count: int) -> Arrays:
    variable, sign, weight = (
        np.concatenate([np.zeros(0, dtype), *(getattr(row, name) for row in rows)])
        for name, dtype in (("variable", np.int64), ("sign", np.float64), ("weight", np.float64))
    )
    repeats = np.array([row.factors for row in rows], np.int64)

    def of_factors(values: Sequence[float], dtype: type) -> np.ndarray:
        """One value for each factor, from one for each row."""
        return np.repeat(np.array(values, dtype), repeats)

    kind = of_factors([row.kind for row in rows], np.int64)
    pair = kind == KINDS["pair"]
    part = np.full(len(kind), -1, np.int64)
    part[pair] = np.concatenate([np.zeros(0, np.int64), *(row.own for row in rows if row.kind == KINDS["pair"])])
    table, structure = kind == KINDS["table"], kind == KINDS["structure"]
    spanned = np.where(table, np.cumsum(table), np.cumsum(structure) + table.sum()) - 1
    return Arrays(
        variable,
        sign,
        weight,
        start=np.cumsum([0, *of_factors([len(row.variable) // row.factors for row in rows], np.int64)], dtype=np.int64),
        spanned=np.where(table | structure, spanned, -1).astype(np.int64),
        degree=np.bincount(variable, minlength=count).astype(np.int64),
        kind=kind,
        least=of_factors([row.least for row in rows], np.float64),
        most=of_factors([row.most for row in rows], np.float64),
        part=part,
    )


def _tables(rows: list[Row]) -> Tables:
    before = itertools.accumulate((row.factors for row in rows), initial=0)
    tables = [(f, row) for f, row in zip(before, rows, strict=False) if row.kind == KINDS["table"]]
    most = max((len(row.sizes) for _, row in tables), default=0)
    states = [np.zeros((0, most), np.int32)]
    for _, row in tables:
        sizes = row.sizes
        first = np.cumsum([0, *sizes[:-1]])
        choices = np.indices(sizes).reshape(len(sizes), -1).T + first
        states.append(np.pad(choices, ((0, 0), (0, most - len(sizes))), constant_values=-1).astype(np.int32))
    return Tables(
        number=np.array([f for f, _ in tables], np.int64),
        groups=np.array([len(row.sizes) for _, row in tables], np.int64),
        begin=np.cumsum([0, *(len(row.own) for _, row in tables)], dtype=np.int64),
        states=np.concatenate(states),
        own=np.concatenate([np.zeros(0, np.int64), *(row.own for _, row in tables)]),
    )
