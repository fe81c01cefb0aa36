"""What all gradient rules share: a call that works plainly, under vmap, in forward mode and inside torch.compile."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


def recorded(tensors: tuple[Tensor, ...]) -> bool:
    """Whether autograd records what is computed from these tensors."""
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def is_plain() -> bool:
    """Whether autograd records what is computed, and no compiler or transform sees it."""
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def rule(function: type[Function], *, fold: bool = False) -> Callable[..., Any]:
    """Turns an autograd.Function into the differentiable call it describes.

    The Function is over batch-first tensors: all its tensor arguments carry the same leading batch dimensions. It
    writes forward, setup_context, backward and jvp; vmap is one more batch dimension and is written here. With `fold`
    there is one batch dimension, which that of vmap becomes a part of.
    """
    # torch.compile refuses a Function that has a jvp, whether or not it is asked for: give it a twin without. Where no
    # gradient is recorded (inside a backward, too) it miscounts the arguments of a variadic forward: call that plainly.
    traced: Any = type(function.__name__, (Function,), {k: v for k, v in vars(function).items() if k != "jvp"})
    forward = function.forward
    plain = plain_apply(function)

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            recorded = torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
            return traced.apply(*args) if recorded else forward(*args)
        if torch._C._are_functorch_transforms_active():
            return function.apply(*args)
        if not torch.is_grad_enabled() and forward_ad._current_level < 0:
            # Nothing is recorded, as in most backward passes.
            return forward(*args)
        return plain(*args)

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        batched = [_batched(arg, dim, size, fold) for arg, dim in zip(args, in_dims, strict=True)]
        out = call(*batched)
        if fold:
            unfolded = [t.reshape(size, t.shape[0] // max(size, 1), *t.shape[1:]) for t in _listed(out)]
            out = unfolded[0] if isinstance(out, Tensor) else tuple(unfolded)
        return out, (0 if isinstance(out, Tensor) else tuple(0 for _ in out))

    function.vmap = staticmethod(vmap)  # type: ignore[method-assign]
    return call


def plain_apply(function: type[Function]) -> Callable[..., Any]:
    """Applies a Function where no transform of torch.func is at work.

    Function.apply binds arguments to forward's signature, which takes longer than a kernel over a small batch. All of
    ours are positional: its base class is called directly.
    """
    return super(Function, function).apply  # type: ignore[misc]


class _Refused(Function):
    """A gradient that has no gradient."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, who: str, instead: str) -> Tensor:
        ctx.who, ctx.instead = who, instead
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(f"{ctx.who} has first derivatives only. Try {ctx.instead}.")


def no_transforms(who: str) -> None:
    """Says that torch.func's transforms have no rule for this."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise NotImplementedError(f"{who} has no rule for torch.func. Try `structmax.entmax_loss` in one process.")


def once(
    who: str, instead: str = "`structmax.entmax_loss` in one process"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a backward whose gradients have none; whoever asks for them is told so."""

    def mark(backward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            with torch.no_grad():
                gradients = backward(ctx, *cotangents)
            if not torch.is_grad_enabled():
                return gradients
            return tuple(g if g is None else _Refused.apply(g.requires_grad_(), who, instead) for g in gradients)

        return wrapped

    return mark


def _listed(out: Any) -> Any:
    return (out,) if isinstance(out, Tensor) else out


def _batched(arg: Any, dim: Any, size: int, fold: bool) -> Any:
    if not isinstance(arg, Tensor):
        # a problem, whose fields have the batch of its scores
        leaves, form = tree_flatten(arg)
        pairs = zip(leaves, tree_leaves(dim), strict=True)
        every = [_batched(leaf, at, size, fold) if isinstance(leaf, Tensor) else leaf for leaf, at in pairs]
        return tree_unflatten(every, form)
    arg = arg.unsqueeze(0).expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)
    return arg.reshape(size * arg.shape[1], *arg.shape[2:]) if fold else arg
