"""The operator that compilers see: `torch.ops.structmax.call`, opaque to torch.compile and torch.export.

A call goes through the operator where a compiler, a tracer, a mode or a tensor subclass observes it, and straight to
the kernel elsewhere.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from structmax import backends

Run = Callable[[backends.Plan, Sequence[Tensor], dict[str, Any], bool], list[Tensor]]

_library = torch.library.Library("structmax", "DEF")
_library.define(
    "call(Tensor[] tensors, Tensor[] named, str[] names, Scalar[] numbers, str[] number_names, "
    "str room, str name, int parts, str backend) -> Tensor[]"
)


def call(
    tensors: Sequence[Tensor], fields: dict[str, Any], room: str, name: str, parts: int, backend: str
) -> list[Tensor]:
    """Calls the structure's function `name` through the operator."""
    named = {key: value for key, value in fields.items() if isinstance(value, Tensor)}
    numbers = {key: value for key, value in fields.items() if not isinstance(value, Tensor)}
    return torch.ops.structmax.call.default(
        list(tensors),
        list(named.values()),
        list(named),
        list(numbers.values()),
        list(numbers),
        room,
        name,
        parts,
        backend,
    )


def implement(run: Run) -> None:
    """Says how the operator calls a plan."""

    def operator(
        tensors: list[Tensor],
        named: list[Tensor],
        names: list[str],
        numbers: list[float],
        number_names: list[str],
        room: str,
        name: str,
        parts: int,
        backend: str,
    ) -> list[Tensor]:
        fields = dict(zip(names, named, strict=True)) | dict(zip(number_names, numbers, strict=True))
        plan = backends.plan(room, name, tensors[0].device.type, parts, backend)
        # No output may share memory with an argument or with another output.
        taken = {tensor.untyped_storage()._cdata for tensor in (*tensors, *named)}
        outputs = []
        for tensor in run(plan, tensors, fields, False):
            shared = tensor.untyped_storage()._cdata in taken
            outputs.append(tensor.clone() if shared else tensor)
            taken.add(outputs[-1].untyped_storage()._cdata)
        return outputs

    _library.impl("call", operator, "CompositeExplicitAutograd")


KIND = re.compile(r"(?P<kind>parts|value|state|total)(\[(?P<extra>\w+)\])?(:(?P<suffix>\w+))?")


def _fake(
    tensors: list[Tensor],
    named: list[Tensor],
    names: list[str],
    numbers: list[float],
    number_names: list[str],
    room: str,
    name: str,
    parts: int,
    backend: str,
) -> list[Tensor]:
    sizes: dict[str, Any] = {key: tensor.shape[1] for key, tensor in zip(names, named, strict=True) if tensor.dim() > 1}
    sizes |= dict(zip(number_names, numbers, strict=True))
    count = tensors[0].shape[0]
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    part = itertools.cycle(tensors[:parts])
    outputs = []
    for spoken in backends.kinds(room, name, parts):
        match = KIND.fullmatch(spoken)
        assert match, spoken
        kind, extra, suffix = match["kind"], match["extra"], match["suffix"]
        like = next(part) if kind == "parts" else tensors[0]
        event = like.shape[1:] if kind == "parts" else ((int(suffix),) if suffix and suffix.isdigit() else ())
        own = like.dtype if kind in ("parts", "value") else wide
        dtype = getattr(torch, suffix) if suffix and not suffix.isdigit() else own
        shape = () if kind == "total" else (count, *((sizes[extra],) if extra else ()), *event)
        outputs.append(like.new_empty(shape, dtype=dtype))
    return outputs


torch.library.register_fake("structmax::call", _fake, lib=_library)
