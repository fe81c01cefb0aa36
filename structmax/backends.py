"""The only dispatch: (room, question, device, dtype) → function, or a spoken refusal.

Also the only place for contiguity, half precision, the device guard, and the operator that compilers see:
`torch.ops.structmax.call`, opaque to torch.compile and torch.export, named after what it asks. A backend is a file of the
room: `kernel_triton.py` for CUDA, `kernel_numba.py` for the CPU, `reference.py` for anything.
"""

import functools
import importlib
import importlib.util
import itertools
import logging
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.contract import RETURNS, AbstractStructure, by_autograd

log = logging.getLogger("structmax")

# In the order in which `auto` prefers them.
BACKENDS = {"triton": "kernel_triton", "numba": "kernel_numba", "reference": "reference"}
DEVICES = {"triton": "cuda", "numba": "cpu"}
HALF = (torch.float16, torch.bfloat16)


class Refusal(NotImplementedError):
    """No backend answers this question; the message has every reason."""


# ---------------------------------------------------------------- rooms


def _module_of(room: str) -> str:
    structure = AbstractStructure.registry.get(room)
    return structure.__module__ if structure else room


@functools.cache
def _holder(room: str, backend: str) -> Any:
    """The module (or, for a structure in a single file, the class) that holds the room's functions; None if absent."""
    name = f"{_module_of(room)}.{BACKENDS[backend]}"
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found:
        return importlib.import_module(name)
    return AbstractStructure.registry.get(room) if backend == "reference" else None


def function(room: str, name: str, backend: str) -> Callable[..., Any] | None:
    """The room's function of that name, derived from its `log_partition` where that suffices."""
    holder = _holder(room, backend)
    found = getattr(holder, name, None)
    if found is None and backend == "reference" and name in ("marginals", "marginals_jvp"):
        log_partition = getattr(holder, "log_partition", None)
        return by_autograd(log_partition)[name] if log_partition else None
    return found


def _refusal(room: str, name: str, backend: str, device: str) -> str | None:
    """Why this backend cannot answer, in a sentence; None if it can."""
    wanted = DEVICES.get(backend, device)
    interpreted = backend == "triton" and _triton_interpreted()
    if device != wanted and not interpreted:
        return f"{backend} runs on {wanted}, the scores are on {device}"
    if backend != "reference" and importlib.util.find_spec(backend) is None:
        return f"{backend} is not installed"
    if _holder(room, backend) is None:
        return f"{_module_of(room)} has no {BACKENDS[backend]}.py"
    if function(room, name, backend) is None:
        return f"{BACKENDS[backend]}.py of {_module_of(room)} has no `{name}`"
    return None


def _triton_interpreted() -> bool:
    import os

    return os.environ.get("TRITON_INTERPRET") == "1"


def explain(room: str, name: str, device: str) -> dict[str, str | None]:
    """For each backend: None if it answers, or why not."""
    return {backend: _refusal(room, name, backend, device) for backend in BACKENDS}


@functools.cache
def choose(room: str, name: str, device: str, backend: str) -> str:
    """The backend that will run; raises a Refusal with every reason if there is none."""
    check.choice("backend", backend, ("auto", *BACKENDS))
    reasons = explain(room, name, device)
    able = [candidate for candidate, reason in reasons.items() if reason is None]
    wanted = able if backend == "auto" else [candidate for candidate in able if candidate == backend]
    if not wanted:
        structure = room.rsplit(".", 1)[-1]
        said = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items() if reason)
        other = f" Try backend={able[0]!r}." if able else ""
        raise Refusal(f"{structure} cannot answer `{name}` with backend={backend!r} ({said}).{other}")
    preferred = "triton" if device == "cuda" else "numba"
    if backend == "auto" and wanted[0] != preferred and reasons.get(preferred):
        log.info("%s.%s runs on %s: %s", room, name, wanted[0], reasons[preferred])
    return wanted[0]


# ---------------------------------------------------------------- the operator

_library = torch.library.Library("structmax", "DEF")
_library.define(
    "call(Tensor[] tensors, Tensor[] named, str[] names, Scalar[] numbers, str[] number_names, "
    "str room, str name, int parts, str backend) -> Tensor[]"
)


def call(
    room: str,
    name: str,
    tensors: list[Tensor],
    named: dict[str, Tensor],
    numbers: dict[str, float],
    parts: int,
    backend: str,
) -> list[Tensor]:
    """Asks the room's function `name`; tensors are batch-first with one batch dimension."""
    return torch.ops.structmax.call(
        tensors,
        list(named.values()),
        list(named),
        list(numbers.values()),
        list(numbers),
        room,
        name,
        parts,
        backend,
    )


def _run(
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
    scores = tensors[0]
    constants = dict(zip(number_names, numbers, strict=True))
    chosen = _chosen(room, name, scores, tensors, constants, backend)
    widen = scores.dtype in HALF and chosen != "triton"

    def clean(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return (tensor.float() if widen and tensor.dtype in HALF else tensor).contiguous()

    run = function(room, name, chosen)
    assert run is not None
    arguments = [clean(tensor) for tensor in tensors]
    keywords = {key: clean(tensor) for key, tensor in zip(names, named, strict=True)}
    with torch.cuda.device_of(scores):
        out = run(*arguments, **keywords, **constants)
    outputs = [out] if isinstance(out, Tensor) else list(out)
    kinds = _kinds(room, name, parts)
    inputs = {id(tensor) for tensor in (*tensors, *named, *arguments)}
    return [
        _narrow(tensor.clone() if id(tensor) in inputs else tensor, kind, scores.dtype)
        for tensor, kind in zip(outputs, kinds, strict=True)
    ]


def _chosen(
    room: str, name: str, scores: Tensor, tensors: list[Tensor], constants: dict[str, float], backend: str
) -> str:
    """`choose`, then the kernel's own word on these arguments."""
    chosen = choose(room, name, scores.device.type, backend)
    refuses = getattr(_holder(room, chosen), "refuses", None)
    reason = refuses(name, tensors, constants) if refuses else None
    if reason is None:
        return chosen
    if backend != "auto":
        raise Refusal(f"{room.rsplit('.', 1)[-1]} cannot answer `{name}` with backend={backend!r}: {reason}.")
    _log_once(room, name, chosen, reason)
    return choose(room, name, scores.device.type, "reference")


@functools.cache
def _log_once(room: str, name: str, backend: str, reason: str) -> None:
    log.info("%s.%s runs on reference: %s refuses, %s", room, name, backend, reason)


def _kinds(room: str, name: str, parts: int) -> tuple[str, ...]:
    """The outputs as `returns` names them, with `parts` repeated for each part tensor."""
    kinds = getattr(function(room, name, "reference"), "returns", None) or RETURNS[name]
    return tuple(kind for kind in kinds for _ in range(parts if kind.startswith("parts") else 1))


KIND = re.compile(r"(?P<kind>parts|value|state)(\[(?P<extra>\w+)\])?(:(?P<suffix>\w+))?")


def _narrow(tensor: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    private = kind.startswith("state") or ":" in kind
    return tensor if private or not tensor.is_floating_point() else tensor.to(dtype)


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
    rows = tensors[0].shape[0]
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    part = itertools.cycle(tensors[:parts])
    outputs = []
    for spoken in _kinds(room, name, parts):
        match = KIND.fullmatch(spoken)
        assert match, spoken
        kind, extra, suffix = match["kind"], match["extra"], match["suffix"]
        like = next(part) if kind == "parts" else tensors[0]
        event = like.shape[1:] if kind == "parts" else ((int(suffix),) if suffix and suffix.isdigit() else ())
        dtype = getattr(torch, suffix) if suffix and not suffix.isdigit() else wide if kind == "state" else like.dtype
        shape = (rows, *((sizes[extra],) if extra else ()), *event)
        outputs.append(like.new_empty(shape, dtype=dtype))
    return outputs


_library.impl("call", _run, "CompositeExplicitAutograd")
torch.library.register_fake("structmax::call", _fake, lib=_library)


# ---------------------------------------------------------------- what people ask about it


def which(scores: Any, structure: AbstractStructure) -> dict[str, str]:
    """What would run for each question asked of `structure` with these scores, and why not the others.

    Args:
        scores: the scores, or any tensor on the device in question.
        structure: the structure.

    Returns:
        For each question the backend `auto` would take, followed by the reasons against the faster ones.

    Example:
        >>> import torch, structmax
        >>> structmax.which(torch.zeros(3), structmax.Simplex())["log_partition"]
        'numba'
    """
    device = structure.tensors(scores)[0].device.type
    answers = {}
    for name in RETURNS:
        reasons = explain(structure.room, name, device)
        able = [backend for backend, reason in reasons.items() if reason is None]
        if not able:
            answers[name] = "refused: " + "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())
            continue
        faster = list(reasons)[: list(reasons).index(able[0])]
        against = [f"{backend}: {reasons[backend]}" for backend in faster if DEVICES[backend] == device]
        answers[name] = " ".join([able[0], *([f"({'; '.join(against)})"] if against else [])])
    return answers


def warm_up(structure: AbstractStructure, dtype: torch.dtype = torch.float32, device: str = "cpu") -> float:
    """Compiles ahead the kernels of a structure, so that no training step waits for them.

    Args:
        structure: the structure whose room is compiled.
        dtype: the dtype of the scores to come.
        device: "cpu" or "cuda".

    Returns:
        The seconds it took.

    Example:
        >>> import torch, structmax
        >>> structmax.warm_up(structmax.Simplex(), torch.float32) < 60
        True
    """
    raise NotImplementedError
