"""The value of a recursion in any semiring, in torch: slow but correct, on any device.

Functions take x (B, P) for each number of an element, and the recursion as keywords. Values are computed level by
level; the gradient is autograd's, with the semiring's own pullbacks where it has them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax.recursion.edges import Hyperedges, Level, layout
from structmax.recursion.reference import _at, reached
from structmax.recursion.semiring import Semiring, semiring_of

# The numbers of an element, each of the same shape.
Element = tuple[Tensor, ...]
Operation = Callable[[Element, Element], Element]


class _Operation(Function):
    """An operation whose gradient is the user's pullback: where d_c is 0 it is 0, and what that says is not read."""

    @staticmethod
    def forward(semiring: Semiring, operation: Any, pullback: Any, *numbers: Tensor) -> Element:
        return _called(semiring, operation, *_halves(numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Element) -> None:
        ctx.semiring, _, ctx.pullback, *numbers = inputs
        ctx.save_for_backward(*numbers, *output)

    @staticmethod
    def backward(ctx: Any, *d_c: Tensor) -> tuple[Any, ...]:
        K, form = ctx.semiring.width, ctx.semiring.element
        saved = ctx.saved_tensors
        elements = (form(numbers) for numbers in (saved[:K], saved[K : 2 * K], saved[2 * K :], d_c))
        found = [d for element in ctx.pullback(*elements) for d in ctx.semiring.listed(element)]
        still = torch.stack([d == 0 for d in d_c]).all(0)
        return None, None, None, *(torch.where(still, 0.0, d) for d in found)


def _halves(numbers: tuple[Tensor, ...]) -> tuple[Element, Element]:
    return numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]


def _called(semiring: Semiring, operation: Any, a: Element, b: Element) -> Element:
    """a and b combined; a number that the user's function returns becomes a tensor."""
    found = semiring.listed(operation(semiring.element(a), semiring.element(b)))
    return tuple(torch.as_tensor(c, dtype=a[0].dtype, device=a[0].device).expand_as(a[0]) for c in found)


def _operation(semiring: Semiring, operation: Any, pullback: Any) -> Operation:
    if pullback is None:
        return lambda a, b: _called(semiring, operation, a, b)
    return lambda a, b: _Operation.apply(semiring, operation, pullback, *a, *b)


def _fold(operation: Operation, neutral: Element, items: list[tuple[Element, Tensor]]) -> Element:
    """The items that are present, from left to right, and the neutral element where none is."""
    total, some = neutral, torch.zeros_like(items[0][1])
    for item, present in items:
        joined = operation(total, item)
        both, alone = present & some, present & ~some
        total = tuple(
            torch.where(both, j, torch.where(alone, i, t)) for j, i, t in zip(joined, item, total, strict=True)
        )
        some = some | present
    return total


def _values(x: tuple[Tensor, ...], goal: Tensor, edges: Hyperedges, semiring: Semiring) -> Element:
    """The value of each goal: (B,) for each number of an element."""
    size = x[0].shape[1]
    plan = layout(edges, size, x[0].device)
    place, wanted = reached(goal, plan, len(x[0]), size)
    zero, one = (
        tuple(x[0].new_full((len(x[0]), 1), number) for number in semiring.listed(element))
        for element in (semiring.zero, semiring.one)
    )
    plus = _operation(semiring, semiring.plus, semiring.plus_pullback)
    times = _operation(semiring, semiring.times, semiring.times_pullback)
    # one for what no derivation of the goal can use, and behind it twice, for parts that are none
    scores = tuple(torch.cat([torch.where(wanted, s, o), o, o], 1) for s, o in zip(x, one, strict=True))
    values = one
    for level in plan.levels:
        shape = len(x[0]), *level.edges.shape
        products = _products(level, scores, values, size, times, tuple(o.unsqueeze(2).expand(shape) for o in one))
        listed = list(zip(*(product.unbind(-1) for product in products), strict=True))
        present = (level.edges < len(edges.tails)).unbind(-1)
        nodes = _fold(plus, tuple(z.expand(shape[:2]) for z in zero), list(zip(listed, present, strict=True)))
        values = tuple(torch.cat([old, new], 1) for old, new in zip(values, nodes, strict=True))
    return tuple(value.gather(1, place).squeeze(1) for value in values)


def _products(
    level: Level, scores: Element, values: Element, size: int, times: Operation, one: Element
) -> tuple[Tensor, ...]:
    """⊗ of the parts and then of the tails, for every edge of the level: (B, n, D)."""
    parts = [(tuple(_at(s, index) for s in scores), index < size) for index in level.parts.unbind(-1)]
    tails = [(tuple(_at(v, index) for v in values), index > 0) for index in level.tails.unbind(-1)]
    return _fold(times, one, parts + tails)


def semiring_value(*x: Tensor, semiring: int, width: int, goal: Tensor, **edges: Tensor) -> Tensor:
    """The value of each goal, an element of the semiring: (B, K)."""
    return torch.stack(_values(x, goal, Hyperedges(**edges), semiring_of(semiring)), 1)


def semiring_pullback(*x: Tensor, d_value: Tensor, **rest: Any) -> Tensor:
    """The gradient of ⟨value, d_value⟩ for each number of each score: (B, K, P)."""
    with torch.inference_mode(False):
        scores = tuple(t.clone() if t.is_inference() else t for t in x)
        _, pullback = torch.func.vjp(lambda *s: semiring_value(*s, **rest), *scores)  # type: ignore[misc]
        return torch.stack(pullback(d_value), 1)
