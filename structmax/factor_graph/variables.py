"""Names for the binary variables of a factor graph, their slices, and negation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structmax import check

# How many literals are written out.
SHOWN = 4


@dataclass(frozen=True, eq=False)
class Variables:
    """A named tensor of binary variables, or of scores that belong to one factor each.

    Index it like a tensor to choose some of them; `~` negates. Scores and answers of a graph are dictionaries of
    tensors (…, *shape) by these names.

    Args:
        name: the key of its scores.
        shape: its shape, without the batch; () is a single one.
        free: a factor's own parts, such as the transitions of a chain: scored, but not regularised, and in no other
            factor.

    Examples:
        >>> import structmax
        >>> tag = structmax.factors.Variables("tag", (4, 3))
        >>> tag[0].shape, (~tag[:, 1]).shape
        ((3,), (4,))
    """

    name: str
    shape: tuple[int, ...]
    free: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"`name` should be a word, the key of the scores, but is {self.name!r}.")
        if isinstance(self.shape, int):
            raise TypeError(f"`shape` should be a tuple of sizes, but is {self.shape}. Try ({self.shape},).")
        for size in self.shape:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"`shape` should hold whole numbers ≥ 1, but holds {size!r}.")
        object.__setattr__(self, "shape", tuple(self.shape))

    def __repr__(self) -> str:
        return f"Variables({self.name!r}, {self.shape}{', free=True' if self.free else ''})"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: Any) -> Literals:
        return literals(self)[index]

    def __invert__(self) -> Literals:
        return ~literals(self)

    def __len__(self) -> int:
        return len(literals(self).index)


@dataclass(frozen=True, eq=False)
class Literals:
    """Some of the variables of one name, or their negations.

    Args:
        of: the variables.
        index: which of them: positions in their flattened tensor, in any shape.
        negated: whether 1 − variable is meant.
    """

    of: Variables
    index: Tensor
    negated: bool = False

    def __repr__(self) -> str:
        """The first of them as one would index them, and how many there are."""
        places = [entry(index, self.of.shape) for index in self.index.flatten()[:SHOWN].tolist()]
        sign, count = "~" if self.negated else "", self.index.numel()
        each = [f"{sign}{self.of.name}{list(place) if place else ''}" for place in places]
        return ", ".join(each) + (f", … ({count} of {self.of.name})" if count > SHOWN else "")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.index.shape)

    def __getitem__(self, index: Any) -> Literals:
        try:
            return Literals(self.of, self.index[index], self.negated)
        except (IndexError, TypeError) as error:
            raise IndexError(f"`{self.of.name}` of shape {self.shape} has no [{index}]: {error}.") from error

    def __invert__(self) -> Literals:
        if self.of.free:
            raise ValueError(f"`{self.of.name}` is free: a factor's own score has no negation.")
        return Literals(self.of, self.index, not self.negated)

    def __len__(self) -> int:
        return len(self.index)


def literals(what: Variables | Literals) -> Literals:
    """Variables as literals of all of them."""
    if isinstance(what, Literals):
        return what
    if not isinstance(what, Variables):
        hint = " Try Xor(*slices) for a list of them." if isinstance(what, list | tuple) else ""
        raise TypeError(f"a factor should be over Variables or slices of them, but got {check.called(what)}.{hint}")
    return Literals(what, torch.arange(what.size).reshape(what.shape))


def entry(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where an index of the flattened tensor stands."""
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(index), shape))
