"""The user's functions for compiled code: elementwise torch, of plain numbers."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import torch
from numba import types
from numba.extending import overload

from structmax.outline import name_of
from structmax.recursion.semiring import Semiring

# Divisions by zero follow IEEE.
SETTINGS = {"error_model": "numpy"}


class Unsuited(Exception):
    """A function that is compiled, but does not return elements."""


# ---------------------------------------------------------------- torch, of numbers


def _logaddexp(a, b):
    # both infinite: their difference would be NaN
    return a if a == b and math.isinf(a) else max(a, b) + math.log1p(math.exp(-abs(a - b)))


ONE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.abs: abs,
    torch.exp: math.exp,
    torch.expm1: math.expm1,
    torch.log: math.log,
    torch.log1p: math.log1p,
    torch.sqrt: math.sqrt,
    torch.tanh: math.tanh,
    torch.sigmoid: numba.njit(lambda a: 1 / (1 + math.exp(-a)), **SETTINGS),
}
TWO: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.add: lambda a, b: a + b,
    torch.sub: lambda a, b: a - b,
    torch.mul: lambda a, b: a * b,
    torch.div: lambda a, b: a / b,
    # NaN stays
    torch.maximum: lambda a, b: a if a >= b or a != a else b,
    torch.minimum: lambda a, b: a if a <= b or a != a else b,
    torch.logaddexp: _logaddexp,
}


def _of_one(twin: Callable[..., Any]) -> Callable[..., Any]:
    def implementation(a):
        return lambda a: twin(a)

    return implementation


def _of_two(twin: Callable[..., Any]) -> Callable[..., Any]:
    def implementation(a, b):
        return twin

    return implementation


for _function, _twin in ONE.items():
    overload(_function)(_of_one(_twin))
for _function, _twin in TWO.items():
    overload(_function)(_of_two(_twin))


@overload(torch.where)
def _where(condition, a, b):
    return lambda condition, a, b: float(a) if condition else float(b)


# ---------------------------------------------------------------- the user's functions


def compiled(function: Callable[..., Any], semiring: Semiring, pulls_back: bool) -> Any:
    """A function of elements, or of (a, b, c, d_c), for compiled code; raises an error where it is none."""
    ready = function
    if not hasattr(function, "py_func"):
        ready = numba.njit(function if isinstance(function, FunctionType) else _wrapped(function), **SETTINGS)
    element = types.UniTuple(types.float64, semiring.width) if semiring.is_tuple else types.float64
    arguments = (element,) * (4 if pulls_back else 2)
    ready.compile(arguments)
    found = ready.overloads[arguments].signature.return_type
    pair = isinstance(found, types.BaseTuple) and found.count == 2
    fits = pair and all(_is_element(one, semiring) for one in found) if pulls_back else _is_element(found, semiring)
    if not fits:
        one = f"a tuple of {semiring.width} floats" if semiring.is_tuple else "a number"
        wanted = f"two of them, each {one}" if pulls_back else one
        raise Unsuited(f"`{name_of(function)}` should return {wanted}, but compiled it returns {found}")
    return ready


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """One that is not written in Python, such as torch.logaddexp."""
    return lambda a, b: function(a, b)


def _is_element(kind: Any, semiring: Semiring) -> bool:
    if not semiring.is_tuple:
        return isinstance(kind, types.Float | types.Integer | types.Boolean)
    return kind == types.UniTuple(types.float64, semiring.width)
