"""The only dispatch: (structure, function, device) → the backend that runs, or a refusal that says why none does.

For scores on a GPU Triton's kernels come first, then those of the CPU with copies there and back, then the reference.
"""

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from structmax import check
from structmax.contract import KEPT, RETURNS, AbstractStructure
from structmax.loading import loading
from structmax.recursion import edges
from structmax.rooms import BACKENDS, Rest, all_found, function, holder, module_of, remembered, spoken

log = logging.getLogger("structmax")

DEVICES = {"triton": "cuda", "numba": "cpu"}
HALF = (torch.float16, torch.bfloat16)


class Refusal(NotImplementedError):
    """No backend supports this question; the message has every reason."""


def _refusal(room: str, name: str, backend: str, device: str) -> str | None:
    """Why this backend cannot answer, in a sentence; None if it can."""
    interpreted = backend == "triton" and _triton_interpreted()
    if not at_home(room, name, backend, device) and not interpreted:
        return f"{backend} runs on {DEVICES[backend]}, the scores are on {device}"
    if backend != "reference" and importlib.util.find_spec(backend) is None:
        return f"{backend} is not installed"
    if function(room, name, backend) is not None:
        return None
    if holder(room, backend) is None:
        return f"{module_of(room)} has no {BACKENDS[backend]}.py"
    return f"{BACKENDS[backend]}.py of {module_of(room)} has no `{name}`"


def at_home(room: str, name: str, backend: str, device: str) -> bool:
    """Whether the scores are where the backend computes, or it fetches them.

    Kernels of the CPU fetch scores from a GPU, except where the reference says in `ON_DEVICE` that it is faster there.
    """
    if DEVICES.get(backend, device) == device:
        return True
    return backend == "numba" and device == "cuda" and name not in getattr(holder(room, "reference"), "ON_DEVICE", ())


def _triton_interpreted() -> bool:
    """Triton's own switch: without a GPU its interpreter runs the kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def explain(room: str, name: str, device: str) -> dict[str, str | None]:
    """For each backend: None if it answers, or why not."""
    return {backend: _refusal(room, name, backend, device) for backend in BACKENDS}


def able(reasons: dict[str, str | None]) -> list[str]:
    """The backends that answer."""
    return [backend for backend, reason in reasons.items() if reason is None]


def near(room: str, name: str, device: str, reasons: dict[str, str | None]) -> list[str]:
    """Those of them that `auto` takes, the fastest first."""
    return [backend for backend in able(reasons) if at_home(room, name, backend, device)]


# A compiler takes the answer as it is, and follows no imports.
def answers(room: str, name: str, device: str, backend: str = "auto") -> bool:
    """Whether a room has this function for scores on that device, on some backend or on one."""
    known, key = remembered(room), ("answers", name, device, backend)
    if key not in known:
        reasons = explain(room, name, device)
        known[key] = bool(near(room, name, device, reasons)) if backend == "auto" else backend in able(reasons)
    return known[key]


# torch.compiler's own mark would load the compiler with every import
answers._dynamo_marked_constant = True  # type: ignore[attr-defined]


def choose(room: str, name: str, device: str, backend: str) -> str:
    """The backend that will run; raises a Refusal with every reason if there is none."""
    check.choice("backend", backend, ("auto", *BACKENDS))
    reasons = explain(room, name, device)
    if not able(reasons) and (why := intractable(room, name)):
        raise Refusal(f"{spoken(room)} does not support `{name}`: {why}")
    # `auto` never chooses the interpreter
    wanted = near(room, name, device, reasons) if backend == "auto" else [b for b in able(reasons) if b == backend]
    if not wanted:
        said = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items() if reason)
        other = f" Try backend={able(reasons)[0]!r}." if able(reasons) else ""
        raise Refusal(f"{spoken(room)} does not support `{name}` with backend={backend!r} ({said}).{other}")
    faster = list(reasons)[: list(reasons).index(wanted[0])]
    for candidate in faster if backend == "auto" else ():
        if DEVICES[candidate] == device:
            log.info("%s.%s runs on %s: %s", spoken(room), name, wanted[0], reasons[candidate])
    return wanted[0]


def intractable(room: str, name: str) -> str | None:
    """The mathematical reason why this question is intractable, if there is one."""
    structure = AbstractStructure.registry.get(room)
    return structure.intractable.get(name) if structure else None


# ---------------------------------------------------------------- plans


@dataclass(slots=True)
class Plan:
    """All that is known of a call before its tensors are."""

    room: str
    name: str
    # how many part tensors the room has, and the backend that was asked for
    parts: int
    asked: str
    # the backend that runs, which of the answers it has, and the file that one is in
    backend: str
    rank: int
    home: str
    function: Callable[..., Any]
    # whether it computes on the host for scores on a GPU
    fetches: bool
    # whether half precision is made float32 for it
    widens: bool
    # The kernel's function that says which arguments it does not support, if it has one.
    refuses: Callable[..., str | None] | None
    # For each output, whether it is returned in the dtype of the scores.
    in_dtype: tuple[bool, ...]
    # how many outputs of the function, which come first, are not needed
    skipped: int
    # The dtypes it has run in before, so that what it compiles or loads is there.
    loaded: set[torch.dtype] = field(default_factory=set)
    # what answers where this refuses, once it has been looked for
    after: "Plan | None" = None


def plan(room: str, name: str, device: str, parts: int, backend: str) -> Plan:
    """How a question to a room is answered."""
    known, key = remembered(room), (name, device, parts, backend)
    if key not in known:
        with loading():
            chosen = choose(room, name, device, backend)
            known[key] = _plan(room, name, device, parts, backend, chosen, 0)
    return known[key]


def _plan(room: str, name: str, device: str, parts: int, asked: str, chosen: str, rank: int) -> Plan:
    """The plan for the answer of that rank among those of the chosen backend."""
    called, home, refuses, yields = list(all_found(room, name, chosen))[rank]
    assert called is not None
    if asked == "auto" and yields is not None and "numba" in near(room, name, device, explain(room, name, device)):
        refuses = _either(refuses, yields)
    in_dtype = tuple(kind.startswith(("parts", "value")) and ":" not in kind for kind in kinds(room, name, parts))
    fetches = device == "cuda" and chosen == "numba"
    widens = rank > 0 or name not in getattr(holder(room, chosen), "READS_HALF", ())
    called, skipped = (called.whole, 1) if isinstance(called, Rest) else (called, 0)
    return Plan(room, name, parts, asked, chosen, rank, home, called, fetches, widens, refuses, in_dtype, skipped)


def _either(first: Callable[..., str | None] | None, second: Callable[..., str | None]) -> Callable[..., str | None]:
    """What the kernel refuses, and what it yields to the host."""

    def reason(name: str, tensors: Sequence[Tensor], fields: dict[str, Any]) -> str | None:
        refused = first and first(name, tensors, fields)
        # what the host does no CUDA graph can record
        if refused or torch.cuda.is_current_stream_capturing():
            return refused
        return second(name, tensors, fields)

    return reason


def second_choice(first: Plan, tensors: Sequence[Tensor], fields: dict[str, Any]) -> Plan:
    """The plan itself, or that of what answers next where the kernel refuses these arguments."""
    if first.refuses is None or (reason := first.refuses(first.name, tensors, fields)) is None:
        return first
    if first.after is None:
        with loading():
            first.after = _after(first, tensors[0].device.type, reason)
        asked = f"{spoken(first.room)}.{first.name}"
        log.info("%s runs on %s: %s refuses, %s", asked, first.after.home, first.home, reason)
    return second_choice(first.after, tensors, fields)


def _after(first: Plan, device: str, reason: str) -> Plan:
    """An engine of the same backend, if it was the room's own kernel that refused, or the next backend."""
    room, name, same = first.room, first.name, (device, first.parts, first.asked)
    if len(list(all_found(room, name, first.backend))) > first.rank + 1:
        return _plan(room, name, *same, first.backend, first.rank + 1)
    if first.asked != "auto":
        raise Refusal(f"{spoken(room)} does not support `{name}` with backend={first.asked!r}: {reason}.")
    rest = list(BACKENDS)[list(BACKENDS).index(first.backend) + 1 :]
    reasons = explain(room, name, device)
    other = next(b for b in near(room, name, device, reasons) if b in rest)
    return _plan(room, name, *same, other, 0)


def kinds(room: str, name: str, parts: int) -> tuple[str, ...]:
    """The outputs as `returns` names them, with `parts` repeated for each part tensor."""
    marked = getattr(function(room, name, "reference"), "returns", None) or (RETURNS | KEPT)[name]
    return tuple(kind for kind in marked for _ in range(parts if kind.startswith("parts") else 1))


def noise_size(room: str, tensors: Sequence[Tensor], fields: dict[str, Any]) -> int:
    """How many random numbers a draw takes, for a structure that does not say it: counted in its recursion."""
    reference = holder(room, "reference")
    return edges.noise_size(spoken(room), reference, tensors, fields) if hasattr(reference, "recursion") else 1


def edge_count(room: str, tensors: Sequence[Tensor], fields: dict[str, Any]) -> int:
    """How many edges the recursion of a structure has."""
    return edges.edge_count(spoken(room), holder(room, "reference"), tensors, fields)


# as torch.compiler.disable marks it
noise_size._torchdynamo_disable = True  # type: ignore[attr-defined]
edge_count._torchdynamo_disable = True  # type: ignore[attr-defined]


def check_values(room: str, event: Sequence[int], fields: dict[str, Any]) -> None:
    """Raises a ValueError if a field of the room's structure lies outside its limits."""
    structure = AbstractStructure.registry.get(room)
    if structure is not None:
        structure.check_values(event, fields)


def first_or_on_device(plan: Plan, scores: Tensor, arguments: list[Tensor], keywords: dict[str, Any]) -> Any:
    """Calls a function that may have to be loaded, or whose tensors may lie on another GPU than the current one."""
    if scores.dtype in plan.loaded:
        with torch.cuda.device_of(scores):
            return plan.function(*arguments, **keywords)
    with loading(), torch.cuda.device_of(scores):
        out = plan.function(*arguments, **keywords)
    plan.loaded.add(scores.dtype)
    return out
