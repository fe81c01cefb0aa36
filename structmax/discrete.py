"""Answers that are piecewise constant, or taken as such: they have no gradient."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from structmax.autograd import rule
from structmax.parts import Tensors
from structmax.problem import Problem


class Discrete(Function):
    @staticmethod
    def forward(
        problem: Problem, name: str, noise: Tensor | None, numbers: tuple[tuple[str, float], ...], *scores: Tensor
    ) -> Tensors:
        extra = {} if noise is None else {"noise": noise}
        return tuple(problem.ask(name, *scores, **extra, **dict(numbers)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.arguments, ctx.outputs = len(inputs), len(output)
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.arguments

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, ...]:
        return (None,) * ctx.outputs


discrete_rule = rule(Discrete, fold=True)


def discrete(problem: Problem, name: str, noise: Tensor | None = None, **numbers: float) -> Tensors:
    """The answer of a structure's function as constants: tensors (B, …)."""
    return discrete_rule(problem.blank, name, noise, tuple(numbers.items()), *problem.scores)
