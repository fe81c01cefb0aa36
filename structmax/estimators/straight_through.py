"""Straight-through: the best structure forward, backward as if it had been something differentiable."""

from dataclasses import dataclass

import torch

from structmax.estimators.pullbacks import Identity, Pullback
from structmax.estimators.surrogate import AbstractChoice
from structmax.parts import Tensors
from structmax.problem import Problem
from structmax.questions.argmax import ZERO


@dataclass(frozen=True)
class StraightThrough(AbstractChoice):
    """z = argmax⟨θ, y⟩ forward; backward as if z were θ itself, or a relaxation of the choice.

        Identity():  ∂L/∂θ = g                  omega.Entropy(t):  ∂L/∂θ = ∇μ(θ/t) g

    Args:
        backward: `Identity()`, `RowSoftmax(dim)`, or any Ω of `structmax.omega`, whose point is differentiated:
            `Entropy(t)`, `SquaredNorm(t)`, `LocalL2(t)`, …

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Matching(), structmax.estimators.StraightThrough())
        >>> (z * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        >>> x.grad
        tensor([[1., 2.],
                [3., 4.]])

    Reference: Hinton 2012, Neural networks for machine learning, lecture 9; Bengio, Léonard & Courville 2013,
    https://arxiv.org/abs/1308.3432.
    """

    backward: Pullback = Identity()  # noqa: RUF009

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax", *self.backward.needs)

    def choose(self, problem: Problem, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        return ZERO.point(problem), ()

    def pullback(self, problem: Problem, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        return self.backward.pullback(problem, d_z)
