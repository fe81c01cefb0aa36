"""Compiling kernels ahead of time."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.backends import DEVICES, edge_count, explain
from structmax.calling import call
from structmax.contract import GROUPS, RETURNS, families
from structmax.rooms import SUPPORT, holder

# Kernels may treat one row, many short ones and a long one differently: all are compiled.
EXAMPLE_SHAPES = ((1, 4), (64, 4), (1, 5000))

# Compiled for each semiring, and not kept.
SEMIRINGS = families("semiring")
# How many part tensors a function outside of the contract takes, where it is not one: those of a layer are its hidden
# states, weights and biases.
SEVERAL = {"layer_loss": 3, "layer_loss_pullback": 3}


def _parts(name: str, tensors: tuple[Tensor, ...]) -> int:
    """How many part tensors a function got."""
    return len(tensors) // GROUPS.get(name, 1) if name in RETURNS else SEVERAL.get(name, 1)


def warm_up(structure: Any, dtype: torch.dtype = torch.float32, device: str = "cpu") -> float:
    """Compiles all kernels of a structure ahead of time, so that no training step waits for them.

    What is compiled is kept on disk. From a terminal, `structmax warm-up` does the same.

    Args:
        structure: the structure whose kernels are compiled, or its class.
        dtype: the dtype of the scores to come.
        device: "cpu" or "cuda".

    Returns:
        The seconds it took.

    Examples:
        >>> import torch, structmax
        >>> structmax.warm_up(structmax.Simplex(), torch.float32) < 60
        True
    """
    start = time.perf_counter()
    for room in (structure.room, *structure.fronted, SUPPORT):
        for shape in EXAMPLE_SHAPES:
            for name, tensors, fields in _examples(room, torch.zeros(shape, dtype=dtype, device=device)):
                call(room, name, tensors, fields, _parts(name, tensors), "auto")
    return time.perf_counter() - start


def _examples(room: str, x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """The calls that a structure lists, then the other functions with a kernel, its own or a shared one."""
    listed = getattr(holder(room, "reference"), "examples", lambda x: ())
    yield from listed(x)
    known = {name for name, _, _ in listed(x)}
    for name in RETURNS:
        if name in SEMIRINGS:
            continue
        # The sparse map is found in double precision, whatever the scores have.
        like = listed(x.double() if name == "sparsemap" else x)
        asked = next((example for example in like if example[0] in ("log_partition", "argmax")), None)
        reasons = explain(room, name, x.device.type)
        if asked and name not in known and any(reasons[backend] is None for backend in DEVICES):
            _, scores, fields = asked
            yield name, scores * GROUPS.get(name, 1), fields | _extras(room, name, scores, fields)


def _extras(room: str, name: str, scores: tuple[Tensor, ...], fields: dict[str, Any]) -> dict[str, Any]:
    """What the question adds to the fields, for an example."""
    first, size = scores[0], sum(tensor[0].numel() for tensor in scores)
    extras: dict[str, Any] = {"k": 2} if name in ("topk", "smoothed_topk") else {}
    if "sample" in name:
        # a number for each part: no structure needs more
        extras["noise"] = first.new_zeros(len(first), 1, size)
    if name.startswith("smoothed"):
        extras |= {"alpha": 1.5, "gamma": 1.0}
    if name.startswith("noisy"):
        extras |= {"gumbel": first.new_zeros(len(first), edge_count(room, scores, fields)), "gamma": 1.0}
    if name == "smoothed_log_prob_pullback":
        extras["d_value"] = first.new_ones(len(first))
    if name == "sparsemap":
        start = torch.zeros(len(first), 0, 0, dtype=torch.int32, device=first.device)
        everywhere = torch.ones(len(first), size, dtype=torch.bool, device=first.device)
        extras |= {"start": start, "regularised": everywhere, "max_iter": 10, "tol": 1e-6}
    return extras
