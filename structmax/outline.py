"""What results and structures print: their tensors in a few words, never whole."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from structmax import check

# Fields of a structure with more entries than this are not written out.
WRITTEN_OUT = 8


def outline(result: Any) -> str:
    """A named tuple or dataclass of tensors in one line: what each field holds, then the dtype and the device."""
    listed = [f"{name}: {_said(value)}" for name, value in _fields(result)]
    floating = (t for t in _tensors(result) if t.is_floating_point())
    listed += [f"{t.dtype}, {t.device}" for _, t in zip(range(1), floating, strict=False)]
    return f"{type(result).__name__}({'; '.join(listed)})"


def shapes(names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> str:
    """The shapes of part tensors; the name is left out where there is one alone."""
    listed = [str(tuple(t.shape)) for t in tensors]
    return listed[0] if len(listed) == 1 else ", ".join(f"{n} {s}" for n, s in zip(names, listed, strict=False))


def settings(structure: Any) -> str:
    """The constructor of a dataclass, with the fields that are not at their defaults."""
    shown = []
    for field in dataclasses.fields(structure):
        value = getattr(structure, field.name)
        if isinstance(value, Tensor):
            short = check.has_values(value) and value.numel() <= WRITTEN_OUT and value.dim() <= 1
            shown.append(f"{field.name}={value!r}" if short else f"{field.name}=tensor of shape {_numbers(value)}")
        elif value != field.default:
            shown.append(f"{field.name}={value!r}")
    return f"{type(structure).__name__}({', '.join(shown)})"


def name_of(function: Any) -> str:
    """What a function, a class or an object is called."""
    return getattr(function, "__name__", None) or repr(function)


def _fields(result: Any) -> list[tuple[str, Any]]:
    if isinstance(result, tuple):
        return list(zip(result._fields, result, strict=True))  # type: ignore[attr-defined]
    return [(field.name, getattr(result, field.name)) for field in dataclasses.fields(result) if field.repr]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(value):
        for _, one in _fields(value):
            yield from _tensors(one)


def _said(value: Any) -> str:
    """What one field holds."""
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {tuple(t.shape)}" for name, t in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        given = [(n, t) for n, t in zip(value._fields, value, strict=True) if t is not None]
        return shapes(tuple(n for n, _ in given), tuple(t for _, t in given))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(tensor: Tensor) -> str:
    """A number as it is; bools as how many are True; else the shape, with the extent of a vector or of integers."""
    shape = str(tuple(tensor.shape))
    if not check.has_values(tensor) or not tensor.numel():
        return shape
    if not tensor.dim():
        return f"{tensor.item():.4g}" if tensor.is_floating_point() else str(tensor.item())
    if tensor.dtype == torch.bool:
        return f"{int(tensor.sum())} of {tensor.numel()}"
    if tensor.is_floating_point() and tensor.dim() > 1:
        return shape
    # in a type of which torch knows the extremes
    wide = torch.float64 if tensor.is_floating_point() else torch.int64
    low, high = (end.item() for end in tensor.detach().to(wide).aminmax())
    return f"{shape} from {low:.4g} to {high:.4g}" if tensor.is_floating_point() else f"{shape} from {low} to {high}"
