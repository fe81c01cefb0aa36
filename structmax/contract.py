"""What a structure is, and what its functions promise.

A *room* is the folder of one structure: `reference.py` (torch, slow but correct) and any of `kernel_numba` and
`kernel_triton`, each a file or a folder. Functions are named after the question they answer and have the same
signature in each. They receive clean tensors: contiguous, detached, float32 or float64, with the batch flattened to one
leading dimension B. Fields of the structure arrive as keywords.

| function | arguments after the scores | returns |
|---|---|---|
| `argmax` | | parts of one best structure |
| `topk` | `k` | values (B, k) and parts (B, k, …), best first; −inf and zeros past the last structure |
| `log_partition` | | log Σ exp⟨θ, y⟩: (B,) |
| `marginals` | | ∇ of it: parts |
| `log_partition_and_marginals` | | both, where one pass gives them: (B,), parts |
| `log_partition_and_state` | | (B,), and what a kernel makes gradients of later: five tensors |
| `log_partition_pullback` | state, `d_value` (B,) | `d_value` times the marginals: parts |
| `marginals_jvp` | `tangent` (parts) | ∇² of it times the tangent: parts. Symmetric, so it is the pullback too |
| `max_marginals` | | best score of a structure that has the part: parts |
| `sample` | `noise` (B, S, K), uniform in [0, 1) | parts (B, S, …); random numbers are an argument, so backends agree |
| `sample_without_replacement` | `noise` | parts (B, S, …), all distinct, and their log-probabilities (B, S) |
| `given_log_partition` … | `required` (parts) | the same over the structures that have all required parts |
| `smoothed` … | `alpha`, `gamma` | the recursion with max_Ω: value, its gradient, walks and their probabilities |
| `smoothed_checkpointed` … | `alpha`, `gamma` | the same value and gradient, block by block, with less memory |
| `smoothed_topk` | `alpha`, `gamma`, `k` | log-probabilities (B, k) and parts (B, k, …) of its most probable walks |
| `noisy_walk` | `gumbel` (B, E), `gamma` | parts of a walk by the best of noisy edges; for γ > 0 of a soft one |
| `noisy_walk_pullback` | cotangent (parts), `gumbel`, `gamma` | its pullback, for γ > 0: parts |
| `semiring_value` | `semiring`, `width` | the value in a user's semiring: (B, K), from K tensors for each part tensor |
| `semiring_pullback` | `semiring`, `width`, `d_value` (B, K) | its gradient: parts (B, K, …) |
| `project` | | the nearest point of conv(Y), argmin ½‖μ − θ‖²: parts, exactly 0 outside the support |
| `project_jvp` | `tangent` | its Jacobian, symmetric, at the point it returned (in place of the scores), times it |
| `relax` | `max_iter`, `tol` | best point of a relaxation: value, parts, iterations, converged, gap, residuals, state |
| `relax_jvp` | `tangent` in place of the scores, state | the Jacobian of these parts, symmetric, times it: parts |
| `sparsemap` | `regularised` (B, P), `start` (B, S, L), `max_iter`, `tol` | see structures/sparse_support/README.md |

Few of these have to be written. A dynamic program lists its hyperedges, `recursion(*scores, **fields)`, from which
compiled code computes all of them (`by_recursion`); a kernel of the same name is only for speed.
`log_partition` alone, written in differentiable torch, supplies `marginals` and `marginals_jvp` (`by_autograd`). A
reference may offer `examples(scores)`, calls (name, tensors, fields) of all its functions, which `warm_up` compiles.
`sparsemap` needs only `argmax`; a kernel of that name has the loop inside. For scores on a GPU `kernel_triton` comes
first, then the engine for any recursion, then the kernels of the CPU with the copies there and back, then the
reference. Functions of the reference that are faster on a GPU than these are named in its `ON_DEVICE`. Where kernels
of the CPU are faster than one for CUDA, `YIELDS` of its file says so, by question: {name: function}. The engine
prepares tables of the edges once: a recursion returns the same edges for the same sizes, or its reference says by
`EDGES_OF_VALUES` that they depend on the values of fields, and the engine leaves it alone.
"""

import copy
import dataclasses
import itertools
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from structmax import check
from structmax.outline import settings

Scores = Tensor | tuple[Tensor, ...]
F = TypeVar("F", bound=Callable[..., Any])

RETURNS: dict[str, tuple[str, ...]] = {
    "argmax": ("parts",),
    "topk": ("value[k]", "parts[k]"),
    "log_partition": ("value",),
    "marginals": ("parts",),
    "log_partition_and_marginals": ("value", "parts"),
    "marginals_jvp": ("parts",),
    "max_marginals": ("parts",),
    "sample": ("parts[noise]",),
    "sample_without_replacement": ("parts[noise]", "value[noise]"),
    "given_log_partition": ("value",),
    "given_log_partition_and_marginals": ("value", "parts"),
    "given_marginals_jvp": ("parts",),
    "smoothed": ("value",),
    "smoothed_and_marginals": ("value", "parts"),
    "smoothed_marginals_jvp": ("parts",),
    "smoothed_checkpointed": ("value",),
    "smoothed_checkpointed_and_marginals": ("value", "parts"),
    "smoothed_sample": ("parts[noise]",),
    "smoothed_topk": ("value[k]", "parts[k]"),
    "smoothed_log_prob": ("value",),
    "smoothed_log_prob_pullback": ("parts",),
    "noisy_walk": ("parts",),
    "noisy_walk_pullback": ("parts",),
    "semiring_value": ("value[width]",),
    "semiring_pullback": ("parts[width]",),
    "project": ("parts",),
    "project_jvp": ("parts",),
    "relax": ("value", "parts", *("state",) * 6),
    "relax_jvp": ("parts",),
    "sparsemap": ("state",) * 8,
}
# What a kernel may have in addition, where gradients are larger than all they are made of.
KEPT: dict[str, tuple[str, ...]] = {
    "log_partition_and_state": ("value", *("state",) * 5),
    "log_partition_pullback": ("parts",),
}
# How many groups of part tensors a function takes, where it is not the scores alone.
GROUPS = {
    "marginals_jvp": 2,
    "given_log_partition": 2,
    "given_log_partition_and_marginals": 2,
    "given_marginals_jvp": 3,
    "smoothed_marginals_jvp": 2,
    "smoothed_log_prob": 2,
    "smoothed_log_prob_pullback": 2,
    "noisy_walk_pullback": 2,
    "project_jvp": 2,
}
# What a question adds to the fields of the structure, which have other names.
EXTRAS = (
    "k",
    "noise",
    "gumbel",
    "alpha",
    "gamma",
    "d_value",
    "regularised",
    "start",
    "max_iter",
    "tol",
    "semiring",
    "width",
)


def families(*stems: str) -> list[str]:
    """The functions whose names start with these stems: "smoothed" stands for all of a smoothed recursion."""
    return [name for name in RETURNS if name.startswith(stems)]


def returns(*kinds: str) -> Callable[[F], F]:
    """Declares the outputs of a structure's function, so that compilers know their shapes without running it.

    `parts` is like the scores, `value` is (B,), `state` is private, `total` is one number made of all rows, float32 or
    wider. `[k]` adds a dimension after B, sized by the number `k` or by dimension 1 of the tensor argument `k`;
    `:int32` or `:2` gives a dtype or a trailing size.
    The functions of the table above need no declaration.
    """

    def mark(function: F) -> F:
        function.returns = kinds  # type: ignore[attr-defined]
        return function

    return mark


class AbstractStructure(ABC):
    """A finite set Y of part-vectors, which count how often a structure uses each part.

    Most parts are used once or not at all, so their counts are 0 and 1. Some may be used several times, such as those
    of one transition matrix for all positions of a chain: `counts` says in which part tensors.

    A subclass is a frozen dataclass: it holds the geometry (lengths, sizes, flags) and never scores. Numbers and
    tensors are allowed as fields and reach its functions as keywords of the same name. The names in `EXTRAS`, such as
    `k` and `noise`, are reserved. Its functions are in the `reference.py` of its folder or, for a structure in a single
    file, in its body as static methods.

    `event_dim` counts the trailing dimensions of the first part tensor that belong to one instance; those before are
    the batch, which every part tensor carries. A structure with several part tensors names them by a `Parts` named
    tuple; with one it takes and returns a plain tensor. `per_instance` names the fields that have one entry for each
    instance, such as lengths; they broadcast to the batch.
    """

    per_instance: ClassVar[tuple[str, ...]] = ()
    Parts: ClassVar[Any] = None
    # Modules of functions that belong to no structure of their own and are reached through this one.
    fronted: ClassVar[tuple[str, ...]] = ()
    # Functions that are intractable: why, and what to use instead.
    intractable: ClassVar[dict[str, str]] = {}
    # The names of the part tensors that ½‖μ‖² counts; None for all. What follows from them can stay free.
    regularised: ClassVar[tuple[str, ...] | None] = None
    # The names of those that it cannot count, because the structure's functions do not.
    free: ClassVar[tuple[str, ...]] = ()
    # How much it counts each part, ½ Σ w μ², for each part tensor; None for 1. A relaxation may have others.
    weights: ClassVar[tuple[Tensor, ...] | None] = None
    # The classes by `room`, as long as they live.
    registry: ClassVar[MutableMapping[str, "type[AbstractStructure]"]] = weakref.WeakValueDictionary()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A class made in a function or a notebook cell may have the name of another: each gets its own.
        name = f"{cls.__module__}.{cls.__qualname__}"
        names = itertools.chain([name], (f"{name}#{count}" for count in itertools.count(2)))
        cls.room = next(name for name in names if name not in AbstractStructure.registry)
        cls.remembered = {}
        AbstractStructure.registry[cls.room] = cls
        # A dataclass would write its own, with whole tensors.
        if "__repr__" not in vars(cls):
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return settings(self)

    room: ClassVar[str]
    # What is known about the class's functions: it is freed with the class.
    remembered: ClassVar[dict[Any, Any]]

    @property
    @abstractmethod
    def event_dim(self) -> int:
        """How many trailing dimensions of the first part tensor belong to one instance; often a class attribute."""

    @abstractmethod
    def check(self, scores: Scores) -> None:
        """Raises a ValueError that says what should be, what is and what to try, if the scores do not fit."""

    def check_floating(self, scores: Scores, given: Iterable[Any]) -> None:
        """Raises a TypeError that says which of the tensors given as scores is none, or not floating point."""
        if isinstance(scores, dict) and self.Parts is not None:
            raise TypeError(
                f"`scores` should be a tuple of tensors, but are a dict. Try {self.Parts.__name__}(**scores)."
            )
        names = scores if isinstance(scores, dict) else itertools.repeat("scores")
        for number, (name, tensor) in enumerate(zip(names, given, strict=False)):
            if tensor is not None or number < self.needed:
                check.floating(name, tensor)

    @staticmethod
    def limits(event: Sequence[int], fields: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        """The largest value of each per-instance field of integers, and what it counts.

        `event` is the shape of one instance of the first part tensor. Values are checked wherever a function of the
        structure is called, also under torch.compile. List every field that such a function uses as an index.
        """
        return {}

    @classmethod
    def check_values(cls, event: Sequence[int], fields: Mapping[str, Any]) -> None:
        """Raises a ValueError if a field lies outside its limits, where values can be read."""
        for name, (size, what) in cls.limits(event, fields).items():
            if fields[name] is not None:
                check.between(name, fields[name], size, f"the number of {what}")

    def check_fields(self, batch: Sequence[int], event: Sequence[int]) -> None:
        """Fields that have limits are integers, one for each instance of the batch, and keep to them."""
        for name in self.limits(event, vars(self)):
            check.instances(name, getattr(self, name), batch)
        self.check_values(event, vars(self))

    @abstractmethod
    def enumerate(self, scores: Scores) -> Scores:
        """All members for one instance shaped like `scores` (no batch): parts with a leading member dimension."""

    @abstractmethod
    def decode(self, parts: Scores) -> Any:
        """A readable form of the parts: labels, heads, paths, spans."""

    @abstractmethod
    def encode(self, *what: Any) -> Scores:
        """The inverse of `decode`: parts from what it returns."""

    def fitting(self, parts: Scores) -> Scores:
        """Parts for `decode`, if they are shaped like scores, of any batch or of one instance."""
        # a check would fix the sizes of what is exported
        if torch.compiler.is_compiling():
            return parts
        if not isinstance(parts, Tensor | tuple):
            raise TypeError(f"`parts` should be as `argmax` returns them, but are {check.called(parts)}.")
        fields = [(getattr(self, name), name) for name in self.per_instance]
        firsts = [v[(0,) * self.field_batch_dim(n)] if v is not None and v.numel() else v for v, n in fields]
        try:
            self.with_values(firsts).check(parts)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`parts` should be shaped like scores. {error}") from error
        return parts

    def noise_size(self, scores: Scores) -> int | None:
        """How many uniform numbers `sample` needs for one draw of one instance.

        None, the default: the largest number of choices in a derivation of its `recursion`, or 1 without one.
        """
        return None

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Which parts some structure has, so that the rest is padding: bools that broadcast to the part tensors.

        None, the default, if this is unknown; then the padding of targets should be 0, since it is counted.
        """
        return None

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        """For each part tensor, whether its parts may be used more than once, such as a matrix shared by all steps."""
        return (False,) * len(tensors)

    def log_bound(self, tensors: tuple[Tensor, ...]) -> float:
        """The logarithm of an upper bound of the number of members of one instance, for sets that are not counted.

        By default every set of parts may be a member.
        """
        return sum(t.numel() for t in tensors) * math.log(2)

    def adds(self, scores: Scores) -> bool:
        """Whether `tensors` adds up scores. Those in half precision are widened before."""
        return False

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        """The part tensors in order."""
        return (scores,) if isinstance(scores, Tensor) else tuple(scores)

    def parts(self, tensors: tuple[Tensor, ...]) -> Any:
        """The inverse of `tensors`: a tensor, or the named tuple of parts."""
        return tensors[0] if self.Parts is None else self.Parts(*tensors)

    @property
    def names(self) -> tuple[str, ...]:
        """What the part tensors are called."""
        return self.Parts._fields if self.Parts else ("scores",)

    @property
    def needed(self) -> int:
        """How many part tensors there are at least: the last of them may be left out."""
        return len(self.Parts._fields) - len(self.Parts._field_defaults) if self.Parts else 1

    def batch_shape(self, scores: Scores) -> torch.Size:
        first = self.tensors(scores)[0]
        return first.shape[: first.dim() - self.event_dim]

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        """What the functions get as keywords, for these part tensors; per-instance fields have their batch."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        given = {name: value for name, value in named.items() if value is not None}
        return given | {name: self.expanded(name, tensors) for name in self.per_instance if name in given}

    def expanded(self, name: str, tensors: tuple[Tensor, ...], default: int = 0) -> Tensor:
        """The field of that name, one entry for each instance of the batch, or `default` for all where it is None."""
        first = tensors[0]
        batch = first.shape[: first.dim() - self.event_dim]
        value = getattr(self, name)
        if value is None:
            return torch.full(batch, default, dtype=torch.int64, device=first.device)
        # A byte would overflow in the arithmetic of a kernel.
        dtype = value.dtype if value.dtype == torch.bool else torch.int64
        if value.dim() == 0 and value.device != first.device and check.readable(value):
            # no copy, which a CUDA graph could not record
            return torch.full(batch, value.item(), dtype=dtype, device=first.device)
        return value.to(first.device, dtype).expand((*batch, *value.shape[self.field_batch_dim(name) :]))

    def values(self, rank: int) -> tuple[Tensor | None, ...]:
        """The per-instance fields in order, with as many batch dimensions as the scores have."""
        named = [(getattr(self, name), name) for name in self.per_instance]
        return tuple(
            value if value is None else value[(None,) * (rank - self.field_batch_dim(name))] for value, name in named
        )

    def with_values(self, values: Sequence[Tensor | None]) -> Any:
        """The same structure with other per-instance fields, in the same order. Nothing is checked."""
        other = copy.copy(self)
        for name, value in zip(self.per_instance, values, strict=True):
            object.__setattr__(other, name, value)
        return other

    def field_batch_dim(self, name: str) -> int:
        """How many dimensions of a per-instance field are batch: all, unless the structure says otherwise."""
        return getattr(self, name).dim()

    def matches(self, other: "AbstractStructure") -> bool:
        """Whether both are the same set, value by value: dataclasses cannot compare tensors."""
        if type(self) is not type(other):
            return False
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return all(
            torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or bool(a == b)
            for a, b in pairs
        )

    def at(self, index: tuple[int, ...], batch: Sequence[int]) -> "AbstractStructure":
        """The structure of one instance of a batch."""
        changed = {}
        for name in self.per_instance:
            value = getattr(self, name)
            if value is not None:
                rest = value.shape[self.field_batch_dim(name) :]
                changed[name] = value.expand((*batch, *rest))[index]
        return self.changed(changed)

    def changed(self, values: Mapping[str, Any]) -> Any:
        """A new structure with other values of some per-instance fields."""
        return dataclasses.replace(self, **values) if values else self  # type: ignore[type-var]


class AbstractRelaxation(AbstractStructure):
    """A structure whose convex hull is known only by a larger polytope: `sparsemap` works on that.

    Its functions include `relax` and `relax_jvp`.
    """


def by_autograd(log_partition: Callable[..., Tensor]) -> dict[str, Callable[..., Any]]:
    """`marginals` and `marginals_jvp` from a `log_partition` written in differentiable torch."""

    def gradient(scores: tuple[Tensor, ...], fields: dict[str, Any]) -> tuple[Tensor, ...]:
        return torch.func.grad(lambda *s: log_partition(*s, **fields).sum(), argnums=tuple(range(len(scores))))(*scores)

    def marginals(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
        return gradient(scores, fields)

    def marginals_jvp(*scores_and_tangent: Tensor, **fields: Any) -> tuple[Tensor, ...]:
        half = len(scores_and_tangent) // 2
        scores, tangent = scores_and_tangent[:half], scores_and_tangent[half:]
        # The Hessian is symmetric: its vjp is its jvp, and reverse mode asks less of user code.
        pullback = torch.func.vjp(lambda *s: gradient(s, fields), *scores)[1]
        return pullback(tangent)

    return {"marginals": marginals, "marginals_jvp": marginals_jvp}


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Where geometry is made: inside a transform of torch.func or in inference mode its tensors would belong there."""
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False):
        yield
