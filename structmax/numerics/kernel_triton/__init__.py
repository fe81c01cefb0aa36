"""What every Triton kernel shares: the one way to launch it, and the shared memory that it may have."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

ONES = 1, 1, 1
_compiled: dict[Hashable, Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: tuple[Any, ...], num_warps: int = 4
) -> None:
    """kernel[grid](*arguments, *constants), with the compiled kernel found by one look-up.

    Triton's own search takes longer than a small batch does on the GPU. The key has all that a compiled kernel depends
    on: device, dtypes, alignments, what Triton specialises of integers, and the constants. A compiled kernel gets
    addresses instead of tensors, which its launcher would have to ask for them, and no hooks of Triton's profiler.

    Args:
        kernel: a function under `triton.jit`, whose last parameters are constexpr.
        grid: how many programs, in up to three dimensions. Nothing is launched if there are none.
        arguments: tensors, the first of which is on the device to run on; None, integers and numbers.
        constants: the values of the constexpr parameters.
        num_warps: of a program.
    """
    if 0 in grid:
        return
    device, values = arguments[0].get_device(), []
    # What a compiled kernel depends on. A kernel's own hash takes a lock.
    layout = [kernel.fn, num_warps, device, constants]
    for argument in arguments:
        kind = type(argument)
        if kind is int:
            layout.append((argument % 16 == 0) + 2 * (argument == 1) + 4 * (-(2**31) <= argument < 2**31))
        elif isinstance(argument, Tensor):
            layout.append(argument.dtype)
            argument = argument.data_ptr()
            layout.append(argument % 16 == 0)
        else:
            layout.append(kind)
        values.append(argument)
    key = tuple(layout)
    compiled = _compiled.get(key)
    if compiled is not None:
        stream = torch._C._cuda_getCurrentRawStream(device)
        rest = compiled.packed_metadata, None, None, None
        compiled.run(*grid, *ONES[len(grid) :], stream, compiled.function, *rest, *values, *constants)
        return
    compiled = kernel[grid](*arguments, *constants, num_warps=num_warps)
    # The interpreter compiles nothing.
    if compiled is not None:
        _compiled[key] = compiled


def shared_memory(device: int) -> int:
    """Bytes that a program may have on a GPU; no limit on the CPU, where the interpreter runs."""
    if device < 0:
        return 1 << 62
    properties: Any = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


# A compiler takes the number as it is.
shared_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]
