"""A convex function of the scores, its gradient and its Hessian, as the functions of a room compute them.

    value  F(θ)            point  μ(θ) = ∇F(θ)            H(θ) = ∇²F(θ), symmetric: its pullback is its pushforward

so three rules chain: Value pulls back through Point, Point through PointJvp, and PointJvp, for third and higher orders,
through the room's reference in differentiable torch. F is log Z, alone or over the structures that have given parts, or
the value of a recursion with a smoothed maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from structmax import backends, check
from structmax.contract import by_autograd
from structmax.inference.composed import cast, widened
from structmax.inference.question import Asked, inner, scaled
from structmax.inference.rule import recorded, rule, transparent


@dataclass(frozen=True)
class Potential:
    """F by the names of the room's functions, with the numbers they take.

    With a temperature t it is t F(θ/t), whose gradient is μ(θ/t) and whose Hessian is H(θ/t)/t. A negative t turns the
    smoothed maximum of scores into the smoothed minimum of costs.
    """

    value: str
    # value and point in one pass
    both: str
    jvp: str
    numbers: tuple[tuple[str, float], ...] = ()
    # None for 1: a compiler may make a variable of a number, and cannot branch on it
    temperature: float | None = None

    def ask(self, asked: Asked, name: str, scores: tuple[Tensor, ...], *others: Tensor) -> tuple[Tensor, ...]:
        t = self.temperature
        if t is None:
            return asked.room(name, scores, *others, **dict(self.numbers))
        # half precision is rounded once, at the end
        wide, rest = widened(scores), widened(others)
        out = asked.room(name, tuple(s / t for s in wide), *rest, **dict(self.numbers))
        out = tuple(o / t for o in out) if name == self.jvp else (t * out[0], *out[1:])
        return cast(out, scores[0].dtype)


@transparent
@dataclass(frozen=True)
class Of:
    """The arguments of a potential that are no scores, and how many tensors are."""

    asked: Asked
    potential: Potential
    count: int

    def split(self, tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Scores, and what follows them."""
        return tuple(tensors[: self.count]), tuple(tensors[self.count :])

    def ask(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        scores, others = self.split(tensors)
        return self.potential.ask(self.asked, name, scores, *others)


def _remember(ctx: Any, of: Of, *tensors: Tensor) -> None:
    ctx.of = of
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


class Value(Function):
    """F(θ) and, because the pullback will want it, μ(θ); only the first is differentiable."""

    @staticmethod
    def forward(of: Of, *tensors: Tensor) -> tuple[Tensor, ...]:
        return of.ask(of.potential.both, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _remember(ctx, *inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        # nobody should fill zeros for a cotangent of μ
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        count = ctx.of.count
        # Read once: a checkpoint recomputes what it gives, and gives it once.
        saved = ctx.saved_tensors
        tensors, mu = saved[:-count], saved[-count:]
        if d_value is None:
            return (None,) * (1 + len(tensors))
        if torch.is_grad_enabled():
            mu = point_rule(ctx.of, *tensors)
        elif check.readable(d_value) and bool((d_value == 1).all()):
            # the gradient of a sum: one pass over memory less
            return None, *mu, *(None,) * (len(tensors) - count)
        return None, *scaled(d_value, mu), *(None,) * (len(tensors) - count)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Any, ...]:
        count = ctx.of.count
        scores = ctx.saved_tensors[:count]
        mu = point_rule(ctx.of, *ctx.saved_tensors[:-count])
        filled = tuple(torch.zeros_like(s) if t is None else t for s, t in zip(scores, tangents, strict=False))
        return inner(mu, filled, ctx.of.asked.structure), *(None,) * count


value_rule = rule(Value)


class Point(Function):
    @staticmethod
    def forward(of: Of, *tensors: Tensor) -> tuple[Tensor, ...]:
        return of.ask(of.potential.both, *tensors)[1:]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _remember(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *d_mu: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        pulled = point_jvp_rule(ctx.of, *tensors, *d_mu)
        return None, *pulled, *(None,) * (len(tensors) - ctx.of.count)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        return point_jvp_rule(ctx.of, *ctx.saved_tensors, *tangents[: ctx.of.count])


point_rule = rule(Point)


class PointJvp(Function):
    """H(θ) times a tangent. Arguments: scores, what follows them, and the tangent."""

    @staticmethod
    def forward(of: Of, *tensors: Tensor) -> tuple[Tensor, ...]:
        return of.ask(of.potential.jvp, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _remember(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        of, count = ctx.of, ctx.of.count
        scores, others = of.split(ctx.saved_tensors)
        constants, tangent = others[:-count], others[-count:]
        pullback = torch.func.vjp(lambda *s: _differentiable_jvp(of, s, constants, tangent), *scores)[1]
        straight = point_jvp_rule(of, *scores, *constants, *d_out)
        return None, *pullback(d_out), *(None,) * len(constants), *straight

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor) -> tuple[Tensor, ...]:
        of, count = ctx.of, ctx.of.count
        scores, others = of.split(ctx.saved_tensors)
        constants, tangent = others[:-count], others[-count:]
        d_scores, d_tangent = tangents[:count], tangents[-count:]
        third = torch.func.jvp(lambda *s: _differentiable_jvp(of, s, constants, tangent), scores, d_scores)[1]
        straight = point_jvp_rule(of, *scores, *constants, *d_tangent)
        return tuple(a + b for a, b in zip(third, straight, strict=True))


point_jvp_rule = rule(PointJvp)


def _differentiable_jvp(
    of: Of, scores: tuple[Tensor, ...], constants: tuple[Tensor, ...], tangent: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    structure = of.asked.structure
    reference: Callable[..., Any] | None = backends.function(structure.room, of.potential.value, "reference")
    assert reference is not None
    batch = structure.batch_shape(structure.parts(scores))

    def flat(tensor: Tensor) -> Tensor:
        return tensor.reshape(batch.numel(), *tensor.shape[len(batch) :])

    fields = structure.fields(scores)
    fields |= {name: flat(fields[name]) for name in structure.per_instance if name in fields}
    flat_constants = tuple(flat(t) for t in constants)

    t = of.potential.temperature or 1.0

    def value(*s: Tensor, **keywords: Any) -> Tensor:
        out = reference(*(each / t for each in s), *flat_constants, **keywords, **dict(of.potential.numbers))
        return t * (out if isinstance(out, Tensor) else out[0])

    out = by_autograd(value)["marginals_jvp"](*(flat(t) for t in (*scores, *tangent)), **fields)
    return tuple(o.reshape(s.shape) for o, s in zip(out, scores, strict=True))


def value(asked: Asked, potential: Potential, scores: tuple[Tensor, ...], constants: tuple[Tensor, ...] = ()) -> Tensor:
    """F(θ): the batch shape."""
    if not recorded(scores):
        return potential.ask(asked, potential.value, scores, *constants)[0]
    return value_rule(Of(asked, potential, len(scores)), *scores, *constants)[0]


def point(
    asked: Asked, potential: Potential, scores: tuple[Tensor, ...], constants: tuple[Tensor, ...] = ()
) -> tuple[Tensor, ...]:
    """∇F(θ): part tensors."""
    return point_rule(Of(asked, potential, len(scores)), *scores, *constants)
