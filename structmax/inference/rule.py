"""What the autograd rules of all questions share: batching, tracing, and the way down to a room."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.utils._pytree import register_pytree_node, tree_flatten, tree_leaves, tree_unflatten

from structmax import backends

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def recorded(tensors: tuple[Tensor, ...]) -> bool:
    """Whether somebody will want a derivative of what is computed from these tensors."""
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def constant(function: F) -> F:
    """Lets a compiler take the answer as it is. torch.compiler's own mark would load the compiler with every import."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def rule(function: type[Function]) -> Callable[..., Any]:
    """Turns an autograd.Function into the differentiable call it describes.

    The Function is over batch-first tensors: all its tensor arguments carry the same leading batch dimensions. It
    writes forward, setup_context, backward and jvp; vmap is one more batch dimension and is written here.
    """
    # torch.compile refuses a Function that has a jvp, whether or not it is asked for: give it a twin without. Where no
    # gradient is recorded (inside a backward, too) it miscounts the arguments of a variadic forward: call that plainly.
    traced: Any = type(function.__name__, (Function,), {k: v for k, v in vars(function).items() if k != "jvp"})
    forward = function.forward
    # Function.apply binds arguments to forward's signature, which takes longer than a kernel over a small batch. All of
    # ours are positional: without transforms of torch.func, its base class is asked directly.
    plain_apply = super(Function, function).apply  # type: ignore[misc]

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            recorded = torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
            return traced.apply(*args) if recorded else forward(*args)
        if torch._C._are_functorch_transforms_active():
            return function.apply(*args)
        if not torch.is_grad_enabled() and forward_ad._current_level < 0:
            # Nothing is recorded, as in most backward passes.
            return forward(*args)
        return plain_apply(*args)

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        out = call(*(_batched(arg, dim, info.batch_size) for arg, dim in zip(args, in_dims, strict=True)))
        return out, (0 if isinstance(out, Tensor) else tuple(0 for _ in out))

    function.vmap = staticmethod(vmap)  # type: ignore[method-assign]
    return call


def _batched(arg: Any, dim: Any, size: int) -> Any:
    if not isinstance(arg, Tensor):
        # The fields of a structure have the batch dimensions of the scores, and broadcast to them.
        leaves, form = tree_flatten(arg)
        pairs = zip(leaves, tree_leaves(dim), strict=True)
        return tree_unflatten([_batched(leaf, at, 1) if isinstance(leaf, Tensor) else leaf for leaf, at in pairs], form)
    return arg.unsqueeze(0).expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)


def transparent(companion: C) -> C:
    """Lets transforms of torch.func see the tensors inside a frozen dataclass that travels beside the scores."""
    names = [field.name for field in dataclasses.fields(companion)]  # type: ignore[arg-type]

    def flatten(given: Any) -> tuple[list[Any], None]:
        return [getattr(given, name) for name in names], None

    def unflatten(values: Iterable[Any], _: None) -> Any:
        return companion(*values)

    register_pytree_node(companion, flatten, unflatten)
    return companion


def ask(
    room: str,
    name: str,
    tensors: tuple[Tensor, ...],
    batch: int,
    backend: str,
    parts: int = 1,
    shared: dict[str, Any] | None = None,
    checked: bool = True,
    **fields: Any,
) -> list[Tensor]:
    """One question to one room: flattens the first `batch` dimensions, asks, and restores them.

    Keyword tensors carry the batch and are flattened too, but for those in `shared`; numbers pass through. `parts` is
    how many of the tensors are scores; `checked` says that the values of the fields have been looked at.
    """
    shared = shared or {}
    if batch == 1:
        return backends.call(room, name, tensors, {**shared, **fields}, parts, backend, checked=checked)
    shape = tensors[0].shape[:batch]
    # not shape.numel(), which would fix a symbolic batch
    rows = math.prod(shape)

    def flat(value: Any) -> Any:
        return value.reshape((rows, *value.shape[batch:])) if isinstance(value, Tensor) else value

    flat_fields = {**shared, **{key: flat(value) for key, value in fields.items()}}
    out = backends.call(room, name, tuple(flat(t) for t in tensors), flat_fields, parts, backend, checked=checked)
    return [t.reshape((*shape, *t.shape[1:])) for t in out]
