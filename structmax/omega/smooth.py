"""Ω whose value is smooth, by the functions of a structure: the value, its gradient and its Hessian.

    value  F(θ)            point  μ(θ) = ∇F(θ)            H(θ) = ∇²F(θ), symmetric: its pullback is its pushforward

so three rules chain: Value pulls back through Point, Point through PointJvp, and PointJvp, for third and higher orders,
through the structure's reference in differentiable torch. F is log Z, alone or over the structures that have given
parts, or the value of a recursion with a smoothed maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from structmax import check, rooms
from structmax.autograd import plain_apply, recorded, rule
from structmax.contract import by_autograd
from structmax.half import cast, widened
from structmax.omega.base import AbstractOmega
from structmax.parts import Tensors, inner, scaled
from structmax.problem import Problem


class Smooth(AbstractOmega):
    """F by the names of the structure's functions, with the numbers they take.

    With `divisor` t it is t F(θ/t), whose gradient is μ(θ/t) and whose Hessian is H(θ/t)/t. A negative one turns the
    smoothed maximum of scores into the smoothed minimum of costs.
    """

    # All of these are known when the Ω is made: a compiler may make a variable of a number, and cannot branch on it.
    # the functions that give the value; value and point in one pass; the Hessian times a tangent
    names: tuple[str, str, str]
    # the function that gives the point alone, where there is one
    alone: ClassVar[str | None] = None
    # those that give the value with a state, and the gradient from that, where there are
    kept: ClassVar[tuple[str, str] | None] = None
    # whether F is the value of a random walk
    walks: ClassVar[bool] = False
    # what the functions take in addition to tensors
    numbers: dict[str, float] = {}
    # None for 1
    divisor: float | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return self.alone or self.names[1], self.names[2]

    def value(self, problem: Problem, *constants: Tensor) -> Tensor:
        """F(θ). `constants` are further tensors (B, …) that the functions take."""
        if not recorded(problem.scores):
            return self.ask(problem, self.names[0], *problem.scores, *constants)[0]
        if _plainly():
            if self.kept is not None and self.divisor is None and problem.keeps_state(self.kept[0]):
                return kept_value(self, problem.blank, *problem.scores)
            return plain_value(self, problem.blank, *problem.scores, *constants)
        return value_rule(self, problem.blank, *problem.scores, *constants)[0]

    def point(self, problem: Problem, *constants: Tensor) -> Tensors:
        apply = plain_point if _plainly() and torch.is_grad_enabled() else point_rule
        return apply(self, problem.blank, *problem.scores, *constants)

    def pullback(self, problem: Problem, d_point: Tensors) -> Tensors:
        """H(θ) times d_point: the Hessian is symmetric."""
        return point_jvp_rule(self, problem.blank, *problem.scores, *d_point)

    def at(self, problem: Problem, parts: Tensors) -> float:
        """0 at every structure. Inside conv(Y) it has no closed form and is left out, a constant of the scores."""
        return 0.0

    def ask(self, problem: Problem, name: str, *tensors: Tensor) -> Tensors:
        t = self.divisor
        if t is None:
            return tuple(problem.ask(name, *tensors, **self.numbers))
        # half precision is rounded once, at the end
        wide = widened(tensors)
        scores = tuple(s / t for s in wide[: problem.count])
        out = tuple(problem.ask(name, *scores, *wide[problem.count :], **self.numbers))
        if name == self.names[2]:
            out = tuple(o / t for o in out)
        elif name != self.alone:
            out = (t * out[0], *out[1:])
        return cast(out, tensors[0].dtype)


@dataclass(frozen=True)
class Entropy(Smooth):
    """−temperature · entropy of the distribution over Y: the value is t log Z(θ/t), the point the marginals of θ/t.

    It is also what the entropy in every maximum of a dynamic program gives.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([0.0, 0.0, -torch.inf])
        >>> structmax.smoothed(x, structmax.Simplex(), structmax.omega.Entropy(0.5))
        tensor(0.3466)
    """

    temperature: float = 1.0

    names: ClassVar[tuple[str, str, str]] = (  # type: ignore[misc]
        "log_partition",
        "log_partition_and_marginals",
        "marginals_jvp",
    )
    alone: ClassVar[str | None] = "marginals"
    kept: ClassVar[tuple[str, str] | None] = ("log_partition_and_state", "log_partition_pullback")
    walks: ClassVar[bool] = True
    alpha: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check.number("temperature", self.temperature)
        if self.temperature != 1:
            object.__setattr__(self, "divisor", float(self.temperature))


@dataclass(frozen=True)
class Conditioned(Smooth):
    """log Σ exp⟨θ, y⟩ over the structures that have all of the parts given as constants."""

    names: ClassVar[tuple[str, str, str]] = (  # type: ignore[misc]
        "given_log_partition",
        "given_log_partition_and_marginals",
        "given_marginals_jvp",
    )


@dataclass(frozen=True)
class Minimum(Smooth):
    """The smoothed minimum −F(−c) of costs c that `omega` gives, attained at the point of −c."""

    omega: Smooth

    def __post_init__(self) -> None:
        divisor = -1.0 if self.omega.divisor is None else -self.omega.divisor
        for name, value in (("names", self.omega.names), ("numbers", self.omega.numbers), ("divisor", divisor)):
            object.__setattr__(self, name, value)


# ---------------------------------------------------------------- the rules


def _plainly() -> bool:
    """Whether a Function may be applied as it is: no compiler, transform of torch.func or forward mode is at work."""
    return not (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


def _are_ones(d_value: Tensor) -> bool:
    """Whether this is one number, repeated, that is seen at once to be 1."""
    if d_value.stride() != (0,) or not len(d_value) or not d_value.is_cpu or type(d_value) is not Tensor:
        return False
    # numpy has no bfloat16
    return _plainly() and d_value.dtype in (torch.float32, torch.float64) and d_value.numpy()[0] == 1


def _remember(ctx: Any, omega: Smooth, problem: Problem, *tensors: Tensor) -> None:
    ctx.omega, ctx.problem = omega, problem
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        ctx.save_for_forward(*tensors)


class Value(Function):
    """F(θ) and, because the pullback needs it, μ(θ); only the first is differentiable."""

    @staticmethod
    def forward(omega: Smooth, problem: Problem, *tensors: Tensor) -> Tensors:
        return omega.ask(problem, omega.names[1], *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        _remember(ctx, *inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        # autograd need not fill in zeros for a cotangent of μ
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_value: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        count = ctx.problem.count
        # Read once: a checkpoint recomputes what it gives, and gives it once.
        saved = ctx.saved_tensors
        tensors, mu = saved[:-count], saved[-count:]
        if d_value is None:
            return (None,) * (2 + len(tensors))
        nothing = (None,) * (len(tensors) - count)
        if torch.is_grad_enabled():
            mu = point_rule(ctx.omega, ctx.problem, *tensors)
        elif _are_ones(d_value):
            # the gradient of a sum: one pass over memory less
            return None, None, *mu, *nothing
        return None, None, *scaled(d_value, mu), *nothing

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> tuple[Any, ...]:
        count = ctx.problem.count
        scores = ctx.saved_tensors[:count]
        mu = point_rule(ctx.omega, ctx.problem, *ctx.saved_tensors[:-count])
        filled = tuple(torch.zeros_like(s) if t is None else t for s, t in zip(scores, tangents, strict=False))
        return inner(mu, filled), *(None,) * count


class PlainValue(Function):
    """`Value` where neither a transform nor forward mode wants to know μ(θ): it is not an output, which saves time."""

    @staticmethod
    def forward(ctx: Any, omega: Smooth, problem: Problem, *tensors: Tensor) -> Tensor:
        value, *mu = omega.ask(problem, omega.names[1], *tensors)
        ctx.omega, ctx.problem = omega, problem
        ctx.save_for_backward(*tensors, *mu)
        return value

    backward = Value.backward


class KeptValue(Function):
    """`PlainValue` of a kernel that makes μ(θ) in the backward pass, times what comes there: one pass over memory."""

    @staticmethod
    def forward(ctx: Any, omega: Smooth, problem: Problem, *scores: Tensor) -> Tensor:
        assert omega.kept is not None
        value, *state = problem.ask(omega.kept[0], *scores)
        ctx.omega, ctx.problem = omega, problem
        ctx.save_for_backward(*scores, *state)
        return value

    @staticmethod
    def backward(ctx: Any, d_value: Tensor) -> tuple[Any, ...]:
        saved, count = ctx.saved_tensors, ctx.problem.count
        if torch.is_grad_enabled():
            return None, None, *scaled(d_value, point_rule(ctx.omega, ctx.problem, *saved[:count]))
        return None, None, *ctx.problem.ask(ctx.omega.kept[1], *saved, d_value)


class Point(Function):
    @staticmethod
    def forward(omega: Smooth, problem: Problem, *tensors: Tensor) -> Tensors:
        if omega.alone is not None:
            return omega.ask(problem, omega.alone, *tensors)
        return omega.ask(problem, omega.names[1], *tensors)[1:]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        _remember(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *d_mu: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        nothing = (None,) * (len(tensors) - ctx.problem.count)
        if not torch.is_grad_enabled() and _plainly():
            return None, None, *ctx.omega.ask(ctx.problem, ctx.omega.names[2], *tensors, *d_mu), *nothing
        return None, None, *point_jvp_rule(ctx.omega, ctx.problem, *tensors, *d_mu), *nothing

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> Tensors:
        return point_jvp_rule(ctx.omega, ctx.problem, *ctx.saved_tensors, *tangents[: ctx.problem.count])


class PointJvp(Function):
    """H(θ) times a tangent. Arguments: scores, what follows them, and the tangent."""

    @staticmethod
    def forward(omega: Smooth, problem: Problem, *tensors: Tensor) -> Tensors:
        return omega.ask(problem, omega.names[2], *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        _remember(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        scores, constants, tangent = _groups(ctx)
        pullback = torch.func.vjp(_differentiable_jvp(ctx, constants, tangent), *scores)[1]
        straight = point_jvp_rule(ctx.omega, ctx.problem, *scores, *constants, *d_out)
        return None, None, *pullback(d_out), *(None,) * len(constants), *straight

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, *tangents: Tensor) -> Tensors:
        count = ctx.problem.count
        scores, constants, tangent = _groups(ctx)
        d_scores, d_tangent = tangents[:count], tangents[-count:]
        third = torch.func.jvp(_differentiable_jvp(ctx, constants, tangent), scores, d_scores)[1]
        straight = point_jvp_rule(ctx.omega, ctx.problem, *scores, *constants, *d_tangent)
        return tuple(a + b for a, b in zip(third, straight, strict=True))


def _groups(ctx: Any) -> tuple[Tensors, Tensors, Tensors]:
    """Scores, constants and tangent."""
    tensors, count = ctx.saved_tensors, ctx.problem.count
    return tensors[:count], tensors[count:-count], tensors[-count:]


def _differentiable_jvp(ctx: Any, constants: Tensors, tangent: Tensors) -> Callable[..., Tensors]:
    """H(θ) times the tangent as a function of the scores in plain torch."""
    omega, problem = ctx.omega, ctx.problem
    reference: Callable[..., Any] | None = rooms.function(problem.structure.room, omega.names[0], "reference")
    assert reference is not None
    t = 1.0 if omega.divisor is None else omega.divisor

    def value(*s: Tensor, **keywords: Any) -> Tensor:
        out = reference(*(each / t for each in s), *constants, **keywords, **omega.numbers)
        return t * (out if isinstance(out, Tensor) else out[0])

    product = by_autograd(value)["marginals_jvp"]
    return lambda *scores: product(*scores, *tangent, **problem.shared, **problem.fields)


value_rule, point_rule, point_jvp_rule = rule(Value, fold=True), rule(Point, fold=True), rule(PointJvp, fold=True)
plain_value, plain_point, kept_value = plain_apply(PlainValue), plain_apply(Point), plain_apply(KeptValue)
