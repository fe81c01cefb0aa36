"""What every Triton kernel shares: the one way to launch it, and the precision it computes in at least."""

from collections.abc import Hashable
from typing import Any

from torch import Tensor

_compiled: dict[Hashable, Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: tuple[Any, ...], num_warps: int = 4
) -> None:
    """kernel[grid](*arguments, *constants), with the compiled kernel found by one look-up.

    Triton's own search takes longer than a small batch does on the GPU. The key has all that a compiled kernel depends
    on: device, dtypes, alignments, what Triton specialises of integers, and the constants.

    Args:
        kernel: a function under `triton.jit`, whose last parameters are constexpr.
        grid: how many programs, in up to three dimensions. Nothing is launched if there are none.
        arguments: tensors, the first of which is on the device to run on; None, integers and numbers.
        constants: the values of the constexpr parameters.
        num_warps: of a program.
    """
    if 0 in grid:
        return
    layout = tuple(map(_specialised, arguments))
    key = (kernel, num_warps, arguments[0].get_device(), layout, constants)
    compiled = _compiled.get(key)
    if compiled is not None:
        compiled[(*grid, 1, 1)[:3]](*arguments, *constants)
        return
    compiled = kernel[grid](*arguments, *constants, num_warps=num_warps)
    # The interpreter compiles nothing.
    if compiled is not None:
        _compiled[key] = compiled


def _specialised(argument: Any) -> Hashable:
    """What a compiled kernel depends on of an argument."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument % 16 == 0, argument == 1, -(2**31) <= argument < 2**31
    return type(argument)
