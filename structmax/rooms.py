"""The files of a structure and the functions in them: where the answer to a question may come from.

The code calls the folder of a structure its *room*. A backend is a file of it: `kernel_triton` for CUDA, `kernel_numba`
for the CPU, `reference` for any device. What a room does not have itself may come from an engine for all recursions,
from the gradient of its log-partition, or from a search for its best structures.
"""

import difflib
import functools
import importlib
import importlib.util
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structmax.contract import KEPT, RETURNS, AbstractStructure, by_autograd
from structmax.recursion.edges import by_recursion

# In the order in which `auto` prefers them.
BACKENDS = {"triton": "kernel_triton", "numba": "kernel_numba", "reference": "reference"}
# Other functions that a file of a room may hold.
BESIDE = ("recursion", "pack", "unpack", "examples", "refuses")
# The engines for any hypergraph.
ENGINES = {
    "triton": ("structmax.recursion.kernel_triton",),
    "numba": ("structmax.recursion.kernel_numba", "structmax.recursion.semiring.kernel_numba"),
    "reference": (
        "structmax.recursion.reference",
        "structmax.recursion.reference_walks",
        "structmax.recursion.reference_noisy",
        "structmax.recursion.reference_checkpoints",
        "structmax.recursion.semiring.reference",
    ),
}
# The sparse map of any structure with `argmax`.
SEARCHES = {
    "triton": "structmax.numerics.kernel_triton.active_set",
    "numba": "structmax.numerics.active_set",
    "reference": "structmax.numerics.active_set",
}
# The functions of the support of any sparse map.
SUPPORT = "structmax.structures.sparse_support"
Source = Callable[[str], Callable[..., Any] | None]


def module_of(room: str) -> str:
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
    found = _file(f"{module_of(room)}.{BACKENDS[backend]}")
    return AbstractStructure.registry.get(room) if found is None and backend == "reference" else found


class Found(NamedTuple):
    """A function that answers, the file it is in, and what that file says of it."""

    function: Callable[..., Any] | None
    home: str
    # which arguments it does not take
    refuses: Callable[..., str | None] | None = None
    # where kernels of the CPU, with copies there and back, are faster
    yields: Callable[..., str | None] | None = None


def function(room: str, name: str, backend: str) -> Callable[..., Any] | None:
    """The room's function of that name, or one made of its other functions; None if it has neither."""
    return found(room, name, backend).function


def found(room: str, name: str, backend: str) -> Found:
    """The same, with the file it is in."""
    return next(all_found(room, name, backend), Found(None, ""))


def all_found(room: str, name: str, backend: str) -> Iterator[Found]:
    """All that answers on this backend, in the order in which it is asked."""
    own = _yields(holder(room, backend), name)
    for home, file, source in _sources(room, name, backend):
        if answer := source(name) or _composed(source, name):
            yield Found(answer, home, getattr(file, "refuses", None), own or _yields(file, name))
    for _, file, source in _sources(room, "argmax", backend) if name == "sparsemap" else ():
        if (search := source("argmax")) and (answer := _by_oracle(room, backend, search)):
            refuses = getattr(file, "refuses", None)
            # what may be too large is each search
            asking = refuses and functools.partial(_of_search, refuses)
            yield Found(answer, _spoken_file(_file(SEARCHES[backend])), asking, own or _yields(file, name))


def _of_search(refuses: Callable[..., str | None], _: str, tensors: Any, fields: dict[str, Any]) -> str | None:
    return refuses("argmax", tensors, fields)


def _yields(file: Any, name: str) -> Callable[..., str | None] | None:
    """Where a file leaves the question to the CPU."""
    return getattr(file, "YIELDS", {}).get(name)


def _by_oracle(room: str, backend: str, argmax: Callable[..., Any]) -> Callable[..., Any] | None:
    """The sparse map by calls of `argmax`, which may return zeros for the empty structure, or if there is none."""
    if function(room, "relax", backend) is not None:
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
    asked = {*RETURNS, *KEPT, *BESIDE, *marked(room), *vars(AbstractStructure)}
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
    return by_recursion(spoken(room), reference, name, answer) if answer else None


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


def spoken(room: str) -> str:
    return room.rsplit(".", 1)[-1].split("#")[0]
