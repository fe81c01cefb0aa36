"""Factors of logic: constraints on how many literals are on, and literals that follow from others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.factor_graph.factors import AbstractFactor, Clause
from structmax.factor_graph.variables import Literals, Variables, literals


class _Sum(AbstractFactor):
    """least ≤ Σ literals ≤ most."""

    def __init__(self, *over: Variables | Literals, least: float, most: float) -> None:
        super().__init__(*over)
        self.require_bound()
        self.require_distinct()
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
        check.positive("capacity", capacity, or_zero=True)
        super().__init__(*over, least=-math.inf, most=float(capacity))
        self.setting = f"capacity={capacity}"
        self.costs = torch.as_tensor(costs, dtype=torch.float64).flatten()
        if len(self.costs) != self.size:
            raise ValueError(
                f"`costs` should have one number for each of the {self.size} literals, but has {len(self.costs)}."
            )
        if not bool((self.costs >= 0).all()):
            raise ValueError(
                f"`costs` should be ≥ 0, but the least is {self.costs.min():g}. To reward an item, negate it: "
                "~x with the opposite cost, and as much more capacity."
            )

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
        self.require_bound()
        self.require_distinct()

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


def _output(name: str, over: Sequence[Any]) -> list[Literals]:
    """All literals, the last one by itself: it is the factor's output."""
    every = [literals(one) for one in over]
    if not every or sum(one.index.numel() for one in every) < 2:
        count = sum(one.index.numel() for one in every)
        raise ValueError(f"{name} should have at least two literals, the last of them its output, but has {count}.")
    *before, last = every
    flat = last.index.flatten()
    rest = [Literals(last.of, flat[:-1], last.negated)] if len(flat) > 1 else []
    return [*before, *rest, Literals(last.of, flat[-1:], last.negated)]
