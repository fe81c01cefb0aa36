"""What a structure is, and what the functions in its room promise.

A *room* is the home of one structure: `reference.py` (torch, slow, right) and any of `kernel_numba.py` and
`kernel_triton.py` beside it. Functions are named after the question they answer and have the same signature in each
file. They see clean tensors: contiguous, detached, float32 or float64, the batch flattened to one leading dimension B.
Fields of the structure arrive as keywords.

| function | arguments after the scores | returns |
|---|---|---|
| `argmax` | | parts of one best structure |
| `topk` | `k` | values (B, k) and parts (B, k, …), best first; −inf and zeros past the last structure |
| `log_partition` | | log Σ exp⟨θ, y⟩: (B,) |
| `marginals` | | ∇ of it: parts |
| `marginals_jvp` | `tangent` (parts) | ∇² of it times the tangent: parts. Symmetric, so it is the pullback too |
| `max_marginals` | | best score of a structure that has the part: parts |
| `sample` | `noise` (B, S, K), uniform in [0, 1) | parts (B, S, …); chance is an argument, so backends agree |

`log_partition` alone, written in differentiable torch, supplies `marginals` and `marginals_jvp` through `by_autograd`.
A reference may offer `examples(scores)`, calls (name, tensors, fields) of all its functions: what `warm_up` compiles.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

Scores = Tensor | tuple[Tensor, ...]
F = TypeVar("F", bound=Callable[..., Any])

RETURNS: dict[str, tuple[str, ...]] = {
    "argmax": ("parts",),
    "topk": ("value[k]", "parts[k]"),
    "log_partition": ("value",),
    "marginals": ("parts",),
    "marginals_jvp": ("parts",),
    "max_marginals": ("parts",),
    "sample": ("parts[noise]",),
}


def returns(*kinds: str) -> Callable[[F], F]:
    """Names the outputs of a room's function, so that compilers know their shapes without running it.

    `parts` is like the scores, `value` is (B,), `state` is private to the room. `[k]` adds a dimension after B, sized
    by the number `k` or by dimension 1 of the tensor argument `k`; `:int32` or `:2` gives a dtype or a trailing size.
    Functions of the table above need no mark.
    """

    def mark(function: F) -> F:
        function.returns = kinds  # type: ignore[attr-defined]
        return function

    return mark


class AbstractStructure(ABC):
    """A finite set Y of 0/1 part-vectors.

    A subclass is a frozen dataclass: it holds the geometry (lengths, sizes, flags) and never scores. Numbers and
    tensors are allowed as fields and reach the room's functions as keywords of the same name. Its functions stand in
    the `reference.py` beside it or, for a structure in a single file, in its body as static methods.

    `event_dims` counts the trailing dimensions that belong to one instance, for each part tensor. A structure with
    several part tensors names them by a `Parts` named tuple; with one it takes and returns a plain tensor.
    """

    event_dims: ClassVar[tuple[int, ...]]
    Parts: ClassVar[Any] = None
    # Rooms that are no structures of their own and are reached through this one.
    fronted: ClassVar[tuple[str, ...]] = ()
    registry: ClassVar[dict[str, "type[AbstractStructure]"]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.room = f"{cls.__module__}.{cls.__qualname__}"
        AbstractStructure.registry[cls.room] = cls

    room: ClassVar[str]

    @abstractmethod
    def check(self, scores: Scores) -> None:
        """Raises a ValueError that says what should be, what is and what to try, if the scores do not fit."""

    @abstractmethod
    def enumerate(self, scores: Scores) -> Scores:
        """All members for one instance shaped like `scores` (no batch): parts with a leading member dimension."""

    @abstractmethod
    def decode(self, parts: Scores) -> Any:
        """What people want to see: labels, heads, paths, spans."""

    @abstractmethod
    def encode(self, *what: Any) -> Scores:
        """The way back: parts from what `decode` returns."""

    def noise_size(self, scores: Scores) -> int:
        """How many uniform numbers `sample` needs for one draw of one instance."""
        return 1

    def tensors(self, scores: Scores) -> tuple[Tensor, ...]:
        """The part tensors in order."""
        return (scores,) if isinstance(scores, Tensor) else tuple(scores)

    def parts(self, tensors: tuple[Tensor, ...]) -> Any:
        """The way back: a tensor, or the named tuple of parts."""
        return tensors[0] if self.Parts is None else self.Parts(*tensors)

    def batch_shape(self, scores: Scores) -> torch.Size:
        first = self.tensors(scores)[0]
        return first.shape[: first.dim() - self.event_dims[0]]

    def fields(self) -> dict[str, Any]:
        """The structure's own numbers and tensors, by name."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in named.items() if value is not None}


def by_autograd(log_partition: Callable[..., Tensor]) -> dict[str, Callable[..., Any]]:
    """`marginals` and `marginals_jvp` from a `log_partition` written in differentiable torch."""

    def gradient(scores: tuple[Tensor, ...], fields: dict[str, Any]) -> tuple[Tensor, ...]:
        return torch.func.grad(lambda *s: log_partition(*s, **fields).sum(), argnums=tuple(range(len(scores))))(*scores)

    @returns("parts")
    def marginals(*scores: Tensor, **fields: Any) -> tuple[Tensor, ...]:
        return gradient(scores, fields)

    @returns("parts")
    def marginals_jvp(*scores_and_tangent: Tensor, **fields: Any) -> tuple[Tensor, ...]:
        half = len(scores_and_tangent) // 2
        scores, tangent = scores_and_tangent[:half], scores_and_tangent[half:]
        # The Hessian is symmetric: its vjp is its jvp, and reverse mode asks less of user code.
        pullback = torch.func.vjp(lambda *s: gradient(s, fields), *scores)[1]
        return pullback(tangent)

    return {"marginals": marginals, "marginals_jvp": marginals_jvp}
