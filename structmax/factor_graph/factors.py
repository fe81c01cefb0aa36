"""What a factor graph is made of: couplings with scores, whole structures, and, in logic.py, constraints of logic.

A factor is lowered to *clauses*, which the solver knows how to project onto: a sum of literals between two bounds, "z
is 1 where any x is", a pair, or a table. Derivation: README.md in this folder.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from structmax.contract import AbstractRelaxation, AbstractStructure
from structmax.factor_graph.variables import Literals, Variables, entry, literals


class Clause(NamedTuple):
    """One constraint over a vector of literals. `kind` is "sum", "or_out", "pair", "table" or "structure".

    A clause of pairs stands for one constraint for each entry of its two slices and its score.
    """

    kind: str
    literals: tuple[Literals, ...]
    weight: Tensor | None = None
    least: float = -math.inf
    most: float = math.inf
    score: Literals | None = None


class AbstractFactor(ABC):
    """A constraint or a coupling of variables."""

    # what else it prints
    setting: str = ""

    def __init__(self, *over: Variables | Literals) -> None:
        self.over = tuple(literals(one) for one in over)
        if not self.size:
            raise ValueError(f"{type(self).__name__} should have at least one variable, but has none.")

    def __repr__(self) -> str:
        setting = [self.setting] if self.setting else []
        return f"{type(self).__name__}({', '.join([*map(repr, self.every()), *setting])})"

    @property
    def kind(self) -> str:
        """What it is called in the description of a graph."""
        return type(self).__name__

    def every(self) -> tuple[Literals, ...]:
        """All that it is over, its own scores too."""
        return self.over

    @property
    def size(self) -> int:
        return sum(one.index.numel() for one in self.over)

    def require_bound(self) -> None:
        """Factors of logic have no scores of their own."""
        for one in self.over:
            if one.of.free:
                raise ValueError(
                    f"{type(self).__name__} should be over variables that are not free, but `{one.of.name}` is free."
                )

    def require_distinct(self) -> None:
        seen: dict[tuple[str, int], None] = {}
        for one in self.over:
            for index in one.index.flatten().tolist():
                if (one.of.name, index) in seen:
                    raise ValueError(
                        f"{type(self).__name__} should have each variable once, negated or not, but has entry "
                        f"{entry(index, one.of.shape)} of `{one.of.name}` twice."
                    )
                seen[one.of.name, index] = None

    @abstractmethod
    def clauses(self) -> Iterator[Clause]:
        """What the solver gets."""


class Pair(AbstractFactor):
    """A score where two literals are both on; over slices of equal shape, one pair for each entry.

    Args:
        first: a literal, or a slice of them.
        second: what it is paired with, of the same shape.
        score: free variables of that shape. Positive scores attract, negative ones repel.

    Examples:
        >>> import structmax
        >>> word, bond = structmax.factors.Variables("word", (6,)), structmax.factors.Variables("bond", (5,), free=True)
        >>> factor = structmax.factors.Pair(word[:-1], word[1:], score=bond)
    """

    def __init__(self, first: Variables | Literals, second: Variables | Literals, *, score: Variables | Literals):
        one, two, coupling = literals(first), literals(second), literals(score)
        if not one.shape == two.shape == coupling.shape:
            raise ValueError(
                f"Pair should be over slices of equal shape, and its score too, but these are {one.shape}, {two.shape} "
                f"and {coupling.shape}."
            )
        _free("Pair", coupling)
        super().__init__(one, two)
        self.require_bound()
        if one.of.name == two.of.name and bool((one.index == two.index).any()):
            raise ValueError(f"Pair should join two variables, but joins an entry of `{one.of.name}` with itself.")
        self.score = coupling

    def every(self) -> tuple[Literals, ...]:
        return *self.over, self.score

    def clauses(self) -> Iterator[Clause]:
        yield Clause("pair", self.over, score=self.score)


class Factor(AbstractFactor):
    """A structure of the library as a factor: its parts are variables of the graph.

    Args:
        structure: the structure; one without per-instance fields serves every batch.
        over: for each part tensor of the structure, in order, variables or a slice of its shape without the batch.
            Those that are `free` are scored, but not regularised: the transitions of a chain.

    Examples:
        >>> import structmax
        >>> arc = structmax.factors.Variables("arc", (6, 6))
        >>> factor = structmax.factors.Factor(structmax.SpanningTree(single_root=True), arc)
    """

    def __init__(self, structure: AbstractStructure, *over: Variables | Literals) -> None:
        if not isinstance(structure, AbstractStructure):
            kind = f"class. Try {structure.__name__}()" if isinstance(structure, type) else type(structure).__name__
            raise TypeError(f"Factor should have a structure first, but got a {kind}.")
        if isinstance(structure, AbstractRelaxation):
            raise TypeError(
                f"Factor should have a structure whose convex hull is known, but {type(structure).__name__} only has a "
                "relaxation of it. Try giving the factors of both graphs to one FactorGraph."
            )
        super().__init__(*over)
        self.require_distinct()
        most, least = len(structure.names), structure.needed
        if not least <= len(over) <= most:
            named = ", ".join(f"`{name}`" for name in structure.names)
            raise ValueError(
                f"Factor should have variables for the part tensors of {type(structure).__name__}, {named}, at least "
                f"{least} and at most {most}, but has {len(over)}. Parts that no other factor has can be free=True."
            )
        if all(one.of.free for one in self.over):
            raise ValueError("Factor should have at least one variable that is not free, but all are free.")
        fields = [name for name in structure.per_instance if getattr(structure, name) is not None]
        if not any(structure.field_batch_dim(name) for name in fields):
            try:
                structure.check(structure.parts(tuple(torch.zeros(one.shape) for one in self.over)))
            except ValueError as error:
                given = ", ".join(f"`{one.of.name}` {one.shape}" for one in self.over)
                raise ValueError(f"Factor over {given} does not fit: {error}") from error
        self.structure = structure

    def __repr__(self) -> str:
        over = ", ".join(f"{'~' if one.negated else ''}{one.of.name} {one.shape}" for one in self.over)
        return f"Factor({self.structure!r}, {over})"

    @property
    def kind(self) -> str:
        return type(self.structure).__name__

    def clauses(self) -> Iterator[Clause]:
        return iter(())


class Dense(AbstractFactor):
    """A table of scores: one state of each group is on, and each joint choice has a score.

    Args:
        groups: for each variable of many values its states, a vector of literals.
        score: free variables of shape (C₁, …, C_k), the sizes of the groups.

    Examples:
        >>> import structmax
        >>> tag = structmax.factors.Variables("tag", (2, 3))
        >>> joint = structmax.factors.Variables("joint", (3, 3), free=True)
        >>> factor = structmax.factors.Dense(tag[0], tag[1], score=joint)
    """

    def __init__(self, *groups: Variables | Literals, score: Variables | Literals) -> None:
        super().__init__(*groups)
        self.score = literals(score)
        _free("Dense", self.score)
        sizes = tuple(one.index.numel() for one in self.over)
        if self.score.shape != sizes:
            raise ValueError(
                f"`score` of Dense should have shape {sizes}, the sizes of its groups, but has {self.score.shape}."
            )
        self.require_bound()
        self.require_distinct()

    def every(self) -> tuple[Literals, ...]:
        return *self.over, self.score

    def clauses(self) -> Iterator[Clause]:
        yield Clause("table", self.over, score=self.score)


def _free(name: str, score: Literals) -> None:
    if not score.of.free:
        raise ValueError(
            f"the score of {name} should be free, but `{score.of.name}` is not. "
            f"Try Variables({score.of.name!r}, {score.of.shape}, free=True)."
        )


def instead_of(item: object) -> str:
    """What to give a graph in place of this."""
    if isinstance(item, AbstractStructure):
        return f"Try Factor({item!r}, …), over variables that are its parts."
    if isinstance(item, Literals):
        return "Try a factor over it, such as Xor(…), or all the Variables."
    return "A list of factors is given as FactorGraph(*factors)."
