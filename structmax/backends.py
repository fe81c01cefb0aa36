"""The only dispatch: (structure, function, device) → the backend that runs, or a refusal that says why none does.

The code calls the folder of a structure its *room*. A backend is a file of it: `kernel_triton` for CUDA, `kernel_numba`
for the CPU, `reference` for any device.
"""

import difflib
import functools
import importlib
import importlib.util
import logging
import os
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax import check
from structmax.contract import RETURNS, AbstractStructure, by_autograd
from structmax.loading import loading
from structmax.recursion.edges import by_recursion
from structmax.recursion.edges import noise_size as of_recursion

log = logging.getLogger("structmax")

# In the order in which `auto` prefers them.
BACKENDS = {"triton": "kernel_triton", "numba": "kernel_numba", "reference": "reference"}
DEVICES = {"triton": "cuda", "numba": "cpu"}
# Other functions that a file of a room may hold.
BESIDE = ("recursion", "pack", "unpack", "examples", "refuses")
# The engines for any hypergraph.
ENGINES = {
    "triton": ("structmax.recursion.kernel_triton",),
    "numba": ("structmax.recursion.kernel_numba",),
    "reference": ("structmax.recursion.reference", "structmax.recursion.reference_walks"),
}
# The sparse map of any structure with `argmax`.
SEARCHES = {
    "triton": "structmax.numerics.kernel_triton.active_set",
    "numba": "structmax.numerics.active_set",
    "reference": "structmax.numerics.active_set",
}
# The functions of the support of any sparse map.
SUPPORT = "structmax.structures.sparse_support"
HALF = (torch.float16, torch.bfloat16)
Source = Callable[[str], Callable[..., Any] | None]


class Refusal(NotImplementedError):
    """No backend supports this question; the message has every reason."""


# ---------------------------------------------------------------- rooms


def _module_of(room: str) -> str:
    structure = AbstractStructure.registry.get(room)
    return structure.__module__ if structure else room


def remembered(room: str) -> dict[Any, Any]:
    """What has been found out about the functions of a room, kept as long as its class lives."""
    structure = AbstractStructure.registry.get(room)
    return _modules.setdefault(room, {}) if structure is None else structure.remembered


# Of the rooms that are no structures.
_modules: dict[str, dict[Any, Any]] = {}


@functools.cache
def _file(name: str) -> Any:
    """The module of that name, or None."""
    try:
        return importlib.import_module(name) if importlib.util.find_spec(name) else None
    except ModuleNotFoundError as error:
        # The structure's module is a single file, not a folder; what such a file itself cannot import is an error.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def holder(room: str, backend: str) -> Any:
    """The module (or, for a structure in a single file, the class) that holds the room's functions; None if absent."""
    found = _file(f"{_module_of(room)}.{BACKENDS[backend]}")
    return AbstractStructure.registry.get(room) if found is None and backend == "reference" else found


class Found(NamedTuple):
    """A function that answers, the file it is in, and the function there that says which arguments it does not take."""

    function: Callable[..., Any] | None
    home: str
    refuses: Callable[..., str | None] | None = None


def function(room: str, name: str, backend: str) -> Callable[..., Any] | None:
    """The room's function of that name, or one made of its other functions; None if it has neither."""
    return found(room, name, backend).function


def found(room: str, name: str, backend: str) -> Found:
    """The same, with the file it is in."""
    return next(_found(room, name, backend), Found(None, ""))


def _found(room: str, name: str, backend: str) -> Iterator[Found]:
    """All that answers on this backend, in the order in which it is asked."""
    for home, holder, source in _sources(room, name, backend):
        if answer := source(name) or _composed(source, name):
            yield Found(answer, home, getattr(holder, "refuses", None))
    if name == "sparsemap" and (answer := _by_oracle(room, backend)):
        search = found(room, "argmax", backend).refuses
        # what may be too large is each search
        refuses = search and (lambda _, tensors, fields: search("argmax", tensors, fields))
        yield Found(answer, _spoken_file(_file(SEARCHES[backend])), refuses)


def _by_oracle(room: str, backend: str) -> Callable[..., Any] | None:
    """The sparse map by calls of `argmax`, which may return zeros for the empty structure, or if there is none."""
    argmax = function(room, "argmax", backend)
    if argmax is None or function(room, "relax", backend) is not None:
        # a relaxation of its hull is what it has instead
        return None
    names = "topk", "log_partition"
    # seldom asked: a kernel without either leaves it to the reference
    topk, log_partition = (function(room, name, backend) or function(room, name, "reference") for name in names)

    def is_feasible(*scores: Tensor, **fields: Any) -> Tensor:
        if topk:
            return topk(*scores, k=1, **fields)[0][:, 0] > -torch.inf
        assert log_partition
        return _listed(log_partition(*scores, **fields))[0] > -torch.inf

    return functools.partial(_file(SEARCHES[backend]).sparsemap, argmax, is_feasible if topk or log_partition else None)


def _sources(room: str, name: str, backend: str) -> Iterator[tuple[str, Any, Source]]:
    """Where a function may come from, and how: the room's own file first, then what its reference implies."""
    own, reference = holder(room, backend), holder(room, "reference")
    _notice(room, own)
    yield _spoken_file(own), own, lambda name: getattr(own, name, None)
    # What the reference has itself it leaves to no engine; nor to that of a GPU, which prepares tables of the edges,
    # what it names as fastest in torch, or edges that serve one batch alone.
    unpaid = getattr(reference, "EDGES_OF_VALUES", False) or name in getattr(reference, "ON_DEVICE", ())
    kept = hasattr(reference, name) or (backend == "triton" and unpaid)
    if hasattr(reference, "recursion"):
        for engine in () if kept else map(_file, ENGINES[backend]):
            yield _spoken_file(engine), engine, functools.partial(_from_engine, room, reference, engine)
    elif backend == "reference" and hasattr(reference, "log_partition"):
        derived = {"log_partition": reference.log_partition, **by_autograd(reference.log_partition)}
        yield f"{_spoken_file(reference)}, by autograd", None, derived.get


def _spoken_file(holder: Any) -> str:
    """The room and the file in it, or the class of a structure in a single file."""
    return getattr(holder, "__qualname__", None) or "/".join(getattr(holder, "__name__", "").split(".")[-2:])


def _notice(room: str, holder: Any) -> None:
    """Warns once of public functions in a file of a room that are no known question: a name may be misspelt."""
    known = remembered(room)
    if holder is None or ("noticed", _spoken_file(holder)) in known:
        return
    known["noticed", _spoken_file(holder)] = True
    asked = {*RETURNS, *BESIDE, *marked(room), *vars(AbstractStructure)}
    functions = [
        name
        for name, value in vars(holder).items()
        if (isinstance(value, staticmethod) if isinstance(holder, type) else _is_of(holder, value))
        and not name.startswith("_")
    ]
    for name in functions:
        if name not in asked and not hasattr(getattr(holder, name), "returns"):
            near = difflib.get_close_matches(name, asked & {*RETURNS, *BESIDE}, 1)
            hint = f"Is it meant to be `{near[0]}`?" if near else "Is it a helper? Then begin its name with `_`."
            warnings.warn(
                f"`{name}` in {_spoken_file(holder)} is not a known question. {hint}", UserWarning, stacklevel=2
            )


def _is_of(module: Any, value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module.__name__


def marked(room: str) -> list[str]:
    """The functions of a room that say by `returns` what they return: those of mappings."""
    values = vars(holder(room, "reference")).items()
    return [name for name, value in values if hasattr(value, "returns") and not name.startswith("_")]


def _from_engine(room: str, reference: Any, engine: Any, name: str) -> Callable[..., Any] | None:
    """The engine's function, unless the reference of the room has its own."""
    answer = None if hasattr(reference, name) else getattr(engine, name, None)
    return by_recursion(_spoken(room), reference, name, answer) if answer else None


def _composed(source: Source, name: str) -> Callable[..., Any] | None:
    """Value and marginals together from the two apart, or the marginals from both."""
    if name == "marginals" and (both := source("log_partition_and_marginals")):
        return Rest(both)
    if name == "log_partition_and_marginals" and (value := source("log_partition")) and (parts := source("marginals")):
        return lambda *tensors, **fields: (value(*tensors, **fields), *_listed(parts(*tensors, **fields)))
    return None


@dataclass(frozen=True)
class Rest:
    """All but the first output of a function. A plan leaves that one out itself and calls the function straight."""

    whole: Callable[..., Any]

    def __call__(self, *tensors: Tensor, **fields: Any) -> Any:
        return self.whole(*tensors, **fields)[1:]


def _listed(out: Any) -> Any:
    return (out,) if isinstance(out, Tensor) else out


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
        return f"{_module_of(room)} has no {BACKENDS[backend]}.py"
    return f"{BACKENDS[backend]}.py of {_module_of(room)} has no `{name}`"


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


# A compiler takes the answer as it is, and follows no imports.
def answers(room: str, name: str, device: str, backend: str = "auto") -> bool:
    """Whether a room has this function for scores on that device, on some backend or on one."""
    known, key = remembered(room), ("answers", name, device, backend)
    if key not in known:
        reasons = explain(room, name, device)
        known[key] = None in (reasons.values() if backend == "auto" else (reasons.get(backend),))
    return known[key]


# torch.compiler's own mark would load the compiler with every import
answers._dynamo_marked_constant = True  # type: ignore[attr-defined]


def choose(room: str, name: str, device: str, backend: str) -> str:
    """The backend that will run; raises a Refusal with every reason if there is none."""
    check.choice("backend", backend, ("auto", *BACKENDS))
    reasons = explain(room, name, device)
    able = [candidate for candidate, reason in reasons.items() if reason is None]
    if not able and (why := intractable(room, name)):
        raise Refusal(f"{_spoken(room)} does not support `{name}`: {why}")
    # `auto` never chooses the interpreter
    near = [candidate for candidate in able if at_home(room, name, candidate, device)]
    wanted = near if backend == "auto" else [candidate for candidate in able if candidate == backend]
    if not wanted:
        said = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items() if reason)
        other = f" Try backend={able[0]!r}." if able else ""
        raise Refusal(f"{_spoken(room)} does not support `{name}` with backend={backend!r} ({said}).{other}")
    faster = list(reasons)[: list(reasons).index(wanted[0])]
    for candidate in faster if backend == "auto" else ():
        if DEVICES[candidate] == device:
            log.info("%s.%s runs on %s: %s", _spoken(room), name, wanted[0], reasons[candidate])
    return wanted[0]


def intractable(room: str, name: str) -> str | None:
    """The mathematical reason why this question is intractable, if there is one."""
    structure = AbstractStructure.registry.get(room)
    return structure.intractable.get(name) if structure else None


def _spoken(room: str) -> str:
    return room.rsplit(".", 1)[-1].split("#")[0]


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
    called, home, refuses = list(_found(room, name, chosen))[rank]
    assert called is not None
    in_dtype = tuple(not kind.startswith("state") and ":" not in kind for kind in kinds(room, name, parts))
    fetches = device == "cuda" and chosen == "numba"
    widens = rank > 0 or name not in getattr(holder(room, chosen), "READS_HALF", ())
    called, skipped = (called.whole, 1) if isinstance(called, Rest) else (called, 0)
    return Plan(room, name, parts, asked, chosen, rank, home, called, fetches, widens, refuses, in_dtype, skipped)


def second_choice(first: Plan, tensors: Sequence[Tensor], fields: dict[str, Any]) -> Plan:
    """The plan itself, or that of what answers next where the kernel refuses these arguments."""
    if first.refuses is None or (reason := first.refuses(first.name, tensors, fields)) is None:
        return first
    if first.after is None:
        with loading():
            first.after = _after(first, tensors[0].device.type, reason)
        spoken = f"{_spoken(first.room)}.{first.name}"
        log.info("%s runs on %s: %s refuses, %s", spoken, first.after.home, first.home, reason)
    return second_choice(first.after, tensors, fields)


def _after(first: Plan, device: str, reason: str) -> Plan:
    """An engine of the same backend, if it was the room's own kernel that refused, or the next backend."""
    room, name, same = first.room, first.name, (device, first.parts, first.asked)
    if len(list(_found(room, name, first.backend))) > first.rank + 1:
        return _plan(room, name, *same, first.backend, first.rank + 1)
    if first.asked != "auto":
        raise Refusal(f"{_spoken(room)} does not support `{name}` with backend={first.asked!r}: {reason}.")
    rest = list(BACKENDS)[list(BACKENDS).index(first.backend) + 1 :]
    reasons = explain(room, name, device)
    other = next(b for b in rest if reasons[b] is None and at_home(room, name, b, device))
    return _plan(room, name, *same, other, 0)


def kinds(room: str, name: str, parts: int) -> tuple[str, ...]:
    """The outputs as `returns` names them, with `parts` repeated for each part tensor."""
    marked = getattr(function(room, name, "reference"), "returns", None) or RETURNS[name]
    return tuple(kind for kind in marked for _ in range(parts if kind.startswith("parts") else 1))


def noise_size(room: str, tensors: Sequence[Tensor], fields: dict[str, Any]) -> int:
    """How many random numbers a draw takes, for a structure that does not say it: counted in its recursion."""
    reference = holder(room, "reference")
    return of_recursion(_spoken(room), reference, tensors, fields) if hasattr(reference, "recursion") else 1


# as torch.compiler.disable marks it
noise_size._torchdynamo_disable = True  # type: ignore[attr-defined]


def check_values(room: str, event: Sequence[int], fields: dict[str, Any]) -> None:
    """Raises a ValueError if a field of the room's structure lies outside its limits."""
    structure = AbstractStructure.registry.get(room)
    if structure is not None:
        structure.check_values(event, fields)


def first_or_on_device(plan: Plan, scores: Tensor, arguments: list[Tensor], keywords: dict[str, Any]) -> Any:
    """Calls a function that may have to be loaded, or whose tensors may lie on another GPU than the current one."""
    if scores.dtype in plan.loaded:
        if scores.get_device() == torch.cuda.current_device():
            return plan.function(*arguments, **keywords)
        with torch.cuda.device_of(scores):
            return plan.function(*arguments, **keywords)
    with loading(), torch.cuda.device_of(scores):
        out = plan.function(*arguments, **keywords)
    plan.loaded.add(scores.dtype)
    return out
