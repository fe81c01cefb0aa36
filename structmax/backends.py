"""The only dispatch: (room, question, device, dtype) → function, or a spoken refusal.

Also the only place for contiguity, half precision, the device guard, and the operator that compilers see:
`torch.ops.structmax.call`, opaque to torch.compile and torch.export, named after what it asks. A backend is a file of
the room: `kernel_triton.py` for CUDA, `kernel_numba.py` for the CPU, `reference.py` for anything.
"""

import contextlib
import functools
import gc
import importlib
import importlib.util
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from structmax import check
from structmax.contract import GROUPS, RETURNS, AbstractStructure, by_autograd
from structmax.numerics import active_set, compilation
from structmax.recursion.edges import by_recursion

log = logging.getLogger("structmax")

# In the order in which `auto` prefers them.
BACKENDS = {"triton": "kernel_triton", "numba": "kernel_numba", "reference": "reference"}
DEVICES = {"triton": "cuda", "numba": "cpu"}
# What answers for any hypergraph.
ENGINES = {
    "numba": ("structmax.recursion.kernel_numba",),
    "reference": ("structmax.recursion.reference", "structmax.recursion.reference_walks"),
}
# What answers for the support of any sparse map.
SUPPORT = "structmax.structures.sparse_support"
HALF = (torch.float16, torch.bfloat16)
# Kernels may take one row, many short ones and a long one differently: `warm_up` asks for all.
EXAMPLE_SHAPES = ((1, 4), (64, 4), (1, 5000))


class Refusal(NotImplementedError):
    """No backend answers this question; the message has every reason."""


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
    except ModuleNotFoundError:
        # The structure's module is a single file: it has no files beside it.
        return None


def _holder(room: str, backend: str) -> Any:
    """The module (or, for a structure in a single file, the class) that holds the room's functions; None if absent."""
    found = _file(f"{_module_of(room)}.{BACKENDS[backend]}")
    return AbstractStructure.registry.get(room) if found is None and backend == "reference" else found


def function(room: str, name: str, backend: str) -> Callable[..., Any] | None:
    """The room's function of that name, or one made of its other functions; None if it has neither."""
    for source in _sources(room, backend):
        found = source(name) or _composed(source, name)
        if found:
            return found
    return _by_oracle(room, backend) if name == "sparsemap" else None


def _by_oracle(room: str, backend: str) -> Callable[..., Any] | None:
    """The sparse map by calls of `argmax`, which may return zeros for the empty structure or for want of any."""
    argmax, topk, log_partition = (function(room, name, backend) for name in ("argmax", "topk", "log_partition"))
    if argmax is None:
        return None

    def is_feasible(*scores: Tensor, **fields: Any) -> Tensor:
        if topk:
            return topk(*scores, k=1, **fields)[0][:, 0] > -torch.inf
        assert log_partition
        return _listed(log_partition(*scores, **fields))[0] > -torch.inf

    return functools.partial(active_set.sparsemap, argmax, is_feasible if topk or log_partition else None)


def _sources(room: str, backend: str) -> Iterator[Callable[[str], Callable[..., Any] | None]]:
    """Where a function may come from, by its name: the room's own file first, then what its reference implies."""
    holder, reference = _holder(room, backend), _holder(room, "reference")
    yield lambda name: getattr(holder, name, None)
    if hasattr(reference, "recursion"):
        for module in ENGINES.get(backend, ()):
            yield functools.partial(_from_engine, room, reference, _file(module))
    elif backend == "reference" and hasattr(reference, "log_partition"):
        yield {"log_partition": reference.log_partition, **by_autograd(reference.log_partition)}.get


def _from_engine(room: str, reference: Any, engine: Any, name: str) -> Callable[..., Any] | None:
    """What the room answers for any hypergraph, unless its reference knows a shorter way of its own."""
    answer = None if hasattr(reference, name) else getattr(engine, name, None)
    return by_recursion(_spoken(room), reference, name, answer) if answer else None


def _composed(source: Callable[[str], Callable[..., Any] | None], name: str) -> Callable[..., Any] | None:
    """Value and marginals together from the two apart, or the marginals from both."""
    if name == "marginals" and (both := source("log_partition_and_marginals")):
        return lambda *tensors, **fields: both(*tensors, **fields)[1:]
    if name == "log_partition_and_marginals" and (value := source("log_partition")) and (parts := source("marginals")):
        return lambda *tensors, **fields: (value(*tensors, **fields), *_listed(parts(*tensors, **fields)))
    return None


def _listed(out: Any) -> Any:
    return (out,) if isinstance(out, Tensor) else out


def _refusal(room: str, name: str, backend: str, device: str) -> str | None:
    """Why this backend cannot answer, in a sentence; None if it can."""
    interpreted = backend == "triton" and _triton_interpreted()
    if not _at_home(room, name, backend, device) and not interpreted:
        return f"{backend} runs on {DEVICES[backend]}, the scores are on {device}"
    if backend != "reference" and importlib.util.find_spec(backend) is None:
        return f"{backend} is not installed"
    if function(room, name, backend) is not None:
        return None
    if _holder(room, backend) is None:
        return f"{_module_of(room)} has no {BACKENDS[backend]}.py"
    return f"{BACKENDS[backend]}.py of {_module_of(room)} has no `{name}`"


def _at_home(room: str, name: str, backend: str, device: str) -> bool:
    """Whether the scores are where the backend computes, or it fetches them."""
    if DEVICES.get(backend, device) == device:
        return True
    return backend == "numba" and name in getattr(_holder(room, backend), "ON_HOST", ())


def _triton_interpreted() -> bool:
    """Triton's own switch: without a GPU its interpreter runs the kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def explain(room: str, name: str, device: str) -> dict[str, str | None]:
    """For each backend: None if it answers, or why not."""
    return {backend: _refusal(room, name, backend, device) for backend in BACKENDS}


def choose(room: str, name: str, device: str, backend: str) -> str:
    """The backend that will run; raises a Refusal with every reason if there is none."""
    check.choice("backend", backend, ("auto", *BACKENDS))
    reasons = explain(room, name, device)
    able = [candidate for candidate, reason in reasons.items() if reason is None]
    if not able and (why := _intractable(room, name)):
        raise Refusal(f"{_spoken(room)} cannot answer `{name}`: {why}")
    # nobody wants the interpreter unasked
    at_home = [candidate for candidate in able if _at_home(room, name, candidate, device)]
    wanted = at_home if backend == "auto" else [candidate for candidate in able if candidate == backend]
    if not wanted:
        said = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items() if reason)
        other = f" Try backend={able[0]!r}." if able else ""
        raise Refusal(f"{_spoken(room)} cannot answer `{name}` with backend={backend!r} ({said}).{other}")
    faster = list(reasons)[: list(reasons).index(wanted[0])]
    for candidate in faster if backend == "auto" else ():
        if DEVICES[candidate] == device:
            log.info("%s.%s runs on %s: %s", _spoken(room), name, wanted[0], reasons[candidate])
    return wanted[0]


def _intractable(room: str, name: str) -> str | None:
    structure = AbstractStructure.registry.get(room)
    return structure.intractable.get(name) if structure else None


def _spoken(room: str) -> str:
    return room.rsplit(".", 1)[-1].split("#")[0]


# ---------------------------------------------------------------- the operator

_library = torch.library.Library("structmax", "DEF")
_library.define(
    "call(Tensor[] tensors, Tensor[] named, str[] names, Scalar[] numbers, str[] number_names, "
    "str room, str name, int parts, str backend) -> Tensor[]"
)


def _nobody_watches(tensor: Tensor) -> bool:
    """Whether the operator may be left out: no compiler, tracer, mode or tensor subclass is there to see it."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


def call(
    room: str,
    name: str,
    tensors: tuple[Tensor, ...],
    fields: dict[str, Any],
    parts: int,
    backend: str,
    *,
    checked: bool = True,
) -> list[Tensor]:
    """Asks the room's function `name`. Tensors are batch-first with one batch dimension, `parts` of them scores.

    `checked` says that somebody has looked at the values of the fields.
    """
    named = {key: value for key, value in fields.items() if isinstance(value, Tensor)}
    numbers = {key: value for key, value in fields.items() if not isinstance(value, Tensor)}
    if _nobody_watches(tensors[0]):
        return _run(
            list(tensors),
            list(named.values()),
            list(named),
            list(numbers.values()),
            list(numbers),
            room,
            name,
            parts,
            backend,
            checked=checked,
        )
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
    *,
    checked: bool = False,
) -> list[Tensor]:
    scores = tensors[0]
    dtype = scores.dtype
    constants = dict(zip(number_names, numbers, strict=True))
    plan = _planned(room, name, scores.device.type, parts, backend)
    if plan.refuses is not None:
        plan = _second_choice(plan, room, name, tensors, constants, parts, backend)
    widen = dtype in HALF and plan.backend != "triton"
    fetched = scores.is_cuda and plan.backend == "numba"

    def clean(tensor: Tensor) -> Tensor:
        if forward_ad._current_level >= 0 and tensor.is_floating_point():
            tensor = forward_ad.unpack_dual(tensor).primal
        if tensor.requires_grad:
            tensor = tensor.detach()
        if widen and tensor.dtype in HALF:
            tensor = tensor.float()
        if fetched:
            tensor = tensor.cpu()
        return tensor if tensor.is_contiguous() else tensor.contiguous()

    arguments = [clean(tensor) for tensor in tensors]
    keywords = {key: clean(tensor) for key, tensor in zip(names, named, strict=True)}
    if fetched or not checked:
        # What was out of sight before: a tracer's tensors, or those of a device that nobody should wait for.
        structure = AbstractStructure.registry.get(room)
        if structure is not None:
            structure.check_values(arguments[0].shape[1:], keywords | constants)
    compilation.asked = room, arguments[0].dtype
    if dtype not in plan.loaded:
        with _loading(), torch.cuda.device_of(scores):
            out = plan.function(*arguments, **keywords, **constants)
        plan.loaded.add(dtype)
    elif scores.is_cuda and scores.get_device() != torch.cuda.current_device():
        with torch.cuda.device_of(scores):
            out = plan.function(*arguments, **keywords, **constants)
    else:
        out = plan.function(*arguments, **keywords, **constants)
    outputs = [tensor.to(scores.device) for tensor in _listed(out)] if fetched else _listed(out)
    return [
        # Nobody wants to find his own tensor in the answer.
        tensor.clone()
        if any(tensor is argument for argument in arguments)
        else tensor.to(dtype)
        if narrow and tensor.dtype != dtype
        else tensor
        for tensor, narrow in zip(outputs, plan.in_dtype, strict=True)
    ]


_loading_seconds = 0.0


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Counts the seconds. The garbage collector rests: a compiler makes many objects, and each full collection walks
    all of torch, a third of the time."""
    global _loading_seconds
    before, start, active = _loading_seconds, time.perf_counter(), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()
        _loading_seconds = before + time.perf_counter() - start


@dataclass(slots=True)
class Plan:
    """All that is known before the tensors are."""

    backend: str
    function: Callable[..., Any]
    # The kernel's own word on its arguments, where it has one.
    refuses: Callable[..., str | None] | None
    # For each output, whether it is returned in the dtype of the scores.
    in_dtype: tuple[bool, ...]
    # The dtypes it has run in before, so that what it compiles or loads is there.
    loaded: set[torch.dtype] = field(default_factory=set)


def _planned(room: str, name: str, device: str, parts: int, backend: str) -> Plan:
    known, key = remembered(room), (name, device, parts, backend)
    if key not in known:
        known[key] = _plan(room, *key)
    return known[key]


def _plan(room: str, name: str, device: str, parts: int, backend: str) -> Plan:
    with _loading():
        chosen = choose(room, name, device, backend)
        found = function(room, name, chosen)
    assert found is not None
    in_dtype = tuple(not kind.startswith("state") and ":" not in kind for kind in _kinds(room, name, parts))
    return Plan(chosen, found, getattr(_holder(room, chosen), "refuses", None), in_dtype)


def _second_choice(
    plan: Plan, room: str, name: str, tensors: list[Tensor], constants: dict[str, float], parts: int, backend: str
) -> Plan:
    """The plan itself, or the reference where the kernel refuses these arguments."""
    assert plan.refuses is not None
    reason = plan.refuses(name, tensors, constants)
    if reason is None:
        return plan
    if backend != "auto":
        raise Refusal(f"{_spoken(room)} cannot answer `{name}` with backend={backend!r}: {reason}.")
    _log_once(_spoken(room), name, plan.backend, reason)
    return _planned(room, name, tensors[0].device.type, parts, "reference")


@functools.cache
def _log_once(room: str, name: str, backend: str, reason: str) -> None:
    log.info("%s.%s runs on reference: %s refuses, %s", room, name, backend, reason)


def _kinds(room: str, name: str, parts: int) -> tuple[str, ...]:
    """The outputs as `returns` names them, with `parts` repeated for each part tensor."""
    kinds = getattr(function(room, name, "reference"), "returns", None) or RETURNS[name]
    return tuple(kind for kind in kinds for _ in range(parts if kind.startswith("parts") else 1))


KIND = re.compile(r"(?P<kind>parts|value|state)(\[(?P<extra>\w+)\])?(:(?P<suffix>\w+))?")


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


def _operator(tensors: list[Tensor], named: list[Tensor], *rest: Any) -> list[Tensor]:
    """What compilers see: no output may share memory with an argument or with another output."""
    taken = {tensor.untyped_storage()._cdata for tensor in (*tensors, *named)}
    outputs = []
    for tensor in _run(tensors, named, *rest):
        shared = tensor.untyped_storage()._cdata in taken
        outputs.append(tensor.clone() if shared else tensor)
        taken.add(outputs[-1].untyped_storage()._cdata)
    return outputs


_library.impl("call", _operator, "CompositeExplicitAutograd")
torch.library.register_fake("structmax::call", _fake, lib=_library)


# ---------------------------------------------------------------- what people ask about it


def which(scores: Any, structure: AbstractStructure) -> dict[str, str]:
    """What would run for each question asked of `structure` with these scores, and why not the others.

    Args:
        scores: the scores, or any tensor on the device in question.
        structure: the structure.

    Returns:
        For each question the backend `auto` would take, followed by the reasons against the faster ones.

    Examples:
        >>> import torch, structmax
        >>> structmax.which(torch.zeros(3), structmax.Simplex())["log_partition"]
        'numba'
    """
    device = structure.tensors(scores)[0].device.type
    answers = {}
    marked = [name for name, value in vars(_holder(structure.room, "reference")).items() if hasattr(value, "returns")]
    for name in dict.fromkeys((*RETURNS, *marked)):
        reasons = explain(structure.room, name, device)
        able = [b for b, reason in reasons.items() if reason is None and _at_home(structure.room, name, b, device)]
        if not able:
            every = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())
            answers[name] = f"refused: {_intractable(structure.room, name) or every}"
            continue
        faster = list(reasons)[: list(reasons).index(able[0])]
        against = [f"{backend}: {reasons[backend]}" for backend in faster if DEVICES[backend] == device]
        fetched = ["on the host"] if DEVICES.get(able[0], device) != device else []
        answers[name] = " ".join([able[0], *fetched, *([f"({'; '.join(against)})"] if against else [])])
    return answers


def _parts(name: str, tensors: tuple[Tensor, ...]) -> int:
    """How many part tensors a function of the contract got; the mappings have one."""
    return len(tensors) // GROUPS.get(name, 1) if name in RETURNS else 1


def warm_up(structure: Any, dtype: torch.dtype = torch.float32, device: str = "cpu") -> float:
    """Compiles ahead all kernels of a structure, so that no training step waits for them.

    What is compiled is kept on disk. From a terminal, `structmax warm-up` does the same.

    Args:
        structure: the structure whose room is compiled, or its class.
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
    """The calls a room lists, then what else has a kernel, the room's or one for all, asked of the same scores."""
    listed = getattr(_holder(room, "reference"), "examples", lambda x: ())
    yield from listed(x)
    known = {name for name, _, _ in listed(x)}
    for name in RETURNS:
        # The sparse map is found in double precision, whatever the scores have.
        like = listed(x.double() if name == "sparsemap" else x)
        asked = next((example for example in like if example[0] in ("log_partition", "argmax")), None)
        reasons = explain(room, name, x.device.type)
        if asked and name not in known and any(reasons[backend] is None for backend in DEVICES):
            _, scores, fields = asked
            yield name, scores * GROUPS.get(name, 1), fields | _extras(name, scores)


def _extras(name: str, scores: tuple[Tensor, ...]) -> dict[str, Any]:
    """What the question adds to the fields, for an example."""
    first, size = scores[0], sum(tensor[0].numel() for tensor in scores)
    extras: dict[str, Any] = {"k": 2} if name == "topk" else {}
    if "sample" in name:
        # a number for each part: no structure needs more
        extras["noise"] = first.new_zeros(len(first), 1, size)
    if name.startswith("smoothed"):
        extras |= {"alpha": 1.5, "gamma": 1.0}
    if name == "smoothed_log_prob_pullback":
        extras["d_value"] = first.new_ones(len(first))
    if name == "sparsemap":
        start = torch.zeros(len(first), 0, 0, dtype=torch.int32, device=first.device)
        everywhere = torch.ones(len(first), size, dtype=torch.bool, device=first.device)
        extras |= {"start": start, "regularised": everywhere, "max_iter": 10, "tol": 1e-6}
    return extras


def loading_seconds() -> float:
    """Seconds this process has spent on first calls: on importing compilers, on compiling, on reading from disk.

    Subtract them where a training step is timed.

    Examples:
        >>> import structmax
        >>> structmax.loading_seconds() >= 0
        True
    """
    return _loading_seconds
