"""Straight-through: the best structure forward, backward as if it had been something differentiable."""

from dataclasses import dataclass

import torch

from structmax.estimators.pullbacks import AbstractPullback, Identity
from structmax.estimators.surrogate import AbstractChoice
from structmax.inference.argmax import argmax
from structmax.inference.oracle import Oracle, Tensors


@dataclass(frozen=True)
class StraightThrough(AbstractChoice):
    """z = argmax⟨θ, y⟩ forward; backward as if z were θ itself, or a relaxation of the choice.

        Identity():  ∂L/∂θ = g                  Marginals(t):  ∂L/∂θ = ∇μ(θ/t) g

    Args:
        backward: `Identity()`, `Marginals(temperature)`, `SparseMarginals(temperature)`, `Smoothed(omega)` or
            `Softmax(dim)`.

    Examples:
        >>> import torch, structmax
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
        >>> z = structmax.surrogate(x, structmax.Matching(), structmax.StraightThrough())
        >>> (z * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        >>> x.grad
        tensor([[1., 2.],
                [3., 4.]])

    Reference: Hinton 2012, Neural networks for machine learning, lecture 9; Bengio, Léonard & Courville 2013,
    https://arxiv.org/abs/1308.3432.
    """

    backward: AbstractPullback = Identity()  # noqa: RUF009

    @property
    def needs(self) -> tuple[str, ...]:
        return ("argmax", *self.backward.needs)

    def choose(self, ask: Oracle, scores: Tensors, generator: torch.Generator | None) -> tuple[Tensors, Tensors]:
        return ask.parts(argmax, scores), ()

    def pullback(self, ask: Oracle, scores: Tensors, z: Tensors, saved: Tensors, d_z: Tensors) -> Tensors:
        return self.backward.pullback(ask, scores, d_z)
