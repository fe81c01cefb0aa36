"""The value of a recursion in any semiring, on the CPU, by the user's functions, compiled. The twin is reference.py.

What is compiled is kept as long as the semiring lives, and not on disk.
"""

import logging
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from numba.core.errors import NumbaError
from torch import Tensor

from structmax.numerics.kernel_numba import over_rows
from structmax.outline import name_of
from structmax.recursion.semiring import Semiring, semiring_of
from structmax.recursion.semiring.kernel_numba.functions import Unsuited, compiled
from structmax.recursion.semiring.kernel_numba.rows import pullback_kernel, value_kernel

log = logging.getLogger("structmax")

# An edge takes about as long as this many elements of a plain array.
VISITS = 8

# by semiring, for the value and for the pullback: the kernel, or why there is none
_kernels: WeakKeyDictionary[Semiring, dict[str, Any]] = WeakKeyDictionary()


def _kernel(name: str, semiring: Semiring) -> Any:
    """The kernel of a semiring, or the reason why it has none."""
    known = _kernels.setdefault(semiring, {})
    if name not in known:
        known[name] = _made(name, semiring)
        if isinstance(known[name], str):
            log.info("%r has no compiled %s: %s", semiring, name, known[name])
    return known[name]


def _made(name: str, semiring: Semiring) -> Any:
    functions = [semiring.plus, semiring.times]
    if name == "semiring_pullback":
        if semiring.plus_pullback is None or semiring.times_pullback is None:
            return "the semiring has no pullbacks, and autograd's are those of the reference"
        functions += [semiring.plus_pullback, semiring.times_pullback]
    ready = []
    for number, function in enumerate(functions):
        try:
            ready.append(compiled(function, semiring, pulls_back=number > 1))
        except Unsuited as error:
            return str(error)
        except NumbaError as error:
            said = " ".join(str(error).split())
            return f"Numba does not compile `{name_of(function)}`: {said}"
    make = value_kernel if name == "semiring_value" else pullback_kernel
    return make(semiring, *ready)


def refuses(name: str, tensors: Sequence[Tensor], fields: dict[str, Any]) -> str | None:
    """Why Numba does not compile the functions of this semiring; None if it does."""
    found = _kernel(name, semiring_of(fields["semiring"]))
    return found if isinstance(found, str) else None


def _ask(name: str, semiring: int, x: tuple[Tensor, ...], graph: dict[str, Tensor], *rest: Tensor) -> None:
    """Fills the last of the rest, slice by slice of the batch."""
    kernel, width = _kernel(name, semiring_of(semiring)), len(x)
    numbers = torch.stack(x, 1) if width > 1 else x[0].unsqueeze(1)
    columns = graph["goal"], graph["first"], graph["tails"], graph["parts"]
    arrays = (tensor.contiguous().numpy() for tensor in (numbers, *columns, *rest))
    over_rows(kernel, len(numbers), numbers.shape[0] * len(graph["tails"]) * width * VISITS, *arrays)


def semiring_value(*x: Tensor, semiring: int, width: int, **graph: Tensor) -> Tensor:
    """The value of each goal, an element of the semiring: (B, K)."""
    value = x[0].new_empty(len(x[0]), width)
    _ask("semiring_value", semiring, x, graph, value)
    return value


def semiring_pullback(*x: Tensor, d_value: Tensor, semiring: int, width: int, **graph: Tensor) -> Tensor:
    """The gradient of ⟨value, d_value⟩ for each number of each score: (B, K, P)."""
    d_x = x[0].new_empty(len(x[0]), width, x[0].shape[1])
    _ask("semiring_pullback", semiring, x, graph, d_value, d_x)
    return d_x
