"""Calls of functions that belong to no structure: those of mappings, and of supports of sparse maps."""

import math
from typing import Any

from torch import Tensor

from structmax import backends, operator
from structmax.parts import Tensors
from structmax.problem import run, watched


def ask(room: str, name: str, tensors: Tensors, batch: int, backend: str, **fields: Any) -> list[Tensor]:
    """Calls a function without a structure, such as that of a mapping. The first `batch` dimensions are flattened.

    What has fewer is not of the rows, such as their sum, and stays as it is.
    """
    if batch == 1:
        return call(room, name, tensors, fields, 1, backend)
    shape = tensors[0].shape[:batch]

    def flat(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < batch:
            return value
        return value.reshape((math.prod(shape), *value.shape[batch:]))

    every = {key: flat(value) for key, value in fields.items()}
    out = call(room, name, tuple(map(flat, tensors)), every, 1, backend)
    return [t.reshape((*shape, *t.shape[1:])) if t.dim() else t for t in out]


def call(room: str, name: str, tensors: Tensors, fields: dict[str, Any], parts: int, backend: str) -> list[Tensor]:
    """Calls a function on tensors with one batch dimension, the first `parts` of them scores."""
    if watched(tensors[0]):
        return operator.call(tensors, fields, room, name, parts, backend)
    return run(backends.plan(room, name, tensors[0].device.type, parts, backend), tensors, fields, True)
