"""What a factor graph is made of: constraints of logic, couplings with scores, and whole structures.

A factor of logic is lowered to *clauses*, which the solver knows how to project onto: a sum of literals between two
bounds, "z is 1 where any x is", a pair, or a table. Derivation: README.md in this folder.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import AbstractRelaxation, AbstractStructure
from structmax.factor_graph.variables import Literals, Variables, entry, literals


class Clause(NamedTuple):
    """One constraint over a vector of literals. `kind` is "sum", "or_out", "pair", "table" or "structure"."""

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

    def _require_bound(self) -> None:
        """Factors of logic have no scores of their own."""
        for one in self.over:
            if one.of.free:
                raise ValueError(
                    f"{type(self).__name__} should be over variables that are not free, but `{one.of.name}` is free."
                )

    def _require_distinct(self) -> None:
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


class _Sum(AbstractFactor):
    """least ≤ Σ literals ≤ most."""

    def __init__(self, *over: Variables | Literals, least: float, most: float) -> None:
        super().__init__(*over)
        self._require_bound()
        self._require_distinct()
        self.least, self.most = least, most

    def clauses(self) -> Iterator[Clause]:
        yield Clause("sum", self.over, None, self.least, self.most)


class Xor(_Sum):
    """Exactly one of the literals is on.

    Args:
        over: variables or slices of them, negated or not.

    Examples:
        >>> import structmax
        >>> tag = structmax.factors.Variables("tag", (4, 3))
        >>> factors = [structmax.factors.Xor(tag[i]) for i in range(4)]
    """

    def __init__(self, *over: Variables | Literals) -> None:
        super().__init__(*over, least=1.0, most=1.0)


class AtMostOne(_Sum):
    """No two of the literals are on.

    Examples:
        >>> import structmax
        >>> factor = structmax.factors.AtMostOne(structmax.factors.Variables("topic", (5,)))
    """

    def __init__(self, *over: Variables | Literals) -> None:
        super().__init__(*over, least=-math.inf, most=1.0)


class Or(_Sum):
    """At least one of the literals is on.

    Examples:
        >>> import structmax
        >>> topic = structmax.factors.Variables("topic", (5,))
        >>> factor = structmax.factors.Or(topic[:2], ~topic[4])
    """

    def __init__(self, *over: Variables | Literals) -> None:
        super().__init__(*over, least=1.0, most=math.inf)


class Imply(_Sum):
    """Where all literals but the last are on, the last is: x₁ ∧ … ∧ x_k → z.

    Examples:
        >>> import structmax
        >>> topic = structmax.factors.Variables("topic", (5,))
        >>> factor = structmax.factors.Imply(topic[0], topic[3])
    """

    def __init__(self, *over: Variables | Literals) -> None:
        super().__init__(*_output(type(self).__name__, over), least=1.0, most=math.inf)

    def clauses(self) -> Iterator[Clause]:
        # ¬x₁ ∨ … ∨ ¬x_k ∨ z
        *premises, conclusion = self.over
        yield Clause("sum", (*(~one for one in premises), conclusion), None, self.least, self.most)


class XorOut(_Sum):
    """The last literal is on where exactly one of the others is, and no two of these are: z = x₁ + … + x_k.

    Examples:
        >>> import structmax
        >>> topic = structmax.factors.Variables("topic", (5,))
        >>> factor = structmax.factors.XorOut(topic[:4], topic[4])
    """

    def __init__(self, *over: Variables | Literals) -> None:
        super().__init__(*_output(type(self).__name__, over), least=1.0, most=1.0)

    def clauses(self) -> Iterator[Clause]:
        # x₁ + … + x_k + (1 − z) = 1
        *inputs, output = self.over
        yield Clause("sum", (*inputs, ~output), None, self.least, self.most)


class Budget(_Sum):
    """At most, or exactly, so many literals are on.

    Args:
        over: variables or slices of them, negated or not.
        at_most: the largest number that may be on, or
        exactly: the number that is on.

    Examples:
        >>> import structmax
        >>> word = structmax.factors.Variables("word", (20,))
        >>> factor = structmax.factors.Budget(word, at_most=5)
    """

    def __init__(self, *over: Variables | Literals, at_most: int | None = None, exactly: int | None = None) -> None:
        if (at_most is None) == (exactly is None):
            raise ValueError("Budget should have one of `at_most` and `exactly`, as in Budget(x, at_most=3).")
        count = at_most if exactly is None else exactly
        check.whole("at_most" if exactly is None else "exactly", count, 0)
        assert count is not None
        super().__init__(*over, least=-math.inf if exactly is None else float(count), most=float(count))
        if exactly is not None and exactly > self.size:
            raise ValueError(f"`exactly` should be at most the number of literals, {self.size}, but is {exactly}.")
        self.setting = f"at_most={at_most}" if exactly is None else f"exactly={exactly}"


class Knapsack(_Sum):
    """The costs of the literals that are on sum to no more than a capacity.

    Its polytope is the relaxation {x ∈ [0, 1]ⁿ: Σ cost · x ≤ capacity}, which may have fractional corners.

    Args:
        over: variables or slices of them, negated or not.
        costs: one number ≥ 0 for each, in order.
        capacity: what they may sum to.

    Examples:
        >>> import structmax
        >>> item = structmax.factors.Variables("item", (3,))
        >>> factor = structmax.factors.Knapsack(item, costs=[2.0, 1.5, 4.0], capacity=5.0)
    """

    def __init__(self, *over: Variables | Literals, costs: Sequence[float] | Tensor, capacity: float) -> None:
        super().__init__(*over, least=-math.inf, most=float(capacity))
        self.setting = f"capacity={capacity}"
        self.costs = torch.as_tensor(costs, dtype=torch.float64).flatten()
        if len(self.costs) != self.size:
            raise ValueError(
                f"`costs` should have one number for each of the {self.size} literals, but has {len(self.costs)}."
            )
        if not bool((self.costs >= 0).all()) or not capacity >= 0:
            raise ValueError("`costs` and `capacity` should be ≥ 0. To reward an item, negate it.")

    def clauses(self) -> Iterator[Clause]:
        yield Clause("sum", self.over, self.costs, self.least, self.most)


class OrOut(AbstractFactor):
    """The last literal is on where any of the others is, and only there: z = x₁ ∨ … ∨ x_k.

    Examples:
        >>> import structmax
        >>> topic = structmax.factors.Variables("topic", (5,))
        >>> factor = structmax.factors.OrOut(topic[:4], topic[4])
    """

    def __init__(self, *over: Variables | Literals) -> None:
        super().__init__(*_output(type(self).__name__, over))
        self._require_bound()
        self._require_distinct()

    def clauses(self) -> Iterator[Clause]:
        yield Clause("or_out", self.over)


class AndOut(OrOut):
    """The last literal is on where all of the others are, and only there: z = x₁ ∧ … ∧ x_k.

    Examples:
        >>> import structmax
        >>> topic = structmax.factors.Variables("topic", (5,))
        >>> factor = structmax.factors.AndOut(topic[:4], topic[4])
    """

    def clauses(self) -> Iterator[Clause]:
        # ¬z = ¬x₁ ∨ … ∨ ¬x_k
        yield Clause("or_out", tuple(~one for one in self.over))


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
        self._require_bound()
        if one.of.name == two.of.name and bool((one.index == two.index).any()):
            raise ValueError(f"Pair should join two variables, but joins an entry of `{one.of.name}` with itself.")
        self.score = coupling

    def every(self) -> tuple[Literals, ...]:
        return *self.over, self.score

    def clauses(self) -> Iterator[Clause]:
        pairs = [one.index.flatten() for one in (*self.over, self.score)]
        for a, b, s in zip(*pairs, strict=True):
            first, second = self.over
            yield Clause(
                "pair",
                (Literals(first.of, a, first.negated), Literals(second.of, b, second.negated)),
                score=Literals(self.score.of, s),
            )


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
        self._require_distinct()
        most = len(structure.names)
        if len(over) > most:
            raise ValueError(
                f"{type(structure).__name__} has {most} part tensors at most, but Factor has variables for {len(over)}."
            )
        if all(one.of.free for one in self.over):
            raise ValueError("Factor should have at least one variable that is not free, but all are free.")
        fields = [name for name in structure.per_instance if getattr(structure, name) is not None]
        if not any(structure.field_batch_dim(name) for name in fields):
            structure.check(structure.parts(tuple(torch.zeros(one.shape) for one in self.over)))
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
                f"`score` of Dense should have shape {sizes}, the sizes of its groups, but {self.score.shape}."
            )
        self._require_bound()
        self._require_distinct()

    def every(self) -> tuple[Literals, ...]:
        return *self.over, self.score

    def clauses(self) -> Iterator[Clause]:
        yield Clause("table", self.over, score=self.score)


def _output(name: str, over: Sequence[Any]) -> list[Literals]:
    """All literals, the last one by itself: it is the factor's output."""
    every = [literals(one) for one in over]
    if not every or sum(one.index.numel() for one in every) < 2:
        raise ValueError(f"{name} should have at least two literals, the last of them its output.")
    *before, last = every
    flat = last.index.flatten()
    rest = [Literals(last.of, flat[:-1], last.negated)] if len(flat) > 1 else []
    return [*before, *rest, Literals(last.of, flat[-1:], last.negated)]


def _free(name: str, score: Literals) -> None:
    if not score.of.free:
        raise ValueError(f"the score of {name} should be free: Variables({score.of.name!r}, …, free=True).")
