"""A semiring of one's own: two operations and their pullbacks, for any recursion.

    value(v) = ⊕ over the edges e of v of  ⊗ of the scores of its parts, then of the values of its tails

Both are folded from the left, in the order in which edges, parts and tails are listed, starting from the first. A node
without edges is worth `zero`, an edge without parts and tails `one`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from structmax import check
from structmax.outline import name_of

Number = float | tuple[float, ...]

_numbers = itertools.count()
# Those that live: a call names its semiring by a number, as compilers and kernels know no objects.
_living: WeakValueDictionary[int, "Semiring"] = WeakValueDictionary()


@dataclass(frozen=True)
class Semiring:
    """Two operations ⊕ and ⊗ with their neutral elements, and their pullbacks.

    ⊕ and ⊗ are associative, ⊕ commutes, ⊗ distributes over ⊕, and a ⊗ zero = zero; this is not checked. Where ⊗ does
    not commute, an edge is the product of its parts and then of its tails, from left to right.

    An element is a number or, where `zero` and `one` are tuples, a tuple of as many numbers. The functions are
    written in torch and elementwise, so that they take numbers of any batch. Numba compiles the same functions:
    arithmetic, comparisons, tuples, and of torch `where`, `maximum`, `minimum`, `logaddexp`, `exp`, `expm1`, `log`,
    `log1p`, `sqrt`, `abs`, `sigmoid`, `tanh`, `add`, `sub`, `mul` and `div`.

    Args:
        plus: a ⊕ b, of two elements.
        times: a ⊗ b.
        zero: neutral for ⊕: a number, or a tuple of numbers.
        one: neutral for ⊗, of the same kind.
        plus_pullback: (a, b, c, d_c) for c = a ⊕ b to the pair (d_a, d_b); not asked where d_c is 0. Without
            pullbacks the gradient comes from autograd, in the reference.
        times_pullback: the same for ⊗.

    Examples:
        >>> import torch, structmax
        >>> from structmax.recursion import Semiring
        >>> best_product = Semiring(torch.maximum, torch.mul, zero=0.0, one=1.0)
        >>> probabilities = torch.tensor([[0.5, 0.9], [0.8, 0.5]])
        >>> structmax.semiring_value(probabilities, structmax.MonotoneAlignment(), best_product)
        tensor(0.2500)

    Reference: Goodman (1999), Semiring parsing.
    """

    plus: Callable[..., Any]
    times: Callable[..., Any]
    zero: Number
    one: Number
    plus_pullback: Callable[..., Any] | None = None
    times_pullback: Callable[..., Any] | None = None
    number: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("plus", "times", "plus_pullback", "times_pullback"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or "pullback" not in name):
                raise TypeError(f"`{name}` should be a function, but is {check.called(value)}.")
        if (self.plus_pullback is None) != (self.times_pullback is None):
            raise ValueError("`plus_pullback` and `times_pullback` should be given together, but one is missing.")
        for name in ("zero", "one"):
            value = getattr(self, name)
            each = value if isinstance(value, tuple) and value else (value,)
            if any(isinstance(one, bool) or not isinstance(one, int | float) for one in each):
                raise TypeError(f"`{name}` should be a number or a tuple of numbers, but is {value!r}.")
            floats = tuple(map(float, each))
            object.__setattr__(self, name, floats if isinstance(value, tuple) else floats[0])
        if self._form(self.zero) != self._form(self.one):
            raise ValueError(f"`zero` and `one` should be of one size, but are {self.zero!r} and {self.one!r}.")
        object.__setattr__(self, "number", next(_numbers))
        _living[self.number] = self

    def __repr__(self) -> str:
        return f"Semiring({name_of(self.plus)}, {name_of(self.times)}, zero={self.zero!r}, one={self.one!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy, or in another process, has a number of its own
        functions = self.plus, self.times, self.zero, self.one, self.plus_pullback, self.times_pullback
        return Semiring, functions

    @staticmethod
    def _form(element: Number) -> int | None:
        return len(element) if isinstance(element, tuple) else None

    @property
    def is_tuple(self) -> bool:
        """Whether an element is a tuple of numbers."""
        return isinstance(self.zero, tuple)

    @property
    def width(self) -> int:
        """How many numbers an element has."""
        return self._form(self.zero) or 1

    def listed(self, element: Any) -> tuple[Any, ...]:
        """The numbers of an element."""
        return tuple(element) if self.is_tuple else (element,)

    def element(self, numbers: tuple[Any, ...]) -> Any:
        """The inverse: what the functions get."""
        return tuple(numbers) if self.is_tuple else numbers[0]


def semiring_of(number: int) -> Semiring:
    """The semiring that a call names."""
    found = _living.get(int(number))
    if found is None:
        raise RuntimeError(
            f"the semiring of number {number}, which this call was made for, should be alive, but has been freed. "
            "Try keeping it as long as what was compiled with it."
        )
    return found
